"""The order of a FIFO key: members run in the order in which they were stored, whatever their ids, the
clock and their tasks. The store numbers them; ids here descend, so that no order comes by chance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from winch.core.job import Claim
from winch.core.lifecycle import JobState
from winch.storage.decide.waits import AWAITED_HEADER, Dependencies, job_key, signal_key
from winch.storage.params import Answer, NewJob, Wait
from winch.testing.conformance.bench import DAY, HOUR, Bench, RolledBack
from winch.testing.conformance.case import case
from winch.testing.conformance.cases.gates.gates import admit, fifo, gated, ids_of
from winch.testing.conformance.cases.jobs.waits import unblock
from winch.testing.conformance.cases.store.reports import crash


def members(bench: Bench, count: int, key: str = "acct:7", **fields: Any) -> list[NewJob]:
    """New members of a key, with descending ids."""
    ids = [bench.new_id() for _ in range(count)][::-1]
    return [bench.new_job(id=job_id, **gated(fifo(key)), **fields) for job_id in ids]


def ids(jobs: Sequence[NewJob]) -> list[str]:
    return [job.id for job in jobs]


def drained(bench: Bench, first: Claim | None = None) -> list[str]:
    """Complete the members one after another; returns their ids in the order of their starts."""
    order: list[str] = []
    found = [first] if first is not None else bench.claim()
    while found:
        (claim,) = found
        order.append(claim.id)
        assert bench.complete(claim, is_gated=True) is Answer.TOOK
        unblock(bench)
        found = bench.claim()
    return order


def dies(bench: Bench, claim: Claim) -> None:
    assert bench.finish(bench.outcome(claim, JobState.DEAD, is_gated=True)) == [Answer.TOOK]


@case()
def members_of_one_call_run_in_the_order_of_the_call(bench: Bench) -> None:
    jobs = members(bench, 20)
    bench.enqueue(*jobs)
    assert drained(bench) == ids(jobs)


@case()
def members_with_given_ids_run_in_the_order_of_the_call(bench: Bench) -> None:
    jobs = members(bench, 20, is_given_id=True)
    bench.enqueue(*jobs, *jobs[:3])
    assert drained(bench) == ids(jobs)


@case()
def members_of_several_kinds_run_in_the_order_of_the_call(bench: Bench) -> None:
    """Several tasks and priorities, and another key in between: a store may write them by kind."""
    mine = members(bench, 24)
    kinds: list[dict[str, Any]] = [
        {"task": "mail.a"},
        {"task": "mail.b", "priority": 5},
        {"task": "mail.a", "priority": 9},
    ]
    mine = [
        bench.new_job(**{**gated(fifo()), "id": job.id, **kinds[n % 3]}) for n, job in enumerate(mine)
    ]
    others = members(bench, 24, "acct:8", queue="others")
    bench.enqueue(*(job for pair in zip(mine, others, strict=True) for job in pair))
    assert drained(bench) == ids(mine)
    order = []
    while found := bench.claim("others"):
        order += ids_of(found)
        bench.complete(found[0], is_gated=True)
    assert order == ids(others)


@case()
def members_of_several_calls_at_one_moment_run_in_the_order_of_the_calls(bench: Bench) -> None:
    jobs = members(bench, 9)
    bench.enqueue(*jobs[:4])
    for job in jobs[4:7]:
        bench.enqueue(job)
    bench.enqueue(*jobs[7:])
    assert drained(bench) == ids(jobs)


@case()
def members_keep_their_order_when_the_clock_goes_back(bench: Bench) -> None:
    jobs = members(bench, 6)
    bench.enqueue(*jobs[:2])
    bench.advance(-HOUR)
    bench.enqueue(jobs[2])
    bench.advance(-DAY)
    bench.enqueue(*jobs[3:5])
    bench.advance(2 * DAY)
    bench.enqueue(jobs[5])
    assert drained(bench) == ids(jobs)


@case()
def members_are_numbered_and_keep_their_numbers(bench: Bench) -> None:
    jobs = members(bench, 4)
    bench.enqueue(*jobs)
    plain = bench.add()
    numbers = [job.seq for job in bench.jobs(ids(jobs))]
    assert None not in numbers
    assert numbers == sorted(set(numbers), key=lambda number: number or 0)
    assert bench.get(plain).seq is None
    claims = bench.claim()
    dies(bench, next(claim for claim in claims if claim.id == jobs[0].id))
    bench.cancel(jobs[1].id)
    assert drained(bench)[-2:] == ids(jobs[2:])
    assert [job.seq for job in bench.jobs(ids(jobs))] == numbers
    assert [job.seq for job in bench.list_jobs().jobs] == [None, *numbers]
    for job in jobs:
        bench.retry(job.id)
    assert [job.seq for job in bench.jobs(ids(jobs))] == numbers


@case()
def a_member_that_is_retried_keeps_its_place(bench: Bench) -> None:
    """Behind the one whose turn it is, before all that were stored later."""
    jobs = members(bench, 4)
    bench.enqueue(*jobs)
    dies(bench, bench.take())
    second = bench.take()
    bench.cancel(jobs[2].id)
    bench.retry(jobs[2].id)
    bench.retry(jobs[0].id)
    assert bench.claim() == []
    assert drained(bench, second) == ids([jobs[1], jobs[0], *jobs[2:]])


@case()
def a_member_whose_process_dies_keeps_its_place(bench: Bench) -> None:
    jobs = members(bench, 3)
    bench.enqueue(*jobs)
    session = bench.start_session()
    bench.take(session=session)
    bench.end_session(session, cause="SIGKILL")
    bench.release(bench.take())
    while (claim := bench.take()).id == jobs[0].id:
        crash(bench, claim)
    assert bench.get(jobs[0].id).state is JobState.DEAD
    bench.retry(jobs[0].id)
    assert drained(bench, claim) == ids([jobs[1], jobs[0], jobs[2]])


@case()
def a_member_keeps_its_number_however_it_ends(bench: Bench) -> None:
    names = ("completed", "dead", "waiting", "asked", "released", "given up", "crashed", "rescued")
    jobs = {name: members(bench, 1, name)[0] for name in names}
    bench.enqueue(*jobs.values())
    numbers = {name: bench.get(job.id).seq for name, job in jobs.items()}
    bench.cancel(jobs["waiting"].id)
    gone = bench.start_session()
    claims = {claim.id: claim for claim in bench.claim()}
    held = {name: claims[job.id] for name, job in jobs.items() if job.id in claims}
    bench.release(held["rescued"])
    assert bench.take(session=gone).id == jobs["rescued"].id
    bench.release(held["given up"])
    held["given up"] = bench.take()
    for name in ("asked", "released", "given up", "rescued"):
        bench.cancel(jobs[name].id)
    bench.complete(held["completed"], is_gated=True)
    dies(bench, held["dead"])
    bench.finish(bench.outcome(held["asked"], JobState.CANCELLED, what="cancelled", is_gated=True))
    bench.release(held["released"])
    assert bench.give_up(bench.session, held["given up"].token) == 1
    bench.end_session(gone, cause="SIGKILL")
    claim = held["crashed"]
    while crash(bench, claim) == [Answer.TOOK] and (found := bench.claim()):
        (claim,) = found
    ended = {name: bench.get(job.id) for name, job in jobs.items()}
    assert all(job.state.is_final for job in ended.values()), {n: j.state for n, j in ended.items()}
    assert {name: job.seq for name, job in ended.items()} == numbers
    for job in jobs.values():
        bench.retry(job.id)
    assert {name: bench.get(job.id).seq for name, job in jobs.items()} == numbers


@case()
def members_after_each_other_in_a_flow_run_in_its_order(bench: Bench) -> None:
    """Those that wait for a member of their own key come behind it."""
    jobs = members(bench, 4, headers={AWAITED_HEADER: "1"})
    waits = [(jobs[n].id, [Wait(job_key(jobs[n - 1].id))]) for n in range(1, 4)]
    bench.call(bench.driver.enqueue_after(jobs, Dependencies(waits), now=bench.now))
    behind = members(bench, 1)
    bench.enqueue(*behind)
    assert drained(bench) == ids([*jobs, *behind])


@case()
def a_member_that_waits_for_one_before_it_leaves_its_turn(bench: Bench) -> None:
    """An operator retries the first while the second, which comes after it in a flow, has the turn."""
    first, second, third = jobs = members(bench, 3, headers={AWAITED_HEADER: "1"})
    bench.enqueue(*jobs)
    dies(bench, bench.take())
    claim = bench.take()
    bench.retry(first.id)
    assert (claim.id, bench.claim()) == (second.id, [])
    waits = (Wait(job_key(first.id)),)
    outcome = bench.outcome(
        claim,
        JobState.BLOCKED,
        what="waited",
        counts=False,
        waits=waits,
        is_gated=True,
        leaves_turn=True,
    )
    assert bench.finish(outcome) == [Answer.TOOK]
    assert admit(bench, is_sweep=True).count == 0
    assert drained(bench) == ids([first, second, third])


@case()
def a_member_that_waits_keeps_its_turn(bench: Bench) -> None:
    first, second, third = jobs = members(bench, 3)
    bench.enqueue(*jobs)
    dies(bench, bench.take())
    claim = bench.take()
    bench.retry(first.id)
    waits = (Wait(signal_key("go"), is_enough=True),)
    outcome = bench.outcome(
        claim, JobState.BLOCKED, what="waited", counts=False, waits=waits, is_gated=True
    )
    assert bench.finish(outcome) == [Answer.TOOK]
    for _ in range(2):
        assert admit(bench, is_sweep=True).count == 0
        assert bench.claim() == []
    bench.call(bench.driver.signal("go", "1", id="1", now=bench.now))
    unblock(bench)
    assert drained(bench) == ids([second, first, third])


@case()
def a_member_that_is_committed_later_comes_later(bench: Bench) -> None:
    if not bench.driver.capabilities.joins_transactions:
        return
    jobs = members(bench, 4)
    bench.enqueue(jobs[0])
    with bench.transaction() as conn:
        bench.call_on(conn, bench.driver.enqueue([jobs[1]], now=bench.now))
        bench.call_on(conn, bench.driver.enqueue([jobs[2]], now=bench.now))
    with bench.transaction() as conn:
        bench.call_on(conn, bench.driver.enqueue(members(bench, 1), now=bench.now))
        raise RolledBack
    bench.enqueue(jobs[3])
    assert drained(bench) == ids(jobs)


@case()
def why_counts_those_before_in_the_order_of_the_key(bench: Bench) -> None:
    jobs = members(bench, 5)
    bench.enqueue(*jobs)
    bench.claim()
    found = [bench.explain(job.id).gate for job in jobs[1:]]
    assert [None if gate is None else gate.ahead for gate in found] == [0, 1, 2, 3]

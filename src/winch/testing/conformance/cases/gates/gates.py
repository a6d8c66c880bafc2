"""Gates: limits, rates, FIFO keys, tenants and scopes hold jobs back, and let them go when they open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from winch.core.gates.uses import (
    FIFO,
    LIMIT,
    RATE,
    SLIDING,
    GateSpec,
    GateUse,
    with_gates,
)
from winch.core.job import Claim, to_micros
from winch.core.lifecycle import JobState
from winch.core.policy.unique import Duplicate
from winch.storage.crash_report import CrashReport
from winch.storage.gate_records import LimitInfo
from winch.storage.params import Answer, ClaimRef, Promoted
from winch.testing.conformance.bench import HOUR, LEASE, MINUTE, SECOND, Bench
from winch.testing.conformance.case import case

MICROS = 1_000_000
BLOCKED, READY = JobState.BLOCKED, JobState.READY


def limit(n: int, key: str = "limit:mail", weight: int = 1, name: str = "limit:mail") -> GateUse:
    return GateUse(key, LIMIT, name, n=n, weight=weight)


def rate(n: int, how: str = SLIDING, seconds: int = 60, **fields: Any) -> GateUse:
    return GateUse("rate:mail", RATE, "rate:mail", n=n, per=seconds * MICROS, how=how, **fields)


def fifo(key: str = "acct:7", *, blocks: bool = False) -> GateUse:
    return GateUse(f"fifo:{key}", FIFO, blocks_on_death=blocks)


def gated(*uses: GateUse) -> dict[str, Any]:
    """The fields of a new job with these gates."""
    fields: dict[str, Any] = {"options": with_gates(None, uses)}
    for use in uses:
        if use.kind == FIFO:
            fields["fifo"] = use.key.removeprefix("fifo:")
    return fields


def states(bench: Bench, ids: list[str]) -> list[JobState]:
    return [job.state for job in bench.jobs(ids)]


def ids_of(claims: list[Claim]) -> list[str]:
    return [claim.id for claim in claims]


def admit(bench: Bench, *, is_sweep: bool = False) -> Promoted:
    return bench.call(bench.driver.admit(is_sweep=is_sweep, now=bench.now))


def limits(bench: Bench) -> dict[str, LimitInfo]:
    return {info.name: info for info in bench.call(bench.driver.limits())}


def set_limits(bench: Bench, *, is_live: bool = True, **specs: GateSpec | None) -> None:
    named = {name.replace("_", ":"): spec for name, spec in specs.items()}
    bench.call(bench.driver.set_limits(named, by="ada" if is_live else None, now=bench.now))


# -- limits -------------------------------------------------------------------------------------------


@case()
def no_more_run_at_once_than_a_limit_allows(bench: Bench) -> None:
    ids = bench.add_many(5, **gated(limit(2)))
    claims = bench.claim()
    assert ids_of(claims) == ids[:2]
    assert states(bench, ids) == [JobState.RUNNING] * 2 + [BLOCKED] * 3
    assert {job.gate for job in bench.jobs(ids[2:])} == {"limit:mail"}
    assert bench.claim() == []
    assert limits(bench)["limit:mail"].used == 2
    assert limits(bench)["limit:mail"].waiting == 3


@case()
def a_session_that_runs_few_at_once_never_leads_to_more_than_a_limit_allows(bench: Bench) -> None:
    """A store may give such a session more jobs than the limit's number: what can run is bounded."""
    ids = bench.add_many(20, **gated(limit(5)))
    slots = {bench.start_session(): 2, bench.start_session(): 3, bench.start_session(): 4}
    held: dict[str, list[Claim]] = {session: [] for session in slots}

    def claim_all() -> None:
        for session, at_once in slots.items():
            held[session] += bench.claim(session=session, limit=4, at_once=at_once)
            assert sum(min(len(held[session]), at_once) for session, at_once in slots.items()) <= 5

    ended: list[str] = []
    for _ in range(20):
        claim_all()
        assert sum(info.used for info in limits(bench).values()) <= 5
        for claims in held.values():
            if claims:
                claim = claims.pop()
                assert bench.complete(claim, is_gated=True) is Answer.TOOK
                ended.append(claim.id)
    assert sorted(ended) == sorted(ids)
    assert bench.claim() == []
    assert sum(info.used for info in limits(bench).values()) == 0


@case()
def a_job_whose_task_has_gates_and_itself_none_is_claimed_now(bench: Bench) -> None:
    bench.add(**gated())
    claim = bench.take()
    assert claim.claimed_at == bench.at
    assert claim.fence == to_micros(bench.at)


@case()
def a_retry_may_put_jobs_under_a_gate(bench: Bench) -> None:
    made = (JobState.DEAD, JobState.COMPLETED, JobState.CANCELLED, JobState.SCHEDULED, JobState.RETRYING)
    ids = [bench.make_job(state).id for state in made]
    bench.advance(SECOND)
    options = gated(limit(1))["options"]
    assert [acted.took for acted in bench.retry(*ids, queue="default", options=options)] == [True] * 5
    assert states(bench, ids) == [READY] * 5
    assert bench.groups() == []
    for left in range(4, -1, -1):
        claim = bench.take()
        assert bench.claim() == []
        assert limits(bench)["limit:mail"].waiting == left
        assert bench.complete(claim, is_gated=True) is Answer.TOOK
    assert states(bench, ids) == [JobState.COMPLETED] * 5
    assert [job.id for job in bench.list_jobs().jobs] == sorted(ids, reverse=True)


@case()
def an_end_makes_the_next_who_waits_ready(bench: Bench) -> None:
    ids = bench.add_many(4, **gated(limit(1)))
    for place in range(4):
        claim = bench.take()
        assert claim.id == ids[place]
        assert bench.claim() == []
        assert states(bench, ids[place + 1 :]) == [BLOCKED] * (3 - place)
        assert bench.complete(claim, is_gated=True) is Answer.TOOK
        assert states(bench, ids[place + 1 :]) == ([READY] + [BLOCKED] * (2 - place))[: 3 - place]
    assert limits(bench) == {}


@case()
def a_permit_is_given_back_however_the_claim_ends(bench: Bench) -> None:
    def released(claim: Claim, session: str) -> None:
        bench.release(claim)

    def given_up(claim: Claim, session: str) -> None:
        bench.give_up(session, claim.token)

    def crashed(claim: Claim, session: str) -> None:
        bench.call(bench.driver.crash(CrashReport([claim_ref(claim)], "SIGSEGV"), now=bench.now))

    def ended(claim: Claim, session: str) -> None:
        bench.end_session(session)

    def rescued(claim: Claim, session: str) -> None:
        bench.advance(2 * LEASE)
        bench.rescue()

    def failed(claim: Claim, session: str) -> None:
        bench.finish(bench.outcome(claim, JobState.RETRYING, delay=HOUR))

    def died(claim: Claim, session: str) -> None:
        bench.finish(bench.outcome(claim, JobState.DEAD))

    def snoozed(claim: Claim, session: str) -> None:
        bench.finish(bench.outcome(claim, JobState.SCHEDULED, delay=HOUR, counts=False))

    ends: list[Callable[[Claim, str], None]] = [
        released, given_up, crashed, ended, rescued, failed, died, snoozed
    ]  # fmt: skip
    for number, end in enumerate(ends):
        queue = bench.new_queue()
        gate = gated(limit(1, key=f"limit:mail={number}"))
        bench.add(queue=queue, **gate)
        second = bench.add(queue=queue, priority=-5, **gate)
        session = bench.start_session()
        claim = bench.take(queue, session=session)
        bench.claim(queue, session=bench.start_session())
        assert bench.get(second).state is BLOCKED, end.__name__
        end(claim, session)
        assert bench.get(second).state is READY, end.__name__
        assert limits(bench).get("limit:mail", LimitInfo(name="", spec=None)).used == 0, end.__name__


def claim_ref(claim: Claim) -> ClaimRef:
    return ClaimRef(claim.id, claim.token)


@case()
def a_zombie_cannot_give_a_permit_back(bench: Bench) -> None:
    session = bench.start_session()
    first, second = bench.add_many(2, **gated(limit(1)))
    zombie = bench.take(session=session)
    bench.advance(2 * LEASE)
    bench.rescue()
    anew = bench.take(session=bench.start_session())
    assert anew.id == first
    bench.claim(session=bench.start_session())
    assert bench.get(second).state is BLOCKED
    assert bench.complete(zombie, is_gated=True) is Answer.LOST
    assert bench.release(zombie) == [Answer.LOST]
    assert bench.get(second).state is BLOCKED
    assert limits(bench)["limit:mail"].used == 1
    assert bench.complete(anew, is_gated=True) is Answer.TOOK
    assert bench.complete(anew, is_gated=True) is Answer.ALREADY
    assert bench.get(second).state is READY


@case()
def all_permits_of_a_job_are_granted_together_or_none(bench: Bench) -> None:
    narrow, wide = (
        limit(1, "limit:narrow", name="limit:narrow"),
        limit(9, "limit:wide", name="limit:wide"),
    )
    first = bench.add(**gated(narrow, wide))
    second = bench.add(**gated(narrow, wide))
    assert ids_of(bench.claim()) == [first]
    assert bench.get(second).gate == "limit:narrow"
    assert limits(bench)["limit:wide"].used == 1


@case()
def keys_have_limits_of_their_own_and_plain_jobs_none(bench: Bench) -> None:
    ids = [bench.add(**gated(limit(1, key=f"limit:mail={key}"))) for key in "aabbc"]
    plain = bench.add()
    taken = ids_of(bench.claim())
    assert sorted(taken) == sorted([ids[0], ids[2], ids[4], plain])
    assert states(bench, [ids[1], ids[3]]) == [BLOCKED, BLOCKED]


@case()
def plain_and_gated_jobs_are_taken_in_one_order(bench: Bench) -> None:
    low = bench.add(priority=-5, **gated(limit(9)))
    first = bench.add()
    second = bench.add(**gated(limit(9)))
    third = bench.add()
    high = bench.add(priority=5, **gated(limit(9)))
    assert ids_of(bench.claim(limit=2)) == [high, first]
    assert ids_of(bench.claim(limit=2)) == [second, third]
    assert ids_of(bench.claim(limit=2)) == [low]


@case()
def a_claim_may_leave_gated_jobs_alone(bench: Bench) -> None:
    job = bench.add(**gated(limit(1)))
    others = bench.add_many(2, **gated(limit(9, "limit:b", name="limit:b")))
    plain = bench.add_many(2)
    assert bench.call(bench.driver.has_gated(["default"])) is True
    assert ids_of(bench.claim(gated=0)) == plain
    assert states(bench, [job]) == [READY]
    assert ids_of(bench.claim(gated=1)) == [job, *others]
    assert bench.call(bench.driver.has_gated(["default"])) is False


@case()
def heavy_jobs_take_more_of_a_limit(bench: Bench) -> None:
    heavy = bench.add_many(2, **gated(limit(5, weight=3)))
    light = bench.add_many(3, **gated(limit(5)))
    assert sorted(ids_of(bench.claim())) == sorted([heavy[0], *light[:2]])
    assert limits(bench)["limit:mail"].used == 5


@case()
def a_waiting_job_can_be_cancelled_deleted_and_replaced(bench: Bench) -> None:
    holder, cancelled, deleted = bench.add_many(3, **gated(limit(1)))
    replaced = bench.add(unique_key="k", **gated(limit(1)))
    assert ids_of(bench.claim()) == [holder]
    assert bench.cancel(cancelled)[0].took
    assert bench.delete(deleted)[0].took
    (answer,) = bench.enqueue(
        bench.new_job(unique_key="k", args='{"to":8}', on_duplicate=Duplicate.REPLACE)
    )
    assert answer.is_replaced
    assert bench.get(replaced).state is READY
    assert bench.get(cancelled).state is JobState.CANCELLED
    assert bench.claim() == []
    assert bench.get(replaced).gate == "limit:mail"


@case()
def an_operators_retry_meets_the_gates_again(bench: Bench) -> None:
    first, second = bench.add_many(2, **gated(limit(1)))
    bench.complete(bench.take(), is_gated=True)
    bench.take()
    assert bench.retry(first)[0].took
    assert bench.claim() == []
    assert bench.get(first).state is BLOCKED
    assert bench.get(second).state is JobState.RUNNING


@case()
def due_and_delayed_jobs_meet_their_gates_when_they_are_ready(bench: Bench) -> None:
    later = bench.add(delay=MINUTE, **gated(limit(1)))
    now = bench.add(**gated(limit(1)))
    assert bench.get(later).state is JobState.SCHEDULED
    assert ids_of(bench.claim()) == [now]
    bench.advance(MINUTE)
    bench.promote()
    assert bench.claim() == []
    assert bench.get(later).state is BLOCKED


@case()
def limits_are_set_live_by_name_and_code_does_not_undo_it(bench: Bench) -> None:
    ids = bench.add_many(6, **gated(limit(1)))
    assert len(bench.claim()) == 1
    set_limits(bench, limit_mail=GateSpec(3))
    assert states(bench, ids[1:4]) == [READY, READY, BLOCKED]
    assert len(bench.claim()) == 2
    set_limits(bench, is_live=False, limit_mail=GateSpec(9))
    info = limits(bench)["limit:mail"]
    assert (info.spec, info.is_live, info.by) == (GateSpec(3), True, "ada")
    assert bench.claim() == []
    set_limits(bench, limit_mail=None)
    set_limits(bench, is_live=False, limit_mail=GateSpec(5))
    assert len(bench.claim()) == 2
    assert not limits(bench)["limit:mail"].is_live


@case()
def why_names_the_gate_and_who_holds_it(bench: Bench) -> None:
    ids = bench.add_many(4, **gated(limit(2)))
    bench.claim()
    gate = bench.explain(ids[3]).gate
    assert gate is not None
    assert (gate.key, gate.kind, gate.n, gate.used, gate.ahead) == ("limit:mail", LIMIT, 2, 2, 1)
    assert sorted(gate.holders) == sorted(ids[:2])
    assert bench.explain(ids[0]).gate is None


@case()
def claims_at_once_never_share_a_permit(bench: Bench) -> None:
    ids = bench.add_many(12, **gated(limit(3)))
    sessions = [bench.start_session() for _ in range(6)]
    running: list[Claim] = []
    done = 0
    while done < len(ids):
        verbs = [
            bench.driver.claim(bench.claiming(session=session, limit=2), now=bench.now)
            for session in sessions
        ]
        for claims in bench.together(verbs):
            running += claims
        assert 0 < len(running) <= 3
        ends = [[bench.outcome(claim, is_gated=True)] for claim in running]
        for answers in bench.together([bench.driver.finish(end, now=bench.now) for end in ends]):
            assert answers == [Answer.TOOK]
        done += len(running)
        running = []
    assert set(states(bench, ids)) == {JobState.COMPLETED}
    assert limits(bench) == {}

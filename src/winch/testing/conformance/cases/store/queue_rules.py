"""A claim reads the concurrency and the order of its queue: they hold for every job in it."""

from __future__ import annotations

from winch.core.gates.draw import tenant_key
from winch.core.gates.uses import GateSpec, with_gates
from winch.core.job import Claim
from winch.core.lifecycle import JobState
from winch.core.policy.queue_settings import QueueRule
from winch.storage.crash_report import CrashReport
from winch.storage.gate_records import LimitInfo
from winch.storage.params import Answer, ClaimRef
from winch.testing.conformance.bench import LEASE, MINUTE, SECOND, Bench
from winch.testing.conformance.case import case
from winch.testing.conformance.cases.gates.gates import fifo, gated, ids_of, limit, states

FAMILY = "gates"
READY = JobState.READY


def set_queue(
    bench: Bench, n: int | None = None, *, is_strict: bool = False, queue: str = "default"
) -> None:
    rule = QueueRule(concurrency=n, is_strict=is_strict)
    bench.call(bench.driver.set_queue(queue, rule, now=bench.now))


def limits(bench: Bench) -> dict[str, LimitInfo]:
    return {found.name: found for found in bench.call(bench.driver.limits())}


def complete(bench: Bench, *claims: Claim) -> None:
    ends = [bench.outcome(claim, is_gated=claim.has_permit) for claim in claims]
    assert bench.finish(*ends) == [Answer.TOOK] * len(claims)


@case()
def concurrency_holds_for_jobs_stored_before_and_after(bench: Bench) -> None:
    ids = bench.add_many(4)
    set_queue(bench, 2)
    ids += bench.add_many(3)
    done: list[str] = []
    while len(done) < 7:
        claims = bench.claim()
        assert ids_of(claims) == ids[len(done) : len(done) + 2]
        assert all(claim.has_permit for claim in claims)
        assert bench.claim() == []
        assert set(states(bench, ids[len(done) + 2 :])) <= {READY}, "they stay ready"
        complete(bench, *claims)
        done += ids_of(claims)
    assert limits(bench)["queue:default"] == LimitInfo(
        name="queue:default", spec=GateSpec(2), is_live=True
    )
    set_queue(bench)
    assert limits(bench) == {}


@case()
def jobs_that_run_when_it_is_set_count(bench: Bench) -> None:
    ids = bench.add_many(5)
    first = bench.claim(limit=3)
    assert not any(claim.has_permit for claim in first)
    set_queue(bench, 2)
    assert limits(bench)["queue:default"].used == 3
    assert bench.claim() == []
    bench.complete(first[0])
    assert bench.claim() == [], "two run, as many as may"
    # However their claims end, what they had of the queue comes back.
    bench.release(first[1])
    again = bench.claim()
    assert ids_of(again) == [ids[1]]
    assert bench.give_up(bench.session, first[2].token) == 1
    assert ids_of(bench.claim()) == [ids[2]]


@case()
def a_large_claim_that_runs_when_it_is_set_counts(bench: Bench) -> None:
    bench.add_many(250)
    claims = bench.claim(limit=200, gated=0)
    assert len(claims) == 200
    set_queue(bench, 150)
    assert limits(bench)["queue:default"].used == 200
    assert bench.finish(*[bench.outcome(claim) for claim in claims[:60]]) == [Answer.TOOK] * 60
    assert len(bench.claim(limit=50)) == 10
    assert bench.finish(*[bench.outcome(claim) for claim in claims[60:]]) == [Answer.TOOK] * 140
    assert limits(bench)["queue:default"].used == 10
    assert len(bench.claim(limit=50)) == 40


@case()
def lowered_raised_and_removed_while_jobs_run(bench: Bench) -> None:
    bench.add_many(10)
    set_queue(bench, 4)
    claims = bench.claim()
    assert len(claims) == 4
    set_queue(bench, 2)
    complete(bench, *claims[:2])
    assert bench.claim() == []
    complete(bench, claims[2])
    assert len(bench.claim()) == 1
    set_queue(bench, 3)
    assert len(bench.claim()) == 1
    set_queue(bench)
    assert len(bench.claim()) == 4
    complete(bench, claims[3])
    set_queue(bench, 6)
    assert limits(bench)["queue:default"].used == 6
    bench.add()
    assert bench.claim() == []


@case()
def plain_claims_leave_a_queue_with_a_rule_alone(bench: Bench) -> None:
    set_queue(bench, 1)
    set_queue(bench, is_strict=True, queue="strict")
    bench.add_many(2)
    bench.add(queue="strict")
    other = bench.add(queue="other")
    assert ids_of(bench.claim("default", "strict", "other", gated=0)) == [other]
    assert bench.call(bench.driver.has_gated(["default"]))
    assert bench.call(bench.driver.has_gated(["other", "strict"]))
    assert not bench.call(bench.driver.has_gated(["other"]))


@case()
def queues_are_walked_in_their_order(bench: Bench) -> None:
    set_queue(bench, 1)
    mine = bench.add_many(2)
    other = bench.add_many(2, queue="other")
    assert ids_of(bench.claim("default", "other", limit=2)) == [mine[0], other[0]]
    assert ids_of(bench.claim("default", "other", limit=2)) == [other[1]]


@case()
def a_paused_queue_gives_nothing(bench: Bench) -> None:
    set_queue(bench, 1)
    job = bench.add()
    bench.call(bench.driver.pause("default", by="ada", now=bench.now))
    assert bench.claim() == []
    bench.call(bench.driver.resume("default", by="ada", now=bench.now))
    assert ids_of(bench.claim(session=bench.new_id())) == [], "no session"
    assert ids_of(bench.claim()) == [job]


@case()
def every_end_of_a_claim_gives_back(bench: Bench) -> None:
    set_queue(bench, 1)
    bench.add_many(12)

    def take(**fields: str) -> Claim:
        (claim,) = bench.claim(**fields)
        assert bench.claim() == []
        assert limits(bench)["queue:default"].used == 1
        return claim

    complete(bench, take())
    claim = take()
    assert bench.finish(
        bench.outcome(claim, JobState.RETRYING, what="failed", delay=MINUTE, is_gated=True)
    ) == [Answer.TOOK]
    claim = take()
    assert bench.finish(bench.outcome(claim, JobState.DEAD, what="failed")) == [Answer.TOOK]
    bench.release(take())
    bench.give_up(bench.session, take().token)
    ref = [ClaimRef((claim := take()).id, claim.token)]
    assert bench.call(bench.driver.crash(CrashReport(ref, "killed"), now=bench.now)) == [Answer.TOOK]
    gone = bench.start_session()
    take(session=gone)
    bench.call(bench.driver.end_session(gone, now=bench.now))
    lost = bench.start_session()
    take(session=lost)
    bench.advance(LEASE + SECOND)
    bench.call(bench.driver.rescue(now=bench.now))
    final = bench.start_session()
    claim = take(session=final)
    bench.call(bench.driver.cancel([claim.id], by="ada", now=bench.now))
    bench.release(claim)
    assert limits(bench)["queue:default"].used == 0


@case()
def a_lost_claim_gives_nothing_back(bench: Bench) -> None:
    set_queue(bench, 1)
    bench.add_many(2)
    (claim,) = bench.claim()
    bench.release(claim)
    (again,) = bench.claim()
    assert again.id == claim.id
    assert bench.complete(claim, is_gated=True) is Answer.LOST
    assert bench.claim() == []
    complete(bench, again)
    assert len(bench.claim()) == 1


@case()
def gates_of_jobs_hold_beside_it(bench: Bench) -> None:
    set_queue(bench, 3)
    limited = bench.add_many(2, **gated(limit(1)))
    first = bench.add_many(2, **gated(fifo()))
    plain = bench.add_many(2)
    claims = bench.claim()
    assert sorted(ids_of(claims)) == sorted([limited[0], first[0], plain[0]])
    assert states(bench, [limited[1], first[1]]) == [JobState.BLOCKED] * 2
    assert bench.claim() == []
    by_id = {claim.id: claim for claim in claims}
    complete(bench, by_id[first[0]])
    assert ids_of(bench.claim()) == [first[1]]
    complete(bench, by_id[plain[0]], by_id[limited[0]])
    assert ids_of(bench.claim()) == [limited[1], plain[1]]


@case()
def tenants_take_turns_beside_it(bench: Bench) -> None:
    set_queue(bench, 2)
    jobs = {
        tenant: bench.add_many(3, tenant=tenant, options=with_gates(None, (), tenant))
        for tenant in ("a", "b")
    }
    order: list[str] = []
    for _ in range(3):
        claims = bench.claim()
        assert len(claims) == 2
        order += ids_of(claims)
        complete(bench, *claims)
    assert order == [job for pair in zip(jobs["a"], jobs["b"], strict=True) for job in pair]
    assert tenant_key("default") not in limits(bench)


@case()
def jobs_of_tasks_that_are_not_known_take_no_room(bench: Bench) -> None:
    set_queue(bench, 1)
    bench.add_many(3, task="unknown")
    mine = bench.add(task="mine")
    assert ids_of(bench.claim(tasks=("mine",))) == [mine]


@case()
def why_names_the_jobs_that_fill_the_queue(bench: Bench) -> None:
    first, second = bench.add_many(2)
    set_queue(bench, 1)
    assert bench.explain(second).gate is None, "it has room"
    (claim,) = bench.claim()
    assert claim.id == first
    gate = bench.explain(second).gate
    assert gate is not None
    assert (gate.key, gate.n, gate.used, gate.holders) == ("queue:default", 1, 1, (first,))
    complete(bench, claim)
    assert bench.explain(second).gate is None


@case()
def strict_order_holds_for_jobs_stored_before(bench: Bench) -> None:
    ids = [bench.add(priority=priority) for priority in (0, 1, -1, 2, 1, 0, -2)]
    bench.advance(100 * MINUTE)
    late = [bench.add(priority=priority) for priority in (2, 0, -1)]
    set_queue(bench, is_strict=True)
    expected = [ids[3], late[0], ids[1], ids[4], ids[0], ids[5], late[1], ids[2], late[2], ids[6]]
    taken: list[str] = []
    for count in (1, 3, 4, 10):
        claims = bench.claim(limit=count)
        assert not any(claim.has_permit for claim in claims)
        taken += ids_of(claims)
    assert taken == expected
    assert [job.priority for job in bench.jobs(ids)] == [0, 1, -1, 2, 1, 0, -2], "nothing is rewritten"


@case()
def strict_order_ends_when_it_is_taken_back(bench: Bench) -> None:
    set_queue(bench, is_strict=True)
    old = bench.add(priority=-1)
    bench.advance(10 * MINUTE)
    new = bench.add(priority=1)
    (claim,) = bench.claim(limit=1)
    assert claim.id == new
    bench.release(claim)
    set_queue(bench)
    assert ids_of(bench.claim()) == [old, new]


@case()
def strict_order_with_gates_tenants_and_concurrency(bench: Bench) -> None:
    def add(priority: int, tenant: str | None = None) -> str:
        if tenant is None:
            return bench.add(priority=priority, **gated(limit(9)))
        return bench.add(priority=priority, tenant=tenant, options=with_gates(None, (), tenant))

    low, plain = add(0), bench.add()
    bench.advance(100 * MINUTE)
    high, urgent = add(1), bench.add(priority=3)
    set_queue(bench, 2, is_strict=True)
    first = bench.claim()
    assert ids_of(first) == [urgent, high]
    complete(bench, *first)
    second = bench.claim()
    assert ids_of(second) == sorted([low, plain], key=[low, plain].index)
    complete(bench, *second)
    old = add(0, "a")
    bench.advance(100 * MINUTE)
    new = add(5, "a")
    assert ids_of(bench.claim(limit=1)) == [new]
    assert ids_of(bench.claim(limit=1)) == [old]


@case()
def a_job_that_is_ready_again_takes_its_strict_place(bench: Bench) -> None:
    set_queue(bench, is_strict=True)
    first = bench.add()
    later = bench.add(priority=1, delay=MINUTE)
    bench.advance(2 * MINUTE)
    bench.promote()
    (claim,) = bench.claim(limit=1)
    assert claim.id == later
    assert bench.finish(bench.outcome(claim, JobState.RETRYING, what="failed", delay=MINUTE)) == [
        Answer.TOOK
    ]
    bench.advance(2 * MINUTE)
    bench.promote()
    assert ids_of(bench.claim()) == [later, first]


@case()
def claims_at_once_never_exceed_it(bench: Bench) -> None:
    bench.add_many(30)
    set_queue(bench, 3)
    sessions = [bench.start_session() for _ in range(4)]
    done = 0
    while done < 30:
        verbs = [
            bench.driver.claim(bench.claiming(session=session, limit=5), now=bench.now)
            for session in sessions
        ]
        running = [claim for claims in bench.together(verbs) for claim in claims]
        assert 0 < len(running) <= 3
        ends = [[bench.outcome(claim, is_gated=True)] for claim in running]
        for answers in bench.together([bench.driver.finish(end, now=bench.now) for end in ends]):
            assert answers == [Answer.TOOK]
        done += len(running)
    assert limits(bench)["queue:default"].used == 0

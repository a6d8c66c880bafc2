"""Rates, and scopes with their brake and breaker: cases of the family `gates`."""

from __future__ import annotations

import msgspec

from winch.core.gates.uses import (
    BUCKET,
    FIXED,
    SCOPE,
    BreakerSpec,
    GateSpec,
    GateUse,
)
from winch.core.lifecycle import JobState
from winch.storage.decide.waits import signal_key
from winch.storage.params import Answer, Wait
from winch.testing.conformance.bench import HOUR, MINUTE, SECOND, Bench
from winch.testing.conformance.case import case
from winch.testing.conformance.cases.gates.gates import (
    BLOCKED,
    MICROS,
    admit,
    gated,
    ids_of,
    limit,
    limits,
    rate,
    set_limits,
    states,
)

FAMILY = "gates"


# -- rates --------------------------------------------------------------------------------------------


@case()
def no_stretch_of_a_sliding_rate_has_more_than_its_number(bench: Bench) -> None:
    ids = bench.add_many(6, **gated(rate(2)))
    assert ids_of(bench.claim(limit=1)) == ids[:1]
    bench.advance(20 * SECOND)
    assert ids_of(bench.claim()) == ids[1:2]
    assert set(states(bench, ids[2:])) == {BLOCKED}
    promised = admit(bench)
    assert promised.count == 0
    assert promised.next_at == bench.at + 40 * SECOND
    bench.advance(40 * SECOND)
    assert admit(bench).count == 1
    assert ids_of(bench.claim()) == ids[2:3]
    assert admit(bench).next_at == bench.at + 20 * SECOND


@case()
def a_fixed_rate_counts_by_windows_of_the_clock(bench: Bench) -> None:
    start = bench.at.replace(second=50, microsecond=0)
    bench.now = start
    ids = bench.add_many(5, **gated(rate(2, FIXED)))
    assert ids_of(bench.claim()) == ids[:2]
    assert admit(bench).next_at == start + 10 * SECOND
    bench.advance(10 * SECOND)
    assert admit(bench).count == 2
    assert ids_of(bench.claim()) == ids[2:4]
    assert bench.get(ids[4]).state is BLOCKED


@case()
def a_bucket_gives_its_burst_and_then_a_steady_flow(bench: Bench) -> None:
    ids = bench.add_many(6, **gated(rate(60, BUCKET, burst=3)))
    assert ids_of(bench.claim()) == ids[:3]
    bench.advance(SECOND)
    assert admit(bench).count == 1
    assert ids_of(bench.claim()) == ids[3:4]
    bench.advance(10 * SECOND)
    admit(bench)
    assert ids_of(bench.claim()) == ids[4:]


@case()
def a_retry_budget_lets_first_attempts_through(bench: Bench) -> None:
    budget = rate(1, BUCKET, is_for_retries=True)
    ids = bench.add_many(3, **gated(budget))
    for claim in bench.claim():
        bench.finish(bench.outcome(claim, JobState.READY, is_gated=True))
    assert ids_of(bench.claim()) == ids[:1]
    assert states(bench, ids[1:]) == [BLOCKED] * 2
    assert {job.attempt for job in bench.jobs(ids[1:])} == {1}
    assert len(bench.claim()) == 0
    bench.add(**gated(budget))
    assert len(bench.claim()) == 1


# -- scopes: the brake and the breaker ----------------------------------------------------------------

BREAKER = BreakerSpec(failures=0.5, of=4, window=60 * MICROS, hold=30 * MICROS)


def scope(spec: BreakerSpec | None = None) -> GateUse:
    return GateUse("scope:bank", SCOPE, breaker=spec)


@case()
def jobs_under_a_scope_are_claimed_for_free_slots_only(bench: Bench) -> None:
    """A brake or a breaker may hold them any moment; jobs under a limit come along by the hundred."""
    under_scope = bench.add_many(3, **gated(scope()))
    under_limit = bench.add_many(3, **gated(limit(9)))
    assert ids_of(bench.claim(gated=1)) == [under_scope[0], *under_limit]
    assert ids_of(bench.claim(gated=2)) == under_scope[1:]


@case()
def jobs_under_a_slow_rate_are_claimed_for_free_slots_only(bench: Bench) -> None:
    """What is taken of a rate is never returned: a job that went back unstarted would be missed."""
    slow = bench.add_many(3, **gated(rate(999, seconds=1)))
    first = slow[0]
    assert ids_of(bench.claim(gated=1)) == [first]
    set_limits(bench, rate_mail=GateSpec(1000, MICROS))
    assert ids_of(bench.claim(gated=1)) == slow[1:], "the numbers in the store count"
    fast = bench.add_many(3, **gated(rate(5000, seconds=1)))
    set_limits(bench, rate_mail=GateSpec(100, MICROS))
    assert ids_of(bench.claim(gated=1)) == fast[:1]


@case()
def a_budget_for_retries_keeps_no_first_attempt_from_being_claimed_ahead(bench: Bench) -> None:
    ids = bench.add_many(3, **gated(rate(5, is_for_retries=True)))
    claims = bench.claim(gated=1)
    assert ids_of(claims) == ids
    bench.finish(*(bench.outcome(claim, JobState.READY, is_gated=True) for claim in claims))
    assert ids_of(bench.claim(gated=1)) == ids[:1]


@case()
def a_job_behind_many_of_a_scope_is_still_found(bench: Bench) -> None:
    bench.add_many(20, **gated(scope()))
    behind = bench.add(**gated(limit(9)))
    assert behind in ids_of(bench.claim(limit=10, gated=1))


@case()
def a_rate_is_taken_for_all_jobs_of_a_claim_at_once(bench: Bench) -> None:
    ids = bench.add_many(8, **gated(rate(5)))
    assert ids_of(bench.claim()) == ids[:5]
    bench.advance(59 * SECOND)
    assert bench.claim() == []
    bench.advance(SECOND)
    admit(bench)
    assert ids_of(bench.claim()) == ids[5:]


@case()
def a_brake_holds_every_job_of_its_scope(bench: Bench) -> None:
    first, *rest = bench.add_many(4, **gated(scope()))
    other = bench.add()
    claim = bench.take()
    assert claim.id == first
    ended = bench.outcome(claim, JobState.RETRYING, delay=MINUTE, brake="bank", is_gated=True)
    assert bench.finish(ended) == [Answer.TOOK]
    assert ids_of(bench.claim()) == [other]
    assert states(bench, rest) == [BLOCKED] * 3
    assert {job.attempt for job in bench.jobs(rest)} == {0}
    gate = bench.explain(rest[0]).gate
    assert gate is not None
    assert (gate.kind, gate.open_at) == (SCOPE, bench.at + MINUTE)
    assert admit(bench).next_at == bench.at + MINUTE
    bench.advance(MINUTE)
    bench.promote()
    assert admit(bench).count == 1, "a scope opens with one job first"
    assert len(bench.claim()) == 1
    bench.advance(SECOND)
    admit(bench)
    assert len(bench.claim()) >= 1
    bench.advance(20 * SECOND)
    admit(bench)
    bench.claim()
    assert BLOCKED not in states(bench, [first, *rest])


@case()
def a_breaker_opens_probes_and_closes(bench: Bench) -> None:
    bench.add_many(4, **gated(scope(BREAKER)))
    for claim in bench.claim():
        bench.finish(bench.outcome(claim, JobState.DEAD, what="failed", is_gated=True))
    ids = bench.add_many(5, **gated(scope(BREAKER)))
    assert bench.claim() == []
    assert set(states(bench, ids)) == {BLOCKED}
    assert {job.attempt for job in bench.jobs(ids)} == {0}
    bench.advance(30 * SECOND)
    admit(bench)
    probe = bench.claim()
    assert len(probe) == 1
    assert bench.claim() == []
    bench.finish(bench.outcome(probe[0], JobState.RETRYING, what="failed", delay=HOUR, is_gated=True))
    assert bench.claim() == []
    bench.advance(MINUTE)
    admit(bench)
    probe = bench.claim()
    assert len(probe) == 1
    bench.complete(probe[0], is_gated=True)
    admit(bench)
    assert len(bench.claim()) == 1
    bench.advance(10 * SECOND)
    admit(bench)
    bench.claim()
    assert BLOCKED not in states(bench, ids)


@case()
def a_breaker_opens_at_the_exact_share_and_not_below_it(bench: Bench) -> None:
    spec = BREAKER  # a share of 0.5, of at least 4

    def ends(*outcomes: JobState) -> None:
        for to in outcomes:
            (job,) = bench.add_many(1, **gated(scope(spec)))
            (claim,) = bench.claim()
            assert claim.id == job
            what = "completed" if to is JobState.COMPLETED else "failed"
            bench.finish(bench.outcome(claim, to, what=what, is_gated=True))

    def is_open() -> bool:
        (job,) = bench.add_many(1, **gated(scope(spec)))
        claims = bench.claim()
        if claims:
            # Given back, and taken away: it is no end that a breaker counts.
            bench.release(*claims)
            bench.delete(job)
        return not claims

    ends(JobState.DEAD, JobState.DEAD, JobState.COMPLETED)
    assert not is_open(), "three ends are too few, whatever became of them"
    bench.advance(2 * MINUTE)
    ends(JobState.COMPLETED, JobState.COMPLETED, JobState.COMPLETED, JobState.DEAD, JobState.DEAD)
    assert not is_open(), "two of five are less than half, and older ends do not count"
    ends(JobState.DEAD)
    assert is_open(), "three of six are half"


@case(events=True)
def holding_and_admitting_are_events(bench: Bench) -> None:
    _first, second = bench.add_many(2, **gated(limit(1)))
    claim = bench.take()
    bench.claim()
    bench.complete(claim, is_gated=True)
    kinds = [event.kind for event in bench.events() if event.job == second]
    assert kinds == ["enqueued", "held", "admitted"]


@case()
def nobody_waits_where_there_is_room(bench: Bench) -> None:
    """The sweep finds what a wake-up missed; here nothing is missed, and it changes nothing."""
    ids = bench.add_many(3, **gated(limit(1)))
    bench.claim()
    assert admit(bench, is_sweep=True).count == 0
    assert states(bench, ids[1:]) == [BLOCKED] * 2


@case()
def who_waits_for_something_else_is_no_matter_of_gates(bench: Bench) -> None:
    bench.add()
    bench.add(**gated(limit(1)))
    for claim in bench.claim():
        waits = (Wait(signal_key("go"), is_enough=True),)
        outcome = bench.outcome(claim, BLOCKED, what="waited", counts=False, waits=waits)
        bench.finish(msgspec.structs.replace(outcome, is_gated=claim.options is not None))
        set_limits(bench, limit_mail=GateSpec(3))
        assert admit(bench, is_sweep=True).count == 0
        assert bench.get(claim.id).state is BLOCKED
        assert [info.waiting for info in limits(bench).values()] == [0]
    bench.call(bench.driver.signal("go", "1", id="1", now=bench.now))
    bench.call(bench.driver.unblock(now=bench.now))
    assert len(bench.claim()) == 2

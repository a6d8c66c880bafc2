"""A tripped breaker: only an attempt that was claimed after the trip decides what comes next."""

from __future__ import annotations

from datetime import timedelta

from winch.core.gates.uses import SCOPE, BreakerSpec, GateUse
from winch.core.job import Claim
from winch.core.lifecycle import JobState
from winch.storage.gate_records import GateInfo, ScopeInfo
from winch.testing.conformance.bench import HOUR, MINUTE, SECOND, Bench
from winch.testing.conformance.case import case
from winch.testing.conformance.cases.gates.gates import admit, gated

MICROS = 1_000_000
OF, HOLD = 4, 30 * SECOND
SPEC = BreakerSpec(failures=0.5, of=OF, window=60 * MICROS, hold=30 * MICROS)
BANK = GateUse("scope:bank", SCOPE, breaker=SPEC)


def fail(bench: Bench, *claims: Claim) -> None:
    for claim in claims:
        bench.finish(bench.outcome(claim, JobState.DEAD, what="failed", is_gated=True))


def tripped(bench: Bench, still_running: int = 0, use: GateUse = BANK) -> list[Claim]:
    """Trip the breaker; returns the claims from before the trip that still run."""
    bench.add_many(OF + still_running, **gated(use))
    claims = bench.claim(limit=OF + still_running)
    bench.advance(SECOND)
    fail(bench, *claims[:OF])
    bench.add_many(6, **gated(use))
    assert bench.claim() == []
    return claims[OF:]


def held(bench: Bench) -> GateInfo:
    """The scope as one of the jobs that wait at it sees it."""
    blocked = bench.list_jobs(states=(JobState.BLOCKED,)).jobs
    gate = bench.explain(blocked[0].id).gate
    assert gate is not None
    return gate


def probe(bench: Bench, after: timedelta) -> Claim:
    """Wait until the hold has passed and claim the one job that the scope lets through."""
    bench.advance(after)
    admit(bench)
    (claim,) = bench.claim()
    return claim


@case()
def a_failure_from_before_the_trip_holds_nothing_longer(bench: Bench) -> None:
    old = tripped(bench, still_running=20)
    opens = bench.at + HOLD
    bench.advance(SECOND)
    fail(bench, *old)
    assert (held(bench).open_at, held(bench).trips) == (opens, 1)
    probe(bench, HOLD - SECOND)


@case()
def a_success_from_before_the_trip_closes_nothing(bench: Bench) -> None:
    (old,) = tripped(bench, still_running=1)
    opens = bench.at + HOLD
    bench.advance(SECOND)
    bench.complete(old, is_gated=True)
    admit(bench)
    assert bench.claim() == []
    assert held(bench).open_at == opens


@case()
def an_old_end_does_not_speak_for_the_probe(bench: Bench) -> None:
    bad, good = tripped(bench, still_running=2)
    first = probe(bench, HOLD)
    bench.complete(good, is_gated=True)
    fail(bench, bad)
    admit(bench)
    assert bench.claim() == []
    assert held(bench).trips == 1
    bench.complete(first, is_gated=True)
    admit(bench)
    assert len(bench.claim()) == 1


@case()
def a_failed_probe_doubles_the_hold_once(bench: Bench) -> None:
    tripped(bench)
    claim = probe(bench, HOLD)
    bench.advance(SECOND)
    for trips, hold in enumerate((2 * HOLD, 4 * HOLD, 8 * HOLD, 16 * HOLD, 20 * HOLD, 20 * HOLD), 2):
        bench.finish(bench.outcome(claim, JobState.RETRYING, what="failed", delay=HOUR, is_gated=True))
        assert (held(bench).open_at, held(bench).trips) == (bench.at + hold, trips)
        bench.add(**gated(BANK))
        claim = probe(bench, hold)


@case()
def probes_of_one_round_double_the_hold_once(bench: Bench) -> None:
    use = GateUse("scope:bank", SCOPE, breaker=BreakerSpec(0.5, OF, 60 * MICROS, 30 * MICROS, probes=3))
    tripped(bench, use=use)
    bench.advance(HOLD)
    admit(bench)
    probes = bench.claim()
    assert len(probes) == 3
    bench.advance(SECOND)
    opens = bench.at + 2 * HOLD
    fail(bench, *probes[:2])
    bench.complete(probes[2], is_gated=True)
    assert bench.claim() == []
    assert (held(bench).open_at, held(bench).trips) == (opens, 2)


@case()
def a_breaker_that_has_closed_forgets_the_attempts_of_before(bench: Bench) -> None:
    old = tripped(bench, still_running=2 * OF)
    bench.complete(probe(bench, HOLD), is_gated=True)
    fail(bench, *old)
    bench.advance(MINUTE)
    admit(bench)
    assert len(bench.claim()) == 5, "what ran before the trip trips it no second time"


@case()
def ends_of_one_call_count_in_their_order(bench: Bench) -> None:
    use = GateUse("scope:bank", SCOPE, breaker=BreakerSpec(0.5, OF, 60 * MICROS, 30 * MICROS, probes=2))
    tripped(bench, use=use)
    bench.advance(HOLD)
    admit(bench)
    bad, good = bench.claim()
    ends = (
        bench.outcome(bad, JobState.DEAD, what="failed", is_gated=True),
        bench.outcome(good, is_gated=True),
    )
    bench.finish(*ends)
    admit(bench)
    assert bench.claim() == [], "the success came after the second trip"
    assert (held(bench).open_at, held(bench).trips) == (bench.at + 2 * HOLD, 2)
    bench.advance(2 * HOLD)
    admit(bench)
    good, bad = bench.claim()
    bench.finish(
        bench.outcome(good, is_gated=True),
        bench.outcome(bad, JobState.DEAD, what="failed", is_gated=True),
    )
    admit(bench)
    assert len(bench.claim()) == 1, "the success has closed it before the failure was counted"


# -- what people do with scopes -----------------------------------------------------------------------


def scopes(bench: Bench) -> list[ScopeInfo]:
    return bench.call(bench.driver.scopes())


def hold(bench: Bench, time: timedelta | None, reason: str = "") -> bool:
    return bench.call(bench.driver.hold_scope("bank", time, reason=reason, now=bench.now))


@case()
def a_tripped_scope_is_listed_with_what_waits(bench: Bench) -> None:
    assert scopes(bench) == []
    tripped(bench)
    at = bench.at
    [one] = scopes(bench)
    assert (one.name, one.is_tripped, one.trips, one.until) == ("bank", True, 1, at + HOLD)
    assert (one.tripped_at, one.waiting) == (at, 6)
    assert "attempts failed" in one.reason


@case()
def a_person_opens_a_tripped_scope_and_it_ramps_up(bench: Bench) -> None:
    (old,) = tripped(bench, still_running=1)
    bench.advance(SECOND)
    assert hold(bench, None)
    assert [one.is_tripped for one in scopes(bench)] == [False]
    assert len(bench.claim()) == 1, "one job first, as after a probe"
    fail(bench, old)
    bench.advance(SECOND)
    admit(bench)
    assert len(bench.claim()) == 2, "what began before has no say"
    bench.advance(MINUTE)
    admit(bench)
    assert len(bench.claim()) == 3


@case()
def an_open_scope_has_nothing_to_open(bench: Bench) -> None:
    assert not hold(bench, None)
    bench.add(**gated(BANK))
    assert not hold(bench, None)
    assert scopes(bench) == []
    assert len(bench.claim()) == 1


@case()
def a_person_holds_a_scope_for_a_time(bench: Bench) -> None:
    bench.add_many(3, **gated(BANK))
    assert hold(bench, MINUTE, "the bank asked us to")
    assert bench.claim() == []
    [one] = scopes(bench)
    assert (one.until, one.is_tripped, one.reason) == (bench.at + MINUTE, False, "the bank asked us to")
    assert hold(bench, SECOND), "never shorter than it is held already"
    assert scopes(bench)[0].until == bench.at + MINUTE
    bench.advance(MINUTE)
    admit(bench)
    assert len(bench.claim()) == 1

"""FIFO keys and tenants: cases of the family `gates`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from winch.core.gates.uses import (
    GateSpec,
    with_gates,
)
from winch.core.lifecycle import JobState
from winch.storage.decide.waits import Dependencies, signal_key
from winch.storage.params import Wait
from winch.testing.conformance.bench import HOUR, MINUTE, Bench
from winch.testing.conformance.case import case
from winch.testing.conformance.cases.gates.gates import (
    BLOCKED,
    admit,
    fifo,
    gated,
    ids_of,
    limit,
    set_limits,
    states,
)

FAMILY = "gates"


# -- FIFO keys ----------------------------------------------------------------------------------------


@case()
def members_of_a_fifo_key_run_one_at_a_time_in_order(bench: Bench) -> None:
    ids = bench.add_many(3, **gated(fifo()))
    high = bench.add(priority=9, **gated(fifo()))
    other = bench.add(**gated(fifo("acct:8")))
    plain = bench.add()
    claims = bench.claim()
    assert sorted(ids_of(claims)) == sorted([ids[0], other, plain])
    assert states(bench, [*ids[1:], high]) == [BLOCKED] * 3
    order = [ids[0]]
    claim = next(claim for claim in claims if claim.id == ids[0])
    while True:
        bench.complete(claim, is_gated=True)
        found = bench.claim()
        if not found:
            break
        (claim,) = found
        order.append(claim.id)
    assert order == [*ids, high]


@case()
def a_member_keeps_its_turn_until_it_is_final(bench: Bench) -> None:
    first, second = bench.add_many(2, **gated(fifo()))
    claim = bench.take()
    bench.finish(bench.outcome(claim, JobState.RETRYING, delay=MINUTE, is_gated=True))
    assert bench.claim() == []
    assert bench.get(second).state is BLOCKED
    bench.advance(MINUTE)
    bench.promote()
    claim = bench.take()
    assert claim.id == first
    bench.finish(bench.outcome(claim, JobState.SCHEDULED, delay=MINUTE, counts=False, is_gated=True))
    assert bench.claim() == []
    bench.advance(MINUTE)
    bench.promote()
    session = bench.start_session()
    assert bench.take(session=session).id == first
    bench.end_session(session, cause="SIGKILL")
    assert bench.take().id == first
    assert bench.get(second).state is BLOCKED
    bench.cancel(first)
    assert bench.get(second).state is BLOCKED


@case()
def a_dead_member_is_skipped_or_blocks_its_key(bench: Bench) -> None:
    for blocks in (False, True):
        key = f"acct:{blocks}"
        first, second = bench.add_many(2, queue=key.replace(":", "-"), **gated(fifo(key, blocks=blocks)))
        queue = key.replace(":", "-")
        claim = bench.take(queue)
        bench.claim(queue)
        bench.finish(bench.outcome(claim, JobState.DEAD, is_gated=True))
        assert ids_of(bench.claim(queue)) == ([] if blocks else [second])
        if blocks:
            assert admit(bench, is_sweep=True).count == 0
            bench.retry(first)
            claim = bench.take(queue)
            assert claim.id == first
            bench.finish(bench.outcome(claim, JobState.DEAD, is_gated=True))
            bench.delete(first)
            admit(bench, is_sweep=True)
            assert ids_of(bench.claim(queue)) == [second]


@case()
def a_member_that_is_cancelled_before_its_turn_is_passed_over(bench: Bench) -> None:
    _first, second, third = bench.add_many(3, **gated(fifo()))
    later = bench.add(delay=HOUR, **gated(fifo()))
    claim = bench.take()
    bench.claim()
    bench.cancel(second)
    assert bench.get(third).state is BLOCKED
    bench.complete(claim, is_gated=True)
    claim = bench.take()
    assert claim.id == third
    bench.complete(claim, is_gated=True)
    after = bench.add(**gated(fifo()))
    assert bench.claim() == []
    assert bench.explain(after).gate is not None
    bench.cancel(later)
    assert bench.take().id == after


@case()
def a_turn_makes_no_member_ready_that_waits_for_something_else(bench: Bench) -> None:
    """Whether the sweep opens the key or the member before ends."""
    before = bench.add(**gated(fifo()))
    ended = bench.take()
    waits = [Wait(signal_key("go"), is_enough=True)]
    callback = bench.new_job(**gated(fifo()))
    bench.call(
        bench.driver.enqueue_after([callback], Dependencies([(callback.id, waits)]), now=bench.now)
    )
    behind = bench.add(**gated(fifo()))
    assert (before, bench.claim()) == (ended.id, [])
    bench.complete(ended, is_gated=True)
    for _ in range(2):
        assert states(bench, [callback.id, behind]) == [BLOCKED] * 2
        assert admit(bench, is_sweep=True).count == 0
        assert bench.claim() == []
    bench.call(bench.driver.signal("go", "1", id="1", now=bench.now))
    bench.call(bench.driver.unblock(now=bench.now))
    for expected in (callback.id, behind):
        claim = bench.take()
        assert claim.id == expected
        bench.complete(claim, is_gated=True)


@case()
def a_turn_makes_no_member_ready_that_waits_at_another_gate(bench: Bench) -> None:
    held = bench.add(**gated(limit(1)))
    first = bench.add(**gated(limit(1), fifo()))
    second = bench.add(**gated(fifo()))
    (claim,) = bench.claim()
    assert (claim.id, bench.get(first).gate) == (held, "limit:mail")
    assert bench.get(second).gate == "fifo:acct:7"
    assert admit(bench, is_sweep=True).count == 0
    assert states(bench, [first, second]) == [BLOCKED] * 2
    bench.complete(claim, is_gated=True)
    claim = bench.take()
    assert claim.id == first
    bench.complete(claim, is_gated=True)
    assert bench.take().id == second


# -- tenants ------------------------------------------------------------------------------------------


def tenant(name: str) -> dict[str, Any]:
    return {"tenant": name, "options": with_gates(None, ())}


@case()
def a_flood_of_one_tenant_does_not_delay_another(bench: Bench) -> None:
    flood = bench.add_many(50, **tenant("a"))
    assert ids_of(bench.claim(limit=10)) == flood[:10]
    few = bench.add_many(4, **tenant("b"))
    taken = ids_of(bench.claim(limit=8))
    assert Counter(job in few for job in taken) == {True: 4, False: 4}
    assert [job for job in taken if job in few] == few


@case()
def weights_say_how_much_a_tenant_gets(bench: Bench) -> None:
    set_limits(bench, tenant_a=GateSpec(3))
    bench.add_many(60, **tenant("a"))
    bench.add_many(60, **tenant("b"))
    taken = [claim.id for _ in range(5) for claim in bench.claim(limit=8)]
    count = Counter(job.tenant for job in bench.jobs(taken))
    assert abs(count["a"] - 30) <= 2
    assert count["a"] + count["b"] == 40


@case()
def jobs_without_a_tenant_count_as_one_tenant(bench: Bench) -> None:
    bench.add_many(30, **tenant("a"))
    plain = bench.add_many(30)
    taken = ids_of(bench.claim(limit=10))
    assert sum(job in plain for job in taken) == 5


@case()
def priorities_count_inside_a_tenant(bench: Bench) -> None:
    bench.add_many(3, **tenant("a"))
    high = bench.add(priority=5, **tenant("a"))
    other = bench.add(**tenant("b"))
    assert set(ids_of(bench.claim(limit=2))) == {high, other}


@case()
def a_tenants_jobs_have_gates_too(bench: Bench) -> None:
    ids = bench.add_many(3, tenant="a", **gated(limit(1)))
    other = bench.add(**tenant("b"))
    assert set(ids_of(bench.claim(limit=3))) == {ids[0], other}
    assert states(bench, ids[1:]) == [BLOCKED] * 2

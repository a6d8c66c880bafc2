"""Ends of claims of jobs with gates: permits go back, and scopes count what happened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from winch.core.gates.scopes import braked, counted, scope_state
from winch.core.gates.uses import SCOPE, GateUse, gates_of
from winch.core.lifecycle import JobState
from winch.drivers.postgres.statements import Body
from winch.drivers.postgres.verbs.base import Base
from winch.drivers.postgres.verbs.permits import look_at, open_gates, write_looks
from winch.storage.decide.gates import why_ended
from winch.storage.params import Answer, Finish


def finish_gated(
    base: Base,
    outcomes: Sequence[Finish],
    end: Callable[[Sequence[Finish]], Body[list[Answer]]],
    now: datetime | None,
) -> Body[list[Answer]]:
    """End claims of jobs with gates: the gates are locked before the rows, and scopes count the ends."""
    brakes = sorted({f"scope:{o.brake}" for o in outcomes if o.brake is not None})
    rows = yield base.statement("admit.lock", ids=[o.id for o in outcomes], keys=brakes)
    uses = {row[0]: gates_of(row[1]) for row in rows}
    claimed = {row[0]: row[2] for row in rows}
    answers = yield from end(outcomes)
    took = [o for o, answer in zip(outcomes, answers, strict=True) if answer is Answer.TOOK]
    if leaving := [outcome.id for outcome in took if outcome.leaves_turn]:
        left = yield base.statement("admit.leave_turn", ids=leaving)
        if left:
            yield from open_gates(base, [row[0] for row in left], now)
    with_breaker = {
        use.key
        for outcome in took
        if outcome.what in ("completed", "failed")
        for use in uses.get(outcome.id, ())
        if use.breaker is not None
    }
    keys = sorted(with_breaker | {f"scope:{o.brake}" for o in took if o.brake is not None})
    if not keys:
        return answers
    yield base.statement("admit.lock_keys", keys=keys)
    looks, at = yield from look_at(base, [GateUse(key, SCOPE) for key in keys], now)
    before = {key: look.state for key, look in looks.items()}
    for outcome in took:
        why = why_ended(outcome)
        if outcome.brake is not None:
            gate = looks[f"scope:{outcome.brake}"]
            until = at + round(outcome.delay.total_seconds() * 1e6)
            gate.state = braked(gate.state, until, why)
        if outcome.what in ("completed", "failed"):
            for use in uses.get(outcome.id, ()):
                if use.breaker is not None:
                    gate = looks[use.key]
                    is_ok = outcome.to is JobState.COMPLETED
                    gate.state = counted(gate.state, use.breaker, is_ok, claimed[outcome.id], at, why)
    yield base.statement("admit.keep", gates=write_looks(looks.values()))
    # What only counted opens nothing.
    is_open = [k for k in keys if scope_state(before[k]) or scope_state(looks[k].state)]
    if is_open:
        yield from open_gates(base, is_open, now)
    return answers

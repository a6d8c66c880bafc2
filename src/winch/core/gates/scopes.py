"""Scopes: the brake, the breaker, and the ramp after a scope opens again."""

from __future__ import annotations

from datetime import datetime

import msgspec

from winch.core.gates.uses import SECOND, BreakerSpec
from winch.core.job import EPOCH, to_micros

# A scope that opens again lets 1 job through, then 2, 4, 8 … more in each step, until counting ends.
RAMP_STEP = 1_000_000
RAMP_STEPS = 8


class ScopeState(msgspec.Struct, omit_defaults=True):
    """`until`: closed till then. `is_tripped`: by the breaker, so that probes come first. `let`: how
    many were let through since it opened. `trips`: how often the breaker tripped in a row; `tripped_at`:
    the moment it last did. `ends`: [second, ok, failed] for the breaker's window."""

    until: int = 0
    is_tripped: bool = False
    let: int = 0
    trips: int = 0
    tripped_at: int = 0
    why: str = ""
    probes: int = 1
    ends: list[tuple[int, int, int]] = []


def scope_state(text: str | None) -> ScopeState | None:
    """None: this scope is neither braked nor tripped, and nothing is counted in that state."""
    if text is None:
        return None
    try:
        state = msgspec.json.decode(text, type=ScopeState)
    except msgspec.DecodeError:
        return None
    return state if state.until else None


def scope_passes(state: ScopeState, used: int, now: int) -> tuple[bool, int | None]:
    if now < state.until:
        return False, state.until
    if state.is_tripped:
        # Half open: probes, and no other job until one of them has ended.
        return used < state.probes, None
    step = (now - state.until) // RAMP_STEP
    if step >= RAMP_STEPS or state.let < 2 ** (step + 1) - 1:
        return True, None
    return False, state.until + (step + 1) * RAMP_STEP


def scope_taken(state: ScopeState, now: int) -> str | None:
    if not state.is_tripped and now - state.until >= RAMP_STEPS * RAMP_STEP:
        after = ScopeState(ends=state.ends, tripped_at=state.tripped_at)  # the ramp is over
    else:
        after = msgspec.structs.replace(state, let=state.let + 1)
    return msgspec.json.encode(after).decode()


def braked(text: str | None, until: int, why: str) -> str:
    """The state of a scope that is held until a moment: never shorter than it is held already."""
    state = _any_scope(text)
    if until > state.until:
        state = msgspec.structs.replace(state, until=until, let=0, why=why)
    return msgspec.json.encode(state).decode()


def opened(text: str | None, now: int) -> str | None:
    """The state of a scope that a person opens: as after a successful probe. None: it is not held."""
    state = scope_state(text)
    if state is None or (not state.is_tripped and state.until <= now):
        return None
    after = ScopeState(until=now, why=state.why, tripped_at=max(state.tripped_at, now))
    return msgspec.json.encode(after).decode()


def counted(
    text: str | None, spec: BreakerSpec, is_ok: bool, claimed_at: datetime | None, now: int, why: str
) -> str:
    """The state of a scope's breaker after one of its jobs, claimed at that moment, has ended."""
    state = _any_scope(text)
    if to_micros(claimed_at or EPOCH) <= state.tripped_at:
        # It began before the trip and knows only what the trip knew. As probes, many such failures would
        # double the hold each, and one success would open the scope to a system that is still down.
        return msgspec.json.encode(state).decode()
    if state.is_tripped:
        if is_ok:  # closed again, and ramped up
            after = ScopeState(until=now, why=state.why, tripped_at=state.tripped_at)
        else:
            after = msgspec.structs.replace(
                state,
                until=now + min(spec.hold * 2 ** min(state.trips, 10), 20 * spec.hold),
                trips=state.trips + 1,
                tripped_at=now,
                why=why,
            )
        return msgspec.json.encode(after).decode()
    second = now // SECOND
    oldest = (now - spec.window) // SECOND
    ends = [end for end in state.ends if end[0] > oldest]
    if ends and ends[-1][0] == second:
        ends[-1] = (second, ends[-1][1] + is_ok, ends[-1][2] + (not is_ok))
    else:
        ends.append((second, int(is_ok), int(not is_ok)))
    failed = sum(end[2] for end in ends)
    total = failed + sum(end[1] for end in ends)
    if total >= spec.of and failed / total >= spec.failures:
        after = ScopeState(
            until=now + spec.hold,
            is_tripped=True,
            trips=1,
            tripped_at=now,
            why=f"{failed} of {total} attempts failed; the last one: {why}",
            probes=spec.probes,
        )
    else:
        after = msgspec.structs.replace(state, ends=ends)
    return msgspec.json.encode(after).decode()


def _any_scope(text: str | None) -> ScopeState:
    try:
        return msgspec.json.decode(text or "{}", type=ScopeState)
    except msgspec.DecodeError:
        return ScopeState()

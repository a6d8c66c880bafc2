"""Rates: how much of a rate is used, and when there is room again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from winch.core.gates.uses import BUCKET, FIXED, LONGEST, GateSpec, GateUse, Look, decoded_state


def _numbers(look: Look, use: GateUse) -> GateSpec:
    return look.spec or GateSpec(use.n, use.per, use.how, use.burst)


def rate_next(look: Look, use: GateUse, weight: int, now: int) -> int | None:
    """None: there is room now. Else the moment at which there will be, if nobody else takes it."""
    spec = _numbers(look, use)
    state = decoded_state(look.state)
    if spec.how == FIXED:
        window = now // spec.per * spec.per
        used = state.get("used", 0) if state.get("from") == window else 0
        return None if used + weight <= spec.n else window + spec.per
    if spec.how == BUCKET:
        level = _level(spec, state, now)
        if level >= weight - 1e-6:
            return None
        return now + min(max(1, math.ceil((weight - level) * spec.per / spec.n)), LONGEST)
    takes = [take for take in state.get("takes", ()) if take[0] + spec.per > now]
    over = sum(take[1] for take in takes) + weight - spec.n
    if over <= 0:
        return None
    for moment, taken in takes:
        over -= taken
        if over <= 0:
            return int(moment + spec.per)
    return now + spec.per  # heavier than the whole rate: nothing but a change of it helps


def rate_taken(look: Look, use: GateUse, weight: int, now: int) -> str:
    """The state after this weight was taken."""
    spec = _numbers(look, use)
    state = decoded_state(look.state)
    after: dict[str, Any]
    if spec.how == FIXED:
        window = now // spec.per * spec.per
        used = state.get("used", 0) if state.get("from") == window else 0
        after = {"from": window, "used": used + weight}
    elif spec.how == BUCKET:
        after = {"level": round(_level(spec, state, now) - weight, 6), "at": now}
    else:
        takes = [take for take in state.get("takes", ()) if take[0] + spec.per > now]
        after = {"takes": [*takes, [now, weight]]}
    return msgspec.json.encode(after).decode()


def _level(spec: GateSpec, state: Mapping[str, Any], now: int) -> float:
    most = spec.burst or spec.n
    if "level" not in state:
        return most
    return float(min(most, state["level"] + max(0, now - state["at"]) * spec.n / spec.per))

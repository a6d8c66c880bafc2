"""What the drivers share about gates beside the decisions of `core.gates`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from winch.core.gates.scopes import scope_state
from winch.core.gates.uses import FIFO, SCOPE, GateSpec, GateUse, Look, name_of_key
from winch.core.job import from_micros
from winch.storage.params import Finish, GateInfo, LimitInfo

# How many of those who hold a gate are named to those who wait.
NAMED = 5
# How many jobs a claim looks at beyond those it wants, and how often it looks again when all were held.
AHEAD = 200
ROUNDS = 20
# How many of those who wait at a gate are made ready in one go.
OPENED_AT_ONCE = 500


@dataclass
class Setting:
    spec: GateSpec
    is_live: bool
    by: str
    at: datetime


def why_ended(outcome: Finish) -> str:
    """An attempt's end in a few words, for those who are held because of it."""
    text = outcome.reason or (outcome.error.message if outcome.error else outcome.what)
    return " ".join(text.split())[:200]


def limit_info(name: str, setting: Setting | None, used: int, waiting: int) -> LimitInfo:
    if setting is None:
        return LimitInfo(name=name, spec=None, used=used, waiting=waiting)
    return LimitInfo(
        name=name,
        spec=setting.spec,
        is_live=setting.is_live,
        by=setting.by,
        set_at=setting.at,
        used=used,
        waiting=waiting,
    )


def gate_info(look: Look, use: GateUse, holders: list[str], ahead: int) -> GateInfo:
    spec = look.spec or GateSpec(use.n, use.per)
    scope = scope_state(look.state) if use.kind == SCOPE else None
    first = [holder for holder in (look.turn or look.head,) if holder is not None]
    moment = scope.until if scope is not None else look.open_at
    return GateInfo(
        key=use.key,
        kind=use.kind,
        n=spec.n,
        used=look.used,
        holders=tuple(first if use.kind == FIFO else holders[:NAMED]),
        ahead=ahead,
        open_at=None if moment is None else from_micros(moment),
        per=None if not spec.per else from_micros(spec.per) - from_micros(0),
        reason=None if scope is None else scope.why,
        trips=0 if scope is None else scope.trips,
    )


def named_limits(
    settings: Mapping[str, Setting],
    used: Iterable[Sequence[Any]],
    waiting: Iterable[Sequence[Any]],
) -> list[LimitInfo]:
    """Limits by name, from what is out of and who waits at each gate."""
    out: dict[str, int] = {}
    held: dict[str, int] = {}
    for counts, rows in ((out, used), (held, waiting)):
        for key, count in rows:
            if name := name_of_key(key):
                counts[name] = counts.get(name, 0) + count
    return [
        limit_info(name, settings.get(name), out.get(name, 0), held.get(name, 0))
        for name in sorted({*settings, *out, *held})
    ]

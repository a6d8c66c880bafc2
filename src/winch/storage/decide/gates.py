"""What the drivers share about gates beside the decisions of `core.gates`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from winch.core.gates.scopes import scope_state
from winch.core.gates.uses import FIFO, LIMIT, SCOPE, GateSpec, GateUse, Look, name_of_key, queue_key
from winch.core.job import from_micros
from winch.storage.gate_records import GateInfo, LimitInfo, ScopeInfo
from winch.storage.params import Finish

# How many holders of a gate are named to waiting jobs.
NAMED = 5
# How many jobs a claim looks at beyond those it wants, and how often it looks again when all were held.
AHEAD = 200
# Has set a limit that no person has set.
CODE = "code"
ROUNDS = 20
# How many jobs that wait at a gate are made ready in one go.
OPENED_AT_ONCE = 500


@dataclass
class Setting:
    spec: GateSpec
    is_live: bool
    by: str
    at: datetime


def why_ended(outcome: Finish) -> str:
    """An attempt's end in a few words, for the jobs that are held because of it."""
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


def queue_limit(queue: str, n: int, used: int) -> LimitInfo:
    """A queue's concurrency among the limits. Jobs that wait for it are ready."""
    return LimitInfo(name=queue_key(queue), spec=GateSpec(n), is_live=True, used=used)


def queue_info(queue: str, n: int | None, used: int, holders: Sequence[str]) -> GateInfo | None:
    """The gate of a queue that is full; None where it has room or no concurrency."""
    if n is None or used < n:
        return None
    return GateInfo(
        key=queue_key(queue), kind=LIMIT, n=n, used=used, holders=tuple(holders[:NAMED]), ahead=0
    )


def scope_info(key: str, text: str | None, waiting: int) -> ScopeInfo | None:
    """A scope as it is shown; None where its jobs run as usual and nothing ramps up."""
    state = scope_state(text)
    if state is None:
        return None
    return ScopeInfo(
        name=key.removeprefix("scope:"),
        until=from_micros(state.until),
        is_tripped=state.is_tripped,
        trips=state.trips,
        tripped_at=from_micros(state.tripped_at) if state.tripped_at else None,
        reason=state.why,
        waiting=waiting,
    )


def named_limits(
    settings: Mapping[str, Setting],
    used: Iterable[Sequence[Any]],
    waiting: Iterable[Sequence[Any]],
    queues: Iterable[Sequence[Any]] = (),
) -> list[LimitInfo]:
    """Limits by name, from the permits and waiting jobs of each gate. `queues` have a concurrency."""
    out: dict[str, int] = {}
    held: dict[str, int] = {}
    for counts, rows in ((out, used), (held, waiting)):
        for key, count in rows:
            if name := name_of_key(key):
                counts[name] = counts.get(name, 0) + count
    found = {
        name: limit_info(name, settings.get(name), out.get(name, 0), held.get(name, 0))
        for name in {*settings, *out, *held}
    }
    for queue, n in queues:
        found[queue_key(queue)] = queue_limit(queue, n, out.get(queue_key(queue), 0))
    return [found[name] for name in sorted(found)]

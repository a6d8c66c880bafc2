"""The rows of gates: how they are locked, read, written and opened.

The rows are locked first, sorted, and read in a later statement, because one that waits for a lock sees
the world from before the wait. `core.gates` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from winch.core.gates.passes import room
from winch.core.gates.uses import FIFO, RATE, GateSpec, GateUse, Look, gates_of
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.drivers.postgres.statements import Body, Row
from winch.drivers.postgres.verbs.base import Base
from winch.storage.decide.gates import AHEAD, OPENED_AT_ONCE, gate_info
from winch.storage.gate_records import GateInfo

read_spec: Callable[[str | bytes], GateSpec] = msgspec.json.Decoder(GateSpec).decode


def look_at(
    base: Base, uses: Iterable[GateUse], now: datetime | None
) -> Body[tuple[dict[str, Look], int]]:
    """The gates, whose rows are locked, as they are; and the store's time."""
    # A job may stand among those with gates and have none: then only the time is wanted.
    wanted = list({use.key: use for use in uses}.values()) or [GateUse("", "")]
    rows = yield base.statement(
        "admit.look",
        keys=[use.key for use in wanted],
        names=[use.name for use in wanted],
        fifos=[use.key.removeprefix("fifo:") if use.kind == FIFO else None for use in wanted],
        now=now,
    )
    looks = {row[0]: _read_look(row) for row in rows}
    return looks, rows[0][7]


def open_gates(base: Base, keys: Sequence[str], now: datetime | None) -> Body[int]:
    """Make ready the jobs that these gates let through; the gates' rows are locked."""
    waiting: dict[str, list[Row]] = {key: [] for key in keys}
    for row in (yield base.statement("admit.waiting", keys=list(keys), limit=OPENED_AT_ONCE)):
        waiting[row[0]].append(row)
    uses = {key: _use_of(key, rows[0][2] if rows else None) for key, rows in waiting.items()}
    looks, at = yield from look_at(base, uses.values(), now)
    chosen: dict[str, str] = {}  # by the gate that opens
    changed = []
    for key, rows in waiting.items():
        use, look = uses[key], looks[key]
        if use.kind == FIFO:
            first = look.turn or look.head
            chosen |= {} if first is None else {first: key}
            continue
        count, next_at = room(look, use, at, len(rows)) if rows else (0, None)
        chosen |= {row[1]: key for row in rows[:count]}
        is_more = count < len(rows) or len(rows) == OPENED_AT_ONCE
        open_at = next_at if is_more else None
        if open_at != look.open_at:
            look.open_at = open_at
            changed.append(look)
    if changed:
        yield base.statement("admit.keep", gates=write_looks(changed))
    if not chosen:
        return 0
    ((count, _),) = yield base.statement("admit", ids=list(chosen), gates=list(chosen.values()))
    return int(count)


def read_gate(base: Base, job: JobRecord, now: datetime | None) -> Body[GateInfo | None]:
    """The gate at which the job waits; None where it waits at none."""
    use = next((use for use in gates_of(job.options) if use.key == job.gate), None)
    if use is None or job.state is not JobState.BLOCKED:
        return None
    looks, _ = yield from look_at(base, [use], now)
    ((holders, ahead),) = yield base.statement(
        "admit.holders", is_alone=True, key=use.key, id=job.id, limit=AHEAD
    )
    return gate_info(looks[use.key], use, holders, ahead)


def _use_of(key: str, options: str | None) -> GateUse:
    return next((use for use in gates_of(options) if use.key == key), GateUse(key, RATE))


def _read_look(row: Row) -> Look:
    key, state, open_at, used, turn, head, spec, _ = row
    return Look(key, used, state, None if spec is None else read_spec(spec), turn, head, open_at)


def write_looks(looks: Iterable[Look]) -> str:
    return to_json([{"key": one.key, "state": one.state, "open_at": one.open_at} for one in looks])


def to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()

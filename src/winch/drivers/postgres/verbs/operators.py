"""What people do to jobs, queues, scopes and unique keys."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from winch.core.gates.scopes import braked, opened
from winch.core.gates.uses import SCOPE, GateUse
from winch.core.job import NO_CHANGES, RetryChanges
from winch.core.lifecycle import TRANSITIONS, WAITING, JobState
from winch.drivers.postgres.statements import Body, Rows
from winch.drivers.postgres.verbs.base import Base, rounds
from winch.drivers.postgres.verbs.permits import look_at, open_gates, write_looks
from winch.drivers.postgres.verbs.unique_keys import take_keys
from winch.storage.params import Acted
from winch.storage.verbs import Now, Verb

# How often a job is looked for that moves between the tables while it is looked for.
LOOKS = 3


class OperatorVerbs:
    """See storage/families.py for the contracts. The table of transitions decides."""

    def __init__(self, base: Base) -> None:
        self._base = base

    def cancel(
        self, ids: Sequence[str], *, by: str, reason: str | None = None, now: Now = None
    ) -> Verb[list[Acted]]:
        return self._operate("cancel", ids, now, by=by, reason=reason, now=now)

    def retry(
        self, ids: Sequence[str], *, by: str, changes: RetryChanges = NO_CHANGES, now: Now = None
    ) -> Verb[list[Acted]]:
        values = msgspec.structs.asdict(changes)
        values |= {"by": by, "note": changes.note, "now": now}

        def body() -> Body[list[Acted]]:
            held = {}
            if rows := (yield self._base.statement("retry.keyed", ids=list(dict.fromkeys(ids)))):
                held = yield from self._take_again(ids, rows)
            free = [job_id for job_id in ids if job_id not in held]
            acted = iter((yield from self._operated("retry", free, values)) if free else [])
            if rows:
                yield self._base.statement("enqueue.unkey", keys=[row[2] for row in rows])
            return [held[job_id] if job_id in held else next(acted) for job_id in ids]

        return Verb("retry", body)

    def _take_again(self, ids: Sequence[str], rows: Rows) -> Body[dict[str, Acted]]:
        """Take the keys of final jobs again; returns the answers for those whose key is held."""
        keys = {row[0]: row[2] for row in rows}
        first: dict[str, str] = {}
        for job_id in ids:
            if job_id in keys:
                first.setdefault(keys[job_id], job_id)
        others = yield from take_keys(self._base, first)
        held = {}
        for job_id, state, key in rows:
            holder = others[key].id if key in others else first[key]
            if holder != job_id:
                held[job_id] = Acted(job_id, JobState(state), took=False, holder=holder)
        return held

    def delete(self, ids: Sequence[str], *, by: str, now: Now = None) -> Verb[list[Acted]]:
        return self._operate("delete", ids, now)

    def _operate(
        self, verb: str, ids: Sequence[str], at: datetime | None, **values: Any
    ) -> Verb[list[Acted]]:
        return Verb(verb, lambda: self._operated(verb, ids, values))

    def _operated(self, verb: str, ids: Sequence[str], values: dict[str, Any]) -> Body[list[Acted]]:
        answers: dict[int, Acted] = {}
        for places in rounds(ids):
            states = yield from self._act(verb, [ids[place] for place in places], values)
            for place in places:
                state = states.get(ids[place])
                took = state is not None and state in TRANSITIONS[verb]
                answers[place] = Acted(ids[place], state, took)
        return [answers[place] for place in range(len(ids))]

    def _act(self, verb: str, ids: list[str], values: dict[str, Any]) -> Body[dict[str, JobState]]:
        """Act on the jobs; returns the state that each was found in before."""
        found: dict[str, JobState] = {}
        left = ids
        for _ in range(LOOKS):
            if not left:
                break
            rows = yield self._base.statement(verb, ids=left, **values)
            found.update((row[0], JobState(row[1])) for row in rows)
            if not (left := [job_id for job_id in left if job_id not in found]):
                break
            # Not there, or final, or on its way between the tables while the statement looked.
            rows = yield self._base.statement("cancel.states", ids=left)
            states = {row[0]: JobState(row[1]) for row in rows}
            found.update((i, s) for i, s in states.items() if s not in TRANSITIONS[verb])
            left = [job_id for job_id in states if job_id not in found]
        return found

    def pause(self, queue: str, *, by: str, reason: str | None = None, now: Now = None) -> Verb[None]:
        def body() -> Body[None]:
            yield self._base.statement("pause", is_alone=True, queue=queue, reason=reason, now=now)

        return Verb("pause", body)

    def resume(self, queue: str, *, by: str, now: Now = None) -> Verb[None]:
        def body() -> Body[None]:
            yield self._base.statement("resume", is_alone=True, queue=queue)

        return Verb("resume", body)

    def move(self, ids: Sequence[str], queue: str, *, by: str, now: Now = None) -> Verb[list[Acted]]:
        def body() -> Body[list[Acted]]:
            rows = yield self._base.statement("move", ids=list(ids), queue=queue, by=by, now=now)
            found = {row[0]: JobState(row[1]) for row in rows}
            if left := [job_id for job_id in ids if job_id not in found]:
                rows = yield self._base.statement("cancel.states", ids=left)
                found |= {row[0]: JobState(row[1]) for row in rows if JobState(row[1]) not in WAITING}
            states = [found.get(job_id) for job_id in ids]
            return [
                Acted(job_id, state, state in WAITING) for job_id, state in zip(ids, states, strict=True)
            ]

        return Verb("move", body)

    def hold_scope(
        self, name: str, hold: timedelta | None, *, reason: str = "", now: Now = None
    ) -> Verb[bool]:
        def body() -> Body[bool]:
            key = f"scope:{name}"
            yield self._base.statement("admit.lock_keys", keys=[key])
            looks, at = yield from look_at(self._base, [GateUse(key, SCOPE)], now)
            gate = looks[key]
            if hold is None:
                after = opened(gate.state, at)
            else:
                after = braked(gate.state, at + hold // timedelta(microseconds=1), reason)
            if after is None:
                return False
            gate.state = after
            yield self._base.statement("admit.keep", gates=write_looks([gate]))
            yield from open_gates(self._base, [key], now)
            return True

        return Verb("hold_scope", body)

    def release_key(self, key: str, *, by: str, now: Now = None) -> Verb[str | None]:
        def body() -> Body[str | None]:
            yield self._base.statement("release_key.kept", key=key)
            rows = yield self._base.statement("release_key", key=key, by=by, now=now)
            if not rows:
                return None
            yield self._base.statement("release_key.free", key=key, id=rows[0][0])
            return str(rows[0][0])

        return Verb("release_key", body)

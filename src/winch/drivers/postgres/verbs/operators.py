"""What people do to jobs and queues: cancel, retry, delete, pause, resume."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from winch.core.job import NO_CHANGES, RetryChanges
from winch.core.lifecycle import TRANSITIONS, JobState
from winch.drivers.postgres.statements import Body, Rows
from winch.drivers.postgres.verbs.base import Base, rounds
from winch.drivers.postgres.verbs.unique_keys import take_keys
from winch.storage.params import Acted
from winch.storage.verbs import Verb

# How often a job is looked for that moves between the tables while it is looked for.
LOOKS = 3


class OperatorVerbs:
    """See storage/families.py for the contracts. The table of transitions decides."""

    def __init__(self, base: Base) -> None:
        self._base = base

    def cancel(
        self, ids: Sequence[str], *, by: str, reason: str | None = None, now: datetime | None = None
    ) -> Verb[list[Acted]]:
        return self._operate("cancel", ids, now, by=by, reason=reason, now=now)

    def retry(
        self,
        ids: Sequence[str],
        *,
        by: str,
        changes: RetryChanges = NO_CHANGES,
        now: datetime | None = None,
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

    def delete(self, ids: Sequence[str], *, by: str, now: datetime | None = None) -> Verb[list[Acted]]:
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

    def pause(
        self, queue: str, *, by: str, reason: str | None = None, now: datetime | None = None
    ) -> Verb[None]:
        def body() -> Body[None]:
            yield self._base.statement("pause", is_alone=True, queue=queue, reason=reason, now=now)

        return Verb("pause", body)

    def resume(self, queue: str, *, by: str, now: datetime | None = None) -> Verb[None]:
        def body() -> Body[None]:
            yield self._base.statement("resume", is_alone=True, queue=queue)

        return Verb("resume", body)

"""The verbs of operators: cancel, retry, delete, pause, resume, move, hold_scope, release_key."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec

from winch.core.job import NO_CHANGES, RetryChanges
from winch.core.lifecycle import JobState
from winch.drivers.redis.records import MICROSECOND, micros
from winch.drivers.redis.verbs.base import Base, Body
from winch.storage.params import Acted
from winch.storage.verbs import Now, Verb


class OperatorVerbs:
    """The operators' part of Storage; see storage/families.py for the contracts."""

    def __init__(self, base: Base) -> None:
        self._call = base.call

    def cancel(
        self, ids: Sequence[str], *, by: str, reason: str | None = None, now: Now = None
    ) -> Verb[list[Acted]]:
        return self._operate("cancel", ids, now=micros(now), by=by, reason=reason)

    def retry(
        self, ids: Sequence[str], *, by: str, changes: RetryChanges = NO_CHANGES, now: Now = None
    ) -> Verb[list[Acted]]:
        values = msgspec.structs.asdict(changes)
        return self._operate("retry", ids, now=micros(now), by=by, note=changes.note, **values)

    def delete(self, ids: Sequence[str], *, by: str, now: Now = None) -> Verb[list[Acted]]:
        return self._operate("delete", ids, now=micros(now))

    def _operate(self, name: str, ids: Sequence[str], **args: Any) -> Verb[list[Acted]]:
        def body() -> Body[list[Acted]]:
            reply = yield self._call(name, ids=ids, **args)
            return [
                Acted(
                    job_id,
                    JobState(state.decode()) if state else None,
                    took=bool(took),
                    holder=holder.decode() or None,
                )
                for job_id, (state, took, holder) in zip(ids, reply, strict=True)
            ]

        return Verb(name, body)

    def pause(self, queue: str, *, by: str, reason: str | None = None, now: Now = None) -> Verb[None]:
        def body() -> Body[None]:
            yield self._call("pause", now=micros(now), queue=queue, reason=reason)

        return Verb("pause", body)

    def resume(self, queue: str, *, by: str, now: Now = None) -> Verb[None]:
        def body() -> Body[None]:
            yield self._call("resume", queue=queue)

        return Verb("resume", body)

    def move(self, ids: Sequence[str], queue: str, *, by: str, now: Now = None) -> Verb[list[Acted]]:
        return self._operate("move", ids, now=micros(now), by=by, queue=queue)

    def hold_scope(
        self, name: str, hold: timedelta | None, *, reason: str = "", now: Now = None
    ) -> Verb[bool]:
        def body() -> Body[bool]:
            took = yield self._call(
                "hold_scope",
                now=micros(now),
                key=f"scope:{name}",
                hold=False if hold is None else hold // MICROSECOND,
                why=reason,
            )
            return bool(took)

        return Verb("hold_scope", body)

    def release_key(self, key: str, *, by: str, now: Now = None) -> Verb[str | None]:
        def body() -> Body[str | None]:
            holder: bytes = yield self._call("release_key", now=micros(now), key=key, by=by)
            return holder.decode() or None

        return Verb("release_key", body)

"""The memory store itself, and the one place where a job in it changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from msgspec.structs import replace

from winch.core import changes
from winch.core.gates.uses import is_gated
from winch.core.job import KEEP, JobRecord, sort_key
from winch.core.lifecycle import FINAL, TRANSITIONS, JobState
from winch.core.values.clock import Clock
from winch.drivers.memory.records import State
from winch.drivers.memory.wakeups.bell import Bell
from winch.storage.decide.waits import AWAITED_HEADER, ended_keys
from winch.storage.params import Event
from winch.storage.verbs import Verb

T = TypeVar("T")


# A job due sooner than the promoter's own poll rings the bell; a later one is met by the poll.
RING_WITHIN = timedelta(seconds=2)


class Shelf:
    """What every family of verbs has in hand."""

    def __init__(self, clock: Clock, *, events: bool = False) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._state = State()
        self._keeps_events = events
        self._bells: dict[Bell, None] = {}  # rung in the order in which they were made

    def _verb(self, name: str, body: Callable[[], T], *, is_read: bool = False) -> Verb[T]:
        def steps() -> Generator[Any, Any, T]:
            yield name
            return body()

        return Verb(name, steps, is_read)

    def _now(self, now: datetime | None) -> datetime:
        return self._clock.now() if now is None else now

    def _is_known(self, job_id: str) -> bool:
        return job_id in self._state.live or job_id in self._state.archive

    def _running(self, session: str) -> list[JobRecord]:
        return [
            job
            for job in self._state.live.values()
            if job.state is JobState.RUNNING and job.session == session
        ]

    def _put(self, job: JobRecord, kind: str, at: datetime, *, by_token: str | None = None) -> None:
        """Store the job in its new state: the one place where a job's state changes."""
        before = self._state.live.get(job.id)
        if job.state is JobState.READY and kind in (
            "enqueued",
            "promoted",
            "retried",
            "replaced",
            "finished",
            "cancelled",
            "admitted",
        ):
            self._state.keys[job.id] = sort_key(job.run_at, job.priority)
        if job.state in FINAL:
            keep = KEEP[job.state] if job.keep is None else job.keep
            self._state.live.pop(job.id, None)
            self._state.keys.pop(job.id, None)
            self._state.archive[job.id] = replace(job, token=None, gate=None, finished_at=at)
            self._state.drop_at[job.id] = at + keep
            self._tell_waiting(job)
        else:
            self._state.live[job.id] = job
        self._witness(job, kind, job.state, at, by_token, before)
        if before is not None and is_gated(job.options):
            self._admitted(self._state.gates.left(before, job), at)
        if job.state is JobState.READY:
            self._ring({job.queue})
        elif job.state in TRANSITIONS["promote"] and job.run_at - at < RING_WITHIN:
            self._ring(set(), due=True)

    def _witness(
        self,
        job: JobRecord,
        kind: str,
        state: JobState | None,
        at: datetime,
        by_token: str | None,
        before: JobRecord | None = None,
    ) -> None:
        if not self._keeps_events:
            return
        self._state.changes[job.id] += 1
        token = job.token if kind == "claimed" else (before.token if before else None)
        self._state.events.append(
            Event(
                seq=len(self._state.events) + 1,
                job=job.id,
                v=self._state.changes[job.id],
                kind=kind,
                state=state,
                token=token,
                by_token=by_token,
                session=job.session,
                attempt=job.attempt,
                at=at,
            )
        )

    def _ring(self, queues: set[str], *, due: bool = False) -> None:
        for bell in list(self._bells):
            if (due and bell.due) or queues & bell.queues:
                bell.ring()

    def _open(self, keys: Iterable[str], at: datetime) -> int:
        """Make ready whom these gates let through now."""
        return sum(self._admitted(self._state.gates.opened(key, at), at) for key in keys)

    def _admitted(self, jobs: Sequence[JobRecord], at: datetime) -> int:
        for job in jobs:
            self._put(changes.admitted(job), "admitted", at)
        return len(jobs)

    def _tell_waiting(self, job: JobRecord) -> None:
        """The job is final, or gone."""
        if (said := job.headers.get(AWAITED_HEADER)) is not None:
            for key in ended_keys(said, job.id):
                self._look_again(key)

    def _look_again(self, key: str) -> None:
        self._state.waits.rechecks.append(key)
        self._ring(set(), due=True)

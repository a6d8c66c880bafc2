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
from winch.drivers.memory.wakeups.bell import MemoryBell
from winch.storage.decide.waits import AWAITED_HEADER, ended_keys
from winch.storage.params import Event
from winch.storage.verbs import Verb

T = TypeVar("T")


# A job due sooner than the promoter's own poll rings the bell; a later one is met by the poll.
RING_WITHIN = timedelta(seconds=2)


def verb(name: str, body: Callable[[], T], *, is_read: bool = False) -> Verb[T]:
    """A verb with this body, which runs under the lock."""

    def steps() -> Generator[Any, Any, T]:
        yield name
        return body()

    return Verb(name, steps, is_read)


class Base:
    """What every family of verbs receives: the store, its clock, and how a job in it changes."""

    def __init__(self, clock: Clock, *, events: bool = False) -> None:
        self.clock = clock
        self.lock: threading.Lock = threading.Lock()
        self.state: State = State()
        self._keeps_events = events
        self.bells: dict[MemoryBell, None] = {}  # rung in the order in which they were made

    def now(self, now: datetime | None) -> datetime:
        return self.clock.now() if now is None else now

    def is_known(self, job_id: str) -> bool:
        return job_id in self.state.live or job_id in self.state.archive

    def running(self, session: str) -> list[JobRecord]:
        return [
            job
            for job in self.state.live.values()
            if job.state is JobState.RUNNING and job.session == session
        ]

    def is_live(self, session_id: str | None) -> bool:
        session = self.state.sessions.get(session_id or "")
        return session is not None and session.ended_at is None

    def put(self, job: JobRecord, kind: str, at: datetime, *, by_token: str | None = None) -> None:
        """Store the job in its new state: the one place where a job's state changes."""
        before = self.state.live.get(job.id)
        if job.state is JobState.READY and kind in (
            "enqueued",
            "promoted",
            "retried",
            "replaced",
            "finished",
            "cancelled",
            "admitted",
        ):
            self.state.keys[job.id] = sort_key(job.run_at, job.priority)
        if job.state is not JobState.RUNNING:
            self.state.note_numbers.pop(job.id, None)
        if job.state in FINAL:
            keep = KEEP[job.state] if job.keep is None else job.keep
            self.state.live.pop(job.id, None)
            self.state.keys.pop(job.id, None)
            self.state.archive[job.id] = replace(job, token=None, gate=None, finished_at=at)
            self.state.drop_at[job.id] = at + keep
            self.wake_waiting(job)
        else:
            self.state.live[job.id] = job
        self.record_event(job, kind, job.state, at, by_token, before)
        if before is not None and is_gated(job.options):
            self.admit(self.state.gates.left(before, job), at)
        is_ended = before is not None and before.state is JobState.RUNNING is not job.state
        if before is not None and is_ended and self.state.gates.queue_left(before):
            self.ring({before.queue})
        if job.state is JobState.READY:
            self.ring({job.queue})
        elif job.state in TRANSITIONS["promote"] and job.run_at - at < RING_WITHIN:
            self.ring(set(), due=True)

    def forget(self, job: JobRecord, at: datetime) -> None:
        """What is left to do about a job that is no longer among the live ones."""
        state = self.state
        state.keys.pop(job.id, None)
        state.note_numbers.pop(job.id, None)
        state.archive.pop(job.id, None)
        state.drop_at.pop(job.id, None)
        self.record_event(job, "deleted", None, at, None)
        self.admit(state.gates.left(job, None), at)

    def record_event(
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
        self.state.changes[job.id] += 1
        token = job.token if kind == "claimed" else (before.token if before else None)
        self.state.events.append(
            Event(
                seq=len(self.state.events) + 1,
                job=job.id,
                v=self.state.changes[job.id],
                kind=kind,
                state=state,
                token=token,
                by_token=by_token,
                session=job.session,
                attempt=job.attempt,
                at=at,
            )
        )

    def ring(self, queues: set[str], *, due: bool = False) -> None:
        for bell in list(self.bells):
            if (due and bell.due) or queues & bell.queues:
                bell.ring()

    def open_gates(self, keys: Iterable[str], at: datetime) -> int:
        """Make the jobs ready that these gates let through now; returns how many."""
        return sum(self.admit(self.state.gates.opened(key, at), at) for key in keys)

    def admit(self, jobs: Sequence[JobRecord], at: datetime) -> int:
        for job in jobs:
            self.put(changes.admitted(job), "admitted", at)
        return len(jobs)

    def wake_waiting(self, job: JobRecord) -> None:
        """Look again at what waits for this job, which is final or gone."""
        if (awaited := job.headers.get(AWAITED_HEADER)) is not None:
            for key in ended_keys(awaited, job.id):
                self.look_again(key)

    def look_again(self, key: str) -> None:
        self.state.waits.rechecks.append(key)
        self.ring(set(), due=True)

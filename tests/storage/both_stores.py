"""Two stores side by side: a driver, the ledger of what must be true of it, and the reference.

Moments never collide: each step is a millisecond later than the one before, time is advanced by whole
seconds, and the jobs of one step differ by microseconds or priority. So the order of claims is decided
by the sort key alone, and both stores must give the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import hypothesis
import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
)

from tests.storage.ledger import Ledger
from winch.core.gates.places import lone_place
from winch.core.job import JobRecord, Note, to_micros
from winch.core.lifecycle import TRANSITIONS, JobState
from winch.core.values.clock import FixedClock
from winch.core.values.ids import job_id, with_place
from winch.drivers.memory import MemoryDriver
from winch.storage.params import (
    ClaimRef,
    Event,
    Finish,
    NewJob,
)
from winch.storage.protocol import Driver
from winch.storage.verbs import Verb
from winch.testing.conformance import Target

T = TypeVar("T")

# The same walks on every machine and every run; a failure in CI is a failure at home.
STEADY = hypothesis.settings(
    derandomize=True,
    database=None,
    deadline=None,
    stateful_step_count=50,
    suppress_health_check=list(hypothesis.HealthCheck),
)

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
STEP = timedelta(milliseconds=1)
MICROSECOND = timedelta(microseconds=1)
QUEUES = ("a", "b")
TASKS = ("mail.send", "mail.sort")
KEYS = ("one", "two")
TARGETS = tuple(
    state
    for state in JobState  # in this order on every run: that of a set is another each time
    if state in TRANSITIONS["finish"][JobState.RUNNING] and state is not JobState.BLOCKED
)

seconds = st.sampled_from([1, 10, 45, 3600])
delays = st.sampled_from([0, 5, 60])
targets = st.sampled_from(TARGETS)
notes = st.builds(
    Note,
    progress=st.sampled_from([None, '{"percent":5}']),
    checkpoint=st.sampled_from([None, '{"page":7}']),
    log=st.sampled_from([None, "a line\n"]),
    number=st.sampled_from([None, 1, 2, 3]),
)
leaps = st.sampled_from([-10, 1, 10, 29, 30, 31, 60, 600, 3600, 40 * 3600, 72 * 3600, 9 * 86400])


class BothStores(RuleBasedStateMachine):
    """What every rule works with, and what must hold after each."""

    def __init__(self, target: Target, *, reference: bool) -> None:
        super().__init__()
        self.target = target
        self.driver = target.fresh(events=True)
        self.reference: Driver | None = None
        if reference:
            self.reference = MemoryDriver(FixedClock(START), events=True)
        self.ledger = Ledger()
        self.now = START
        self.drawn = 0
        self.known: list[NewJob] = []
        self.given: list[NewJob] = []
        self.refs: list[ClaimRef] = []
        self.finishes: list[Finish] = []
        self.gated: set[str] = set()
        self.concurrency: dict[str, int | None] = {}
        self.sessions: list[str] = []

    # -- asking both stores ------------------------------------------------------------------------

    def ask(
        self,
        verb: Callable[[Driver], Verb[T]],
        *,
        key: Callable[[Any], Any] | None = None,
        promised: Callable[[T], Any] = lambda answer: answer,
    ) -> T:
        """The driver's answer, which must be the reference's; with `key`, in whatever order; with
        `promised`, as far as that goes."""
        answer = self.driver.run(verb(self.driver))
        if self.reference is not None:
            expected = self.reference.run(verb(self.reference))
            if key is None:
                assert promised(answer) == promised(expected)
            else:
                assert sorted(answer, key=key) == sorted(expected, key=key)  # type: ignore[call-overload]
        return answer

    def step(self) -> datetime:
        self.now += STEP
        return self.now

    def jobs(self) -> dict[str, JobRecord]:
        ids = list(dict.fromkeys(job.id for job in self.known))
        found = self.ask(lambda driver: driver.get(ids), promised=ranked)
        return {job.id: job for job in found if job is not None}

    def number(self) -> int:
        self.drawn += 1
        return self.drawn

    def new_job(self, **fields: Any) -> NewJob:
        number = self.number()  # its first byte is the place in a cluster: another one each time
        drawn = bytes([number % 64]) + number.to_bytes(7, "big")
        made = job_id(to_micros(self.now) * 4096 // 1000, drawn)
        job = NewJob(**{"id": made, "task": TASKS[0], "args": "{}", "queue": QUEUES[0], **fields})
        place = None if "id" in fields else lone_place(job.options)
        if place is not None:  # as clients draw them: beside the only gate of the job
            job = msgspec.structs.replace(job, id=with_place(job.id, place))
        self.known.append(job)
        return job

    def enqueue(self, jobs: Sequence[NewJob], *, is_repeat: bool = False) -> None:
        now = self.now
        for stored in self.ask(lambda driver: driver.enqueue(jobs, is_repeat=is_repeat, now=now)):
            if stored.holder is None:
                self.ledger.stored(stored.id, is_new=stored.is_new)
            else:
                assert not self.ledger.states[stored.holder].is_final, "only a live job holds a key"

    @invariant()
    def every_job_is_as_it_must_be(self) -> None:
        self.ledger.seen(self.jobs())

    @invariant()
    def every_session_is_as_it_must_be(self) -> None:
        sessions = self.ask(lambda driver: driver.sessions(is_ended_too=True))
        assert sum(info.running for info in sessions) <= len(self.ledger.owners)

    def teardown(self) -> None:
        try:
            self.every_change_has_an_event()
        finally:
            self.target.finished(self.driver)

    def every_change_has_an_event(self) -> None:
        """In the order of each job's own changes; between the jobs of one verb the order is free."""
        events_of = by_job(self.driver.run(self.driver.events()))
        for events in events_of.values():
            assert [event.v for event in events] == list(range(1, len(events) + 1))
        if self.reference is not None:
            assert events_of == by_job(self.reference.run(self.reference.events()))


def ranked(jobs: Sequence[JobRecord | None]) -> list[JobRecord | None]:
    """The jobs with the order of their FIFO numbers in place of the numbers, which each store draws in
    its own way."""
    numbers = sorted({job.seq for job in jobs if job is not None and job.seq is not None})
    place = {number: at for at, number in enumerate(numbers)}
    return [
        job if job is None or job.seq is None else msgspec.structs.replace(job, seq=place[job.seq])
        for job in jobs
    ]


def by_job(events: list[Event]) -> dict[str, list[Event]]:
    grouped: dict[str, list[Event]] = {}
    for event in events:
        grouped.setdefault(event.job, []).append(msgspec.structs.replace(event, seq=0))
    return grouped

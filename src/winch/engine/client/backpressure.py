"""Backpressure: whether a queue admits a job now. Producers take no lock.

A producer reads settings and depths once a second; in between it counts its own jobs. It reads a depth
again earlier when it has enqueued one fortieth of `max_depth` since the last reading. So each producer
adds at most that many jobs that the others have not seen: with eight producers a queue holds at most 1.2
times `max_depth`. The count reads as many index entries as jobs are ready, so its cost a job does not
grow with `max_depth`. In a caller's transaction the second decides alone. A store that does not answer
keeps no job out: the enqueue itself raises the error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from winch.core.errors import ConfigError, QueueFull, StorageError
from winch.core.policy.queue_settings import OnFull, QueueSettings
from winch.engine.base.operation import Blocking, Operation, Sleep
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.params import Depth, NewJob
from winch.storage.protocol import Driver
from winch.storage.verbs import Verb

BOOK = "queue settings"
# Beside the settings, by the queue's name, a pause with an end has two lines: one that stays, and one
# that is gone when the pause is over. No queue's name has a colon.
UNTIL, PAUSED = ":until:", ":paused:"
FRESH = 1.0
# The share of `max_depth` that one producer enqueues before it reads the depth again.
SHARE = 40
# While one caller reads them anew, others go by what was read before, for so long.
LOOKING = 0.1
BLOCK_PAUSE = 0.2


def read_settings(lines: Sequence[KvRecord]) -> dict[str, QueueSettings]:
    """The settings by queue; a line that cannot be read (of another release) is ignored."""
    found = {}
    for line in lines:
        if line.key.startswith(":"):
            continue
        try:
            found[line.key] = msgspec.json.decode(line.body, type=QueueSettings)
        except msgspec.DecodeError:
            continue
    return found


def pause_records(queue: str, until: datetime, now: datetime) -> list[KvRecord]:
    """The two lines of a pause that ends then."""
    body = msgspec.json.encode({"until": until}).decode()
    return [
        KvRecord(book=BOOK, key=PAUSED + queue, body="{}", keep=until - now),
        KvRecord(book=BOOK, key=UNTIL + queue, body=body),
    ]


def pause_ends(lines: Sequence[KvRecord]) -> dict[str, datetime]:
    """When the pauses end that have an end, by queue."""
    return {
        line.key.removeprefix(UNTIL): msgspec.json.decode(line.body, type=dict[str, datetime])["until"]
        for line in lines
        if line.key.startswith(UNTIL) and line.body != "{}"  # one of before has no moment
    }


class QueueAdmission:
    """What one client knows about its queues. Until `open_until`, by the monotonic clock, no queue has a
    setting that producers must read, and every job is admitted."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self.open_until: float = float("-inf")
        self._looked_at = float("-inf")
        self._limited: dict[str, QueueSettings] = {}
        self._depths: dict[str, Depth] = {}
        self._own: dict[str, int] = {}
        self._looking = 0

    def is_open(self, jobs: Sequence[NewJob]) -> bool:
        """Whether all of them may come in, by what was read a moment ago: none's queue is limited."""
        age = self.monotonic() - self._looked_at
        if age >= FRESH and not (self._looking and age < FRESH + LOOKING):
            return False
        return not self._limited or not any(job.queue in self._limited for job in jobs)

    def admit(
        self, driver: Driver, jobs: Sequence[NewJob], *, is_apart: bool = False
    ) -> Operation[list[NewJob | None]]:
        """The jobs as they may come in: None is dropped, some are put off. Raises QueueFull. `is_apart`
        reads from a thread: a caller that brings a connection may have no pool in its event loop."""
        began = self.monotonic()
        while True:
            is_new = yield from self._look(driver, is_apart)
            counts = self._counts(jobs)
            if not is_new and not is_apart:  # its own jobs in a transaction are in no reading yet
                yield from self._look_again(driver, counts)
            full = self._full(counts)
            if full is None:
                break
            queue, why = full
            settings = self._limited[queue]
            if settings.draining:
                raise QueueFull(
                    f"queue {queue!r} drains: it takes no new jobs until it is resumed; nothing was "
                    "enqueued",
                    timedelta(seconds=FRESH),
                )
            waited = self.monotonic() - began
            if settings.on_full is OnFull.REJECT or waited >= settings.block_for.total_seconds():
                raise QueueFull(
                    f"queue {queue!r} is full: {why}; nothing was enqueued. Try again later",
                    timedelta(seconds=FRESH),
                )
            yield Sleep(BLOCK_PAUSE)
            self.forget()
        return self._let_in(jobs)

    def _look(self, driver: Driver, is_apart: bool) -> Operation[bool]:
        """Read settings and depths when the last reading is a second old; whether they are just read."""
        if self.monotonic() - self._looked_at < FRESH:
            return False
        depths: dict[str, Depth] = {}
        self._looking += 1
        try:
            lines = yield _sent(driver, driver.kv_list(KvFilter(book=BOOK)), is_apart)
            found = read_settings(lines)
            limited = {queue: one for queue, one in found.items() if one.is_limited}
            for queue, settings in limited.items():
                depths[queue] = yield _sent(driver, _depth(driver, queue, settings), is_apart)
        except (StorageError, ConfigError):
            limited, depths = self._limited, self._depths
        finally:
            self._looking -= 1
        self.know(limited, depths)
        return True

    def _look_again(self, driver: Driver, counts: dict[str, int]) -> Operation[None]:
        """Read the depth of a queue that got this producer's share since it was read. A queue that was
        full stays full until the next look at all of them."""
        for queue, count in counts.items():
            settings, depth, own = self._limited[queue], self._depths.get(queue), self._own.get(queue, 0)
            most = settings.max_depth
            if most is None or depth is None or depth.ready >= most or own + count <= most // SHARE:
                continue
            try:
                found = yield _depth(driver, queue, settings)
            except (StorageError, ConfigError):
                continue
            self._depths[queue] = found
            self._own[queue] = 0

    def know(self, limited: dict[str, QueueSettings], depths: dict[str, Depth]) -> None:
        """Take this as read just now."""
        self._looked_at = self.monotonic()
        self.open_until = float("-inf") if limited else self._looked_at + FRESH
        self._limited, self._depths, self._own = limited, depths, {}

    def forget(self) -> None:
        """Read settings and depths again with the next job."""
        self._looked_at = self.open_until = float("-inf")

    def _is_over(self, queue: str, more: int) -> str | None:
        """Why so many more jobs do not fit, or None."""
        settings, depth = self._limited.get(queue), self._depths.get(queue)
        if settings is None or depth is None:
            return None
        ready = depth.ready + self._own.get(queue, 0)
        if settings.max_depth is not None and ready + more > settings.max_depth:
            return f"{ready:,} jobs are ready, max_depth is {settings.max_depth:,}"
        age = depth.oldest
        if settings.max_age is not None and age is not None and age > settings.max_age:
            return f"its oldest job waits for {age.total_seconds():.0f} s, more than max_age"
        return None

    def _counts(self, jobs: Sequence[NewJob]) -> dict[str, int]:
        """How many of the jobs go to each queue with settings."""
        counts: dict[str, int] = {}
        for job in jobs:
            if job.queue in self._limited:
                counts[job.queue] = counts.get(job.queue, 0) + 1
        return counts

    def _full(self, counts: dict[str, int]) -> tuple[str, str] | None:
        """The first queue that is full and keeps jobs out, and why."""
        for queue, count in counts.items():
            if self._limited[queue].draining:
                return queue, "it drains"
            keeps_out = self._limited[queue].on_full in (OnFull.REJECT, OnFull.BLOCK)
            why = self._is_over(queue, count) if keeps_out else None
            if why is not None:
                return queue, why
        return None

    def _let_in(self, jobs: Sequence[NewJob]) -> list[NewJob | None]:
        found: list[NewJob | None] = []
        for job in jobs:
            settings = self._limited.get(job.queue)
            if settings is not None and self._is_over(job.queue, 1) is not None:
                if settings.on_full is OnFull.SHED and job.priority < 0:
                    found.append(None)
                    continue
                if settings.on_full is OnFull.DELAY and job.delay is None and job.run_at is None:
                    job = self._put_off(job, settings)  # noqa: PLW2901  # the same job, later
            if settings is not None:
                self._own[job.queue] = self._own.get(job.queue, 0) + 1
            found.append(job)
        return found

    def _put_off(self, job: NewJob, settings: QueueSettings) -> NewJob:
        depth = self._depths[job.queue]
        over = depth.ready + self._own.get(job.queue, 0) + 1 - (settings.max_depth or 0)
        delay = timedelta(seconds=max(over, 1) / settings.drain_per_second)
        return msgspec.structs.replace(job, delay=delay)


def _sent(driver: Driver, verb: Verb[Any], is_apart: bool) -> Verb[Any] | Blocking:
    return Blocking(lambda: driver.run(verb)) if is_apart else verb


def _depth(driver: Driver, queue: str, settings: QueueSettings) -> Verb[Depth]:
    return driver.depth(queue, cap=2 * (settings.max_depth or 1))

"""Jobs kept in a file while the store is out of reach, and handed to it when it is back.

A line is a batch of jobs as they would have been stored, ids included; it is on disk before `enqueue`
returns. The forwarder renames the file (`.sending`), stores its jobs as
repeats, and removes it at the very end. Killed anywhere in between, the next one finds `.sending` and
stores all of it again: the store knows each id it has and takes each job once.

    append    lock the file -> it is still the spool? -> write one line -> fsync
    forward   lock `.lock` -> rename to `.sending` -> lock that file once, so that no process is writing
              to it any more -> store -> remove

What the store refuses for good goes to `.refused`, one line each, for people to look at: it must not
keep the rest waiting.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from winch.core.errors import ConfigError, QueueFull, StorageError, WinchError
from winch.core.values.clock import Clock
from winch.engine.base.log import log
from winch.engine.base.operation import Blocking, Operation
from winch.engine.base.search_index import lines_of_all
from winch.storage.params import NewJob
from winch.storage.protocol import Driver

CHUNK = 1000


class SpooledJobs(msgspec.Struct, frozen=True):
    """One line: the jobs of one enqueue, and when it was."""

    at: datetime
    jobs: tuple[NewJob, ...]


_decoder = msgspec.json.Decoder(SpooledJobs)


class Spool:
    """One spool file, shared by all processes of this machine that name it."""

    def __init__(self, path: Path, clock: Clock, step: Callable[[str], None] = lambda _: None) -> None:
        if os.name != "posix":
            raise ConfigError("spool needs file locks that this system does not have; leave it out")
        self.path = path
        self._clock = clock
        # Called between any two steps; tests end the process there.
        self._step = step
        self.has_waiting: bool = False  # this process has put jobs here that it has not seen leave

    @property
    def _sending(self) -> Path:
        return self.path.with_name(self.path.name + ".sending")

    # -- append ------------------------------------------------------------------------------------

    def append(self, jobs: tuple[NewJob, ...]) -> None:
        """Put the jobs on disk; returns when they are safe there. Raises OSError."""
        now = self._clock.now()
        line = msgspec.json.encode(SpooledJobs(now, tuple(_absolute(job, now) for job in jobs))) + b"\n"
        with self._locked_for_append() as fd:
            before = os.fstat(fd).st_size
            torn = before > 0 and os.pread(fd, 1, before - 1) != b"\n"
            if torn:  # a producer was killed in the middle of a line, so its enqueue never returned
                line = b"\n" + line
            try:
                _write_all(fd, line)
                self._step("written")
                os.fsync(fd)
            except OSError:
                os.ftruncate(fd, before)  # a full disk must not leave half a line that looks promised
                raise
            if before == 0:
                _sync_folder(self.path)  # the file's own name
        self.has_waiting = True
        self._step("appended")

    @contextmanager
    def _locked_for_append(self) -> Iterator[int]:
        import fcntl

        while True:
            fd = _open(self.path, os.O_RDWR | os.O_APPEND)
            try:
                self._step("opened")
                fcntl.flock(fd, fcntl.LOCK_EX)
                if _is_at(self.path, fd):
                    yield fd
                    return
                # Taken away to be sent while we waited for the lock: what we wrote would be lost.
            finally:
                os.close(fd)

    # -- forward -----------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to forward, as far as is visible without a lock."""
        return not self._sending.exists() and not self.path.exists()

    def forward(self, driver: Driver) -> Operation[int]:
        """Hand everything to the store; returns how many jobs. 0 while another process forwards.

        Raises StorageError when the store goes away on the way; nothing is lost by that.
        """
        if self.is_empty:
            self.has_waiting = False
            return 0
        lock = yield Blocking(self._take_forward_lock)
        if lock is None:
            return 0
        sent = 0
        try:
            while True:
                batches = yield Blocking(self._take)
                if batches is None:
                    break
                for chunk in _chunks(batches, self._clock.now()):
                    yield from self._store(driver, chunk)
                    sent += len(chunk)
                    self._step("stored")
                yield Blocking(self._done)
            self.has_waiting = False
        finally:
            os.close(lock)
        if sent:
            log.info("forwarded %d jobs from the spool %s", sent, self.path)
        return sent

    def _store(self, driver: Driver, jobs: list[NewJob]) -> Operation[None]:
        try:
            lines = lines_of_all(jobs, datetime.now(UTC))
            if lines:
                yield driver.kv_put(lines)
            yield driver.enqueue(jobs, is_repeat=True)
        except (StorageError, QueueFull):
            raise  # not now; the file stays and is sent again
        except WinchError as error:
            if len(jobs) > 1:
                for job in jobs:
                    yield from self._store(driver, [job])
                return
            log.error("the store refuses job %s from the spool: %s", jobs[0].id, error)
            yield Blocking(lambda: self._refuse(msgspec.json.encode(jobs[0])))

    def _take_forward_lock(self) -> int | None:
        import fcntl

        fd = _open(self.path.with_name(self.path.name + ".lock"), os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return fd

    def _take(self) -> list[SpooledJobs] | None:
        """What is to be sent: what a killed forwarder left, else the spool, else None."""
        import fcntl

        if not self._sending.exists():
            try:
                self.path.rename(self._sending)
            except FileNotFoundError:
                return None
            self._step("renamed")
            _sync_folder(self.path)
        fd = _open(self._sending, os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)  # a process that wrote under the old name has ended
        finally:
            os.close(fd)
        self._step("taken")
        batches = []
        for line in self._sending.read_bytes().split(b"\n"):
            if not line.strip():
                continue
            try:
                batches.append(_decoder.decode(line))
            except msgspec.DecodeError as error:
                log.error("a line of the spool %s cannot be read: %s", self.path, error)
                self._refuse(line)
        return batches

    def _done(self) -> None:
        self._step("all stored")
        self._sending.unlink()
        self._step("removed")
        _sync_folder(self.path)

    def _refuse(self, line: bytes) -> None:
        fd = _open(self.path.with_name(self.path.name + ".refused"), os.O_WRONLY | os.O_APPEND)
        try:
            _write_all(fd, line + b"\n")
            os.fsync(fd)
        finally:
            os.close(fd)


def _absolute(job: NewJob, now: datetime) -> NewJob:
    """A delay counts from the enqueue, not from the day the store is back."""
    if job.delay is None:
        return job
    return msgspec.structs.replace(job, delay=None, run_at=now + job.delay)


def _left(job: NewJob, at: datetime, now: datetime) -> NewJob:
    """What is left of the time within which the job is worth running."""
    if job.expires is None:
        return job
    waited = max(now - at, timedelta(0))
    return msgspec.structs.replace(job, expires=max(job.expires - waited, timedelta(0)))


def _chunks(batches: list[SpooledJobs], now: datetime) -> Iterator[list[NewJob]]:
    """The jobs in lists of a thousand, each id once in each list."""
    chunk: dict[str, NewJob] = {}
    for batch in batches:
        for job in batch.jobs:
            chunk.setdefault(job.id, _left(job, batch.at, now))
            if len(chunk) == CHUNK:
                yield list(chunk.values())
                chunk = {}
    if chunk:
        yield list(chunk.values())


def _open(path: Path, flags: int) -> int:
    # It holds arguments: only the owner reads it, and never through a symbolic link.
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _is_at(path: Path, fd: int) -> bool:
    """Whether the open file is the one that has this name."""
    try:
        named = path.stat()
    except FileNotFoundError:
        return False
    opened = os.fstat(fd)
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _sync_folder(path: Path) -> None:
    fd = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

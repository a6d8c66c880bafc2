"""The sync side: a few connections of our own, shared by all threads, and a watchdog that cuts one that
does not answer. Each is opened when it is needed, looked at before it is used, and thrown away when it
breaks."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Generator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import psycopg
from psycopg.rows import tuple_row

from winch.core.errors import StorageUnavailable
from winch.drivers.postgres.address import Address
from winch.drivers.postgres.binary import adapt, bare_moments
from winch.drivers.postgres.connections import libpq
from winch.drivers.postgres.connections.libpq import Own
from winch.drivers.postgres.errors import (
    START_OVER,
    TRIES,
    is_connection_lost,
    no_answer,
    sever,
    start_over_delay,
    translated,
)
from winch.drivers.postgres.statements import (
    BARE_MOMENTS,
    BEGIN,
    COMMIT,
    PREPARED,
    Action,
    Progress,
    Row,
    Rows,
    Statement,
    script,
)
from winch.storage.verbs import Sending, Unhurried, Verb

T = TypeVar("T")
Connection = psycopg.Connection[Row]

WHO_ANSWERS = "SELECT pg_backend_pid()"


class SyncPool:
    """Carries verbs out and waits for the answers. Safe from any thread, and after a fork."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._forget()

    def _forget(self) -> None:
        self._idle: list[Own] = []
        # A semaphore whose two ends are one call of C each.
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(self._address.pool):
            self._free.put(None)
        # One connection is left for what a caller does between the two halves of a verb.
        self._halves = threading.BoundedSemaphore(max(self._address.pool - 1, 1))
        self._watchdog = Watchdog(self._address.timeout)
        self._pid = os.getpid()  # last: other threads of the child look at it

    def run(self, verb: Verb[T]) -> T:
        for tries in range(1, TRIES + 1):
            progress = Progress(verb)
            try:
                return self._once(verb, progress)
            except psycopg.Error as error:
                if error.sqlstate in START_OVER and tries < TRIES:
                    time.sleep(start_over_delay(tries))
                    continue
                raise translated(error, self._address, maybe_applied=progress.maybe_applied) from error
        raise AssertionError("unreachable")

    def _once(self, verb: Verb[T], progress: Progress) -> T:
        if self._pid != os.getpid():
            self._forget()  # the parent's connections are the parent's; psycopg leaves them alone
        try:
            self._free.get(timeout=self._address.timeout)
        except Empty:
            raise StorageUnavailable(
                f"{self._address.describe()}: all {self._address.pool} connections were in use for "
                f"{self._address.timeout:g} s; raise pool= in the URL or use fewer threads"
            ) from None
        try:
            connection = self._healthy() or self._connect()
            self._watchdog.watch(connection)
            try:
                if verb.lone is not None and connection.keeps_statements:
                    progress.maybe_applied = True
                    result: T = verb.lone(connection)
                else:
                    result = self._carry(connection, verb, progress)
            except BaseException as error:
                self._watchdog.unwatch(connection)
                self._recover(connection, error)
                if connection.is_cut:
                    raise no_answer(self._address, progress) from error
                raise
            self._watchdog.unwatch(connection)
            self._idle.append(connection)
            return result
        finally:
            self._free.put(None)

    def sending(self, verb: Verb[T]) -> Sending[T]:
        """The verb in two halves, where it is one statement that goes the short way."""
        if self._address.prepares and self._address.pool > 1:
            progress = Progress(verb)
            steps = script(verb, progress)
            with suppress(StopIteration):  # one that has nothing to say
                action = next(steps)
                if isinstance(action, Statement) and action.sql.name in libpq.STATEMENTS:
                    return _Halves(self, verb, progress, steps, libpq.Written(action))
                steps.close()
        return Unhurried(self.run, verb)

    def begin(self, written: libpq.Written) -> _Begun | None:
        """Send the statement; None where there is no connection for it that can wait: all at once, then,
        and later, which also tells why."""
        if self._pid != os.getpid():
            self._forget()
        if not self._halves.acquire(blocking=False):
            return None
        try:
            self._free.get_nowait()
        except Empty:
            self._halves.release()
            return None
        begun = None
        try:
            connection = self._healthy() or self._connect()
            if not connection.keeps_statements:
                self._idle.append(connection)
                return None
            begun = _Begun(connection)
            self._watchdog.watch(connection)
            try:
                libpq.begin(connection, written)
            except Exception as error:
                begun.error = error
            return begun
        except psycopg.Error:
            return None
        finally:
            if begun is None:
                self._free.put(None)
                self._halves.release()

    def end(self, begun: _Begun, progress: Progress) -> None:
        """Wait for the answer to what was begun."""
        connection = begun.connection
        try:
            if begun.error is not None:
                raise begun.error
            libpq.answer(connection)
        except BaseException as error:
            self._watchdog.unwatch(connection)
            self._recover(connection, error)
            if connection.is_cut:
                raise no_answer(self._address, progress) from error
            if isinstance(error, psycopg.Error) and error.sqlstate not in START_OVER:
                raise translated(error, self._address, maybe_applied=progress.maybe_applied) from error
            raise
        else:
            self._watchdog.unwatch(connection)
            self._idle.append(connection)
        finally:
            self._free.put(None)
            self._halves.release()

    def _carry(self, connection: Own, verb: Verb[T], progress: Progress) -> T:
        sending = script(verb, progress)
        try:
            action = next(sending)
            while True:
                action = sending.send(self._send(connection, action))
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _send(self, connection: Own, action: Action) -> Rows:
        if not isinstance(action, Statement):
            connection.execute(BEGIN if action == "begin" else COMMIT, prepare=False)
            return []
        prepare = self._address.prepares and action.sql.name in PREPARED
        if prepare and action.sql.name in libpq.STATEMENTS and connection.keeps_statements:
            libpq.send(connection, action)
            return []
        # Binary answers: moments are read faster, and whatever DateStyle the database is set to.
        text, values = action.sql.text, action.values
        cursor = connection.cursor(binary=True)
        if action.sql.name in BARE_MOMENTS:
            bare_moments(cursor)
        cursor.execute(text, values, prepare=prepare)
        return cursor.fetchall() if cursor.description is not None else []

    def _recover(self, connection: Own, error: BaseException) -> None:
        """Keep a connection that only heard an error; throw any other away."""
        if isinstance(error, Exception) and not is_connection_lost(error) and not connection.closed:
            try:
                connection.rollback()
            except psycopg.Error:
                connection.close()
            else:
                self._idle.append(connection)
                return
        connection.close()

    def _healthy(self) -> Own | None:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:  # not looked for before: another thread may take the last one
                return None
            if connection.is_fit:
                return connection
            connection.close()

    def _connect(self) -> Own:
        params = {**self._address.params, "autocommit": True, "prepare_threshold": 0}
        made = Own.connect(**params, row_factory=tuple_row)
        adapt(made)
        try:
            if is_pooled(made, made.execute(WHO_ANSWERS, prepare=False).fetchone()):
                made.prepare_threshold = None
            made.keeps_statements = self._address.prepares and made.prepare_threshold is not None
        except BaseException:  # nobody else knows of this connection yet
            made.close()
            raise
        return made

    def close(self) -> None:
        """Close what is idle. Whoever runs a verb right now gives its connection back to the pool."""
        if self._pid == os.getpid():
            with suppress(IndexError):
                while True:
                    self._idle.pop().close()
            self._watchdog.stop()


class _Begun:
    """A statement that was sent on a connection and not yet answered."""

    __slots__ = ("connection", "error")

    def __init__(self, connection: Own) -> None:
        self.connection: Own = connection
        self.error: Exception | None = None


class _Halves(Generic[T]):
    """A verb of one statement, written ahead."""

    def __init__(
        self,
        pool: SyncPool,
        verb: Verb[T],
        progress: Progress,
        steps: Generator[Action, Rows, T],
        written: libpq.Written,
    ) -> None:
        self._pool = pool
        self._verb = verb
        self._progress = progress
        self._steps = steps
        self._written = written
        self._begun: _Begun | None = None

    def send(self) -> None:
        self._begun = self._pool.begin(self._written)

    def answer(self) -> T:
        if self._begun is None:
            return self._pool.run(self._verb)
        try:
            self._pool.end(self._begun, self._progress)
        except psycopg.Error:  # the server wants it to be started over
            return self._pool.run(self._verb)
        try:
            self._steps.send([])
        except StopIteration as stop:
            result: T = stop.value
            return result
        raise AssertionError("the verb has more than one statement")


def is_pooled(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], answer: Row | None
) -> bool:
    """Whether a pooler stands between: the process that greeted is not the one that answers. Named
    prepares, and LISTEN, are then somebody else's the next moment."""
    return answer is not None and answer[0] != connection.info.backend_pid


def is_readable(fileno: int) -> bool:
    """Whether bytes, or the end of them, wait to be read."""
    poll = select.poll()
    poll.register(fileno, select.POLLIN)
    return bool(poll.poll(0))


class Watchdog:
    """Cuts connections that have been busy for longer than `timeout`: a thread that only ticks while
    somebody is busy, because a timer for each statement costs more than the statement's own Python."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._busy: dict[Own, float] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def watch(self, connection: Own) -> None:
        self._busy[connection] = time.monotonic() + self._timeout
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._stopped.clear()
                    self._thread = threading.Thread(
                        target=self._watch_over, name="winch-watchdog", daemon=True
                    )
                    self._thread.start()

    def unwatch(self, connection: Own) -> None:
        self._busy.pop(connection, None)

    def stop(self) -> None:
        with self._lock:
            self._stopped.set()
            self._thread = None

    def _watch_over(self) -> None:
        try:
            self._tick()
        except BaseException:
            self._thread = None  # the next connection that gets busy starts a new one
            raise

    def _tick(self) -> None:
        stopped, every, quiet = self._stopped, min(0.5, self._timeout / 4), 0
        while not stopped.wait(every):
            now = time.monotonic()
            for connection, deadline in list(self._busy.items()):
                if deadline < now and self._busy.pop(connection, None) is not None:
                    connection.is_cut = True
                    with suppress(psycopg.Error):  # closed already
                        sever(connection.fileno())
            quiet = 0 if self._busy else quiet + 1
            if quiet * every > 30:
                with self._lock:
                    if not self._busy:
                        self._thread = None
                        return

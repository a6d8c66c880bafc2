"""Writes, many callers to one commit.

A commit costs a sync of the disk, and the file has one writer at a time. So callers combine: a caller
that finds no other writing becomes the leader, takes the file's lock, and carries out everything that
was queued by then in one transaction. Later callers queue up, and the leader hands on to the first of
them. Each verb has a savepoint of its own, so that one that fails does not fail the others.

A lone caller is its own leader and pays no thread hop. Where its verb is one statement, SQLite begins
and commits for that by itself (`Verb.is_alone`), which spares two statements.

Async callers never lead, because leading blocks: a thread does it for them, and their answers come back
with one wake-up of the event loop per commit.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from winch.core.errors import StorageUnavailable
from winch.core.job import to_micros
from winch.drivers.sqlite.connections.file_lock import OpenFile
from winch.drivers.sqlite.connections.opening import TIMEOUT
from winch.drivers.sqlite.connections.pool import Connections
from winch.drivers.sqlite.errors import is_full, spoils_connection, translated
from winch.drivers.sqlite.statements import SQL, Ring
from winch.storage.forks import forget_in_children
from winch.storage.verbs import Verb

T = TypeVar("T")
# More than this in one transaction would keep the first ones waiting and the other processes out.
GROUP_LIMIT = 512

# Checkpoint after about this much has been written to the WAL. SQLite does not report how much of
# the file is in use, because it writes the file from its start again after a checkpoint; so this is an
# estimate from above.
# A checkpoint syncs twice, however little it copies: at half of this a producer of single jobs whose
# commits do not sync waited 1.6 times as long for the disk.
CHECKPOINT_BYTES = 8 * 1024 * 1024
_COMMIT_BYTES, _CHANGE_BYTES = 12 * 1024, 700
# With sync=full also after so many commits. A sync of a file that has become longer takes twice as long
# as one within it, and the WAL's file becomes longer until the first checkpoint. A commit of one job
# writes 8 KiB, so the file stays at 2 MiB where jobs are stored one by one. Commits are on the disk by
# then, so such a checkpoint syncs no more than a few pages.
SYNCED_COMMITS = 256
# A checkpoint that a long read kept from coming to its end is tried again after this much more.
_CHECKPOINT_STEP = 1024 * 1024

# After so many commits of its own a process looks how long the WAL's file has become.
_LOOK_EVERY = 256
# Not cut shorter each time: appending to a file makes each sync twice as slow as writing within it.
WAL_FILE_BYTES = 16 * 1024 * 1024


def store_time(now: datetime | None) -> int:
    """The store's time in µs, or `now` where a caller gives it.

    One file is one host, so the host's clock is the store's. It is read inside the transaction: the
    later writer has the later time.
    """
    return time.time_ns() // 1000 if now is None else to_micros(now)


def carry(conn: sqlite3.Connection, verb: Verb[T], ring: Ring) -> T:
    """Carry the verb out on this connection; what it wants to wake is added to `ring`."""
    source: sqlite3.Connection | sqlite3.Cursor = conn
    if conn.row_factory is not None:  # a caller's own connection: plain tuples also there
        source = conn.cursor()
        source.row_factory = None
    steps = verb.steps()
    answer: Any
    try:
        step = next(steps)
        while True:
            answer = None
            if type(step) is Ring:
                _add(ring, step)
            else:
                text = SQL[step.name].text
                try:
                    if step.many:
                        source.executemany(text, step.values)
                    elif step.is_counted:
                        answer = source.execute(text, step.values).rowcount
                    else:
                        answer = source.execute(text, step.values).fetchall()
                except sqlite3.Error as error:
                    step = steps.throw(error)
                    continue
            step = steps.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()


def _add(ring: Ring, other: Ring) -> None:
    if ring.ready:
        for name, jobs in other.ready.items():
            ring.ready[name] += jobs
    else:
        ring.ready.update(other.ready)
    ring.due = ring.due or other.due


class QueuedWrite:
    """One verb that waits for its commit. `gate` is held until it is done or its caller becomes the
    leader; an async caller has a `future` instead. A verb that was sent (`Writer.send`) is left to the
    thread: its caller never leads. `begun` is held until the thread takes it up."""

    # Defaults on the class: a lone caller's call sets none of them but its result.
    result: Any = None
    error: BaseException | None = None
    is_done = False
    leads = False
    gate: threading.Lock | None = None
    begun: threading.Lock | None = None
    loop: asyncio.AbstractEventLoop | None = None
    future: asyncio.Future[Any] | None = None

    def __init__(self, verb: Verb[Any]) -> None:
        self.verb = verb


class Writer:
    """The writes of one driver in this process. `ring` is called after a commit that wakes a bell."""

    def __init__(self, connections: Connections, ring: Callable[[Ring], None]) -> None:
        self._connections = connections
        self.ring: Callable[[Ring], None] = ring
        self._guard = threading.Lock()
        self._queue: deque[QueuedWrite] = deque()
        self._is_led = False
        self._thread: threading.Thread | None = None
        self._turns: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.groups: int = 0
        self._checkpoints = Checkpoints(is_synced=connections.is_synced)
        forget_in_children(self)

    def run(self, verb: Verb[T]) -> T:
        """Carry the verb out durably; blocks."""
        call = QueuedWrite(verb)
        with self._guard:
            if not self._is_led:
                self._is_led = True
            else:
                call.gate = threading.Lock()
                call.gate.acquire()
                self._queue.append(call)
        if call.gate is not None:
            try:
                call.gate.acquire()
            except BaseException:
                self._leave(call)
                raise
        if not call.is_done:
            self._lead(call)
        if call.error is not None:
            raise call.error
        result: T = call.result
        return result

    def send(self, verb: Verb[Any]) -> QueuedWrite:
        """Have the thread carry the verb out; returns when it begins. `result` waits for its end.

        From its begin on the thread is inside SQLite, where it needs no interpreter lock. A caller that
        went on at once would keep that lock, and the thread would begin when the caller waits."""
        call = QueuedWrite(verb)
        call.gate, call.begun = threading.Lock(), threading.Lock()
        call.gate.acquire()
        call.begun.acquire()
        self._leave_to_thread(call)
        call.begun.acquire()
        return call

    def result(self, call: QueuedWrite) -> Any:
        """The result of a verb that was sent; blocks."""
        if call.gate is not None:
            call.gate.acquire()
        if call.error is not None:
            raise call.error
        return call.result

    def _leave_to_thread(self, call: QueuedWrite) -> None:
        with self._guard:
            self._queue.append(call)
            if not self._is_led:
                self._is_led = True
                self._wake_thread()

    def _leave(self, call: QueuedWrite) -> None:
        """The caller was interrupted (Ctrl-C) while it waited."""
        with self._guard:
            if call in self._queue:
                self._queue.remove(call)
        if call.leads:
            self._hand_on()

    async def arun(self, verb: Verb[T]) -> T:
        """The same without blocking the event loop."""
        call = QueuedWrite(verb)
        call.loop = asyncio.get_running_loop()
        call.future = call.loop.create_future()
        self._leave_to_thread(call)
        result: T = await call.future
        return result

    def close(self) -> None:
        """End the thread once it has done what it is at. It starts again when used again."""
        with self._guard:
            thread, self._thread = self._thread, None
            self._turns.put(False)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def after_fork_in_child(self) -> None:
        """The thread and the callers of the parent are not here."""
        self._guard = threading.Lock()
        self._queue.clear()
        self._is_led = False
        self._thread = None

    # -- leading -----------------------------------------------------------------------------------

    def _wake_thread(self) -> None:
        """Let the thread lead next. With the guard held."""
        if self._thread is None:
            self._turns = queue.SimpleQueue()
            self._thread = threading.Thread(
                target=self._serve, args=(self._turns,), name="winch-sqlite-writer", daemon=True
            )
            self._thread.start()
        self._turns.put(True)

    def _serve(self, turns: queue.SimpleQueue[bool]) -> None:
        try:
            while turns.get():
                self._lead(None)
        except BaseException as error:
            self._ended(error)
            raise

    def _ended(self, error: BaseException) -> None:
        """The thread ends by an error: no caller waits for it, and the next starts a new one."""
        with self._guard:
            self._thread, self._is_led = None, False
        gone = StorageUnavailable(f"the thread that writes to SQLite has ended: {error!r}")
        while self._queue:
            calls: list[QueuedWrite] = []
            self._take_queued(calls)
            self._answer(calls, gone)

    def _lead(self, own: QueuedWrite | None) -> None:
        try:
            self._write(own)
        finally:
            self._hand_on()

    def _hand_on(self) -> None:
        with self._guard:
            if not self._queue:
                self._is_led = False
                return
            first = self._queue[0]
            if first.gate is None or first.begun is not None:
                self._wake_thread()
                return
            self._queue.popleft()
            first.leads = True
        first.gate.release()

    def _take_queued(self, calls: list[QueuedWrite]) -> None:
        """Add to the leader's call those that have queued."""
        with self._guard:
            while self._queue and len(calls) < GROUP_LIMIT:
                calls.append(self._queue.popleft())
                if (begun := calls[-1].begun) is not None:
                    begun.release()

    # -- one commit --------------------------------------------------------------------------------

    def _write(self, own: QueuedWrite | None) -> None:
        """One transaction for the leader's call and those that have queued: lock the file, commit,
        unlock it, answer, ring."""
        calls = [] if own is None else [own]
        try:
            file = self._connections.file
            if file is None or not file.acquire(TIMEOUT):
                file = self._connections.acquire()
        except BaseException as error:
            self._take_queued(calls)
            self._answer(calls, error)
            if not isinstance(error, Exception):
                raise
            return
        ring = Ring()
        try:
            if self._queue:
                self._take_queued(calls)
            changes = self._commit(file, calls, ring)
            if self._checkpoints.is_due(file.path, changes):
                self._answer(calls)
                self._ring_out(ring)
                ring = Ring()
                self.checkpoint()
        except BaseException as error:
            self._fail(calls, error)
            if not isinstance(error, Exception):
                raise
        finally:
            file.release()
            self._answer(calls)
        self._ring_out(ring)

    def _commit(self, file: OpenFile, calls: list[QueuedWrite], ring: Ring) -> int:
        """Returns how many rows were changed. Only with the file's lock held."""
        if file.is_replaced():
            raise self._connections.drop_replaced()
        conn = file.writing or self._connections.writer()
        self.groups += 1
        before = conn.total_changes
        in_commit = len(calls) == 1 and calls[0].verb.is_alone
        try:
            if in_commit:
                calls[0].result = carry(conn, calls[0].verb, ring)
            else:
                conn.execute("BEGIN IMMEDIATE")
                if len(calls) == 1:  # no other call to protect
                    calls[0].result = carry(conn, calls[0].verb, ring)
                else:
                    self._carry_each(conn, calls, ring)
                in_commit = True
                conn.execute("COMMIT")
        except BaseException as error:
            ring.ready.clear()
            ring.due = False
            self._clean_up(conn, error)
            self._fail(calls, error, in_commit=in_commit)
            if not isinstance(error, Exception):
                raise
            return 0
        return conn.total_changes - before

    def _carry_each(self, conn: sqlite3.Connection, calls: list[QueuedWrite], ring: Ring) -> None:
        for call in calls:
            own = Ring()
            conn.execute("SAVEPOINT verb")
            try:
                call.result = carry(conn, call.verb, own)
            except Exception as error:
                if not conn.in_transaction or is_full(error):
                    raise  # SQLite has rolled all of it back, or will not take the others either
                conn.execute("ROLLBACK TO verb")
                self._fail([call], error)
            else:
                _add(ring, own)
            conn.execute("RELEASE verb")

    def checkpoint(self) -> None:
        """Copy the WAL into the database. Only with the file's lock held.

        Also after a write that found the disk full: the WAL itself may be what fills it, and only a
        checkpoint lets it be written from its start again. Each process counts no more than its own
        writes, so that no process may have thought one due.
        """
        try:
            self._checkpoints.run(self._connections.path, self._connections.writer())
        except sqlite3.Error as error:
            if spoils_connection(error):
                self._connections.discard_writer()

    def checkpoint_if_due(self, changes: int) -> None:
        """After a commit with so many changed rows. Only with the file's lock held."""
        if self._checkpoints.is_due(self._connections.path, changes):
            self.checkpoint()

    def _clean_up(self, conn: sqlite3.Connection, error: BaseException) -> None:
        """After a write that failed. Only with the file's lock held."""
        if conn.in_transaction:
            conn.rollback()
        if spoils_connection(error):
            self._connections.discard_writer()
        elif is_full(error):
            self.checkpoint()

    # -- answers -----------------------------------------------------------------------------------

    def _fail(self, calls: list[QueuedWrite], error: BaseException, *, in_commit: bool = False) -> None:
        if not isinstance(error, Exception):
            # This thread is interrupted, the callers in others are not.
            error = StorageUnavailable(
                "the thread that wrote for this one was interrupted", maybe_applied=in_commit
            )
        for call in calls:
            if not call.is_done and call.error is None:
                call.error = translated(error, self._connections.path, in_commit=in_commit)

    def _answer(self, calls: list[QueuedWrite], error: BaseException | None = None) -> None:
        """Let the callers go on that still wait; with `error`, all of them have failed."""
        if error is not None:
            self._fail(calls, error)
        loops: dict[asyncio.AbstractEventLoop, list[QueuedWrite]] = {}
        for call in calls:
            if call.is_done:
                continue
            call.is_done = True
            if call.loop is not None:
                loops.setdefault(call.loop, []).append(call)
            elif call.gate is not None:
                call.gate.release()
        for loop, done in loops.items():
            try:
                loop.call_soon_threadsafe(_settle, done)
            except RuntimeError:  # the loop has closed
                continue

    def _ring_out(self, ring: Ring) -> None:
        if ring.ready or ring.due:
            self.ring(ring)


def _settle(calls: list[QueuedWrite]) -> None:
    for call in calls:
        if call.future is None or call.future.done():
            continue
        if call.error is not None:
            call.future.set_exception(call.error)
        else:
            call.future.set_result(call.result)


class Checkpoints:
    """Counts what this process writes to the WAL. `count` is how many checkpoints it has made."""

    def __init__(self, *, is_synced: bool) -> None:
        """`is_synced`: each commit is on the disk when it returns."""
        self._is_synced = is_synced
        self.count: int = 0
        self._written = 0
        self._commits = 0
        self._commits_before = 0

    def is_due(self, path: Path, changes: int) -> bool:
        """After a commit with this many changed rows: whether it is time for a checkpoint."""
        if changes:
            self._written += _COMMIT_BYTES + changes * _CHANGE_BYTES
            self._commits += 1
            # Other processes write too, and are not counted here: their sum shows in the file.
            if self._commits % _LOOK_EVERY == 0 and wal_bytes(path) > WAL_FILE_BYTES:
                return True
            if self._is_synced and self._commits - self._commits_before >= SYNCED_COMMITS:
                return True
        return self._written > CHECKPOINT_BYTES

    def run(self, path: Path, conn: sqlite3.Connection) -> None:
        """Copy the WAL into the database, so that SQLite writes it from its start again. Only with the
        file's lock held. After an error all commits are still in the WAL; the next one tries again."""
        self.count += 1
        self._commits_before = self._commits
        is_whole = False
        try:
            if wal_bytes(path) > WAL_FILE_BYTES:
                conn.execute("PRAGMA busy_timeout = 20")  # for readers, which are mostly quick
                conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                conn.execute(f"PRAGMA busy_timeout = {int(TIMEOUT * 1000)}")
                is_whole = wal_bytes(path) == 0
            else:
                _, frames, copied = conn.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                is_whole = frames == copied
        finally:
            self._written = 0 if is_whole else CHECKPOINT_BYTES - _CHECKPOINT_STEP


def wal_bytes(path: Path) -> int:
    """How long the file of the WAL is."""
    try:
        return path.with_name(path.name + "-wal").stat().st_size
    except FileNotFoundError:
        return 0

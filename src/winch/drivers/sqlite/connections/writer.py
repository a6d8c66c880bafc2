"""Writes, many callers to one commit.

A commit costs a sync of the disk, and the file has one writer at a time. So callers combine: a caller
that finds no other writing becomes the leader, takes the file's lock, and carries out everything that
was queued by then in one transaction. Later callers queue up, and the leader hands on to the first of
them. Each verb has a savepoint of its own, so that one that fails does not fail the others.

A lone caller is its own leader and pays no thread hop; where its verb is one statement, SQLite begins
and commits for that by itself, which spares two statements and a savepoint.

Async callers never lead, because leading blocks: a thread does it for them, and their answers come back
with one wake-up of the event loop per commit.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from winch.core.errors import StorageUnavailable
from winch.drivers.sqlite.connections.file_lock import FileLock
from winch.drivers.sqlite.connections.pool import Connections
from winch.drivers.sqlite.errors import is_full, spoils_connection, translated
from winch.drivers.sqlite.statements import Ring, carry
from winch.storage.forks import forget_in_children
from winch.storage.verbs import Verb

T = TypeVar("T")
# More than this in one transaction would keep the first ones waiting and the other processes out.
GROUP_LIMIT = 512


class QueuedWrite:
    """One verb that waits for its commit.

    `gate` is held until the verb is done or its caller becomes the leader. `begun` and `ended` are held
    until the writer's thread begins and ends the verb, while its caller does something else.
    """

    # Defaults on the class: a lone caller's call, made and thrown away, sets two of them.
    result: Any = None
    error: BaseException | None = None
    is_done = False
    leads = False
    gate: threading.Lock | None = None
    begun: threading.Lock | None = None
    ended: threading.Lock | None = None
    loop: asyncio.AbstractEventLoop | None = None
    future: asyncio.Future[Any] | None = None

    def __init__(self, verb: Verb[Any]) -> None:
        self.verb = verb

    def begin(self) -> None:
        if self.begun is not None:
            self.begun.release()
            self.begun = None

    def answer(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


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
        forget_in_children(self)

    def run(self, verb: Verb[T]) -> T:
        """Carry the verb out durably; blocks."""
        call: QueuedWrite | None = None
        with self._guard:
            if not self._is_led:
                self._is_led = True
            else:
                call = QueuedWrite(verb)
                call.gate = threading.Lock()
                call.gate.acquire()
                self._queue.append(call)
        if call is None:
            if verb.lone is not None:
                return self._lead_alone(verb, verb.lone)
            call = QueuedWrite(verb)
            self._lead(call)
        else:
            try:
                call.gate.acquire()  # type: ignore[union-attr]  # set above
            except BaseException:
                self._leave(call)
                raise
            if not call.is_done:
                self._lead(call)
        result: T = call.answer()
        return result

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
        with self._guard:
            self._queue.append(call)
            if not self._is_led:
                self._is_led = True
                self._wake_thread()
        result: T = await call.future
        return result

    def send(self, verb: Verb[Any]) -> QueuedWrite:
        """Have the thread carry the verb out; `result` waits for it.

        Returns when the thread is at it: it needs the interpreter lock for that, which a caller that
        went on at once would keep, so that nothing would be done meanwhile.
        """
        call = QueuedWrite(verb)
        begun = call.begun = threading.Lock()
        call.ended = threading.Lock()
        begun.acquire()
        call.ended.acquire()
        with self._guard:
            self._queue.append(call)
            if not self._is_led:
                try:
                    self._wake_thread()
                except RuntimeError:
                    self._thread = None
                    self._queue.remove(call)
                    raise
                self._is_led = True
        begun.acquire()
        return call

    def result(self, call: QueuedWrite) -> Any:
        """What became of a verb that was sent."""
        call.ended.acquire()  # type: ignore[union-attr]  # set by `send`
        return call.answer()

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
            self._turn_away(gone)

    def _lead(self, own: QueuedWrite | None) -> None:
        try:
            self._carry_out(own)
        finally:
            self._hand_on()

    def _lead_alone(self, verb: Verb[T], lone: Callable[..., T]) -> T:
        """`_lead` for a verb of one statement, which needs no transaction but its own; unless others
        have come by the time the file is ours."""
        # As few calls as can be: between two waits for the disk Python runs with cold caches.
        connections = self._connections
        try:
            try:
                lock = connections.acquire()
            except BaseException as error:
                self._turn_away(error)
                raise
            if self._queue:
                call = QueuedWrite(verb)
                self._carry_out_under(lock, call)
                joined: T = call.answer()
                return joined
            ring = Ring()
            try:
                conn = connections.checked_writer()
                self.groups += 1
                before = conn.total_changes
                try:
                    result = lone(conn, ring)
                except sqlite3.Error as error:
                    self._clean_up(conn, error)
                    # It may have failed in its commit as well as before.
                    raise translated(error, connections.path, in_commit=True) from error
                if connections.is_checkpoint_due(conn.total_changes - before):
                    self._ring_out(ring)
                    ring.ready = {}
                    connections.checkpoint()
            finally:
                connections.release(lock)  # type: ignore[possibly-undefined]  # without it we are not here
            if ring.ready or ring.due:
                self.ring(ring)
        finally:
            with self._guard:
                self._is_led = is_awaited = bool(self._queue)
            if is_awaited:
                self._hand_on()
        return result

    def _turn_away(self, error: BaseException) -> None:
        """The file's lock cannot be had: every queued call fails with the same error."""
        calls = self._take_queue(None)
        self._fail(calls, error)
        self._deliver(calls)

    def _hand_on(self) -> None:
        with self._guard:
            if not self._queue:
                self._is_led = False
                return
            first = self._queue[0]
            if first.gate is None:
                self._wake_thread()
                return
            self._queue.popleft()
            first.leads = True
        first.gate.release()

    def _take_queue(self, own: QueuedWrite | None) -> list[QueuedWrite]:
        calls = [] if own is None else [own]
        if not self._queue:
            return calls
        with self._guard:
            while self._queue and len(calls) < GROUP_LIMIT:
                calls.append(self._queue.popleft())
        return calls

    def _carry_out(self, own: QueuedWrite | None) -> None:
        try:
            lock = self._connections.acquire()
        except BaseException as error:
            self._turn_away(error)
            if own is not None:
                self._fail([own], error)
                self._deliver([own])
            if not isinstance(error, Exception):
                raise
            return
        self._carry_out_under(lock, own)

    def _carry_out_under(self, lock: FileLock, own: QueuedWrite | None) -> None:
        """One transaction for the call and those that have queued; gives the lock back."""
        calls = [] if own is None else [own]
        ring: Ring | None = None
        try:
            calls = self._take_queue(own)
            ring, changes = self._commit(calls)
            if self._connections.is_checkpoint_due(changes):
                self._deliver(calls)
                self._ring_out(ring)
                ring = None
                self._connections.checkpoint()
        except BaseException as error:
            self._fail(calls, error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._connections.release(lock)
            self._deliver(calls)
        self._ring_out(ring)

    def _commit(self, calls: list[QueuedWrite]) -> tuple[Ring | None, int]:
        """One transaction for all of them. Only with the file's lock held."""
        conn = self._connections.checked_writer()
        self.groups += 1
        in_commit = False
        for call in calls:
            call.begin()
        try:
            before = conn.total_changes
            lone = calls[0].verb.lone if len(calls) == 1 else None
            if lone is not None and getattr(lone, "commits_itself", False):
                ring, in_commit = Ring(), True
                calls[0].result = lone(conn, ring)
                return ring, conn.total_changes - before
            conn.execute("BEGIN IMMEDIATE")
            ring = self._carry(conn, calls)
            in_commit = True
            conn.execute("COMMIT")
        except BaseException as error:
            self._clean_up(conn, error)
            self._fail(calls, error, in_commit=in_commit)
            if not isinstance(error, Exception):
                raise
            return None, 0
        return ring, conn.total_changes - before

    def _clean_up(self, conn: sqlite3.Connection, error: BaseException) -> None:
        """After a write that failed. Only with the file's lock held."""
        if conn.in_transaction:
            conn.rollback()
        if spoils_connection(error):
            self._connections.discard_writer()
        elif is_full(error):
            self._connections.make_room()

    def _carry(self, conn: sqlite3.Connection, calls: list[QueuedWrite]) -> Ring:
        rings = Ring()
        if len(calls) == 1:  # no other call to protect
            calls[0].result = carry(conn, calls[0].verb, rings)
            return rings
        for call in calls:
            ring = Ring()
            conn.execute("SAVEPOINT verb")
            try:
                call.result = carry(conn, call.verb, ring)
            except Exception as error:
                if not conn.in_transaction or is_full(error):
                    raise  # SQLite has rolled all of it back, or will not take the others either
                conn.execute("ROLLBACK TO verb")
                self._fail([call], error)
            else:
                rings.add(ring)
            conn.execute("RELEASE verb")
        return rings

    def _fail(self, calls: list[QueuedWrite], error: BaseException, *, in_commit: bool = False) -> None:
        if not isinstance(error, Exception):
            # This thread is interrupted, the callers in others are not.
            error = StorageUnavailable(
                "the thread that wrote for this one was interrupted", maybe_applied=in_commit
            )
        for call in calls:
            if not call.is_done and call.error is None:
                call.error = translated(error, self._connections.path, in_commit=in_commit)

    # -- answers -----------------------------------------------------------------------------------

    def _deliver(self, calls: list[QueuedWrite]) -> None:
        loops: dict[asyncio.AbstractEventLoop, list[QueuedWrite]] = {}
        for call in calls:
            if call.is_done:
                continue
            call.is_done = True
            if call.loop is not None:
                loops.setdefault(call.loop, []).append(call)
            elif call.gate is not None:
                call.gate.release()
            elif call.ended is not None:
                call.begin()
                call.ended.release()
        for loop, done in loops.items():
            try:
                loop.call_soon_threadsafe(_settle, done)
            except RuntimeError:  # the loop has closed
                continue

    def _ring_out(self, ring: Ring | None) -> None:
        if ring is not None and ring:
            self.ring(ring)


def _settle(calls: list[QueuedWrite]) -> None:
    for call in calls:
        if call.future is None or call.future.done():
            continue
        if call.error is not None:
            call.future.set_exception(call.error)
        else:
            call.future.set_result(call.result)

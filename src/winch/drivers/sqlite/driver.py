"""The SQLite driver: runners, transactions, bells and the schema.

The verbs are in verbs/. Many callers share a commit: connections/writer.py.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from winch.core.errors import ConfigError, StorageError, WinchError
from winch.core.values.codec import to_json
from winch.drivers._shared import callers
from winch.drivers._shared.composed import ComposedDriver, Families
from winch.drivers._shared.migrate import Status
from winch.drivers.sqlite import facts, schema
from winch.drivers.sqlite.address import Address, parse_url
from winch.drivers.sqlite.connections.opening import WinchConnection, has_wal_reset_bug
from winch.drivers.sqlite.connections.pool import Connections
from winch.drivers.sqlite.connections.time_limit import TimeLimit
from winch.drivers.sqlite.connections.writer import Writer, carry, wal_bytes
from winch.drivers.sqlite.errors import is_full, spoils_connection, translated
from winch.drivers.sqlite.fast.sending import SentToThread
from winch.drivers.sqlite.statements import SQL, Ring
from winch.drivers.sqlite.verbs.base import RING_WITHIN_MICROS
from winch.drivers.sqlite.verbs.claim import ClaimVerbs
from winch.drivers.sqlite.verbs.enqueue import EnqueueVerbs
from winch.drivers.sqlite.verbs.finish import FinishVerbs
from winch.drivers.sqlite.verbs.gates import GateVerbs
from winch.drivers.sqlite.verbs.kv import KvVerbs
from winch.drivers.sqlite.verbs.moves import MoveVerbs
from winch.drivers.sqlite.verbs.operators import OperatorVerbs
from winch.drivers.sqlite.verbs.reads import ReadVerbs
from winch.drivers.sqlite.verbs.schedules import ScheduleVerbs
from winch.drivers.sqlite.verbs.sessions import SessionVerbs
from winch.drivers.sqlite.verbs.upkeep import UpkeepVerbs
from winch.drivers.sqlite.verbs.waits import WaitVerbs
from winch.drivers.sqlite.wakeups.bell import BellSlots, ClaimingSqliteBell, Look, SqliteBell, Version
from winch.storage.capabilities import Capabilities
from winch.storage.fast import is_fast
from winch.storage.forks import ProcessLock, forget_in_children
from winch.storage.verbs import Sending, Unhurried, Verb

T = TypeVar("T")
READ_THREADS = 2


class SqliteDriver(ComposedDriver):
    """`sqlite:///file.db`: one file, any number of processes on one host."""

    name = "sqlite"
    continues_limits: bool = True
    capabilities: Capabilities = Capabilities()
    # Of the lease, how much `ctx.transaction()` may take: no heartbeat arrives meanwhile.
    transaction_share: float = 1 / 3

    def __init__(
        self, path: str | Path, *, sync: str = "full", shared: bool = False, events: bool = False
    ) -> None:
        self._address = Address(Path.cwd() / path, sync, shared)
        self._is_fast = is_fast()
        self._keeps_events = events
        enqueue = EnqueueVerbs()
        self._adopt(
            Families(
                enqueue=enqueue,
                claim=ClaimVerbs(),
                finish=FinishVerbs(),
                sessions=SessionVerbs(),
                upkeep=UpkeepVerbs(),
                gates=GateVerbs(),
                waits=WaitVerbs(enqueue),
                schedules=ScheduleVerbs(enqueue),
                operators=OperatorVerbs(),
                reads=ReadVerbs(),
                kv=KvVerbs(),
                moves=MoveVerbs(enqueue),
            )
        )
        self._connections = Connections(self._address)
        self._writer = Writer(self._connections, self._ring)
        self._slots: BellSlots | None = None
        self._guard = ProcessLock()
        self._threads: ThreadPoolExecutor | None = None
        self._turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            weakref.WeakKeyDictionary()
        )
        self._has_bug = has_wal_reset_bug(sqlite3.sqlite_version_info)
        # Also for a driver that is never closed: its connections must be closed under the lock.
        self._finalizer = weakref.finalize(self, self._connections.forget)
        forget_in_children(self)

    def after_fork_in_child(self) -> None:
        self._threads = None

    @classmethod
    def from_url(cls, url: str, *, events: bool = False) -> SqliteDriver:
        """The driver for a sqlite URL; opens nothing yet."""
        address = parse_url(url)
        return cls(address.path, sync=address.sync, shared=address.is_shared, events=events)

    @property
    def path(self) -> Path:
        """The database file."""
        return self._connections.path

    @property
    def fixed_in(self) -> str | None:
        """The release of SQLite that can share a file with other programs; None: this one can."""
        return facts.FIXED_IN if self._has_bug else None

    # -- runners -----------------------------------------------------------------------------------

    def run(self, verb: Verb[T]) -> T:
        file = self._connections.file
        if file is None or not file.is_ready:
            self._ensure_ready()
        return self._read(verb) if verb.is_read else self._writer.run(verb)

    def sending(self, verb: Verb[T]) -> Sending[T]:
        if not self._is_fast:
            return Unhurried(self.run, verb)
        return SentToThread(self.run, self._writer, self._connections, verb)

    async def arun(self, verb: Verb[T]) -> T:
        loop = asyncio.get_running_loop()
        file = self._connections.file
        if file is None or not file.is_ready:
            await loop.run_in_executor(self._pool(), self._ensure_ready)
        if verb.is_read:
            return await loop.run_in_executor(self._pool(), self._read, verb)
        return await self._writer.arun(verb)

    def run_on(self, conn: object, verb: Verb[T]) -> T:
        conn = self._raw(conn)
        if isinstance(conn, WinchConnection) and conn.path == self._connections.path:
            ring = conn.ring
        else:
            ring = Ring()  # we do not see this commit: waiting workers find the job by their poll
            self._check_foreign(conn)
        try:
            if not conn.in_transaction and conn.isolation_level is not None:
                # In this mode sqlite3 begins before the first write by itself, but not before ours.
                conn.execute("BEGIN IMMEDIATE")
            if not conn.in_transaction:
                raise ConfigError("conn= needs a connection inside a transaction; begin one first")
            return carry(conn, verb, ring)
        except sqlite3.Error as error:
            raise translated(error, self._connections.path) from error

    async def arun_on(self, conn: object, verb: Verb[T]) -> T:
        # The transaction is open already, so nothing here waits for a lock.
        return self.run_on(conn, verb)

    @contextmanager
    def transaction(self, conn: object = None, *, limit: float | None = None) -> Iterator[Any]:
        """A connection inside a write transaction: commits at the end, rolls back on an exception.

        Hand it to `run_on` (`conn=`) to enqueue together with one's own writes into this file. All
        other writers of the file wait meanwhile, so keep it short. With a connection or session of the
        caller's it is that one's transaction.

        After `limit` seconds it is rolled back, and the end of the block raises StorageError. (Not on a
        connection of the caller.)
        """
        if conn is None:
            with self._own_transaction(limit) as own:
                yield own
            return
        with callers.joined(conn, lambda _: None) as same:
            under = self._raw(same)
            self._check_foreign(under)
            try:
                if not under.in_transaction:  # what the application writes must not commit by itself
                    under.execute("BEGIN IMMEDIATE")
            except sqlite3.Error as error:
                raise translated(error, self._connections.path) from error
            yield same

    @asynccontextmanager
    async def atransaction(
        self, conn: object = None, *, limit: float | None = None
    ) -> AsyncIterator[Any]:
        """`transaction` in a coroutine. Those of one event loop take turns: the file is held by the
        loop's thread, and one that blocked the loop to wait for another would wait in vain."""
        loop = asyncio.get_running_loop()
        turn = self._turns.get(loop)
        if turn is None:
            turn = self._turns[loop] = asyncio.Lock()
        async with turn:
            with self.transaction(conn, limit=limit) as same:
                yield same

    @contextmanager
    def _own_transaction(self, seconds: float | None) -> Iterator[WinchConnection]:
        self._ensure_ready()
        file = self._connections.acquire()
        limit: TimeLimit | None = None

        def free() -> None:
            self._connections.forget_carrier()
            file.release()

        try:
            if file.is_replaced():
                raise self._connections.drop_replaced()
            conn = self._connections.carrier()
            conn.ring, conn.path = Ring(), self._connections.path
            is_callers = False
            try:
                before = conn.total_changes
                conn.execute("BEGIN IMMEDIATE")
                layout = _layout(conn)
                if seconds is not None:
                    limit = TimeLimit(conn, seconds, free)
                is_callers = True  # an error of the application's own statement is its to see as it is
                yield conn
                is_callers = False
                if limit is not None and not limit.is_kept():
                    raise _took_too_long(seconds)
                if not conn.in_transaction:
                    raise StorageError(
                        "the transaction was ended inside the block of app.transaction(), "
                        "which ends it itself; its changes may be incomplete"
                    )
                if _layout(conn) != layout:
                    with self._connections.reader() as committed:
                        known = facts.table_names(committed)
                    facts.note_tables(conn, known)
                conn.execute("COMMIT")
                self._writer.checkpoint_if_due(conn.total_changes - before)
            except BaseException as error:
                if limit is not None and not limit.is_kept():
                    conn.close()
                    if not isinstance(error, sqlite3.Error | WinchError):
                        raise
                    raise _took_too_long(seconds) from error
                if conn.in_transaction:
                    conn.rollback()
                if spoils_connection(error):
                    self._connections.discard_carrier()
                elif is_full(error):
                    self._writer.checkpoint()
                if isinstance(error, sqlite3.Error) and not is_callers:
                    raise translated(error, self._connections.path) from error
                raise
        finally:
            if limit is None or limit.is_kept():
                file.release()
        if conn.ring.ready or conn.ring.due:
            self._ring(conn.ring)

    def _read(self, verb: Verb[T]) -> T:
        try:
            with self._connections.reader() as conn:
                conn.execute("BEGIN")
                result = carry(conn, verb, Ring())
                conn.execute("COMMIT")
                return result
        except sqlite3.Error as error:
            raise translated(error, self._connections.path) from error

    def _raw(self, conn: object) -> sqlite3.Connection:
        """The sqlite3 connection that a caller's connection or session stands for."""
        under = conn if callers.is_async(conn) else callers.raw(conn)
        if isinstance(under, sqlite3.Connection):
            return under
        over = "" if under is conn else f" over {callers.describe(under)}"
        raise ConfigError(
            f"conn= takes the connection that app.transaction() gives for {self.describe()}, or a "
            "sqlite3.Connection, SQLAlchemy Session or Connection or Django connection on that file; "
            f"got {callers.describe(conn)}{over}"
        )

    def _check_foreign(self, conn: sqlite3.Connection) -> None:
        if self._has_bug and not isinstance(conn, WinchConnection):
            raise ConfigError(
                f"SQLite {sqlite3.sqlite_version} can lose committed rows when a connection that Winch "
                "does not know checkpoints (its WAL-reset bug), so conn= takes only the connection that "
                "app.transaction() gives (ctx.transaction() in a handler); any will do from SQLite "
                "3.51.3 on"
            )
        self._ensure_ready()
        cursor = conn.cursor()
        cursor.row_factory = None
        files = [row[2] for row in cursor.execute("PRAGMA database_list") if row[1] == "main"]
        if not files or os.path.realpath(files[0]) != os.path.realpath(self._connections.path):
            raise ConfigError(
                f"conn= is open on {files[0] if files and files[0] else 'a database in memory'}, "
                f"but the jobs are in {self._connections.path}"
            )

    def _pool(self) -> ThreadPoolExecutor:
        with self._guard:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(READ_THREADS, "winch-sqlite-read")
            return self._threads

    # -- waking ------------------------------------------------------------------------------------

    def bell(self, queues: Sequence[str], *, due: bool = False) -> SqliteBell:
        return SqliteBell(
            self._open_slots, self._look(queues, due=due), self._prepare_bells, queues, due=due
        )

    def claiming_bell(self, queues: Sequence[str]) -> ClaimingSqliteBell:
        """A bell that claims when it rings, in the thread that hears it."""
        look = self._look(queues, due=False)
        return ClaimingSqliteBell(self._open_slots, look, self._prepare_bells, queues, self.run)

    def _look(self, queues: Sequence[str], *, due: bool) -> Look:
        wanted = to_json(list(queues))

        def look(seen: Version | None) -> tuple[Version | None, bool]:
            # Two small reads in memory, made in the event loop: they wait for no lock.
            try:
                with self._connections.watcher() as conn:
                    if conn is None:
                        return seen, False
                    version = (conn, conn.execute("PRAGMA data_version").fetchone()[0])
                    if seen is None or version == seen:
                        return version, False
                    soon = time.time_ns() // 1000 + RING_WITHIN_MICROS
                    values = {"queues": wanted, "due": int(due), "soon": soon}
                    found = conn.execute(SQL["wait"].text, values).fetchone()
                    return version, bool(found[0])
            except (sqlite3.Error, StorageError):
                return seen, False

        return look

    def _prepare_bells(self) -> None:
        self._ensure_ready()
        with self._connections.watcher():  # open it here: the event loop looks at it
            pass
        self._open_slots().prepare()

    def _open_slots(self) -> BellSlots:
        with self._guard:
            if self._slots is None:
                self._slots = BellSlots(self._connections.path)
                self._writer.ring = self._slots.ring
            return self._slots

    def _ring(self, ring: Ring) -> None:
        (self._slots or self._open_slots()).ring(ring)

    # -- upkeep ------------------------------------------------------------------------------------

    def _ensure_ready(self) -> None:
        """The schema is there and up to date: looked at once for each opening of the file."""
        self._connections.refuse_forked()
        if not self._connections.open_file().is_ready:
            self.migrate()

    def check_schema(self) -> Status:
        if not self._address.path.exists():
            return Status(None, schema.MIGRATIONS[-1].number, is_ready=False)
        self._connections.open_file()
        try:
            with self._connections.reader() as conn:
                return schema.read_status(conn, events=self._keeps_events)
        except sqlite3.Error as error:
            raise translated(error, self._connections.path) from error

    def migrate(self) -> list[str]:
        file = self._connections.open_file()
        try:
            taken = []
            is_new = not self._connections.path.stat().st_size
            if not is_new and not self._address.is_shared:
                with self._connections.reader() as conn:
                    facts.refuse(conn, self._connections.path, has_bug=self._has_bug)
            # Mostly there is nothing to do, and then no writer is waited for.
            if is_new or not self.check_schema().is_ready:
                taken = schema.upgrade(self._connections, events=self._keeps_events)
        except sqlite3.Error as error:
            raise translated(error, self._connections.path) from error
        file.is_ready = True
        return taken

    def migration_sql(self) -> str:
        if not self._address.path.exists():
            return schema.pending_sql(None, events=self._keeps_events)
        self._connections.open_file()
        with self._connections.reader() as conn:
            return schema.pending_sql(conn, events=self._keeps_events)

    def describe(self) -> str:
        return self._address.url

    def sharing_risk(self) -> str | None:
        """What may go wrong because other programs use the file; None where nothing can."""
        if not self._address.path.exists():
            return None
        self._connections.open_file()
        try:
            with self._connections.reader() as conn:
                return facts.refusal(conn, self._connections.path, has_bug=self._has_bug)
        except sqlite3.Error as error:
            raise translated(error, self._connections.path) from error

    def facts(self) -> dict[str, str]:
        """What `doctor` prints about this store."""
        self._ensure_ready()
        version = sqlite3.sqlite_version
        return {
            "sqlite version": version,
            "wal-reset bug": (
                "yes; Winch keeps writes and checkpoints apart by a lock, so no other program may write "
                "to the file"
                if self._has_bug
                else "no"
            ),
            "sync": self._address.sync,
            "file": os.fspath(self._connections.path),
            "file bytes": str(self._connections.path.stat().st_size),
            "wal bytes": str(wal_bytes(self._connections.path)),
        }

    def close(self) -> None:
        self._writer.close()
        with self._guard:
            threads, self._threads = self._threads, None
            slots, self._slots = self._slots, None
            self._writer.ring = self._ring
        if threads is not None:
            threads.shutdown(wait=True)
        if slots is not None:
            slots.close()
        self._connections.close()

    async def aclose(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.close)


def _layout(conn: sqlite3.Connection) -> int:
    """A number that changes with every change of the tables."""
    version: int = conn.execute("PRAGMA schema_version").fetchone()[0]
    return version


def _took_too_long(seconds: float | None) -> StorageError:
    return StorageError(
        f"the transaction was rolled back: it held the database for more than {seconds:g} seconds, and "
        "no job can be stored or taken meanwhile; do what takes long before it, and only write in it"
    )

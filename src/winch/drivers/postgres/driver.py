"""The PostgreSQL driver, put together from families of verbs, fast paths, connections and wake-ups. What
each verb sends is in sql/, one file per verb."""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, TypeVar

import psycopg

from winch.drivers._shared.composed import ComposedDriver, Families
from winch.drivers._shared.migrate import Status
from winch.drivers.postgres import schema
from winch.drivers.postgres.address import Address, connection_params, parse_url
from winch.drivers.postgres.connections import callers
from winch.drivers.postgres.connections.pool import AsyncPool, SyncPool
from winch.drivers.postgres.connections.transactions import AsyncTransactionPool, TransactionPool
from winch.drivers.postgres.errors import translated
from winch.drivers.postgres.facts import ServerFacts, read_facts
from winch.drivers.postgres.fast.handover import ClaimingPostgresBell, HandoverEnqueue
from winch.drivers.postgres.fast.low_water import LowWater
from winch.drivers.postgres.fast.sending import SentInHalves
from winch.drivers.postgres.statements import Body, of_schema
from winch.drivers.postgres.verbs.base import Base, ClaimStarts, witness
from winch.drivers.postgres.verbs.claim import ClaimVerbs
from winch.drivers.postgres.verbs.enqueue import EnqueueVerbs
from winch.drivers.postgres.verbs.finish import FinishVerbs
from winch.drivers.postgres.verbs.gated_claims import GatedClaims
from winch.drivers.postgres.verbs.gates import GateVerbs
from winch.drivers.postgres.verbs.kv import KvVerbs
from winch.drivers.postgres.verbs.moves import MoveVerbs
from winch.drivers.postgres.verbs.operators import OperatorVerbs
from winch.drivers.postgres.verbs.reads import ReadVerbs
from winch.drivers.postgres.verbs.schedules import ScheduleVerbs
from winch.drivers.postgres.verbs.sessions import SessionVerbs
from winch.drivers.postgres.verbs.upkeep import UpkeepVerbs
from winch.drivers.postgres.verbs.waits import WaitVerbs
from winch.drivers.postgres.wakeups.listen import ENOUGH, WAITING, Listener, PostgresBell
from winch.storage.capabilities import Capabilities
from winch.storage.fast import is_fast
from winch.storage.forks import ProcessLock
from winch.storage.verbs import Sending, Unhurried, Verb

T = TypeVar("T")
log: logging.Logger = logging.getLogger("winch.postgres")


class PostgresDriver(ComposedDriver):
    """`postgresql://host/database?schema=winch`: the application's own database, or one beside it."""

    name = "postgres"
    continues_small_limits: bool = True
    capabilities: Capabilities = Capabilities(migrates_itself=False)

    def __init__(self, address: Address, *, events: bool = False) -> None:
        self._is_fast = is_fast()
        self._address = address
        self._keeps_events = events
        base = self._base = Base(
            of_schema(address.quoted),
            keeps_events=events,
            claim_starts=LowWater() if self._is_fast else ClaimStarts(),
        )
        self._gated_claims = GatedClaims(base)
        enqueue = EnqueueVerbs(base)
        reads = self._reads = ReadVerbs(base)
        families = Families(
            enqueue=enqueue,
            claim=ClaimVerbs(base, self._gated_claims),
            finish=FinishVerbs(base),
            sessions=SessionVerbs(base),
            upkeep=UpkeepVerbs(base),
            gates=GateVerbs(base),
            waits=WaitVerbs(base, enqueue),
            schedules=ScheduleVerbs(base, enqueue),
            operators=OperatorVerbs(base),
            reads=reads,
            kv=KvVerbs(base),
            moves=MoveVerbs(base, enqueue),
        )
        if events:
            for field in fields(families):
                witness(getattr(families, field.name), base.sql["events.hint"])
        if self._is_fast:
            families = replace(families, enqueue=HandoverEnqueue(base, enqueue))
        self._adopt(families)
        self._pool = SyncPool(address)
        self._transactions = TransactionPool(address)
        self._guard = ProcessLock()
        self._sides: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _AsyncSide] = (
            weakref.WeakKeyDictionary()
        )

    @classmethod
    def from_url(cls, url: str, *, schema: str | None = None, events: bool = False) -> PostgresDriver:
        """The driver for a postgresql:// or postgres:// URL; opens nothing yet.

        Options in the URL's query: `schema` (a schema given here goes before it), `timeout` (how long a
        verb may take, 10s), `pool` (connections of the sync side, 8), `prepare=off` (never keep prepared
        statements). All others are libpq's.
        """
        address = parse_url(url, schema=schema)
        if address.is_remote and address.params.get("sslmode", "prefer") in (
            "disable",
            "allow",
            "prefer",
        ):
            log.warning(
                "%s may be used without encryption; add sslmode=verify-full to the URL",
                address.describe(),
            )
        return cls(address, events=events)

    # -- runners -----------------------------------------------------------------------------------

    def run(self, verb: Verb[T]) -> T:
        return self._pool.run(verb)

    def sending(self, verb: Verb[T]) -> Sending[T]:
        return SentInHalves(self._pool, verb) if self._is_fast else Unhurried(self._pool.run, verb)

    async def arun(self, verb: Verb[T]) -> T:
        return await self._side().pool.run(verb)

    def run_on(self, conn: object, verb: Verb[T]) -> T:
        return callers.run_on(conn, verb, self._address)

    async def arun_on(self, conn: object, verb: Verb[T]) -> T:
        return await callers.arun_on(conn, verb, self._address)

    @contextmanager
    def transaction(self, conn: object = None) -> Iterator[Any]:
        """A connection in a transaction that commits at the end and rolls back on an exception: one of
        our own, or the caller's connection or session."""
        with (
            self._transactions.begin()
            if conn is None
            else callers.joined(conn, self._address) as connection
        ):
            yield connection

    @asynccontextmanager
    async def atransaction(self, conn: object = None) -> AsyncIterator[Any]:
        """`transaction` on an async connection."""
        if conn is None:
            async with self._side().transactions.begin() as connection:
                yield connection
        else:
            async with callers.ajoined(conn, self._address) as joined:
                yield joined

    def _side(self) -> _AsyncSide:
        loop = asyncio.get_running_loop()
        side = self._sides.get(loop)
        if side is None:
            with self._guard:
                for other in [other for other in self._sides if other.is_closed()]:
                    self._sides.pop(other).abandon()
                side = self._sides[loop] = _AsyncSide(self)
        return side

    def oldest_snapshot(self) -> Verb[timedelta]:
        """As `SnapshotStore` has it."""
        return self._reads.oldest_snapshot()

    # -- waking ------------------------------------------------------------------------------------

    def bell(self, queues: Sequence[str], *, due: bool = False) -> PostgresBell:
        side = self._side()
        listeners = [side.due_listener] if due else []
        if queues or not due:
            listeners.append(side.listener)
        return PostgresBell(listeners, queues, due=due)

    def claiming_bell(self, queues: Sequence[str]) -> PostgresBell:
        """The bell of a worker, which leaves an offer while it waits."""
        if not self._is_fast:
            return self.bell(queues)
        side = self._side()
        return ClaimingPostgresBell([side.listener], queues, self.arun, self._base)

    async def _announce(self, names: Sequence[str]) -> None:
        def body() -> Body[None]:
            yield self._base.statement(
                "wait",
                is_alone=True,
                queues=list(names),
                for_seconds=WAITING,
                enough_seconds=ENOUGH,
            )

        await self.arun(Verb("wait", body))

    # -- upkeep ------------------------------------------------------------------------------------

    def check_schema(self) -> Status:
        try:
            with schema.own_connection(self._address) as connection:
                return schema.read_status(connection, self._address, events=self._keeps_events)
        except psycopg.Error as error:
            raise translated(error, self._address, maybe_applied=False) from error

    def migrate(self) -> list[str]:
        try:
            with schema.own_connection(self._address) as connection:
                return schema.upgrade(connection, self._address, events=self._keeps_events)
        except psycopg.Error as error:
            raise translated(error, self._address, maybe_applied=True) from error

    def migration_sql(self) -> str:
        try:
            with schema.own_connection(self._address) as connection:
                return schema.pending_sql(connection, self._address, events=self._keeps_events)
        except psycopg.Error as error:
            raise translated(error, self._address, maybe_applied=False) from error

    def roles_sql(self) -> str:
        """The statements that make least-privilege roles, with what `migrate` would run."""
        return schema.roles_sql(self._address, self.migration_sql())

    def facts(self) -> ServerFacts:
        """What there is to know about the server, for `winch doctor`."""
        states = sorted(
            {
                listener.state
                for side in self._sides.values()
                for listener in (side.listener, side.due_listener)
                if listener.is_used
            }
        )
        try:
            with schema.own_connection(self._address) as connection:
                return read_facts(connection, listener=", ".join(states) or "not started")
        except psycopg.Error as error:
            raise translated(error, self._address, maybe_applied=False) from error

    def describe(self) -> str:
        return self._address.describe()

    def close(self) -> None:
        """Give back the sync side's connections, and those of event loops that have closed."""
        self._pool.close()
        self._transactions.close()
        with self._guard:
            for loop in [loop for loop in self._sides if loop.is_closed()]:
                self._sides.pop(loop).abandon()

    async def aclose(self) -> None:
        side = self._sides.pop(asyncio.get_running_loop(), None)
        if side is not None:
            await side.close()
        self.close()


class _AsyncSide:
    """What a driver holds in one event loop."""

    def __init__(self, driver: PostgresDriver) -> None:
        address = driver._address
        self.pool = AsyncPool(address)
        self.transactions = AsyncTransactionPool(address)
        # Through a pooler LISTEN needs a way around it.
        direct = os.environ.get("WINCH_LISTEN_URL")
        params = connection_params(direct, address.timeout) if direct else address.params
        self.listener = Listener(address, address.channel, params, driver._announce)
        # A connection of its own: a supervisor waits for due jobs and need not hear of every job.
        self.due_listener = Listener(address, address.due_channel, params, driver._announce)

    async def close(self) -> None:
        await self.listener.close()
        await self.due_listener.close()
        self.abandon()

    def abandon(self) -> None:
        """Close from outside, when the event loop is gone."""
        self.transactions.close()
        self.pool.close()

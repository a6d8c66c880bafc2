"""The async side: connections of our own for one event loop. Heartbeats have one to themselves, so that
they never queue behind a large payload."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any, Generic, TypeVar

import psycopg
from psycopg.rows import tuple_row

from winch.core.errors import StorageUnavailable
from winch.drivers.postgres.address import Address
from winch.drivers.postgres.binary import adapt, bare_moments
from winch.drivers.postgres.connections import libpq
from winch.drivers.postgres.connections.libpq import AsyncOwn
from winch.drivers.postgres.connections.pool import WHO_ANSWERS, is_pooled
from winch.drivers.postgres.errors import (
    START_OVER,
    TRIES,
    is_connection_lost,
    no_answer,
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
from winch.storage.verbs import Verb

T = TypeVar("T")
AsyncConnection = psycopg.AsyncConnection[Row]

# Which connections a verb may take, and how many there are: claim and finish go at once, and wait for
# nothing else that a worker has to say.
LANES = {"claim": "work", "finish": "work", "offer": "work"} | dict.fromkeys(
    ("beat", "start_session", "end_session"), "beat"
)
SIZES = {"work": 2, "beat": 1, "rest": 2}
# On connections of the working lane all statements are kept prepared, with their plans: reading and
# planning a claim of 500 jobs anew took a tenth of it. A plan made for an empty table would look through
# a full one (steps.PREPARED), so the planner is left with the indexes. Compiling is for long queries.
KEEP_PLANS = (
    "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_bitmapscan = off;"
    " SET jit = off"
)


class AsyncPool:
    """Carries verbs out without blocking its event loop."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._lanes = {
            name: _Lane(address, size, keeps_plans=name == "work") for name, size in SIZES.items()
        }

    async def run(self, verb: Verb[T], loaded: PreparedVerb[T] | None = None) -> T:
        lane = self._lanes[LANES.get(verb.name, "rest")]
        for tries in range(1, TRIES + 1):
            is_sent = loaded is not None and loaded.is_sent and tries == 1
            progress = loaded.progress if loaded is not None and is_sent else Progress(verb)
            try:
                if loaded is not None and is_sent:
                    return await loaded.see_through()
                return await lane.run(verb, progress)
            except psycopg.Error as error:
                if error.sqlstate in START_OVER and tries < TRIES:
                    await asyncio.sleep(start_over_delay(tries))
                    continue
                raise translated(error, self._address, maybe_applied=progress.maybe_applied) from error
            except OSError as error:  # of the event loop, or of the system
                raise translated(error, self._address, maybe_applied=progress.maybe_applied) from error
        raise AssertionError("unreachable")

    def load(
        self, verb: Verb[T], on_result: Callable[[T], None] | None = None
    ) -> PreparedVerb[T] | None:
        """The verb written ahead, to be sent in the moment it is wanted; None where it cannot be.
        `on_result` is called with what its first answer gives, where that is all, before the verb has
        returned."""
        return self._lanes[LANES.get(verb.name, "rest")].load(verb, on_result)

    async def close(self) -> None:
        for lane in self._lanes.values():
            await lane.close()

    def abandon(self) -> None:
        """Close from outside, when the event loop is gone."""
        for lane in self._lanes.values():
            lane.abandon()


class _Lane:
    """Up to `size` connections that wait for nobody else's."""

    def __init__(self, address: Address, size: int, *, keeps_plans: bool = False) -> None:
        self._address = address
        self._keeps_plans = keeps_plans and address.prepares
        self._free = asyncio.Semaphore(size)
        self._idle: list[AsyncOwn] = []
        self._is_closed = False
        self._loop = asyncio.get_running_loop()

    async def run(self, verb: Verb[T], progress: Progress) -> T:
        if self._free.locked():
            await self._until_free()
        else:
            await self._free.acquire()
        try:
            connection = await self._healthy() or await self._connect()
        except BaseException:
            self._free.release()
            raise
        return await self.see_through(connection, self._carry(connection, verb, progress), progress)

    async def see_through(
        self, connection: AsyncOwn, carrying: Coroutine[Any, Any, T], progress: Progress
    ) -> T:
        """Wait for what is carried out on a connection that was taken for it, and have it back."""
        try:
            # Not asyncio.timeout: a cancelled psycopg call first asks the server to cancel, over a new
            # connection, and a server that does not answer would not answer that either.
            deadline = self._loop.time() + self._address.timeout
            cut = self._loop.call_at(deadline, connection.cut)
            try:
                result = await carrying
            except BaseException as error:
                await self._recover(connection, error)
                if is_connection_lost(error) and self._loop.time() >= deadline:
                    raise no_answer(self._address, progress) from error
                raise
            finally:
                cut.cancel()
            self._put_back(connection)
            return result
        finally:
            self._free.release()

    def load(self, verb: Verb[T], on_result: Callable[[T], None] | None) -> PreparedVerb[T] | None:
        if not self._keeps_plans:
            return None
        progress = Progress(verb)
        steps = script(verb, progress)
        action = next(steps, None)
        if isinstance(action, Statement) and action.is_fixed and action.sql.name in libpq.WORKING:
            with suppress(psycopg.Error):  # what cannot be written is told when the verb is run
                return PreparedVerb(self, progress, steps, action, on_result)
        steps.close()
        return None

    def take(self, statement: str) -> AsyncOwn | None:
        """A connection that has this statement prepared, if one is free right now."""
        if self._free.locked() or not self._idle:
            return None
        connection = self._idle[-1]
        if connection.closed or connection.is_readable or statement not in connection.kept:
            return None
        with suppress(StopIteration):  # it has room, so it does not wait
            self._free.acquire().send(None)
        return self._idle.pop()

    def drop(self, connection: AsyncOwn) -> None:
        """Do away with a connection that was taken, whatever is under way on it."""
        connection.pgconn.finish()
        self._free.release()

    async def _until_free(self) -> None:
        try:
            async with asyncio.timeout(self._address.timeout):
                await self._free.acquire()
        except TimeoutError:
            raise StorageUnavailable(
                f"{self._address.describe()}: all connections were busy for {self._address.timeout:g} s"
            ) from None

    async def _carry(self, connection: AsyncOwn, verb: Verb[T], progress: Progress) -> T:
        keeps_statements = self._address.prepares and connection.prepare_threshold is not None
        if isinstance(verb.lone, libpq.StoreOne) and keeps_statements:
            progress.maybe_applied = True
            stored: T = await verb.lone.acall(connection)  # type: ignore[assignment]  # it is an enqueue
            return stored
        sending = script(verb, progress)
        try:
            action = next(sending)
        except StopIteration as stop:
            result: T = stop.value
            return result
        return await self.carry_on(connection, sending, await self.send(connection, action))

    async def carry_on(self, connection: AsyncOwn, sending: Generator[Action, Rows, T], rows: Rows) -> T:
        """Carry out what follows the first answer."""
        try:
            while True:
                rows = await self.send(connection, sending.send(rows))
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def send(self, connection: AsyncOwn, action: Action) -> Rows:
        if not isinstance(action, Statement):
            await connection.execute(BEGIN if action == "begin" else COMMIT, prepare=False)
            return []
        name = action.sql.name
        prepare = self._keeps_plans or (self._address.prepares and name in PREPARED)
        is_short = name in (libpq.WORKING if self._keeps_plans else libpq.STATEMENTS)
        if prepare and is_short and connection.prepare_threshold is not None:
            return await libpq.asend(connection, action)
        text, values = action.sql.text, action.values
        cursor = connection.cursor(binary=True)
        if name in BARE_MOMENTS:
            bare_moments(cursor)
        await cursor.execute(text, values, prepare=prepare)
        return await cursor.fetchall() if cursor.description is not None else []

    async def _recover(self, connection: AsyncOwn, error: BaseException) -> None:
        """Keep a connection that only heard an error; throw any other away, also a cancelled one."""
        if isinstance(error, Exception) and not is_connection_lost(error) and not connection.closed:
            try:
                await connection.rollback()
            except psycopg.Error:
                await connection.close()
            else:
                self._put_back(connection)
                return
        await connection.close()

    def _put_back(self, connection: AsyncOwn) -> None:
        """Keep it for the next verb, unless the lane was closed while this one was under way."""
        if self._is_closed:
            connection.pgconn.finish()
        else:
            self._idle.append(connection)

    async def _healthy(self) -> AsyncOwn | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed and not connection.is_readable:
                return connection
            await connection.close()
        return None

    async def _connect(self) -> AsyncOwn:
        params = {**self._address.params, "autocommit": True, "prepare_threshold": 0}
        made = await AsyncOwn.connect(**params, row_factory=tuple_row)
        adapt(made)
        try:
            answer = await made.execute(WHO_ANSWERS, prepare=False)
            if is_pooled(made, await answer.fetchone()):
                made.prepare_threshold = None
            elif self._keeps_plans:
                await made.execute(KEEP_PLANS, prepare=False)
        except BaseException:  # cancelled, mostly: nobody else knows of this connection yet
            await made.close()
            raise
        return made

    async def close(self) -> None:
        self._is_closed = True
        while self._idle:
            await self._idle.pop().close()

    def abandon(self) -> None:
        self._is_closed = True
        while self._idle:
            self._idle.pop().pgconn.finish()


class PreparedVerb(Generic[T]):
    """A verb written ahead. What happens while it waits to be sent changes nothing about its first
    statement (`Statement.is_fixed`)."""

    def __init__(
        self,
        lane: _Lane,
        progress: Progress,
        steps: Generator[Action, Rows, T],
        first: Statement,
        on_result: Callable[[T], None] | None = None,
    ) -> None:
        self._lane = lane
        self._on_result = on_result
        self.progress = progress
        self._steps = steps
        self._written = libpq.Written(first)
        self._connection: AsyncOwn | None = None
        self._answer: libpq.PendingResult | None = None
        self._error: BaseException | None = None
        # What its first answer has led to: the verb's result, or what is to be sent next.
        self._results: list[T] = []
        self._next: Action | None = None

    @property
    def is_sent(self) -> bool:
        return self._connection is not None

    def send(self) -> None:
        """Send it now, where a connection is free; else it stays as it is, and is run as any verb."""
        connection = self._lane.take(self._written.sql.name)
        if connection is None:
            return
        self._connection = connection
        try:
            self._answer = libpq.abegin(connection, self._written)
        except psycopg.Error as error:
            self._error = error
        else:
            self._answer.then = self._go_on

    def _go_on(self) -> None:
        """Read the answer as soon as it is whole, and hand on what it gives."""
        assert self._answer is not None  # noqa: S101  # whose moment this is
        try:
            rows = libpq.rows_in(self._answer, self._written.sql.name)
            self._next = self._steps.send(rows)
        except StopIteration as stop:
            self._results.append(stop.value)
        except BaseException as error:  # raised where the verb is waited for
            self._error = error
        if self._results and self._on_result is not None:
            self._on_result(self._results[0])

    async def see_through(self) -> T:
        assert self._connection is not None  # noqa: S101  # is_sent was asked
        return await self._lane.see_through(
            self._connection, self._rest(self._connection), self.progress
        )

    async def _rest(self, connection: AsyncOwn) -> T:
        if self._answer is not None:
            await self._answer.whole()
        if self._error is not None:
            raise self._error
        if self._next is None:
            return self._results[0]
        rows = await self._lane.send(connection, self._next)
        return await self._lane.carry_on(connection, self._steps, rows)

    def drop(self) -> None:
        """Nobody waits for it any more."""
        self._steps.close()
        if self._answer is not None:
            self._answer.stop()
        if self._connection is not None:
            self._lane.drop(self._connection)

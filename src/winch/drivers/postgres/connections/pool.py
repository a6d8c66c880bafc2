"""Verbs on connections of our own: `SyncPool` for threads, `AsyncPool` for one event loop.

Both do the same. A connection is opened when it is needed and checked before it is used. It is closed
when it breaks, and when the server does not answer in time. They differ in how they wait.
"""

from __future__ import annotations

import asyncio
import os
import select
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from winch.core.errors import StorageUnavailable
from winch.drivers.postgres.address import Address
from winch.drivers.postgres.connections import libpq
from winch.drivers.postgres.connections.libpq import Action, OwnConnection, Progress, script
from winch.drivers.postgres.errors import (
    START_OVER,
    TRIES,
    is_connection_lost,
    no_answer,
    start_over_delay,
    translated,
)
from winch.drivers.postgres.statements import PREPARED, STATEMENTS, Row, Rows
from winch.storage.verbs import Verb

T = TypeVar("T")
Connection = psycopg.Connection[Row]
AsyncConnection = psycopg.AsyncConnection[Row]
FirstRows = Callable[[OwnConnection, float], Rows]
"""Waits for the answer to what was sent on a connection, up to a deadline."""

WHO_ANSWERS = "SELECT pg_backend_pid()"
# Statements are prepared by libpq.py alone.
_CONNECT: dict[str, Any] = {"autocommit": True, "prepare_threshold": None, "row_factory": tuple_row}


# -- threads -------------------------------------------------------------------------------------------


class SyncPool:
    """Carries verbs out and waits for the answers. Safe from any thread, and after a fork."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._forget()

    def _forget(self) -> None:
        self._idle: list[OwnConnection] = []
        # A semaphore whose two ends are one call of C each.
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(self._address.pool):
            self._free.put(None)
        self._pid = os.getpid()  # last: other threads of the child look at it

    def run(self, verb: Verb[T]) -> T:
        for tries in range(1, TRIES + 1):
            progress = Progress()
            try:
                return self._once(verb, progress)
            except psycopg.Error as error:
                if error.sqlstate in START_OVER and tries < TRIES:
                    time.sleep(start_over_delay(tries))
                    continue
                raise translated(error, self._address, maybe_applied=progress.maybe_applied) from error
        raise AssertionError("unreachable")

    def _once(self, verb: Verb[T], progress: Progress) -> T:
        self._take_place()
        try:
            link = self._fit() or self._connect()
            return self._carry(link, script(verb, progress), progress)
        finally:
            self._free.put(None)

    def _take_place(self) -> None:
        """Wait until fewer connections than the pool may have are in use."""
        if self._pid != os.getpid():
            self._forget()  # the parent's connections are the parent's; psycopg leaves them alone
        try:
            self._free.get(timeout=self._address.timeout)
        except Empty:
            raise StorageUnavailable(
                f"{self._address.describe()}: all {self._address.pool} connections were in use for "
                f"{self._address.timeout:g} s; raise pool= in the URL or use fewer threads"
            ) from None

    def _carry(
        self,
        link: OwnConnection,
        steps: Generator[Action, Rows, T],
        progress: Progress,
        first_rows: FirstRows | None = None,
    ) -> T:
        """Carry the steps out, from the first or from the rows of the first on."""
        deadline = self.deadline()
        try:
            action = next(steps) if first_rows is None else steps.send(first_rows(link, deadline))
            while True:
                action = steps.send(libpq.run(link, action, deadline))
        except StopIteration as stop:
            self._idle.append(link)
            result: T = stop.value
            return result
        except BaseException as error:
            self._recover(link, error, deadline)
            if isinstance(error, TimeoutError):
                raise no_answer(self._address, maybe_applied=progress.maybe_applied) from error
            raise

    def deadline(self) -> float:
        """When the server's time for an answer is over that is wanted now."""
        return time.monotonic() + self._address.timeout

    # -- for a verb in two halves (fast/sending.py) ------------------------------------------------

    def spare(self) -> OwnConnection | None:
        """A connection to send on, for `finish`. None where it would be the last that the pool may have:
        the caller may need one before the answer is read. None, too, where no connection can be made."""
        if self._pid != os.getpid():
            self._forget()
        try:
            self._free.get_nowait()
        except Empty:
            return None
        link = None
        try:
            if not self._free.empty():
                link = self._fit() or self._connect()
        except psycopg.Error:
            pass  # the verb will meet the same when it is run
        finally:
            if link is None:
                self._free.put(None)
        return link

    def finish(
        self,
        link: OwnConnection,
        verb: Verb[T],
        steps: Generator[Action, Rows, T],
        progress: Progress,
        first_rows: FirstRows,
    ) -> T:
        """Carry out the rest of a verb whose first action was sent; raises what `run` would."""
        try:
            return self._carry(link, steps, progress, first_rows)
        except psycopg.Error as error:
            if error.sqlstate not in START_OVER:
                raise translated(error, self._address, maybe_applied=progress.maybe_applied) from error
        finally:
            self._free.put(None)
        time.sleep(start_over_delay(1))
        return self.run(verb)

    def give_up(self, link: OwnConnection) -> None:
        """End a connection of `spare` without `finish`: its caller was interrupted."""
        link.close()
        self._free.put(None)

    def _recover(self, link: OwnConnection, error: BaseException, deadline: float) -> None:
        """Keep a connection that only heard an error; close any other."""
        with suppress(psycopg.Error, TimeoutError):
            if _is_to_roll_back(link, error):
                libpq.run(link, "rollback", deadline)
            if _is_clean(link, error):
                self._idle.append(link)
                return
        link.close()

    def _fit(self) -> OwnConnection | None:
        while True:
            try:
                link = self._idle.pop()
            except IndexError:  # not looked for before: another thread may take the last one
                return None
            if link.is_fit:
                return link
            link.close()

    def _connect(self) -> OwnConnection:
        made = Connection.connect(**{**self._address.params, **_CONNECT})
        try:
            is_direct = not is_pooled(made, made.execute(WHO_ANSWERS).fetchone())
            if is_direct:
                made.execute(INTERPRETED)
        except BaseException:  # this connection is known nowhere else yet
            made.close()
            raise
        return OwnConnection(made, PREPARED if is_direct and self._address.prepares else frozenset())

    def close(self) -> None:
        """Close what is idle. A verb that runs right now gives its connection back to the pool."""
        if self._pid == os.getpid():
            with suppress(IndexError):
                while True:
                    self._idle.pop().close()


# -- one event loop ------------------------------------------------------------------------------------

# Which connections a verb may take, and how many there are. Claim and finish go at once, and wait for
# nothing else that a worker sends; heartbeats never queue behind a large payload. Those for notes are
# opened by workers with durable steps alone.
LANES = (
    dict.fromkeys(("claim", "finish", "finish_and_claim", "offer"), "work")
    | dict.fromkeys(("beat", "start_session", "end_session"), "beat")
    | dict.fromkeys(("note", "notes"), "notes")
)
SIZES = {"work": 2, "beat": 1, "notes": 2, "rest": 2}
# Compiling is for long queries. Ours are short and wide: with a million jobs the planner's estimate
# passed the threshold, and compiling took 830 of the 1,150 ms of a count of the queues.
INTERPRETED = "SET jit = off"
# On the connections of these lanes all statements are kept prepared, with their plans: reading and
# planning a claim of 500 jobs anew took a tenth of it, and the notes of ten jobs more than carrying them
# out. A plan made for an empty table would look through a full one (statements.PREPARED), so the planner
# is left with the indexes.
PLANNED = frozenset({"work", "notes"})
KEEP_PLANS = (
    "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_bitmapscan = off; "
    + INTERPRETED
)


class AsyncPool:
    """Carries verbs out without blocking its event loop."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._lanes = {
            name: _Lane(address, size, keeps_plans=name in PLANNED) for name, size in SIZES.items()
        }

    async def run(self, verb: Verb[T]) -> T:
        lane = self._lanes[LANES.get(verb.name, "rest")]
        for tries in range(1, TRIES + 1):
            progress = Progress()
            try:
                return await lane.run(verb, progress)
            except (psycopg.Error, OSError) as error:  # OSError: of the event loop, or of the system
                if getattr(error, "sqlstate", None) in START_OVER and tries < TRIES:
                    await asyncio.sleep(start_over_delay(tries))
                    continue
                raise translated(error, self._address, maybe_applied=progress.maybe_applied) from error
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Close what is idle, also from outside when the event loop is gone."""
        for lane in self._lanes.values():
            lane.close()


class _Lane:
    """Up to `size` connections that wait for no verb of another lane."""

    def __init__(self, address: Address, size: int, *, keeps_plans: bool) -> None:
        self._address = address
        self._keeps_plans = keeps_plans and address.prepares
        self._free = asyncio.Semaphore(size)
        self._idle: list[OwnConnection] = []
        self._is_closed = False
        self._loop = asyncio.get_running_loop()

    async def run(self, verb: Verb[T], progress: Progress) -> T:
        if self._free.locked():
            await self._until_free()
        else:
            await self._free.acquire()
        try:
            link = self._fit() or await self._connect()
            deadline = self._loop.time() + self._address.timeout
            cut = self._loop.call_at(deadline, link.cut)
            sending = script(verb, progress)
            try:
                action = next(sending)
                while True:
                    action = sending.send(await libpq.arun(link, action))
            except StopIteration as stop:
                self._put_back(link)
                result: T = stop.value
                return result
            except BaseException as error:
                await self._recover(link, error)
                if is_connection_lost(error) and self._loop.time() >= deadline:
                    raise no_answer(self._address, maybe_applied=progress.maybe_applied) from error
                raise
            finally:
                cut.cancel()
        finally:
            self._free.release()

    async def _until_free(self) -> None:
        try:
            async with asyncio.timeout(self._address.timeout):
                await self._free.acquire()
        except TimeoutError:
            raise StorageUnavailable(
                f"{self._address.describe()}: all connections were busy for {self._address.timeout:g} s"
            ) from None

    async def _recover(self, link: OwnConnection, error: BaseException) -> None:
        """Keep a connection that only heard an error; close any other, also a cancelled one."""
        try:
            if _is_to_roll_back(link, error):
                await libpq.arun(link, "rollback")
            if _is_clean(link, error):
                self._put_back(link)
                return
        except psycopg.Error:
            pass
        except BaseException:  # cancelled
            link.close()
            raise
        link.close()

    def _put_back(self, link: OwnConnection) -> None:
        """Keep it for the next verb, unless the lane was closed while this one was under way."""
        if self._is_closed:
            link.close()
        else:
            self._idle.append(link)

    def _fit(self) -> OwnConnection | None:
        while self._idle:
            link = self._idle.pop()
            if link.is_fit:
                return link
            link.close()
        return None

    async def _connect(self) -> OwnConnection:
        made = await AsyncConnection.connect(**{**self._address.params, **_CONNECT})
        try:
            is_direct = not is_pooled(made, await (await made.execute(WHO_ANSWERS)).fetchone())
            if is_direct:
                await made.execute(KEEP_PLANS if self._keeps_plans else INTERPRETED)
        except BaseException:  # cancelled, mostly: this connection is known nowhere else yet
            await made.close()
            raise
        if not is_direct or not self._address.prepares:
            return OwnConnection(made)
        return OwnConnection(made, frozenset(STATEMENTS) if self._keeps_plans else PREPARED)

    def close(self) -> None:
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()


# -- both ----------------------------------------------------------------------------------------------


def _is_to_roll_back(link: OwnConnection, error: BaseException) -> bool:
    """Whether the connection is good, and in a transaction that an error has ended."""
    is_whole = isinstance(error, Exception) and not is_connection_lost(error) and link.is_open
    return is_whole and link.pgconn.transaction_status in (
        TransactionStatus.INTRANS,
        TransactionStatus.INERROR,
    )


def _is_clean(link: OwnConnection, error: BaseException) -> bool:
    """Whether the connection is good for the next verb."""
    is_whole = isinstance(error, Exception) and not is_connection_lost(error) and link.is_open
    return is_whole and link.pgconn.transaction_status == TransactionStatus.IDLE


def is_pooled(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], answer: Row | None
) -> bool:
    """Whether a pooler stands between: the process that greeted is not the one that answers. Named
    prepares, and LISTEN, are then on another session the next moment."""
    return answer is not None and answer[0] != connection.info.backend_pid


def is_readable(fileno: int) -> bool:
    """Whether bytes, or the end of them, wait to be read."""
    poll = select.poll()
    poll.register(fileno, select.POLLIN)
    return bool(poll.poll(0))

"""Wake-ups: one LISTEN connection for all bells of a driver in one event loop, and one for due jobs.

A wake-up is a hint. A waiting worker announces itself in the store (`arm`), looks once more, and waits.
Producers notify only while an announcement is valid. A failure here (a connection that breaks or hangs,
a pooler that cannot carry LISTEN) makes waking slower, never wrong: the waiting worker polls as well.

The event loop itself reads the socket. `fast/handover.py` receives a job in that moment.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec
import psycopg
from psycopg import sql

from winch.core.errors import StorageError
from winch.drivers._shared import background
from winch.drivers.postgres.address import Address
from winch.drivers.postgres.connections.pool import WHO_ANSWERS, is_pooled
from winch.drivers.postgres.statements import Row

log: logging.Logger = logging.getLogger("winch.postgres")

# An announcement is valid for WAITING seconds, and the waiter renews it after RENEW, so that there is
# always time left. No waiter writes while another's announcement is valid for ENOUGH seconds more.
WAITING = 15.0
RENEW = 5.0
ENOUGH = 10.0
PROBE = 10.0
DUE = ""

_names = msgspec.json.Decoder(list[str])

Announce = Callable[[Sequence[str]], Awaitable[None]]


class Listener:
    """The connection that hears the wake-ups of one channel, opened again whenever it breaks."""

    def __init__(
        self, address: Address, channel: str, params: dict[str, object], announce: Announce
    ) -> None:
        self._address = address
        self._channel = channel
        # Of this listener alone: a message there is for one of its bells.
        self.own_channel: str = f"winch_{secrets.token_hex(16)}"
        self._params = params
        self._announce = announce
        self._bells: set[PostgresBell] = set()
        self._runner: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()
        self.is_up: bool = False
        self.state: str = "not started"

    @property
    def is_used(self) -> bool:
        return self._runner is not None

    def add(self, bell: PostgresBell) -> None:
        self._bells.add(bell)

    def discard(self, bell: PostgresBell) -> None:
        self._bells.discard(bell)

    async def listening(self) -> None:
        """Begin to listen, unless that has been tried before."""
        if self._runner is None or self._runner.done():
            self._tried.clear()
            self._runner = background.start(self._run(), "winch-listen")
        # Only the first time: later a listener that is down is the poll's matter.
        await self._tried.wait()

    async def announce(self, names: Iterable[str]) -> None:
        """Write into the store that a worker waits for these."""
        try:
            await self._announce(sorted(names))
        except StorageError as error:
            log.debug("cannot announce a waiting worker: %s", error)

    async def close(self) -> None:
        if self._runner is not None:
            await background.stop(self._runner)
            self._runner = None
        self.state = "not started"

    async def _run(self) -> None:
        pause = 0.1
        while True:
            try:
                await self._listen()
                pause = 0.1
            except (psycopg.Error, OSError, TimeoutError) as error:
                if self.is_up or not self._tried.is_set():
                    log.warning(
                        "wake-ups are off until the listener is back; the worker polls meanwhile: %s",
                        error,
                    )
                pause = 0.1 if self.is_up else min(pause * 2, 5.0)
                self.state = f"down: {' '.join(str(error).split())}"
            finally:
                self.is_up = False
                self._tried.set()
            # Different for each process: a restarted server is not met by all of them at once.
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311  # not a secret

    async def _listen(self) -> None:
        connection = await psycopg.AsyncConnection[Row].connect(
            **self._params,  # type: ignore[arg-type]  # libpq takes what the URL holds
            autocommit=True,
            prepare_threshold=None,
        )
        async with connection:
            answer = await (await connection.execute(WHO_ANSWERS)).fetchone()
            if is_pooled(connection, answer):
                self.state = "off: a pooler stands between; set WINCH_LISTEN_URL to a direct address"
                log.info("wake-ups are %s", self.state)
                self._tried.set()
                await asyncio.sleep(60)
                return
            for channel in (self._channel, self.own_channel):
                await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
            # For those that come with the answer to a probe.
            connection.add_notify_handler(
                lambda heard: self._hear(heard.channel.encode(), heard.payload.encode())
            )
            self.is_up = True
            self.state = "up"
            self._tried.set()
            self._ring([])  # for what was missed before
            while True:
                await self._until_silent(connection)
                # Silence may be peace, or a connection whose other end is gone.
                async with asyncio.timeout(self._address.timeout):
                    await connection.execute("SELECT 1")

    async def _until_silent(self, connection: psycopg.AsyncConnection[Row]) -> None:
        """Hear what comes, and return after a while in which nothing came."""
        loop, pgconn = asyncio.get_running_loop(), connection.pgconn
        over: asyncio.Future[None] = loop.create_future()
        heard_at = loop.time()
        fileno, is_read = pgconn.socket, True

        def read() -> None:
            nonlocal heard_at
            heard_at = loop.time()
            try:
                pgconn.consume_input()
                while (heard := pgconn.notifies()) is not None:
                    self._hear(heard.relname, heard.extra)
            except psycopg.Error as error:
                stop()
                if not over.done():
                    over.set_exception(error)

        def stop() -> None:
            """As `libpq.PendingAnswer`: libpq closes the socket of a lost connection."""
            nonlocal is_read
            if is_read:
                is_read = False
                loop.remove_reader(fileno)

        loop.add_reader(fileno, read)
        try:
            while (left := heard_at + PROBE - loop.time()) > 0:
                await asyncio.wait([over], timeout=left)
                if over.done():
                    over.result()
        finally:
            stop()

    def _hear(self, channel: bytes, payload: bytes) -> None:
        if channel == self.own_channel.encode():
            for bell in self._bells:
                bell.hand(payload)
            return
        try:
            names = _names.decode(payload)
        except msgspec.DecodeError:
            names = []
        self._ring(names)

    def _ring(self, names: Sequence[str]) -> None:
        for bell in self._bells:
            if not names or not bell.names.isdisjoint(names):
                bell.ring()


class PostgresBell:
    """Rings for ready jobs of some queues and, with `due`, for jobs due soon."""

    def __init__(self, listeners: Sequence[Listener], queues: Sequence[str], *, due: bool) -> None:
        self.names: frozenset[str] = frozenset(queues) | ({DUE} if due else set())
        self._listeners = listeners
        self._listener = listeners[0]
        self._has_rung = False
        self._waiter: asyncio.Future[bool | None] | None = None
        self._announced_at = -RENEW
        for listener in listeners:
            listener.add(self)

    def ring(self) -> None:
        self._has_rung = True
        self._wake(True)

    def hand(self, word: bytes) -> None:
        """A word on the listener's own channel."""

    def _wake(self, is_ring: bool | None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(is_ring)

    async def arm(self) -> None:
        if time.monotonic() - self._announced_at >= RENEW:
            self._announced_at = time.monotonic()
            for listener in self._listeners:
                await listener.listening()
            await self._listener.announce(self.names)
        self._has_rung = False  # last: what rang until now is met by the look that follows

    async def wait(self, timeout: float) -> bool:
        return bool(await self._wait(timeout))

    async def _wait(self, timeout: float) -> bool | None:
        """True when it rang, False when it was roused, None after so many seconds."""
        if self._has_rung:
            return True
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool | None] = loop.create_future()
        self._waiter = waiter
        timer = loop.call_later(timeout, self._wake, None)
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiter = None

    async def aclose(self) -> None:
        for listener in self._listeners:
            listener.discard(self)

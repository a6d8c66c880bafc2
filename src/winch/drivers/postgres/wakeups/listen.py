"""Wake-ups: one LISTEN connection for all bells of a driver in one event loop, and one for due jobs.

A wake-up is a hint. Whoever waits says so in the store (`arm`), looks once more, and waits; producers
notify only while somebody has said so. What goes wrong here (a connection that breaks or hangs, a pooler
that cannot carry LISTEN) makes waking slower, never wrong: the waiting worker looks again by itself.

The way from the server's word to the claim is short, because somebody waits for that job: the event
loop itself reads the socket, and the claim is sent by whoever was waiting. Where an offer stands
(handover.py), the word is the job itself.
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

from winch.core.errors import StorageError, StorageUnavailable
from winch.core.job import Claim
from winch.drivers._shared import background
from winch.drivers.postgres.address import Place
from winch.drivers.postgres.connections.apool import AsyncPool, Loaded
from winch.drivers.postgres.connections.pool import WHO_ANSWERS, is_pooled
from winch.drivers.postgres.statements import Row
from winch.drivers.postgres.wakeups.handover import Offer, Offers, values_of
from winch.storage.verbs import Verb

log: logging.Logger = logging.getLogger("winch.postgres")

# What a waiter says is good for WAITING seconds; it says so again after RENEW, so that there is always
# time left. Nobody writes while somebody else's word is good for ENOUGH seconds more.
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
        self, place: Place, channel: str, params: dict[str, object], announce: Announce
    ) -> None:
        self._place = place
        self._channel = channel
        # Of this listener alone: what is said there is for one of its bells, and nobody else hears it.
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
        """Say in the store that somebody waits for these."""
        try:
            await self._announce(sorted(names))
        except StorageError as error:
            log.debug("cannot say that somebody waits: %s", error)

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
                        "wake-ups are off until the listener is back, polling goes on: %s", error
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
            **self._params,  # type: ignore[arg-type]  # libpq takes what the URL says
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
            self._ring([])  # whatever happened while nobody listened
            while True:
                await self._until_silent(connection)
                # Silence may be peace, or a connection whose other end is gone.
                async with asyncio.timeout(self._place.timeout):
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
            """As `express.Answer.stop`: libpq has closed the socket of a connection that is lost."""
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
        self._said_at = -RENEW
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
        if time.monotonic() - self._said_at >= RENEW:
            self._said_at = time.monotonic()
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


class ClaimingPostgresBell(PostgresBell):
    """Sends the claim, which is written ahead, in the moment it rings, without a turn of its worker; and
    leaves it in the store meanwhile, as an offer."""

    stays_armed = True

    def __init__(
        self,
        listeners: Sequence[Listener],
        queues: Sequence[str],
        pool: AsyncPool,
        offers: Offers,
    ) -> None:
        super().__init__(listeners, queues, due=False)
        self._pool = pool
        self._offers = offers
        self.on_claims: Callable[[list[Claim]], None] | None = None
        self._loaded: Loaded[list[Claim]] | None = None
        self._offer: Offer | None = None

    def ring(self) -> None:
        if self._loaded is not None and self._waiter is not None and not self._waiter.done():
            self._loaded.send()
        super().ring()

    def hand(self, word: bytes) -> None:
        claims = None if self._offer is None else self._offer.hear(word)
        if claims is not None:
            if claims and self.on_claims is not None:
                self.on_claims(claims)
            self._wake(False)

    async def claim_when_rung(
        self, verb: Verb[list[Claim]], timeout: float, *, is_idle: bool = False
    ) -> list[Claim]:
        loaded = self._loaded = self._pool.load(verb, self.on_claims)
        is_wanted = is_idle and self._listener.is_up and self._offers.may_be_made
        values = values_of(verb) if is_wanted else None
        if values is None:
            return await self._claim(verb, loaded, timeout)
        offer = self._offer = Offer(values, self._listener.own_channel)
        claims: list[Claim] = []
        try:
            await self._offers.make(offer, timeout)
            if not offer.is_taken:  # else it was before the wait began
                claims = await self._claim(verb, loaded, timeout)
            await self._offers.ended(offer)
        except StorageUnavailable as error:
            # Jobs that are known may run already, so their token must not be given up: what else is
            # under it is released when they are done with. Without any, the claim's answer was lost.
            if not claims and not offer.claims:
                raise StorageUnavailable(str(error), maybe_applied=True) from error
            log.warning("an offer could not be withdrawn, its time ends it: %s", error)
        finally:
            self._loaded = self._offer = None
        # One token for both, and who looks for the jobs of a token finds all of them.
        known = {claim.id for claim in claims}
        return claims + [claim for claim in offer.claims if claim.id not in known]

    async def _claim(
        self, verb: Verb[list[Claim]], loaded: Loaded[list[Claim]] | None, timeout: float
    ) -> list[Claim]:
        try:
            has_rung = await self._wait(timeout)
        except BaseException:
            if loaded is not None:
                loaded.drop()
            raise
        finally:
            self._loaded = None
        return [] if has_rung is False else await self._pool.run(verb, loaded)

    def rouse(self) -> None:
        self._wake(False)

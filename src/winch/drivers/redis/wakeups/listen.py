"""Wake-ups: one blocking connection for all bells of a driver in one event loop.

Whoever waits writes its name beside the queue (`arm`), looks once more, and waits. A script that makes a
job ready takes one name for each job and puts a word into that waiter's own list, which its blocking pop
takes out; a word that comes before the pop stays in the list. What goes wrong here makes waking slower,
never wrong: the waiting worker looks again by itself, and says again that it waits.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from winch.core.errors import WinchError
from winch.drivers._shared import background
from winch.drivers.redis.connections.aio import AsyncSide
from winch.drivers.redis.scripts import Call, command
from winch.storage.verbs import Verb

log: logging.Logger = logging.getLogger("winch.redis")

# What a waiter says is good for WAITING seconds; a word for one that died meanwhile is lost, and the
# job is found by the poll of another.
WAITING = 5.0
POP = 2.0
DUE = ""

Points = Callable[[], Sequence[tuple[int, str]]]
Announce = Callable[[str, Sequence[str]], Awaitable[None]]
T = TypeVar("T")


class Listener:
    """The connection that hears wake-ups, opened again whenever it breaks."""

    def __init__(self, side: AsyncSide, points: Points, announce: Announce) -> None:
        self._side = side
        self._points = points
        self._announce = announce
        self._waiter = secrets.token_hex(8)
        self._bells: set[RedisBell] = set()
        self._runners: dict[tuple[int, str], asyncio.Task[None]] = {}
        self.state: str = "not started"

    def add(self, bell: RedisBell) -> None:
        self._bells.add(bell)

    def discard(self, bell: RedisBell) -> None:
        self._bells.discard(bell)

    async def announce(self, names: Sequence[str]) -> None:
        """Say in the store that somebody waits for these."""
        try:
            await self._announce(self._waiter, names)
        except WinchError as error:
            log.debug("cannot say that somebody waits: %s", error)
        points = self._points()
        for point in points:
            if point not in self._runners or self._runners[point].done():
                self._runners[point] = background.start(self._run(point), "winch-listen")
        for point in self._runners.keys() - set(points):  # the cluster is another one by now
            self._runners.pop(point).cancel()

    async def _run(self, point: tuple[int, str]) -> None:
        pause, was_down = 0.1, False
        where, prefix = point
        while self._bells:
            try:
                heard = await self._side.run(
                    command("BLPOP", f"{prefix}bell:{self._waiter}", str(POP), where=where)
                )
            except (WinchError, OSError) as error:
                if self.state == "up":
                    log.warning(
                        "wake-ups are off until the listener is back, polling goes on: %s", error
                    )
                self.state, was_down = f"down: {' '.join(str(error).split())}", True
                # Different for each process: a restarted server is not met by all of them at once.
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311  # not a secret
                pause = min(pause * 2, 2.0)
                continue
            self.state = "up"
            if was_down:
                pause, was_down = 0.1, False
                self._ring(None)  # whatever happened while nobody listened
            if heard is not None:
                self._ring(heard[1].decode())

    def _ring(self, name: str | None) -> None:
        for bell in self._bells:
            if name is None or name in bell.names:
                bell.ring()

    async def close(self) -> None:
        self._bells.clear()
        await background.stop(*self._runners.values())
        self._runners.clear()
        self.state = "not started"
        await self._side.aclose()


class RedisBell:
    """Rings for ready jobs of some queues and, with `due`, for jobs due soon."""

    def __init__(self, listener: Listener, queues: Sequence[str], *, due: bool) -> None:
        self.names: frozenset[str] = frozenset(queues) | ({DUE} if due else set())
        self._listener = listener
        self._rang = asyncio.Event()
        # Its name is beside the queue until it rings, or for so long.
        self._said_until = 0.0
        listener.add(self)

    def ring(self) -> None:
        self._said_until = 0.0
        self._rang.set()

    async def arm(self) -> None:
        self._rang.clear()
        if time.monotonic() > self._said_until - WAITING / 2:
            self._said_until = time.monotonic() + WAITING
            await self._listener.announce(sorted(self.names))

    async def wait(self, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self._rang.wait()
        except TimeoutError:
            return False
        return True

    async def aclose(self) -> None:
        self._listener.discard(self)


class ClaimingRedisBell(RedisBell):
    """The bell of one server's worker: the pop and the claim behind it are sent in one go.

    The server keeps back what follows a blocking pop on the same connection, and runs it as soon as a
    word has come or the time is over. So the claim has been carried out before the worker hears of the
    ring, and a job comes after one way instead of three. It is a claim as any other: its token is drawn
    and noted before it is sent, and one whose answer is lost is given up.
    """

    stays_armed = False  # the script that rings takes the name away

    def __init__(
        self,
        listener: Listener,
        queues: Sequence[str],
        *,
        side: AsyncSide,
        run: Callable[[Call], Awaitable[Any]],
        prefix: str,
        announce: Announce,
        longest: float,
    ) -> None:
        super().__init__(listener, queues, due=False)
        self._longest = longest
        self._side = side
        self._run = run
        self._announce = announce
        self._waiter = secrets.token_hex(8)
        self._list = f"{prefix}bell:{self._waiter}"
        self._rousing: set[asyncio.Future[Any]] = set()

    async def arm(self) -> None:
        self._rang.clear()
        if time.monotonic() > self._said_until - WAITING / 2:
            self._said_until = time.monotonic() + WAITING
            try:
                await self._announce(self._waiter, sorted(self.names))
            except WinchError as error:
                log.debug("cannot say that somebody waits: %s", error)

    async def claim_when_rung(self, verb: Verb[T], timeout: float, *, is_idle: bool = False) -> T:
        steps = verb.steps()
        try:
            heard, reply = await self._side.run_after(self._pop(timeout), next(steps))
            if heard is not None:
                self._said_until = 0.0  # the script that rang has taken the name away
            if isinstance(heard, Exception):
                await asyncio.sleep(min(timeout, 0.5))  # refused at once: not again at once
            while True:
                reply = await self._run(steps.send(reply))
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def wait(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            try:
                heard = await self._side.run(self._pop(left))
            except WinchError as error:
                log.debug("the bell cannot be heard, polling goes on: %s", error)
                await asyncio.sleep(min(left, 0.5))
                continue
            if heard is not None:
                self._said_until = 0.0
                return True
        return False

    def _pop(self, timeout: float) -> Call:
        return command("BLPOP", self._list, f"{max(min(timeout, self._longest), 0.01):.3f}")

    def rouse(self) -> None:
        sent = asyncio.ensure_future(self._rouse())
        self._rousing.add(sent)
        sent.add_done_callback(self._rousing.discard)

    async def _rouse(self) -> None:
        with suppress(WinchError):
            await self._run(command("RPUSH", self._list, ""))
            await self._run(command("EXPIRE", self._list, 60))

    async def aclose(self) -> None:
        await super().aclose()
        await self._side.aclose()

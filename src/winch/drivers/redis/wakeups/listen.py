"""Wake-ups: one blocking connection for all bells of a driver in one event loop.

A waiter writes its name beside the queue (`arm`), looks once more, and waits. A script that makes a
job ready takes one name for each job and puts a word into that waiter's own list, which its blocking pop
takes out; a word that comes before the pop stays in the list. What goes wrong here makes waking slower,
never wrong: the waiting worker looks again by itself, and announces again that it waits.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from winch.core.errors import WinchError
from winch.drivers._shared import background
from winch.drivers.redis.connections.aio import LoopConnections
from winch.drivers.redis.scripts import command

log: logging.Logger = logging.getLogger("winch.redis")

# What a waiter announces is good for WAITING seconds. A word for one that died meanwhile is lost, and
# the poll of another finds the job.
WAITING = 5.0
POP = 2.0
DUE = ""

Points = Callable[[], Sequence[tuple[int, str]]]
Announce = Callable[[str, Sequence[str]], Awaitable[None]]
T = TypeVar("T")


class Listener:
    """The connection that hears wake-ups, opened again whenever it breaks."""

    def __init__(self, pool: LoopConnections, points: Points, announce: Announce) -> None:
        self._pool = pool
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
        """Write in the store that a waiter waits for these."""
        try:
            await self._announce(self._waiter, names)
        except WinchError as error:
            log.debug("cannot announce a waiter: %s", error)
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
                heard = await self._pool.run(
                    command("BLPOP", f"{prefix}bell:{self._waiter}", str(POP), where=where)
                )
            except (WinchError, OSError) as error:
                if self.state == "up":
                    log.warning(
                        "wake-ups are off until the listener is back; the worker polls meanwhile: %s",
                        error,
                    )
                self.state, was_down = f"down: {' '.join(str(error).split())}", True
                # Different for each process: a restarted server is not met by all of them at once.
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311  # not a secret
                pause = min(pause * 2, 2.0)
                continue
            self.state = "up"
            if was_down:
                pause, was_down = 0.1, False
                self._ring(None)  # for whatever happened meanwhile
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
        await self._pool.aclose()


class RedisBell:
    """Rings for ready jobs of some queues and, with `due`, for jobs due soon."""

    def __init__(self, listener: Listener, queues: Sequence[str], *, due: bool) -> None:
        self.names: frozenset[str] = frozenset(queues) | ({DUE} if due else set())
        self._listener = listener
        self._rang = asyncio.Event()
        # Its name is beside the queue until it rings, or for so long.
        self._announced_until = 0.0
        listener.add(self)

    def ring(self) -> None:
        self._announced_until = 0.0
        self._rang.set()

    async def arm(self) -> None:
        self._rang.clear()
        if time.monotonic() > self._announced_until - WAITING / 2:
            self._announced_until = time.monotonic() + WAITING
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

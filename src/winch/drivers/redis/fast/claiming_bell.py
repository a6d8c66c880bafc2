"""A bell that claims: the blocking pop and the claim behind it are sent in one request.

Saves: two of the three ways between worker and server before a job that arrives at an idle worker runs.
The server keeps back what follows a blocking pop on the same connection, and runs it as soon as a word
has come or the time is over. So the claim has been carried out before the worker hears of the ring.
Equals: the plain bell (wakeups/listen.py), and a claim when it has rung. It is a claim as any other: its
token is drawn and noted before it is sent, and one whose reply is lost is given up.

Only on one server: in a cluster the claim may have to go to another node than the pop.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import hiredis

from winch.core.errors import WinchError
from winch.drivers.redis.connections.aio import LoopConnections
from winch.drivers.redis.connections.routing import ConnectionLost
from winch.drivers.redis.scripts import ScriptCall, command
from winch.drivers.redis.wakeups.listen import WAITING, Announce, Listener, RedisBell
from winch.storage.verbs import Verb

log: logging.Logger = logging.getLogger("winch.redis")
T = TypeVar("T")


class ClaimingRedisBell(RedisBell):
    """The bell of a worker of one server."""

    stays_armed = False  # the script that rings takes the name away

    def __init__(
        self,
        listener: Listener,
        queues: Sequence[str],
        *,
        pool: LoopConnections,
        run: Callable[[ScriptCall], Awaitable[Any]],
        prefix: str,
        announce: Announce,
        longest: float,
    ) -> None:
        super().__init__(listener, queues, due=False)
        self._longest = longest
        self._pool = pool
        self._run = run
        self._announce = announce
        self._waiter = secrets.token_hex(8)
        self._list = f"{prefix}bell:{self._waiter}"
        self._rousing: set[asyncio.Future[Any]] = set()

    async def arm(self) -> None:
        self._rang.clear()
        if time.monotonic() > self._announced_until - WAITING / 2:
            self._announced_until = time.monotonic() + WAITING
            try:
                await self._announce(self._waiter, sorted(self.names))
            except WinchError as error:
                log.debug("cannot announce a waiter: %s", error)

    async def claim_when_rung(self, verb: Verb[T], timeout: float, *, is_idle: bool = False) -> T:
        steps = verb.steps()
        try:
            heard, reply = await _run_after(self._pool, self._pop(timeout), next(steps))
            if heard is not None:
                self._announced_until = 0.0  # the script that rang has taken the name away
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
                heard = await self._pool.run(self._pop(left))
            except WinchError as error:
                log.debug(
                    "wake-ups are off until the bell is back; the worker polls meanwhile: %s", error
                )
                await asyncio.sleep(min(left, 0.5))
                continue
            if heard is not None:
                self._announced_until = 0.0
                return True
        return False

    def _pop(self, timeout: float) -> ScriptCall:
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
        await self._pool.aclose()


async def _run_after(pool: LoopConnections, blocking: ScriptCall, what: ScriptCall) -> tuple[Any, Any]:
    """A command that may wait in the server, and a call that the server carries out right after it;
    their replies. The call is carried on as `AsyncSide.run` does where its first try is refused."""
    route = pool.route.of(what.where)
    outcome: Any
    try:
        connection = await pool.connection(route)
        heard, outcome = await connection.ask(blocking.request + what.request, 2)
    except ConnectionLost as error:
        heard, outcome = None, error
    if isinstance(outcome, ConnectionLost | hiredis.ReplyError):
        outcome = await pool.carry_on(what, route, outcome)
    return heard, outcome

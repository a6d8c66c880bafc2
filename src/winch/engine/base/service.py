"""The shape every loop shares: one pass, the next delay, and a loop that outlives a store's outage.

`run_once` does one pass and returns the seconds until the next; tests call it directly. `run` owns
sleeping, stopping and backing off. A store that is out of reach is waited for with growing, jittered
pauses and one log line per stretch, not one per try.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any

from winch.core.errors import StorageError
from winch.engine.base.log import log

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
# A float overflows at 2^1024, which an outage of an hour and a half reaches; every pause is at its
# longest long before this.
MOST_DOUBLINGS = 32
# So many passes in a row may fail for an unforeseen reason: some 20 seconds.
MOST_SURPRISES = 10

# The name of the loop that is running. What it waits for by itself, between two passes, is only polling:
# a virtual clock may leap over that while there is nothing to be found.
polling: ContextVar[str] = ContextVar("winch_polling", default="")


def doubled(first: float, times: int, longest: float) -> float:
    """`first` doubled so many times, up to `longest`. Any number of times is safe."""
    return min(first * 2.0 ** min(times, MOST_DOUBLINGS), longest)


class Backoff:
    """Growing, jittered pauses while a store is out of reach; remembers whether it was logged."""

    def __init__(self, what: str, longest: float = LONGEST_PAUSE) -> None:
        self._what = what
        self._longest = longest
        self.failures: int = 0
        self._is_unasked = False

    def failed(self, error: Exception) -> float:
        """Note a failure; returns how long to wait. Logs the first of a stretch."""
        self.failures += 1
        self._is_unasked = False
        if self.failures == 1:
            log.warning("%s: the store is unreachable, trying again: %s", self._what, error)
        return doubled(FIRST_PAUSE, self.failures, self._longest) * random.uniform(0.5, 1.0)  # noqa: S311  # jitter, not a secret

    def worked(self) -> None:
        """Note a success; logs the end of a stretch of failures. One that asked the store nothing is no
        sign that the store is back."""
        if self._is_unasked:
            self._is_unasked = False
            return
        if self.failures:
            log.info("%s: the store is back after %d failed tries", self._what, self.failures)
        self.failures = 0

    def unasked(self) -> None:
        """Note that what is about to end well asks the store nothing."""
        self._is_unasked = True


class Surprises:
    """Errors of a loop that are not the store's. One is logged and the loop continues; a vital loop that
    meets nothing else ends, because it would look healthy for ever and do nothing."""

    def __init__(self, what: str, is_vital: bool = True) -> None:
        self._what = what
        self._is_vital = is_vital
        self.count: int = 0

    def met(self, error: Exception) -> float:
        """Note one; returns how long to wait. Raises `error` when there were too many in a row."""
        self.count += 1
        if self._is_vital and self.count >= MOST_SURPRISES:
            raise error
        log.exception("%s failed; the loop continues", self._what)
        return doubled(FIRST_PAUSE, self.count, LONGEST_PAUSE if self._is_vital else 60.0)

    def over(self) -> None:
        """Note a pass that went well."""
        self.count = 0


class Service:
    """One background loop."""

    name = "service"
    # Jobs do not start, end or come back without it: rather a new process than one where it fails on.
    is_vital = True

    def __init__(self, longest_pause: float = LONGEST_PAUSE) -> None:
        self._stopping = asyncio.Event()
        self._backoff = Backoff(self.name, longest_pause)
        self._idling: asyncio.Timeout | None = None
        self._surprises = Surprises(self.name, self.is_vital)
        self.is_failing: bool = False

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    async def run_once(self) -> float:
        """One pass; returns the seconds to wait before the next."""
        raise NotImplementedError

    def unasked(self, seconds: float) -> float:
        """What `run_once` returns for a pass that had nothing to ask the store."""
        self._backoff.unasked()
        return seconds

    async def idle(self, seconds: float) -> None:
        """Wait between two passes; a service that can be woken overrides this."""
        await asyncio.sleep(seconds)

    async def run(self) -> None:
        """Pass after pass until `stop`. No error of the store ends a loop; ten passes in a row that
        fail for another reason end one that is vital."""
        polling.set(self.name)
        while not self._stopping.is_set():
            try:
                delay = await self.run_once()
            except Exception as error:
                await self.failed(error)
                continue
            if self.is_failing:
                self.recovered()
            if delay > 0:
                await self.unless_stopped(self.idle(delay))

    async def failed(self, error: Exception) -> None:
        """Wait after a pass that failed; raises `error` where it must end the loop."""
        self.is_failing = True
        is_store = isinstance(error, StorageError)
        seconds = self._backoff.failed(error) if is_store else self._surprises.met(error)
        await self.unless_stopped(asyncio.sleep(seconds))

    def recovered(self) -> None:
        """Note a pass that went well after one that failed."""
        self._backoff.worked()
        self._surprises.over()
        self.is_failing = self._backoff.failures > 0

    async def unless_stopped(self, idling: Coroutine[Any, Any, object]) -> None:
        """Wait for this, or for `stop`."""
        # An idle service must hear of a stop at once: a drain waits for it. A time limit moved up to
        # now ends the wait where it stands; two tasks, to wait for either, cost several times as much.
        if self._stopping.is_set():  # while the pass was under way
            idling.close()
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as self._idling:
                try:
                    await idling
                except Exception as error:  # the next pass meets what is wrong, and backs off
                    log.debug("%s: while idle: %r", self.name, error)

    def stop(self) -> None:
        self._stopping.set()
        self.end_idling()

    def end_idling(self) -> None:
        """Begin the next pass now, if the service waits for its time."""
        if self._idling is not None and self._idling.when() is None:
            with contextlib.suppress(RuntimeError):  # it has just ended by itself
                self._idling.reschedule(asyncio.get_running_loop().time())

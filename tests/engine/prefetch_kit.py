"""Two workers on one store, the first of which holds jobs that it has claimed and not started.

The first has one slot and has learned that its jobs are short. So it claims many of them with the one
that then turns out to be slow, the *head*. What is to happen meanwhile is done while the head begins.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from winch import App, Limit, Middleware, Rate
from winch.types import Claim

WARM_UP = 100
OTHERS = 30
AHEAD = 8  # a worker with one slot that claims so many has learned that its jobs are short
HEAD = 0


class Claimed(Middleware):
    """The numbers of the jobs that a worker has claimed, by id."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.sizes: list[int] = []

    def claimed(self, claims: Sequence[Claim], seconds: float) -> None:
        self.ids += [claim.id for claim in claims]
        self.sizes.append(len(claims))


class Pair:
    """`first` holds prefetched jobs while its head runs; `second` has free slots."""

    def __init__(
        self, url: str, gate: str, *, is_thread: bool = False, slots: int = 4, **settings: Any
    ) -> None:
        self.gate = gate
        self.slots = slots
        self.first, self.second = (App(url, **settings) for _ in range(2))
        self.claimed = Claimed()
        self.first.use(self.claimed)
        self.began: dict[int, float] = {}
        self.ended: dict[int, float] = {}
        self.runs: list[int] = []
        self.running = self.most = 0
        self.seconds = 0.0  # of every job but the head
        self.head_ends = asyncio.Event()
        self.is_changed = asyncio.Event()  # what happens meanwhile has happened
        self.meanwhile: Callable[[], Awaitable[object]] = self.nothing
        self.prefetched: list[str] = []
        self.jobs: list[Any] = []
        self.workers: list[Any] = []
        self._tasks(self.second, is_thread=is_thread)
        self.task = self._tasks(self.first, is_thread=is_thread)

    def _tasks(self, app: App, *, is_thread: bool) -> Any:
        kinds: dict[str, list[Limit | Rate]] = {
            "limit": [Limit(50)],
            "keyed": [Limit(2, key="key")],
            "rate": [Rate(OTHERS + 2, per="1m")],
        }
        limits = kinds.get(self.gate, [])

        @app.task(name="short")
        async def short(n: int, key: int) -> None: ...

        if is_thread:

            @app.task(name="short in a thread")
            def short_in_thread(n: int, key: int) -> None: ...

            self.short: Any = short_in_thread

            @app.task(name="job", limit=limits)
            def in_thread(n: int, key: int) -> None:
                self._begin(n)
                self.is_changed.set()  # nothing happens meanwhile
                while n == HEAD and not self.head_ends.is_set():
                    time.sleep(0.01)
                self._end(n)

            return in_thread

        self.short = short

        @app.task(name="job", limit=limits)
        async def job(n: int, key: int) -> None:
            self._begin(n)
            if n == HEAD:
                # Some may have run before the head.
                left = [other.id for at, other in enumerate(self.jobs) if at not in self.began]
                self.prefetched = [one for one in left if one in self.claimed.ids]
                try:
                    await self.meanwhile()
                finally:
                    self.is_changed.set()
                await self.head_ends.wait()
            elif self.seconds:
                await asyncio.sleep(self.seconds)
            self._end(n)

        return job

    async def nothing(self) -> None:
        """What happens while the jobs are prefetched, unless a test replaces it."""

    def _begin(self, n: int) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        self.began[n] = time.monotonic()
        self.runs.append(n)

    def _end(self, n: int) -> None:
        self.running -= 1
        self.ended[n] = time.monotonic()

    def call(self, n: int) -> Any:
        options = {"fifo": f"key:{n}"} if self.gate == "fifo" else {}
        if self.gate == "tenant":
            options = {"tenant": f"tenant:{n % 5}"}
        return self.task.using(**options).bind(n, n)

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Both workers, as the head runs and the jobs behind it are claimed by the first."""
        async with self.second.worker(concurrency=self.slots) as second:
            second.quiet(True)
            async with self.first.worker(concurrency=1) as first:
                self.workers = [first, second]
                seconds, self.seconds = self.seconds, 0.0
                await self._warm_up()
                self.seconds = seconds
                self.began.clear()
                self.runs.clear()
                self.claimed.ids.clear()
                # All of them are there when the first worker looks: it takes many with one claim.
                first.quiet(True)
                await asyncio.sleep(0.05)
                calls = [self.call(n) for n in (HEAD, *range(1, OTHERS + 1))]
                self.jobs = await self.first.aenqueue_many(calls)
                first.quiet(False)
                await self._head_began()
                # The second would run what the first releases, before a slow change arrives.
                await self.is_changed.wait()
                self.most = self.running
                second.quiet(False)
                try:
                    yield
                finally:
                    self.head_ends.set()
            await self.jobs[HEAD]
        await self.first.aclose()
        await self.second.aclose()

    async def _head_began(self) -> None:
        for _ in range(5000):
            if HEAD in self.began:  # set by a thread, perhaps
                return
            await asyncio.sleep(0.001)
        raise AssertionError("the head never began")

    async def _warm_up(self) -> None:
        """Short jobs, until the first worker claims ahead."""
        for _ in range(20):
            self.claimed.sizes.clear()
            calls = [self.short.bind(n, n) for n in range(WARM_UP)]
            for job in await self.first.aenqueue_many(calls):
                await job
            if max(self.claimed.sizes) > AHEAD:
                return
        raise AssertionError("the first worker never claimed ahead")

    async def others_end(self, besides: Sequence[int] = (), seconds: float = 10.0) -> None:
        """Wait until every job but the head and `besides` has ended."""
        async with asyncio.timeout(seconds):
            for n, job in enumerate(self.jobs):
                if n not in (HEAD, *besides):
                    await job

    async def states(self) -> list[str]:
        """The states of all jobs that the head came before."""
        left = [job for n, job in enumerate(self.jobs) if n not in {HEAD, *self.runs_before_head()}]
        return [(await self.second.jobs.aget(job.id)).record.state.value for job in left]

    def runs_before_head(self) -> list[int]:
        """The jobs that began before the head: over the shards of a cluster a claim is not in order."""
        return self.runs[: self.runs.index(HEAD)]

    def runs_after_head(self) -> list[int]:
        return self.runs[self.runs.index(HEAD) + 1 :]

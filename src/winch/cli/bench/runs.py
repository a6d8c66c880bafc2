"""The measurements of `winch bench`: Winch itself on the store that is named, with empty jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from winch.app import App
from winch.cli.bench import tasks
from winch.cli.bench.tasks import coroutine, function, isolated
from winch.engine.client.job import Job
from winch.engine.tasks.task import Task

CALLERS = 100
BULK = 5000
MOST_DRAINED = 50_000
PROCESSES = 4
# Long enough for a process to start and import; the measured ones follow.
WARM_UP = 0.3
PATIENCE = 120.0


@dataclass(frozen=True, slots=True)
class Figure:
    """What one scenario came to. `busy`: the share of one core that this process used meanwhile."""

    name: str
    jobs: int
    seconds: float
    busy: float
    p50: float | None = None
    p99: float | None = None

    @property
    def rate(self) -> float:
        return self.jobs / self.seconds


@dataclass
class BenchRun:
    """One run over all scenarios. Its jobs are in a queue of their own and are deleted at the end."""

    app: App
    queue: str
    seconds: float
    stored: list[str] = field(default_factory=list)

    @property
    def scenarios(self) -> dict[str, Callable[[], Figure]]:
        found: dict[str, Callable[[], Figure]] = {
            "enqueue single": self.single,
            "enqueue bulk": self.bulk,
            "enqueue concurrent": self.concurrent,
            "drain coroutines": lambda: self.drain("drain coroutines", coroutine),
            "drain functions": lambda: self.drain("drain functions", function),
            "drain isolated": self.isolated,
            "latency": self.latency,
        }
        if self.app.settings.url.startswith("memory:"):
            del found["drain isolated"]  # other processes cannot see that store
        return found

    # -- enqueue -----------------------------------------------------------------------------------

    def single(self) -> Figure:
        task = coroutine.using(queue=self.queue)
        self._keep([task.enqueue(0)])
        with _measured("enqueue single") as figure:
            until = time.perf_counter() + self.seconds
            while time.perf_counter() < until:
                self._keep([task.enqueue(0)])
                figure.jobs += 1
        return figure.made()

    def bulk(self) -> Figure:
        task = coroutine.using(queue=self.queue)
        with _measured("enqueue bulk") as figure:
            until = time.perf_counter() + self.seconds
            while time.perf_counter() < until:
                self._keep(self.app.enqueue_many([task.bind(0) for _ in range(BULK)]))
                figure.jobs += BULK
        return figure.made()

    def concurrent(self) -> Figure:
        task = coroutine.using(queue=self.queue)

        async def main() -> Figure:
            with _measured("enqueue concurrent") as figure:
                until = time.perf_counter() + self.seconds

                async def caller() -> None:
                    while time.perf_counter() < until:
                        self._keep([await task.aenqueue(0)])
                        figure.jobs += 1

                await asyncio.gather(*(caller() for _ in range(CALLERS)))
            return figure.made()

        return asyncio.run(main())

    # -- drain -------------------------------------------------------------------------------------

    def drain(self, name: str, task: Task[[int], None]) -> Figure:
        """As many jobs as run in about the requested time, estimated from a first few."""
        rate = self._drained(name, task, 2000).rate
        jobs = int(min(max(rate * self.seconds, 2000), MOST_DRAINED))
        return self._drained(name, task, jobs)

    def _drained(self, name: str, task: Task[[int], None], jobs: int) -> Figure:
        self.clear()
        tasks.started.clear()
        bound = task.using(queue=self.queue)
        self._keep(self.app.enqueue_many([bound.bind(number) for number in range(jobs)]))

        async def main() -> Figure:
            with _measured(name) as figure:
                async with self.app.worker(queues=[self.queue]):
                    await _until(lambda: len(tasks.started) >= jobs)
                figure.jobs = jobs
            return figure.made()

        return asyncio.run(main())

    def isolated(self) -> Figure:
        self.clear()
        task = isolated.using(queue=self.queue)
        jobs = int(min(max(200 * self.seconds, 20), 2000))

        async def main() -> Figure:
            async with self.app.worker(queues=[self.queue], concurrency=PROCESSES):
                warm = [await task.aenqueue(WARM_UP) for _ in range(2 * PROCESSES)]
                self._keep(warm)
                for job in warm:
                    await job.aresult(timeout="60s")
                with _measured("drain isolated") as figure:
                    last = await self.app.aenqueue_many([task.bind(0.0) for _ in range(jobs)])
                    self._keep(last)
                    for job in reversed(last):
                        await job.aresult(timeout="60s")
                    figure.jobs = jobs
            return figure.made()

        return asyncio.run(main())

    def latency(self) -> Figure:
        """From the call that enqueues to the handler's first line, with an idle worker."""
        self.clear()
        tasks.started.clear()
        task = coroutine.using(queue=self.queue)
        waits: list[float] = []

        async def main() -> Figure:
            async with self.app.worker(queues=[self.queue]):
                with _measured("latency") as figure:
                    until = time.perf_counter() + self.seconds
                    while time.perf_counter() < until:
                        number = len(waits)
                        began = time.perf_counter()
                        self._keep([await task.aenqueue(number)])
                        await _until(lambda: len(waits) in tasks.started, 0.0005)
                        waits.append(tasks.started[number] - began)
                        await asyncio.sleep(0.005)
                    figure.jobs = len(waits)
            return figure.made(waits)

        return asyncio.run(main())

    # -- afterwards --------------------------------------------------------------------------------

    def clear(self) -> None:
        """Delete the jobs that were stored so far."""
        driver = self.app.ready()
        while self.stored:
            ids, self.stored[:1000] = self.stored[:1000], []
            driver.run(driver.delete(ids, by="winch bench"))

    def _keep(self, jobs: Sequence[Job[Any]]) -> None:
        self.stored += [job.id for job in jobs]


@dataclass
class _Measuring:
    name: str
    jobs: int = 0
    seconds: float = 0.0
    cpu: float = 0.0

    def made(self, waits: Sequence[float] = ()) -> Figure:
        ordered = sorted(waits)
        return Figure(
            self.name,
            self.jobs,
            self.seconds,
            self.cpu / self.seconds,
            p50=ordered[len(ordered) // 2] if ordered else None,
            p99=ordered[int(len(ordered) * 0.99)] if ordered else None,
        )


@contextmanager
def _measured(name: str) -> Iterator[_Measuring]:
    measuring = _Measuring(name)
    began, cpu = time.perf_counter(), time.process_time()
    yield measuring
    measuring.seconds = time.perf_counter() - began
    measuring.cpu = time.process_time() - cpu


async def _until(is_so: Callable[[], bool], every: float = 0.002) -> None:
    async with asyncio.timeout(PATIENCE):
        while not is_so():  # noqa: ASYNC110  # threads and other processes make it so
            await asyncio.sleep(every)

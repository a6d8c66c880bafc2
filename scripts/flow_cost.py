"""What flow control and composition cost, each beside plain jobs in the same run.

    python scripts/flow_cost.py                          all of them, on SQLite and servers of its own
    python scripts/flow_cost.py chord --store postgres   one of them, on one store

chord      10,000 members and a callback, CPU time per member, beside as many plain jobs (at most 1.5x)
large      100,000 members from an iterator: the most memory that a process has held which enqueues them,
           and one that runs them, beside a tenth as many (at most 1.2x)
sleepers   claims of plain jobs while 100,000 workflows sleep (no slower than without)
blocked    claims of other jobs while 100,000 jobs are blocked at one limit (at most 10 % slower)
fairness   tenant A has 100,000 jobs of 20 ms queued, B enqueues 10: how many more of A's start before
           B's last, and how many jobs are run in a second beside as many without tenants (at most
           10 % fewer)

The cost is CPU time: of this process, and of the server's where the store has one. The two sides are run
in turns, so that a busy machine disturbs both alike. Printed are the medians and their ratio. How many
jobs are run in a second is a matter of the clock: on a busy machine both sides lose.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# The harness is not installed with the package; it is found next to this script.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil

from tests.redis_servers import RedisServer
from tests.servers import PostgresServer
from winch import App, Limit, chord
from winch.core.job import Claim
from winch.core.lifecycle import JobState
from winch.core.values.ids import random_id
from winch.storage.params import ClaimParams, Finish, NewSession

BATCH = 100
STORES = ("sqlite", "postgres", "redis")


class Bench:
    """An app on a fresh store, and the CPU time that using it has cost."""

    def __init__(self, url: str, server: psutil.Process | None) -> None:
        self.url = url
        self.app = App(url)
        self.app.migrate()
        self._server = server

    def cpu(self) -> float:
        """Seconds of CPU, of this process and of the server's, also those that have ended."""
        return time.process_time() + self._of_server()

    def _of_server(self) -> float:
        if self._server is None:
            return 0.0
        while True:
            # A process that ends between two looks would be counted nowhere, or twice.
            ended, server = self._ended(), 0.0
            with suppress(psutil.NoSuchProcess):
                for process in (living := self._server.children()):
                    times = process.cpu_times()
                    server += times.user + times.system
                if living == self._server.children() and ended == self._ended():
                    return ended + server
            time.sleep(0.01)

    def _ended(self) -> float:
        """Of the server's first process, and of those that have ended."""
        assert self._server is not None  # noqa: S101  # asked by the above alone
        times = self._server.cpu_times()
        return times.user + times.system + times.children_user + times.children_system

    def cost(self, act: Callable[[], Any]) -> float:
        # To look at the server's processes costs as well, and is left out.
        server, own = self._of_server(), time.process_time()
        act()
        own = time.process_time() - own
        return own + self._of_server() - server


@contextmanager
def bench(store: str) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="winch-cost-") as folder:
        if store == "sqlite":
            made = Bench(f"sqlite:///{folder}/cost.db", None)
            yield made
            made.app.close()
            return
        if store == "redis":
            with RedisServer() as redis:
                made = Bench(redis.url, psutil.Process(redis.pid))
                yield made
                made.app.close()
            return
        with PostgresServer() as server:
            made = Bench(server.new_database(), psutil.Process(server.pid))
            yield made
            made.app.close()


def in_turns(rounds: int, *sides: Callable[[], float]) -> list[float]:
    """The median of each side."""
    found: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for side, costs in zip(sides, found, strict=True):
            costs.append(side())
    return [statistics.median(costs) for costs in found]


def report(store: str, what: str, plain: float, other: float, most: float, unit: str = "µs") -> None:
    ratio = other / plain
    verdict = "ok" if ratio <= most else "TOO MUCH"
    print(
        f"{store:<9}{what}: {plain:.1f} {unit} plain, {other:.1f} {unit}: {ratio:.2f}x {verdict}",
        flush=True,
    )


# -- chord -------------------------------------------------------------------------------------------


def measure_chord(store: str, size: int) -> None:
    with bench(store) as made:
        app = made.app

        @app.task(name="member", queue="chord")
        async def member(n: int) -> int:
            return n

        @app.task(name="total", queue="chord")
        async def total(found: list[int]) -> int:
            return len(found)

        def plain() -> float:
            def act() -> None:
                app.enqueue_many([member.bind(n) for n in range(size)])
                app.run_worker(queues=["chord"], burst=True)

            return made.cost(act) / size * 1e6

        def chorded() -> float:
            def act() -> None:
                flow = chord([member.bind(n) for n in range(size)], total.partial()).enqueue()
                while not flow.last[0].refresh().state.is_final:
                    app.run_worker(queues=["chord"], burst=True)
                assert flow.result() == size  # noqa: S101  # a figure of something else would be worse

            return made.cost(act) / size * 1e6

        plain()  # the first round pays for imports and plans
        alone, together = in_turns(9, plain, chorded)
        report(store, f"chord of {size:,}, per member", alone, together, 1.5)


# -- memory ------------------------------------------------------------------------------------------


def large_app(url: str) -> tuple[App, Any, Any]:
    app = App(url)

    @app.task(name="member", queue="large")
    async def member(n: int) -> int:
        return n

    @app.task(name="ended", queue="large")
    async def ended() -> None: ...

    return app, member, ended


def produce(url: str, size: int) -> None:
    app, member, ended = large_app(url)
    chord((member.bind(n) for n in range(size)), ended.bind()).enqueue()
    app.close()


def work(url: str, size: int) -> None:
    app, _, _ = large_app(url)
    app.run_worker(queues=["large"], burst=True)
    app.close()


def act_and_report(act: Callable[[str, int], None], url: str, size: int, sender: Connection) -> None:
    act(url, size)
    # Of this program alone: what getrusage reports includes the process it was started from.
    lines = Path("/proc/self/status").read_text().splitlines()
    sender.send(next(line for line in lines if line.startswith("VmHWM")))


def most_memory(act: Callable[[str, int], None], url: str, size: int) -> float:
    """MB that a process of its own has held at most."""
    spawning = multiprocessing.get_context("spawn")
    found, sender = spawning.Pipe(duplex=False)
    process = spawning.Process(target=act_and_report, args=(act, url, size, sender))
    process.start()
    sender.close()
    line: str = found.recv()
    process.join()
    return int(line.split()[1]) / 1024


def measure_large(store: str, size: int) -> None:
    with bench(store) as made:
        url = made.url
        few, many = (
            [most_memory(act, url, count) for act in (produce, work)] for count in (size // 10, size)
        )
        for what, less, more in zip(("enqueue", "run"), few, many, strict=True):
            report(store, f"most memory to {what} {size:,} beside {size // 10:,}", less, more, 1.2, "MB")
        driver = made.app.ready()
        counts = driver.run(driver.counts(cap=2 * size))
        assert counts[JobState.COMPLETED] >= size, counts  # noqa: S101  # as above


# -- claims beside what waits ------------------------------------------------------------------------


def session(session_id: str) -> NewSession:
    return NewSession(
        id=session_id,
        worker="cost",
        host="cost",
        pid=1,
        release="0",
        queues=("q",),
        tasks=(),
        slots=BATCH,
        lease=timedelta(hours=1),
    )


class Claims:
    """Claims and finishes of plain jobs in batches, as a busy worker sends them."""

    def __init__(self, made: Bench) -> None:
        self._made = made
        self._driver = made.app.ready()
        self._session = random_id(b"s" * 16)
        self._driver.run(self._driver.start_session(session(self._session)))

        @made.app.task(name="plain", queue="q")
        def plain() -> None: ...

        self._plain = plain
        self._tokens = iter(range(1, 1_000_000))

    def batch(self, gated: int | None = 0) -> float:
        """µs of CPU for the claim of one job."""
        self._made.app.enqueue_many([self._plain.bind() for _ in range(BATCH)])
        token = random_id(next(self._tokens).to_bytes(16, "big"))
        params = ClaimParams(session=self._session, token=token, queues=("q",), limit=BATCH, gated=gated)
        claims: list[Claim] = []

        def claim() -> None:
            found = self._driver.run(self._driver.claim(params))
            claims.extend(found)

        cost = self._made.cost(claim)
        assert len(claims) == BATCH  # noqa: S101  # as above
        ends = [
            Finish(id=claim.id, token=claim.token, to=JobState.COMPLETED, what="completed")
            for claim in claims
        ]
        self._driver.run(self._driver.finish(ends))
        return cost / BATCH * 1e6


def beside(store: str, what: str, fill: Callable[[App], None], gated: int | None) -> None:
    """Claims in an empty store and in one that is filled."""
    with bench(store) as empty, bench(store) as full:
        fill(full.app)
        claims, others = Claims(empty), Claims(full)
        for _ in range(5):
            claims.batch(gated), others.batch(gated)
        plain, other = in_turns(60, lambda: claims.batch(gated), lambda: others.batch(gated))
        report(store, what, plain, other, 1.1)


def measure_sleepers(store: str, count: int) -> None:
    def fill(app: App) -> None:
        @app.task(name="sleeper", queue="q")
        def sleeper() -> None: ...

        # A workflow that sleeps is a scheduled job with its history as a checkpoint.
        calls = sleeper.using(delay="30d")
        for start in range(0, count, 10_000):
            app.enqueue_many([calls.bind() for _ in range(start, min(start + 10_000, count))])

    beside(store, f"claim beside {count:,} that sleep", fill, 0)


def measure_blocked(store: str, count: int) -> None:
    def fill(app: App) -> None:
        @app.task(name="limited", queue="q", limit=Limit(1))
        def limited() -> None: ...

        for start in range(0, count, 10_000):
            app.enqueue_many([limited.bind() for _ in range(start, min(start + 10_000, count))])
        driver = app.ready()
        holder = random_id(b"b" * 16)
        driver.run(driver.start_session(session(holder)))
        for n in range(count):
            token = random_id(b"blocked" + n.to_bytes(9, "big"))
            driver.run(driver.claim(ClaimParams(session=holder, token=token, queues=("q",), limit=500)))
            if not driver.run(driver.has_gated(["q"])):
                break
        counts = driver.run(driver.counts(cap=count))
        assert counts[JobState.BLOCKED] == count - 1, counts  # noqa: S101  # as above

    beside(store, f"claim beside {count:,} blocked at a limit", fill, None)


# -- fairness ----------------------------------------------------------------------------------------


ROUNDS, RUNS = 3, 100


class Queue:
    """Many jobs of A's queued, with tenants or without, and a worker of two slots now and then."""

    def __init__(self, made: Bench, count: int, *, with_tenants: bool) -> None:
        self.started: list[str] = []
        self._with_tenants = with_tenants
        self._app = made.app

        @made.app.task(name="work", queue="q")
        async def work(tenant: str) -> None:
            self.started.append(tenant)
            await asyncio.sleep(0.02)

        self._work = work
        for start in range(0, count, 10_000):
            size = min(10_000, count - start)
            made.app.enqueue_many([self._of("a").bind("a") for _ in range(size)])

    def _of(self, tenant: str) -> Any:
        return self._work.using(tenant=tenant) if self._with_tenants else self._work

    async def run(self, *, b_comes: bool = False) -> tuple[float, int]:
        """Jobs a second; and how many of A's started after B enqueued ten and before its last did."""
        started = self.started
        started.clear()
        async with self._app.worker(queues=["q"], concurrency=2):
            while len(started) < 20:  # noqa: ASYNC110  # a list is what is counted
                await asyncio.sleep(0.005)
            began, at = time.monotonic(), len(started)
            for _ in range(10 if b_comes else 0):
                await self._of("b").aenqueue("b")
            mark = len(started)
            while len(started) < at + RUNS:  # noqa: ASYNC110  # as above
                await asyncio.sleep(0.005)
            rate = (len(started) - at) / (time.monotonic() - began)
        places = [n for n, tenant in enumerate(started) if tenant == "b"]
        if len(places) < 10:
            return rate, len(started)
        return rate, sum(tenant == "a" for tenant in started[mark : places[-1]])


def measure_fairness(store: str, count: int) -> None:
    with bench(store) as one, bench(store) as other:
        plain = Queue(one, count, with_tenants=False)
        fair = Queue(other, count, with_tenants=True)
        rates: tuple[list[float], list[float]] = ([], [])
        before: list[int] = []
        costs: tuple[list[float], list[float]] = ([], [])
        for _ in range(ROUNDS):
            for queue, made, found, cost in zip((plain, fair), (one, other), rates, costs, strict=True):
                spent = made.cpu()
                rate, of_a = asyncio.run(queue.run(b_comes=queue is fair))
                found.append(rate)
                cost.append((made.cpu() - spent) / len(queue.started) * 1e6)
                before += [of_a] if queue is fair else []
    verdict = "ok" if max(before) <= 40 else "TOO MUCH"
    queued = f"{store:<9}fairness, {count:,} of A's queued"
    print(f"{queued}: at most {max(before)} of A's before B's tenth {verdict}")
    usual, shared = (statistics.median(found) for found in rates)
    loss = 1 - shared / usual
    verdict = "ok" if loss <= 0.1 else "TOO MUCH"
    print(
        f"{store:<9}fairness: {usual:.1f} jobs a second plain, {shared:.1f}: loss {loss:.0%} {verdict}"
        f" (CPU {statistics.median(costs[0]):.0f} µs plain, {statistics.median(costs[1]):.0f} µs)",
        flush=True,
    )


MEASURES: dict[str, tuple[Callable[[str, int], None], int]] = {
    "chord": (measure_chord, 10_000),
    "large": (measure_large, 100_000),
    "sleepers": (measure_sleepers, 100_000),
    "blocked": (measure_blocked, 100_000),
    "fairness": (measure_fairness, 100_000),
}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", choices=[*MEASURES, []], default=list(MEASURES))
    parser.add_argument("--store", choices=STORES)
    parser.add_argument("--size", type=int, help="other than 10,000 members or 100,000 jobs")
    args = parser.parse_args(argv)
    for what in args.what or MEASURES:
        measure, size = MEASURES[what]
        for store in [args.store] if args.store else STORES:
            measure(store, args.size or size)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

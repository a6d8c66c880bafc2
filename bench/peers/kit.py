"""What every Python adapter is made of; needs nothing but the standard library.

An adapter is a file beside this one that describes one job system by a `Peer`. The harness starts it in
the system's own environment, in one of two ways:

    python ADAPTER.py producer      takes one JSON request per line on stdin, answers with one per line
    python ADAPTER.py worker        runs jobs until it is stopped (SIGTERM, then SIGKILL)

Requests of a producer: setup, fill, single, bulk, concurrent, paced, pending. Everything else comes from
the environment: BENCH_URL (the store), BENCH_TALLY (a folder), BENCH_KIND (async, sync or isolated),
BENCH_JOB_MS, BENCH_FAIL, BENCH_PAD, BENCH_SLOTS. For jobs under flow control: BENCH_GATE (which kind),
BENCH_LIMIT, BENCH_RATE (starts a second), BENCH_KEYS (0: each job has a key of its own), and
BENCH_SPANS, with which every job also notes when it began and ended.

Every job of every system has the same arguments, (n, sent, pad), and the same body: `ran`, `ran_async`
or `ran_alone`.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

URL = os.environ.get("BENCH_URL", "")
KIND = os.environ.get("BENCH_KIND", "async")
JOB_SECONDS = float(os.environ.get("BENCH_JOB_MS", "0")) / 1000
FAILS = os.environ.get("BENCH_FAIL") == "1"
PAD = "x" * int(os.environ.get("BENCH_PAD", "0"))
SLOTS = int(os.environ.get("BENCH_SLOTS", "0")) or None
GATE = os.environ.get("BENCH_GATE", "")
LIMIT = int(os.environ.get("BENCH_LIMIT", "50"))
RATE = int(os.environ.get("BENCH_RATE", "1000000"))
KEYS = int(os.environ.get("BENCH_KEYS", "500"))
SPANS = os.environ.get("BENCH_SPANS") == "1"
FAILS_EVERY = 1 if GATE == "retries" else 100 if FAILS else 0
TALLY = Path(os.environ.get("BENCH_TALLY", "."))
CHUNK = 1000
TALLY_SECONDS = 0.02

# --- the body of a job, and its count ---------------------------------------------------------------

_next = itertools.count(1).__next__  # atomic, so that threads need no lock
_count = 0
_first = 0
_waits: list[int] = []
_seen: set[int] = set()
_spans: list[tuple[int, int, int]] = []


class Planned(Exception):
    """Every job, or one in a hundred, raises this on its first attempt, if the scenario has failures."""


def key(n: int) -> str:
    """The key of job n, where jobs have one."""
    return f"k{n % KEYS if KEYS else n}"


def ran(n: int, sent: int) -> None:
    """The whole of a synchronous job."""
    began = time.monotonic_ns() if SPANS else 0
    _note(n, sent)
    if JOB_SECONDS:
        time.sleep(JOB_SECONDS)
    if SPANS:
        _spans.append((n, began, time.monotonic_ns()))


async def ran_async(n: int, sent: int) -> None:
    """The whole of an asynchronous job."""
    began = time.monotonic_ns() if SPANS else 0
    _note(n, sent)
    if JOB_SECONDS:
        await asyncio.sleep(JOB_SECONDS)
    if SPANS:
        _spans.append((n, began, time.monotonic_ns()))


def ran_alone() -> None:
    """The whole of a job whose process may end right after it: one byte, written at once."""
    descriptor = os.open(TALLY / "alone", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, b".")
    os.close(descriptor)


def _note(n: int, sent: int) -> None:
    global _count  # noqa: PLW0603  # a counter per process, read by the tally thread
    _count = count = _next()
    if count == 1:
        _start_tally()
    if sent:
        _waits.append(time.monotonic_ns() - sent)
    if FAILS_EVERY and n % FAILS_EVERY == 0 and n not in _seen:
        _seen.add(n)
        raise Planned


def _start_tally() -> None:
    global _first  # noqa: PLW0603
    _first = time.monotonic_ns()
    threading.Thread(target=_keep_tally, daemon=True).start()


def _keep_tally() -> None:
    """Write how many jobs began here, now and then: nothing that a job itself would have to pay."""
    path = TALLY / f"{os.getpid()}.count"
    written = waits = spans = 0
    while True:
        count = _count
        if count != written:
            line = f"{count} {_first} {time.monotonic_ns()}"
            path.with_suffix(".new").write_text(line)
            path.with_suffix(".new").rename(path)
            written = count
        if len(_waits) > waits:
            fresh = _waits[waits:]
            with path.with_suffix(".waits").open("a") as file:
                file.write("".join(f"{wait}\n" for wait in fresh))
            waits += len(fresh)
        if len(_spans) > spans:
            ended = _spans[spans:]
            with path.with_suffix(".spans").open("a") as file:
                file.write("".join(f"{n} {began} {end}\n" for n, began, end in ended))
            spans += len(ended)
        time.sleep(TALLY_SECONDS)


# --- the producer -----------------------------------------------------------------------------------


class Unsupported(Exception):
    """The system has no such thing; the message names what is missing."""


class Peer:
    """One job system. Methods may be plain or async; an async one runs on the producer's loop."""

    at_once = int(os.environ.get("BENCH_AT_ONCE", "10000"))
    """How many jobs it is given in one call of `enqueue_many`; fewer where it is faster with fewer."""

    async def open(self) -> None:
        """Connect as an application would."""

    def setup(self) -> Any:
        """Create tables, once per store, before anything else."""

    def enqueue(self, n: int, sent: int) -> Any:
        """Store one job, durably as the store does it."""
        raise Unsupported("enqueue")

    def enqueue_many(self, first: int, count: int) -> Any:
        """Store jobs first … first + count - 1 in the way the system means for many."""
        raise Unsupported("no bulk enqueue")

    def pending(self) -> Any:
        """How many jobs are not finished yet."""
        raise Unsupported("pending")

    def work(self) -> Any:
        """Run jobs until stopped."""
        raise Unsupported("work")


async def together(
    enqueue: Callable[[int, int], Any], first: int, count: int, callers: int = 50
) -> None:
    """Store many jobs where there is no bulk call: from so many coroutines at once."""
    numbers = iter(range(first, first + count))

    async def call() -> None:
        for n in numbers:
            await enqueue(n, 0)

    await asyncio.gather(*(call() for _ in range(callers)))


async def _await(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class Producer:
    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.n = 0

    async def setup(self) -> dict[str, Any]:
        await _await(self.peer.setup())
        await _await(self.peer.open())
        return {}

    async def open(self) -> dict[str, Any]:
        await _await(self.peer.open())
        return {}

    async def fill(self, count: int) -> dict[str, Any]:
        """Store `count` jobs, by bulk where there is one."""
        started = time.monotonic_ns()
        end = self.n + count
        try:
            while self.n < end:
                step = min(CHUNK, end - self.n)
                await _await(self.peer.enqueue_many(self.n, step))
                self.n += step
        except Unsupported:
            while self.n < end:
                await _await(self.peer.enqueue(self.n, 0))
                self.n += 1
        return {"count": count, "seconds": (time.monotonic_ns() - started) / 1e9}

    async def single(self, seconds: float) -> dict[str, Any]:
        """One job after another, each stored before the next is sent."""
        enqueue, n = self.peer.enqueue, self.n
        is_async = inspect.iscoroutinefunction(enqueue)
        started = time.monotonic_ns()
        end = started + int(seconds * 1e9)
        now = started
        while now < end:
            if is_async:
                await enqueue(n, 0)
            else:
                enqueue(n, 0)
            n += 1
            now = time.monotonic_ns()
        count, self.n = n - self.n, n
        return {"count": count, "seconds": (now - started) / 1e9}

    async def bulk(self, seconds: float) -> dict[str, Any]:
        """Thousands of jobs after other thousands."""
        started = now = time.monotonic_ns()
        end = started + int(seconds * 1e9)
        first = self.n
        while now < end:
            await _await(self.peer.enqueue_many(self.n, self.peer.at_once))
            self.n += self.peer.at_once
            now = time.monotonic_ns()
        return {"count": self.n - first, "seconds": (now - started) / 1e9}

    async def concurrent(self, seconds: float, callers: int) -> dict[str, Any]:
        """Many coroutines of one process, each storing one job after another."""
        if not inspect.iscoroutinefunction(self.peer.enqueue):
            raise Unsupported("no async enqueue")
        numbers = itertools.count(self.n)
        started = time.monotonic_ns()
        end = started + int(seconds * 1e9)
        done = 0

        async def call() -> None:
            nonlocal done
            while time.monotonic_ns() < end:
                await self.peer.enqueue(next(numbers), 0)
                done += 1

        await asyncio.gather(*(call() for _ in range(callers)))
        self.n += done
        return {"count": done, "seconds": (time.monotonic_ns() - started) / 1e9}

    async def paced(self, count: int, gap: float) -> dict[str, Any]:
        """One job every `gap` seconds, each with the time at which its enqueue began."""
        started = time.monotonic()
        for i in range(count):
            wait = started + i * gap - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            await _await(self.peer.enqueue(self.n, time.monotonic_ns()))
            self.n += 1
        return {"count": count, "seconds": time.monotonic() - started}

    async def pending(self) -> dict[str, Any]:
        at = time.monotonic_ns()
        return {"count": int(await _await(self.peer.pending())), "at": at}


async def _serve(peer: Peer, answers: Any) -> None:
    producer = Producer(peer)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        request = json.loads(line)
        name = request.pop("do")
        # What only one system can be asked, its adapter answers itself.
        verb: Callable[..., Any] = getattr(producer, name, None) or getattr(peer, name)
        try:
            answer = await _await(verb(**request))
        except Unsupported as error:
            answer = {"unsupported": str(error)}
        except Exception as error:  # the harness decides what a failure means
            answer = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main(peer: Peer) -> None:
    """Run an adapter as the harness asked."""
    if sys.argv[1:] == ["producer"]:
        # The answers keep the pipe; whatever a library prints goes to stderr.
        answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        asyncio.run(_serve(peer, answers))
        os._exit(0)  # a library's own threads do not keep the harness waiting
    elif sys.argv[1:] == ["worker"]:
        found = peer.work()
        if inspect.isawaitable(found):

            async def wait() -> None:
                await found

            asyncio.run(wait())
    else:
        sys.exit(f"usage: {sys.argv[0]} producer|worker")

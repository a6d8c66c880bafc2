"""The files that one job visits, found by watching a real one.

    python -m tests.docs.trace                      a plain job on SQLite, the default configuration
    python -m tests.docs.trace --walk failure       a job whose handler fails for the last time
    python -m tests.docs.trace --walk limit         a job under a limit
    python -m tests.docs.trace --store postgres     PostgreSQL, on a server of its own
    python -m tests.docs.trace --functions          with the functions that were called

An app with default settings runs an embedded worker. The worker is idle, and its caches are warm: it ran
a job a moment ago. A producer thread enqueues one job, and every call of a Python function in every
thread is counted until its handler has run and for a moment more, in which the job completes. Then the
same time is counted without a job. A function belongs to the job's path when it is called more often
with the job than without it, in most of many rounds. So heartbeats and other loops drop out because they
run anyway, not because a list names them.

On a busy machine a loop may be called more often with the job by chance, a flush of the metrics for
example. So there are more rounds as long as a file stands out in some of them and not in nearly all. One
that is on the path stands out in nearly all, however many there are.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from tests.servers import PostgresServer
from winch import App, JobState, Limit, Retry
from winch.storage.verbs import Verb

PACKAGE = Path(__file__).parents[2] / "src/winch"
PATH_FOLDERS = ("engine", "drivers")
VALUE_FOLDERS = ("core", "storage")
ROUNDS, MOST_ROUNDS, MOST_TRIES = 12, 40, 80
# The share of the rounds in which a function on the path stands out. Between the others it is unclear.
ENOUGH, CLEARLY_LESS, CLEARLY_MORE = 0.75, 0.6, 0.9
WARM_UP, SECONDS = 0.3, 0.15
# A producer looks at the settings of its queues once a second, here with the warm-up.
LOOKS_AGAIN, STAYS_WARM = 1.05, 0.8

Function = tuple[str, str]
"""The file, relative to the package, and the function's qualified name."""


class Watch:
    """Counts the calls of the package's functions, in threads that start after `install`."""

    def __init__(self) -> None:
        self._counts: Counter[Function] = Counter()
        self._is_on = False
        self._names: dict[Any, Function | None] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def start(self) -> None:
        self._counts = Counter()
        self._is_on = True

    def stop(self) -> Counter[Function]:
        """The counts since `start`, in the order of the first calls."""
        self._is_on = False
        return self._counts

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not self._is_on:
            return
        code = frame.f_code
        try:
            function = self._names[code]
        except KeyError:
            function = self._names[code] = _function(code.co_filename, code.co_qualname)
        if function is None:
            return
        self._counts[function] += 1
        if function[0].startswith("drivers/"):
            for value in tuple(frame.f_locals.values()):
                if isinstance(value, Verb):
                    store = "/".join(function[0].split("/")[:2])
                    self._counts[f"{store}/sql/{value.name}.sql", value.name] += 1


def _function(file: str, name: str) -> Function | None:
    path = Path(file)
    if not path.is_relative_to(PACKAGE):
        return None
    return path.relative_to(PACKAGE).as_posix(), name


@dataclass(frozen=True)
class Trace:
    """What one kind of job called: functions in the order of their first calls."""

    functions: tuple[Function, ...]
    called: frozenset[str] = frozenset()
    """The files of all functions that were called while a job was under way, also by loops."""

    def files(self, folders: Sequence[str] = PATH_FOLDERS, *, ending: str = ".py") -> list[str]:
        names = dict.fromkeys(file for file, _ in self.functions)
        return [name for name in names if name.split("/")[0] in folders and name.endswith(ending)]

    def sql(self) -> list[str]:
        return [name for name in self.files(("drivers",), ending=".sql") if (PACKAGE / name).exists()]

    def functions_of(self, file: str) -> list[str]:
        return [name for at, name in self.functions if at == file]


Round = tuple[Counter[Function], Counter[Function]]
"""The calls with a job, and without one."""


def shares(rounds: Sequence[Round]) -> dict[Function, float]:
    """By function: in which share of the rounds it is called more often with the job."""
    order = dict.fromkeys(function for with_job, _ in rounds for function in with_job)
    return {
        function: sum(with_job[function] > without[function] for with_job, without in rounds)
        / len(rounds)
        for function in order
    }


def is_clear(rounds: Sequence[Round]) -> bool:
    """Whether each file is on the path or not beyond chance."""
    if len(rounds) < ROUNDS:
        return False
    files: dict[str, float] = {}
    for (file, _), share in shares(rounds).items():
        if file.startswith(PATH_FOLDERS):
            files[file] = max(share, files.get(file, 0.0))
    return not any(CLEARLY_LESS < share < CLEARLY_MORE for share in files.values())


def on_path(rounds: Sequence[Round]) -> Trace:
    """The functions that are called more often with the job than without one in enough rounds."""
    found = shares(rounds)
    functions = tuple(function for function, share in found.items() if share >= ENOUGH)
    return Trace(functions, frozenset(file for file, _ in found))


def trace(url: str, *, is_async: bool, walk: str = "success") -> Trace:
    """The path of a job on this store."""
    watch = Watch()
    with watch.installed():
        return asyncio.run(_trace(watch, url, is_async=is_async, walk=walk))


class Expected(Exception):
    """What the handler of the walk `failure` raises."""


WALKS: dict[str, dict[str, Any]] = {
    "success": {},
    "failure": {"retry": Retry.fixed("1s", attempts=1)},
    "limit": {"limit": Limit(5, key="n")},
}


async def _trace(watch: Watch, url: str, *, is_async: bool, walk: str) -> Trace:
    app = App(url)
    fails = walk == "failure"
    end = JobState.DEAD if fails else JobState.COMPLETED

    loop, has_run = asyncio.get_running_loop(), asyncio.Event()

    async def coroutine(n: int) -> None:
        has_run.set()
        if fails:
            raise Expected

    def function(n: int) -> None:
        loop.call_soon_threadsafe(has_run.set)
        if fails:
            raise Expected

    async def once(enqueue: Callable[[], Any]) -> Any:
        """Enqueue a job and wait until its handler has run."""
        has_run.clear()
        job = await _produced(enqueue)
        async with asyncio.timeout(60):
            await has_run.wait()
        return job

    task = app.task(name="plain", **WALKS[walk])(coroutine if is_async else function)
    app.ready()
    rounds: list[Round] = []
    warmed = float("-inf")
    async with app.worker():
        for number in range(MOST_TRIES):
            # Rounds of one length would meet a loop that runs every second at the same place each time.
            await asyncio.sleep(number * 0.618 % 1)
            await _until(warmed + LOOKS_AGAIN)
            warmed = loop.time()
            await once(lambda: task.enqueue(n=0))
            await asyncio.sleep(WARM_UP)
            # The same time for both counts, however long the enqueue takes: loops run by the clock.
            start = _starts(watch)
            job = await once(lambda: task.enqueue(n=1))
            await asyncio.sleep(SECONDS)
            with_job = watch.stop()
            length = loop.time() - start
            is_completed = (await job.arefresh()).state is end
            is_warm = start - warmed < STAYS_WARM
            start = _starts(watch)
            await _produced(lambda: None)
            await _until(start + length)
            without_job = watch.stop()
            if is_completed and is_warm:  # else the machine is busy: the round does not count
                rounds.append((with_job, without_job))
            if len(rounds) == MOST_ROUNDS or is_clear(rounds):
                break
    await app.aclose()
    assert len(rounds) >= ROUNDS, f"the machine is too busy: {len(rounds)} rounds of {MOST_TRIES} count"
    return on_path(rounds)


def _starts(watch: Watch) -> float:
    """Count from now on; returns the time."""
    watch.start()
    return asyncio.get_running_loop().time()


async def _until(end: float) -> None:
    await asyncio.sleep(max(end - asyncio.get_running_loop().time(), 0.0))


async def _produced(call: Callable[[], Any]) -> Any:
    """Make the call in a thread of its own, as a producer does; `asyncio.to_thread` without its pool."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def produce() -> None:
        value = call()
        loop.call_soon_threadsafe(done.set_result, value)

    threading.Thread(target=produce, name="producer", daemon=True).start()
    return await done


@contextmanager
def store_url(store: str) -> Iterator[str]:
    """The URL of a new store."""
    if store == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{folder}/winch.db"
    else:
        with PostgresServer() as server:
            yield server.new_store()


def show(title: str, traced: Trace, *, has_functions: bool) -> str:
    files = traced.files()
    lines = [f"{title}: {len(files)} files of {' and '.join(PATH_FOLDERS)}"]
    for number, file in enumerate(files, 1):
        lines.append(f"{number:4} {file}")
        if has_functions:
            lines.append(f"       {', '.join(traced.functions_of(file))}")
    for folder in VALUE_FOLDERS:
        values = traced.files((folder,))
        lines.append(f"  apart, {folder}/ ({len(values)}): {', '.join(values)}")
    lines.append(f"  apart, SQL: {', '.join(traced.sql())}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.docs.trace", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--walk", choices=tuple(WALKS), default="success")
    parser.add_argument("--functions", action="store_true", help="with the functions that were called")
    args = parser.parse_args()
    with store_url(args.store) as url:
        for title, is_async in (("async def", True), ("def", False)):
            traced = trace(url, is_async=is_async, walk=args.walk)
            text = show(f"{args.store}, {args.walk}, {title}", traced, has_functions=args.functions)
            sys.stdout.write(f"{text}\n\n")


if __name__ == "__main__":
    main()

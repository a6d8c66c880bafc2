"""The processes of one contender: a producer that answers requests, and workers that are watched."""

from __future__ import annotations

import ctypes
import json
import math
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.catalog import Contender
from bench.environments import ADAPTERS, Environment

ANSWER_SECONDS = 240.0
STALL_SECONDS = 30.0
LOOK_SECONDS = 0.01


class Failed(Exception):
    """A contender could not be measured; the message has the reason."""


class Unsupported(Failed):
    """The system does not have what the scenario asks for."""


def _die_with_parent() -> None:
    """In the child, before exec: nothing outlives a killed harness."""
    pr_set_pdeathsig = 1
    with suppress(OSError):
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _start(
    command: list[str], folder: Path, variables: Mapping[str, str], log: Path, pipes: bool
) -> Any:
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env=os.environ | dict(variables),
            stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipes else output,
            stderr=output,
            cwd=folder,
            start_new_session=True,  # Ctrl-C is the harness's to handle; it stops these in order
            preexec_fn=_die_with_parent,  # noqa: PLW1509  # the harness starts no thread
            text=pipes,
        )


class Producer:
    """An adapter that takes requests."""

    def __init__(self, process: Any, log: Path) -> None:
        self._process, self._log = process, log

    def ask(self, verb: str, **request: Any) -> dict[str, Any]:
        """Send a request and wait for the answer."""
        try:
            self._process.stdin.write(json.dumps({"do": verb, **request}) + "\n")
            self._process.stdin.flush()
            if not select.select([self._process.stdout], [], [], ANSWER_SECONDS)[0]:
                raise Failed(f"{verb}: no answer in {ANSWER_SECONDS:.0f} s")
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise Failed(f"the producer ended: {tail(self._log)}")
        answer: dict[str, Any] = json.loads(line)
        if "unsupported" in answer:
            raise Unsupported(answer["unsupported"])
        if "error" in answer:
            raise Failed(f"{verb}: {answer['error']}")
        return answer


@dataclass(frozen=True)
class Tally:
    """What the workers have begun so far; times are nanoseconds of the monotonic clock."""

    count: int
    first: int
    at: int


class Workers:
    """The worker processes of one contender and the folder in which they count."""

    def __init__(self, processes: list[Any], tally: Path, log: Path) -> None:
        self._processes, self._folder, self._log = processes, tally, log

    def tally(self) -> Tally:
        count, first, at = 0, 0, 0
        for path in self._folder.glob("*.count"):
            with suppress(ValueError, OSError):
                here, begun, seen = map(int, path.read_text().split())
                count += here
                first = min(first or begun, begun)
                at = max(at, seen)
        with suppress(OSError):
            count += (self._folder / "alone").stat().st_size
            at = at or time.monotonic_ns()
        return Tally(count, first, at)

    def waits(self) -> dict[str, list[int]]:
        """Nanoseconds from the beginning of each enqueue to the start of its job, by process."""
        found = {}
        for path in self._folder.glob("*.waits"):
            text = path.read_text()
            found[path.name] = [*map(int, text[: text.rfind("\n") + 1].split())]
        return found

    def spans(self) -> list[tuple[int, int, int]]:
        """Number, begin and end of every job that has ended, where jobs note them."""
        found = []
        for path in self._folder.glob("*.spans"):
            text = path.read_text()
            words = [*map(int, text[: text.rfind("\n") + 1].split())]
            found += [*zip(words[::3], words[1::3], words[2::3], strict=True)]
        return found

    def wait_for(
        self, count: int, look: Callable[[Tally], None] | None = None, within: float = math.inf
    ) -> Tally:
        """Wait until so many jobs have begun, as long as ever more do, and at most `within` seconds."""
        last, began = -1, time.monotonic()
        moved = began
        while True:
            tally = self.tally()
            if look is not None:
                look(tally)
            if tally.count >= count:
                return tally
            if tally.count != last:
                last, moved = tally.count, time.monotonic()
            if time.monotonic() - moved > STALL_SECONDS:
                raise Failed(f"stalled after {last} of {count} jobs: {tail(self._log)}")
            if time.monotonic() - began > within:
                raise Failed(f"only {tally.count} of {count} jobs in {within:.0f} s: {tail(self._log)}")
            if any(process.poll() is not None for process in self._processes):
                raise Failed(f"a worker ended: {tail(self._log)}")
            time.sleep(LOOK_SECONDS)

    def tree(self) -> Iterator[psutil.Process]:
        for process in self._processes:
            with suppress(psutil.NoSuchProcess):
                root = psutil.Process(process.pid)
                yield from (root, *root.children(recursive=True))

    def cpu_seconds(self) -> float:
        total = 0.0
        for process in self.tree():
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def memory(self) -> int:
        """Bytes of the largest process: the one that runs the jobs."""
        sizes = [0]
        for process in self.tree():
            with suppress(psutil.NoSuchProcess):
                sizes.append(process.memory_info().rss)
        return max(sizes)


@dataclass(frozen=True)
class Launcher:
    """Starts the processes of one contender."""

    contender: Contender
    environment: Environment

    @contextmanager
    def producer(self, url: str, **variables: str) -> Iterator[Producer]:
        with _log_file() as log:
            command = [*self.environment.program, "producer"]
            process = _start(command, self._folder, self._variables(url, variables), log, pipes=True)
            try:
                yield Producer(process, log)
            finally:
                process.stdin.close()
                stop([process], grace=2.0)
                process.stdout.close()

    @contextmanager
    def workers(self, url: str, processes: int = 1, **variables: str) -> Iterator[Workers]:
        folder = Path(tempfile.mkdtemp(prefix="winch-tally-"))
        own = self.contender.system.runs_own_processes
        variables |= {"BENCH_TALLY": str(folder), "BENCH_PROCESSES": str(processes)}
        started: list[Any] = []
        with _log_file() as log:
            try:
                for _ in range(1 if own else processes):
                    command = [*self.environment.program, "worker"]
                    settings = self._variables(url, variables)
                    started.append(_start(command, self._folder, settings, log, pipes=False))
                yield Workers(started, folder, log)
            finally:
                stop(started, grace=5.0)
                shutil.rmtree(folder, ignore_errors=True)

    @property
    def _folder(self) -> Path:
        return self.environment.folder

    def _variables(self, url: str, more: Mapping[str, str]) -> dict[str, str]:
        return {
            "BENCH_URL": url,
            "PYTHONPATH": str(ADAPTERS),
            "PYTHONUNBUFFERED": "1",
            **self.environment.variables,
            **more,
        }


@contextmanager
def _log_file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="winch-bench-log-") as folder:
        yield Path(folder) / "log"


def tail(log: Path, lines: int = 6) -> str:
    text = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    # Results are shared: no home folder in them.
    return " | ".join(text[-lines:]).replace(str(Path.home()), "~") or "no output"


def stop(processes: list[Any], grace: float) -> None:
    """SIGTERM, then SIGKILL, to each process group; waits for the end."""
    for process in processes:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                process.terminate()
    deadline = time.monotonic() + grace
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

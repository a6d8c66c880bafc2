"""Many runs, some side by side, each in a process of its own and with a limit of its own.

A run that hangs or takes its process down is one failed run, with its reason; the others go on. Each
verdict is written to a journal as it falls, so that a series that was broken off can be taken up again.
"""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil

from lab.results import Result, load

if TYPE_CHECKING:
    from lab.faults import Fault

ROOT = Path(__file__).resolve().parents[1]
# Six times what the longest run takes on a machine with nothing else to do.
LIMIT = 480.0
# Time for a run to stop its servers after its stop signal.
LEAVING = 30.0


class Planned(msgspec.Struct, frozen=True):
    """A run that is to be made."""

    fault: str
    title: str
    store: str
    seed: int

    @classmethod
    def of(cls, faults: Sequence[type[Fault]], store: str, seed: int) -> Planned:
        names, titles = (fault.name for fault in faults), (fault.title for fault in faults)
        return cls("+".join(names), ", and ".join(titles), store, seed)

    def is_run_of(self, result: Result) -> bool:
        return (result.fault, result.store, result.seed) == (self.fault, self.store, self.seed)

    def broken(self, seconds: float, reason: str) -> Result:
        return Result(
            store=self.store,
            fault=self.fault,
            title=self.title,
            seed=self.seed,
            is_ok=False,
            observed="broke off",
            seconds=seconds,
            violations=(reason,),
        )


def play(
    runs: Sequence[Planned],
    *,
    seconds: float,
    at_once: int,
    logs: Path | None = None,
    limit: float = LIMIT,
) -> Iterator[Result]:
    """Each run's result, as they end."""
    waiting: queue.SimpleQueue[Planned] = queue.SimpleQueue()
    for run in runs:
        waiting.put(run)
    ended: queue.SimpleQueue[Result | BaseException] = queue.SimpleQueue()
    is_over = threading.Event()

    def lane() -> None:
        while not is_over.is_set():
            try:
                run = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                ended.put(apart(run, seconds=seconds, logs=logs, limit=limit, is_over=is_over))
            except BaseException as error:  # raised in the main thread
                ended.put(error)

    lanes = [threading.Thread(target=lane) for _ in range(at_once)]
    for thread in lanes:
        thread.start()
    try:
        for _ in runs:
            found = ended.get()
            if isinstance(found, BaseException):
                raise found
            yield found
    finally:
        is_over.set()
        for thread in lanes:
            thread.join()


def apart(
    run: Planned, *, seconds: float, limit: float, is_over: threading.Event, logs: Path | None = None
) -> Result:
    """Make one run in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="winch-lane-") as folder:
        kept, output = Path(folder) / "results.jsonl", Path(folder) / "output"
        words = ["--fault", run.fault, "--store", run.store, "--seed", str(run.seed)]
        words += ["--seconds", f"{seconds:g}", "--keep", str(kept)]
        if logs is not None:
            words += ["--logs", str(logs.absolute())]
        with output.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "lab", *words],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # an interrupt from the keyboard reaches it through us
            )
        left = limit
        while process.poll() is None and left > 0 and not is_over.is_set():
            left -= 0.2
            try:
                process.wait(0.2)
            except subprocess.TimeoutExpired:
                continue
        is_late = process.poll() is None
        if is_late:
            _end(process)
        results = load(kept)
        if results:
            return results[-1]
        why = f"ended after {limit:g} s" if is_late else f"its process ended with {process.returncode}"
        text = output.read_text(errors="replace").splitlines()[-60:]
        return run.broken(round(limit - left, 1), "\n".join([why, *text]))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let it put its servers away; kill what is left of it and of what it has started."""
    below = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(LEAVING)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    # Servers have a guard, which ends them when this process has; workers and producers have none.
    for child in below:
        if child.is_running() and "server_guard.py" not in " ".join(_words(child)):
            child.kill()


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []

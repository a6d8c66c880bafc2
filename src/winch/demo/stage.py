"""The stage of `winch demo`: the worker's process, and the reporter that prints each job's changes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from winch import App, Job, WinchError
from winch.demo.terminal import bold, dim, one_line, say, state
from winch.types import Entry, JobState

LOOK_EVERY = 0.03
LONGEST = 30.0
WAIT = 20.0
# Short, so that a kill shows within the tour's time.
SETTINGS = {
    "WINCH_LEASE": "3s",
    "WINCH_HEARTBEAT": "1s",
    "WINCH_SWEEP": "1s",
    "WINCH_POLL": "500ms",
    "WINCH_KILL_AFTER": "1s",
}


class WorkerProcess:
    """A real `winch worker`; its log goes to a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "worker.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "winch", "worker", "-A", "winch.demo.tasks:app"]
        command += ["--url", f"sqlite:///{self._folder / 'demo.db'}"]
        command += ["-Q", "default,line,bulk", "-c", "8", "-p", "2", "--grace", "5s"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, env=os.environ | SETTINGS, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @staticmethod
    def kill_child(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def stop(self) -> int:
        """Ask it to stop; returns its exit code."""
        if self._process is None:
            return 0
        self._process.terminate()
        return self._process.wait(timeout=LONGEST)

    def kill(self) -> None:
        """Whatever happened, leave no worker behind. Its children end when it is gone."""
        if self._process is not None and self.is_alive:
            self._process.terminate()
            try:
                self._process.wait(timeout=LONGEST)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def last_words(self) -> list[str]:
        try:
            return self._log.read_text(errors="replace").splitlines()[-15:]
        except OSError:
            return []


@dataclass
class _Actor:
    job: Job[Any]
    state: JobState | None = None
    claimed_at: datetime | None = None
    seen: int = 0


@dataclass(frozen=True)
class TourEnding:
    """How one thing that the tour followed should have ended, and how it did."""

    name: str
    what: str
    expected: str
    actual: str

    @property
    def is_right(self) -> bool:
        return self.actual == self.expected


class Stage:
    """Follows jobs and prints every change it sees, with the time since the beginning."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._began = time.monotonic()
        self._actors: dict[str, _Actor] = {}
        self._expected: list[tuple[str, str, str, Callable[[], str]]] = []

    def seconds(self) -> float:
        return time.monotonic() - self._began

    def title(self, words: str) -> None:
        say()
        say(bold(words))

    def tell(self, sentence: str) -> None:
        say(f"  {dim(f'{self.seconds():5.1f}s')}  {sentence}")

    def expect(self, name: str, what: str, expected: str, look: Callable[[], str]) -> None:
        """A line of the summary: what should be, and how to see what is."""
        self._expected.append((name, what, expected, look))

    def endings(self) -> list[TourEnding]:
        """The lines of the summary, with what is."""
        return [
            TourEnding(name, what, expected, _actual(look))
            for name, what, expected, look in self._expected
        ]

    def follow(
        self,
        job: Job[Any],
        name: str,
        what: str,
        expected: str,
        look: Callable[[Job[Any]], str] = lambda job: str(job.state),
    ) -> None:
        """Introduce a job; `watch` and `until` print its changes."""
        self._actors[name] = _Actor(job)
        self.expect(name, what, expected, lambda: look(job.refresh()))
        self.tell(f"{bold(name)} is enqueued: {what}")

    def watch(self, *names: str, state: JobState | None = None) -> None:
        """Look and print until these jobs are final, or in `state`."""

        def are_there() -> bool:
            states = [self._actors[name].state for name in names]
            return all(s is not None and (s.is_final or s is state) for s in states)

        self.until(are_there, " and ".join(names), LONGEST)

    def until(self, is_so: Callable[[], bool], what: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        while True:
            self._look()
            if is_so():
                return
            if time.monotonic() > end:
                raise TimeoutError(f"waited {seconds:g}s for {what}")
            time.sleep(LOOK_EVERY)

    def _look(self) -> None:
        for name, actor in self._actors.items():
            if actor.state is not None and actor.state.is_final:
                continue
            record = actor.job.refresh().record
            news = [_happened(entry) for entry in record.history[actor.seen :]]
            actor.seen = len(record.history)
            # A new claim is news although the state may be the same: the looks are not that frequent.
            if (record.state, record.claimed_at) != (actor.state, actor.claimed_at):
                news.append(self._became(actor.job))
            actor.state, actor.claimed_at = record.state, record.claimed_at
            for sentence in filter(None, news):
                self.tell(f"{bold(name)} {sentence}")

    def _became(self, job: Job[Any]) -> str:
        record = job.record
        match record.state:
            case JobState.RUNNING:
                pids = {session.id: session.pid for session in self._app.workers.list()}
                where = pids.get(record.session or "", "another process")
                return f"is {state('running')}, attempt {record.attempt}, in process {where}"
            case JobState.COMPLETED:
                result = "" if record.result is None else f": {json.loads(record.result)}"
                return f"is {state('completed')}{one_line(result)}"
            case JobState.DEAD | JobState.CANCELLED:
                return f"is {state(record.state)}: {one_line(record.reason or '')}"
            case JobState.RETRYING | JobState.SCHEDULED:
                seconds = max((record.run_at - datetime.now(UTC)).total_seconds(), 0.0)
                return f"is {state(record.state)}, due in {seconds:.1f}s"
            case _:
                return ""


def _actual(look: Callable[[], str]) -> str:
    try:
        return look()
    except WinchError as error:
        return f"{type(error).__name__}: {error}"


def _happened(entry: Entry) -> str:
    error = entry.error
    match entry.what:
        case "failed" if error is not None:
            return f"failed at attempt {entry.attempt}: {error.name}: {one_line(error.message)}"
        case "crashed" if error is not None:
            return f"lost its process, {one_line(error.message)}; it is ready again at once"
        case "rescued":
            return "is rescued: its worker's lease was over"
        case "snoozed":
            return "snoozes; no attempt is spent"
        case "cancel requested":
            return f"is asked to stop by {one_line(entry.by or 'a user')}"
        case _:
            return ""

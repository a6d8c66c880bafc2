"""Faults of schedulers and of clocks."""

from __future__ import annotations

import time

from lab.faults.base import SQL, Fault
from lab.history import History, Verdict, Violation
from lab.history.lines import Nemesis, Started
from lab.judge import named
from tests.faults.clocks import MovableClock
from tests.faults.fleet import Worker

HOURS = 2 * 3600


class KillScheduler(Fault):
    name = "F29"
    title = "three schedulers, each killed during a tick, before or after the store received it"
    stores = SQL
    every = (0.5, 1.0)
    takeover = None  # all of them may be dead at once

    def prepare(self) -> None:
        self.hook()

    def begin(self) -> None:
        for worker in list(self.run.workers):
            worker.kill_all()
            worker.wait(30)
            self.run.workers.remove(worker)
            self._start()

    def _start(self) -> None:
        place = f"change_schedule:{self.rng.choice(['before', 'after'])}:{self.rng.randrange(3, 12)}"
        self.run.start_worker(env={**self.run.worker_env, "LAB_DIE_AT": place})

    def strike(self) -> None:
        for worker in list(self.run.workers):
            if worker.process.poll() is not None:
                self.run.workers.remove(worker)
                self._start()

    def heal(self) -> None:
        """The workers that are left would still die of the poison job."""
        for worker in list(self.run.workers):
            if worker.process.poll() is None:
                worker.kill_all()
                worker.wait(30)
            self.run.replace(worker)

    def observed(self, history: History, verdict: Verdict) -> str:
        deaths = [
            line
            for line in history.lines
            if isinstance(line, Nemesis) and line.note.endswith("change_schedule")
        ]
        windows = sum(len(windows) for windows in history.windows.values())
        return f"{len(deaths)} died at a tick, {windows} windows" if deaths and windows else ""


class WrongClocks(Fault):
    name = "F17"
    title = "the wall clock of workers and of a producer moved by two hours, while they run"
    stores = ("postgres", "redis")
    every = (1.0, 3.0)

    def prepare(self) -> None:
        self.clocks = [MovableClock(self.run.folder, str(number)) for number in range(3)]
        self.starting = iter(self.clocks)
        start = self.run.start_worker

        def start_with_clock(**how: object) -> Worker:
            clock = next(self.starting, self.clocks[0])
            return start(**{"env": {**self.run.worker_env, **clock.env}, **how})

        self.run.start_worker = start_with_clock  # type: ignore[method-assign]

    def strike(self) -> None:
        clock = self.rng.choice(self.clocks[:2])  # one keeps the right time
        clock.set(self.rng.choice([-HOURS, 0, HOURS]))

    def heal(self) -> None:
        self.skewed = self._skewed()
        self.run.recorder.nemesis("skew", sorted(self.skewed), count=len(self.skewed))

    def _skewed(self) -> set[int]:
        from lab.history import read

        offset = time.time() - time.monotonic()
        return {
            line.pid
            for line in read(self.run.recorder.folder)
            if isinstance(line, Started) and abs(line.wall - line.mono - offset) > HOURS - 60
        }

    def observed(self, history: History, verdict: Verdict) -> str:
        return (
            f"{len(self.skewed)} workers ran jobs with a clock off by two hours" if self.skewed else ""
        )

    def judge(self, history: History, verdict: Verdict) -> list[Violation]:
        if count := named(verdict, "rescued"):
            return [Violation("I20", None, f"{count} jobs were rescued, and no worker had died")]
        return []

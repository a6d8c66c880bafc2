"""Faults of worker processes: killed, stopped, busy, stopped politely, named alike."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from lab.app import PLAIN
from lab.faults.base import SINGLE, Fault
from lab.history import History, Verdict, Violation
from lab.history.lines import Exited, Nemesis, Started
from lab.judge import named
from tests.faults.apps import LEASE
from tests.faults.fleet import Worker
from winch.core.lifecycle import JobState


class KillWorker(Fault):
    name = "F1"
    title = "kill -9 of a worker and its supervisor"
    stores = (*SINGLE, "redis+cluster", "pgbouncer")

    def strike(self) -> None:
        victim = self.rng.choice(self.run.workers)
        if victim.process.poll() is None:
            # A supervisor alone or all of its processes: the orphans must find out by themselves.
            self.rng.choice([victim.kill_supervisor, victim.kill_all])()
        self.run.replace(victim)

    def observed(self, history: History, verdict: Verdict) -> str:
        killed = named(verdict, "killed")
        return f"{killed} killed, {named(verdict, 'rescued')} jobs rescued" if killed else ""


class KillChild(Fault):
    name = "F2"
    title = "kill -9, SIGSEGV and exit of a child"
    every = (2.0, 4.0)

    def begin(self) -> None:
        how = self.rng.choice(["SIGKILL", "SIGSEGV", "exit"])
        self.poison = self.run.enqueue("poison", how)

    def strike(self) -> None:
        victim = self.rng.choice(self.run.workers)
        if children := victim.children():
            victim.kill_child(self.rng.choice(children))

    def observed(self, history: History, verdict: Verdict) -> str:
        return f"{named(verdict, 'killed')} children died" if named(verdict, "killed") > 3 else ""

    def judge(self, history: History, verdict: Verdict) -> list[Violation]:
        found = []
        for job in history.jobs:
            if job.id in self.poison and (job.state is not JobState.DEAD or job.crashes != 3):
                words = f"a poison pill is {job.state} after {job.crashes} crashes, not dead after 3"
                found.append(Violation("I13", job.id, words))
            if job.id not in self.poison and job.state is JobState.DEAD:
                found.append(Violation("I13", job.id, f"a neighbour died: {job.reason}"))
        return found


class StopWorker(Fault):
    name = "F3"
    title = "SIGSTOP of a worker for longer than its lease, then SIGCONT"
    every = (0.5, 2.0)

    def strike(self) -> None:
        while (victim := self._busy()) is not None:
            victim.stop()
            is_holding = self._holds(victim)  # what it had may have ended just before
            if is_holding:
                time.sleep(LEASE + 3)
            victim.go_on()
            if is_holding:
                return

    def _busy(self) -> Worker | None:
        """A worker that runs jobs: stopping an idle one proves nothing."""
        while not self.run.is_over.is_set():
            for worker in self.rng.sample(self.run.workers, len(self.run.workers)):
                if self._holds(worker):
                    return worker
            time.sleep(0.02)
        return None

    def _holds(self, worker: Worker) -> bool:
        return any(session.running for session in self.run.sessions_of(worker))

    def observed(self, history: History, verdict: Verdict) -> str:
        stopped, rescued = named(verdict, "stopped"), named(verdict, "rescued")
        return (
            f"{stopped} stopped, {rescued} rescued, {named(verdict, 'lost')} late writes refused"
            if (stopped and rescued)
            else ""
        )


class HoldGil(Fault):
    name = "F4"
    title = "a handler that holds the GIL for three leases"
    every = (1.0, 2.0)

    def begin(self) -> None:
        self.held: list[str] = []

    def strike(self) -> None:
        if not self.held:
            self.held = self.run.enqueue("spin", 3 * LEASE)

    def observed(self, history: History, verdict: Verdict) -> str:
        lines = [line for line in history.lines if isinstance(line, Started) and line.job in self.held]
        return f"held for {3 * LEASE:g} s" if lines else ""

    def judge(self, history: History, verdict: Verdict) -> list[Violation]:
        runs = [line for line in history.lines if isinstance(line, Started) and line.job in self.held]
        if len(runs) > 1:
            return [Violation("alive", self.held[0], f"the handler was run {len(runs)} times")]
        if named(verdict, "rescued"):
            return [Violation("alive", None, "a job was rescued, and no worker had died")]
        return []


class RollingRestart(Fault):
    name = "F28"
    title = "SIGTERM of one worker after another, under load"
    stores = (*SINGLE, "redis+cluster", "pgbouncer")
    every = (1.5, 2.5)

    def strike(self) -> None:
        victim = self.rng.choice(self.run.workers)
        self.run.start_worker()
        self.run.workers.remove(victim)
        victim.term()
        if self.rng.random() < 0.3:
            victim.term_again()
        code = victim.wait(30)
        # A worker without its signal handlers yet ends by the signal, and has claimed nothing.
        is_early = code == -signal.SIGTERM and "stopping" not in victim.text()
        assert is_early or code in (0, 70), (
            f"a worker ended with {code} after its stop signal\n{victim.text()}"
        )

    def observed(self, history: History, verdict: Verdict) -> str:
        count = named(verdict, "term")
        return f"{count} workers replaced" if count else ""

    def judge(self, history: History, verdict: Verdict) -> list[Violation]:
        codes = [line for line in history.lines if isinstance(line, Exited) and line.code == 70]
        spent = [
            Violation("I15", job.id, f"a stop cost it an attempt: {job.attempt}")
            for job in history.jobs
            if job.task in PLAIN and job.state is JobState.COMPLETED and job.attempt != 1
        ]
        return spent + [
            Violation("I15", None, f"worker {line.worker} left jobs to their lease") for line in codes
        ]


class SameName(Fault):
    name = "F32"
    title = "all workers have the same name, host and pid, and are killed"
    every = (3.0, 5.0)

    def prepare(self) -> None:
        self.hook(LAB_TWIN="1")
        self.run.are_twins = True

    def strike(self) -> None:
        KillWorker.strike(self)  # type: ignore[arg-type]

    def observed(self, history: History, verdict: Verdict) -> str:
        ours = [session for session in history.sessions if session.pid]
        names = {session.worker for session in ours}
        killed = named(verdict, "killed")
        is_so = killed and len(names) == 1 and len(ours) > len(self.run.workers)
        return f"{len(ours)} sessions named {names.pop()}, {killed} killed" if is_so else ""


class OutOfMemory(Fault):
    name = "F20"
    title = "a child that exceeds its memory limit, and a child that the kernel kills"
    stores = SINGLE
    every = (3.0, 5.0)

    def begin(self) -> None:
        self.hogs: list[str] = []
        self.limited: set[int] = set()
        self.limit()
        self.poison = self.run.enqueue("poison", "SIGKILL")

    def limit(self) -> None:
        """Limit new children too: each replaces one that the poison killed."""
        import psutil

        for worker in self.run.workers:
            for child in set(worker.children()) - self.limited:
                with suppress(psutil.NoSuchProcess):
                    process = psutil.Process(child)
                    limit = process.memory_info().vms + (600 << 20)
                    process.rlimit(psutil.RLIMIT_AS, (limit, limit))
                    self.limited.add(child)

    def strike(self) -> None:
        self.limit()
        self.hogs += self.run.enqueue("hog", 1024)

    def observed(self, history: History, verdict: Verdict) -> str:
        failed = [
            j for j in history.jobs if j.id in self.hogs and j.error and j.error.type == "MemoryError"
        ]
        return f"{len(failed)} allocations refused, {named(verdict, 'killed')} killed" if failed else ""

    def judge(self, history: History, verdict: Verdict) -> list[Violation]:
        mine = {*self.hogs, *self.poison}
        dead = [job for job in history.jobs if job.state is JobState.DEAD and job.id not in mine]
        found = [Violation("I13", job.id, f"a neighbour died: {job.reason}") for job in dead]
        alive = [job for job in history.jobs if job.id in self.poison and job.crashes != 3]
        return found + [
            Violation("I13", job.id, f"{job.crashes} crashes of a poison pill") for job in alive
        ]


def live(workers: list[Worker]) -> list[Worker]:
    return [worker for worker in workers if worker.process.poll() is None]


def kill(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def acts(history: History, action: str) -> int:
    return sum(
        line.count for line in history.lines if isinstance(line, Nemesis) and line.action == action
    )

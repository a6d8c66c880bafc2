"""One run's store, processes and load: faults at random times, then peace, then a verdict.

Nothing is decided by a clock of the lab's: a machine that is busy makes a run longer, and the history
stays the same. A run whose faults did nothing proves nothing, and fails.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import takewhile
from pathlib import Path

import msgspec

from lab import load
from lab.app import SETTINGS, SWEEP, TRANSACTIONAL, LabApp, make
from lab.history import History, Recorder, gather, read
from lab.history.lines import Replied
from lab.stores import Store
from tests.faults.apps import LEASE
from tests.faults.fleet import Fleet, Worker, until
from tests.servers import free_port
from winch.core.errors import StorageError
from winch.core.lifecycle import FINAL, JobState
from winch.storage.params import JobFilter, SessionInfo

QUEUES = "default"
# A sweep may just have passed when a lease ends, and a busy machine takes its time.
TAKEOVER = timedelta(seconds=2 * SWEEP + 8)
# Without one job less: how long a queue takes is a matter of the machine, that it goes on is not.
DRAIN = 120.0
# A producer of fifteen seconds, on a machine that has much else to do.
PRODUCING = 300.0
# Looking costs: the whole history is read, or the store is asked to count.
STEP = 0.1
SCHEDULE = "each second"


class Run:
    """What a fault acts on: the store, the fleet, and the history so far."""

    def __init__(
        self,
        store: Store,
        folder: Path,
        seed: int,
        *,
        seconds: float = load.SECONDS,
        jobs: int = load.JOBS,
    ) -> None:
        self.store = store
        self.folder = folder
        self.seed = seed
        self.seconds = seconds
        self.jobs = jobs
        self.rng = random.Random(seed)
        (folder / "history").mkdir()
        self.recorder = Recorder(folder / "history")
        self.app: LabApp = make(store.url, recorder=self.recorder)
        env = {f"WINCH_{name.upper()}": f"{value:g}s" for name, value in SETTINGS.items()}
        env |= {"WINCH_EVENTS": "full", "WINCH_URL": store.worker_url, **store.env}
        self.fleet = Fleet(folder, self.recorder, env, "lab.app:app")
        self.workers: list[Worker] = []
        self.worker_env: dict[str, str] = {}
        self.flags: list[str] = []
        self.is_over = threading.Event()
        self.measures: dict[str, float] = {}
        # Sessions all have the same pid, so that it identifies no worker.
        self.are_twins = False
        # The most processes for each core that wanted to run.
        self.busiest = 0.0
        # A fault may take back what was written last.
        self.may_be_set_back = False
        self._producers: list[subprocess.Popen[bytes]] = []
        self.over_http: list[subprocess.Popen[bytes]] = []

    # -- acting ------------------------------------------------------------------------------------

    def start_worker(self, **how: object) -> Worker:
        given: dict[str, object] = {
            "concurrency": load.SLOTS,
            "env": self.worker_env,
            "flags": self.flags,
        }
        worker = self.fleet.worker(queues=QUEUES, **(given | how))  # type: ignore[arg-type]
        self.workers.append(worker)
        return worker

    def replace(self, worker: Worker) -> Worker:
        """A new worker in the place of one that is gone."""
        self.workers.remove(worker)
        return self.start_worker()

    def enqueue(self, task: str, *args: object, times: int = 1, **using: object) -> list[str]:
        """Store jobs from here, noted like a producer's."""
        producer = load.Producer(self.app, self.recorder, f"{self.seed}/{task}/{time.monotonic_ns()}")
        found: list[str] = []
        for _ in range(times):
            before = self.app.notary.drawn[-1:] if self.app.notary else []
            producer._call(task, *args, **using)
            assert self.app.notary is not None
            found += [one for one in self.app.notary.drawn[-1:] if [one] != before]
        return found

    def pause(self, shortest: float, longest: float, rng: random.Random) -> bool:
        """Wait for a while, or until the load is over: False then."""
        return not self.is_over.wait(rng.uniform(shortest, longest))

    # -- looking -----------------------------------------------------------------------------------

    def sessions(self) -> list[SessionInfo]:
        driver = self.app.driver
        return driver.run(driver.sessions(is_ended_too=True))

    def sessions_of(self, worker: Worker) -> list[SessionInfo]:
        children = worker.children()
        return [s for s in self.sessions() if s.pid in children and s.ended_at is None]

    def until(self, condition: Callable[[], bool], seconds: float, what: str) -> float:
        def holds() -> bool:
            with suppress(StorageError):
                return condition()
            return False

        return until(holds, seconds, what, self.fleet.logs, STEP)

    def until_ready(self, worker: Worker) -> None:
        def is_there() -> bool:
            assert worker.process.poll() is None, worker.text()
            if self.are_twins:
                return sum(s.ended_at is None and s.pid for s in self.sessions()) >= len(self.workers)
            return bool(self.sessions_of(worker))

        self.until(is_there, 60, "a worker's session")

    def _count_left(self) -> int:
        self.busiest = max(self.busiest, os.getloadavg()[0] / (os.cpu_count() or 1))
        counts = self.app.driver.run(self.app.driver.counts())
        return sum(counts[state] for state in JobState if state not in FINAL)

    def are_final(self) -> bool:
        return self._count_left() == 0

    # -- the course of a run -----------------------------------------------------------------------

    def prepare(self) -> None:
        self.app.migrate()
        self.app.ready()
        if self.has_effects:
            with self.app.transaction() as conn:
                conn.execute("CREATE TABLE effect (job TEXT, fence BIGINT)")
        self.app.schedules.add(SCHEDULE, task="tick", every="1s", misfire="all")

    @property
    def has_effects(self) -> bool:
        return self.app.driver.capabilities.joins_transactions and self.store.has_sql

    def begin(self) -> None:
        for _ in range(load.WORKERS):
            self.start_worker()
        self._serve()
        for worker in self.workers:
            self.until_ready(worker)
        for number in range(load.PRODUCERS):
            words = [f"{self.seed}/{number}", str(self.jobs), f"{self.seconds:g}"]
            self._producers.append(self.fleet.helper("-m", "lab.load", *words))
        pids = {producer.pid for producer in self._producers}
        self.until(
            lambda: (
                pids <= {line.pid for line in read(self.recorder.folder) if isinstance(line, Replied)}
            ),
            60,
            "the producers",
        )

    def _serve(self) -> None:
        """The HTTP API, and a worker that knows nothing else."""
        port = str(free_port())
        server = self.fleet.helper("-m", "winch", "serve", "-A", "lab.app:app", "--port", port)
        self.over_http = [server, self.fleet.helper("-m", "lab.http_worker", port)]

    def heal(self) -> None:
        """Bring the fleet back to its size and let the producers end."""
        for worker in list(self.workers):
            if worker.process.poll() is not None:
                self.replace(worker)
        for producer in self._producers:
            try:
                code = producer.wait(PRODUCING)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"a producer did not end\n{self.fleet.logs()}") from None
            assert code == 0, f"a producer ended with {code}\n{self.fleet.logs()}"

    def drain(self) -> dict[str, tuple[datetime, ...]]:
        """Let everything end and stay quiet for two leases; returns the windows that must have a job."""
        windows = self._stop_schedule()
        self.until(self._give_up_batches, 60, "the batches that were left open to be given up")
        left = sys.maxsize

        def are_fewer() -> bool:
            nonlocal left
            before, left = left, min(left, self._count_left())
            return left < before

        while left:
            try:
                self.until(are_fewer, DRAIN, "all jobs to be final")
            except AssertionError as error:
                if self.may_be_set_back:
                    self.may_be_set_back = False
                    self._give_up_batches(is_known_too=True)
                    continue
                raise AssertionError(f"{self._left()}\n{error}") from None
        time.sleep(2 * LEASE)
        self.until(self.are_final, 5, "all jobs to stay final")
        return windows

    def _left(self) -> str:
        states = tuple(state for state in JobState if state not in FINAL)
        driver = self.app.driver
        found = driver.run(driver.list_jobs(JobFilter(states=states, limit=10))).jobs
        return "\n".join(
            f"I2: {job.id} {job.task} v{job.version} is {job.state}, attempt {job.attempt}, "
            f"args {job.args[:80]!r}: {self.app.jobs.get(job.id).why()}"
            for job in found
        )

    def _give_up_batches(self, *, is_known_too: bool = False) -> bool:
        """Do the part of a producer whose block raised because the store was gone in the middle of
        it: the batch stays open for good, and its callback blocked (docs/howto/flows.md). A store that
        was set back may also have forgotten that a batch was closed."""
        lines = [line for line in read(self.recorder.folder) if isinstance(line, Replied)]
        unknown = {job for line in lines if line.outcome == "unknown" for job in line.ids}
        driver = self.app.driver
        which = JobFilter(states=(JobState.BLOCKED,), task="all_done", limit=1000)
        found = [job.id for job in driver.run(driver.list_jobs(which)).jobs]
        left = [job for job in found if is_known_too or job in unknown]
        if left:
            driver.run(driver.cancel(left, by="lab"))
        return True

    def _pause_schedule(self) -> bool:
        self.app.schedules.pause(SCHEDULE)
        return True

    def _stop_schedule(self) -> dict[str, tuple[datetime, ...]]:
        self.until(self._pause_schedule, 30, "the schedule to stop")
        one = self.app.schedules.get(SCHEDULE)
        last = one.last_window
        if last is None:
            return {SCHEDULE: ()}
        found = takewhile(lambda window: window <= last, one.timing.after(one.created_at))
        return {SCHEDULE: tuple(found)}

    def end_workers(self) -> None:
        left = [worker for worker in self.workers if worker.process.poll() is None]
        for worker in left:
            worker.term(is_fault=False)
        for worker in left:
            code = worker.wait(40)
            assert code == 0, f"exit code {code}\n{worker.text()}"
        for process in reversed(self.over_http):
            assert process.poll() is None, f"what speaks HTTP has ended\n{self.fleet.logs()}"
            process.terminate()
            code = process.wait(40)
            assert code == 0, f"exit code {code} of what speaks HTTP\n{self.fleet.logs()}"

    def history(self, windows: dict[str, tuple[datetime, ...]], takeover: timedelta | None) -> History:
        found = gather(
            self.app.driver, self.recorder.folder, expects_fault=False, takeover_limit=takeover
        )
        runs = {run.window for run in found.runs if run.kind.value != "enqueued"}
        expected = {name: tuple(w for w in all_ if w not in runs) for name, all_ in windows.items()}
        effects: tuple[str, ...] | None = None
        if self.has_effects:
            with self.app.transaction() as conn:
                rows = conn.execute("SELECT job FROM effect").fetchall()
            effects = tuple(row[0] for row in rows)
        return msgspec.structs.replace(
            found,
            windows=expected,
            effects=effects,
            transactional=TRANSACTIONAL,
            # On a busy machine a worker may be slow to handle its stop signal.
            stop_settle=timedelta(seconds=3),
            # One call may take hundreds, or ask several servers one after another.
            claim_call=timedelta(seconds=LEASE),
        )

    def close(self) -> None:
        self.fleet.end()
        self.app.close()

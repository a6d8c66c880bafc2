"""Where one scenario plays: a store of its own, a recorder, a fleet of workers, and the verdict."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, Self

import msgspec
import pytest

from lab.history import History, Recorder, Verdict, check, gather, read
from lab.history.lines import Ended, Started
from tests.faults.apps import HEARTBEAT, LEASE, SETTINGS, SWEEP, FaultApp, make
from tests.faults.fleet import Fleet, Worker, until
from tests.redis_servers import RedisServer
from tests.servers import Databases
from winch.core.errors import EnqueueUncertain, StorageError, StorageUnavailable
from winch.core.job import JobRecord
from winch.core.lifecycle import FINAL, JobState
from winch.core.values.ids import random_id
from winch.storage.params import Event, JobFilter, SessionInfo

STORES = ("sqlite", "postgres")
# For faults that lie in the worker and not in its store: each time on one, with `make test-all` on both.
ONE_STORE = [pytest.param(one, marks=[pytest.mark.slow] * (one == "postgres")) for one in STORES]
# What scenarios found out, for the end of the run.
MEASURED: list[str] = []
# A sweep may just have passed when a lease ends, and a slow machine takes its time.
TAKEOVER = timedelta(seconds=2 * SWEEP + 0.5)


class Stage:
    """One scenario's own world. Nothing in it is shared but, for PostgreSQL, the server."""

    def __init__(
        self,
        name: str,
        store: str,
        databases: Databases,
        url: str | None = None,
        *,
        events: Literal["off", "full"] = "full",
    ) -> None:
        self.name = name
        self.store = store
        self._databases = databases
        self._temporary = tempfile.TemporaryDirectory(prefix="winch-faults-")
        self.folder = Path(self._temporary.name)
        self._made: str | None = None
        self._server: RedisServer | None = None
        if url is None and store == "sqlite":
            url = f"sqlite:///{self.folder / 'winch.db'}"
        elif url is None and store == "redis":
            self._server = RedisServer(fsync="always")
            self._server.start()
            url = self._server.url
        elif url is None:
            url = self._made = databases.new_store()
        self.url = url
        (self.folder / "history").mkdir()
        self.recorder = Recorder(self.folder / "history")
        self.app: FaultApp = make(url, events=events)
        self.producer = self.app
        env = {f"WINCH_{name.upper()}": f"{value:g}s" for name, value in SETTINGS.items()}
        env |= {"WINCH_URL": url, "WINCH_EVENTS": events}
        self.fleet = Fleet(self.folder, self.recorder, env)

    def __enter__(self) -> Self:
        try:
            self.app.migrate()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.fleet.end()
        self.app.close()
        if self._made is not None:
            self._databases.drop_database(self._made)
        if self._server is not None:
            self._server.remove()
        self._temporary.cleanup()

    # -- acting ------------------------------------------------------------------------------------

    def worker(self, **how: Any) -> Worker:
        """Start a worker and wait until all its children have a session."""
        worker = self.fleet.worker(**how)
        self.ready(worker, how.get("processes", 1))
        return worker

    def ready(self, worker: Worker, processes: int = 1) -> None:
        def is_there() -> bool:
            assert worker.process.poll() is None, worker.text()
            return len(self.sessions_of(worker)) >= processes

        until(is_there, 20, "a worker's sessions", self.fleet.logs)

    def two_workers(
        self, processes: int = 2, env: Mapping[str, str] | None = None
    ) -> tuple[Worker, Worker]:
        """One that claims nothing until it is woken but sweeps, and one that takes the jobs to come."""
        other = self.fleet.worker(concurrency=8)
        doomed = self.fleet.worker(concurrency=2, processes=processes, env=env)
        self.ready(other)
        other.quiet()
        self.ready(doomed, processes)
        # By now it has received the command to be quiet; and when a lease that begins now is over, it
        # will have beaten for a whole one, and may sweep.
        [session] = self.sessions_of(other)
        self.until(
            lambda: any(s.id == session.id and s.beats >= 3 for s in self.sessions()), 10, "three beats"
        )
        return other, doomed

    def sessions_of(self, worker: Worker) -> list[SessionInfo]:
        children = worker.children()
        return [s for s in self.sessions() if s.pid in children and s.ended_at is None]

    def enqueue(
        self,
        task: str,
        *args: object,
        times: int = 1,
        delay: str | None = None,
        fifo: str | None = None,
    ) -> list[str]:
        """Store jobs, one call each, and record each request and its answer."""
        ids = []
        for _ in range(times):
            drawn = random_id(os.urandom(16))
            ids.append(drawn)
            self._enqueue_one(task, drawn, args, delay, fifo)
        return ids

    def _enqueue_one(
        self, task: str, drawn: str, args: tuple[object, ...], delay: str | None, fifo: str | None
    ) -> None:
        call = self.recorder.sent([drawn])
        try:
            using = self.producer.tasks.get(task).using(id=drawn, delay=delay, fifo=fifo)
            job = using.enqueue(*args)
        except (EnqueueUncertain, StorageUnavailable) as error:
            unknown = isinstance(error, EnqueueUncertain) or error.maybe_applied
            self.recorder.replied(call, "unknown" if unknown else "failed", [drawn])
        else:
            self.recorder.replied(call, "acked", [job.id], [job.is_new])

    # -- looking -----------------------------------------------------------------------------------

    def jobs(self, ids: list[str]) -> list[JobRecord]:
        driver = self.app.driver
        return [record for record in driver.run(driver.get(ids)) if record is not None]

    def sessions(self) -> list[SessionInfo]:
        driver = self.app.driver
        return driver.run(driver.sessions(is_ended_too=True))

    def events(self, kind: str | None = None) -> list[Event]:
        driver = self.app.driver
        found = driver.run(driver.events())
        return [event for event in found if kind in (None, event.kind)]

    def runs(self, job: str | None = None) -> list[Started]:
        lines = read(self.recorder.folder)
        return [line for line in lines if isinstance(line, Started) and job in (None, line.job)]

    def ends(self, job: str | None = None) -> list[Ended]:
        lines = read(self.recorder.folder)
        return [line for line in lines if isinstance(line, Ended) and job in (None, line.job)]

    # -- waiting -----------------------------------------------------------------------------------

    def until(self, condition: Callable[[], bool], seconds: float, what: str) -> float:
        return until(condition, seconds, what, self._situation)

    def _situation(self) -> str:
        """For a failure's message: the logs, the ended processes, and some unfinished jobs."""
        replied = [self.fleet.logs(), f"ended: {self.fleet.ended()}"]
        try:
            driver = self.app.driver
            left = JobFilter(states=tuple(set(JobState) - FINAL), limit=8)
            replied += map(str, driver.run(driver.list_jobs(left)).jobs)
        except StorageError as error:
            replied.append(f"the store cannot be asked: {error}")
        return "\n".join(replied)

    def until_started(self, ids: list[str], times: int = 1, seconds: float = 20) -> None:
        def have_started() -> bool:
            seen = [line.job for line in self.runs()]
            return all(seen.count(job) >= times for job in ids)

        self.until(have_started, seconds, f"the start of {len(ids)} jobs")

    def until_entitled(self) -> None:
        """Wait until the workers have beaten for longer than a lease, so that they may sweep."""
        enough = LEASE / HEARTBEAT + 2
        self.until(
            lambda: all(session.beats >= enough for session in self.sessions()), 20, "a lease of beats"
        )

    def until_final(self, seconds: float = 30) -> float:
        """Wait until every job is final; an outage that is still healing is waited out."""

        def are_final() -> bool:
            with suppress(StorageError):
                driver = self.app.driver
                counts = driver.run(driver.counts())
                return not any(counts[state] for state in JobState if state not in FINAL)
            return False

        return self.until(are_final, seconds, "all jobs to be final")

    # -- judging -----------------------------------------------------------------------------------

    def end_workers(self) -> None:
        """Stop the workers that are left, gracefully, and see that they end well."""
        left = [worker for worker in self.fleet.workers if worker.process.poll() is None]
        for worker in left:
            worker.term(is_fault=False)
        for worker in left:
            code = worker.wait(20)
            assert code == 0, f"exit code {code}\n{worker.text()}"

    def verdict(
        self,
        *,
        takeover_limit: timedelta | None = TAKEOVER,
        clock_tolerance: timedelta = timedelta(seconds=60),
    ) -> Verdict:
        """Stop what runs, read the history and judge it; fails on any violation."""
        self.end_workers()
        history = self.history(takeover_limit=takeover_limit)
        return check(msgspec.structs.replace(history, clock_tolerance=clock_tolerance))

    def history(self, *, takeover_limit: timedelta | None = None) -> History:
        """The history from the store and the lines, before it is judged."""
        return gather(
            self.app.driver,
            self.recorder.folder,
            expects_fault=True,
            takeover_limit=takeover_limit,
        )

    def measured(self, what: str) -> None:
        MEASURED.append(f"{self.name} [{self.store}]: {what}")

    def judge(self, *, takeover_limit: timedelta | None = TAKEOVER) -> Verdict:
        verdict = self.verdict(takeover_limit=takeover_limit)
        assert verdict.is_ok, f"{verdict}\n{self.fleet.logs()}"
        counts = ", ".join(
            f"{name} {count}" for name, count in sorted(verdict.counters.items()) if count
        )
        takeovers = show(taken.total_seconds() for taken in verdict.takeovers)
        self.measured(f"{counts}" + (f"; lease end to rescue {takeovers}" if verdict.takeovers else ""))
        return verdict


def show(seconds: Iterable[float]) -> str:
    """Measured times: all of a few, the extremes of many."""
    found = sorted(seconds)
    if len(found) > 6:
        return f"{found[0]:.2f} to {found[-1]:.2f} s ({len(found)} times)"
    return ", ".join(f"{second:.2f}" for second in found) + " s"

"""Faults of data: rows that Winch cannot write, oversized payloads, a backlog, a backup."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import psutil

from lab.app import make
from lab.faults.base import SINGLE, SQL, Fault
from lab.faults.servers import ServerFault
from lab.history import History, Verdict, Violation
from lab.history.lines import Ended, Started
from lab.stores import REWOUND, Postgres, Redis, Sqlite, base_backup
from winch import App
from winch.core.errors import PayloadTooLarge, WinchError
from winch.core.lifecycle import JobState
from winch.core.values.ids import random_id
from winch.storage.params import NewJob

DEEP = 100_000
LIMIT = 256 * 1024
GAP = 6.0


class PoisonedRows(Fault):
    name = "F26"
    title = (
        "rows that no client would write: broken JSON, NUL, NaN, depth 100,000, unknown task or version"
    )
    stores = (*SINGLE, "redis+cluster")
    every = (0.5, 1.0)

    BAD: Sequence[dict[str, Any]] = (
        {"args": '{"seconds": '},
        {"args": ""},
        {"args": "[1, 2"},
        {"args": "null"},
        {"args": '"text"'},
        {"args": '{"seconds": NaN}'},
        {"args": '{"seconds": "\\u0000"}'},
        {"args": '{"seconds": "\\ud800"}'},
        {"args": '{"seconds": 1, "seconds": "x"}'},
        {"args": "[" * DEEP + "]" * DEEP},
        {"args": '{"seconds": 1e999}'},
        {"args": '{"unknown": "argument"}'},
        {"args": '{"seconds": 0.01}', "version": 99},
        {"args": '{"seconds": 0.01}', "version": -1},
        {"args": '{"seconds": 0.01}', "options": '{"timeout": "never", '},
        {"args": '{"seconds": 0.01}', "options": "[]"},
        {"args": '{"seconds": 0.01}', "headers": {"traceparent": "\x01\u2028", "winch-inputs": "{"}},
    )

    def begin(self) -> None:
        self.bad: list[str] = []
        self.unknown: list[str] = []
        self.refused = 0

    def strike(self) -> None:
        driver = self.run.app.driver
        row = dict(self.rng.choice(self.BAD))
        for task, ids in (("slow", self.bad), ("newcomer", self.unknown)):
            drawn = random_id(os.urandom(16))
            if task == "newcomer":
                row = {"args": '{"seconds": 0.01}'}
            new = NewJob(id=drawn, task=task, is_given_id=True, **row)
            try:
                driver.run(driver.enqueue([new]))
            except (WinchError, ValueError, UnicodeError):
                self.refused += 1  # the store itself keeps it out
            else:
                ids.append(drawn)

    def healed(self) -> None:
        driver = self.run.app.driver
        waiting = [job for job in driver.run(driver.get(self.unknown)) if job is not None]
        # A worker of a later release may come for these; here none does.
        later = [
            job.id for job in driver.run(driver.get(self.bad)) if job is not None and job.version == 99
        ]
        driver.run(driver.cancel(later, by="lab"))
        self.bad = [job for job in self.bad if job not in later]
        self.taken = [job.id for job in waiting if (job.state, job.attempt) != (JobState.READY, 0)]
        self.run.start_worker(env={**self.run.worker_env, "LAB_NEWCOMER": "1"})

    def observed(self, history: History, verdict: Verdict) -> str:
        if not self.bad or not self.unknown:
            return ""
        kept = f"{len(self.bad)} bad rows ({self.refused} refused by the store)"
        return f"{kept}, {len(self.unknown)} unknown tasks"

    def judge(self, history: History, verdict: Verdict) -> list[Violation]:
        found = [
            Violation("I17", job, "no worker had its task; it did not stay ready") for job in self.taken
        ]
        for job in history.jobs:
            if job.id in self.unknown and job.state is not JobState.COMPLETED:
                found.append(
                    Violation("I17", job.id, f"a worker with its task came, and it is {job.state}")
                )
            if (
                job.id in self.bad
                and job.state is not JobState.DEAD
                and job.state is not JobState.COMPLETED
            ):
                found.append(Violation("I16", job.id, f"a bad row is {job.state}"))
            if job.id in self.bad and job.state is JobState.DEAD and not job.reason:
                found.append(Violation("I16", job.id, "a bad row is dead without a reason"))
        return found + steady(history)


def steady(history: History) -> list[Violation]:
    """Healthy jobs kept ending: no long gap between the first start and the last end under load."""
    moments = sorted(line.mono for line in history.lines if isinstance(line, Ended))
    first = min((line.mono for line in history.lines if isinstance(line, Started)), default=0.0)
    load = [moment for moment in moments if moment < first + 15]
    gaps = [late - early for early, late in zip([first, *load], load, strict=False)]
    if gaps and max(gaps) > GAP:
        return [Violation("I16", None, f"no healthy job ended for {max(gaps):.1f} s")]
    return []


class Sizes(Fault):
    name = "F25"
    title = "payloads from 1 kB to 64 MB, and results of 64 MB"
    stores = SINGLE
    every = (0.3, 0.8)

    def begin(self) -> None:
        self.taken, self.refused, self.wrong = 0, 0, list[str]()
        self.results: list[str] = []
        self.before = self._rss()

    def strike(self) -> None:
        size = self.rng.choice([1 << 10, 1 << 14, LIMIT - 1024, LIMIT + 1, 1 << 20, 64 << 20])
        try:
            self.run.enqueue("echo", "x" * size)
        except PayloadTooLarge:
            self.refused += 1
            if size < LIMIT - 512:
                self.wrong.append(f"{size} bytes were refused")
        else:
            self.taken += 1
            if size > LIMIT:
                self.wrong.append(f"{size} bytes were taken")
        if self.rng.random() < 0.3:
            self.results += self.run.enqueue("echo", "x" * 1024, 64 * 1024)

    def _rss(self) -> int:
        pids = [pid for worker in self.run.workers for pid in worker.pids()]
        return sum(psutil.Process(pid).memory_info().rss for pid in pids)

    def drained(self) -> None:
        grown = (self._rss() - self.before) >> 20
        self.run.measures["memory grown by MB"] = grown
        if grown > 400:
            self.wrong.append(f"the workers hold {grown} MB more than before")

    def observed(self, history: History, verdict: Verdict) -> str:
        return (
            f"{self.taken} taken, {self.refused} refused, {len(self.results)} results of 64 MB"
            if self.refused
            else ""
        )

    def judge(self, history: History, verdict: Verdict) -> list[Violation]:
        big = [j for j in history.jobs if j.id in self.results and len(str(j.result or "")) > (2 << 20)]
        found = [Violation("I16", None, words) for words in self.wrong]
        return (
            found
            + [Violation("I16", job.id, "a result of more than 2 MB was stored") for job in big]
            + steady(history)
        )


class Restored(ServerFault):
    name = "F31"
    title = "a backup from some seconds ago is restored while the workers run"
    stores = SINGLE
    every = (3.0, 5.0)

    def waives(self, store: str) -> Sequence[str]:
        return (*REWOUND, "I1", "I1b", "I13", "I14", "I17")

    def begin(self) -> None:
        self.copy = self.run.folder / "backup"
        self.is_done = False

    def strike(self) -> None:
        if self.is_done:
            return
        store = self.run.store
        if isinstance(store, Sqlite):
            self._sqlite(store)
        elif isinstance(store, Postgres):
            self._postgres(store)
        elif isinstance(store, Redis):
            self._redis(store)
        self.is_done = True
        self.outage("a backup was restored", time.monotonic())

    def _sqlite(self, store: Sqlite) -> None:
        """Page by page through SQLite itself, in one transaction, as an operator would."""
        with closing(sqlite3.connect(store.path)) as live, closing(sqlite3.connect(self.copy)) as kept:
            live.backup(kept)
        time.sleep(3)
        with (
            closing(sqlite3.connect(store.path, timeout=30)) as live,
            closing(sqlite3.connect(self.copy)) as kept,
        ):
            kept.backup(live)

    def _postgres(self, store: Postgres) -> None:
        server = store.server
        base_backup(server, server.folder / "copy")
        time.sleep(3)
        server.kill9()
        shutil.rmtree(server._data)
        (server.folder / "copy").rename(server._data)
        server.start()

    def _redis(self, store: Redis) -> None:
        server = store.server
        files = server.folder / "appendonlydir"
        shutil.copytree(files, self.copy)
        time.sleep(3)
        server.kill9()
        shutil.rmtree(files)
        shutil.copytree(self.copy, files)
        for path in (files, *files.rglob("*")):
            os.chown(path, server.account.uid, server.account.gid)
        server.start()

    def observed(self, history: History, verdict: Verdict) -> str:
        return "set back by 3 s" if self.is_done else ""

    def judge(self, history: History, verdict: Verdict) -> list[Violation]:
        """No claim runs twice, whatever was forgotten: tokens do not repeat."""
        seen: set[tuple[str, str]] = set()
        found = []
        for line in history.lines:
            if isinstance(line, Started):
                if (line.job, line.token) in seen:
                    found.append(Violation("I4", line.job, "a claim ran twice", (line,)))
                seen.add((line.job, line.token))
        return found


class Uncommitted(Fault):
    name = "F22"
    title = "a caller's transaction holds an enqueue with a unique key, then rolls back or commits"
    stores = ("postgres",)
    every = (0.2, 0.5)

    def begin(self) -> None:
        self.rounds, self.wrong = 0, list[str]()
        self.other = make(self.run.store.url, recorder=self.run.recorder)

    def strike(self) -> None:
        key = f"held:{self.rounds}"
        is_kept = self.rng.random() < 0.5
        mine, theirs = random_id(os.urandom(16)), random_id(os.urandom(16))
        returned: list[str] = []

        def rival() -> None:
            call = self.run.recorder.sent([theirs])
            job = self.other.tasks.get("slow").using(id=theirs, unique=key).enqueue(0.01)
            returned.append(job.id)
            outcome = ("acked", [theirs]) if job.id == theirs else ("failed", [theirs])
            self.run.recorder.replied(call, *outcome)  # type: ignore[arg-type]

        thread = threading.Thread(target=rival)
        call = self.run.recorder.sent([mine])
        try:
            with self.run.app.transaction() as conn:
                self.run.app.tasks.get("slow").using(id=mine, unique=key, conn=conn).enqueue(0.5)
                thread.start()
                time.sleep(self.rng.uniform(0.1, 1.0))
                if returned and returned[0] == mine:
                    self.wrong.append(f"{key}: the rival got a job that was not committed")
                if not is_kept:
                    raise RuntimeError("the caller rolls back")
            self.run.recorder.replied(call, "acked", [mine])
        except RuntimeError:
            self.run.recorder.replied(call, "failed", [mine])
        thread.join(30)
        if not returned:
            self.wrong.append(f"{key}: the rival got no answer")
        elif returned[0] != (mine if is_kept else theirs):
            self.wrong.append(f"{key}: kept={is_kept}, and the rival got {returned[0]}")
        self.rounds += 1

    def heal(self) -> None:
        self.other.close()

    def observed(self, history: History, verdict: Verdict) -> str:
        return f"{self.rounds} keys held" if self.rounds else ""

    def judge(self, history: History, verdict: Verdict) -> list[Violation]:
        return [Violation("I7", None, words) for words in self.wrong]


class Backlog(Fault):
    name = "F24"
    title = "a backlog of 100,000 jobs that are not due"
    stores = SQL
    every = (3.0, 5.0)
    SIZE = 100_000

    def prepare(self) -> None:
        app = App(self.run.store.url)
        task = app.task(name="someday")(_nothing)
        calls = [task.using(delay="30d", queue="someday").bind() for _ in range(1000)]
        for _ in range(self.SIZE // 1000):
            app.enqueue_many(calls)
        app.close()

    def heal(self) -> None:
        """The fault deletes them behind Winch's back, so they are not judged."""
        table = "winch_job" if isinstance(self.run.store, Sqlite) else "winch.job"
        with self.run.app.transaction() as conn:
            self.left = conn.execute(f"DELETE FROM {table} WHERE queue = 'someday'").rowcount

    def observed(self, history: History, verdict: Verdict) -> str:
        return f"{self.left} waited" if self.left == self.SIZE else ""

    def judge(self, history: History, verdict: Verdict) -> list[Violation]:
        return steady(history)


def _nothing() -> None:
    pass

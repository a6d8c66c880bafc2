"""Faults of disks and memory: full; and what must reach the disk before a caller gets its answer."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import psutil

from lab.app import PLAIN
from lab.faults.base import SINGLE, Fault
from lab.faults.servers import ServerFault
from lab.faults.workers import KillWorker
from lab.history import History, Verdict, Violation, read
from lab.history.lines import Replied, Sent
from lab.judge import named
from lab.stores import Postgres, Redis, RedisSmall, SmallPostgres, SmallSqlite, Sqlite

FULL_FOR = 3.0
LOG_RECORDS = 5.0
LOG_RECORD = re.compile(r"\d{4}-\d\d-\d\dT")
FAILED_ATTEMPT = re.compile(r": job \S+ \(\S+\) attempt \d+ failed: ")


class FullDisk(ServerFault):
    name = "F13"
    title = "the store's disk is full for three seconds, then has room again"
    stores = ("sqlite", "postgres")
    own_stores = {"sqlite": SmallSqlite, "postgres": SmallPostgres}  # noqa: RUF012
    every = (3.0, 4.0)

    def begin(self) -> None:
        self.filled = 0

    def strike(self) -> None:
        store = self.run.store
        assert isinstance(store, SmallSqlite | SmallPostgres)
        filler = store.disk / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        self.filled += 1
        time.sleep(FULL_FOR)
        filler.unlink()
        if isinstance(store, Postgres) and not store.server.is_running:
            store.server._process = None
            store.server.start()  # the server gave up; Winch must come back by itself
        self.outage("disk full", time.monotonic())

    def observed(self, history: History, verdict: Verdict) -> str:
        refused = sum(
            1 for line in history.lines if isinstance(line, Replied) and line.outcome != "acked"
        )
        return f"full {self.filled} times, {refused} calls refused" if self.filled and refused else ""

    def judge(self, history: History, verdict: Verdict) -> list[Violation]:
        failed = [
            Violation("I13", job.id, "it was failed for the store's full disk")
            for job in history.jobs
            if job.task in PLAIN and any(entry.what == "failed" for entry in job.history)
        ]
        return failed + talkative(self)


def talkative(fault: Fault) -> list[Violation]:
    """No process logs more than a few records a second while the store cannot be used. A failed attempt
    has a record and a traceback of its own, and the load has jobs that fail on purpose: they do not
    count."""
    found = []
    for worker in fault.run.fleet.workers:
        records = [line for line in worker.text().splitlines() if LOG_RECORD.match(line)]
        about_store = [line for line in records if not FAILED_ATTEMPT.search(line)]
        rate = len(about_store) / max(fault.run.seconds, 1)
        if rate > LOG_RECORDS:
            found.append(Violation("I16", None, f"{worker.log.name} has {rate:.0f} records a second"))
    return found


class FullRedis(ServerFault):
    name = "F16"
    title = "Redis reaches maxmemory and refuses writes, then has room again"
    stores = ("redis",)
    own_stores = {"redis": RedisSmall}  # noqa: RUF012
    every = (3.0, 4.0)

    def begin(self) -> None:
        self.full = 0

    def strike(self) -> None:
        store = self.run.store
        assert isinstance(store, Redis)
        used = int(store.server.info("memory")["used_memory"])
        store.server.ask("CONFIG", "SET", "maxmemory", max(used - (1 << 16), 1))
        time.sleep(FULL_FOR)
        store.server.ask("CONFIG", "SET", "maxmemory", 0)
        self.full += 1
        self.outage("memory full", time.monotonic())

    def observed(self, history: History, verdict: Verdict) -> str:
        refused = sum(
            1 for line in history.lines if isinstance(line, Replied) and line.outcome != "acked"
        )
        return f"full {self.full} times, {refused} calls refused" if self.full and refused else ""


class SqliteKills(Fault):
    name = "F30"
    title = "six processes on one SQLite file, killed at random; PRAGMA integrity_check after each"
    stores = ("sqlite",)
    every = (0.5, 1.5)

    def prepare(self) -> None:
        self.bad: list[str] = []
        self.checked = 0

    def begin(self) -> None:
        for _ in range(3):
            self.run.start_worker()

    def strike(self) -> None:
        KillWorker.strike(self)  # type: ignore[arg-type]
        self._check()

    def _check(self) -> None:
        store = self.run.store
        assert isinstance(store, Sqlite)

        def look() -> None:  # in a thread of its own: nothing of SQLite's is left in this one
            with closing(sqlite3.connect(f"file:{store.path}?mode=ro", uri=True, timeout=30)) as conn:
                found = [row[0] for row in conn.execute("PRAGMA integrity_check")]
            self.checked += 1
            if found != ["ok"]:
                self.bad += found

        thread = threading.Thread(target=look)
        thread.start()
        thread.join(60)

    def drained(self) -> None:
        self._check()

    def observed(self, history: History, verdict: Verdict) -> str:
        return f"{named(verdict, 'killed')} killed, {self.checked} checks" if self.checked > 3 else ""

    def judge(self, history: History, verdict: Verdict) -> list[Violation]:
        return [Violation("I1", None, f"integrity_check: {words}") for words in self.bad]


class Synced(Fault):
    """`kill -9` does not test fsync, because the system's cache survives it. The order of system calls
    does: between a producer's request and its answer, a sync has ended."""

    name = "F12"
    title = "system calls are traced: each acknowledged enqueue was synced to disk before the reply"
    stores = SINGLE
    every = (1.0, 2.0)

    def begin(self) -> None:
        self.trace = self.run.folder / "trace"
        store = self.run.store
        argv = ["strace", "-f", "-q", "-ttt", "-T", "-e", "trace=fdatasync,fsync", "-o", str(self.trace)]
        if isinstance(store, Sqlite):
            self.calls = self._traced_producer(argv)
            return
        assert isinstance(store, Postgres | Redis)
        # Following forks shows only processes to come; open connections have theirs already.
        server = psutil.Process(store.server.pid)
        for pid in [server.pid, *(child.pid for child in server.children(recursive=True))]:
            argv += ["-p", str(pid)]
        self.tracer = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
        time.sleep(1)
        since = time.monotonic()
        for _ in range(40):
            self.run.enqueue("slow", 0.01)
        self.calls = self._asked(os.getpid(), since)
        self.tracer.send_signal(signal.SIGINT)
        self.tracer.wait(20)

    def _traced_producer(self, argv: list[str]) -> list[tuple[float, float]]:
        import sys

        since = time.monotonic()
        words = [*argv, sys.executable, "-m", "lab.load", f"{self.run.seed}/synced", "40", "0"]
        env = {**os.environ, **self.run.fleet._env, "WINCH_HISTORY": str(self.run.recorder.folder)}
        root = Path(__file__).resolve().parents[2]
        subprocess.run(words, env=env, cwd=root, check=True, timeout=100, stdout=subprocess.DEVNULL)
        pids = {line.split()[0] for line in self.trace.read_text().splitlines() if line}
        found: list[tuple[float, float]] = []
        for pid in pids:
            found += self._asked(int(pid), since)
        return found

    def _asked(self, pid: int, since: float) -> list[tuple[float, float]]:
        """When each acknowledged call was made and answered, on the wall clock."""
        lines = [
            line for line in read(self.run.recorder.folder) if line.pid == pid and line.mono >= since
        ]
        sent = {line.call: line.wall for line in lines if isinstance(line, Sent)}
        return [
            (sent[line.call], line.wall)
            for line in lines
            if isinstance(line, Replied)
            and line.outcome == "acked"
            and line.call in sent
            and any(line.new)
        ]

    def drained(self) -> None:
        self.syncs = self._syncs()

    def _syncs(self) -> list[float]:
        """When each sync ended."""
        found = []
        for line in self.trace.read_text(errors="replace").splitlines():
            parts = line.split()
            if len(parts) < 3 or "sync" not in line or "unfinished" in line:
                continue
            took = re.search(r"<(\d+\.\d+)>$", line)
            is_resumed = "resumed" in line
            start = float(parts[1])
            found.append(start if is_resumed or took is None else start + float(took[1]))
        return sorted(found)

    def observed(self, history: History, verdict: Verdict) -> str:
        return (
            f"{len(self.calls)} acknowledged, {len(self.syncs)} syncs seen"
            if self.calls and self.syncs
            else ""
        )

    def judge(self, history: History, verdict: Verdict) -> list[Violation]:
        early = [
            (asked, acked)
            for asked, acked in self.calls
            if not any(asked <= sync <= acked + 0.001 for sync in self.syncs)
        ]
        return [
            Violation(
                "I1",
                None,
                f"acknowledged {acked - asked:.4f} s after it was asked, with no sync between",
            )
            for asked, acked in early
        ]

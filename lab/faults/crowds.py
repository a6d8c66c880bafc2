"""Faults of crowds and of what lasts: a pooler, a herd of clients, an open transaction, upgrades."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psycopg

from lab.app import LabApp, make
from lab.faults.base import SINGLE, SQL, Fault
from lab.faults.data import steady
from lab.faults.network import NetworkFault
from lab.faults.servers import ServerFault
from lab.faults.workers import KillWorker
from lab.history import History, Verdict, Violation
from lab.judge import named
from lab.load import Producer
from lab.stores import Pooled, Postgres

ROOT = Path(__file__).resolve().parents[2]
HERD = 100


class Deaf(NetworkFault):
    name = "F10"
    title = "every NOTIFY is lost on its way to the listeners"
    every = (1.0, 2.0)

    def begin(self) -> None:
        self.proxy.is_deaf = True

    def heal(self) -> None:
        self.unheard = self.proxy.counters["unheard"]
        self.run.recorder.nemesis("cut", count=self.unheard, note="notifications")
        self.proxy.is_deaf = False

    def observed(self, history: History, verdict: Verdict) -> str:
        return f"{self.unheard} notifications swallowed" if self.unheard else ""

    def judge(self, history: History, verdict: Verdict) -> list[Violation]:
        """Polls make up for lost wake-ups: no ready job waits while slots are free."""
        return steady(history)


class Pooler(ServerFault):
    name = "F11"
    title = "PgBouncer in transaction mode with two connections, killed and started again"
    stores = ("pgbouncer",)
    every = (3.0, 5.0)

    def strike(self) -> None:
        store = self.run.store
        assert isinstance(store, Pooled)
        with psycopg.connect(store.url, autocommit=True) as conn:
            row = conn.execute(
                "SELECT count(DISTINCT client_port) FROM pg_stat_activity "
                "WHERE datname = current_database() "
                "AND application_name LIKE 'winch%' AND query NOT LIKE 'LISTEN%'"
            ).fetchone()
        self.run.measures["server connections"] = int(row[0]) if row else 0
        store.pooler.kill9()
        store.pooler.start()
        self.outage("the pooler was killed", time.monotonic())


class OpenTransaction(Fault):
    name = "F21"
    title = "a transaction in REPEATABLE READ is left open for the whole run"
    stores = ("postgres", "pgbouncer")
    every = (2.0, 4.0)

    def begin(self) -> None:
        assert isinstance(self.run.store, Postgres)
        self.conn = psycopg.connect(self.run.store.url)
        self.conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        self.conn.execute("SELECT count(*) FROM winch.job")
        self.began = time.monotonic()

    def heal(self) -> None:
        row = self.conn.execute(
            "SELECT backend_xmin IS NOT NULL FROM pg_stat_activity WHERE pid = pg_backend_pid()"
        ).fetchone()
        self.held = bool(row and row[0])
        self.lasted = time.monotonic() - self.began
        with psycopg.connect(self.run.store.url, autocommit=True) as conn:
            dead = conn.execute(
                "SELECT n_dead_tup FROM pg_stat_user_tables "
                "WHERE schemaname = 'winch' AND relname = 'job'"
            ).fetchone()
        self.run.measures["dead rows"] = int(dead[0]) if dead else 0
        self.conn.close()

    def observed(self, history: History, verdict: Verdict) -> str:
        return f"open for {self.lasted:.0f} s" if self.held else ""

    def judge(self, history: History, verdict: Verdict) -> list[Violation]:
        return steady(history)


class Herd(Fault):
    name = "F23"
    title = f"{HERD} clients that were idle enqueue at one moment"
    stores = SINGLE
    every = (3.0, 5.0)

    def begin(self) -> None:
        self.apps: list[LabApp] = [
            make(self.run.store.worker_url, recorder=self.run.recorder) for _ in range(HERD)
        ]
        self.rushes, self.failed = 0, list[str]()

    def strike(self) -> None:
        gate = threading.Barrier(HERD)

        def rush(app: LabApp, number: int) -> None:
            producer = Producer(app, self.run.recorder, f"{self.run.seed}/herd/{number}")
            gate.wait(60)
            try:
                producer._call("slow", 0.0)
            except Exception as error:  # raised in the main thread
                self.failed.append(repr(error))

        threads = [threading.Thread(target=rush, args=(app, n)) for n, app in enumerate(self.apps)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.rushes += 1

    def heal(self) -> None:
        for app in self.apps:
            app.close()

    def observed(self, history: History, verdict: Verdict) -> str:
        return f"{self.rushes} rushes of {HERD}" if self.rushes else ""

    def judge(self, history: History, verdict: Verdict) -> list[Violation]:
        found = [
            Violation("I16", None, f"a client of the herd got {words}") for words in self.failed[:3]
        ]
        if named(verdict, "rescued"):
            found.append(Violation("alive", None, "a worker lost its lease in the herd"))
        return found


class Upgrade(Fault):
    name = "F27"
    title = "concurrent migrations, one killed halfway; a release adds a column; workers are replaced"
    stores = SQL
    every = (1.5, 3.0)

    def begin(self) -> None:
        self.runs, self.killed, self.later = 0, 0, False
        self.wrong: list[str] = []

    def strike(self) -> None:
        env = {**os.environ, **self.run.fleet._env}
        argv = [sys.executable, "-m", "winch", "migrate"]
        pair = [
            subprocess.Popen(argv, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            for _ in range(2)
        ]
        time.sleep(self.rng.uniform(0.1, 0.8))
        if pair[0].poll() is None:
            pair[0].kill()
            self.killed += 1
        output = pair[1].communicate(timeout=60)[0]
        pair[0].communicate(timeout=60)
        if pair[1].returncode != 0:
            self.wrong.append(f"a migrator ended with {pair[1].returncode}: {output.decode()[-300:]}")
        self.runs += 2
        if not self.later:
            self._add_later()
        KillWorker.strike(self)  # type: ignore[arg-type]

    def _add_later(self) -> None:
        """What an additive step of a later release would do, while workers of this one run."""
        table, ledger = (
            ("winch.job", "winch.winch_migration")
            if isinstance(self.run.store, Postgres)
            else ("winch_job", "winch_migration")
        )
        values: tuple[Any, ...] = (9999, "later")
        with self.run.app.transaction() as conn:
            conn.execute(f"ALTER TABLE {table} ADD COLUMN later text")
            if isinstance(self.run.store, Postgres):
                conn.execute(f"INSERT INTO {ledger} (number, name) VALUES (%s, %s)", values)
            else:
                conn.execute(f"INSERT INTO {ledger} (number, name, applied_at) VALUES (?, ?, 0)", values)
        self.later = True

    def observed(self, history: History, verdict: Verdict) -> str:
        words = (
            f"{self.runs} migrators, {self.killed} killed, {named(verdict, 'killed')} workers replaced"
        )
        return words if self.later and self.runs else ""

    def judge(self, history: History, verdict: Verdict) -> list[Violation]:
        return [Violation("I19", None, words) for words in self.wrong]

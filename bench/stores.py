"""Real servers for one run, and a fresh store for every measurement."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import psutil
import psycopg
import redis

from tests.servers import PostgresServer, Server, free_port

# What is changed from the servers' defaults, for every contender alike.
PG_SETTINGS = {"max_wal_size": "4GB", "shared_buffers": "512MB"}
REDIS_SETTINGS = {"save": "", "appendonly": "no"}


class RedisServer(Server):
    """A Redis server of our own, without persistence."""

    def __init__(self, program: str) -> None:
        super().__init__("redis")
        self._program = program
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.client = redis.Redis(port=self.port)

    def start(self) -> None:
        settings = [word for key, value in REDIS_SETTINGS.items() for word in (f"--{key}", value)]
        self._spawn([self._program, "--port", str(self.port), "--bind", "127.0.0.1", *settings])

    def is_answering(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False


def find_redis() -> str:
    """A Redis of the system. Not the wheel's: it has another allocator, so its figures differ."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None and os.getuid() == 0 and shutil.which("apt-get"):
        command = ["apt-get", "install", "-qq", "-y", "--no-install-recommends", "redis-server"]
        subprocess.run(command, capture_output=True, check=False)
        program = shutil.which("redis-server")
    if program is None:
        raise RuntimeError("no redis-server on PATH; install Redis 7 or Valkey 8")
    return program


class Stores:
    """Starts each server when it is first asked for; all are gone at the end of the block."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="winch-bench-"))
        self._postgres: PostgresServer | None = None
        self._redis: RedisServer | None = None
        self._numbers = itertools.count()
        self._urls: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in (self._postgres, self._redis):
            if server is not None:
                server.remove()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def postgres(self) -> PostgresServer:
        if self._postgres is None:
            self._postgres = PostgresServer(settings=PG_SETTINGS)
            self._postgres.start()
        return self._postgres

    @property
    def redis(self) -> RedisServer:
        if self._redis is None:
            self._redis = RedisServer(find_redis())
            self._redis.start()
        return self._redis

    def fresh(self, store: str) -> str:
        """The URL of an empty store. Those before it are removed: one measurement at a time."""
        self.forget()
        if store == "redis":
            self.redis.client.flushall()
        return self.beside(store)

    def beside(self, store: str) -> str:
        """The URL of one more empty store, on the same server or disk."""
        kind, _, option = store.partition("-")
        if kind == "pg":
            url = self.postgres.new_database()
        elif kind == "redis":
            url = f"{self.redis.url.rpartition('/')[0]}/{len(self._urls)}"
        else:
            path = self.folder / f"{next(self._numbers)}.db"
            url = f"sqlite:///{path}" + (f"?sync={option}" if option else "")
        self._urls.append(url)
        return url

    def forget(self) -> None:
        while self._urls:
            url = self._urls.pop()
            scheme = urlsplit(url).scheme
            if scheme == "postgresql":
                self.postgres.drop_database(url)
            elif scheme == "sqlite":
                stem = urlsplit(url).path.rpartition("/")[2]
                for path in self.folder.glob(f"{stem}*"):
                    with suppress(OSError):
                        path.unlink()

    def settle(self, store: str) -> None:
        """The same start for everybody: statistics are fresh and what was written is written out.

        Autovacuum would do the first within a minute. Without it a planner that knows nothing about the
        new table halves some peers' drain.
        """
        if store == "pg":
            for url in self._urls:
                with psycopg.connect(url, autocommit=True) as connection:
                    connection.execute("VACUUM ANALYZE")
                    connection.execute("CHECKPOINT")

    def cost(self, store: str) -> Cost:
        """What the server has spent so far."""
        if store == "pg":
            with psycopg.connect(self.postgres.url, autocommit=True) as connection:
                row = connection.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn").fetchone()
            assert row is not None
            return Cost(_tree_seconds(self.postgres.pid), int(row[0]))
        if store == "redis":
            return Cost(_tree_seconds(self.redis.pid), 0)
        return Cost(0.0, 0)

    def version(self, store: str) -> str:
        if store == "pg":
            with psycopg.connect(self.postgres.url) as connection:
                number = connection.info.server_version
            return f"PostgreSQL {number // 10_000}.{number % 10_000}"
        if store == "redis":
            return f"Redis {self.redis.client.info()['redis_version']}"
        import sqlite3

        return f"SQLite {sqlite3.sqlite_version}"


class Cost:
    """CPU seconds of a server and bytes of its write-ahead log."""

    def __init__(self, seconds: float, wal: int) -> None:
        self.seconds, self.wal = seconds, wal

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.seconds - other.seconds, self.wal - other.wal)


def _tree_seconds(pid: int) -> float:
    """CPU seconds of a process, what lives below it, and what lived there and was waited for."""
    total = 0.0
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        own = root.cpu_times()
        total += own.user + own.system + own.children_user + own.children_system
        for child in root.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                times = child.cpu_times()
                total += times.user + times.system
    return total

"""Real servers for one run, and a fresh store for every measurement."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import psutil
import psycopg
import redis
from redis import Redis

from tests.redis_servers import RedisCluster
from tests.servers import PostgresServer, Server, free_port

# What is changed from the servers' defaults, for every contender alike.
PG_SETTINGS = {"max_wal_size": "4GB", "shared_buffers": "512MB"}
REDIS_SETTINGS = {"save": "", "appendonly": "no"}
# Where Winch keeps what it knows about gates and FIFO keys.
GATE_TABLES = r"(gate|permit|fifo|turn|member)"
GATE_KEYS = rb"^[^:]*:(gate|opens|rests|closed|used|own|turn|permits|members|fifo)(:|$)"


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
        self._clusters: dict[str, RedisCluster] = {}
        self._numbers = itertools.count()
        self._urls: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in (self._postgres, self._redis, *self._clusters.values()):
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

    def cluster(self, store: str) -> RedisCluster:
        """The cluster of `cluster-3`, which has three primaries and no replicas."""
        if store not in self._clusters:
            self._clusters[store] = RedisCluster(primaries=int(store.partition("-")[2]), replicas=0)
            self._clusters[store].start()
        return self._clusters[store]

    def fresh(self, store: str) -> str:
        """The URL of an empty store. Those before it are removed: one measurement at a time."""
        self.forget()
        if store == "redis":
            self.redis.client.flushall()
        if store.startswith("cluster"):
            for node in self.cluster(store).nodes:
                node.ask("FLUSHALL")
            return self.cluster(store).url
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
        """The same start for all systems: statistics are fresh and what was written is written out.

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
        if store.startswith("cluster"):
            nodes = tuple(_tree_seconds(node.pid) for node in self.cluster(store).nodes)
            return Cost(sum(nodes), 0, nodes)
        return Cost(0.0, 0)

    def gates_kept(self, url: str) -> int:
        """How many rows, or members of keys, the store of this URL has about gates and FIFO keys."""
        scheme = urlsplit(url).scheme
        if scheme == "postgresql":
            with psycopg.connect(url) as connection:
                tables = connection.execute(
                    "SELECT format('%%I.%%I', schemaname, tablename) FROM pg_tables"
                    " WHERE schemaname = 'winch' AND tablename ~ %s",
                    (GATE_TABLES,),
                ).fetchall()
                assert tables, "Winch's tables of gates have other names now: GATE_TABLES"
                counts = [connection.execute(_count(table)).fetchone() for (table,) in tables]
            return sum(row[0] for row in counts if row)
        if scheme == "sqlite":
            with closing(sqlite3.connect(urlsplit(url).path)) as connection:
                rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
                tables = [row for row in rows if re.search(GATE_TABLES, row[0])]
                assert tables, "Winch's tables of gates have other names now: GATE_TABLES"
                return sum(connection.execute(_count(table)).fetchone()[0] for (table,) in tables)
        client = Redis(port=self.redis.port, db=int(urlsplit(url).path.strip("/")))
        keys = [key for key in client.scan_iter(count=10_000) if re.search(GATE_KEYS, key)]
        return sum(_size(client, key) for key in keys)

    def version(self, store: str) -> str:
        if store == "pg":
            with psycopg.connect(self.postgres.url) as connection:
                number = connection.info.server_version
            return f"PostgreSQL {number // 10_000}.{number % 10_000}"
        if store in ("redis", "cluster"):
            return f"Redis {self.redis.client.info()['redis_version']}"
        return f"SQLite {sqlite3.sqlite_version}"


class Cost:
    """CPU seconds of a server and bytes of its write-ahead log; of a cluster, those of each primary."""

    def __init__(self, seconds: float, wal: int, nodes: tuple[float, ...] = ()) -> None:
        self.seconds, self.wal, self.nodes = seconds, wal, nodes

    def __sub__(self, other: Cost) -> Cost:
        nodes = tuple(now - then for now, then in zip(self.nodes, other.nodes, strict=True))
        return Cost(self.seconds - other.seconds, self.wal - other.wal, nodes)


def _size(client: Redis, key: bytes) -> int:
    sizes = {b"hash": client.hlen, b"zset": client.zcard, b"set": client.scard, b"list": client.llen}
    size = sizes.get(bytes(client.type(key)))  # type: ignore[arg-type]  # no reply is decoded here
    return int(size(key)) if size else 1


def _count(table: str) -> Any:
    return f"SELECT count(*) FROM {table}"  # noqa: S608  # a name that the database gave


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

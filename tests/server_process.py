"""Any server of the tests: its account, folder, port, process, log and end."""

from __future__ import annotations

import atexit
import os
import pwd
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

import psutil

from tests.server_guard import kill_tree, remove_shared_memory

START_SECONDS = 60.0
STOP_SECONDS = 30.0


class ServerError(RuntimeError):
    """A test server could not be found, started or stopped; the message holds the end of its log."""


# --- the user and the folder of a server -----------------------------------------------------------


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
    the guard. Subclasses define how to start, and how to check that it answers.
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

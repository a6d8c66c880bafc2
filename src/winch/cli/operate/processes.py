"""The processes behind the store's sessions, on this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from winch.core.errors import ConfigError
from winch.storage.params import SessionInfo


@dataclass(frozen=True)
class Process:
    """A process that is there now."""

    pid: int
    parent: int
    command: str


def find_process(pid: int) -> Process | None:
    """The process of this number; None when there is none."""
    folder = Path(f"/proc/{pid}")
    if Path("/proc/self/stat").exists():
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            # After the name, which may hold anything: its closing parenthesis is the last one.
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            return None
        return Process(pid, int(fields[1]), command.strip())
    asked = ["ps", "-o", "ppid=,command=", "-p", str(pid)]
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split(None, 1)
    return Process(pid, int(found[0]), found[1].strip()) if len(found) == 2 else None


def supervisor_of(session: SessionInfo) -> int:
    """The pid of the `winch worker` that the session's process belongs to; raises ConfigError with the
    reason.

    The row holds the child's pid. It is compared with what runs under it now: by the time a user
    asks, the number may be another program's.
    """
    if session.host != socket.gethostname():
        raise ConfigError(
            f"worker {session.worker} runs on {session.host}, this is {socket.gethostname()}: signals "
            "reach processes of the same machine only; run this command there"
        )
    child = find_process(session.pid)
    if child is None:
        raise ConfigError(f"worker {session.worker}: there is no process {session.pid} on this machine")
    parent = find_process(child.parent)
    if "worker-child" not in child.command or parent is None or "winch" not in parent.command:
        raise ConfigError(
            f"worker {session.worker} lives inside another program (process {session.pid}), "
            "which a signal might end; act on that program"
        )
    return parent.pid


def send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        raise ConfigError(f"process {pid} has ended") from None
    except PermissionError:
        raise ConfigError(
            f"process {pid} belongs to another user; run the command as that user"
        ) from None

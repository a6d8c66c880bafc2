"""`winch` without the start of Python: one process imports the command, and a fork of it runs each call.

A start takes a third of a second of a core, most of it imports, and the tests make hundreds of them. A
fork has the folder, the environment and the standard streams that a process of its own would have. It
runs the same `main`, and ends as an interpreter does, but for freeing its memory piece by piece.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, NoReturn

ROOT = Path(__file__).resolve().parents[2]
REQUEST = 1 << 18


class Forks:
    """The process that is forked, as the tests see it."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # Ends when this process does: then it reads the end of the line.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.cli.forked", str(theirs.fileno())],
                pass_fds=[theirs.fileno()], cwd=ROOT,
            )  # fmt: skip

    def run(
        self, args: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdin: str, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """What `subprocess.run` with captured output would return for `python -m winch`."""
        with contextlib.ExitStack() as stack:
            streams = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
            streams[0].write(stdin.encode())
            streams[0].seek(0)
            request = json.dumps([list(args), str(cwd), dict(env)]).encode()
            socket.send_fds(self._line, [request], [stream.fileno() for stream in streams])
            self._line.settimeout(timeout)
            pid = int(self._line.recv(64))
            try:
                code = int(self._line.recv(64))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                self._line.recv(64)
                raise subprocess.TimeoutExpired(["winch", *args], timeout) from None
            out, err = (_text(stream) for stream in streams[1:])
        return subprocess.CompletedProcess(["winch", *args], code, out, err)


def _text(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode()


@cache
def forks() -> Forks:
    """The one of this run, started when it is first needed."""
    return Forks()


def _serve(line: socket.socket) -> None:
    """Fork for each request. Returns in a fork that has to run the command, and when the line ends."""
    while True:
        request, streams, _, _ = socket.recv_fds(line, REQUEST, 3)
        if not request:
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            line.close()
            args, folder, env = json.loads(request)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(env)
            sys.argv[1:] = args
            sys.path[0] = folder
            return
        for stream in streams:
            os.close(stream)
        line.send(str(pid).encode())
        line.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


# What almost every command imports.
WARM = (
    "winch.app",
    "winch.drivers.sqlite.driver",
    "winch.cli.shared.options",
    "winch.cli.shared.output",
)


def _main() -> None:
    from winch.cli import main

    for name in WARM:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a fork would write to every page of what is here, and so copy it
    _serve(socket.socket(fileno=int(sys.argv[1])))
    _end(_code_of(main))


def _code_of(main: Callable[[], None]) -> int:
    """Run the command; return the code an interpreter would exit with."""
    try:
        main()
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        sys.stderr.write(f"{error.code}\n")
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _end(code: int) -> NoReturn:
    """End as an interpreter does: wait for threads, call what waits for the end, flush. The system takes
    the memory back as it is: freeing each object copies its page, five times the cost of a command."""
    threading._shutdown()  # type: ignore[attr-defined]  # private, as is the next: no public name exists
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = 120
    os._exit(code & 0xFF)


if __name__ == "__main__":
    _main()

"""A `winch serve` in a process of its own: for `winch dev` and `winch demo`."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

STARTS_WITHIN = 20.0


def is_installed() -> bool:
    """Whether the extra `web` is here."""
    return all(find_spec(name) is not None for name in ("starlette", "uvicorn", "jinja2"))


class ServeProcess:
    """The server's process. It ends by `stop`, or with the terminal."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self._argv = argv
        self._env = env
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> str | None:
        """Start it and wait until it listens; its address, or None when it does not come up."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "winch", "serve", *self._argv],
            env=None if self._env is None else {**os.environ, **self._env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        stdout = self._process.stdout
        if stdout is None:
            return None
        deadline = time.monotonic() + STARTS_WITHIN
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while time.monotonic() < deadline and self._process.poll() is None:
                if selector.select(timeout=0.2):
                    return stdout.readline().decode().strip() or None
        return None

    def stop(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

"""`winch` as a command of another program's command line, in the place of its process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

APP = "WINCH_APP"


def become_winch(words: Sequence[str], spec: str, more: Mapping[str, str] | None = None) -> None:
    """Go on as `winch WORDS` in this process: signals, exit codes and the process id are its own.

    `spec` names the app, unless the words name another one. This function does not return.
    """
    env = {**os.environ, APP: spec, **(more or {})}
    # A program that finds its modules by the folder it is in needs its workers to find them too.
    env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, "-m", "winch", *words], env)  # noqa: S606  # no shell

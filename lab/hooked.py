"""What `lab/hooks/sitecustomize.py` does to a process: a death at a chosen call, a name like others'."""

from __future__ import annotations

import importlib
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

TWIN = 7
DRIVERS = {
    "winch.drivers.sqlite.driver": "SqliteDriver",
    "winch.drivers.postgres.driver": "PostgresDriver",
    "winch.drivers.redis.driver": "RedisDriver",
}


def on_path() -> str:
    """A PYTHONPATH with which a process meets the hooks."""
    before = os.environ.get("PYTHONPATH")
    root = Path(__file__).resolve().parents[1]
    return os.pathsep.join([str(root / "lab" / "hooks"), str(root), *([before] if before else [])])


def install() -> None:
    if place := os.environ.get("LAB_DIE_AT"):
        verb, when, number = place.split(":")
        die_at(verb, when, int(number))
    if os.environ.get("LAB_TWIN"):
        be_a_twin()


class _Os:
    """The module `os` of a process whose pid others have too, as in containers."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def getpid(self) -> int:
        return TWIN


def be_a_twin() -> None:
    """Give this worker's sessions the host, pid and name of all its twins."""
    from winch.engine.worker import worker

    module: Any = worker
    module.os = _Os()
    module.socket = SimpleNamespace(gethostname=lambda: "twin")


def die_at(verb: str, when: str, number: int) -> None:
    """Kill this process with SIGKILL at its n-th call of the verb."""
    left = number

    def passes(name: str, moment: str) -> None:
        nonlocal left
        if name == verb and moment == when:
            left -= 1
            if left == 0:
                die(f"{when} {verb}")

    for module, name in DRIVERS.items():
        driver: Any = getattr(importlib.import_module(module), name)
        driver.run = _counted(driver.run, passes)
        driver.arun = _acounted(driver.arun, passes)


def _counted(run: Any, passes: Any) -> Any:
    def counting(self: Any, verb: Any) -> Any:
        passes(verb.name, "before")
        answer = run(self, verb)
        passes(verb.name, "after")
        return answer

    return counting


def _acounted(arun: Any, passes: Any) -> Any:
    async def counting(self: Any, verb: Any) -> Any:
        passes(verb.name, "before")
        answer = await arun(self, verb)
        passes(verb.name, "after")
        return answer

    return counting


def die(note: str) -> None:
    import psutil

    from lab.history import Recorder

    recorder = Recorder.from_env()
    if recorder is not None:
        below = [child.pid for child in psutil.Process().children(recursive=True)]
        recorder.nemesis("kill", [os.getpid(), *below], note=note)
    os.kill(os.getpid(), signal.SIGKILL)

"""Children that cannot start: when the supervisor tries again, and when it gives up."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest

from winch import App
from winch.core.job import CRASH_RULE
from winch.engine.supervisor import child_process
from winch.engine.supervisor.child_process import MOST_FAILED_STARTS
from winch.engine.supervisor.messages import ENV, Hello
from winch.engine.supervisor.supervisor import Supervisor
from winch.storage.protocol import Driver


def connect_to(hello: Hello) -> Driver:
    return App(hello.url).driver


HELLO = Hello("memory://", None, False, 60.0, 20.0, 20.0, 1.0, 1.0, CRASH_RULE)

# Greets as a child does that has imported its app, then ends with the code that it is given.
CHILD = f"""
import os, sys
greeting, starts, code = sys.argv[1:]
with open(starts, "a") as file:
    file.write(".")
if greeting:
    os.write(int(os.environ["{ENV}"].split(",")[0]), greeting.encode() + b"\\n")
sys.exit(int(code))
"""


class Attempted:
    """A supervisor whose children all end with `code`, and how often they were started."""

    def __init__(self, folder: Path, code: int, *, greets: bool = True) -> None:
        self._file = folder / "starts"
        greeting = msgspec.json.encode(HELLO).decode() if greets else ""
        command = [sys.executable, "-S", "-E", "-c", CHILD, greeting, str(self._file), str(code)]
        self.supervisor = Supervisor(
            command, processes=1, slots=1, grace=0.0, burst=False, connect=connect_to
        )

    def starts(self) -> int:
        return len(self._file.read_text()) if self._file.exists() else 0

    async def run(self, most: int) -> int | None:
        """The supervisor's exit code, or None if it still runs after so many starts."""
        running = asyncio.create_task(self.supervisor.run())
        while not running.done() and self.starts() < most:  # noqa: ASYNC110  # a file rings no bell
            await asyncio.sleep(0.01)
        if running.done():
            return running.result()
        self.supervisor.stop(0.0)
        await running
        return None


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "doubled", lambda first, times, longest: 0.0)


def test_a_worker_that_was_up_outlives_any_outage(tmp_path: Path) -> None:
    """A child is replaced while the store is away: after eight tries, a minute, the whole worker ended,
    with the children that waited for the store."""
    attempted = Attempted(tmp_path, 3)
    assert asyncio.run(attempted.run(MOST_FAILED_STARTS + 4)) is None


@pytest.mark.parametrize("code", [2, 4])
def test_a_worker_whose_app_or_schema_stays_broken_ends(tmp_path: Path, code: int) -> None:
    attempted = Attempted(tmp_path, code)
    assert asyncio.run(attempted.run(MOST_FAILED_STARTS + 4)) == code
    assert attempted.starts() == MOST_FAILED_STARTS


@pytest.mark.parametrize("code", [2, 3, 4])
def test_a_worker_that_was_never_up_ends_at_once(tmp_path: Path, code: int) -> None:
    attempted = Attempted(tmp_path, code, greets=False)
    assert asyncio.run(attempted.run(2)) == code
    assert attempted.starts() == 1

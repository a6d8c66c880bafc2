"""A traced job visits the files that docs/internals.md names, in that order."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from winch import App, JobState, Retry
from winch.core.lifecycle import TRANSITIONS
from winch.drivers.sqlite.driver import SqliteDriver

ROOT = Path(__file__).parents[2]


def documented() -> list[str]:
    text = (ROOT / "docs/internals.md").read_text()
    return re.findall(r"^\| \d+ \| `([^`]+)` \|", text, flags=re.MULTILINE)


def test_a_failing_job_visits_the_documented_files_in_order(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A claim that waits at the bell has left the fetcher before there is a job; without it, it is sent
    # when the job comes, by the same files.
    monkeypatch.delattr(SqliteDriver, "claiming_bell")
    app = App(f"sqlite:///{sqlite_path}")

    @app.task(name="t", retry=Retry.fixed("1h"))
    async def fail() -> None:
        raise ValueError("no")

    app.ready()
    named = documented()
    visited: list[str] = []
    tracing = threading.Event()

    def visit(name: str) -> None:
        if tracing.is_set() and name in named and name not in visited:
            visited.append(name)

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            file = frame.f_code.co_filename
            # Only functions of the job's own path count: a module's loops run before there is a job.
            if "/winch/" in file and frame.f_code.co_name in PATH_FUNCTIONS.get(Path(file).name, ()):
                visit(file[file.index("src/winch/") :])

    driver = app.driver
    real_run, real_arun = driver.run, driver.arun

    def run(verb: Any) -> Any:
        visit(f"sql/{verb.name}.sql")
        return real_run(verb)

    async def arun(verb: Any) -> Any:
        answer = await real_arun(verb)
        if answer:  # a claim that found nothing is no stop on this job's way
            visit(f"sql/{verb.name}.sql")
        return answer

    driver.run, driver.arun = run, arun  # type: ignore[method-assign]

    async def main() -> None:
        async with app.worker():
            await asyncio.sleep(0.3)  # the fetcher has looked by now and waits for the bell
            tracing.set()
            threading.setprofile(profile)
            sys.setprofile(profile)
            try:
                job = fail.enqueue()  # in this thread, which is the one that is watched
                while (await job.arefresh()).state is not JobState.RETRYING or len(visited) < len(named):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            finally:
                sys.setprofile(None)
                threading.setprofile(None)

    asyncio.run(asyncio.wait_for(main(), 20))
    assert visited == named
    assert 8 <= len(named) <= 10
    assert {
        name.removeprefix("sql/").removesuffix(".sql") for name in named if name.startswith("sql/")
    } <= {
        *TRANSITIONS,
        "enqueue",
    }


PATH_FUNCTIONS = {
    "client.py": ("enqueue", "store"),
    "fetcher.py": ("_claim",),
    "executor.py": ("begin", "run", "raised"),
    "outcome.py": ("settle",),
    "retry.py": ("delay",),
    "finisher.py": ("finish",),
}

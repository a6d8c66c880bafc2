"""Two stores and processes at work on them, for tests of moves that live through a whole one."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from lab.stores import STORES
from winch import App
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.engine.moving.carrying import jobs_of
from winch.engine.moving.route import ALL

TASKS = """
    from datetime import timedelta
    from pathlib import Path
    from winch import App, Context, Retry

    app = App(poll="100ms", sweep="300ms")
    RAN = Path(__file__).parent / "ran"

    def note(what) -> None:
        with RAN.open("a") as file:
            file.write(f"{what}\\n")

    @app.task(name="shop.count", queue="shop")
    def count(n: int) -> int:
        note(f"count {n}")
        return n

    @app.task(name="shop.total", queue="shop")
    def total(numbers: list[int]) -> int:
        note("total")
        return sum(numbers)

    @app.task(name="shop.more", queue="shop")
    def more(n: int, by: int) -> int:
        note(f"more {n} {by}")
        return n + by

    @app.task(name="shop.first", queue="first")
    def first(n: int) -> int:
        note(f"first {n}")
        return n

    def once(n: int) -> int:
        note("step one")
        return n

    @app.task(name="shop.steps", queue="first", retry=Retry.fixed("1h"))
    def steps(n: int, *, ctx: Context) -> int:
        got = ctx.step(once, n, name="one")
        if not (RAN.parent / "moved").exists():
            raise RuntimeError("not yet")
        return got + 1
"""


class MoveStage:
    """A folder with `tasks.py`, the URLs of the stores, and what ran."""

    def __init__(self, folder: Path, pair: Sequence[str], stack: ExitStack) -> None:
        self.folder = folder
        self.env: dict[str, str] = {}
        self.urls: list[str] = []
        (folder / "tasks.py").write_text(textwrap.dedent(TASKS))
        for number, name in enumerate(pair):
            place = folder / str(number)
            place.mkdir()
            self.urls.append(stack.enter_context(STORES[name](place)).url)

    def run(
        self, *words: str, at: int = 0, env: Mapping[str, str] | None = None, is_moving: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """`python words…` at one of the stores, to its end."""
        full = {**os.environ, "WINCH_URL": self.urls[at], **self.env, **(env or {})}
        if is_moving:
            full["WINCH_MOVE_TO"] = self.urls[1]
        return subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env=full,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def script(self, text: str, **options: object) -> list[str]:
        """The words that a script prints."""
        (self.folder / "script.py").write_text(textwrap.dedent(text))
        done = self.run("script.py", **options)  # type: ignore[arg-type]  # passed on
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    def migrate(self) -> None:
        for at in (0, 1):
            done = self.run("-m", "winch", "migrate", at=at)
            assert done.returncode == 0, done.stderr

    def burst(self, at: int, queue: str = "*", **options: object) -> None:
        words = ("-m", "winch", "worker", "-A", "tasks:app", "-Q", queue, "--burst")
        done = self.run(*words, at=at, **options)  # type: ignore[arg-type]  # passed on
        assert done.returncode == 0, done.stderr

    def move(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "winch", "move", "--to", self.urls[1], "--yes", *words)

    def records(self, at: int) -> dict[str, JobRecord]:
        app = App(self.urls[at])
        try:
            return {job.id: job for job in jobs_of(app.ready(), ALL, tuple(JobState))}
        finally:
            app.close()

    def states(self, at: int) -> set[JobState]:
        return {job.state for job in self.records(at).values()}

    @property
    def ran(self) -> list[str]:
        file = self.folder / "ran"
        return file.read_text().splitlines() if file.exists() else []

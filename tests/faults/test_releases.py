"""Workers of two releases on one schema: the deploy that every team makes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

import winch
from tests.faults.stage import STORES, Stage
from tests.servers import Databases
from winch.core.lifecycle import JobState

pytestmark = [
    pytest.mark.servers,
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.parametrize("store", STORES),
]

TABLE = {"sqlite": "winch_job", "postgres": "job"}
REFUSED = 4
HERE = winch.__version__


class Release:
    """A later release: this one's code under another version, with a step more in its schema."""

    def __init__(self, folder: Path, number: str) -> None:
        self._folder = folder / number
        package = Path(winch.__file__).parent
        shutil.copytree(package, self._folder / "winch", ignore=shutil.ignore_patterns("__pycache__"))
        top = self._folder / "winch/core/version.py"
        text, count = re.subn(r'(?m)^__version__ = ".*"$', f'__version__ = "{number}"', top.read_text())
        assert count == 1
        top.write_text(text)

    def add_step(self, name: str, column: str) -> None:
        """One more migration, as a release adds it."""
        for store, table in TABLE.items():
            steps = self._folder / "winch" / "drivers" / store / "migrations"
            number = len(list(steps.glob("[0-9]*.sql"))) + 1
            (steps / f"{number:04}_{name}.sql").write_text(
                f"ALTER TABLE {table} ADD COLUMN {column} text;\n"
            )

    @property
    def env(self) -> Mapping[str, str]:
        return {"PYTHONPATH": str(self._folder)}


def migrate(stage: Stage, release: Release) -> None:
    migrator = stage.fleet.helper("-m", "winch", "migrate", env=release.env)
    assert migrator.wait(30) == 0, stage.fleet.logs()


def test_a_deploy_loses_nothing(store: str, postgres_server: Databases) -> None:
    with Stage("two releases on one schema", store, postgres_server) as stage:
        old = stage.worker(concurrency=2)
        jobs = stage.enqueue("slow", 0.3, times=12)
        stage.until_started(jobs[:1])
        later = Release(stage.folder, "0.2.0")
        later.add_step("colour", "colour")
        migrate(stage, later)
        new = stage.worker(concurrency=2, env=later.env)
        # Producer and old worker are of the release before the schema's; each takes over from the other.
        jobs += stage.enqueue("slow", 0.3, times=12)
        assert {session.release for session in stage.sessions()} == {HERE, "0.2.0"}
        jobs += stage.enqueue("slow", 1.0, times=4)
        new.kill_all()
        stage.worker(concurrency=2, env=later.env)
        jobs += stage.enqueue("slow", 1.0, times=4)
        stage.until_started(jobs[-1:])
        old.kill_all()
        stage.until_final()
        # A new worker may not sweep yet: another test measures how long that takes.
        stage.judge(takeover_limit=None)
        assert {job.state for job in stage.jobs(jobs)} == {JobState.COMPLETED}


def test_a_worker_that_is_too_old_refuses_and_touches_nothing(
    store: str, postgres_server: Databases
) -> None:
    with Stage("a step that this release cannot live with", store, postgres_server) as stage:
        jobs = stage.enqueue("slow", 0.1, times=2)
        later = Release(stage.folder, "0.3.0")
        later.add_step("split_breaking", "half")
        migrate(stage, later)
        worker = stage.fleet.worker()
        assert worker.wait(30) == REFUSED, worker.text()
        assert "a later release has migrated it; upgrade Winch here" in worker.text()
        stage.worker(env=later.env)
        stage.until_started(jobs)

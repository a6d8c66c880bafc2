"""A workflow with pages of history and `ctx.restart`, killed by SIGKILL at every place.

Whatever the place: a step whose result the handler got never runs again, a life that has ended never
begins again, each life has the arguments that the one before gave it, and the end is right.
"""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults.paged_app import LIVES, LONG, STEPS
from tests.faults.test_workflow_kills import ROOT
from tests.faults.workflow_app import JOB
from tests.redis_servers import RedisServer
from tests.servers import Databases
from winch import App
from winch.core.steps import PAGE_BOOK, PAGED_BOOK
from winch.engine.base import operation
from winch.engine.base.step_pages import sweep_pages
from winch.storage.kv_records import KvFilter
from winch.storage.params import NewJob

pytestmark = [pytest.mark.servers, pytest.mark.faults]
LENGTH = 16 + LONG


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Gives the address of one empty store after another."""
    numbers = itertools.count()
    with ExitStack() as stack:
        if request.param == "sqlite":
            yield lambda: f"sqlite:///{tmp_path}/{next(numbers)}.db"
        elif request.param == "redis":
            server = stack.enter_context(RedisServer())
            yield lambda: f"{server.url}?schema=kill{next(numbers)}"
        else:
            databases: Databases = request.getfixturevalue("postgres_server")
            yield databases.new_store


class PagedRunner:
    """Runs the workflow in processes that are forked from one that has imported all they need."""

    def __init__(self, errors: Path) -> None:
        self._errors = errors.open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.paged_app"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def run(self, url: str, place: int, file: Path) -> tuple[int, int]:
        """The exit code, and how many places were passed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{url} {place} {file}\n")
        self._process.stdin.flush()
        code, places = self._process.stdout.readline().split()
        return int(code), int(places)

    @property
    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-4000:]

    def close(self) -> None:
        self._process.communicate()
        self._errors.close()


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[PagedRunner]:
    made = PagedRunner(tmp_path / "errors.txt")
    yield made
    made.close()


def judge(file: Path) -> None:
    """The rules, from the lines that the handler left."""
    lines = [line.split() for line in file.read_text().splitlines()]
    began = [(int(words[1]), int(words[2])) for words in lines if words[0] == "began"]
    lives = [life for life, _ in began]
    assert lives == sorted(lives), "a life that had ended began again"
    assert set(began) == {(life, (life - 1) * STEPS * LENGTH) for life in range(1, LIVES + 1)}
    got: dict[tuple[str, str], str] = {}
    for kind, life, n, *nonce in lines:
        if kind == "ran":
            assert (life, n) not in got, f"step {n} of life {life} ran after the handler had its result"
        elif kind == "got":
            assert got.setdefault((life, n), nonce[0]) == nonce[0], "a result changed"
    assert len(got) == LIVES * STEPS


def once(runner: PagedRunner, url: str, file: Path, place: int) -> tuple[bool, int]:
    """One workflow, killed at this place and then seen through: whether it was, and how many places
    there were."""
    app = App(url)
    app.migrate()
    driver = app.client.driver()
    new = NewJob(id=JOB, task="walk", args='{"life":1}', is_given_id=True, max_attempts=1)
    driver.run(driver.enqueue([new]))
    code, places = runner.run(url, place, file)
    was_killed = code == -signal.SIGKILL
    if was_killed:
        code, _ = runner.run(url, 0, file)
    assert code == 0, (place, runner.errors)
    job = app.jobs.get(JOB)
    assert job.result() == LIVES * STEPS * LENGTH
    judge(file)
    # What earlier lives and the kill left beside the job goes with it.
    assert app.driver.run(app.driver.kv_list(KvFilter(book=PAGE_BOOK))), "the history has pages"
    job.delete()
    operation.run(app.driver, sweep_pages(app.driver, None))
    for book in (PAGE_BOOK, PAGED_BOOK):
        assert not app.driver.run(app.driver.kv_list(KvFilter(book=book))), f"{book} are left"
    app.close()
    return was_killed, places


def enumerate_kills(
    runner: PagedRunner, fresh: Callable[[], str], folder: Path, kills: int | None
) -> None:
    """Kill at `kills` places that are evenly apart; at each of them with None."""
    _, places = once(runner, fresh(), folder / "whole.txt", 0)
    assert places > 60
    every = 1 if kills is None else places // kills
    chosen = range(1 + every // 2, places + 1, every)
    killed = sum(once(runner, fresh(), folder / f"{n}.txt", n)[0] for n in chosen)
    assert killed >= 0.9 * len(chosen)


def test_killed_at_some_places(fresh: Callable[[], str], runner: PagedRunner, tmp_path: Path) -> None:
    enumerate_kills(runner, fresh, tmp_path, kills=5)


@pytest.mark.slow
def test_killed_at_every_place(fresh: Callable[[], str], runner: PagedRunner, tmp_path: Path) -> None:
    enumerate_kills(runner, fresh, tmp_path, kills=None)

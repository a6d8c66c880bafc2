"""A producer of another process that is slow across the switch of a move: its store refuses it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from lab.stores import STORES
from winch import App
from winch.core.errors import ConfigError
from winch.engine.moving import mover as mover_module
from winch.engine.moving.carrying import LIVE, jobs_of
from winch.engine.moving.mover import Mover
from winch.engine.moving.route import ALL, MoveStep
from winch.storage.protocol import Driver

pytestmark = [pytest.mark.servers, pytest.mark.faults]

# Stands still between what it has read of the route and the call that stores its job.
PRODUCER = """
    import sys
    from winch import App

    app = App()

    @app.task(name="plain")
    def plain(n: int) -> None: ...

    plain.using(unique="before").enqueue(0)
    source = app.driver.source
    true_run = source.run

    def slow(verb):
        if verb.name.startswith("enqueue"):
            source.run = true_run
            print("reads", flush=True)
            sys.stdin.readline()
        return true_run(verb)

    source.run = slow
    using = {"unique": "k"} if sys.argv[1] == "unique" else {"fifo": "k"}
    job = plain.using(**using).enqueue(1)
    print(job.id, int(job.is_new), flush=True)
"""


def plain(n: int) -> None: ...


class Stage:
    """Two stores, an app that knows both, and a producer of another process."""

    def __init__(self, folder: Path, pair: tuple[str, str], stack: ExitStack) -> None:
        self.folder = folder
        urls = []
        for number, name in enumerate(pair):
            place = folder / str(number)
            place.mkdir()
            urls.append(stack.enter_context(STORES[name](place)).url)
        self.urls = urls
        for url in urls:
            app = App(url)
            app.migrate()
            app.close()
        self.app = App(urls[0])
        self.app.configure({"move_to": urls[1]})
        stack.callback(self.app.close)
        self.plain = self.app.task(name="plain")(plain)
        self.source: Driver = self.app.driver.source  # type: ignore[attr-defined]  # of the routed driver
        self.target: Driver = self.app.driver.target  # type: ignore[attr-defined]  # the same
        self.mover = Mover(self.source, self.target)
        self._stack = stack

    def producer(self, kind: str) -> subprocess.Popen[str]:
        (self.folder / "producer.py").write_text(textwrap.dedent(PRODUCER))
        env = {**os.environ, "WINCH_URL": self.urls[0], "WINCH_MOVE_TO": self.urls[1]}
        process = subprocess.Popen(
            [sys.executable, "producer.py", kind],
            cwd=self.folder,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        return process

    def live(self, driver: Driver) -> list[str]:
        """The jobs of the key, in their order."""
        found = [job for job in jobs_of(driver, ALL, LIVE) if "k" in (job.unique_key, job.fifo)]
        return [job.id for job in sorted(found, key=lambda job: job.seq or 0)]


def answer_of(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


def goes_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


@pytest.mark.parametrize("name", ["sqlite", "postgres", "redis", "redis+cluster"])
@pytest.mark.parametrize("kind", ["unique", "fifo"])
def test_a_producer_that_was_slow_across_the_switch_is_refused_and_follows(
    tmp_path: Path, stack: ExitStack, name: str, kind: str
) -> None:
    stage = Stage(tmp_path, (name, "sqlite"), stack)
    producer = stage.producer(kind)
    assert answer_of(producer) == ["reads"]
    stage.mover.advance(stage.mover.begin())
    using = stage.plain.using(unique="k") if kind == "unique" else stage.plain.using(fifo="k")
    ours = using.enqueue(2)
    assert ours.is_new
    goes_on(producer)
    job_id, is_new = answer_of(producer)
    assert stage.live(stage.source) == [], "the store that the route has left refuses it"
    if kind == "unique":
        assert (job_id, is_new) == (ours.id, "0")
        assert stage.live(stage.target) == [ours.id]
    else:
        assert is_new == "1"
        assert stage.live(stage.target) == [ours.id, job_id]


def test_a_transaction_under_way_keeps_the_route_from_being_opened(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producer's transaction waits for a key that a third one has taken and not committed."""
    monkeypatch.setattr(mover_module, "TRIES", 2)
    stage = Stage(tmp_path, ("postgres", "sqlite"), stack)
    third = stack.enter_context(psycopg.connect(stage.urls[0]))
    plain_app = App(stage.urls[0])
    stack.callback(plain_app.close)
    plain_app.task(name="plain")(plain).using(unique="k", conn=third).enqueue(1)
    producer = stage.producer("unique")
    assert answer_of(producer) == ["reads"]
    goes_on(producer)
    look = stack.enter_context(psycopg.connect(stage.urls[0], autocommit=True))
    locked = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'"
    while look.execute(locked).fetchone() != (1,):
        pass
    route = stage.mover.begin()
    with pytest.raises(ConfigError, match="a transaction that stores jobs stays open"):
        stage.mover.advance(route)
    there = stage.mover.route()
    assert there is not None
    assert there.step is MoveStep.ANNOUNCED, "producers are not held meanwhile"
    third.rollback()
    job_id, is_new = answer_of(producer)
    assert is_new == "1"
    stage.mover.advance(there)
    again = stage.plain.using(unique="k").enqueue(2)
    assert (again.id, again.is_new) == (job_id, False)
    stage.mover.drain(stage.mover.route() or there)
    assert (stage.live(stage.source), stage.live(stage.target)) == ([], [job_id])

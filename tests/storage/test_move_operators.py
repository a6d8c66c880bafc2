"""What operators and producers of other processes do while a mover is at work."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.storage.move_stage import MoveStage
from winch import App
from winch.core.lifecycle import JobState
from winch.engine.moving import mover as mover_module
from winch.engine.moving.mover import Mover
from winch.engine.moving.route import Route

pytestmark = [
    pytest.mark.servers,
    pytest.mark.parametrize("name", ["sqlite", "postgres", "redis", "redis+cluster"]),
]

JOBS = 150
# Acts on one job after the other, in an order of its own, until all have been acted on.
OPERATOR = """
    import random, sys
    from winch import App
    from winch.core.errors import WinchError

    app = App()
    print("ready", flush=True)
    sys.stdin.readline()
    verb, *ids = sys.argv[1:]
    random.Random(7).shuffle(ids)
    for place, job_id in enumerate(ids):
        if verb == "cancel":
            done = app.jobs.cancel(job_id)
        else:
            done = app.jobs.release_key(f"key-{job_id}") == job_id
        if not done:
            print("missed", job_id, flush=True)
    print("end", flush=True)
"""
PRODUCER = """
    import sys
    from winch import App

    app = App()

    @app.task(name="plain")
    def plain(n: int) -> None: ...

    print("ready", flush=True)
    sys.stdin.readline()
    for n in range(int(sys.argv[1])):
        for key in range(5):
            plain.using(unique=f"k{key}").enqueue(n)
    print("end", flush=True)
"""


def plain(n: int) -> None: ...


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


class Stage:
    """Two stores, the mover of this process, and another process."""

    def __init__(self, folder: Path, name: str, stack: ExitStack) -> None:
        self.stage = MoveStage(folder, (name, "sqlite"), stack)
        self.stage.migrate()
        self.app = App(self.stage.urls[0])
        self.app.configure({"move_to": self.stage.urls[1]})
        stack.callback(self.app.close)
        self.plain = self.app.task(name="plain")(plain)
        source, target = self.app.driver.source, self.app.driver.target  # type: ignore[attr-defined]
        self.mover = Mover(source, target)
        self._stack = stack

    def other(self, script: str, *words: str) -> subprocess.Popen[str]:
        """A process that knows both stores, and is ready."""
        folder, urls = self.stage.folder, self.stage.urls
        (folder / "other.py").write_text(textwrap.dedent(script))
        process = subprocess.Popen(
            [sys.executable, "other.py", *words],
            cwd=folder,
            env={**os.environ, "WINCH_URL": urls[0], "WINCH_MOVE_TO": urls[1]},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def cli(self, *words: str) -> str:
        done = self.stage.run("-m", "winch", *words, is_moving=True)
        assert done.returncode == 0, done.stderr
        return done.stdout


def began(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def ended(process: subprocess.Popen[str]) -> Sequence[str]:
    assert process.stdout is not None
    lines = process.stdout.read().splitlines()
    assert process.wait(60) == 0
    return lines


def there_and_back(mover: Mover) -> Route:
    route = mover.drain(mover.advance(mover.begin()))
    return mover.drain(mover.advance(mover.turn_back(route)))


@pytest.mark.parametrize("verb", ["cancel", "release"])
def test_an_operator_reaches_each_job_wherever_it_is(
    tmp_path: Path, stack: ExitStack, name: str, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs in a parcel and on the way back are reached, too."""
    monkeypatch.setattr("winch.engine.moving.carrying.PARCEL", 10)
    stage = Stage(tmp_path, name, stack)
    ids = [f"5e2cf14a-0000-4000-8000-{n:012}" for n in range(JOBS)]
    for job_id in ids:
        stage.plain.using(unique=f"key-{job_id}", id=job_id).enqueue(1)
    operator = stage.other(OPERATOR, verb, *ids)
    began(operator)
    route = there_and_back(stage.mover)
    assert ended(operator) == ["end"], "each was found and acted on"
    stage.mover.end_back(route)
    records = stage.stage.records(0)
    if verb == "cancel":
        both = records | stage.stage.records(1)
        assert {job.state for job in both.values()} == {JobState.CANCELLED}
        assert set(both) == set(ids)
    else:
        assert set(records) == set(ids)
        assert {job.unique_key for job in records.values()} == {None}
    live = [job for job in stage.stage.records(1).values() if not job.state.is_final]
    assert live == []


def test_a_key_has_one_holder_all_through_a_move_there_and_back(
    tmp_path: Path, stack: ExitStack, name: str
) -> None:
    stage = Stage(tmp_path, name, stack)
    producer = stage.other(PRODUCER, "150")
    began(producer)
    for _ in range(2):
        stage.mover.end_back(there_and_back(stage.mover))
    assert ended(producer) == ["end"]
    assert stage.stage.records(1) == {}
    keys = sorted(job.unique_key or "" for job in stage.stage.records(0).values())
    assert keys == [f"k{key}" for key in range(5)]


def test_an_operator_pauses_and_sets_a_queue_from_the_command_line(
    tmp_path: Path, stack: ExitStack, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mover_module, "SWEEP", 0.05)
    stage = Stage(tmp_path, name, stack)
    stage.plain.using(queue="shop").enqueue(1)
    route = stage.mover.drain(stage.mover.advance(stage.mover.begin()))
    stage.cli("queues", "pause", "shop", "--reason", "inventory")
    stage.cli("queues", "set", "shop", "concurrency=2")
    target = App(stage.stage.urls[1])
    stack.callback(target.close)
    [there] = [queue for queue in target.queues.list() if queue.name == "shop"]
    assert there.pause_reason == "inventory"
    assert target.queues.settings()["shop"].concurrency == 2
    stage.mover.sweep(route)
    [there] = [queue for queue in target.queues.list() if queue.name == "shop"]
    assert there.pause_reason == "inventory", "the mover lets it be"
    stage.cli("queues", "resume", "shop")
    [there] = [queue for queue in target.queues.list() if queue.name == "shop"]
    assert there.paused_at is None
    audit = {(line.action, line.via) for line in stage.app.audit.list()}
    assert audit >= {("pause queue", "cli"), ("configure queue", "cli"), ("resume queue", "cli")}

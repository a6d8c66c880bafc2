"""A move between two releases: an older commit of this repository at work beside the present one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path

import pytest

from tests.storage.move_stage import MoveStage
from winch.core.lifecycle import JobState

pytestmark = [pytest.mark.servers, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
# The last commit whose producers know no fence.
UNFENCED = "11784c9b"
ENQUEUE = """
    from tasks import count

    jobs = [count.using(unique="k").enqueue(1)] + [count.enqueue(n) for n in range(2, 12)]
    print(*(job.id for job in jobs))
"""
WORKER = ("-m", "winch", "worker", "-A", "tasks:app", "-Q", "*")


def git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True).stdout


def older(folder: Path, commit: str, number: str | None = None) -> dict[str, str]:
    """The package of a commit under this version: what is set for a process of that release."""
    place = folder / commit
    with tarfile.open(fileobj=BytesIO(git("archive", commit, "src/winch"))) as packed:
        packed.extractall(place, filter="data")
    if number is not None:
        file = place / "src/winch/core/version.py"
        text, count = re.subn(r'(?m)^__version__ = ".*"$', f'__version__ = "{number}"', file.read_text())
        assert count == 1
        file.write_text(text)
    return {"PYTHONPATH": str(place / "src")}


def last_before() -> str:
    """The newest commit whose package differs from the present one by something."""
    commits = git("log", "-2", "--format=%h", "--", "src/winch").decode().split()
    return commits[-1]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


@pytest.fixture
def stage(tmp_path: Path, stack: ExitStack) -> MoveStage:
    return MoveStage(tmp_path, ("sqlite", "postgres"), stack)


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_compatible_pair_moves(stage: MoveStage, tmp_path: Path, side: str) -> None:
    """One store, its producers and its workers run the older release; the mover runs this one."""
    old = older(tmp_path, last_before())
    at = ("source", "target").index(side)
    for place in (0, 1):
        done = stage.run("-m", "winch", "migrate", at=place, env=old if place == at else {})
        assert done.returncode == 0, done.stderr
    of = {0: old if at == 0 else {}, 1: old if at == 1 else {}}
    shown = stage.run("-c", "import winch; print(winch.__file__)", env=old).stdout
    assert str(tmp_path) in shown, "the older release is what runs"
    before = stage.script(ENQUEUE, env=of[0])
    moved = stage.move()
    assert moved.returncode == 0, moved.stderr
    late = stage.script(ENQUEUE, env=of[0])  # it does not know the move
    assert stage.move("--resume").returncode == 0
    stage.burst(1, env=of[1])
    ended = {job.id: job.state for job in stage.records(1).values()}
    assert set(ended) == {*before, *late}
    assert set(ended.values()) == {JobState.COMPLETED}
    assert stage.records(0) == {}
    assert Counter(stage.ran) == {"count 1": 2, **{f"count {n}": 2 for n in range(2, 12)}}
    done = stage.move("--cutover")
    assert done.returncode == 0, done.stderr


def test_producers_that_know_no_fence_are_refused_before_they_store_anything(
    stage: MoveStage, tmp_path: Path
) -> None:
    old = older(tmp_path, UNFENCED)
    stage.migrate()
    stage.script(ENQUEUE)
    assert stage.move().returncode == 0
    (tmp_path / "script.py").write_text("from tasks import count\ncount.using(unique='k').enqueue(1)\n")
    refused = stage.run("script.py", env=old, is_moving=True)
    assert refused.returncode != 0
    assert "a move is under way that a later release of Winch has begun" in refused.stderr
    assert "upgrade here" in refused.stderr
    assert (len(stage.records(0)), len(stage.records(1))) == (0, 11)


def test_a_target_whose_workers_are_older_is_refused(
    stage: MoveStage, tmp_path: Path, stack: ExitStack
) -> None:
    old = older(tmp_path, UNFENCED, "0.0.9")
    stage.migrate()
    stage.script(ENQUEUE)
    env = {**os.environ, "WINCH_URL": stage.urls[1], **old}
    worker = stack.enter_context(
        subprocess.Popen([sys.executable, *WORKER], cwd=tmp_path, env=env, stderr=subprocess.DEVNULL)
    )
    stack.callback(worker.kill)
    deadline = time.monotonic() + 60
    while "0.0.9" not in stage.run("-m", "winch", "workers", "list", "--json", at=1).stdout:
        assert time.monotonic() < deadline
    refused = stage.move()
    assert refused.returncode == 2, refused.stderr
    assert "runs Winch 0.0.9, which is older than" in refused.stderr
    assert "nothing was moved" in refused.stderr
    assert len(stage.records(0)) == 11

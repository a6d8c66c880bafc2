"""Moves with real workers on both sides: flows, step history and dead letters, plain and encrypted."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.storage.move_stage import MoveStage
from winch.core.lifecycle import JobState

pytestmark = pytest.mark.servers

KEY = f"k1:{base64.b64encode(b'1' * 32).decode()}"
PAIRS = (
    ("sqlite", "postgres"),
    ("postgres", "redis"),
    ("redis", "redis+cluster"),
    ("redis+cluster", "sqlite"),
)
ENQUEUE = """
    from winch import batch, chain, chord
    from tasks import count, first, more, steps, total

    chord([count.bind(n) for n in range(40_771, 40_774)], total.partial()).enqueue()
    begun = chain(first.bind(5), more.partial(by=10), more.partial(by=100)).enqueue()
    with batch("b", on_success=count.bind(77)) as members:
        members.enqueue(*(count.bind(n) for n in range(3)))
    with batch("outer", on_success=count.bind(88)) as outer:
        with outer.batch("inner") as inner:
            inner.enqueue(*(count.bind(n) for n in range(50, 60)))
    print(begun.id, steps.enqueue(1).id)
"""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("keys", [None, KEY], ids=["plain", "encrypted"])
def test_flows_and_histories_go_on_in_the_target(
    tmp_path: Path, stack: ExitStack, pair: tuple[str, str], keys: str | None
) -> None:
    stage = MoveStage(tmp_path, pair, stack)
    stage.env = {} if keys is None else {"WINCH_KEYS": keys}
    stage.migrate()
    _, with_steps = stage.script(ENQUEUE)
    stage.burst(0, "first")  # the first of the chain completes; the other one fails after its step
    assert sorted(stage.ran) == ["first 5", "step one"]
    moved = stage.move()
    assert moved.returncode == 0, moved.stderr
    assert stage.states(0) <= {JobState.COMPLETED}
    done = stage.move("--cutover")
    assert done.returncode == 0, done.stderr
    (tmp_path / "moved").touch()
    retried = stage.run("-m", "winch", "jobs", "retry", with_steps, at=1)
    assert retried.returncode == 0, retried.stderr
    stage.burst(1)
    ran = Counter(stage.ran)
    assert set(ran.values()) == {1}, ran
    assert set(ran) == {
        *("first 5", "more 5 10", "more 15 100", "step one", "total", "count 77", "count 88"),
        *(f"count {n}" for n in (0, 1, 2, *range(50, 60), 40_771, 40_772, 40_773)),
    }
    for callback, members in (("count 77", range(3)), ("count 88", range(50, 60))):
        assert stage.ran.index(callback) > max(stage.ran.index(f"count {n}") for n in members)
    there = stage.records(1)
    assert stage.states(1) == {JobState.COMPLETED}
    if keys is None:
        assert there[with_steps].result == "2"
    else:
        stored = "".join(f"{job.args} {job.result} {job.checkpoint}" for job in there.values())
        assert "4077" not in stored

"""Two features meet: every pair works on every store, or is refused with a reason.

A row is a feature of one job, a column is a way to store jobs. Each pair runs real jobs on a real
worker; the checker of recorded histories judges them, and what both features promise. Pairs of one store
run side by side in one worker, each with tasks and keys of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.matrix.conftest import COUNTS
from tests.matrix.features import FEATURES, Feature
from tests.matrix.refusals import REFUSED, refusal_of
from tests.matrix.runs import APART, PAIRS, Played, judge, play
from tests.matrix.shapes import SHAPES, Shape
from tests.matrix.trial import Pair, Trial
from winch import batch


def test_a_pair(store: str, pair: str, played: Callable[[str], Played]) -> None:
    run = played(store)
    evidence = run.evidence[pair]
    expected = refusal_of(evidence.pair, joins_transactions=run.joins_transactions)
    refusal = evidence.trial.refusal
    what = "broken"
    try:
        if expected is None:
            assert refusal is None, f"it is refused: {refusal}"
            broken = judge(evidence)
            assert not broken, "\n".join(broken)
            what = "ran"
        else:
            assert type(refusal) is expected.error, f"it is not refused as it should be: {refusal!r}"
            assert expected.words in str(refusal)
            assert not evidence.jobs, f"it is refused, and {len(evidence.jobs)} of its jobs are stored"
            what = "refused"
    finally:
        COUNTS[store, what] += 1


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_the_run_as_a_whole(store: str, played: Callable[[str], Played]) -> None:
    """No rule outside of the pairs is broken, such as a job that was never enqueued."""
    run = played(store)
    own = {str(found) for evidence in run.evidence.values() for found in evidence.violations}
    assert not [str(found) for found in run.verdict.violations if str(found) not in own]


def test_the_table_of_refusals_names_pairs() -> None:
    known = {(pair.feature.name, pair.shape.name) for pair in PAIRS}
    assert set(REFUSED) <= known
    assert len(PAIRS) == len(known) == 18 * 14 - len(APART)


# -- the matrix itself: what is broken on purpose is noticed -------------------------------------------


def _shape(name: str) -> Shape:
    return next(shape for shape in SHAPES if shape.name == name)


def _feature(name: str) -> Feature:
    return next(feature for feature in FEATURES if feature.name == name)


def _complaints(feature: Feature, shape: Shape, folder: Path) -> list[str]:
    pair = Pair(feature, shape)
    [evidence] = play("memory://", [pair], folder).evidence.values()
    assert evidence.trial.refusal is None
    return judge(evidence)


def _lose_a_member(trial: Trial, conn: object) -> None:
    complete = trial.add_task("complete", _nothing)
    success = trial.add_task("success", _nothing)
    with batch(trial.name, on_complete=complete.bind(), on_success=success.bind()) as members:
        members.enqueue(*trial.calls()[:-1])


async def _nothing(*_: object) -> None:
    pass


def _store_backwards(trial: Trial, conn: object) -> None:
    trial.app.enqueue_many(trial.calls()[::-1])


def _call_back_early(trial: Trial, conn: object) -> None:
    """The callbacks are plain jobs that wait for nothing."""
    member = trial.add_task("member", _nothing)
    trial.app.enqueue_many([*trial.calls()[:3], member.bind(n=0), member.bind(n=1)])


def test_a_lost_member_is_noticed(tmp_path: Path) -> None:
    broken = dataclasses.replace(_shape("batch member"), store=_lose_a_member)
    assert "call 3 has 0 jobs" in _complaints(_feature("plain"), broken, tmp_path)


def test_another_order_is_noticed(tmp_path: Path) -> None:
    broken = dataclasses.replace(_shape("enqueue_many"), store=_store_backwards)
    plain_ids = dataclasses.replace(_feature("fifo"), options=lambda trial, n: {"fifo": trial.name})
    found = _complaints(plain_ids, broken, tmp_path)
    assert found == ["the calls of one FIFO key ran in the order [3, 2, 1, 0]"]


def test_an_early_callback_is_noticed(tmp_path: Path) -> None:
    broken = dataclasses.replace(_shape("batch callback"), store=_call_back_early)
    found = _complaints(_feature("plain"), broken, tmp_path)
    assert "callback 0 began before the members had ended" in found


def test_a_feature_that_is_dropped_is_noticed(tmp_path: Path) -> None:
    """The task is made without the limit that its pair is about."""
    dropped = dataclasses.replace(_feature("limit"), task_options=lambda trial: {})
    found = _complaints(dropped, _shape("group"), tmp_path)
    assert any(complaint.endswith("was stored without its limit") for complaint in found)
    assert "4 handlers ran at once, and the limit is 2" in found

"""A worker whose driver does not compare the token: a witness that misses it would be worth nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.stage import STORES, Stage
from tests.servers import Databases

pytestmark = [
    pytest.mark.servers,
    pytest.mark.faults,
    pytest.mark.scenario,
    # One store shows that the witness sees it; the others are for `make test-all`.
    pytest.mark.parametrize(
        "store", [pytest.param(s, marks=() if s == "sqlite" else pytest.mark.slow) for s in STORES]
    ),
]

BROKEN = Path(__file__).with_name("broken")


def test_a_broken_fence_is_reported_by_name(store: str, postgres_server: Databases) -> None:
    with Stage("broken fence, SIGSTOP past the lease", store, postgres_server) as stage:
        other, sleeper = stage.two_workers(env={"PYTHONPATH": str(BROKEN)})
        jobs = stage.enqueue("slow", 2.0, times=4)
        stage.until_started(jobs)
        other.wake()
        sleeper.stop()
        stage.until_started(jobs, times=2)
        sleeper.go_on()
        stage.until_final()
        verdict = stage.verdict(takeover_limit=None)
        # Not each of them: the other worker may have been done before the sleeper woke.
        assert verdict.named("I4"), verdict
        stage.measured(f"found {', '.join(sorted({v.invariant for v in verdict.violations}))}")

"""The times in the answer to "why": as exact as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.engine.client.why import explain
from winch.storage.params import Facts

AT = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "micros, words",
    [
        (870, "1ms"),
        (16_230, "16ms"),
        (1_250_400, "1.3s"),
        (27_528_000, "27s"),
        (81_900_000, "1m 21s"),
    ],
)
def test_a_span_is_rounded(micros: int, words: str) -> None:
    job = JobRecord(
        id="0198c000-0000-7000-8000-000000000001", task="add", version=1, args="{}", queue="q",
        priority=0, created_at=AT, run_at=AT, state=JobState.COMPLETED, claimed_at=AT,
        finished_at=AT + timedelta(microseconds=micros),
    )  # fmt: skip
    facts = Facts(
        job=job, now=AT, pause_reason=None, is_paused=False, ahead=0, session=None, serving=1, knowing=1
    )
    assert f", {words} after it was claimed" in explain(facts)

"""What the tests of steps and of their compensation look at."""

from __future__ import annotations

from typing import Any

from winch import (
    Job,
    Retry,
)
from winch.core import steps

ONCE = Retry.fixed("1s", attempts=1)
TWICE = Retry.fixed("1s", attempts=2, jitter="none")


def history(job: Job[Any]) -> steps.StepHistory:
    found = steps.read(job.refresh().record.checkpoint)
    assert found is not None
    return found


def whats(job: Job[Any]) -> list[str]:
    return [entry.what for entry in job.refresh().record.history]

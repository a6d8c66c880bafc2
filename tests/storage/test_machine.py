"""Random walks over the verbs: every driver does what the reference does, and keeps the invariants."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis
import pytest

from tests.storage import time_machine
from tests.storage.both_stores import STEADY
from tests.storage.machine import walk
from winch.testing.conformance import MemoryTarget, Target

# Walks of fifty steps each; ten times as many in the slow tests, where that is not more than MOST.
EXAMPLES = {"memory": 80, "sqlite": 30, "postgres": 12, "redis": 10, "redis+cluster": 2}
MOST = {"postgres": 60}
# With schedules, waits and undo among the steps.
IN_TIME = {"memory": 20, "sqlite": 5, "postgres": 3, "redis": 8}

MANY = pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.slow)])


def test_the_reference_keeps_the_invariants() -> None:
    walk(
        MemoryTarget(),
        reference=False,
        settings=hypothesis.settings(STEADY, max_examples=EXAMPLES["memory"]),
    )


@MANY
@pytest.mark.parametrize(
    "driver",
    [
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.servers),
        pytest.param("redis", marks=pytest.mark.servers),
        pytest.param("redis+cluster", marks=pytest.mark.servers),
    ],
)
def test_a_driver_does_what_the_reference_does(
    driver: str, times: int, target_of: Callable[[str], Target]
) -> None:
    examples = min(EXAMPLES[driver] * times, MOST.get(driver, 1000))
    settings = hypothesis.settings(STEADY, max_examples=examples)
    walk(target_of(driver), reference=True, settings=settings)


def test_the_reference_keeps_the_invariants_in_time() -> None:
    settings = hypothesis.settings(STEADY, max_examples=IN_TIME["memory"])
    time_machine.walk(MemoryTarget(), reference=False, settings=settings)


@MANY
@pytest.mark.parametrize(
    "driver",
    [
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.servers),
        pytest.param("redis", marks=pytest.mark.servers),
    ],
)
def test_a_driver_does_what_the_reference_does_in_time(
    driver: str, times: int, target_of: Callable[[str], Target]
) -> None:
    settings = hypothesis.settings(STEADY, max_examples=IN_TIME[driver] * times)
    time_machine.walk(target_of(driver), reference=True, settings=settings)

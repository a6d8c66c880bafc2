"""Random walks over the verbs: every driver does what the reference does, and keeps the invariants."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis
import pytest

from tests.storage import time_machine
from tests.storage.machine import STEADY, walk
from winch.testing.conformance import MemoryTarget, Target

EXAMPLES = {"memory": 250, "sqlite": 100, "postgres": 40, "redis": 30, "redis+cluster": 4}
# With schedules, waits and undo among the steps; many more of them in the slow tests.
IN_TIME = {"memory": 20, "sqlite": 5, "postgres": 3, "redis": 8}


def test_the_reference_keeps_the_invariants() -> None:
    walk(
        MemoryTarget(),
        reference=False,
        settings=hypothesis.settings(STEADY, max_examples=EXAMPLES["memory"]),
    )


@pytest.mark.parametrize(
    "driver",
    [
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.servers),
        pytest.param("redis", marks=pytest.mark.servers),
        pytest.param("redis+cluster", marks=pytest.mark.servers),
    ],
)
def test_a_driver_does_what_the_reference_does(driver: str, target_of: Callable[[str], Target]) -> None:
    walk(
        target_of(driver),
        reference=True,
        settings=hypothesis.settings(STEADY, max_examples=EXAMPLES[driver]),
    )


def test_the_reference_keeps_the_invariants_in_time() -> None:
    settings = hypothesis.settings(STEADY, max_examples=IN_TIME["memory"])
    time_machine.walk(MemoryTarget(), reference=False, settings=settings)


@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.slow)])
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

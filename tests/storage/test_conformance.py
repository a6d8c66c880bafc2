"""The shipped suite under pytest: every driver, both modes, every case."""

from __future__ import annotations

import asyncio
import pkgutil
from collections.abc import Callable

import pytest

from winch.storage.capabilities import Capabilities
from winch.testing import conformance
from winch.testing.conformance import MODES, Case, Mode, Target, Verdict, all_cases, run_case
from winch.testing.conformance.absence import REFUSALS
from winch.testing.conformance.suite import FAMILIES

DRIVERS = [
    "memory",
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.servers),
    pytest.param("postgres+leases", marks=[pytest.mark.servers, pytest.mark.slow]),
    pytest.param("redis", marks=pytest.mark.servers),
    pytest.param("redis+cluster", marks=pytest.mark.servers),
]


@pytest.mark.parametrize("driver", DRIVERS, scope="session")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", all_cases(), ids=lambda case: f"{case.family}:{case.name}")
def test_driver_conforms(
    driver: str, mode: Mode, case: Case, target_of: Callable[[str], Target], runner: asyncio.Runner
) -> None:
    target = target_of(driver)
    if run_case(case, mode, target, runner) is Verdict.ABSENT:
        pytest.skip(f"{case.needs} is absent, and refused clearly")


def test_case_names_are_told_apart() -> None:
    names = [str(case) for case in all_cases()]
    assert len(names) == len(set(names))


def test_every_module_of_cases_is_part_of_the_suite() -> None:
    """A family that somebody forgot to list would never run."""
    parts = {"__main__", "absence", "bench", "case", "peer", "suite", "target"}
    files = {module.name for module in pkgutil.iter_modules(conformance.__path__)}
    assert files - parts == {module.__name__.rpartition(".")[2] for module in FAMILIES}


def test_every_capability_is_tested_both_ways() -> None:
    capabilities = set(Capabilities.__struct_fields__)
    assert {case.needs for case in all_cases()} - {None} == capabilities
    assert set(REFUSALS) == capabilities

"""The shipped suite under pytest: every driver, both modes, every case."""

from __future__ import annotations

import asyncio
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from winch.storage.capabilities import Capabilities
from winch.testing import conformance
from winch.testing.conformance import MODES, Case, Mode, Target, Verdict, all_cases, run_case
from winch.testing.conformance.absence import REFUSALS
from winch.testing.conformance.suite import FAMILIES

SERVERS = ("postgres", "redis", "redis+cluster")


def runs() -> Iterator[Any]:
    """Every case on every driver in both modes. Unless slow tests are wanted, a case runs in one mode
    where it writes to a disk or needs a server, the modes in turn, and every third case on the cluster:
    most of what a cluster does is what one of its servers does."""
    for place, case in enumerate(all_cases()):
        for mode_place, mode in enumerate(MODES):
            other = [pytest.mark.slow] if (place + mode_place) % len(MODES) else []
            marks = {"sqlite": other} | {name: [pytest.mark.servers, *other] for name in SERVERS}
            if place % 3:
                marks["redis+cluster"] = [pytest.mark.servers, pytest.mark.slow]
            marks["postgres+leases"] = [pytest.mark.servers, pytest.mark.slow]
            for driver in ("memory", *marks):
                name = f"{case.family}:{case.name}-{mode}-{driver}"
                yield pytest.param(driver, mode, case, id=name, marks=marks.get(driver, []))


@pytest.mark.parametrize("driver, mode, case", list(runs()))
def test_driver_conforms(
    driver: str, mode: Mode, case: Case, target_of: Callable[[str], Target], runner: asyncio.Runner
) -> None:
    target = target_of(driver)
    if run_case(case, mode, target, runner) is Verdict.ABSENT:
        pytest.skip(f"{case.needs} is absent, and refused clearly")


def test_case_names_are_unique() -> None:
    names = [str(case) for case in all_cases()]
    assert len(names) == len(set(names))


def test_every_module_of_cases_is_part_of_the_suite() -> None:
    """A family that is missing from the list would never run."""
    parts = {"__main__", "absence", "bench", "case", "peer", "suite", "target"}
    files = {
        m.name.rpartition(".")[2]
        for m in pkgutil.walk_packages(conformance.__path__, "winch.testing.conformance.")
        if not m.ispkg
    }
    assert files - parts == {module.__name__.rpartition(".")[2] for module in FAMILIES}


def test_every_capability_is_tested_both_ways() -> None:
    capabilities = set(Capabilities.__struct_fields__)
    assert {case.needs for case in all_cases()} - {None} == capabilities
    assert set(REFUSALS) == capabilities

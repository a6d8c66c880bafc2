"""All cases, and what running them on one target came to."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from types import ModuleType

from winch.core.errors import ConfigError
from winch.testing.conformance.absence import REFUSALS
from winch.testing.conformance.bench import MODES, Bench, Mode
from winch.testing.conformance.case import Case, has
from winch.testing.conformance.cases.gates import breakers, gate_order, gate_rates, gates
from winch.testing.conformance.cases.jobs import (
    claim,
    enqueue,
    events,
    fifo,
    finish,
    needed,
    next_members,
    release,
    together,
    transactions,
    transitions,
    undo,
    unique,
    unique_windows,
    waits,
    wakeups,
)
from winch.testing.conformance.cases.store import (
    backfills,
    dead,
    kv,
    moves,
    operators,
    promote,
    prune,
    queue_rules,
    reading,
    reports,
    rescue,
    schedule_definitions,
    schedules,
    sessions,
    sharing,
    upkeep,
)
from winch.testing.conformance.target import Target

FAMILIES: Sequence[ModuleType] = (
    enqueue,
    claim,
    finish,
    release,
    reports,
    sessions,
    rescue,
    promote,
    prune,
    queue_rules,
    operators,
    moves,
    dead,
    undo,
    waits,
    together,
    needed,
    unique,
    unique_windows,
    gates,
    gate_rates,
    gate_order,
    fifo,
    next_members,
    breakers,
    schedules,
    schedule_definitions,
    backfills,
    reading,
    kv,
    transitions,
    transactions,
    wakeups,
    events,
    upkeep,
    sharing,
)


class Verdict(StrEnum):
    """ABSENT: the driver declares that it lacks what the case needs, and refuses it clearly."""

    PASSED = "passed"
    FAILED = "failed"
    ABSENT = "absent"


@dataclass(frozen=True)
class Result:
    case: Case
    mode: Mode
    verdict: Verdict
    error: str = ""


@dataclass(frozen=True)
class Report:
    """What one driver came to."""

    name: str
    results: tuple[Result, ...]

    def of(self, verdict: Verdict) -> list[Result]:
        return [result for result in self.results if result.verdict is verdict]

    @property
    def failed(self) -> list[Result]:
        return self.of(Verdict.FAILED)

    @property
    def absent(self) -> Counter[str]:
        """How many cases each absent capability stands for."""
        return Counter(result.case.needs or "" for result in self.of(Verdict.ABSENT))

    def line(self) -> str:
        return (
            f"{self.name}: {len(self.of(Verdict.PASSED))} passed, {len(self.failed)} failed, "
            f"{len(self.of(Verdict.ABSENT))} absent of {len(self.results)}"
        )


def all_cases() -> tuple[Case, ...]:
    """Every case, in the order of the families and of their files."""
    found: list[Case] = []
    for module in FAMILIES:
        # A module may use another's cases as functions; they stay the other's cases.
        found += [
            value
            for value in vars(module).values()
            if isinstance(value, Case) and value.body.__module__ == module.__name__
        ]
        found += getattr(module, "GENERATED", ())
    return tuple(found)


@contextmanager
def bench_of(target: Target, case: Case, mode: Mode, runner: asyncio.Runner) -> Iterator[Bench]:
    """A bench on a fresh store."""
    if not __debug__:
        raise ConfigError("the conformance suite is made of assert statements; run Python without -O")
    driver = target.fresh()
    if case.events:
        target.finished(driver)
        driver = target.fresh(events=True)
    try:
        yield Bench(target, driver, mode, runner, seed=case.name)
    finally:
        if mode == "sync":
            target.finished(driver)
        else:
            runner.run(target.afinished(driver))


def run_case(case: Case, mode: Mode, target: Target, runner: asyncio.Runner) -> Verdict:
    """Run one case; raises what the case raises."""
    with bench_of(target, case, mode, runner) as bench:
        if not has(bench.driver.capabilities, case.needs):
            REFUSALS[case.needs or ""](bench)
            return Verdict.ABSENT
        pending = case.body(bench)
        if inspect.iscoroutine(pending):
            bench.run(pending)
        return Verdict.PASSED


def run(
    target: Target,
    cases: Sequence[Case] | None = None,
    *,
    on_result: Callable[[Result], None] = lambda _: None,
) -> Report:
    """Run the cases in both modes and collect what came of them."""
    results = []
    with asyncio.Runner() as runner:
        try:
            for mode in MODES:
                for case in all_cases() if cases is None else cases:
                    try:
                        result = Result(case, mode, run_case(case, mode, target, runner))
                    except Exception:
                        result = Result(case, mode, Verdict.FAILED, traceback.format_exc())
                    results.append(result)
                    on_result(result)
        finally:
            runner.run(target.aclose())
            target.close()
    return Report(target.name, tuple(results))

"""What a scenario is, and how one is run: all systems in turn, round after round, medians at the end."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.catalog import WINCH, Contender, system
from bench.contender import Failed

if TYPE_CHECKING:
    from bench.measure import Bench

Values = Mapping[str, float]


@dataclass(frozen=True)
class Scenario:
    """One question, asked of Winch and of some peers on one store."""

    name: str
    store: str
    run: Callable[[Bench, Contender], Values]
    peers: tuple[str, ...] = ()
    quick: tuple[str, ...] | None = None  # the peers in a quick run; None: only on request
    rounds: int | None = None  # for the long ones: fewer than the run asks for
    with_winch: bool = True
    family: str = ""  # scenarios of one family take turns: each round measures all of them

    def contenders(self, is_quick: bool) -> list[Contender]:
        names = self.quick if is_quick and self.quick is not None else self.peers
        systems = [*([WINCH] if self.with_winch else []), *map(system, names)]
        return [Contender(one, self.store) for one in systems]


@dataclass
class Series:
    """What one contender reached in one scenario, round by round."""

    rounds: list[Values] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def median(self, key: str) -> float | None:
        """The median over the rounds; None if no round gave this value."""
        found = [values[key] for values in self.rounds if key in values]
        return statistics.median(found) if found else None

    def spread(self, key: str) -> float | None:
        """The largest over the smallest value: how far to trust the median."""
        found = [values[key] for values in self.rounds if key in values]
        return max(found) / min(found) if found and min(found) > 0 else None

    def keys(self) -> list[str]:
        return list(dict.fromkeys(key for values in self.rounds for key in values))


Results = dict[str, dict[str, Series]]


def run_all(
    scenarios: Sequence[Scenario],
    bench: Bench,
    *,
    rounds: int,
    is_quick: bool,
    absent: Mapping[str, str],
    log: Callable[[str], None],
    keep: Callable[[Results], None] = lambda _: None,
) -> Results:
    """Run the scenarios; what cannot be measured is kept as a failure with its reason.

    Scenarios of one family take turns within a round, so that their figures can be compared. `keep`
    receives the results after every family, so that a run that ends early leaves something.
    """
    results: Results = {}
    for _, members in itertools.groupby(scenarios, key=lambda one: one.family or one.name):
        together = [*members]
        for number in range(1, rounds + 1):
            for scenario in together:
                if number <= (scenario.rounds or rounds):
                    found = results.setdefault(scenario.name, {})
                    _take_turns(scenario, number, bench, found, is_quick, absent, log)
        keep(results)
    return results


def _take_turns(
    scenario: Scenario,
    number: int,
    bench: Bench,
    found: dict[str, Series],
    is_quick: bool,
    absent: Mapping[str, str],
    log: Callable[[str], None],
) -> None:
    """One round of one scenario."""
    for contender in scenario.contenders(is_quick):
        series = found.setdefault(contender.name, Series())
        if contender.name in absent:
            series.failures = [f"not installed: {absent[contender.name]}"]
            continue
        if series.failures:
            continue  # what failed once has had its chance; the reason is in the report
        try:
            values = scenario.run(bench, contender)
        except Exception as error:  # a long run must not end because one measurement did
            known = isinstance(error, Failed)
            series.failures.append(str(error) if known else f"{type(error).__name__}: {error}")
            log(f"{scenario.name} · {contender.name}: {series.failures[-1]}")
        else:
            series.rounds.append(values)
            measured = "  ".join(f"{key} {value:,.4g}" for key, value in values.items())
            log(f"{scenario.name} · {contender.name} · {number}: {measured}")


def median(results: Results, scenario: str, name: str, key: str) -> float | None:
    """One median out of the results; None where there is none."""
    series = results.get(scenario, {}).get(name)
    return series.median(key) if series is not None else None


def why_not(results: Results, scenario: str, name: str) -> str:
    """Why there is no such median."""
    if scenario not in results:
        return "not part of this run"
    series = results[scenario].get(name)
    if series is None:
        return f"{name} is not part of this run"
    return series.failures[0] if series.failures else "no such value"

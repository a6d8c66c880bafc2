"""The kinds of rows that the table has: which figures a row compares and how it is judged."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from bench.catalog import BEFORE, system
from bench.scenario import Results, median, why_not

STORE_NAMES = {"pg": "PG", "redis": "Redis", "sqlite": "SQLite", "sqlite-normal": "SQLite (NORMAL)"}


@dataclass(frozen=True)
class Row:
    """One comparison. `must` and `aim` are compared with `ratio` when `how` names the ratio, else
    with `winch`; `ok` is None where a value was not measured, and `reason` names it."""

    line: str
    metric: str
    winch: float | None
    peer: str | None
    peer_value: float | None
    ratio: float | None
    must: float
    aim: float | None
    ok: bool | None
    unit: str
    how: str
    reason: str | None = None
    aim_of_winch: bool = False  # the aim is a value of Winch's even where the must is a ratio

    @property
    def is_aim_met(self) -> bool | None:
        is_ratio = self.how.startswith("ratio") and not self.aim_of_winch
        value = self.ratio if is_ratio else self.winch
        if value is None or self.aim is None or self.ok is None:
            return None
        return value <= self.aim if self.how.endswith("most") else value >= self.aim

    @property
    def to_aim(self) -> float | None:
        """How many times better it would have to be; 1 and less: it is there."""
        is_ratio = self.how.startswith("ratio") and not self.aim_of_winch
        value = self.ratio if is_ratio else self.winch
        if not value or not self.aim:
            return None
        return value / self.aim if self.how.endswith("most") else self.aim / value

    def as_json(self) -> dict[str, Any]:
        found = {key: _rounded(value) for key, value in asdict(self).items()}
        return {**found, "is_aim_met": self.is_aim_met}


def _rounded(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value


@dataclass(frozen=True)
class Versus:
    """Winch's figure must be at least `must` times a named peer's (at most, where less is better)."""

    line: str
    metric: str
    scenario: str
    peer: str
    must: float
    aim: float
    key: str = "rate"
    unit: str = "jobs/s"
    peer_scenario: str | None = None
    less_is_better: bool = False
    aim_of_winch: bool = False

    def row(self, results: Results) -> Row:
        theirs = self.peer_scenario or self.scenario
        winch = median(results, self.scenario, "winch", self.key)
        peer = median(results, theirs, self.peer, self.key)
        ratio = winch / peer if winch is not None and peer else None
        ok, reason = None, None
        if ratio is not None:
            ok = ratio <= self.must if self.less_is_better else ratio >= self.must
        elif winch is None:
            reason = f"winch: {why_not(results, self.scenario, 'winch')}"
        else:
            reason = f"{self.peer}: {why_not(results, theirs, self.peer)}"
        how = "ratio at most" if self.less_is_better else "ratio at least"
        return Row(
            self.line,
            self.metric,
            winch,
            self.peer,
            peer,
            ratio,
            self.must,
            self.aim,
            ok,
            self.unit,
            how,
            reason,
            self.aim_of_winch,
        )


@dataclass(frozen=True)
class Bound:
    """Winch's own figure must not pass a limit; a peer's stands beside it for comparison."""

    line: str
    metric: str
    scenario: str
    key: str
    must: float
    aim: float
    unit: str
    peer: str | None = None
    is_least: bool = False

    def row(self, results: Results) -> Row:
        winch = median(results, self.scenario, "winch", self.key)
        peer = median(results, self.scenario, self.peer, self.key) if self.peer else None
        ratio = winch / peer if winch is not None and peer else None
        ok, reason = None, None
        if winch is None:
            reason = f"winch: {why_not(results, self.scenario, 'winch')}"
        else:
            ok = winch >= self.must if self.is_least else winch <= self.must
        how = "at least" if self.is_least else "at most"
        return Row(
            self.line,
            self.metric,
            winch,
            self.peer,
            peer,
            ratio,
            self.must,
            self.aim,
            ok,
            self.unit,
            how,
            reason,
        )


@dataclass(frozen=True)
class Own:
    """One of Winch's figures against another of its own."""

    line: str
    metric: str
    scenario: str
    other: str
    must: float
    aim: float
    key: str = "rate"
    unit: str = "jobs/s"
    less_is_better: bool = False

    def row(self, results: Results) -> Row:
        winch = median(results, self.scenario, "winch", self.key)
        other = median(results, self.other, "winch", self.key)
        ratio = winch / other if winch is not None and other else None
        ok = None
        if ratio is not None:
            ok = ratio <= self.must if self.less_is_better else ratio >= self.must
        missing = self.scenario if winch is None else self.other
        reason = None if ratio is not None else f"winch: {why_not(results, missing, 'winch')}"
        return Row(
            self.line,
            self.metric,
            winch,
            f"winch, {self.other}",
            other,
            ratio,
            self.must,
            self.aim,
            ok,
            self.unit,
            "ratio at most" if self.less_is_better else "ratio at least",
            reason,
        )


@dataclass(frozen=True)
class NeverBehind:
    """Winch is behind no peer of the store at equal durability; the row names the best one measured."""

    scenario: str
    line: str = "never behind any peer"
    aim: float | None = None

    @property
    def store(self) -> str:
        return self.scenario.removeprefix("gated ").partition(" ")[0]

    @property
    def metric(self) -> str:
        what = self.scenario.removeprefix("gated ").partition(" ")[2]
        is_gated = self.scenario.startswith("gated ")
        return f"{STORE_NAMES[self.store]} {what}, best peer {'with it' if is_gated else 'measured'}"

    def row(self, results: Results) -> Row:
        winch = median(results, self.scenario, "winch", "rate")
        rates = {
            name: rate
            for name, series in results.get(self.scenario, {}).items()
            if name not in ("winch", BEFORE.name)
            and self.store not in system(name).relaxed
            and (rate := series.median("rate")) is not None
        }
        best = max(rates, key=lambda name: rates[name], default=None)
        peer = rates[best] if best is not None else None
        ratio = winch / peer if winch is not None and peer else None
        reason = None
        if winch is None:
            reason = f"winch: {why_not(results, self.scenario, 'winch')}"
        elif ratio is None:
            reason = "no peer was measured"
        ok = ratio >= 1 if ratio is not None else None
        return Row(
            self.line,
            self.metric,
            winch,
            best,
            peer,
            ratio,
            1.0,
            self.aim,
            ok,
            "jobs/s",
            "ratio at least",
            reason,
        )


Spec = Versus | Bound | Own | NeverBehind

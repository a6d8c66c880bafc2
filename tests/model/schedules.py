"""Schedules: a window gets its job once, whoever ticks, dies, or has another time.

A ticker reads the last window that was dealt with, and later changes the schedule by it. Between the two
anything may happen: others tick, time passes, it dies and starts anew. The protocol decides under the
lock of the schedule's row, so one step is one transaction; a design that takes two can die in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.model.explore import Rule, Step


@dataclass(frozen=True)
class ScheduleDesign:
    """The defaults are the protocol."""

    # What a tick goes by: the row as it finds it under the lock, or what it has read before.
    decides_by: Literal["the row", "what it read"] = "the row"
    writes: Literal["in one transaction", "window, then job", "job, then window"] = "in one transaction"
    time: Literal["the store's", "its own"] = "the store's"


@dataclass(frozen=True)
class ScheduleScope:
    name: str
    windows: int = 3
    tickers: int = 2
    deaths: int = 1


class Ticker(NamedTuple):
    """`since` is the last window it has read, -1 before; `owes` are windows of a half-done tick."""

    since: int = -1
    owes: tuple[int, ...] = ()


class ScheduleState(NamedTuple):
    now: int = 0  # the latest window that has come, counted from 1
    last: int = 0  # the last window dealt with
    jobs: tuple[int, ...] = ()
    tickers: tuple[Ticker, ...] = ()
    deaths: int = 0


Steps = Iterator[Step[ScheduleState]]


class ScheduleModel:
    def __init__(self, design: ScheduleDesign, scope: ScheduleScope) -> None:
        self.design = design
        self.scope = scope

    def initial(self) -> ScheduleState:
        return ScheduleState(jobs=(0,) * self.scope.windows, tickers=(Ticker(),) * self.scope.tickers)

    def is_settled(self, state: ScheduleState) -> bool:
        return state.now == self.scope.windows and all(state.jobs)

    def breaches(self, state: ScheduleState) -> tuple[Rule, ...]:
        found = [Rule.WINDOW_TWICE] if any(count > 1 for count in state.jobs) else []
        if any(state.jobs[state.now :]):
            found.append(Rule.WINDOW_EARLY)
        return tuple(found)

    def describe(self, state: ScheduleState) -> str:
        return f"window {state.now} has come, {state.last} is dealt with, jobs {state.jobs}"

    def steps(self, state: ScheduleState) -> Steps:
        if state.now < self.scope.windows:
            yield Step("time passes", state._replace(now=state.now + 1))
        for number, ticker in enumerate(state.tickers):
            who = f"ticker {number + 1}"
            if (ticker.owes or ticker.since >= 0) and state.deaths < self.scope.deaths:
                dead = self._with(state, number, Ticker())
                yield Step(f"{who} dies", dead._replace(deaths=state.deaths + 1))
            if ticker.owes:
                yield self._second_half(state, number, ticker, who)
            elif ticker.since < 0:
                yield Step(f"{who} reads", self._with(state, number, Ticker(state.last)))
            else:
                yield self._tick(state, number, ticker, who)

    def _tick(self, state: ScheduleState, number: int, ticker: Ticker, who: str) -> Step[ScheduleState]:
        done = self._with(state, number, Ticker())
        if self.design.decides_by == "the row" and state.last != ticker.since:
            return Step(f"{who} is stale", done)
        time = state.now
        if self.design.time == "its own" and number == 0:  # its clock is ahead
            time = min(state.now + 1, self.scope.windows)
        due = tuple(range(ticker.since + 1, time + 1))
        if not due:
            return Step(f"{who} finds nothing due", done)
        if self.design.writes == "window, then job":
            owing = self._with(state, number, Ticker(ticker.since, due))
            return Step(f"{who} marks {due}", owing._replace(last=due[-1]))
        stored = self._store(done, due)
        if self.design.writes == "job, then window":
            owing = self._with(stored, number, Ticker(ticker.since, due))
            return Step(f"{who} stores {due}", owing)
        return Step(f"{who} ticks {due}", stored._replace(last=due[-1]))

    def _second_half(
        self, state: ScheduleState, number: int, ticker: Ticker, who: str
    ) -> Step[ScheduleState]:
        done = self._with(state, number, Ticker())
        if self.design.writes == "window, then job":
            return Step(f"{who} stores {ticker.owes}", self._store(done, ticker.owes))
        return Step(f"{who} marks {ticker.owes}", done._replace(last=max(state.last, ticker.owes[-1])))

    def _store(self, state: ScheduleState, windows: tuple[int, ...]) -> ScheduleState:
        jobs = tuple(min(count + (n in windows), 2) for n, count in enumerate(state.jobs, 1))
        return state._replace(jobs=jobs)

    def _with(self, state: ScheduleState, number: int, ticker: Ticker) -> ScheduleState:
        changed = (*state.tickers[:number], ticker, *state.tickers[number + 1 :])
        return state._replace(tickers=changed)

"""Schedules: a window gets its job once, whatever ticks, dies, or has a wrong clock.

A ticker reads the last window that was dealt with, and later changes the schedule by it. Between the two
anything may happen: others tick, time passes, it dies and starts again. The protocol decides under the
lock of the schedule's row, so one step is one transaction; a design that takes two can die in between.

A backfill reads which past windows have no job, and later stores jobs for them, in batches of one window
each. It dies and is repeated like a ticker. A window that has its job by then gets no other, and a tick
does the same for a window that a backfill was first to deal with. The run of a window may be forgotten
once it is old; its job is proof, too.
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
    # How a tick and a backfill recognise a window that has its job: by its run and by its job, by the
    # run alone, which may be forgotten, or only by what they have read.
    recognises: Literal["run and job", "run", "nothing"] = "run and job"


@dataclass(frozen=True)
class ScheduleScope:
    name: str
    windows: int = 3
    tickers: int = 2
    deaths: int = 1
    backfills: int = 0
    forgets: bool = False


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
    runs: tuple[bool, ...] = ()
    # The windows that each backfill has found without a job; None: it has not looked.
    wanted: tuple[tuple[int, ...] | None, ...] = ()


Steps = Iterator[Step[ScheduleState]]


class ScheduleModel:
    def __init__(self, design: ScheduleDesign, scope: ScheduleScope) -> None:
        self.design = design
        self.scope = scope

    def initial(self) -> ScheduleState:
        return ScheduleState(
            jobs=(0,) * self.scope.windows,
            tickers=(Ticker(),) * self.scope.tickers,
            runs=(False,) * self.scope.windows,
            wanted=(None,) * self.scope.backfills,
        )

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
        yield from self._backfills(state)
        if self.scope.forgets and state.runs and state.runs[0]:
            yield Step("the oldest run is forgotten", state._replace(runs=(False, *state.runs[1:])))
        for number, ticker in enumerate(state.tickers):
            actor = f"ticker {number + 1}"
            if (ticker.owes or ticker.since >= 0) and state.deaths < self.scope.deaths:
                dead = self._with(state, number, Ticker())
                yield Step(f"{actor} dies", dead._replace(deaths=state.deaths + 1))
            if ticker.owes:
                yield self._second_half(state, number, ticker, actor)
            elif ticker.since < 0:
                yield Step(f"{actor} reads", self._with(state, number, Ticker(state.last)))
            else:
                yield self._tick(state, number, ticker, actor)

    def _tick(
        self, state: ScheduleState, number: int, ticker: Ticker, actor: str
    ) -> Step[ScheduleState]:
        done = self._with(state, number, Ticker())
        if self.design.decides_by == "the row" and state.last != ticker.since:
            return Step(f"{actor} is stale", done)
        time = state.now
        if self.design.time == "its own" and number == 0:  # its clock is ahead
            time = min(state.now + 1, self.scope.windows)
        due = tuple(range(ticker.since + 1, time + 1))
        if not due:
            return Step(f"{actor} finds nothing due", done)
        if self.design.writes == "window, then job":
            owing = self._with(state, number, Ticker(ticker.since, due))
            return Step(f"{actor} marks {due}", owing._replace(last=due[-1]))
        stored = self._store(done, due)
        if self.design.writes == "job, then window":
            owing = self._with(stored, number, Ticker(ticker.since, due))
            return Step(f"{actor} stores {due}", owing)
        return Step(f"{actor} ticks {due}", stored._replace(last=due[-1]))

    def _backfills(self, state: ScheduleState) -> Steps:
        for number, wanted in enumerate(state.wanted):
            actor = f"backfill {number + 1}"
            if wanted is None:
                found = tuple(n for n in range(1, state.now + 1) if not state.jobs[n - 1])
                if found:
                    yield Step(f"{actor} finds {found}", self._wants(state, number, found))
                continue
            if state.deaths < self.scope.deaths:
                dead = self._wants(state, number, None)
                yield Step(f"{actor} dies", dead._replace(deaths=state.deaths + 1))
            left = self._wants(state, number, wanted[1:] or None)
            yield Step(f"{actor} stores {wanted[0]}", self._store(left, wanted[:1]))

    def _wants(self, state: ScheduleState, number: int, wanted: tuple[int, ...] | None) -> ScheduleState:
        return state._replace(wanted=(*state.wanted[:number], wanted, *state.wanted[number + 1 :]))

    def _second_half(
        self, state: ScheduleState, number: int, ticker: Ticker, actor: str
    ) -> Step[ScheduleState]:
        done = self._with(state, number, Ticker())
        if self.design.writes == "window, then job":
            return Step(f"{actor} stores {ticker.owes}", self._store(done, ticker.owes))
        return Step(f"{actor} marks {ticker.owes}", done._replace(last=max(state.last, ticker.owes[-1])))

    def _store(self, state: ScheduleState, windows: tuple[int, ...]) -> ScheduleState:
        if self.scope.backfills:
            windows = tuple(n for n in windows if not self._has_job(state, n))
        jobs = tuple(min(count + (n in windows), 2) for n, count in enumerate(state.jobs, 1))
        runs = tuple(is_there or n in windows for n, is_there in enumerate(state.runs, 1))
        return state._replace(jobs=jobs, runs=runs if self.scope.backfills else state.runs)

    def _has_job(self, state: ScheduleState, window: int) -> bool:
        if self.design.recognises == "nothing":
            return False
        has_run = state.runs[window - 1]
        return has_run or (self.design.recognises == "run and job" and state.jobs[window - 1] > 0)

    def _with(self, state: ScheduleState, number: int, ticker: Ticker) -> ScheduleState:
        changed = (*state.tickers[:number], ticker, *state.tickers[number + 1 :])
        return state._replace(tickers=changed)

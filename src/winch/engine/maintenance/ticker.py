"""Ticks schedules whose windows are due. Any number of these run at once; the store decides which was
first.

What is read here is only a hint: the tick names the last window it has seen, and takes effect only if
no other ticker has dealt with a later one meanwhile. The time is the store's, as returned with the
list."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import msgspec

from winch.engine.base.log import log
from winch.engine.base.search_index import lines_of_runs
from winch.engine.base.service import Service
from winch.storage.decide.schedules import Answered, RunKind, ScheduleRow, ScheduleRun, Tick
from winch.storage.protocol import Driver

BATCH = 100
# How often to look where no schedule is known: a window is not missed for being this late.
IDLE = 5.0
HAIR = 0.0005


class Ticker(Service):
    name = "ticker"

    def __init__(
        self,
        driver: Driver,
        poll: float,
        *,
        misfire_deadline: timedelta | None = None,
        hair: float = HAIR,
    ) -> None:
        super().__init__()
        self._deadline = misfire_deadline
        self._driver = driver
        self._poll = poll
        self._hair = hair
        self._reported: set[str] = set()
        self.missed: Counter[str] = Counter()
        """How many windows of each schedule this one has found missed."""

    async def run_once(self) -> float:
        due = await self._driver.arun(self._driver.due_schedules(limit=BATCH))
        for row in due.found:
            await self._tick(row)
        if len(due.found) == BATCH:
            return 0.0
        if due.next_at is None and not due.found:
            return max(self._poll, IDLE)
        if due.next_at is None:
            return self._poll
        left = (due.next_at - due.now).total_seconds()
        return min(max(left + self._hair, 2 * self._hair), self._poll)

    async def _tick(self, row: ScheduleRow) -> None:
        tick = Tick(definition=row.definition, since=row.last_window, deadline=self._deadline)
        try:
            changed = await self._driver.arun(self._driver.change_schedule(row.name, tick))
        except (msgspec.MsgspecError, ValueError, OverflowError) as error:
            # Written by a release with other policies, or damaged: the others must not wait for it.
            if row.name not in self._reported:
                self._reported.add(row.name)
                log.error("schedule %s cannot be read and does not run: %s", row.name, error)
            return
        self._reported.discard(row.name)
        if changed.answer is Answered.DONE:
            if lines := lines_of_runs(row.definition, changed.runs):
                await self._driver.arun(self._driver.kv_put(lines))
            for run in changed.runs:
                self.missed[run.schedule] += run.kind is RunKind.MISSED
                _report(run)


def _report(run: ScheduleRun) -> None:
    level = "debug" if run.kind is RunKind.ENQUEUED else "warning"
    getattr(log, level)(
        "schedule %s, window %s: %s%s",
        run.schedule,
        run.window.isoformat(),
        f"job {run.job}" if run.kind is RunKind.ENQUEUED else run.kind,
        f" ({run.note})" if run.note else "",
    )

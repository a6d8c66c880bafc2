"""Runs pairs on one store: all are stored first, then one worker runs, then the checker judges."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.history import History, Recorder, Verdict, check, gather
from tests.matrix.features import (
    CONCURRENCY,
    FEATURES,
    LIMIT,
    OUTSIDE,
    PER,
    RATE,
    bounded_queue,
    late_queue,
    rated_queue,
)
from tests.matrix.outside import fetched, posted, push
from tests.matrix.shapes import SHAPES
from tests.matrix.trial import (
    FAKTORY,
    LABELS,
    LATE,
    NEEDED,
    PUSHED,
    QUEUE,
    Evidence,
    Pair,
    Trial,
    number_of,
)
from winch import App, JobState, WinchError
from winch.core.job import JobRecord
from winch.core.lifecycle import FINAL
from winch.storage.params import Event, JobFilter

# What one of Winch's workers decides, which does not run the job, so that the two cannot meet: how many
# jobs it runs at once or starts in a time, and with which slots and labels.
OF_A_WORKER = ("slots", "queue limit", "queue rate", "needs")
APART = {
    *(("needs", shape) for shape in OUTSIDE),
    *((feature, FAKTORY) for feature in OF_A_WORKER),
    *((feature, shape) for feature in OUTSIDE for shape in OUTSIDE),
}
PAIRS = tuple(
    Pair(feature, shape)
    for feature in FEATURES
    for shape in SHAPES
    if (feature.name, shape.name) not in APART
)
LIVE = tuple(state for state in JobState if state not in FINAL)
BOUNDED = tuple(bounded_queue(shape.name) for shape in SHAPES if shape.name not in OUTSIDE)
RATED = tuple(rated_queue(shape.name) for shape in SHAPES if shape.name not in OUTSIDE)
IN_PUSH = (PUSHED, late_queue(PUSHED), bounded_queue(PUSHED), rated_queue(PUSHED))
IN_FAKTORY = (FAKTORY, late_queue(FAKTORY))
PAUSED = (LATE, late_queue(PUSHED), late_queue(FAKTORY))
WINDOWS = 2
# Nothing has changed for so long: what is left will never run.
STANDSTILL = 12.0
# How long jobs may take to store others, two windows of a schedule to come, and all of it to end.
GROWTH, PATIENCE = 20.0, 60.0
# Longer than the jobs that are to expire have.
EXPIRY = 0.5


@dataclass(frozen=True)
class Played:
    """The end of each pair on one store, by its name, and the verdict of the checker on all."""

    evidence: Mapping[str, Evidence]
    verdict: Verdict
    joins_transactions: bool


def play(url: str, pairs: Sequence[Pair], folder: Path) -> Played:
    """Run these pairs on an empty store."""
    folder.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(folder)
    app = App(
        url,
        events="full",
        poll="100ms",
        sweep="500ms",
        concurrency=CONCURRENCY,
        queue_limits=dict.fromkeys((*BOUNDED, bounded_queue(PUSHED)), LIMIT),
        queue_rates=dict.fromkeys((*RATED, rated_queue(PUSHED)), f"{RATE}/{PER.total_seconds():.0f}s"),
    )
    app.migrate()
    try:
        trials = [Trial(app, recorder, pair) for pair in pairs]
        for queue in PAUSED:
            app.queues.pause(queue)
        for trial in trials:
            trial.store()
        with posted({trial.task.name: trial for trial in trials}) as receiver:
            push(app, IN_PUSH, receiver)
            why = asyncio.run(_work(app, trials))
        history = gather(app.driver, folder)
        verdict = check(history)
        found = {str(trial.pair): _evidence(trial, history, verdict, why) for trial in trials}
        return Played(found, verdict, app.driver.capabilities.joins_transactions)
    finally:
        app.close()


async def _work(app: App, trials: Sequence[Trial]) -> dict[str, str]:
    """Let a worker run everything; returns why each job that is left is not final."""
    progress = _Progress(app)
    growing = [
        trial for trial in trials if "schedule" in str(trial.pair) or "expires" in str(trial.pair)
    ]
    by_task = {trial.task.name: trial for trial in trials}
    async with (
        app.worker(queues=[QUEUE, LATE, NEEDED, *BOUNDED, *RATED]),
        app.worker(queues=[NEEDED], labels=LABELS),
        app.worker(queues=IN_PUSH),
        fetched(app, IN_FAKTORY, by_task),
    ):
        sessions = await app.driver.arun(app.driver.sessions())
        for trial in trials:
            trial.labelled = {one.id for one in sessions if one.labels == LABELS}
        await progress.until(lambda: all(_is_stored(app, trial) for trial in growing), GROWTH)
        for trial in trials:
            if trial.pair.shape.name == "schedule" and trial.refusal is None:
                await asyncio.to_thread(app.schedules.pause, trial.name)
        await asyncio.sleep(EXPIRY)  # the job of the last window before the pause expires too
        for queue in PAUSED:
            await asyncio.to_thread(app.queues.resume, queue)
        await progress.until(lambda: not _live(app), PATIENCE)
        left = await asyncio.to_thread(_live, app)
        why = {job.id: await asyncio.to_thread(app.client.why, job.id) for job in left}
    await app.aclose()
    return why


class _Progress:
    """Waits as long as something happens in the store."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._last = 0
        self._changed_at = time.monotonic()

    async def until(self, is_over: Callable[[], bool], most: float) -> None:
        """Wait until it is over, or until nothing happens any more, at most for so many seconds."""
        began = self._changed_at = time.monotonic()
        while not await asyncio.to_thread(is_over):
            await asyncio.to_thread(self._look)
            now = time.monotonic()
            if now - self._changed_at > STANDSTILL or now - began > most:
                return
            await asyncio.sleep(0.1)

    def _look(self) -> None:
        driver = self._app.driver
        # As another worker would: a sweep that opens what should stay closed is seen at once.
        driver.run(driver.admit(is_sweep=True))
        while page := driver.run(driver.events(after=self._last)):
            self._last = page[-1].seq
            self._changed_at = time.monotonic()


def _is_stored(app: App, trial: Trial) -> bool:
    """Whether it has all the jobs that it is to have before paused queues go on."""
    if trial.refusal is not None:
        return True
    wanted = WINDOWS if trial.pair.shape.name == "schedule" else trial.pair.shape.calls
    which = JobFilter(task=trial.task.name, limit=wanted)
    return len(app.driver.run(app.driver.list_jobs(which)).jobs) >= wanted


def _live(app: App) -> Sequence[JobRecord]:
    return app.driver.run(app.driver.list_jobs(JobFilter(states=LIVE, limit=200))).jobs


def _evidence(trial: Trial, history: History, verdict: Verdict, why: Mapping[str, str]) -> Evidence:
    records: dict[int, list[JobRecord]] = {}
    around: list[JobRecord] = []
    undone: list[JobRecord] = []
    for job in history.jobs:
        if job.task == trial.task.name:
            records.setdefault(number_of(job), []).append(job)
        elif job.task.startswith(f"{trial.name}:"):
            around.append(job)
        elif job.task.startswith(f"{trial.name}-undone:"):
            undone.append(job)
    own = {job.id for some in records.values() for job in some} | {job.id for job in around}
    events: dict[str, list[Event]] = {}
    for event in history.events:
        if event.job in own:
            events.setdefault(event.job, []).append(event)
    return Evidence(
        trial,
        records,
        around,
        events,
        _result(trial),
        [found for found in verdict.violations if found.job in own],
        undone,
        why,
    )


def _result(trial: Trial) -> Any:
    """The result of the whole, as its caller gets it; the error where there is none."""
    if trial.result_of is None:
        return None
    try:
        return trial.result_of(timeout="1ms")
    except (WinchError, TimeoutError) as error:
        return error


def judge(evidence: Evidence) -> list[str]:
    """Each promise of the pair, or of the checker, that was broken."""
    return [
        *evidence.pair.shape.judge(evidence),
        *evidence.pair.feature.judge(evidence),
        *map(str, evidence.violations),
    ]

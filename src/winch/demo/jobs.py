"""The first acts of `winch demo`: jobs of every kind, from their enqueue to their end."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

from winch import App, Job
from winch.demo.stage import WAIT, Stage
from winch.demo.tasks import (
    add,
    count,
    doomed,
    endless,
    film,
    flaky,
    greet,
    patient,
    pointless,
    score,
    step,
)
from winch.demo.terminal import count as counted
from winch.demo.terminal import one_line
from winch.types import JobState

BULK = 1000


def plain(app: App, stage: Stage) -> None:
    stage.title("Plain jobs")
    stage.follow(add.enqueue(2, b=3), "add", "a function", "completed")
    stage.follow(greet.enqueue("Ada"), "greet", "a coroutine", "completed")
    later = greet.using(delay="2s").enqueue("Grace")
    stage.follow(later, "later", "delayed by 2s", "completed, on time", _on_time)
    stage.watch("add", "greet")


def _on_time(job: Job[Any]) -> str:
    record = job.record
    if record.claimed_at is None:
        return str(record.state)
    late = record.claimed_at - record.run_at
    is_on_time = timedelta(0) <= late < timedelta(seconds=2)
    return f"{record.state}, {'on time' if is_on_time else f'late by {late.total_seconds():.1f}s'}"


def bulk(app: App, stage: Stage) -> None:
    stage.title("A thousand at once")
    began = stage.seconds()
    app.enqueue_many([count.bind(number) for number in range(BULK)])
    stage.tell(f"{BULK:,} jobs are enqueued in {stage.seconds() - began:.2f}s, one transaction")

    def is_done() -> bool:
        return not any(
            queue.name == "bulk" and sum(queue.counts.values()) for queue in app.queues.list()
        )

    stage.until(is_done, "the thousand jobs", WAIT)
    spent = stage.seconds() - began
    stage.tell(f"all of them ran; {spent:.1f}s from the first enqueue to the last finish")
    stage.expect("bulk", f"{BULK:,} jobs in one call", f"{BULK:,} completed", lambda: _tally(app))


def _tally(app: App) -> str:
    found: Counter[str] = Counter()
    after: str | None = None
    while True:
        page = app.jobs.list(task="demo.count", limit=1000, after=after)
        found.update(str(job.state) for job in page)
        after = page.next
        if after is None:
            return ", ".join(f"{number:,} {state}" for state, number in found.items())


def queue(app: App, stage: Stage) -> None:
    stage.title("A paused queue, and priority")
    app.queues.pause("line", reason="part of the tour")
    many = app.enqueue_many([step.bind(number) for number in range(40)])
    urgent = step.using(priority="critical").enqueue(99)
    stage.tell("queue `line` is paused, and 40 jobs wait in it")
    stage.follow(
        urgent,
        "urgent",
        "priority critical, enqueued last",
        "completed, started first",
        lambda job: _rank(job, many),
    )
    stage.tell(f"winch why: {one_line(urgent.why())}")
    app.queues.resume("line")
    stage.tell("the queue is resumed")
    stage.watch("urgent")
    stage.until(lambda: all(job.refresh().state.is_final for job in many), "the line", WAIT)
    stage.tell("all 40 others are done")
    done = sum(job.state is JobState.COMPLETED for job in many)
    stage.expect("line", "40 jobs of a paused queue", "40 completed", lambda: f"{done} completed")


def _rank(urgent: Job[Any], others: list[Job[Any]]) -> str:
    mine = urgent.record.claimed_at
    before = sum(1 for job in others if mine and (job.record.claimed_at or mine) < mine)
    return f"{urgent.state}, started {'first' if not before else f'after {before} others'}"


def failures(app: App, stage: Stage) -> None:
    stage.title("What may go wrong")

    def with_attempt(job: Job[Any]) -> str:
        return f"{job.state}, attempt {job.record.attempt}"

    trying = flaky.enqueue()
    waiting = patient.enqueue()
    stage.follow(trying, "flaky", "fails twice, then works", "completed, attempt 3", with_attempt)
    stage.follow(doomed.enqueue(7), "doomed", "fails at every attempt", "dead, attempt 2", with_attempt)
    stage.follow(pointless.enqueue(), "pointless", "discards itself", "dead")
    stage.follow(waiting, "patient", "snoozes once", "completed, attempt 1", with_attempt)
    stage.follow(endless.enqueue(), "endless", "runs past its timeout of 1s", "dead")
    stage.watch("flaky", "doomed", "pointless", "patient", "endless", "later")


def people(app: App, stage: Stage) -> None:
    stage.title("Cancel")
    running = film.enqueue(minutes=90)
    stage.follow(running, "film", "cancelled while it runs", "cancelled")
    stage.watch("film", state=JobState.RUNNING)
    running.cancel("no longer needed")
    stage.watch("film")
    waiting = add.using(delay="1h").enqueue(1, b=1)
    waiting.cancel("never mind")
    stage.follow(waiting, "unborn", "cancelled before it runs", "cancelled")
    stage.watch("unborn")


def collecting(app: App, stage: Stage) -> None:
    stage.title("Many jobs in one call")
    jobs = app.enqueue_many([score.bind(height=height) for height in range(100)])
    stage.tell("100 jobs of a task that takes up to 50 at a time; one of them is invalid")
    stage.until(lambda: all(job.refresh().state.is_final for job in jobs), "the scores", WAIT)
    sizes = [job.result() for job in jobs if job.state is JobState.COMPLETED]
    calls = round(sum(1 / size for size in sizes)) if sizes else 0
    stage.tell(f"all are done, in about {counted(calls, 'call')}; each has an outcome of its own")
    found = Counter(str(job.state) for job in jobs)
    stage.expect("score", "100 jobs, collected", "99 completed, 1 dead",
                 lambda: ", ".join(f"{found[state]} {state}" for state in sorted(found)))  # fmt: skip
    stage.expect("calls", "fewer calls than jobs", "at most 20",
                 lambda: "at most 20" if 0 < calls <= 20 else str(calls))  # fmt: skip


def versions(app: App, stage: Stage) -> None:
    stage.title("A deploy with jobs in the queue")
    past = App(app.settings.url)

    @past.task(name="demo.resize")
    def resize(image: str) -> str:
        return image

    try:
        job = resize.enqueue("tower.png")
    finally:
        past.close()
    stage.tell("the code of last week enqueues `resize(image)`; today's is `resize(image, width)`")
    stage.follow(app.jobs.get(job.id), "old payload", "version 1, read by version 2", "completed")
    stage.watch("old payload")


def schedule(app: App, stage: Stage) -> None:
    stage.title("A schedule")
    app.schedules.add("clock", task="demo.greet", every="1s", args={"name": "clock"})
    stage.tell("every second a job: both processes tick, and the store lets one of them be first")
    stage.until(lambda: len(app.schedules.history("clock")) >= 3, "three windows", WAIT)
    app.schedules.pause("clock", reason="seen enough")
    runs = app.schedules.history("clock")
    for run in reversed(runs):
        stage.tell(f"window {run.window:%H:%M:%S}: job {run.job}")
    jobs = len({run.job for run in runs})
    stage.expect(
        "schedule",
        "one job for each window",
        f"{len(runs)} windows, {len(runs)} jobs",
        lambda: f"{len({run.window for run in runs})} windows, {jobs} jobs",
    )

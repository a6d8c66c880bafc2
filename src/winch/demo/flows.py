"""The middle acts of `winch demo`: jobs that wait for permits, for each other, for time, for people."""

from __future__ import annotations

from typing import Any

from winch import App, Job, chord
from winch.demo.stage import WAIT, Stage
from winch.demo.tasks import letter, summary, unload, voyage
from winch.demo.terminal import count, one_line
from winch.types import JobState

LOADS = 6
LETTERS = 20


def limits(app: App, stage: Stage) -> None:
    stage.title("A limit")
    jobs = app.enqueue_many([unload.bind(number) for number in range(LOADS)])
    stage.tell(f"{LOADS} jobs of a task with Limit(2); the worker has 16 slots")
    held = jobs[-1]
    stage.until(lambda: _is_held(held) or held.state.is_final, "a job to wait for its permit", WAIT)
    stage.tell(f"winch why, of the last: {one_line(held.why())}")
    stage.until(lambda: all(job.refresh().state.is_final for job in jobs), "the limited jobs", WAIT)
    stage.expect("limit", f"{LOADS} jobs, two at a time", f"{LOADS} completed, at most 2 at once",
                 lambda: _at_once(jobs))  # fmt: skip


def _is_held(job: Job[Any]) -> bool:
    return job.refresh().state is JobState.BLOCKED


def _at_once(jobs: list[Job[Any]]) -> str:
    """How many overlapped, as the jobs themselves saw it."""
    done = [job for job in jobs if job.state is JobState.COMPLETED]
    spans: list[tuple[float, float]] = [tuple(job.result()) for job in done]
    most = max((sum(a <= began < b for a, b in spans) for began, _ in spans), default=0)
    return f"{len(done)} completed, " + ("at most 2 at once" if most <= 2 else f"{most} at once")


def flows(app: App, stage: Stage) -> None:
    stage.title("A chord")
    handle = chord([letter.bind(number) for number in range(LETTERS)], summary.partial()).enqueue()
    stage.tell(f"{LETTERS} jobs, and one that gets all their results: winch flows show {handle.id}")
    [last] = handle.last
    stage.follow(last, "summary", f"runs once, after {LETTERS} others", "completed")
    stage.watch("summary")


def workflow(app: App, stage: Stage) -> None:
    stage.title("A workflow")
    job = voyage.enqueue("Ithaca")

    def ending(job: Job[Any]) -> str:
        return f"{job.state}, {count(len(job.result()), 'step')}"

    stage.follow(job, "voyage", "steps, a sleep and a signal", "completed, 4 steps", ending)
    stage.until(lambda: _is_held(job), "the workflow to wait for its signal", WAIT)
    stage.tell(f"it holds no worker; winch why: {one_line(job.why())}")
    app.signal("wind", "west")
    stage.tell("winch signal wind --payload '\"west\"'")
    stage.watch("voyage")

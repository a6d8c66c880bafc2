"""The rules about jobs that follow from others: the windows of schedules, flows and batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from lab.history.facts import (
    Facts,
)
from lab.history.records import Violation
from winch.core.errors import InvalidPayload
from winch.core.flow import FLOW_HEADER, INPUTS_HEADER, TAG, Inputs, read_inputs
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.storage.decide.schedules import SCHEDULE_HEADER, WINDOW_HEADER, RunKind


def i8_one_job_for_a_window(facts: Facts) -> Iterator[Violation]:
    """Each window has at most one job and a row that names it; each required window has one."""
    deleted = {job for job, events in facts.events.items() if events[-1].kind == "deleted"}
    triggered = {run.job for run in facts.history.runs if run.kind is RunKind.TRIGGERED}
    found: dict[tuple[str, datetime], list[str]] = {}
    for job, records in facts.jobs.items():
        headers = records[0].headers
        if SCHEDULE_HEADER in headers and job not in triggered:
            window = datetime.fromisoformat(headers[WINDOW_HEADER])
            found.setdefault((headers[SCHEDULE_HEADER], window), []).append(job)
    for (schedule, window), jobs in found.items():
        if len(jobs) > 1:
            words = f"{len(jobs)} jobs for the window {window} of {schedule}"
            yield Violation("I8", jobs[-1], words, tuple(facts.events.get(jobs[-1], [])[:1]))
    rows = {(run.schedule, run.window): run for run in facts.history.runs}
    oldest: dict[str, datetime] = {}
    for run in facts.history.runs:
        oldest[run.schedule] = min(run.window, oldest.get(run.schedule, run.window))
        if run.kind is RunKind.ENQUEUED and run.job not in facts.jobs and run.job not in deleted:
            words = f"the window {run.window} of {run.schedule} names this job, which does not exist"
            yield Violation("I8", run.job, words)
    for (schedule, window), jobs in found.items():
        # Older rows are forgotten after a while, and all of them when a schedule is removed.
        if (schedule, window) not in rows and schedule in oldest and window >= oldest[schedule]:
            yield Violation("I8", jobs[0], f"no row of the window {window} of {schedule} names it")
    for schedule, windows in facts.history.windows.items():
        there = {window for name, window in found if name == schedule}
        for window in sorted(set(windows) - there):
            yield Violation("I8", None, f"the window {window} of {schedule} has no job")
        for window in sorted(there - set(windows)):
            job = found[schedule, window][0]
            yield Violation("I8", job, f"{window} is no window of {schedule}, and has a job")


def i12_after_all_before(facts: Facts) -> Iterator[Violation]:
    """A dependent job runs after all that it waits for are final, and each callback exists once."""
    callbacks: dict[tuple[str, str], str] = {}
    members: dict[str, list[str]] = {}
    for job, records in facts.jobs.items():
        for flow in _batches_of(records[0]):
            members.setdefault(flow, []).append(job)
    for job, records in facts.jobs.items():
        inputs = _inputs_of(records[0])
        if inputs is None:
            continue
        if inputs.wants != "edges":
            other = callbacks.setdefault((inputs.flow, inputs.wants), job)
            if other != job:
                words = f"{other} is the {inputs.wants} callback of flow {inputs.flow} already"
                yield Violation("I12", job, words)
        before = (
            [one for one, _ in inputs.ids()] if inputs.wants == "edges" else members.get(inputs.flow, [])
        )
        yield from _too_early(facts, job, inputs.wants, before)


def _inputs_of(job: JobRecord) -> Inputs | None:
    """What a member waits for; None where it waits for nothing, or no client wrote the row."""
    try:
        return read_inputs(job.headers[INPUTS_HEADER])
    except (KeyError, InvalidPayload):
        return None


def _batches_of(job: JobRecord) -> set[str]:
    """The batches that the job is a member of: one inside another has its members in both. A flow that
    is no batch is named too; nothing waits for all of its members."""
    inputs = _inputs_of(job)
    if inputs is not None and inputs.wants != "edges":
        return set()  # a callback
    own = {job.headers[FLOW_HEADER]} if FLOW_HEADER in job.headers else set()
    return own | {tag.removeprefix(TAG) for tag in job.tags if tag.startswith(TAG)}


def _too_early(facts: Facts, job: str, wants: str, before: Sequence[str]) -> Iterator[Violation]:
    for claim in facts.claims.get(job, []):
        if claim.ended is None or claim.ended.state is not JobState.COMPLETED:
            continue  # it checked and waited again, or was not needed
        states = {one: _state_at(facts, one, claim.began.seq) for one in before}
        if wants == "death":
            if JobState.DEAD not in states.values():
                yield Violation("I12", job, "it ran for a death, and no member was dead", (claim.began,))
            continue
        for one, state in states.items():
            if state is not None and not state.is_final:
                words = f"it ran while {one}, which comes before it, was {state}"
                yield Violation("I12", job, words, (claim.began,))


def _state_at(facts: Facts, job: str, seq: int) -> JobState | None:
    """Where the job was just before; None: it was not there."""
    earlier = [event for event in facts.events.get(job, []) if event.seq < seq]
    return earlier[-1].state if earlier else None

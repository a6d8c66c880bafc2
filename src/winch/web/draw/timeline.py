"""A job's life as phases: how long it waited, for what, and what each attempt came to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from markupsafe import Markup

from winch.core.flow import INPUTS_HEADER
from winch.core.job import Entry, JobRecord
from winch.core.lifecycle import JobState
from winch.core.values.redact import mask_text
from winch.web.pages.show import span

WIDTH = 1000.0
ROW = 22.0
ATTEMPTS = frozenset({"completed", "failed", "snoozed", "cancelled", "discarded", "crashed", "rescued"})
TONES = {
    "completed": "tone-completed",
    "failed": "tone-dead",
    "crashed": "tone-dead",
    "discarded": "tone-dead",
    "rescued": "tone-retrying",
    "snoozed": "tone-scheduled",
    "cancelled": "tone-cancelled",
    "running": "tone-running",
}


@dataclass(frozen=True)
class Phase:
    """One stretch of the job's life; `tone` colours it, `session` is the worker's."""

    kind: str
    title: str
    start: datetime
    end: datetime
    tone: str
    note: str = ""
    session: str | None = None
    is_now: bool = False

    @property
    def took(self) -> str:
        return span(self.end - self.start)


def phases(job: JobRecord, now: datetime, why: str) -> list[Phase]:
    """The phases in order, without gaps; a stretch that clocks make negative has no length."""
    found: list[Phase] = []
    at = job.created_at
    due: datetime | None = None
    attempts = [entry for entry in job.history if entry.claimed_at is not None]
    others = [entry for entry in job.history if entry.claimed_at is None]
    spans: list[tuple[datetime, datetime, str, Entry | None]] = [
        (entry.claimed_at or entry.at, entry.at, entry.what, entry) for entry in attempts
    ]
    ends = {entry.at for entry in attempts}
    if job.claimed_at is not None and job.state is JobState.RUNNING:
        spans.append((job.claimed_at, now, "running", None))
    elif job.claimed_at is not None and job.finished_at is not None and job.finished_at not in ends:
        spans.append((job.claimed_at, job.finished_at, str(job.state), None))
    if job.run_at > job.created_at and job.attempt <= 1 and not attempts:
        due = job.run_at
    number = 0
    for start, end, what, entry in spans:
        if entry is None or entry.what != "snoozed":
            number += 1
        title_wait = "waited in queue" if not found else "waited for its next attempt"
        if due is not None and due < start:
            found.append(_until_due(job, at, due))
            at, due = due, None
        if start > at:
            found.append(Phase("wait", title_wait, at, start, "tone-ready"))
        shown = entry.attempt if entry is not None and entry.attempt else job.attempt or number
        found.append(
            Phase(
                "attempt",
                f"attempt {shown} {what}",
                start,
                max(end, start),
                TONES.get(what, "tone-running"),
                _note(entry),
                entry.session if entry is not None else job.session,
                is_now=what == "running",
            )
        )
        at = max(end, start)
    if not job.state.is_final and job.state is not JobState.RUNNING:
        found += _waiting(job, at, now, why)
    elif job.finished_at is not None and not spans:
        found.append(Phase("wait", "waited", at, max(job.finished_at, at), "tone-ready"))
    # What people did, as moments between the phases.
    found += [
        Phase(
            "moment",
            entry.what + (f" by {entry.by}" if entry.by else ""),
            entry.at,
            entry.at,
            "tone-moment",
            mask_text(entry.note or ""),
        )
        for entry in others
    ]
    found.sort(key=lambda phase: (phase.start, phase.kind == "moment"))
    return found


def _note(entry: Entry | None) -> str:
    if entry is None:
        return ""
    if entry.error is not None:
        return mask_text(f"{entry.error.name}: {entry.error.message}")
    return mask_text(entry.note or "")


def _waiting(job: JobRecord, at: datetime, now: datetime, why: str) -> list[Phase]:
    """The stretch the job is in now, with the reason."""
    found = []
    if job.state in (JobState.SCHEDULED, JobState.RETRYING):
        tone = "tone-scheduled" if job.state is JobState.SCHEDULED else "tone-retrying"
        title = "scheduled" if job.state is JobState.SCHEDULED else "waits for its next attempt"
        found.append(Phase("wait", title, at, max(job.run_at, now), tone, why, is_now=True))
        return found
    if at < job.run_at < now:
        found.append(_until_due(job, at, job.run_at))
        at = job.run_at
    title, tone = "waits in queue", "tone-ready"
    if job.state is JobState.BLOCKED:
        title, tone = _blocked_by(job), "tone-blocked"
    found.append(Phase("wait", title, at, max(now, at), tone, why, is_now=True))
    return found


def _until_due(job: JobRecord, at: datetime, due: datetime) -> Phase:
    """The stretch before the job could run: its own delay, or the jobs that it had to wait for."""
    if job.history:
        return Phase("wait", "waited for its next attempt", at, due, "tone-scheduled")
    if INPUTS_HEADER in job.headers:
        return Phase("wait", "waited for the jobs before it", at, due, "tone-blocked")
    return Phase("wait", "scheduled", at, due, "tone-scheduled")


def _blocked_by(job: JobRecord) -> str:
    if job.gate is not None:
        return "waits at a gate"
    return "waits for the jobs before it" if INPUTS_HEADER in job.headers else "waits"


def draw(found: list[Phase], now: datetime) -> Markup:
    """The phases as bars over time; short ones stay visible. The list beside it is exact."""
    stretches = [phase for phase in found if phase.kind != "moment"]
    if not stretches:
        return Markup("")
    first = min(phase.start for phase in stretches)
    total = max((max(phase.end for phase in stretches) - first).total_seconds(), 1e-6)
    parts = []
    for row, phase in enumerate(stretches):
        x = (phase.start - first).total_seconds() / total * WIDTH
        width = max((phase.end - phase.start).total_seconds() / total * WIDTH, 4.0)
        parts.append(
            Markup(
                '<rect class="{}{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:g}" rx="3">'
                "<title>{}: {}</title></rect>"
            ).format(
                phase.tone,
                " is-now" if phase.is_now else "",
                min(x, WIDTH - width),
                row * ROW + 3,
                width,
                ROW - 8,
                phase.title,
                phase.took,
            )
        )
    return Markup(
        '<svg class="gantt" viewBox="0 0 {:g} {:g}" preserveAspectRatio="none" aria-hidden="true">'
        "{}</svg>"
    ).format(WIDTH, len(stretches) * ROW, Markup("").join(parts))

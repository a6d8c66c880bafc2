"""A job's life as phases: how long it waited, for what, and what each attempt came to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import Markup

from winch.core.flow import INPUTS_HEADER
from winch.core.job import Entry, JobRecord
from winch.core.lifecycle import JobState
from winch.core.values.redact import mask_text
from winch.web.draw.axis import axis_of
from winch.web.pages.show import clock, short_name, span

WIDTH = 1000.0
SHORTEST = 3.0
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
        return mask_text(f"{short_name(entry.error.name)}: {entry.error.message}")
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


@dataclass(frozen=True)
class Track:
    """A phase as a row: its icon, the bar on the axis that all rows share, and its length in words."""

    phase: Phase
    icon: str
    look: str
    lane: Markup


@dataclass(frozen=True)
class Timeline:
    """The rows, the labels of the axis at even distances, and the whole in words."""

    tracks: Sequence[Track]
    marks: Sequence[str]
    words: str


_LOOKS = {
    "tone-completed": ("completed", "completed"),
    "tone-dead": ("dead-state", "dead"),
    "tone-retrying": ("retrying", "retrying"),
    "tone-scheduled": ("scheduled", "scheduled"),
    "tone-cancelled": ("cancelled", "cancelled"),
    "tone-running": ("running", "running"),
    "tone-blocked": ("blocked", "blocked"),
    "tone-ready": ("ready", "ready"),
    "tone-moment": ("edit", "ready"),
}
MOST_MARKS = 8
# From here on the axis has times of day; a shorter life is counted from its beginning.
CLOCK_FROM = 20.0


def timeline(found: list[Phase], now: datetime) -> Timeline:
    """The phases as rows on one axis, whose marks are round in their unit."""
    if not found:
        return Timeline((), (), "")
    first = min(phase.start for phase in found).timestamp()
    last = max(phase.end for phase in found).timestamp()
    is_clock = last - first >= CLOCK_FROM
    start, step, count = axis = axis_of(first, last, MOST_MARKS, is_clock=is_clock)
    if is_clock:
        form = "%d %b" if step >= 86_400 else "%H:%M" if step >= 60 else "%H:%M:%S"
        marks = [clock(datetime.fromtimestamp(start + n * step, UTC), form) for n in range(count + 1)]
    else:
        marks = [axis.mark(n) for n in range(count + 1)]

    def at(moment: float) -> float:
        return min(max((moment - start) / (axis.end - start), 0.0), 1.0) * WIDTH

    tracks = [
        Track(phase, *_LOOKS.get(phase.tone, ("ready", "ready")), _lane(phase, at, count, now))
        for phase in found
    ]
    return Timeline(tracks, marks, _words(found, now))


def _lane(phase: Phase, at: Callable[[float], float], count: int, now: datetime) -> Markup:
    parts = [
        Markup('<path class="grid" d="M{:.1f} 0V24"/>').format(n * WIDTH / count)
        for n in range(count + 1)
    ]
    x1, x2 = at(phase.start.timestamp()), at(phase.end.timestamp())
    present = at(now.timestamp())
    if phase.kind == "moment":
        parts.append(
            Markup('<rect class="{}" x="{:.1f}" y="4" width="2.5" height="16"/>').format(phase.tone, x1)
        )
    else:
        done = min(x2, present) if phase.end > now else x2
        left = min(x1, WIDTH - SHORTEST)
        parts.append(
            Markup('<rect class="{}" x="{:.1f}" y="7" width="{:.1f}" height="10"/>').format(
                phase.tone, left, max(done - left, SHORTEST)
            )
        )
        if phase.end > now:
            parts.append(
                Markup('<rect class="future {}" x="{:.1f}" y="7" width="{:.1f}" height="10"/>').format(
                    phase.tone, done, max(x2 - done, SHORTEST)
                )
            )
    if phase.is_now:
        parts.append(Markup('<path class="now" d="M{:.1f} 0V24"/>').format(present))
    return Markup(
        '<svg class="lane" viewBox="0 0 {:g} 24" preserveAspectRatio="none" aria-hidden="true">{}</svg>'
    ).format(WIDTH, Markup("").join(parts))


def _words(found: Sequence[Phase], now: datetime) -> str:
    """The whole up to now in one line: how long it waited and how long it ran."""
    kinds = {"waiting": 0.0, "running": 0.0}
    for phase in found:
        seconds = max((min(phase.end, now) - phase.start).total_seconds(), 0.0)
        if phase.kind == "attempt":
            kinds["running"] += seconds
        elif phase.kind == "wait":
            kinds["waiting"] += seconds
    total = sum(kinds.values())
    parts = ", ".join(f"{span(seconds)} {name}" for name, seconds in kinds.items() if seconds)
    so_far = " so far" if any(phase.is_now for phase in found) else ""
    return f"{span(total)}{so_far}: {parts}" if parts else ""

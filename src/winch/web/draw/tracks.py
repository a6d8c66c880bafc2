"""The nodes of a flow over time: for each a bar of waiting and a bar of running, on one axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from markupsafe import Markup

from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.web.draw.axis import axis_of
from winch.web.draw.graph import FlowNode
from winch.web.pages.show import span

WIDE = 1000.0
MOST = 60
MOST_MARKS = 6


@dataclass(frozen=True)
class NodeTrack:
    """One row: the node, its bars, and how long it took."""

    label: str
    href: str
    state: JobState | None
    took: str
    lane: Markup
    is_critical: bool


@dataclass(frozen=True)
class Tracks:
    """The rows and the marks of their axis, from left to right."""

    rows: Sequence[NodeTrack]
    marks: Sequence[str]
    is_cut: bool = False


def of_nodes(nodes: Sequence[FlowNode], now: datetime, link: Callable[[str], str]) -> Tracks | None:
    """The tracks of a flow; None while nothing has started."""
    jobs = [job for node in nodes for job in node.jobs]
    begun = [job.claimed_at for job in jobs if job.claimed_at is not None]
    if not begun:
        return None
    first = min(begun)
    is_over = all(job.state.is_final for job in jobs)
    last = max(_end(job, now) for job in jobs) if is_over else now
    # The axis begins with the first start: a wait that all of them had is no property of the flow.
    axis = axis_of(0.0, (last - first).total_seconds(), MOST_MARKS)
    marks = [axis.mark(n) for n in range(axis.steps + 1)]

    def at(moment: datetime) -> float:
        return min(max((moment - first).total_seconds() / axis.end, 0.0), 1.0) * WIDE

    found = sorted(nodes, key=lambda node: min((j.claimed_at or now for j in node.jobs), default=now))
    rows = [
        _track(node, at, now, link, None if is_over else at(now), len(marks)) for node in found[:MOST]
    ]
    return Tracks(rows, marks, len(found) > MOST)


def _end(job: JobRecord, now: datetime) -> datetime:
    """When its last attempt ended; now while it runs, or where none has begun."""
    if job.state is JobState.RUNNING or job.claimed_at is None:
        return job.finished_at or now
    ends = [entry.at for entry in job.history if entry.claimed_at == job.claimed_at]
    return job.finished_at or (ends[-1] if ends else now)


def _track(
    node: FlowNode,
    at: Callable[[datetime], float],
    now: datetime,
    link: Callable[[str], str],
    today: float | None,
    marks: int,
) -> NodeTrack:
    parts = [
        Markup('<line class="grid" x1="{:.1f}" x2="{:.1f}" y1="0" y2="24"/>').format(x, x)
        for x in (WIDE * n / max(marks - 1, 1) for n in range(marks))
    ]
    begun = [job for job in node.jobs if job.claimed_at is not None]
    if begun:
        start = min(job.claimed_at for job in begun if job.claimed_at is not None)
        created = min(job.created_at for job in node.jobs)
        parts.append(_bar("tone-wait", at(created), at(start), 9, 6))
        by_state: dict[JobState, list[JobRecord]] = {}
        for job in begun:
            by_state.setdefault(job.state, []).append(job)
        for state, jobs in sorted(by_state.items(), key=lambda pair: pair[0] is not JobState.COMPLETED):
            left = min(job.claimed_at for job in jobs if job.claimed_at is not None)
            right = max(_end(job, now) for job in jobs)
            if state is not JobState.RUNNING and not state.is_final:  # it waits for its next attempt
                parts.append(_bar("tone-wait", at(right), at(now), 9, 6))
            parts.append(_bar(f"tone-{state}", at(left), at(right), 6, 12))
    if today is not None:
        parts.append(
            Markup('<line class="now" x1="{:.1f}" x2="{:.1f}" y1="0" y2="24"/>').format(today, today)
        )
    lane = Markup(
        '<svg class="lane" viewBox="0 0 1000 24" preserveAspectRatio="none" aria-hidden="true">{}</svg>'
    ).format(Markup("").join(parts))
    spent = None
    if begun:
        starts = [job.claimed_at for job in begun if job.claimed_at is not None]
        spent = max(_end(job, now) for job in begun) - min(starts)
    took = "–" if spent is None else span(spent)
    return NodeTrack(node.title, link(node.name), node.state, took, lane, node.is_critical)


def _bar(tone: str, left: float, right: float, y: int, tall: int) -> Markup:
    return Markup('<rect class="{}" x="{:.1f}" y="{}" width="{:.1f}" height="{}"/>').format(
        tone, left, y, max(right - left, 2.0), tall
    )

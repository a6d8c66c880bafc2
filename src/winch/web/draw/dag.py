"""A flow as pictures: its members as a graph from left to right, and over time.

Both are SVG made on the server; nodes and bars are links with names, colours come from classes. The
table on the page has the same in words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from markupsafe import Markup

from winch.core.flow import FlowNote, member_id
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.web.pages.show import span

BOX, TALL, GAP_X, GAP_Y, EDGE = 186, 58, 46, 18, 4
MOST_OF_A_NODE = 2000
MOST_BARS = 60
ICONS = {
    JobState.SCHEDULED: "◷",
    JobState.BLOCKED: "‖",
    JobState.READY: "○",
    JobState.RUNNING: "▶",
    JobState.RETRYING: "↻",
    JobState.COMPLETED: "✓",
    JobState.CANCELLED: "⊘",
    JobState.DEAD: "✕",
}
# The state of a node with several members is the one that wants most attention.
ORDER = (
    JobState.DEAD,
    JobState.RETRYING,
    JobState.RUNNING,
    JobState.READY,
    JobState.SCHEDULED,
    JobState.BLOCKED,
    JobState.CANCELLED,
    JobState.COMPLETED,
)
Link = Callable[[str], str]


@dataclass
class FlowNode:
    """One place in the graph: a member, or many of one kind."""

    name: str
    task: str
    count: int
    before: tuple[str, ...]
    jobs: list[JobRecord] = field(default_factory=list)
    depth: int = 0
    row: int = 0
    is_critical: bool = False

    @property
    def counts(self) -> Counter[JobState]:
        return Counter(job.state for job in self.jobs)

    @property
    def state(self) -> JobState | None:
        counts = self.counts
        return next((state for state in ORDER if counts[state]), None)

    @property
    def took(self) -> timedelta | None:
        """From its first start to its last end."""
        starts = [job.claimed_at for job in self.jobs if job.claimed_at is not None]
        ends = [job.finished_at for job in self.jobs if job.finished_at is not None]
        return max(ends) - min(starts) if starts and len(ends) == len(self.jobs) else None

    @property
    def place(self) -> tuple[int, int]:
        return EDGE + self.depth * (BOX + GAP_X), EDGE + self.row * (TALL + GAP_Y)

    @property
    def words(self) -> str:
        counts = self.counts
        parts = [f"{counts[state]:,} {state}" for state in ORDER if counts[state]]
        return ", ".join(parts) or "not stored yet, or pruned"


def nodes_of(flow_id: str, note: FlowNote, members: Sequence[JobRecord]) -> list[FlowNode]:
    """The graph with its members, laid out. What the note does not name (callbacks, members that were
    added later) is grouped by task."""
    by_id = {job.id: job for job in members}
    nodes: dict[str, FlowNode] = {}
    for name, task, count, before in note.nodes:
        node = FlowNode(name, task, count, before)
        for number in range(min(count, MOST_OF_A_NODE)):
            job = by_id.pop(member_id(flow_id, name, number), None)
            if job is not None:
                node.jobs.append(job)
        node.depth = 1 + max((nodes[one].depth for one in before if one in nodes), default=-1)
        nodes[name] = node
    deepest = max((node.depth for node in nodes.values()), default=-1)
    rest: dict[str, FlowNode] = {}
    for job in by_id.values():
        node = rest.setdefault(job.task, FlowNode(f"+{job.task}", job.task, 0, ()))
        node.jobs.append(job)
        node.count += 1
    for node in rest.values():
        is_after = any(tag.endswith(":callback") for job in node.jobs for tag in job.tags)
        node.depth = deepest + 1 if is_after or deepest < 0 else 0
    found = [*nodes.values(), *rest.values()]
    rows: Counter[int] = Counter()
    for node in found:
        node.row = rows[node.depth]
        rows[node.depth] += 1
    _mark_critical(nodes)
    return found


def _mark_critical(nodes: Mapping[str, FlowNode]) -> None:
    """The chain of members that the end had to wait for, where all times are known."""
    if not nodes or any(node.took is None for node in nodes.values()):
        return
    longest: dict[str, timedelta] = {}
    came: dict[str, str] = {}
    for name, node in nodes.items():
        before = [one for one in node.before if one in longest]
        start = timedelta(0)
        if before:
            came[name] = max(before, key=lambda one: longest[one])
            start = longest[came[name]]
        longest[name] = start + (node.took or timedelta(0))
    at: str | None = max(longest, key=lambda one: longest[one])
    if len(nodes) < 3:
        return  # nothing to distinguish
    while at is not None:
        nodes[at].is_critical = True
        at = came.get(at)


def draw(nodes: Sequence[FlowNode], link: Link) -> Markup:
    """The graph, left to right."""
    if not nodes:
        return Markup("")
    width = 2 * EDGE + (1 + max(node.depth for node in nodes)) * (BOX + GAP_X) - GAP_X
    height = 2 * EDGE + (1 + max(node.row for node in nodes)) * (TALL + GAP_Y) - GAP_Y
    by_name = {node.name: node for node in nodes}
    parts = [_edge(by_name[one], node) for node in nodes for one in node.before if one in by_name] + [
        _box(node, link) for node in nodes
    ]
    label = f"{len(nodes)} kinds of members; the table below names each with its state"
    return Markup(
        '<svg class="dag" width="{}" height="{}" viewBox="0 0 {} {}" role="group" aria-label="{}">'
        "{}</svg>"
    ).format(width, height, width, height, label, Markup("").join(parts))


def _edge(start: FlowNode, end: FlowNode) -> Markup:
    (x1, y1), (x2, y2) = start.place, end.place
    x1, y1, y2 = x1 + BOX, y1 + TALL // 2, y2 + TALL // 2
    bend = max((x2 - x1) // 2, 24)
    words = ["edge"]
    if any(not job.state.is_final for job in start.jobs) or not start.jobs:
        words.append("is-open")
    if start.is_critical and end.is_critical:
        words.append("is-critical")
    return Markup('<path class="{}" d="M{} {}C{} {} {} {} {} {}"/>').format(
        " ".join(words), x1, y1, x1 + bend, y1, x2 - bend, y2, x2, y2
    )


def _box(node: FlowNode, link: Link) -> Markup:
    x, y = node.place
    state = node.state
    icon = ICONS[state] if state is not None else "·"
    took = node.took
    title = node.task if node.count <= 1 else f"{node.task} × {node.count:,}"
    second = _second(node, took)
    href = link(f"/jobs/{node.jobs[0].id}") if len(node.jobs) == 1 else None
    box = Markup(
        '<g class="node state-of-{}{}"><rect x="{}" y="{}" width="{}" height="{}" rx="9"/>'
        '<text class="icon" x="{}" y="{}">{}</text><text class="name" x="{}" y="{}">{}</text>'
        '<text class="under" x="{}" y="{}">{}</text><title>{}: {}</title></g>'
    ).format(
        state or "none",
        " is-critical" if node.is_critical else "",
        x, y, BOX, TALL,
        x + 12, y + 25, icon,
        x + 34, y + 24, _fit(title, 20),
        x + 34, y + 43, _fit(second, 23),
        title, node.words,
    )  # fmt: skip
    if href is None:
        return box
    return Markup('<a href="{}" aria-label="{}, {}">{}</a>').format(href, title, state, box)


def _second(node: FlowNode, took: timedelta | None) -> str:
    if node.count > 1:
        counts = node.counts
        return "  ".join(f"{counts[state]:,} {ICONS[state]}" for state in ORDER if counts[state])
    return f"{node.state or 'not there'}{'' if took is None else f' · {span(took)}'}"


def _fit(text: str, most: int) -> str:
    # The end of a name is more specific than its beginning: shop.images.resize.
    return text if len(text) <= most else "…" + text[-(most - 1) :]


def _end_of_attempt(job: JobRecord, now: datetime) -> datetime:
    """When its last attempt ended; now while it runs, or where none has begun."""
    if job.state is JobState.RUNNING or job.claimed_at is None:
        return job.finished_at or now
    ends = [entry.at for entry in job.history if entry.claimed_at == job.claimed_at]
    return job.finished_at or (ends[-1] if ends else now)


def gantt(members: Sequence[JobRecord], link: Link, now: datetime) -> Markup:
    """The members over time: a thin bar for the wait, a thick one for the last attempt."""
    shown = sorted(members, key=lambda job: job.claimed_at or now)[:MOST_BARS]
    if not shown:
        return Markup("")
    last = max((job.finished_at or now) for job in shown)
    # From just before the first start: a wait that all of them had is no property of the flow.
    begun = min((job.claimed_at for job in shown if job.claimed_at is not None), default=None)
    first = min(job.created_at for job in shown)
    if begun is not None:
        first = max(first, begun - (last - begun) * 0.08)
    total = max((last - first).total_seconds(), 1e-6)
    left, wide, tall = 190, 660, 24

    def at(moment: datetime) -> float:
        return left + min(max((moment - first).total_seconds() / total, 0.0), 1.0) * wide

    parts = []
    for row, job in enumerate(shown):
        y = row * tall
        end = _end_of_attempt(job, now)
        start = job.claimed_at or end
        is_waiting = job.state is not JobState.RUNNING and not job.state.is_final
        waits_until = now if is_waiting else start
        took = span(end - start) if job.claimed_at is not None else str(job.state)
        label = f"{job.task}: {job.state}, {took}"
        parts.append(
            Markup(
                '<a href="{}" aria-label="{}"><title>{}</title><text class="name" x="{}" y="{}" '
                'text-anchor="end">{}</text><rect class="waits" x="{:.1f}" y="{}" width="{:.1f}" '
                'height="4" rx="2"/><rect class="tone-{}" x="{:.1f}" y="{}" width="{:.1f}" height="14" '
                'rx="3"/></a>'
            ).format(
                link(f"/jobs/{job.id}"), label, label,
                left - 10, y + 16, _fit(job.task, 26),
                at(job.created_at), y + 10, max(at(waits_until) - at(job.created_at), 0.5),
                job.state, at(start), y + 5, max(at(end) - at(start), 2.0),
            )
        )  # fmt: skip
    height = len(shown) * tall
    return Markup(
        '<svg class="chronicle" width="{}" height="{}" viewBox="0 0 {} {}" role="group" '
        'aria-label="Members over {}">{}</svg>'
    ).format(
        left + wide + 20, height, left + wide + 20, height, span(last - first), Markup("").join(parts)
    )

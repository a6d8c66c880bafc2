"""A flow as a picture: its members as a graph from left to right, alike ones folded into one node.

It is SVG made on the server; nodes are links with names, colours come from classes. The table on the
page has the same in words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from markupsafe import Markup

from winch.core.flow import FlowNote, member_id
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.web.draw.icons import state_icon
from winch.web.pages.show import span

BOX, TALL, GAP_X, GAP_Y, EDGE = 168, 52, 44, 18, 6
MOST_OF_A_NODE = 2000
MOST_UNFOLDED = 60
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
    parts: tuple[str, ...] = ()
    """The names of the nodes that are folded into this one."""

    @property
    def label(self) -> str:
        """What it is called: its name, or the last part of its task where the name is only a number."""
        plain = self.name.removeprefix("+")
        name = self.task if plain.isdigit() or plain == self.task else plain
        return name.rpartition(".")[2] or name

    @property
    def title(self) -> str:
        return self.label if self.count <= 1 else f"{self.label} × {self.count:,}"

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
    _place_rows(found)
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


def folded(nodes: Sequence[FlowNode]) -> list[FlowNode]:
    """Nodes of one task with the same nodes before and after them, as one node."""
    after: dict[str, set[str]] = {}
    for node in nodes:
        for one in node.before:
            after.setdefault(one, set()).add(node.name)
    alike: dict[tuple[str, frozenset[str], frozenset[str]], list[FlowNode]] = {}
    for node in nodes:
        key = node.task, frozenset(node.before), frozenset(after.get(node.name, ()))
        alike.setdefault(key, []).append(node)
    into = {node.name: some[0].name for some in alike.values() for node in some}
    found = []
    for some in alike.values():
        first = some[0]
        before = tuple(dict.fromkeys(into.get(one, one) for one in first.before))
        if len(some) == 1:
            found.append(replace(first, before=before, parts=(first.name,)))
            continue
        found.append(
            replace(
                first,
                count=sum(node.count for node in some),
                before=before,
                jobs=[job for node in some for job in node.jobs],
                is_critical=any(node.is_critical for node in some),
                parts=tuple(node.name for node in some),
            )
        )
    _place_rows(found)
    return found


def _place_rows(nodes: Sequence[FlowNode]) -> None:
    rows: Counter[int] = Counter()
    for node in nodes:
        node.row = rows[node.depth]
        rows[node.depth] += 1


def unfolded(nodes: Sequence[FlowNode]) -> list[FlowNode]:
    """Each member as a node of its own, as long as there are not too many."""
    if sum(max(len(node.jobs), 1) for node in nodes) > MOST_UNFOLDED:
        return list(nodes)
    found: list[FlowNode] = []
    names: dict[str, list[str]] = {}
    for node in nodes:
        jobs = [[job] for job in node.jobs] or [[]]
        names[node.name] = []
        for number, some in enumerate(jobs):
            name = node.name if len(jobs) == 1 else f"{node.label}[{number}]"
            before = tuple(one for other in node.before for one in names.get(other, ()))
            names[node.name].append(name)
            single = FlowNode(name, node.task, 1, before, some, node.depth, 0, node.is_critical)
            found.append(single)
    _place_rows(found)
    return found


def worst(jobs: Sequence[JobRecord]) -> list[JobRecord]:
    """The members that want attention first."""
    return sorted(jobs, key=lambda job: ORDER.index(job.state))


def took_of(members: Sequence[JobRecord], now: datetime) -> timedelta | None:
    """From the first start to the last end, or to now."""
    starts = [job.claimed_at for job in members if job.claimed_at is not None]
    if not starts:
        return None
    ends = [job.finished_at or now for job in members]
    return max(ends) - min(starts)


def times_of(node: FlowNode) -> tuple[timedelta, timedelta] | None:
    """The median and the longest run of the members that have ended."""
    spans = sorted(
        job.finished_at - job.claimed_at
        for job in node.jobs
        if job.finished_at is not None and job.claimed_at is not None
    )
    return (spans[len(spans) // 2], spans[-1]) if spans else None


def critical_of(nodes: Sequence[FlowNode]) -> timedelta | None:
    """How long the chain of nodes that took longest was; None where none is marked."""
    spans = [node.took for node in nodes if node.is_critical]
    return sum((one for one in spans if one is not None), timedelta(0)) if spans else None


def draw(nodes: Sequence[FlowNode], link: Link) -> Markup:
    """The graph, left to right. `link` has the address of a node by its name."""
    if not nodes:
        return Markup("")
    _settle(nodes)
    width = 2 * EDGE + (1 + max(node.depth for node in nodes)) * (BOX + GAP_X) - GAP_X
    height = 2 * EDGE + (1 + max(node.row for node in nodes)) * (TALL + GAP_Y) - GAP_Y
    by_name = {node.name: node for node in nodes}
    edges = [(by_name[one], node) for node in nodes for one in node.before if one in by_name]
    edges.sort(key=lambda pair: pair[0].is_critical and pair[1].is_critical)
    parts = [_edge(*pair) for pair in edges] + [_box(node, link) for node in nodes]
    label = f"{len(nodes)} nodes; the table below names each with its state"
    return Markup(
        '<svg class="dag" width="{}" height="{}" viewBox="0 0 {} {}" role="group" aria-label="{}">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path class="tip-of-edge" d="M0 0.8 7 4 0 7.2z"/></marker>'
        '<marker id="tip-critical" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="11" '
        'markerHeight="11" markerUnits="userSpaceOnUse" orient="auto">'
        '<path class="tip-of-edge is-critical" d="M0 0.8 7 4 0 7.2z"/></marker></defs>{}</svg>'
    ).format(width, height, width, height, label, Markup("").join(parts))


def _settle(nodes: Sequence[FlowNode]) -> None:
    """Put each node near those before it, so that few edges cross."""
    rows = {node.name: float(node.row) for node in nodes}
    for depth in range(1, 1 + max(node.depth for node in nodes)):
        column = [node for node in nodes if node.depth == depth]
        wanted = {
            node.name: sum(rows.get(one, 0.0) for one in node.before) / max(len(node.before), 1)
            for node in column
        }
        column.sort(key=lambda node: (wanted[node.name], node.row))
        free = 0
        for node in column:
            node.row = max(free, round(wanted[node.name]))
            free = node.row + 1
            rows[node.name] = float(node.row)


def _edge(start: FlowNode, end: FlowNode) -> Markup:
    """Right-angled with round corners: out of the box, along the gap, into the next."""
    (x1, y1), (x2, y2) = start.place, end.place
    x1, y1, y2 = x1 + BOX, y1 + TALL // 2, y2 + TALL // 2
    words = ["edge"]
    if any(not job.state.is_final for job in start.jobs) or not start.jobs:
        words.append("is-open")
    tip = "tip"
    if start.is_critical and end.is_critical:
        words.append("is-critical")
        tip = "tip-critical"
    turn = x2 - GAP_X // 2
    if y1 == y2:
        path = f"M{x1} {y1}H{x2 - 2}"
    else:
        way = 1 if y2 > y1 else -1
        bend = min(7, abs(y2 - y1) // 2)
        path = (
            f"M{x1} {y1}H{turn - bend}Q{turn} {y1} {turn} {y1 + way * bend}"
            f"V{y2 - way * bend}Q{turn} {y2} {turn + bend} {y2}H{x2 - 2}"
        )
    return Markup('<path class="{}" marker-end="url(#{})" d="{}"/>').format(" ".join(words), tip, path)


def _box(node: FlowNode, link: Link) -> Markup:
    x, y = node.place
    state = node.state
    is_many = node.count > 1
    back = (
        Markup('<rect class="behind" x="{}" y="{}" width="{}" height="{}" rx="7"/>').format(
            x + 4, y + 4, BOX, TALL
        )
        if is_many
        else Markup("")
    )
    sign = Markup("") if state is None else state_icon(state)
    box = Markup(
        '<g class="node state-of-{} is-{}{}">{}<rect x="{}" y="{}" width="{}" height="{}" rx="7"/>'
        '<g transform="translate({} {})">{}</g><text class="name" x="{}" y="{}">{}</text>'
        '<text class="under" x="{}" y="{}">{}</text>{}<title>{}: {}</title></g>'
    ).format(
        state or "none", state or "calm", " is-critical" if node.is_critical else "",
        back, x, y, BOX, TALL,
        x + 11, y + 10, sign,
        x + 33, y + 22, _fit(node.title, 19),
        x + 33, y + 39, _fit(_second(node), 24),
        _share(node, x + 11, y + TALL - 7) if is_many else "",
        node.task, node.words,
    )  # fmt: skip
    return Markup('<a href="{}" aria-label="{}, {}">{}</a>').format(
        link(node.name), node.title, node.words, box
    )


def _share(node: FlowNode, x: int, y: int) -> Markup:
    """How many of the members are in each state, as one thin bar."""
    wide, at, parts = BOX - 22, 0.0, []
    counts = node.counts
    for state in reversed(ORDER):
        width = wide * counts[state] / max(node.count, 1)
        if width and state not in (JobState.BLOCKED, JobState.READY, JobState.SCHEDULED):
            parts.append(
                Markup('<rect class="tone-{}" x="{:.1f}" y="{}" width="{:.1f}" height="3"/>').format(
                    state, x + at, y, max(width, 1.5)
                )
            )
            at += width
    return Markup('<g class="share">{}</g>').format(Markup("").join(parts))


def _second(node: FlowNode) -> str:
    counts, state = node.counts, node.state
    if node.count > 1:
        parts = [f"{counts[one]:,} {one}" for one in ORDER if counts[one]]
        return ", ".join(parts) or "not stored yet"
    if state is None:
        return "not stored yet, or pruned"
    if state is JobState.BLOCKED:
        return f"waits for {len(node.before)}" if node.before else "waits"
    return f"{state}{'' if node.took is None else f' · {span(node.took)}'}"


def _fit(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"

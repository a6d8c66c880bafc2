"""Flows: how far each is, and one of them as a graph, over time and as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec
from markupsafe import Markup
from starlette.responses import Response

from winch.areas.flows import MOST_COUNTED, FlowInfo
from winch.core.flow import member_id
from winch.core.lifecycle import LIVE, JobState
from winch.engine.flows.render import mermaid
from winch.web.api.flows import flows_of
from winch.web.draw import graph, tracks
from winch.web.pages.base import curl, go, link, one, page
from winch.web.pages.show import jobs
from winch.web.pages.sure import ask, is_sure
from winch.web.problems import Problem
from winch.web.routes import WebCall, WebRoute
from winch.web.schemas.convert import job_out

ON_A_PAGE = 25
# A list counts the members of small flows only: the page of one has the rest.
COUNTED = 200
MOST_ROWS = 200
BAR = (JobState.COMPLETED, JobState.RUNNING, JobState.RETRYING, JobState.DEAD, JobState.CANCELLED)


class FlowsQuery(msgspec.Struct, frozen=True, kw_only=True):
    cursor: str | None = None
    did: str = ""


def bar(counts: Mapping[JobState, int]) -> Markup:
    """How far a flow is, in one line of colour."""
    total = max(sum(counts.values()), 1)
    parts, x = [], 0.0
    for state in BAR:
        width = 160.0 * counts.get(state, 0) / total
        if width:
            parts.append(
                Markup('<rect class="tone-{}" x="{:.1f}" y="0" width="{:.1f}" height="8"/>').format(
                    state, x, width
                )
            )
            x += width
    done = counts.get(JobState.COMPLETED, 0)
    return Markup(
        '<svg class="bar-of" viewBox="0 0 160 8" preserveAspectRatio="none" role="img" '
        'aria-label="{} of {} completed"><rect class="ground" x="0" y="0" width="160" height="8"/>'
        "{}</svg>"
    ).format(done, total, Markup("").join(parts))


async def _counted(call: WebCall, found: Sequence[FlowInfo]) -> dict[str, Counter[JobState]]:
    """The states of the members of small flows: by their ids, which follow from the flow's."""
    ids = {
        member_id(info.id, name, number): info.id
        for info in found
        if info.note.nodes and sum(node[2] for node in info.note.nodes) <= COUNTED
        for name, _, count, _ in info.note.nodes
        for number in range(count)
    }
    driver, counts = call.site.driver, dict[str, Counter[JobState]]()
    wanted = list(ids)
    for start in range(0, len(wanted), 500):
        for job in await driver.arun(driver.get(wanted[start : start + 500])):
            if job is not None:
                counts.setdefault(ids[job.id], Counter())[job.state] += 1
    # A list has counted the members of a batch, unless there are too many.
    for info in found:
        if info.counts and info.members < MOST_COUNTED:
            counts[info.id] = Counter(info.counts)
    return counts


LOOKS = {
    "running": ("running", "running"),
    "completed": ("completed", "completed"),
    "failed": ("dead", "dead-state"),
}


def _look(info: FlowInfo) -> dict[str, str]:
    look, icon = LOOKS.get(info.state, ("cancelled", "cancelled"))
    return {"look": look, "icon": icon}


async def list_page(call: WebCall) -> Response:
    query: FlowsQuery = call.query
    found = await flows_of(call).alist(limit=ON_A_PAGE, before=query.cursor)
    counts = await _counted(call, found)
    rows = [
        {
            "flow": msgspec.structs.replace(info, counts=counts.get(info.id, {})),
            "is_counted": info.id in counts,
            **_look(msgspec.structs.replace(info, counts=counts.get(info.id, {}))),
            "bar": bar(counts[info.id]) if info.id in counts else "",
            "done": counts[info.id][JobState.COMPLETED] if info.id in counts else 0,
            "total": info.members,
            "is_capped": info.id not in counts and info.note.kind == "batch" and info.members > 0,
            "created_at": datetime.fromtimestamp(int(info.id.replace("-", "")[:12], 16) / 1000, UTC),
        }
        for info in found
    ]
    following = found[-1].id if len(found) == ON_A_PAGE else None
    return await page(call, "flows.html", title="Flows", rows=rows, next=following)


class FlowPageQuery(msgspec.Struct, frozen=True, kw_only=True):
    fold: str = "yes"
    node: str = ""
    did: str = ""


async def detail_page(call: WebCall) -> Response:
    query: FlowPageQuery = call.query
    flows = flows_of(call)
    info = await flows.aget(call.path("id"))
    members = await flows.amembers(info.id)
    single = graph.nodes_of(info.id, info.note, members)
    nodes = graph.folded(single)
    is_folded = query.fold != "no"
    drawn = nodes if is_folded else graph.unfolded(single)
    now = datetime.now(UTC)
    where = f"/flows/{info.id}"

    def to(path: str, **given: str) -> str:
        return link(call.request, path, **given)

    chosen = next((node for node in nodes if query.node in (node.name, *node.parts)), None)
    failed = info.counts.get(JobState.DEAD, 0) + info.counts.get(JobState.CANCELLED, 0)
    names = {node.name: node.label for node in nodes}
    return await page(
        call,
        "flow.html",
        title=info.note.name or info.note.kind,
        flow=info,
        bar=bar(info.counts),
        done=info.counts.get(JobState.COMPLETED, 0),
        total=info.members,
        callbacks=len(members) - info.members,
        began=min((job.created_at for job in members), default=None),
        took=graph.took_of(members, now),
        graph=graph.draw(drawn, lambda node: to(where, fold="" if is_folded else "no", node=node)),
        is_folded=is_folded,
        can_fold=any(node.count > 1 for node in nodes),
        tracks=tracks.of_nodes(nodes, now, lambda node: to(where, node=node)),
        rows=[
            {"node": node, "before": [names[one_] for one_ in node.before if one_ in names]}
            for node in nodes
        ],
        chosen=chosen,
        chosen_jobs=[] if chosen is None else [job_out(job) for job in graph.worst(chosen.jobs)[:8]],
        times=None if chosen is None else graph.times_of(chosen),
        after=[] if chosen is None else [node.label for node in nodes if chosen.name in node.before],
        jobs=[job_out(job) for job in members[:MOST_ROWS]],
        has_more=len(members) > MOST_ROWS,
        mermaid=mermaid(info.note),
        show=f"{call.site.app.command} flows show {info.id}",
        curl=curl(call, f"/api/v1/flows/{info.id}"),
        failed=failed,
        can_cancel=info.state == "running",
        critical=graph.critical_of(nodes),
        sentence=_sentence(info, nodes),
    )


def _sentence(info: FlowInfo, nodes: Sequence[graph.FlowNode]) -> str:
    """How far it is, and what holds it up."""
    dead = _labels(nodes, JobState.DEAD)
    if info.state == "completed":
        return "all of it is done"
    if dead:
        return f"held up by {', '.join(dead[:2])}, which died"
    moving = [
        node.label for node in nodes if node.counts[JobState.RUNNING] or node.counts[JobState.RETRYING]
    ]
    if moving:
        return f"now at {', '.join(moving[:3])}"
    waiting = [
        node.label for node in nodes if node.counts[JobState.READY] or node.counts[JobState.SCHEDULED]
    ]
    return f"{', '.join(waiting[:2])} can run next" if waiting else info.state


def _labels(nodes: Sequence[graph.FlowNode], *states: JobState) -> list[str]:
    return [node.label for node in nodes if any(node.counts[state] for state in states)]


async def act(call: WebCall) -> Response:
    flows = flows_of(call)
    info = await flows.aget(call.path("id"))
    action, reason = one(call.body, "action"), one(call.body, "reason")
    match action:
        case "cancel":
            if not is_sure(call):
                left = sum(info.counts.get(state, 0) for state in LIVE)
                return await ask(
                    call,
                    title=f"Cancel {info.note.name or info.note.kind}?",
                    text=f"{jobs(left)} {'has' if left == 1 else 'have'} not ended. What waits is "
                    "cancelled, and what runs is asked to stop. What is done stays.",
                    verb=f"Cancel {jobs(left)}",
                    back=link(call.request, f"/flows/{info.id}"),
                )
            took = await flows.acancel(info.id, reason=reason, by=call.by)
        case "retry":
            took = await flows.aretry(info.id, by=call.by)
        case "rerun":
            nodes = call.body.get("node", [""])
            took = 0
            for node in nodes:
                took += await flows.arerun(info.id, node, by=call.by)
            call.note(info.id, node=", ".join(nodes))
        case _:
            raise Problem("invalid", "action must be one of cancel, retry, rerun")
    call.note(info.id, action=action, jobs=took, reason=reason)
    return go(call, f"/flows/{info.id}", did=f"flow-{action}")


async def send_signal(call: WebCall) -> Response:
    """A signal by hand: an approval, say."""
    from winch.core.values import codec

    name, text = one(call.body, "name") or "", one(call.body, "payload") or "null"
    payload = codec.loads_strict(text, what="the payload")
    is_new = await call.site.app.asignal(name, payload)
    call.note(name, is_new=is_new)
    return go(call, "/flows", did="signalled")


ROUTES: tuple[WebRoute, ...] = (
    WebRoute("GET", "/flows", "read", list_page, "Flows", query=FlowsQuery, is_page=True),
    WebRoute("POST", "/flows", "operate", send_signal, "Send a signal", audit="signal", is_page=True),
    WebRoute("GET", "/flows/{id}", "read", detail_page, "One flow", query=FlowPageQuery, is_page=True),
    WebRoute("POST", "/flows/{id}", "operate", act, "Act on a flow", audit="flow", is_page=True),
)

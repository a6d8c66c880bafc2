"""Flows and signals over HTTP."""

from __future__ import annotations

from starlette.responses import Response

from winch.areas.flows import FlowInfo, Flows
from winch.engine.flows.render import mermaid
from winch.web.routes import PREFIX, WebCall, WebReply, WebRoute
from winch.web.schemas.flows import (
    CountOut,
    FlowDetail,
    FlowMemberOut,
    FlowNodeOut,
    FlowOut,
    FlowQuery,
    FlowsOut,
    SignalBody,
    SignalOut,
)
from winch.web.schemas.jobs import EmptyBody, ReasonBody
from winch.web.schemas.operate import RerunBody

MOST_MEMBERS = 1000


def flows_of(call: WebCall) -> Flows:
    """The flows. Their members may be in any queue, so a narrowed caller reaches no route of theirs."""
    return call.site.app.flows


def flow_out(info: FlowInfo) -> FlowOut:
    note = info.note
    return FlowOut(
        id=info.id,
        name=note.name,
        kind=note.kind,
        members=info.members,
        tasks=list(note.tasks),
    )


async def list_flows(call: WebCall) -> WebReply:
    query: FlowQuery = call.query
    found = await flows_of(call).alist(limit=query.limit, before=query.cursor)
    following = found[-1].id if len(found) == query.limit else None
    return WebReply(FlowsOut(flows=[flow_out(info) for info in found], next=following))


async def get_flow(call: WebCall) -> WebReply:
    flows = flows_of(call)
    info = await flows.aget(call.path("id"))
    members = await flows.amembers(info.id)
    return WebReply(
        FlowDetail(
            flow=flow_out(info),
            state=info.state,
            counts=dict(info.counts),
            nodes=[
                FlowNodeOut(name=name, task=task, count=count, after=list(before))
                for name, task, count, before in info.note.nodes
            ],
            members=[
                FlowMemberOut(id=job.id, task=job.task, state=job.state)
                for job in members[:MOST_MEMBERS]
            ],
            is_partial=len(members) > MOST_MEMBERS,
        )
    )


async def graph(call: WebCall) -> Response:
    info = await flows_of(call).aget(call.path("id"))
    return Response(mermaid(info.note), 200, {"content-type": "text/vnd.mermaid; charset=utf-8"})


async def cancel(call: WebCall) -> WebReply:
    flows = flows_of(call)
    info = await flows.aget(call.path("id"))
    took = await flows.acancel(info.id, reason=call.body.reason, by=call.by)
    call.note(info.id, name=info.note.name, jobs=took, reason=call.body.reason)
    return WebReply(CountOut(jobs=took))


async def retry(call: WebCall) -> WebReply:
    flows = flows_of(call)
    info = await flows.aget(call.path("id"))
    took = await flows.aretry(info.id, by=call.by)
    call.note(info.id, name=info.note.name, jobs=took)
    return WebReply(CountOut(jobs=took))


async def rerun(call: WebCall) -> WebReply:
    flows = flows_of(call)
    info = await flows.aget(call.path("id"))
    took = await flows.arerun(info.id, call.body.node, by=call.by)
    call.note(info.id, name=info.note.name, node=call.body.node, jobs=took)
    return WebReply(CountOut(jobs=took))


async def signal(call: WebCall) -> WebReply:
    """Keep a signal for the job that waits for it, or will."""
    body: SignalBody = call.body
    name = call.path("name")
    is_new = await call.site.app.asignal(name, body.payload, id=body.id)
    call.note(name, id=body.id, is_new=is_new)
    return WebReply(SignalOut(name=name, is_new=is_new), 202)


F = f"{PREFIX}/flows"
ROUTES: tuple[WebRoute, ...] = (
    WebRoute("GET", F, "read", list_flows, "The latest flows", query=FlowQuery, answer=FlowsOut),
    WebRoute("GET", f"{F}/{{id}}", "read", get_flow, "One flow and its members", answer=FlowDetail),
    WebRoute("GET", f"{F}/{{id}}/graph", "read", graph, "The shape of a flow, for Mermaid",
             media="text/vnd.mermaid"),
    WebRoute("POST", f"{F}/{{id}}/cancel", "operate", cancel, "Cancel what is not final",
             body=ReasonBody, answer=CountOut, audit="cancel flow"),
    WebRoute("POST", f"{F}/{{id}}/retry", "operate", retry, "Run dead and cancelled members again",
             body=EmptyBody, answer=CountOut, audit="retry flow"),
    WebRoute("POST", f"{F}/{{id}}/rerun", "operate", rerun, "Run a node and all after it again",
             body=RerunBody, answer=CountOut, audit="rerun flow"),
    WebRoute("POST", f"{PREFIX}/signals/{{name}}", "operate", signal, "Send a signal", body=SignalBody,
             answer=SignalOut, status=202, audit="signal"),
)  # fmt: skip

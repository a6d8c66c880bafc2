"""Webhook endpoints over HTTP. A caller of one tenant sees and changes the endpoints of that tenant."""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from winch.areas.webhooks.area import Webhooks
from winch.areas.webhooks.endpoints import Endpoint
from winch.core.errors import EndpointNotFound
from winch.core.values.redact import mask_text
from winch.web.problems import Problem
from winch.web.routes import PREFIX, WebCall, WebReply, WebRoute
from winch.web.schemas.jobs import EmptyBody, ReasonBody
from winch.web.schemas.webhooks import (
    ChangedEndpointBody,
    DeliveriesOut,
    DeliveryOut,
    DeliveryQuery,
    EndpointOut,
    EndpointQuery,
    EndpointsOut,
    NewEndpointBody,
    RotateBody,
    WebhookReplayBody,
    WebhookReplayOut,
)


def _webhooks(call: WebCall) -> Webhooks:
    return call.site.app.webhooks


def endpoint_out(one: Endpoint) -> EndpointOut:
    fields = {**msgspec.structs.asdict(one), "url": mask_text(one.url), "events": list(one.events)}
    return EndpointOut(**fields)


def _is_seen(call: WebCall, one: Endpoint) -> bool:
    return call.access.tenant is None or one.tenant == call.access.tenant


async def _one_of(call: WebCall) -> Endpoint:
    found = await _webhooks(call).aget(call.path("id"))
    if not _is_seen(call, found):
        raise EndpointNotFound(found.id)
    return found


async def list_endpoints(call: WebCall) -> WebReply:
    query: EndpointQuery = call.query
    tenant = query.tenant if call.access.tenant is None else call.access.tenant
    found = await _webhooks(call).alist(tenant=tenant)
    if query.tenant not in (None, tenant):
        found = []
    return WebReply(EndpointsOut(endpoints=[endpoint_out(one) for one in found]))


async def get_endpoint(call: WebCall) -> WebReply:
    return WebReply(endpoint_out(await _one_of(call)))


async def subscribe(call: WebCall) -> WebReply:
    body: NewEndpointBody = call.body
    own = call.access.tenant
    if own is not None and body.tenant not in (None, own):
        raise Problem("forbidden", f"this token may not use tenant {body.tenant!r}")
    made = await _webhooks(call).asubscribe(
        body.url, body.events, tenant=body.tenant or own, secret=body.secret
    )
    one = made.endpoint
    call.note(one.id, url=mask_text(one.url), events=list(one.events), tenant=one.tenant)
    location = f"{call.request.scope.get('root_path', '')}{W}/{quote(one.id, safe='')}"
    return WebReply(endpoint_out(one), 201, {"location": location})


async def edit(call: WebCall) -> WebReply:
    body: ChangedEndpointBody = call.body
    one = await _one_of(call)
    after = await _webhooks(call).aedit(one.id, url=body.url, events=body.events)
    url = None if body.url is None else mask_text(body.url)
    call.note(one.id, url=url, events=body.events, tenant=one.tenant)
    return WebReply(endpoint_out(after))


async def disable(call: WebCall) -> WebReply:
    one = await _one_of(call)
    after = await _webhooks(call).adisable(one.id, reason=call.body.reason)
    call.note(one.id, reason=call.body.reason, tenant=one.tenant)
    return WebReply(endpoint_out(after))


async def enable(call: WebCall) -> WebReply:
    one = await _one_of(call)
    after = await _webhooks(call).aenable(one.id)
    call.note(one.id, tenant=one.tenant)
    return WebReply(endpoint_out(after))


async def rotate(call: WebCall) -> WebReply:
    body: RotateBody = call.body
    one = await _one_of(call)
    await _webhooks(call).arotate(one.id, secret=body.secret, overlap=body.overlap)
    call.note(one.id, overlap=body.overlap, tenant=one.tenant)
    return WebReply(endpoint_out(await _one_of(call)))


async def remove(call: WebCall) -> WebReply:
    one = await _one_of(call)
    await _webhooks(call).aremove(one.id)
    call.note(one.id, tenant=one.tenant)
    return WebReply({"id": one.id, "is_removed": True})


async def deliveries(call: WebCall) -> WebReply:
    one = await _one_of(call)
    found = await _webhooks(call).adeliveries(one.id, limit=call.query.limit)
    lines = [DeliveryOut(**msgspec.structs.asdict(line)) for line in found]
    return WebReply(DeliveriesOut(deliveries=lines))


async def replay(call: WebCall) -> WebReply:
    body: WebhookReplayBody = call.body
    one = await _one_of(call)
    done = await _webhooks(call).areplay(
        one.id, start=body.start, end=body.end, events=body.events, dry_run=body.dry_run
    )
    call.note(
        one.id,
        start=None if body.start is None else body.start.isoformat(),
        end=None if body.end is None else body.end.isoformat(),
        events=None if body.events is None else len(body.events),
        enqueued=None if body.dry_run else done.enqueued,
        dry_run=body.dry_run or None,
        tenant=one.tenant,
    )
    return WebReply(
        WebhookReplayOut(matched=done.matched, enqueued=done.enqueued, is_dry_run=done.is_dry_run)
    )


W = f"{PREFIX}/webhooks"
ROUTES: tuple[WebRoute, ...] = (
    WebRoute("GET", W, "read", list_endpoints, "Webhook endpoints", query=EndpointQuery,
             answer=EndpointsOut, applies=("tenant",)),
    WebRoute("POST", W, "operate", subscribe, "Add a webhook endpoint", body=NewEndpointBody,
             answer=EndpointOut, status=201, audit="subscribe webhook", applies=("tenant",)),
    WebRoute("GET", f"{W}/{{id}}", "read", get_endpoint, "One webhook endpoint", answer=EndpointOut,
             applies=("tenant",)),
    WebRoute("PATCH", f"{W}/{{id}}", "operate", edit, "Change the URL or the events of an endpoint",
             body=ChangedEndpointBody, answer=EndpointOut, audit="edit webhook", applies=("tenant",)),
    WebRoute("POST", f"{W}/{{id}}/disable", "operate", disable, "Send nothing to an endpoint",
             body=ReasonBody, answer=EndpointOut, audit="disable webhook", applies=("tenant",)),
    WebRoute("POST", f"{W}/{{id}}/enable", "operate", enable, "Send to an endpoint again",
             body=EmptyBody, answer=EndpointOut, audit="enable webhook", applies=("tenant",)),
    WebRoute("POST", f"{W}/{{id}}/rotate", "operate", rotate, "Give an endpoint a new secret",
             body=RotateBody, answer=EndpointOut, audit="rotate webhook secret", applies=("tenant",)),
    WebRoute("GET", f"{W}/{{id}}/deliveries", "read", deliveries,
             "The newest attempts to deliver to an endpoint", query=DeliveryQuery, answer=DeliveriesOut,
             applies=("tenant",)),
    WebRoute("POST", f"{W}/{{id}}/replay", "operate", replay, "Send events to an endpoint again",
             body=WebhookReplayBody, answer=WebhookReplayOut, audit="replay webhooks",
             applies=("tenant",)),
    WebRoute("DELETE", f"{W}/{{id}}", "operate", remove, "Remove an endpoint, its secrets and its log",
             answer=dict, audit="remove webhook", applies=("tenant",)),
)  # fmt: skip

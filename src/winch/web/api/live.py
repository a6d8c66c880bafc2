"""What is streamed, scraped and probed: events, metrics, health, and the OpenAPI document."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import msgspec
from starlette.responses import Response, StreamingResponse

from winch.core.errors import JobNotFound, WinchError
from winch.core.values.bounds import is_int
from winch.web import metrics
from winch.web.access import EVERY_NARROWING
from winch.web.problems import Problem
from winch.web.routes import PREFIX, WebCall, WebReply, WebRoute
from winch.web.schemas.convert import job_detail, queue_out
from winch.web.schemas.system import EventsQuery, HealthOut

# At most four messages a second to one listener, and a comment when there is nothing to say.
PACE = 0.25
IDLE_PACE = 1.0
COMMENT_EVERY = 15.0
MOST_STREAMS = 200
# A stream ends so soon after its token is revoked, expired or changed.
CHECK_EVERY = 0.5
# The function of a mounting application may cost more than a look at a token.
CHECK_HOST_EVERY = 5.0
ENDED = "the access that this stream began with has ended or changed; connect again"
# What a source of messages yields in each round in which it has none.
NOTHING = b""
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


def _message(kind: str, data: object, identity: str) -> bytes:
    return f"id: {identity}\nevent: {kind}\ndata: {msgspec.json.encode(data).decode()}\n\n".encode()


def _stream(call: WebCall, messages: AsyncIterator[bytes]) -> Response:
    site = call.site
    if site.streams >= MOST_STREAMS:
        raise Problem("too-many", "too many streams are open", headers={"retry-after": "5"})

    every = CHECK_HOST_EVERY if site.config.auth == "host" else CHECK_EVERY

    async def run() -> AsyncIterator[bytes]:
        site.streams += 1
        checked = time.monotonic()
        try:
            yield b"retry: 2000\n\n"
            async for message in messages:
                if time.monotonic() - checked >= every:
                    if not await site.is_current(call):
                        yield _message("end", {"reason": ENDED}, "end")
                        return
                    checked = time.monotonic()
                if message:
                    yield message
        finally:
            site.streams -= 1

    return StreamingResponse(run(), media_type="text/event-stream", headers=HEADERS)


async def events(call: WebCall) -> Response:
    """With `events="full"` every change of every job, from Last-Event-ID on; always the queues."""
    query: EventsQuery = call.query
    wanted = None if query.queues is None else set(query.queues.split(","))
    if wanted is not None:
        for name in wanted:
            if not call.access.serves(name):
                raise Problem("not-found", f"no queue {name!r}")
    last = call.request.headers.get("last-event-id", "")
    # An id that this stream never sent begins it anew: an answer of 400 would end it for good.
    position = int(last) if is_int(last) and int(last) >= 0 else None
    return _stream(call, _events(call, wanted, position))


async def _events(call: WebCall, wanted: set[str] | None, after: int | None) -> AsyncIterator[bytes]:
    site, driver = call.site, call.site.driver
    is_full = site.app.settings.events == "full" and not call.access.is_narrow
    seq = after or 0
    if is_full and after is None:
        seq = await site.last_event()
    before, quiet = b"", 0.0
    while not site.is_stopping:
        sent = False
        if is_full:
            for event in await driver.arun(driver.events(after=seq, limit=500)):
                seq = event.seq
                shown = {
                    "job": event.job,
                    "v": event.v,
                    "kind": event.kind,
                    "state": event.state,
                    "attempt": event.attempt,
                    "at": event.at,
                }
                yield _message("job", shown, str(seq))
                sent = True
        queues = [
            queue_out(queue)
            for queue in await site.queues()
            if call.access.serves(queue.name) and (wanted is None or queue.name in wanted)
        ]
        now = msgspec.json.encode(queues)
        if now != before:
            before = now
            yield _message("queues", queues, str(seq))
            sent = True
        quiet = 0.0 if sent else quiet + IDLE_PACE
        yield b": still here\n\n" if quiet >= COMMENT_EVERY else NOTHING
        quiet %= COMMENT_EVERY
        await asyncio.sleep(PACE if sent else IDLE_PACE)


async def job_events(call: WebCall) -> Response:
    """The job whenever it changes, until it is final. The id of a message is its content's digest:
    a client that returns with Last-Event-ID does not get the same message again."""
    record = await call.job()
    last = call.request.headers.get("last-event-id", "")
    return _stream(call, _job_events(call, record.id, last))


async def _job_events(call: WebCall, job_id: str, last: str) -> AsyncIterator[bytes]:
    quiet = 0.0
    while not call.site.is_stopping:
        try:
            record = await call.job(job_id)
        except (JobNotFound, Problem):  # deleted, or moved to a queue of others
            yield _message("gone", {"id": job_id}, "gone")
            return
        detail = job_detail(record)
        identity = hashlib.sha256(msgspec.json.encode(detail)).hexdigest()[:16]
        is_new = identity != last
        if is_new:
            last = identity
            yield _message("job", detail, identity)
        if record.state.is_final:
            return
        quiet = 0.0 if is_new else quiet + PACE
        yield b": still here\n\n" if quiet >= COMMENT_EVERY else NOTHING
        quiet %= COMMENT_EVERY
        await asyncio.sleep(PACE)


# -- probes ------------------------------------------------------------------------------------------


async def livez(call: WebCall) -> WebReply:
    """This answer shows that the event loop turns; the store is not touched."""
    return WebReply(HealthOut(status="pass"), 200, {"cache-control": "no-store"})


async def readyz(call: WebCall) -> WebReply:
    checks = {}
    is_ready = not call.site.is_stopping
    checks["server"] = "pass" if is_ready else "stopping"
    try:
        status = await asyncio.to_thread(call.site.app.driver.check_schema)
        checks["store"] = "pass"
        checks["schema"] = "pass" if status.is_ready else "run winch migrate"
        is_ready = is_ready and status.is_ready
    except WinchError:
        checks["store"] = "out of reach"
        is_ready = False
    shown = HealthOut(status="pass" if is_ready else "fail", checks=checks)
    return WebReply(shown, 200 if is_ready else 503)


async def scrape(call: WebCall) -> Response:
    text = await metrics.render(call.site, datetime.now(UTC))
    return Response(text, 200, {"content-type": "text/plain; version=0.0.4; charset=utf-8"})


async def openapi(call: WebCall) -> WebReply:
    return WebReply(call.site.openapi())


ROUTES: tuple[WebRoute, ...] = (
    WebRoute("GET", f"{PREFIX}/events", "read", events, "Changes as they happen (SSE)",
             query=EventsQuery, media="text/event-stream", applies=("queue",)),
    WebRoute("GET", f"{PREFIX}/jobs/{{id}}/events", "read", job_events, "One job as it changes (SSE)",
             media="text/event-stream", applies=EVERY_NARROWING),
    WebRoute("GET", f"{PREFIX}/openapi.json", "public", openapi, "This description", answer=dict),
    WebRoute("GET", "/livez", "public", livez, "The server runs", answer=HealthOut),
    WebRoute("GET", "/readyz", "public", readyz, "The server can do its work", answer=HealthOut),
    WebRoute("GET", "/startupz", "public", readyz, "The same as /readyz", answer=HealthOut),
    WebRoute("GET", "/healthz", "public", readyz, "The same as /readyz", answer=HealthOut),
    WebRoute("GET", "/metrics", "read", scrape, "Prometheus metrics", media="text/plain"),
)  # fmt: skip

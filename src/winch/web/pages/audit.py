"""The audit with its filters, and as a file."""

from __future__ import annotations

import csv
import io
from typing import Any

import msgspec
from starlette.responses import Response

from winch.core.values.ids import is_id
from winch.engine.client.audit import AuditLine
from winch.web.access import EVERY_NARROWING
from winch.web.api.queues import audit_lines
from winch.web.pages.base import page, part
from winch.web.pages.enqueue import cell
from winch.web.routes import WebCall, WebRoute
from winch.web.schemas.system import AuditQuery

ON_A_PAGE = 100
MOST_IN_A_FILE = 10_000
SINCE = {"": "any time", "1h": "1 hour", "24h": "24 hours", "7d": "7 days", "30d": "30 days"}
# A word of an action, and where the page of its object is.
PLACES = {
    "queue": "/queues/",
    "move jobs": "/queues/",
    "schedule": "/schedules/",
    "dead group": "/dead/",
}
FIELDS = ("actor", "action", "target", "since")


class AuditPageQuery(msgspec.Struct, frozen=True, kw_only=True):
    actor: str | None = None
    action: str | None = None
    target: str | None = None
    since: str | None = None
    cursor: str | None = None
    did: str = ""

    @property
    def which(self) -> AuditQuery:
        return AuditQuery(
            actor=self.actor or None,
            action=self.action or None,
            target=self.target or None,
            since=self.since or None,
        )


async def audit_page(call: WebCall) -> Response:
    query: AuditPageQuery = call.query
    lines = await audit_lines(call, query.cursor, ON_A_PAGE, query.which)
    latest = lines if query.cursor is None else await audit_lines(call, None, ON_A_PAGE)
    chosen = {name: getattr(query, name) or "" for name in FIELDS}
    return await page(
        call,
        "audit.html",
        title="Audit",
        lines=[(line, place_of(line)) for line in lines],
        chosen=chosen,
        is_filtered=any(chosen.values()),
        since=SINCE,
        actors=sorted({line.who for line in latest}),
        actions=sorted({line.action for line in latest}),
        next=lines[-1].id if len(lines) == ON_A_PAGE else None,
    )


def place_of(line: AuditLine) -> str:
    """Where the object of a line is to be seen: its page, where it has one."""
    if is_id(line.target):
        return f"/flows/{line.target}" if "flow" in line.action else f"/jobs/{line.target}"
    kind = next((kind for kind in PLACES if kind in line.action), None)
    if kind is None or not line.target:
        return ""
    return f"{PLACES[kind]}{part(line.target)}"


async def audit_csv(call: WebCall) -> Response:
    lines = await audit_lines(call, None, MOST_IN_A_FILE, call.query.which)
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["at", "who", "via", "origin", "action", "target", "detail"])
    for line in lines:
        detail = msgspec.json.encode(line.detail).decode()
        row = [line.at.isoformat(), line.who, line.via, line.origin, line.action, line.target, detail]
        writer.writerow([cell(value) for value in row])
    return _file(out.getvalue(), "csv", "text/csv")


async def audit_ndjson(call: WebCall) -> Response:
    lines = await audit_lines(call, None, MOST_IN_A_FILE, call.query.which)
    text = b"".join(msgspec.json.encode(_shown(line)) + b"\n" for line in lines).decode()
    return _file(text, "ndjson", "application/x-ndjson")


def _shown(line: AuditLine) -> dict[str, Any]:
    found = msgspec.structs.asdict(line)
    del found["credential"]
    return found


def _file(text: str, kind: str, media: str) -> Response:
    headers = {
        "content-type": f"{media}; charset=utf-8",
        "content-disposition": f'attachment; filename="audit.{kind}"',
    }
    return Response(text, 200, headers)


ROUTES: tuple[WebRoute, ...] = (
    WebRoute("GET", "/audit", "admin", audit_page, "Audit", query=AuditPageQuery, is_page=True,
             applies=EVERY_NARROWING),
    WebRoute("GET", "/audit.csv", "admin", audit_csv, "The audit as CSV", query=AuditPageQuery,
             is_page=True, applies=EVERY_NARROWING),
    WebRoute("GET", "/audit.ndjson", "admin", audit_ndjson, "The audit as JSON lines",
             query=AuditPageQuery, is_page=True, applies=EVERY_NARROWING),
)  # fmt: skip

"""Limits with their use and a preview of changes, breakers, and unique keys; and tenants."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.responses import Response

from winch.core.errors import ConfigError
from winch.core.values.bounds import is_int
from winch.engine.tasks.gates import limit_text
from winch.storage.gate_records import LimitInfo
from winch.web.api.limits import (
    breaker_out,
    change_limit,
    free_key,
    limits_of,
    open_breaker,
    tenants_of,
    trip_breaker,
)
from winch.web.draw.pieces import Tile
from winch.web.pages.base import go, link, one, page
from winch.web.pages.show import jobs, span
from winch.web.pages.sure import ask, is_sure
from winch.web.problems import Problem
from winch.web.routes import WebCall, WebRoute
from winch.web.schemas.operate import LimitChangeOut, TenantOut

MOST_KEYS = 50
ACTIONS = ("preview", "set", "reset", "trip", "untrip", "release")


class LimitsQuery(msgspec.Struct, frozen=True, kw_only=True):
    key: str | None = None
    edit: str = ""
    did: str = ""


async def limits_page(
    call: WebCall, change: LimitChangeOut | None = None, value: str = "", error: str = ""
) -> Response:
    key, edit = (None, "") if call.query is None else (call.query.key, call.query.edit)
    found = [info for info in await limits_of(call) if not info.name.startswith("tenant:")]
    rows = [_row(info) for info in found]
    rows.sort(key=lambda row: (-row["info"].waiting, -row["share"], row["info"].name))
    breakers = [breaker_out(one_) for one_ in await call.site.app.limits.abreakers()]
    keys = None
    if key is not None:
        keys = await call.site.app.jobs.aunique_keys(prefix=key, limit=MOST_KEYS)
    return await page(
        call,
        "limits.html",
        422 if error else 200,
        title="Limits",
        rows=rows,
        breakers=breakers,
        waiters=waiters,
        keys=keys,
        key=key or "",
        most_keys=MOST_KEYS,
        edit=edit or ("" if change is None else change.name),
        change=change,
        value=value,
        error=error,
        sentence=_sentence(rows, len([one_ for one_ in breakers if one_.state == "tripped"])),
    )


def _row(info: LimitInfo) -> dict[str, Any]:
    n = info.spec.n if info.spec is not None and not info.spec.per else 0
    share = min(info.used / n, 1.0) if n else 0.0
    return {
        "info": info,
        "allowed": limit_text(info.spec),
        "n": n,
        "share": share,
        "kind": info.name.partition(":")[0],
        "owner": info.name.partition(":")[2],
        "is_full": bool(n) and info.used >= n,
        "waiters": waiters(info.name),
    }


def waiters(gate: str) -> str:
    """The search for the jobs that wait at a gate."""
    return f"state:blocked {shlex.quote('gate:' + gate)}"


def _sentence(rows: Sequence[dict[str, Any]], tripped: int) -> str:
    waiting = sum(row["info"].waiting for row in rows)
    full = [row["info"].name.replace(":", " ", 1) for row in rows if row["is_full"]]
    parts = []
    if full:
        parts.append(
            f"{', '.join(full[:2])}{f' and {len(full) - 2} more' if len(full) > 2 else ''} full"
        )
    if waiting:
        parts.append(f"{jobs(waiting)} {'waits' if waiting == 1 else 'wait'}")
    if tripped:
        parts.append(f"{tripped} {'breaker has' if tripped == 1 else 'breakers have'} tripped")
    return ", ".join(parts) or ("nothing waits" if rows else "")


async def act(call: WebCall) -> Response:
    action, name = one(call.body, "action"), one(call.body, "name")
    if action not in ACTIONS or name is None:
        raise Problem("invalid", f"action must be one of {', '.join(ACTIONS)}, and a name is needed")
    back = "/tenants" if name.startswith("tenant:") else "/limits"
    call.note(name, action=action)
    match action:
        case "preview" | "set":
            text = one(call.body, "value") or ""
            try:
                change = await change_limit(
                    call, name, int(text) if is_int(text) else text, dry_run=action == "preview"
                )
            except ConfigError as error:
                call.is_preview = True
                return await limits_page(call, value=text, error=str(error))
            if action == "set":
                return go(call, back, did="limit-set")
            call.is_preview = True
            return await limits_page(call, change, text)
        case "reset":
            await change_limit(call, name, None, dry_run=False)
            return go(call, back, did="limit-reset")
        case "trip":
            await trip_breaker(call, name, one(call.body, "hold") or "", one(call.body, "reason"))
            return go(call, "/limits", did="tripped")
        case "untrip":
            await open_breaker(call, name)
            return go(call, "/limits", did="untripped")
        case _:
            return await _release(call, name)


async def _release(call: WebCall, key: str) -> Response:
    if not is_sure(call):
        held = await call.site.app.jobs.aunique_keys(prefix=key, limit=1)
        holder = next((one_.job for one_ in held if one_.key == key), None)
        if holder is None:
            raise Problem("not-found", f"no live job holds the unique key {key!r}")
        return await ask(
            call,
            title=f"Release the key {key}?",
            text=f"Job {holder} holds it and goes on without it. From then on another job with this key "
            "can be enqueued, and both run.",
            verb="Release 1 key",
            back=link(call.request, "/limits", key=key),
        )
    await free_key(call, key)
    return go(call, "/limits", did="released")


# -- tenants -----------------------------------------------------------------------------------------


async def tenants_page(call: WebCall) -> Response:
    found = await tenants_of(call)
    busiest = max((one_.ready for one_ in found), default=0)
    return await page(
        call,
        "tenants.html",
        title="Tenants",
        rows=found[:500],
        busiest=busiest,
        most_spent=max((one_.spent_seconds for one_ in found), default=0.0),
        tiles=_tiles(found),
        sentence=_tenant_sentence(found),
    )


def _tenant_sentence(found: Sequence[TenantOut]) -> str:
    waiting = [one_ for one_ in found if one_.oldest_ready_at is not None]
    if not waiting:
        return "no tenant waits" if found else ""
    first = waiting[0]
    assert first.oldest_ready_at is not None  # noqa: S101  # filtered above
    waits = span(datetime.now(UTC) - first.oldest_ready_at)
    text = f"{first.tenant} waits longest: {waits}, with {jobs(first.ready)} ready"
    if not first.running and not first.started:
        text += " and none running"
    return text


def _tiles(found: Sequence[TenantOut]) -> list[Tile]:
    started = sum(one_.started for one_ in found)
    waited = sum((one_.wait_seconds or 0.0) * one_.started for one_ in found)
    return [
        Tile("Tenants", f"{len(found):,}", note="with jobs or a weight"),
        Tile("Ready", f"{sum(one_.ready for one_ in found):,}", note="jobs of tenants"),
        Tile("Running", f"{sum(one_.running for one_ in found):,}", note="among the newest 1,000"),
        Tile("Started", f"{started:,}", note="attempts in the last hour"),
        Tile("Mean wait", span(waited / started if started else None), note="in the last hour"),
        Tile("Spent", span(sum(one_.spent_seconds for one_ in found)), note="run in the last hour"),
    ]


ROUTES: tuple[WebRoute, ...] = (
    WebRoute("GET", "/limits", "read", limits_page, "Limits", query=LimitsQuery, is_page=True),
    WebRoute("POST", "/limits", "operate", act, "Change a limit, a breaker or a key", audit="limits",
             is_page=True),
    WebRoute("GET", "/tenants", "read", tenants_page, "Tenants", is_page=True),
)  # fmt: skip

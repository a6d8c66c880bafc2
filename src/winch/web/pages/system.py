"""Operations, settings and tokens, the way in and out, and the files pages are made of."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from urllib.parse import quote
from zoneinfo import available_timezones

import msgspec
from starlette.responses import Response

from winch.core.values.duration import parse_duration
from winch.core.values.redact import mask
from winch.engine.observe.alerts import KeptAlert, kept_alerts
from winch.web.access import EVERY_NARROWING, ROLES, Access
from winch.web.api.jobs import operation_of
from winch.web.api.webhooks import endpoint_out
from winch.web.pages import show
from winch.web.pages.assets import licences, static_file
from winch.web.pages.base import (
    DENSITIES,
    DENSITY_COOKIE,
    THEME_COOKIE,
    THEMES,
    ZONE_COOKIE,
    go,
    link,
    one,
    page,
)
from winch.web.pages.jobs import (
    COLUMNS,
    COLUMNS_COOKIE,
    columns_in,
    columns_of,
)
from winch.web.pages.queues import shown_value
from winch.web.problems import PROBLEMS, Problem
from winch.web.routes import WebCall, WebRoute
from winch.web.schemas.webhooks import EndpointOut
from winch.web.sessions import COOKIES

MAX_NEXT = 2000
YEAR = 365 * 86_400
SECRET_SETTINGS = frozenset({"alert_secret", "alert_webhook", "keys"})


class LoginQuery(msgspec.Struct, frozen=True, kw_only=True):
    next: str = ""
    did: str = ""


class PreferencesQuery(msgspec.Struct, frozen=True, kw_only=True):
    theme: str = ""
    zone: str = ""
    density: str = ""
    next: str = ""


class Rule(NamedTuple):
    """A rule of alerts in words, `before` and `after` its limit; `firing` is None for a caller who may
    not read all."""

    name: str
    before: str
    limit: str
    after: str
    firing: list[str] | None


# The name of each rule, and when it fires; {} is its limit.
RULES = {
    "depth": ("Depth", "A queue has more than {} ready jobs"),
    "oldest": ("Latency", "The oldest ready job of a queue waits longer than {}"),
    "failures": ("Failures", "At least {} of a task's attempts fail within five minutes"),
    "dead": ("Deaths", "At least {} jobs of a task die within five minutes"),
    "workers": ("Workers", "A queue with ready jobs has no worker for {}"),
    "schedules": ("Schedules", "A schedule is late by more than {}"),
    "dead_letters": ("Dead letters", "A task has {} dead jobs or more"),
    "snapshot": ("Transactions", "A transaction of PostgreSQL is older than {}"),
}


class AnyQuery(msgspec.Struct, frozen=True, kw_only=True):
    did: str = ""


async def operations_page(call: WebCall) -> Response:
    found = await call.site.operations.list(call.access, limit=50)
    return await page(call, "operations.html", title="Operations", operations=found)


async def operation_page(call: WebCall) -> Response:
    found = await operation_of(call)
    return await page(call, "operation.html", title=f"Operation: {found.action}", operation=found)


async def settings_page(call: WebCall, made: str | None = None) -> Response:
    app, driver = call.site.app, call.site.driver
    loaded = app.loaded
    rows = []
    for name in type(loaded.settings).__struct_fields__:
        value = getattr(loaded.settings, name)
        shown = (
            "***"
            if name in SECRET_SETTINGS and value is not None
            else mask({name: shown_value(value)})[name]
        )
        rows.append((name, "" if value is None else shown, loaded.origins.get(name, "default")))
    tokens = []
    if call.access.may("admin"):
        found = await call.site.client.arun(call.site.tokens.list())
        tokens = [token for token in found if call.access.covers(token.access)]
    return await page(
        call,
        "settings.html",
        title="Settings",
        zones=sorted(available_timezones()),
        columns=columns_of(call),
        all_columns=COLUMNS,
        rules=await _rules(call),
        webhooks=await _endpoints(call),
        schema=await _schema(call),
        rows=rows,
        tokens=tokens,
        roles=ROLES,
        made=made,
        capabilities=msgspec.structs.asdict(driver.capabilities),
        licences=licences(),
    )


async def _rules(call: WebCall) -> list[Rule]:
    rules = msgspec.structs.asdict(call.site.app.settings.alerts)
    kept: list[KeptAlert] = []
    if not call.access.is_narrow:
        kept = await call.site.client.arun(kept_alerts(call.site.driver))
    found = []
    for rule, (name, words) in RULES.items():
        value = rules[rule]
        limit = (
            "" if value is None else _limit(value * 100) + " %" if rule == "failures" else _limit(value)
        )
        firing = [one_.alert.text for one_ in kept if one_.alert.rule == rule]
        before, _, after = words.partition("{}")
        found.append(Rule(name, before, limit, after, None if call.access.is_narrow else firing[:3]))
    return found


def _limit(value: float | timedelta) -> str:
    return show.span(value) if isinstance(value, timedelta) else f"{value:,.0f}"


async def _endpoints(call: WebCall) -> list[EndpointOut] | None:
    """The webhooks; only for callers who may see them all."""
    if not call.access.may("admin") or call.access.is_narrow:
        return None
    return [endpoint_out(one_) for one_ in await call.site.app.webhooks.alist()]


async def _schema(call: WebCall) -> str:
    status = await asyncio.to_thread(call.site.driver.check_schema)
    return f"schema {status.current} of {status.newest}" if status.current is not None else ""


async def settings(call: WebCall) -> Response:
    return await settings_page(call)


async def make_token(call: WebCall) -> Response:
    form, own = call.body, call.access
    wanted = Access(
        one(form, "name") or "",
        roles=tuple(role for role in form.get("role", []) if role),
        queues=_names(form, "queues") or own.queues,
        tenant=one(form, "tenant") or own.tenant,
        tasks=_names(form, "tasks") or own.tasks,
    )
    if not own.covers(wanted):
        raise Problem(
            "forbidden", f"{own.name} makes no token for another queue, task or tenant than its own"
        )
    text, token = await call.site.client.arun(
        call.site.tokens.create(
            wanted.name,
            wanted.roles,
            queues=wanted.queues,
            tenant=wanted.tenant,
            tasks=wanted.tasks,
            expires=_lifetime(call),
            until=own.expires_at,
        )
    )
    call.note(
        token.id,
        name=token.name,
        roles=list(token.roles),
        queues=token.queues and list(token.queues),
        tenant=token.tenant,
        tasks=token.tasks and list(token.tasks),
    )
    return await settings_page(call, text)


def _names(form: dict[str, list[str]], field: str) -> tuple[str, ...] | None:
    names = [name.strip() for name in (one(form, field) or "").split(",")]
    return tuple(name for name in names if name) or None


def _lifetime(call: WebCall) -> timedelta | None:
    """How long the new token lives; the form may not ask for longer than the caller's own token."""
    text, ends = one(call.body, "expires"), call.access.expires_at
    if text is None:
        return None
    wanted = parse_duration(text, "expires")
    if ends is not None and datetime.now(UTC) + wanted > ends:
        raise Problem("forbidden", f"the new token would outlive {call.access.name}, which makes it")
    return wanted


async def revoke_token(call: WebCall) -> Response:
    identity = call.path("id")
    token = await call.site.client.arun(call.site.tokens.get(identity))
    if token is None or not call.access.covers(token.access):
        raise Problem("not-found", "no such token")
    await call.site.client.arun(call.site.tokens.revoke(identity))
    call.note(identity)
    return go(call, "/settings", did="revoked")


# -- in and out --------------------------------------------------------------------------------------


async def login_page(call: WebCall) -> Response:
    return await page(call, "login.html", title="Log in", next=call.query.next, error="")


async def login(call: WebCall) -> Response:
    if call.site.config.auth != "tokens":
        return go(call, "/")
    text = one(call.body, "token") or ""
    target = one(call.body, "next") or ""
    try:
        value = await call.site.login(call.request, text)
    except Problem as problem:
        if problem.code != "unauthenticated":
            raise
        return await page(
            call, "login.html", 401, title="Log in", next=target, error="This token is not valid."
        )
    answer = Response(None, 303, {"location": own_path(target) or link(call.request, "/")})
    is_https = call.request.url.scheme == "https"
    answer.set_cookie(
        COOKIES[0] if is_https else COOKIES[1],
        value,
        httponly=True,
        samesite="strict",
        secure=is_https,
        path="/",
    )
    return answer


def own_path(target: str) -> str | None:
    """The path as a Location header, or None when a browser could leave this site by it.

    Browsers drop tabs and line ends from a URL and read a backslash as a slash: `/<tab>/evil.test` is
    another site.
    """
    is_path = target.startswith("/") and not target.startswith("//")
    if not is_path or "\\" in target or not target.isprintable() or len(target) > MAX_NEXT:
        return None
    return quote(target, safe="/?&=%:;,+!*'()@$~[]")


async def logout(call: WebCall) -> Response:
    await call.site.client.arun(call.site.sessions.end(call.request.cookies))
    answer = go(call, "/login", did="out")
    for name in COOKIES:
        answer.delete_cookie(name, path="/")
    return answer


async def preferences(call: WebCall) -> Response:
    """How the caller's browser shows pages, kept in its cookies: links do it, without a script."""
    query: PreferencesQuery = call.query
    answer = Response(None, 303, {"location": own_path(query.next) or link(call.request, "/")})
    root = call.request.scope.get("root_path", "") or "/"
    chosen = {}
    if query.theme in THEMES:
        chosen[THEME_COOKIE] = query.theme
    if query.zone:
        known = show.known_zone(query.zone)
        if known != query.zone:
            raise Problem(
                "invalid",
                f"no time zone {query.zone[:64]!r} is known here: use UTC or a name like Europe/Berlin",
            )
        chosen[ZONE_COOKIE] = known
    if query.density in DENSITIES:
        chosen[DENSITY_COOKIE] = query.density
    # A query names no field twice, so each column of the form is a field of its own.
    if wanted := [name for name in COLUMNS if f"show-{name}" in call.request.query_params]:
        chosen[COLUMNS_COOKIE] = ".".join(columns_in(".".join(wanted)))
    for name, value in chosen.items():
        answer.set_cookie(name, value, max_age=YEAR, samesite="strict", path=root)
    return answer


# -- help and files ----------------------------------------------------------------------------------


async def api_page(call: WebCall) -> Response:
    routes = [route for route in call.site.routes if not route.is_page]
    return await page(call, "api.html", title="HTTP API", routes=routes, problems=PROBLEMS)


async def static(call: WebCall) -> Response:
    found = static_file(call.path("name"))
    if found is None:
        raise Problem("not-found", "no such file")
    body, kind, tag = found
    is_tagged = call.request.query_params.get("v") == tag
    headers = {
        "etag": f'"{tag}"',
        "cache-control": "public, max-age=31536000, immutable" if is_tagged else "no-cache",
    }
    if call.request.headers.get("if-none-match") == f'"{tag}"':
        return Response(None, 304, headers)
    return Response(body, 200, {**headers, "content-type": f"{kind}; charset=utf-8"})


ROUTES: tuple[WebRoute, ...] = (
    WebRoute("GET", "/operations", "operate", operations_page, "Operations", is_page=True,
             applies=EVERY_NARROWING),
    WebRoute("GET", "/operations/{id}", "operate", operation_page, "One operation", is_page=True,
             applies=EVERY_NARROWING),
    WebRoute("GET", "/settings", "read", settings, "Settings", is_page=True, applies=EVERY_NARROWING),
    WebRoute("POST", "/settings/tokens", "admin", make_token, "New token", audit="create token",
             is_page=True, applies=EVERY_NARROWING),
    WebRoute("POST", "/settings/tokens/{id}", "admin", revoke_token, "Revoke", audit="revoke token",
             is_page=True, applies=EVERY_NARROWING),
    WebRoute("GET", "/api", "read", api_page, "The HTTP API", is_page=True, applies=EVERY_NARROWING),
    WebRoute("GET", "/preferences", "public", preferences, "How pages look", query=PreferencesQuery,
             is_page=True),
    WebRoute("GET", "/login", "public", login_page, "Log in", query=LoginQuery, is_page=True),
    WebRoute("POST", "/login", "public", login, "Log in", is_page=True),
    WebRoute("POST", "/logout", "public", logout, "Log out", is_page=True),
    WebRoute("GET", "/static/{name}", "public", static, "A file", is_page=True),
)  # fmt: skip

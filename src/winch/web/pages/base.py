"""What all pages share: the shell around them, forms, redirects, and errors as pages."""

from __future__ import annotations

import secrets
import shlex
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from winch.core.lifecycle import JobState, allowed
from winch.core.version import __version__
from winch.web.access import Right
from winch.web.draw.icons import icon, state_icon
from winch.web.pages import show
from winch.web.pages.assets import asset_tag
from winch.web.routes import WebCall
from winch.web.site import FORM_COOKIE

if TYPE_CHECKING:
    from winch.web.access import Access
    from winch.web.problems import Problem
    from winch.web.site import Site


class NavItem(NamedTuple):
    """A page in the navigation; `key` is the letter after `g`, `is_first` begins a group."""

    path: str
    name: str
    key: str
    right: Right
    icon: str
    is_first: bool = False


NAV: tuple[NavItem, ...] = (
    NavItem("/", "Overview", "o", "read", "overview"),
    NavItem("/jobs", "Jobs", "j", "read", "jobs"),
    NavItem("/queues", "Queues", "q", "read", "queues"),
    NavItem("/flows", "Flows", "f", "read", "flows"),
    NavItem("/schedules", "Schedules", "s", "read", "schedules"),
    NavItem("/dead", "Dead letters", "d", "read", "dead"),
    NavItem("/workers", "Workers", "w", "read", "workers", is_first=True),
    NavItem("/limits", "Limits", "l", "read", "limits"),
    NavItem("/tenants", "Tenants", "n", "read", "tenants"),
    NavItem("/operations", "Operations", "p", "operate", "operations", is_first=True),
    NavItem("/audit", "Audit", "a", "admin", "audit"),
    NavItem("/settings", "Settings", "e", "read", "settings"),
)
THEMES = {"system": "As the system", "light": "Light", "dark": "Dark", "contrast": "High contrast"}
THEME_COOKIE, ZONE_COOKIE, DENSITY_COOKIE = "winch-theme", "winch-zone", "winch-density"
DENSITIES = ("compact", "roomy")
# The message after an action. The address holds its code, so that no link can inject a text.
DID = {
    "cancelled": "The job is cancelled; a running job is asked to stop.",
    "retried": "The job is ready to run now.",
    "replayed": "The job is ready to run again.",
    "deleted": "The job is deleted.",
    "paused": "The queue is paused: running jobs continue, and no new ones are claimed.",
    "resumed": "The queue is resumed.",
    "drained": "The queue takes no new jobs until it is resumed; workers empty it.",
    "purged": "The jobs that waited in the queue are gone.",
    "moved": "The jobs are in this queue now.",
    "group-open": "The group is open again.",
    "group-ignored": "The group is ignored: its jobs stay, and it is not listed with the open ones.",
    "group-resolved": "The group is resolved. It comes back when another job dies of this error.",
    "group-noted": "The note is kept.",
    "flow-rerun": "The node and all that come after it run again.",
    "worker-sent": "The command is sent. The worker carries it out with its next heartbeat.",
    "worker-quiet": "The worker is quiet: it claims nothing more, and its jobs go on.",
    "worker-resume": "The worker claims again.",
    "worker-stop": "The worker stops.",
    "worker-drain": "The workers end when their last jobs have ended.",
    "worker-configure": "New processes with these settings start; running jobs end in the old ones.",
    "limit-set": "The limit is set for the whole fleet.",
    "limit-reset": "The value in the code applies again.",
    "tripped": "The jobs of the scope are held.",
    "untripped": "The scope is open. Its jobs start slowly: one, two, four, a second apart.",
    "released": "The key is free.",
    "backfilled": "The windows that had no job have one now.",
    "schedule-paused": "The schedule is paused: it enqueues no job until it is resumed.",
    "schedule-resumed": "The schedule is resumed from its next time.",
    "skipped": "The next time is skipped.",
    "flow-cancel": "Members that were not final are cancelled or asked to stop.",
    "flow-retry": "Failed members run again, in their order.",
    "signalled": "The signal is stored for the job that waits for it.",
    "configured": "The settings of the queue are changed; they apply within two seconds.",
    "schedule-added": "The schedule is added.",
    "schedule-changed": "The schedule is changed.",
    "schedule-removed": "The schedule is removed; its jobs stay.",
    "revoked": "The token is revoked.",
    "enqueued": "The job is enqueued.",
    "view-saved": "The view is saved.",
    "view-removed": "The view is removed.",
    "look-kept": "Kept in this browser.",
    "out": "You are logged out.",
}


@cache
def environment() -> jinja2.Environment:
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("winch.web", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters.update(show.FILTERS)
    env.globals.update(
        STATES=tuple(JobState), THEMES=THEMES, allowed=allowed, icon=icon, state_icon=state_icon
    )
    return env


def link(request: Request, path: str, **query: Any) -> str:
    """An address within the site, wherever it is mounted."""
    root = request.scope.get("root_path", "")
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{root}{path}" + (f"?{urlencode(given)}" if given else "")


def curl(call: WebCall, path: str, *words: str, **query: Any) -> str:
    """A request to the API as a command that can be pasted into a shell. Where the server asks for a
    token, the command takes the one of the environment."""
    url = call.request.url
    address = f"{url.scheme}://{url.netloc}{link(call.request, path, **query)}"
    text = shlex.join(["curl", *words, address])
    asks = call.site.config.auth == "tokens"
    return f'{text} -H "Authorization: Bearer $WINCH_TOKEN"' if asks else text


STORES = {
    "sqlite": "SQLite",
    "postgres": "PostgreSQL",
    "redis": "Redis",
    "valkey": "Redis",
    "memory": "Memory",
}


def store_words(address: str) -> str:
    """A store in a few words: its kind, and the part of its address that tells it from others."""
    scheme, _, rest = address.partition("://")
    kind = next((word for name, word in STORES.items() if scheme.startswith(name)), scheme)
    place = rest.partition("?")[0].rpartition("@")[2].rstrip("/")
    if scheme == "sqlite":
        place = place.rpartition("/")[2]
    return f"{kind} · {place}" if place else kind


def part(text: str) -> str:
    """A name as a part of a path."""
    return quote(text, safe="")


async def page(call: WebCall, template: str, status: int = 200, **context: Any) -> Response:
    """A page in its shell."""
    request, site = call.request, call.site
    cookie = request.cookies.get(FORM_COOKIE) or secrets.token_urlsafe(24)
    form_token = await site.form_token(cookie)
    shared = {"form_token": form_token, "nav_counts": await _nav_counts(call)}
    body = _render(site, request, template, call, {**shared, **context})
    answer = HTMLResponse(body, status)
    if request.cookies.get(FORM_COOKIE) != cookie:
        answer.set_cookie(
            FORM_COOKIE,
            cookie,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
            path=request.scope.get("root_path", "") or "/",
        )
    return answer


def _render(
    site: Site, request: Request, template: str, call: WebCall | None, context: dict[str, Any]
) -> str:
    theme = request.cookies.get(THEME_COOKIE, "system")
    path = request.url.path.removeprefix(request.scope.get("root_path", "")) or "/"
    access = call.access if call is not None else None
    query = request.url.query
    return (
        environment()
        .get_template(template)
        .render(
            url=lambda where, **query: link(request, where, **query),
            asset=lambda name: link(request, f"/static/{name}", v=asset_tag(name)),
            part=part,
            nav=[] if access is None else _nav(site, access),
            path=path,
            here=request.url.path + (f"?{query}" if query else ""),
            access=access,
            may=(lambda right: access is not None and access.may(right) and not site.config.is_read_only)
            if access is not None
            else (lambda _: False),
            is_read_only=site.config.is_read_only,
            has_session=site.config.auth == "tokens",
            environment_name=site.config.environment,
            instance=site.config.name,
            instances=site.config.instances,
            version=__version__,
            zone=show.ZONE.get(),
            zone_name=datetime.now(show.zone()).strftime("%Z"),
            store=(store := site.driver.describe() if call is not None else ""),
            store_words=store_words(store),
            theme=theme if theme in THEMES else "system",
            **{"density": density_of(request), **context},
            did=DID.get(request.query_params.get("did", ""), ""),
            now=datetime.now(UTC),
        )
    )


def density_of(request: Request) -> str:
    """How tall the rows of lists are, as this browser remembers it."""
    kept = request.cookies.get(DENSITY_COOKIE, "")
    return kept if kept in DENSITIES else DENSITIES[0]


def _nav(site: Site, access: Access) -> list[NavItem]:
    """The pages that this caller may open."""
    routes = {route.path: route for route in site.routes if route.is_page and not route.changes}
    return [item for item in NAV if access.may(item.right) and not routes[item.path].refused(access)]


async def _nav_counts(call: WebCall) -> dict[str, str]:
    """How many there are behind a page: for callers who see all of them. Read seldom, shared by all."""
    if not call.site.is_open or not call.access.may("read") or call.access.is_narrow:
        return {}
    counts = await call.site.shell_counts()
    return {path: f"{count:,}" for path, count in counts.items() if count}


def error_page(site: Site, request: Request, problem: Problem, request_id: str) -> Response:
    """A problem as a page; without the shell, which needs to know the caller."""
    body = _render(
        site,
        request,
        "problem.html",
        None,
        {"problem": problem, "request_id": request_id, "form_token": ""},
    )
    return HTMLResponse(body, problem.status, problem.headers)


def go(call: WebCall, path: str, **query: Any) -> Response:
    """After a change: to where its result is to be seen."""
    return RedirectResponse(link(call.request, path, **query), 303)


def wants_page(request: Request) -> bool:
    """Whether an error should be a page: a browser asks, and not for the API."""
    root = request.scope.get("root_path", "")
    path = request.url.path.removeprefix(root)
    if path.startswith(("/api/", "/livez", "/readyz", "/startupz", "/healthz", "/metrics", "/static/")):
        return False
    return "text/html" in request.headers.get("accept", "")


def one(form: dict[str, list[str]], name: str) -> str | None:
    """A field of a form; None when empty."""
    value = form.get(name, [""])[0].strip()
    return value or None

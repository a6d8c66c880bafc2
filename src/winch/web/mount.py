"""The site as an ASGI application: to be served by `winch serve`, or mounted in another one."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Scope

from winch.engine.base.log import log
from winch.storage.fast import is_fast
from winch.web.api import (
    dead,
    flows,
    jobs,
    limits,
    live,
    queues,
    schedules,
    sessions,
    webhooks,
    work,
    workers,
)
from winch.web.fast.direct import Direct
from winch.web.pages import audit as audit_pages
from winch.web.pages import dead as dead_pages
from winch.web.pages import enqueue as enqueue_pages
from winch.web.pages import flows as flow_pages
from winch.web.pages import job as job_page
from winch.web.pages import jobs as job_pages
from winch.web.pages import limits as limit_pages
from winch.web.pages import overview, system
from winch.web.pages import queues as queue_pages
from winch.web.pages import schedules as schedule_pages
from winch.web.pages import workers as worker_pages
from winch.web.pages.base import error_page, link, wants_page
from winch.web.problems import Problem
from winch.web.routes import WebRoute
from winch.web.security_headers import SecurityHeaders
from winch.web.site import Authenticate, Site, SiteConfig

if TYPE_CHECKING:
    from winch.app import App

ROUTES: tuple[WebRoute, ...] = (
    *jobs.ROUTES,
    *work.ROUTES,
    *sessions.ROUTES,
    *queues.ROUTES,
    *workers.ROUTES,
    *dead.ROUTES,
    *limits.ROUTES,
    *schedules.ROUTES,
    *webhooks.ROUTES,
    *flows.ROUTES,
    *live.ROUTES,
    *overview.ROUTES,
    *enqueue_pages.ROUTES,
    *job_pages.ROUTES,
    *job_page.ROUTES,
    *flow_pages.ROUTES,
    *queue_pages.ROUTES,
    *dead_pages.ROUTES,
    *schedule_pages.ROUTES,
    *worker_pages.ROUTES,
    *limit_pages.ROUTES,
    *audit_pages.ROUTES,
    *system.ROUTES,
)


def asgi(app: App, *, authenticate: Authenticate | None = None, read_only: bool = False) -> ASGIApp:
    """The dashboard and the HTTP API for mounting: `host.mount("/jobs", winch.web.asgi(app, …))`.

    `authenticate(request)` returns an `Access`, or None for no access. Without it everything but the
    health probes is refused: nothing is open by mistake.
    """
    auth = "closed" if authenticate is None else "host"
    return build(app, SiteConfig(auth=auth, is_read_only=read_only, authenticate=authenticate))


def build(app: App, config: SiteConfig, *, is_full: Callable[[str], bool] | None = None) -> ASGIApp:
    """The site with its outermost layer. `is_full` returns whether a peer's requests must wait."""
    return build_site(app, config, is_full=is_full)[1]


def build_site(
    app: App, config: SiteConfig, *, is_full: Callable[[str], bool] | None = None
) -> tuple[Site, ASGIApp]:
    """The site, and its application as `build` returns it."""
    site = Site(app, config, ROUTES)
    inner = Starlette(
        routes=_paths(site),
        exception_handlers={
            Problem: partial(_problem, site),
            HTTPException: partial(_http, site),
            Exception: partial(_unexpected, site),
        },
        lifespan=lambda _: _lifespan(site),
    )
    inner.state.site = site
    outermost = SecurityHeaders(
        Direct(
            inner,
            site,
            ROUTES if is_fast() else (),
            problem=partial(_problem, site),
            unexpected=partial(_unexpected, site),
        ),
        hosts=config.hosts,
        max_body=config.max_body,
        proxies=config.proxies,
        is_full=is_full,
    )
    return site, outermost


class PathRoute(Route):
    """One method of one path.

    The name of a queue, a limit or a schedule may hold a slash. So a path may match two routes: the
    purge of queue `a`, and queue `a/purge`. The longer route takes it, whatever the method is, unless
    the caller wrote the slash of the name as `%2F`.
    """

    longer: Sequence[PathRoute] = ()

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child = super().matches(scope)
        if match is not Match.NONE and self._belongs_to_longer(scope):
            return Match.NONE, {}
        return match, child

    def _belongs_to_longer(self, scope: Scope) -> bool:
        if not self.longer or b"%2f" in scope.get("raw_path", b"").lower():
            return False
        return any(Route.matches(route, scope)[0] is not Match.NONE for route in self.longer)


def _paths(site: Site) -> list[PathRoute]:
    found = [
        PathRoute(
            route.path.replace("{queue}", "{queue:path}").replace("s/{name}", "s/{name:path}"),
            site.endpoint(route),
            methods=[route.method],
        )
        for route in site.routes
    ]
    for route in found:
        if ":path}" in route.path:
            route.longer = [other for other in found if other.path.startswith(f"{route.path}/")]
    return found


def _allowed(routes: Iterable[BaseRoute], scope: Scope) -> str:
    """What `Allow` says of a path: the methods of all its routes."""
    methods: set[str] = set()
    for route in routes:
        if isinstance(route, PathRoute) and route.matches(scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return ", ".join(sorted(methods))


@asynccontextmanager
async def _lifespan(site: Site) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await site.close()


async def _problem(site: Site, request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)  # noqa: S101  # registered for nothing else
    return answer(site, request, error)


async def _http(site: Site, request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 500)
    headers = dict(getattr(error, "headers", None) or {})
    if status == 405:
        headers["Allow"] = _allowed(request.app.routes, request.scope)
        problem = Problem("method-not-allowed", "another method may do", headers=headers)
    else:
        problem = Problem("not-found", "there is nothing at this address", headers=headers)
    return answer(site, request, problem)


async def _unexpected(site: Site, request: Request, error: Exception) -> Response:
    request_id = request.scope["state"]["request_id"]
    # The key of a worker's session is in its path, and no text for a log.
    path = re.sub(r"(/v1/sessions/)[^/]+", r"\1…", request.url.path)
    log.error("request %s %s %s failed", request_id, request.method, path, exc_info=error)
    problem = Problem("server-error", f"the server failed; its log has request {request_id}")
    return answer(site, request, problem)


def answer(site: Site, request: Request, problem: Problem) -> Response:
    """A problem as an answer: JSON for programs, a page for browsers, the login without access."""
    request_id = request.scope["state"]["request_id"]
    if not wants_page(request):
        return problem.response(request.url.path, request_id)
    if problem.code == "unauthenticated" and site.config.auth == "tokens" and request.method == "GET":
        wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(link(request, "/login", next=wanted), 303)
    return error_page(site, request, problem, request_id)

"""A fast path of dispatch: the routes that clients and workers use most are found in a table.

What it saves: Starlette compares the path with a hundred patterns and wraps each answer three times,
which is a seventh of the server's CPU time for an enqueue. Every other request, and each one in a
mounted site, goes to Starlette. `WINCH_FAST=off` switches it off.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from winch.web.problems import Problem
from winch.web.routes import PREFIX, WebRoute

if TYPE_CHECKING:
    from winch.web.site import Site

# `/jobs`, `/sessions`, and what stands below one of them: `/jobs/{id}/complete`.
HEADS = (f"{PREFIX}/jobs", f"{PREFIX}/sessions")

Serve = Callable[[Request], Awaitable[Response]]
Answer = Callable[[Request, Exception], Awaitable[Response]]


class Direct:
    """The site's application with a table of endpoints before it."""

    def __init__(
        self,
        inner: ASGIApp,
        site: Site,
        routes: Sequence[WebRoute],
        *,
        problem: Answer,
        unexpected: Answer,
    ) -> None:
        self._inner = inner
        self._problem = problem
        self._unexpected = unexpected
        self._whole: dict[tuple[str, str], Serve] = {}
        self._below: dict[tuple[str, str, str], tuple[str, Serve]] = {}
        for route in routes:
            if route.is_page or not route.changes:
                continue
            path = route.path
            if "{" not in path:
                self._whole[route.method, path] = site.endpoint(route)
                continue
            head, _, rest = path.partition("/{")
            name, _, tail = rest.partition("}/")
            if head in HEADS and tail and "{" not in tail and "/" not in tail:
                self._below[route.method, head, tail] = name, site.endpoint(route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serve = self._found(scope) if scope["type"] == "http" and not scope["root_path"] else None
        if serve is None:
            await self._inner(scope, receive, send)
            return
        request = Request(scope, receive, send)
        try:
            response = await serve(request)
        except Problem as problem:
            response = await self._problem(request, problem)
        except Exception as error:
            await (await self._unexpected(request, error))(scope, receive, send)
            raise
        await response(scope, receive, send)

    def _found(self, scope: Scope) -> Serve | None:
        method, path = scope["method"], scope["path"]
        whole = self._whole.get((method, path))
        if whole is not None:
            return whole
        parts = path.rsplit("/", 2)
        if len(parts) == 3 and parts[1]:
            below = self._below.get((method, parts[0], parts[2]))
            if below is not None:
                name, serve = below
                scope["path_params"] = {name: parts[1]}
                return serve
        return None

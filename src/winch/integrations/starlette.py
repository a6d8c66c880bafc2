"""Winch in a Starlette application: its life, the answer 202, the status of a job, the dashboard.

    from starlette.applications import Starlette
    from winch.integrations import starlette as jobs_web

    site = Starlette(
        routes=[jobs_web.job_route(jobs, may_read=is_own)],
        lifespan=jobs_web.lifespan(jobs),
    )
    jobs_web.mount_dashboard(site, "/ops", jobs, authenticate=access_of)

`winch.integrations.fastapi` adds what FastAPI has beyond Starlette.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import NoMatchFound, Route

from winch import App, ConfigError, Job, JobNotFound
from winch.integrations.status import RETRY_AFTER, JobStatus, accepted_body, astatus_of
from winch.types import JobRecord
from winch.web import Access, asgi

Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]
MayRead = Callable[[Request, JobRecord], bool | Awaitable[bool]]
Authenticate = Callable[[Request], Access | Awaitable[Access | None] | None]
JOB_ROUTE = "winch_job"
"""The name of the route that shows the status of a job."""


def lifespan(
    jobs: App,
    *,
    queues: Sequence[str] | Mapping[str, int] | None = None,
    concurrency: int | None = None,
    inner: Lifespan | None = None,
) -> Callable[[Any], AbstractAsyncContextManager[Any]]:
    """A lifespan that checks the store at the start and closes its connections at the end.

        api = FastAPI(lifespan=lifespan(jobs, queues=["mail"] if DEBUG else None))

    With `queues`, the web process also runs a worker for them, in its own event loop. This is for
    development and small sites. `inner` is the lifespan of the application itself; it runs inside.
    """

    @asynccontextmanager
    async def live(site: Any) -> AsyncIterator[Mapping[str, Any] | None]:
        site.state.winch = jobs
        await asyncio.to_thread(jobs.ready)
        try:
            async with AsyncExitStack() as stack:
                if queues is not None:
                    worker = jobs.worker(queues=queues, concurrency=concurrency)
                    await stack.enter_async_context(worker)
                state = None if inner is None else await stack.enter_async_context(inner(site))
                yield state
        finally:
            await jobs.aclose()

    return live


def jobs_of(request: HTTPConnection) -> App:
    """The Winch app that `lifespan` has set for this application."""
    jobs = getattr(request.app.state, "winch", None)
    if not isinstance(jobs, App):
        raise ConfigError("this application has no Winch app: give it lifespan=lifespan(jobs)")
    return jobs


def accepted(
    request: Request, job: Job[Any], more: Mapping[str, object] | None = None, *, route: str = JOB_ROUTE
) -> JSONResponse:
    """The answer 202 for a stored job, with its status address as `Location`.

        return accepted(request, await render.aenqueue(7))

    The body has the job's id and location, and what `more` adds.
    """
    location = job_path(request, job.id, route)
    headers = {"location": location, "retry-after": RETRY_AFTER}
    return JSONResponse(accepted_body(job, location, more), 202, headers)


def job_path(request: Request, job_id: str, route: str = JOB_ROUTE) -> str:
    """The path of the status of a job, below the root path of the application."""
    try:
        return request.url_for(route, job_id=job_id).path
    except NoMatchFound as error:
        raise ConfigError(
            f"no route is named {route!r}: add job_route(jobs, may_read=…) to the routes, or the "
            "router of winch.integrations.fastapi"
        ) from error


async def read_status(
    jobs: App, request: Request, job_id: str, may_read: MayRead, *, with_result: bool
) -> JobStatus | None:
    """The status of a job; None for a job that is not there or that the caller must not see."""
    try:
        job = await jobs.jobs.aget(job_id)
    except JobNotFound:
        return None
    answer = may_read(request, job.record)
    if not (await answer if inspect.isawaitable(answer) else answer):
        return None
    return await astatus_of(job, with_result=with_result)


def job_route(
    jobs: App, path: str = "/jobs/{job_id}", *, may_read: MayRead, with_result: bool = False
) -> Route:
    """A route that shows the status of a job.

        routes = [job_route(jobs, may_read=lambda request, job: job.tenant == request.user.name)]

    `may_read(request, record)` decides whether the caller may see the job; if not, the answer is 404,
    as for a job that does not exist. `with_result` shows the result of a completed job.
    """

    async def show(request: Request) -> Response:
        found = await read_status(
            jobs, request, request.path_params["job_id"], may_read, with_result=with_result
        )
        if found is None:
            return JSONResponse({"detail": "no such job"}, 404)
        headers = {"content-type": "application/json", "cache-control": "no-store"}
        if not found.is_final:
            headers["retry-after"] = RETRY_AFTER
        return Response(msgspec.json.encode(found), headers=headers)

    return Route(path, show, name=JOB_ROUTE)


def mount_dashboard(
    site: Starlette,
    path: str,
    jobs: App,
    *,
    authenticate: Authenticate,
    read_only: bool = False,
) -> None:
    """Mount the dashboard and the HTTP API below `path`, behind the login of the application.

        mount_dashboard(api, "/ops", jobs, authenticate=access_of)

    `authenticate(request)` returns a `winch.web.Access`, or None for no access. It runs inside the
    middleware of the application, so `request.user` and `request.session` are there.
    """
    site.mount(path, asgi(jobs, authenticate=authenticate, read_only=read_only), name="winch")


__all__ = [
    "JOB_ROUTE",
    "Authenticate",
    "JobStatus",
    "Lifespan",
    "MayRead",
    "accepted",
    "job_path",
    "job_route",
    "jobs_of",
    "lifespan",
    "mount_dashboard",
    "read_status",
]

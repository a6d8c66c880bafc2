"""Winch in a FastAPI application: its life, a dependency, the answer 202, a router, the dashboard.

    from winch.integrations.fastapi import Jobs, accepted, job_router, lifespan, mount_dashboard

    api = FastAPI(lifespan=lifespan(jobs))
    api.include_router(job_router(jobs, may_read=is_own))
    mount_dashboard(api, "/ops", jobs, authenticate=access_of)

    @api.post("/reports/{number}", status_code=202)
    async def create(number: int, request: Request) -> Response:
        return accepted(request, await render.aenqueue(number))

The functions without FastAPI's own features are those of `winch.integrations.starlette`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Depends, HTTPException, Request, Response

from winch import App
from winch.integrations.starlette import (
    JOB_ROUTE,
    Authenticate,
    Lifespan,
    MayRead,
    accepted,
    job_path,
    jobs_of,
    lifespan,
    mount_dashboard,
    read_status,
)
from winch.integrations.status import RETRY_AFTER, JobStatus

Jobs: TypeAlias = Annotated[App, Depends(jobs_of)]
"""The Winch app as a parameter of a route: `async def create(jobs: Jobs) -> …`."""


def job_router(
    jobs: App,
    *,
    may_read: MayRead,
    prefix: str = "/jobs",
    with_result: bool = False,
    dependencies: Sequence[Any] = (),
    tags: Sequence[str | Enum] = ("jobs",),
) -> APIRouter:
    """A router that shows the status of jobs: `GET /jobs/{job_id}`.

        api.include_router(job_router(jobs, may_read=is_own, dependencies=[Depends(login)]))

    `may_read(request, record)` decides whether the caller may see the job; if not, the answer is 404,
    as for a job that does not exist. `with_result` shows the result of a completed job.
    """
    router = APIRouter(prefix=prefix, tags=list(tags), dependencies=list(dependencies))

    async def show_job(job_id: str, request: Request, response: Response) -> JobStatus:
        """The status of a job."""
        found = await read_status(jobs, request, job_id, may_read, with_result=with_result)
        if found is None:
            raise HTTPException(404, "no such job")
        response.headers["cache-control"] = "no-store"
        if not found.is_final:
            response.headers["retry-after"] = RETRY_AFTER
        return found

    router.add_api_route(
        "/{job_id}", show_job, methods=["GET"], name=JOB_ROUTE, response_model=JobStatus
    )
    return router


__all__ = [
    "JOB_ROUTE",
    "Authenticate",
    "JobStatus",
    "Jobs",
    "Lifespan",
    "MayRead",
    "accepted",
    "job_path",
    "job_router",
    "jobs_of",
    "lifespan",
    "mount_dashboard",
]

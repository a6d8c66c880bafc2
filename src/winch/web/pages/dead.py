"""Dead letters: grouped by what they died of; look, edit, replay at a pace."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from winch.core.errors import WinchError
from winch.core.lifecycle import JobState
from winch.core.values import codec
from winch.core.values.bounds import parse_int
from winch.storage.params import JobFilter
from winch.web import search
from winch.web.access import EVERY_NARROWING
from winch.web.api.queues import start_replay, visible_groups
from winch.web.pages.base import go, one, page, part
from winch.web.problems import Problem
from winch.web.routes import WebCall, WebRoute
from winch.web.schemas import ReplayBody, group_out, job_detail, job_out


class DeadQuery(msgspec.Struct, frozen=True, kw_only=True):
    task: str | None = None
    queue: str | None = None
    did: str = ""


async def list_page(call: WebCall) -> Response:
    query: DeadQuery = call.query
    groups = await visible_groups(call, query.task or None, query.queue or None, 100)
    return await page(
        call,
        "dead.html",
        title="Dead letters",
        groups=[group_out(group) for group in groups],
        total=sum(group.count for group in groups),
        task=query.task or "",
        queue=query.queue or "",
    )


async def group_page(call: WebCall) -> Response:
    fingerprint = call.path("group")
    wanted = search.Search(JobFilter(states=(JobState.DEAD,), fingerprint=fingerprint))
    found = await call.site.search(call.access, wanted, limit=50)
    if not found.jobs:
        raise Problem("not-found", "no dead job is in this group any more")
    sample = call.site.client.revealed(found.jobs[0])
    groups = await visible_groups(call, sample.task, None, 1000)
    group = next((g for g in groups if g.fingerprint == fingerprint), None)
    if group is None:
        raise Problem("not-found", "no dead job is in this group any more")
    return await page(
        call,
        "group.html",
        title=f"{sample.task}: {group.error_name}",
        group=group_out(group),
        sample=job_detail(sample),
        jobs=[job_out(job) for job in found.jobs],
        has_more=found.next is not None,
        is_known=sample.task in call.site.app.tasks.names,
    )


async def replay(call: WebCall) -> Response:
    """Replay a group or one job: a dry run first, unless the box is ticked."""
    form = call.body
    text = one(form, "args")
    args = None
    if text is not None:
        try:
            args = codec.loads_strict(text, what="the new arguments")
        except WinchError as error:
            raise Problem("invalid", str(error)) from error
        if not isinstance(args, dict):
            raise Problem("invalid", "the new arguments must be a JSON object")
    attempts = one(form, "attempts")
    job = one(form, "id")
    body = ReplayBody(
        ids=None if job is None else [job],
        group=None if job is not None else one(form, "group"),
        rate=one(form, "rate"),
        args=args,
        attempts=None if attempts is None else parse_int(attempts, "attempts", least=1, most=1000),
        to_queue=one(form, "to_queue"),
        dry_run=one(form, "dry") == "yes",
    )
    done = await start_replay(call, body)
    return go(call, f"/operations/{part(done.id)}")


ROUTES: tuple[WebRoute, ...] = (
    WebRoute(
        "GET",
        "/dead",
        "read",
        list_page,
        "Dead letters",
        query=DeadQuery,
        is_page=True,
        applies=("queue", "task"),
    ),
    WebRoute(
        "POST",
        "/dead",
        "operate",
        replay,
        "Replay",
        audit="replay dead",
        is_page=True,
        applies=EVERY_NARROWING,
    ),
    WebRoute(
        "GET",
        "/dead/{group}",
        "read",
        group_page,
        "One group of dead jobs",
        is_page=True,
        applies=("queue", "task"),
    ),
)

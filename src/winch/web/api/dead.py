"""Groups of dead jobs over HTTP: what people note about them, and discarding."""

from __future__ import annotations

from typing import Any

import msgspec

from winch.areas.dead_groups import GroupMark, discard
from winch.core.lifecycle import JobState
from winch.engine.base.operation import Operation
from winch.engine.client.audit import acting
from winch.storage.params import JobFilter
from winch.web.api.queues import chosen
from winch.web.problems import Problem
from winch.web.routes import PREFIX, WebCall, WebReply, WebRoute
from winch.web.schemas.jobs import OperationOut
from winch.web.schemas.operate import DiscardBody, MarkBody, MarkOut


async def mark(call: WebCall) -> WebReply:
    given = {
        name: value
        for name, value in msgspec.structs.asdict(call.body).items()
        if value is not msgspec.UNSET
    }
    group = call.path("group")
    return WebReply(_out(group, await mark_group(call, group, given)))


async def mark_group(call: WebCall, group: str, given: dict[str, Any]) -> GroupMark:
    """Note something about a group; the API and the dashboard share it."""
    with acting(call.by):
        after = await call.site.app.dead.amark(group, **given)
    call.note(group, **given)
    return after


async def discard_jobs(call: WebCall) -> WebReply:
    done = await start_discard(call, call.body)
    location = f"{call.request.scope.get('root_path', '')}{PREFIX}/operations/{done.id}"
    return WebReply(done, 202, {"location": location})


async def start_discard(call: WebCall, body: DiscardBody) -> OperationOut:
    """Begin to delete dead jobs for good."""
    which: JobFilter | list[str]
    if body.ids is not None:
        which = list(body.ids)
    elif body.task or body.queue or body.group:
        which = JobFilter(
            states=(JobState.DEAD,), task=body.task, queue=body.queue, fingerprint=body.group
        )
    else:
        raise Problem("invalid", "say which: ids, task, queue or group")
    driver = call.site.driver

    def work(note: Any) -> Operation[None]:
        with acting(call.by):
            matched, gone = yield from discard(driver, which, dry_run=body.dry_run)
        note(matched=matched, acted=gone)

    done = await call.site.operations.start(
        "discard", call.by, work, credential=call.access.credential, is_dry_run=body.dry_run
    )
    call.note(done.id, **chosen(body))
    return done


def _out(group: str, mark: GroupMark) -> MarkOut:
    return MarkOut(
        group=group, state=mark.state, assignee=mark.assignee, note=mark.note, by=mark.by, at=mark.at
    )


ROUTES: tuple[WebRoute, ...] = (
    WebRoute("PATCH", f"{PREFIX}/dead/groups/{{group}}", "operate", mark,
             "Note an assignee, a text or a state of a group", body=MarkBody, answer=MarkOut,
             audit="mark dead group"),
    WebRoute("POST", f"{PREFIX}/dead:discard", "operate", discard_jobs, "Delete dead jobs for good",
             body=DiscardBody, answer=OperationOut, status=202, audit="discard dead"),
)  # fmt: skip

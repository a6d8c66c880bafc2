"""Queues, workers, the dead, numbers."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from winch.areas.dead_groups import NO_MARK, GroupMark
from winch.areas.queue_jobs import Moved
from winch.areas.replay import Replayed
from winch.areas.replay import replay as replay_dead
from winch.core.errors import JobNotFound
from winch.core.lifecycle import JobState
from winch.core.policy.labels import check_labels, meets
from winch.core.policy.queue_settings import NO_SETTINGS, QueueSettings
from winch.core.policy.retry import StoredRetry, backoff_text
from winch.core.values.duration import format_duration, parse_duration, parse_rate
from winch.core.values.ids import known_as
from winch.engine.base.operation import Operation
from winch.engine.client.audit import AuditLine, acting
from winch.engine.client.backlog import backlog_of, by_label
from winch.engine.client.worker_commands import by_worker
from winch.engine.observe.task_times import task_times
from winch.engine.tasks.options import check_queue
from winch.storage.params import DeadGroup, GroupFilter, JobFilter, QueueInfo, SessionInfo
from winch.web.access import EVERY_NARROWING
from winch.web.operations import WAIT
from winch.web.problems import Problem
from winch.web.routes import PREFIX, WebCall, WebReply, WebRoute
from winch.web.schemas.convert import group_out, queue_out, worker_out
from winch.web.schemas.jobs import EmptyBody, OperationOut, ReasonBody
from winch.web.schemas.operate import DiscardBody, MoveBody, MovedOut, PurgeBody, PurgedOut
from winch.web.schemas.queues import (
    GroupQuery,
    GroupsOut,
    QueueOut,
    QueueSettingsBody,
    QueueSettingsOut,
    QueuesOut,
    ReplayBody,
    ScaleOut,
    ScaleQuery,
    StatsOut,
    WorkerOut,
    WorkerQuery,
    WorkersOut,
)
from winch.web.schemas.system import AuditLineOut, AuditOut, AuditQuery

CAP = 10_000
# Jobs that need no label, as a scaler names them.
NO_LABEL = "none"


async def visible_queues(call: WebCall) -> list[QueueInfo]:
    return [queue for queue in await call.site.queues() if call.access.serves(queue.name)]


async def list_queues(call: WebCall) -> WebReply:
    return WebReply(QueuesOut(queues=[queue_out(queue) for queue in await visible_queues(call)]))


async def get_queue(call: WebCall) -> WebReply:
    name = call.queue()
    for queue in await visible_queues(call):
        if queue.name == name:
            return WebReply(queue_out(queue))
    raise Problem("not-found", f"no queue {name!r}: it has no job, no setting and no worker")


async def pause_queue(call: WebCall, name: str, reason: str | None) -> None:
    with acting(call.by):
        await call.site.app.queues.apause(name, reason=reason)


async def resume_queue(call: WebCall, name: str) -> None:
    with acting(call.by):
        await call.site.app.queues.aresume(name)


async def pause(call: WebCall) -> WebReply:
    name = check_queue(call.queue())
    await pause_queue(call, name, call.body.reason)
    call.note(name, reason=call.body.reason)
    return WebReply({"queue": name, "is_paused": True})


async def resume(call: WebCall) -> WebReply:
    name = check_queue(call.queue())
    await resume_queue(call, name)
    call.note(name)
    return WebReply({"queue": name, "is_paused": False})


async def get_settings(call: WebCall) -> WebReply:
    name = check_queue(call.queue())
    found = await call.site.app.queues.asettings()
    return WebReply(_settings_out(name, found.get(name, NO_SETTINGS)))


async def configure(call: WebCall) -> WebReply:
    name = check_queue(call.queue())
    given = {
        field: value
        for field, value in msgspec.structs.asdict(call.body).items()
        if value is not msgspec.UNSET
    }
    if not given:
        raise Problem("invalid", "say what to set; null takes a setting back")
    after = await call.site.app.queues.aconfigure(name, **given)
    call.note(name, settings=given)
    return WebReply(_settings_out(name, after))


def _settings_out(name: str, settings: QueueSettings) -> QueueSettingsOut:
    shown = {
        key: format_duration(value).replace(" ", "") if isinstance(value, timedelta) else value
        for key, value in msgspec.structs.asdict(settings).items()
        if value is not None
    }
    if isinstance(settings.backoff, StoredRetry):
        shown["backoff"] = backoff_text(settings.backoff)
    return QueueSettingsOut(queue=name, settings=shown)


async def drain(call: WebCall) -> WebReply:
    name = check_queue(call.queue())
    with acting(call.by):
        await call.site.app.queues.adrain(name, reason=call.body.reason)
    call.note(name, reason=call.body.reason)
    return WebReply({"queue": name, "is_draining": True})


async def purge(call: WebCall) -> WebReply:
    name, body = check_queue(call.queue()), call.body
    with acting(call.by):
        done = await call.site.app.queues.apurge(name, dry_run=body.dry_run)
    call.note(name, deleted=done.deleted, cancelled=done.cancelled, dry_run=body.dry_run or None)
    return WebReply(
        PurgedOut(
            queue=name,
            matched=done.matched,
            deleted=done.deleted,
            cancelled=done.cancelled,
            is_dry_run=done.is_dry_run,
        )
    )


async def move(call: WebCall) -> WebReply:
    name, body = check_queue(call.queue()), call.body
    done = await move_jobs(call, name, body.to, task=body.task, limit=body.limit, dry_run=body.dry_run)
    return WebReply(
        MovedOut(
            queue=name, to=body.to, matched=done.matched, moved=done.moved, is_dry_run=done.is_dry_run
        )
    )


async def move_jobs(call: WebCall, queue: str, to: str, **which: Any) -> Moved:
    """Move waiting jobs to another queue that the caller may use."""
    if not call.access.serves(check_queue(to)):
        raise Problem("forbidden", f"this token may not use queue {to!r}")
    with acting(call.by):
        done = await call.site.app.queues.amove(queue, to, **which)
    call.note(queue, to=to, moved=done.moved, task=which["task"], limit=which["limit"],
              dry_run=which["dry_run"] or None)  # fmt: skip
    return done


async def list_workers(call: WebCall) -> WebReply:
    found = await visible_sessions(call, is_ended_too=call.query.all)
    usage = await call.site.usage()
    return WebReply(
        WorkersOut(workers=[worker_out(session, usage.get(session.id)) for session in found])
    )


async def visible_sessions(call: WebCall, *, is_ended_too: bool) -> list[SessionInfo]:
    """The workers that serve none but the caller's queues: their numbers count no job of others."""
    driver = call.site.driver
    found = await driver.arun(driver.sessions(is_ended_too=is_ended_too))
    workers = [session for session in found if session.is_worker]
    return [session for session in workers if all(map(call.access.serves, session.queues))]


async def get_worker(call: WebCall) -> WebReply:
    for session in await visible_sessions(call, is_ended_too=True):
        if session.id == call.path("id"):
            return WebReply(worker_out(session, (await call.site.usage()).get(session.id)))
    raise Problem("not-found", f"no worker session {call.path('id')!r}")


# -- the dead ----------------------------------------------------------------------------------------


async def list_groups(call: WebCall) -> WebReply:
    query: GroupQuery = call.query
    found = await visible_groups(call, query.task, query.queue, query.limit)
    marks = await marks_for(call)
    return WebReply(
        GroupsOut(groups=[group_out(group, marks.get(group.fingerprint, NO_MARK)) for group in found])
    )


async def marks_for(call: WebCall) -> dict[str, GroupMark]:
    """What people have noted about groups. A narrowed caller reads none of it: it may name others."""
    return {} if call.access.is_narrow else await call.site.app.dead.amarks()


async def visible_groups(
    call: WebCall, task: str | None, queue: str | None, limit: int
) -> list[DeadGroup]:
    """The groups of dead jobs in the caller's queues and of its tasks; others count in none of them."""
    access, driver = call.access, call.site.driver
    if queue is not None and not access.serves(queue):
        raise Problem("not-found", f"no queue {queue!r}")
    if task is not None and not access.runs(task):
        raise Problem("not-found", f"no dead job of task {task!r}")
    queues = (queue,) if queue is not None else access.queues or (None,)
    tasks = (task,) if task is not None else access.tasks or (None,)
    found: dict[str, DeadGroup] = {}
    for one_queue in dict.fromkeys(queues):
        for one_task in dict.fromkeys(tasks):
            which = GroupFilter(task=one_task, queue=one_queue, limit=limit)
            for group in await driver.arun(driver.groups(which)):
                same = found.get(group.fingerprint)
                found[group.fingerprint] = group if same is None else same.joined(group)
    return sorted(found.values(), key=_most_and_latest, reverse=True)[:limit]


def _most_and_latest(group: DeadGroup) -> tuple[int, datetime]:
    return group.count, group.last_at


async def replay(call: WebCall) -> WebReply:
    done = await start_replay(call, call.body)
    location = f"{call.request.scope.get('root_path', '')}{PREFIX}/operations/{done.id}"
    return WebReply(done, 202, {"location": location})


REPLAY_CHANGES = ("rate", "args", "patch", "attempts", "to_queue", "limit")


def chosen(body: ReplayBody | DiscardBody) -> dict[str, Any]:
    """Which dead jobs a request is about, for the audit."""
    return {
        "task": body.task,
        "queue": body.queue,
        "group": body.group,
        "ids": None if body.ids is None else len(body.ids),
        "dry_run": body.dry_run or None,
    }


async def start_replay(call: WebCall, body: ReplayBody, *, wait: float = WAIT) -> OperationOut:
    """Begin to make dead jobs ready again; the API and the dashboard share it. Waits so many seconds
    for the end."""
    if call.access.is_narrow and body.ids is None:
        raise Problem("forbidden", "a token with a scope replays by ids")
    if body.to_queue is not None and not call.access.serves(body.to_queue):
        raise Problem("forbidden", f"this token may not use queue {body.to_queue!r}")
    if body.rate is not None:
        parse_rate(body.rate, "rate")
    which: JobFilter | list[str]
    if body.ids is not None:
        which = [known_as(job_id, "id") for job_id in body.ids]
        if call.access.is_narrow:
            records = await call.site.driver.arun(call.site.driver.get(which))
            for job_id, record in zip(which, records, strict=True):
                if record is None or not call.access.sees(record):
                    raise JobNotFound(job_id)
    else:
        if not (body.task or body.queue or body.group or body.all):
            raise Problem("invalid", 'say which: ids, task, queue or group, or {"all": true}')
        which = JobFilter(
            states=(JobState.DEAD,), task=body.task, queue=body.queue, fingerprint=body.group
        )
    app = call.site.app
    changes = {name: getattr(body, name) for name in REPLAY_CHANGES}

    def work(note: Any) -> Operation[None]:
        done: Replayed = yield from replay_dead(
            app.ready(),
            app.runtime,
            which,
            by=call.by,
            force=body.force,
            dry_run=body.dry_run,
            since=body.since,
            until=body.until,
            **changes,
        )
        reasons = "; ".join(str(refusal.error) for refusal in done.refusals[:3]) or None
        note(matched=done.matched, acted=done.replayed, refused=done.refused, note=reasons)

    done = await call.site.operations.start(
        "replay", call.by, work, wait=wait, credential=call.access.credential, is_dry_run=body.dry_run
    )
    call.note(
        done.id,
        **chosen(body),
        since=None if body.since is None else body.since.isoformat(),
        until=None if body.until is None else body.until.isoformat(),
        **changes,
    )
    return done


# -- numbers -----------------------------------------------------------------------------------------


async def stats(call: WebCall) -> WebReply:
    driver = call.site.driver
    counts = await driver.arun(driver.counts(cap=CAP))
    live = await call.site.live_sessions()
    return WebReply(
        StatsOut(
            store=driver.describe(),
            jobs=dict(counts),
            jobs_capped_at=CAP,
            queues=[queue_out(queue) for queue in await call.site.queues()],
            workers=len(live),
            slots=sum(session.slots for session in live),
            running=sum(session.running for session in live),
            tasks=await call.site.client.arun(task_times(driver, int(time.time()))),
        )
    )


async def autoscale(call: WebCall) -> WebReply:
    query: ScaleQuery = call.query
    wanted, label = query.queue, query.label
    if wanted is not None and not call.access.serves(wanted):
        raise Problem("not-found", f"no queue {wanted!r}")
    serving = [
        one
        for one in await visible_sessions(call, is_ended_too=False)
        if one.supervisor and (wanted is None or wanted in one.queues)
    ]
    queues = [one for one in await visible_queues(call) if wanted in (None, one.name)]
    if label is None:
        value = sum(backlog_of(queue) for queue in queues)
    else:
        needed = "" if label == NO_LABEL else label
        labels = check_labels([needed] if needed else [], "label")
        serving = [one for one in serving if meets(one.labels, labels)]
        found = await call.site.client.arun(by_label(call.site.driver, queues))
        value = sum(number for (_, one), number in found.items() if one == needed)
    busy = sum(any(one.running for one in worker) for worker in by_worker(serving))
    workers = max(busy, -(-value // query.jobs_per_worker))
    return WebReply(ScaleOut(value=value, busy_workers=busy, workers=workers))


async def audit(call: WebCall) -> WebReply:
    query: AuditQuery = call.query
    lines = await audit_lines(call, query.cursor, query.limit, query)
    following = lines[-1].id if len(lines) == query.limit else None
    shown = [
        AuditLineOut(**{name: getattr(line, name) for name in AuditLineOut.__struct_fields__})
        for line in lines
    ]
    return WebReply(AuditOut(lines=shown, next=following))


async def audit_lines(
    call: WebCall, before: str | None, limit: int, which: AuditQuery | None = None
) -> list[AuditLine]:
    """The latest lines, newest first; a narrowed caller reads those of its own actions."""
    access = call.access
    which = which or AuditQuery()

    def wanted(line: AuditLine) -> bool:
        return (
            (not access.is_narrow or access.is_own(line.who, line.credential))
            and which.actor in (None, line.who)
            and which.action in (None, line.action)
            and (which.target is None or which.target in line.target)
        )

    is_any = not (access.is_narrow or which.actor or which.action or which.target)
    since = None
    if which.since is not None:
        since = datetime.now(UTC) - parse_duration(which.since, "since")
    audit = call.site.audit.read(
        before=before, limit=limit, since=since, wanted=None if is_any else wanted
    )
    return await call.site.client.arun(audit)


Q = f"{PREFIX}/queues"
ROUTES: tuple[WebRoute, ...] = (
    WebRoute("GET", Q, "read", list_queues, "All queues", answer=QueuesOut, applies=("queue",)),
    WebRoute("GET", f"{Q}/{{queue}}/settings", "read", get_settings, "What is set for a queue",
             answer=QueueSettingsOut, applies=("queue",)),
    WebRoute("PATCH", f"{Q}/{{queue}}", "operate", configure, "Set something for a queue",
             body=QueueSettingsBody, answer=QueueSettingsOut, audit="configure queue",
             applies=("queue",)),
    WebRoute("GET", f"{Q}/{{queue}}", "read", get_queue, "One queue", answer=QueueOut,
             applies=("queue",)),
    WebRoute("POST", f"{Q}/{{queue}}/pause", "operate", pause, "Claim nothing more from a queue",
             body=ReasonBody, answer=dict, audit="pause queue", applies=("queue",)),
    WebRoute("POST", f"{Q}/{{queue}}/resume", "operate", resume, "Let claims go on", body=EmptyBody,
             answer=dict, audit="resume queue", applies=("queue",)),
    WebRoute("POST", f"{Q}/{{queue}}/drain", "operate", drain, "Take no new jobs until resume",
             body=ReasonBody, answer=dict, audit="drain queue", applies=("queue",)),
    WebRoute("POST", f"{Q}/{{queue}}/purge", "operate", purge, "Remove the jobs that wait in a queue",
             body=PurgeBody, answer=PurgedOut, audit="purge queue", applies=("queue",)),
    WebRoute("POST", f"{Q}/{{queue}}/move", "operate", move, "Move waiting jobs to another queue",
             body=MoveBody, answer=MovedOut, audit="move jobs", applies=("queue",)),
    WebRoute("GET", f"{PREFIX}/workers", "read", list_workers, "Worker sessions", query=WorkerQuery,
             answer=WorkersOut, applies=("queue",)),
    WebRoute("GET", f"{PREFIX}/workers/{{id}}", "read", get_worker, "One worker session",
             answer=WorkerOut, applies=("queue",)),
    WebRoute("GET", f"{PREFIX}/dead/groups", "read", list_groups, "Dead jobs by what they died of",
             query=GroupQuery, answer=GroupsOut, applies=("queue", "task")),
    WebRoute("POST", f"{PREFIX}/dead:replay", "operate", replay, "Make dead jobs ready again",
             body=ReplayBody, answer=OperationOut, status=202, audit="replay dead",
             applies=EVERY_NARROWING),
    WebRoute("GET", f"{PREFIX}/stats", "read", stats, "Jobs by state, queues, workers", answer=StatsOut),
    WebRoute("GET", f"{PREFIX}/autoscale", "read", autoscale, "One number to scale workers by",
             query=ScaleQuery, answer=ScaleOut, applies=("queue",)),
    WebRoute("GET", f"{PREFIX}/audit", "admin", audit, "List the audit",
             query=AuditQuery, answer=AuditOut, applies=EVERY_NARROWING),
)  # fmt: skip

"""Checks for every store: which workers are live, and which jobs wait in vain."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from winch.app import App
from winch.cli.admin.checks import Finding, Findings, Level
from winch.cli.operate.workers import is_live
from winch.cli.shared.text import ago, count, now, span, stamp
from winch.core.lifecycle import JobState
from winch.engine.client.quiet import quiet_sessions
from winch.engine.moving.holding import is_ours

# Ready jobs that are looked at for tasks that no worker knows.
LOOK_AT = 10_000
# For what `winch move` keeps paused.
MOVE_ADVICE = (
    "winch move --back ends it; after a cut-over it stays, so that nothing runs here by mistake"
)


def check_workers(app: App) -> Findings:
    sessions = app.workers.list()
    live = [session for session in sessions if is_live(session)]
    if live:
        slots = sum(session.slots for session in live)
        yield Finding(Level.OK, "workers", f"{len(live)} live, {count(slots, 'slot')}")
    else:
        yield Finding(Level.NOTE, "workers", "none is live", f"start one: {app.start_worker}")
    quiet = app.client.run(quiet_sessions(app.ready()))
    if names := sorted({session.worker for session in live if session.id in quiet}):
        yield Finding(
            Level.NOTE,
            "workers",
            f"{count(len(names), 'quiet worker')}, claiming nothing: {', '.join(names)}",
            f"when the reason is gone: winch workers resume {' '.join(names)}",
        )
    for session in sessions:
        if session.ended_at is None and not is_live(session):
            yield Finding(
                Level.WARNING,
                "workers",
                f"the lease of {session.worker} is over since {span(now() - session.lease_until)}, "
                f"and no worker has rescued its {count(session.running, 'job')}",
                f"a live worker does that within seconds; start one: {app.start_worker}",
            )
    releases = Counter(session.release for session in live if session.release)
    if len(releases) > 1:
        listed = ", ".join(f"{number} × {release}" for release, number in sorted(releases.items()))
        yield Finding(
            Level.WARNING,
            "releases",
            f"live workers run different releases: {listed}",
            "fine during a deploy; otherwise restart the older ones",
        )


def check_jobs(app: App) -> Findings:
    queues = app.queues.list()
    live = [session for session in app.workers.list() if is_live(session)]
    served = {queue for session in live for queue in session.queues}
    waiting = {queue.name: queue.counts.get(JobState.READY, 0) for queue in queues}
    is_well = True
    for queue in queues:
        ready = waiting[queue.name]
        if ready and queue.name not in served:
            is_well = False
            yield Finding(
                Level.PROBLEM,
                "queues",
                f"{count(ready, 'job')} of queue {queue.name!r} "
                f"{'is' if ready == 1 else 'are'} ready, and no live worker serves it",
                f"start a worker: {app.start_worker} -Q {queue.name}",
            )
        if queue.paused_at is not None:
            why = f": {queue.pause_reason}" if queue.pause_reason else ""
            yield Finding(
                Level.NOTE,
                "queues",
                f"queue {queue.name!r} was paused {ago(queue.paused_at, now())}{why}; "
                f"{count(ready, 'ready job')} held",
                MOVE_ADVICE
                if is_ours(queue.pause_reason)
                else f"when the reason is gone: winch queues resume {queue.name}",
            )
    known = {task for session in live for task in session.tasks}
    unknown: Counter[str] = Counter()
    looked = 0
    after: str | None = None
    # Queues without a worker are reported above; no worker could know their tasks.
    while looked < LOOK_AT and any(waiting.get(queue) for queue in served):
        page = app.jobs.list(state="ready", limit=1000, after=after)
        looked += len(page)
        unknown.update(
            job.record.task
            for job in page
            if job.record.queue in served and job.record.task not in known
        )
        after = page.next
        if after is None:
            break
    for task, number in unknown.most_common():
        is_well = False
        yield Finding(
            Level.PROBLEM,
            "tasks",
            f"no live worker has the task {task!r}; {count(number, 'ready job')} wait for it",
            "deploy workers that import it, or cancel the jobs: "
            f"winch jobs list --state ready --task {task}",
        )
    if is_well:
        yield Finding(Level.OK, "queues", "every ready job has a worker that serves and knows it")


def check_schedules(app: App) -> Findings:
    """Whether the windows of all schedules are dealt with in time."""
    found = app.schedules.list()
    late = [one for one in found if one.late_by is not None]
    for one in late:
        yield Finding(
            Level.PROBLEM,
            "schedules",
            f"schedule {one.name!r} is late: its window of {stamp(one.next_at or one.now)} has been due "
            f"for {span(one.late_by or timedelta(0))}",
            f"any live worker ticks schedules; start one: {app.start_worker}",
        )
    for one in found:
        if one.paused_at is not None:
            why = f": {one.pause_reason}" if one.pause_reason else ""
            yield Finding(
                Level.NOTE,
                "schedules",
                f"schedule {one.name!r} was paused {ago(one.paused_at, one.now)}{why}",
                MOVE_ADVICE
                if is_ours(one.pause_reason)
                else f"when the reason is gone: winch schedules resume {one.name}",
            )
        elif not one.is_active:
            yield Finding(
                Level.WARNING,
                "schedules",
                f"schedule {one.name!r} is inactive: no live worker or server has it in its code",
                "start a worker of that app, or forget it: winch schedules remove " + one.name,
            )
    if found and not late:
        yield Finding(Level.OK, "schedules", f"{count(len(found), 'schedule')}, none late")

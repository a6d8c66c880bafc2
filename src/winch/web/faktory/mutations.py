"""MUTATE and FLUSH: an operator's changes of many jobs."""

from __future__ import annotations

import fnmatch
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

import msgspec

from winch.core.errors import JobNotFound, WinchError
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.web.faktory.payload import kept_of
from winch.web.faktory.wire import FaktoryError

if TYPE_CHECKING:
    from winch.app import App

PAGE = 500
STATES = {
    "retries": JobState.RETRYING,
    "scheduled": JobState.SCHEDULED,
    "dead": JobState.DEAD,
}


class JobChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs: all that are given must match. `regexp` is a pattern such as `*:123*`."""

    jids: list[str] | None = None
    regexp: str | None = None
    jobtype: str | None = None

    def matches(self, record: JobRecord) -> bool:
        kept = kept_of(record.headers)
        jid = record.id if kept is None else kept.jid or record.id
        if self.jids is not None and jid not in self.jids:
            return False
        if self.jobtype is not None and record.task != self.jobtype:
            return False
        return self.regexp is None or fnmatch.fnmatchcase(
            f"{jid} {record.task} {record.args}", self.regexp
        )


class Mutation(msgspec.Struct, frozen=True, kw_only=True):
    """`cmd` to all jobs of `target` that match."""

    cmd: Literal["clear", "kill", "discard", "requeue"]
    target: Literal["retries", "scheduled", "dead"]
    filter: JobChoice | None = None


async def mutate(app: App, given: Mutation) -> None:
    """Carry it out, job by job: each has its line in the audit."""
    if given.cmd == "kill":
        raise FaktoryError("Winch has no kill: a job is dead when its attempts fail; use discard")
    choice = JobChoice() if given.filter is None or given.cmd == "clear" else given.filter
    state = STATES[given.target]
    chosen = [record.id for record in await _all(app, state) if choice.matches(record)]
    for job_id in chosen:
        try:
            if given.cmd == "requeue":
                await app.jobs.aretry(job_id)
            else:
                await _remove(app, job_id, state)
        except JobNotFound:
            continue
        except WinchError:
            # It has moved on meanwhile: then it is no longer one of these.
            [record] = await app.driver.arun(app.driver.get([job_id]))
            if record is not None and record.state is state:
                raise


async def _remove(app: App, job_id: str, state: JobState) -> None:
    if state is not JobState.DEAD:
        await app.jobs.acancel(job_id, reason="discarded by a client of Faktory")
    await app.jobs.adelete(job_id)


async def _all(app: App, state: JobState) -> list[JobRecord]:
    found: list[JobRecord] = []
    after: str | None = None
    while True:
        page = await app.jobs.alist(state=state.value, limit=PAGE, after=after)
        found += [job.record for job in page]
        after = page.next
        if after is None:
            return found


async def flush(app: App) -> None:
    """Delete the waiting jobs of every queue, and all dead ones. Running jobs continue."""
    for queue in await app.queues.alist():
        await app.queues.apurge(queue.name)
    await app.dead.apurge(older_than=timedelta(0))

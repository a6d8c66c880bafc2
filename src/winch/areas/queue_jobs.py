"""The jobs that wait in a queue: `app.queues.purge` removes them, `app.queues.move` moves them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from winch.core.errors import ConfigError
from winch.core.flow import FLOW_HEADER
from winch.core.job import JobRecord
from winch.core.lifecycle import WAITING
from winch.engine.base.operation import Operation
from winch.engine.client.audit import actor, noted
from winch.storage.decide.waits import AWAITED_HEADER
from winch.storage.params import Acted, JobFilter, Page, QueueInfo
from winch.storage.protocol import Driver

PAGE = 500
REASON = "its queue was purged"


class Purged(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a purge: `matched` jobs waited, and `deleted` ones are gone.

    `cancelled` jobs were cancelled instead, because a flow, a batch, another job or their own undo
    steps depend on them. The rest was claimed in the meantime.
    """

    matched: int
    deleted: int = 0
    cancelled: int = 0
    is_dry_run: bool = False


def purge_queue(driver: Driver, queue: str, *, dry_run: bool) -> Operation[Purged]:
    """Remove the waiting jobs of the queue, in bounded batches. It walks from the newest id down:
    jobs that are enqueued meanwhile stay, and the walk ends."""
    if dry_run:
        infos: Sequence[QueueInfo] = yield driver.queues()
        counts = next((info.counts for info in infos if info.name == queue), {})
        return Purged(matched=sum(counts.get(state, 0) for state in WAITING), is_dry_run=True)
    matched = deleted = cancelled = 0
    states = tuple(sorted(WAITING))
    after: str | None = None
    while True:
        which = JobFilter(states=states, queue=queue, limit=PAGE, after=after)
        page: Page = yield driver.list_jobs(which)
        matched += len(page.jobs)
        awaited = [job.id for job in page.jobs if _is_awaited(job)]
        plain = [job.id for job in page.jobs if not _is_awaited(job)]
        if awaited:
            cancels: Sequence[Acted] = yield driver.cancel(awaited, by=actor(), reason=REASON)
            cancelled += sum(one.took for one in cancels)
        if plain:
            deletes: Sequence[Acted] = yield driver.delete(plain, by=actor())
            deleted += sum(one.took for one in deletes)
        if page.next is None:
            break
        after = page.next
    yield from noted(driver, "purge queue", queue, deleted=deleted, cancelled=cancelled)
    return Purged(matched=matched, deleted=deleted, cancelled=cancelled)


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a move: `matched` jobs waited, and `moved` ones are in the other queue. The rest was
    claimed in the meantime.
    """

    matched: int
    moved: int = 0
    is_dry_run: bool = False


def move_jobs(
    driver: Driver, queue: str, to: str, *, task: str | None, limit: int | None, dry_run: bool
) -> Operation[Moved]:
    """Move the waiting jobs of the queue, in bounded batches from the newest id down. None is moved to
    where it is."""
    if limit is not None and limit < 1:
        raise ConfigError(f"limit must be 1 or more, got {limit}")
    states = tuple(sorted(WAITING))
    matched = moved = 0
    after: str | None = None
    while queue != to and (limit is None or matched < limit):
        size = PAGE if limit is None else min(PAGE, limit - matched)
        which = JobFilter(states=states, queue=queue, task=task, limit=size, after=after)
        page: Page = yield driver.list_jobs(which)
        matched += len(page.jobs)
        if page.jobs and not dry_run:
            ids = [job.id for job in page.jobs]
            answers: Sequence[Acted] = yield driver.move(ids, to, by=actor())
            moved += sum(one.took for one in answers)
        if page.next is None:
            break
        after = page.next
    if not dry_run:
        yield from noted(driver, "move jobs", queue, to=to, task=task, limit=limit, moved=moved)
    return Moved(matched=matched, moved=moved, is_dry_run=dry_run)


def _is_awaited(job: JobRecord) -> bool:
    """Whether its disappearance would mislead: a batch would take itself for complete, say."""
    return job.has_undo or FLOW_HEADER in job.headers or AWAITED_HEADER in job.headers

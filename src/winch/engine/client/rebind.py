"""What is set for a queue holds for jobs that are in it already.

A producer marks the jobs that it stores with the order and the concurrency of their queue (`door`).
Those that were stored before it was set, by a producer that had not heard of it yet, or by a schedule,
are marked here. A job that is claimed meanwhile runs as it was; the store changes only what still is as
it was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta

from winch.core.gates.uses import gates_of, with_one_more
from winch.core.job import STRICT, JobRecord, level_of
from winch.core.lifecycle import JobState
from winch.core.policy.queue_settings import Order, QueueSettings
from winch.engine.base.operation import Operation
from winch.engine.client.backpressure import BOOK, queue_gate, read_settings
from winch.storage.params import JobFilter, KvFilter, Rebinding
from winch.storage.protocol import Driver

PAGE = 1000
WAITING = (JobState.READY, JobState.SCHEDULED, JobState.RETRYING, JobState.BLOCKED)
# How far back those are looked for who may not have heard: producers read settings once a second.
LATELY = timedelta(seconds=5)


def binds(settings: QueueSettings) -> bool:
    """Whether jobs carry something of these settings."""
    return settings.concurrency is not None or settings.order is not Order.AGED


def rebinding(job: JobRecord, settings: QueueSettings) -> Rebinding | None:
    """What the job must carry in a queue with these settings; None where it does."""
    priority = level_of(job.priority)
    if settings.order is Order.STRICT:
        priority *= STRICT
    options = job.options
    if settings.concurrency is not None:
        gate = queue_gate(job.queue, settings.concurrency)
        if gate.key not in {use.key for use in gates_of(options)}:
            options = with_one_more(options, gate)
    if (options, priority) == (job.options, job.priority):
        return None
    return Rebinding(
        id=job.id,
        options=job.options,
        priority=job.priority,
        to_options=options,
        to_priority=priority,
    )


def bind_queue(
    driver: Driver, queue: str, settings: QueueSettings, *, only_lately: bool = False
) -> Operation[int]:
    """Mark the jobs that wait in a queue, newest first; or only those that came just now. How many."""
    count, after, since = 0, None, None
    while True:
        asked = JobFilter(states=WAITING, queue=queue, limit=PAGE, after=after)
        page = yield driver.list_jobs(asked)
        if not page.jobs:
            return count
        since = since or page.jobs[0].created_at - LATELY
        count += yield from _bind(driver, page.jobs, {queue: settings})
        after = page.next
        if after is None or (only_lately and page.jobs[-1].created_at < since):
            return count


def bind_jobs(driver: Driver, ids: Iterable[str]) -> Operation[int]:
    """Mark these jobs, which nobody has let in by a door: a schedule's."""
    wanted = list(ids)
    if not wanted:
        return 0
    found = read_settings((yield driver.kv_list(KvFilter(book=BOOK))))
    settings = {queue: one for queue, one in found.items() if binds(one)}
    if not settings:
        return 0
    jobs = yield driver.get(wanted)
    waiting = [job for job in jobs if job is not None and job.state in WAITING]
    return (yield from _bind(driver, waiting, settings))


def _bind(
    driver: Driver, jobs: Iterable[JobRecord], settings: Mapping[str, QueueSettings]
) -> Operation[int]:
    changes = [
        change
        for job in jobs
        if (own := settings.get(job.queue)) is not None and (change := rebinding(job, own)) is not None
    ]
    return sum((yield driver.rebind(changes))) if changes else 0

"""Jobs that could run now, by queue and needed label: what to scale pools of workers by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from winch.core.lifecycle import JobState
from winch.engine.base.operation import Operation
from winch.engine.client.needs import published
from winch.storage.params import JobFilter, QueueInfo
from winch.storage.protocol import Driver

# So many jobs of one task are counted: more workers than that would take are not started at once.
MOST_OF_A_TASK = 1000


def backlog_of(queue: QueueInfo) -> int:
    """The jobs that run, and those that could: not the ready ones of a paused queue."""
    ready = 0 if queue.paused_at is not None else queue.counts.get(JobState.READY, 0)
    return ready + queue.counts.get(JobState.RUNNING, 0)


def by_label(driver: Driver, queues: Sequence[QueueInfo]) -> Operation[dict[tuple[str, str], int]]:
    """The backlog of these queues by label, like "gpu=h100". A job that needs two labels counts under
    both. Those that need none are under the empty text."""
    known = {queue.name: queue for queue in queues}
    found: Counter[tuple[str, str]] = Counter()
    labelled: Counter[str] = Counter()
    for task, needs in (yield from published(driver)).items():
        if not needs.labels:
            continue
        states = (JobState.READY, JobState.RUNNING)
        page = yield driver.list_jobs(JobFilter(states=states, task=task, limit=MOST_OF_A_TASK))
        for job in page.jobs:
            queue = known.get(job.queue)
            if queue is None or (job.state is JobState.READY and queue.paused_at is not None):
                continue
            labelled[job.queue] += 1
            found.update((job.queue, f"{name}={text}") for name, text in needs.labels.items())
    for name, queue in known.items():
        found[name, ""] = max(backlog_of(queue) - labelled[name], 0)
    return dict(found)

"""Long queues: a page counts their jobs up to a cap, and takes the rest from the last sample.

A store of rows counts a million of them in a tenth of a second or more, and a counter that changes with
each job would slow every enqueue and every claim. So a page counts at most CAP jobs of a queue. The
upkeep of a server counts all jobs every few seconds, and the number of a longer queue is the one of that
sample. It is marked as not exact. Without a sample the number is the cap, which is marked as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from winch.core.lifecycle import JobState
from winch.engine.base.operation import Operation
from winch.engine.observe.queue_samples import BACKLOG, QueueSample, Sample
from winch.storage.kv_records import KvFilter
from winch.storage.params import QueueInfo
from winch.storage.protocol import Driver

CAP = 10_000
# A sample that is older counts for nothing: no server with upkeep runs.
FRESH_SECONDS = 600


def read_queues(driver: Driver, now: float) -> Operation[list[QueueInfo]]:
    """The queues, each number exact or named in `inexact`."""
    queues: list[QueueInfo] = yield driver.queues(cap=CAP)
    if not any(queue.inexact for queue in queues):
        return queues
    since = f"{(int(now) - FRESH_SECONDS) // 60:010}"
    which = KvFilter(book=BACKLOG, after=since, is_newest_first=True, limit=1)
    lines = yield driver.kv_list(which)
    if not lines:
        return queues
    sample = msgspec.json.decode(lines[0].body, type=Sample)
    return with_sample(queues, sample) if now - sample.at < FRESH_SECONDS else queues


def with_sample(queues: Sequence[QueueInfo], sample: Sample) -> list[QueueInfo]:
    """The queues with the sample's number for each that is not exact, where it is the higher one. A
    queue whose jobs the count did not come to is in the sample alone."""
    found = {queue.name: _sampled(queue, sample) for queue in queues}
    cut = frozenset().union(*(queue.inexact for queue in queues)) - {JobState.READY}
    for name in sample.queues:
        if name not in found:
            info = _sampled(QueueInfo(name=name, counts={}, inexact=cut), sample)
            if info.counts:
                found[name] = info
    return [found[name] for name in sorted(found)]


def _sampled(queue: QueueInfo, sample: Sample) -> QueueInfo:
    if not queue.inexact:
        return queue
    one = sample.queues.get(queue.name, QueueSample(0, 0))
    counts = dict(queue.counts)
    for state in queue.inexact:
        if number := max(one.count(state), counts.get(state, 0)):
            counts[state] = number
    return msgspec.structs.replace(queue, counts=counts, is_sampled=True)


class Count(NamedTuple):
    """A number of jobs. `mark`: `~` of the last sample, `+` at least so many, empty where exact."""

    number: int
    mark: str = ""

    def words(self, number: str | None = None) -> str:
        """`812`, `~622,456` or `10,000+`; `number` is another way to write it."""
        text = f"{self.number:,}" if number is None else number
        return f"{text}+" if self.mark == "+" else f"{self.mark}{text}"


def state_counts(
    capped: Mapping[JobState, int], queues: Sequence[QueueInfo], dead: int
) -> dict[JobState, Count]:
    """How many jobs are in each state: where a count has stopped at the cap, what the queues and the
    dead letters have of them."""
    found = {}
    for state in JobState:
        number = capped.get(state, 0)
        found[state] = Count(number, "+" if number >= CAP else "")
        if number < CAP:
            continue
        if state is JobState.DEAD:
            found[state] = Count(max(number, dead))
            continue
        total = sum(queue.counts.get(state, 0) for queue in queues)
        inexact = [queue for queue in queues if state in queue.inexact]
        if total >= number and all(queue.is_sampled for queue in inexact):
            found[state] = Count(total, "~" if inexact else "")
    return found


def counted(queue: QueueInfo, state: str) -> str:
    """A number of a queue as a page shows it: `812`, `~70,304` of the last sample, `10,000+`."""
    number = queue.counts.get(JobState(state), 0)
    if state not in queue.inexact:
        return f"{number:,}"
    if not queue.is_sampled:
        return f"{number:,}+"
    return f"~{number:,}" if number else "0"

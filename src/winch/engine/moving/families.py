"""Jobs that wait for each other: they move together, or end where they began.

A member that is claimed too early looks at those before it and waits again. So members that wait arrive
ready, and nothing of what they wait for has to be carried. But what a member finds must be complete: all
live and all final jobs of the family have to be in one store, and the parcel holds them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec

from winch.core.errors import InvalidPayload
from winch.core.flow import FLOW_HEADER, INPUTS_HEADER, TAG, FlowNote, read_inputs, tag_of
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.storage.decide.waits import ALL, AWAITED_HEADER
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.params import JobFilter
from winch.storage.parcels import is_tied, waits_in_handler
from winch.storage.protocol import Driver

# What is kept about flows, open batches, and batches inside others; each key begins with a flow's id.
NOTES, OPEN_BATCHES, INNER_BATCHES = "flow", "open-batch", "flow.inner"
FLOW_BOOKS = (NOTES, OPEN_BATCHES, INNER_BATCHES)
# Members of one family that fit into a parcel.
MOST = 1000
PAGE = 500
ENDS_THERE = "it ends where it began, so keep workers there"


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that wait for each other. `stays`: why they cannot leave their store; None: they can."""

    names: tuple[str, ...]
    jobs: tuple[JobRecord, ...]
    stays: str | None = None
    # The members outside the scope of the move, by queue, which `--also` may bring into it.
    outside: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"flow {self.names[0]}" if self.names else f"job {self.jobs[0].id}"

    @property
    def is_running(self) -> bool:
        """Whether a member runs: the family can leave when it has ended."""
        return any(job.state is JobState.RUNNING for job in self.jobs)


def families(
    driver: Driver, live: Iterable[JobRecord], covers: Callable[[JobRecord], bool]
) -> list[Family]:
    """The families of those of these jobs that are tied to others, whole."""
    found: list[Family] = []
    for begun, members in _connected([job for job in live if is_tied(job)]):
        flows = set(begun)
        jobs = {job.id: job for job in members}
        seen: set[str] = set()
        while left := flows - seen:  # a flow inside a flow is found by its members
            flow = min(left)
            seen.add(flow)
            for job in _of_flow(driver, flow):
                jobs[job.id] = job
                flows |= flows_of_job(job)
            if len(jobs) > MOST:
                break
        outside = {job.queue for job in jobs.values() if not job.state.is_final and not covers(job)}
        family = Family(
            names=tuple(sorted(flows)), jobs=tuple(jobs.values()), outside=tuple(sorted(outside))
        )
        found.append(msgspec.structs.replace(family, stays=_stays(driver, family)))
    return found


def _stays(driver: Driver, family: Family) -> str | None:
    if len(family.jobs) > MOST:
        return f"it has more than {MOST:,} jobs; {ENDS_THERE}"
    for job in family.jobs:
        if not job.state.is_final and waits_in_handler(job):
            return f"job {job.id} waits for {_waited_for(job)}; {ENDS_THERE}"
    if family.outside:
        queues = " ".join(f"--also {queue}" for queue in family.outside)
        return f"it has jobs in other queues: add {queues}"
    ids = {job.id for job in family.jobs}
    for job in family.jobs:
        parent = job.headers.get(AWAITED_HEADER, ALL)
        if not parent.startswith(ALL) and parent not in ids and not job.state.is_final:
            [there] = driver.run(driver.get([parent]))
            if there is not None and not there.state.is_final:
                return f"job {parent} waits for job {job.id}; {ENDS_THERE}"
    for flow in family.names:
        if not _is_closed(driver, flow):
            return f"not all of its members are stored yet, or that is not known; {ENDS_THERE}"
    return None


def _waited_for(job: JobRecord) -> str:
    # A member that waits without others before it is one of a map with `parallel=`.
    return "its place in a map" if FLOW_HEADER in job.headers else "a signal or for its children"


def _is_closed(driver: Driver, flow: str) -> bool:
    """Whether the flow's producer has stored all members."""
    records = flow_records(driver, NOTES, flow)
    return any(msgspec.json.decode(record.body, type=FlowNote).is_closed for record in records)


def flow_records(driver: Driver, book: str, flow: str) -> list[KvRecord]:
    """What a book has about one flow."""
    found = driver.run(driver.kv_list(KvFilter(book=book, after=flow[:-1], before=f"{flow}0")))
    return [record for record in found if record.key.partition("/")[0] == flow]


def _of_flow(driver: Driver, flow: str) -> Iterable[JobRecord]:
    """Its members and its callbacks, in any state."""
    for tag in (tag_of(flow), f"{tag_of(flow)}:callback"):
        after = None
        while True:
            which = JobFilter(tag=tag, limit=PAGE, after=after)
            page = driver.run(driver.list_jobs(which))
            yield from page.jobs
            if (after := page.next) is None:
                break


def flows_of_job(job: JobRecord) -> set[str]:
    """The flows that the job is a member or callback of, or waits for."""
    found = {tag.removeprefix(TAG).partition(":")[0] for tag in job.tags if tag.startswith(TAG)}
    if FLOW_HEADER in job.headers:
        found.add(job.headers[FLOW_HEADER])
    if INPUTS_HEADER in job.headers:
        with suppress(InvalidPayload):  # no worker can run it, wherever it is
            found.add(read_inputs(job.headers[INPUTS_HEADER]).flow)
    return found


def _connected(jobs: Iterable[JobRecord]) -> list[tuple[set[str], list[JobRecord]]]:
    """The jobs by the flows that they share. One that is in none stands alone."""
    groups: dict[int, tuple[set[str], list[JobRecord]]] = {}
    of: dict[str, int] = {}
    for number, job in enumerate(jobs):
        flows, members = flows_of_job(job), [job]
        for other in {of[flow] for flow in flows if flow in of}:
            more_flows, more = groups.pop(other)
            flows |= more_flows
            members += more
        groups[number] = (flows, members)
        of |= dict.fromkeys(flows, number)
    return list(groups.values())

"""How the members of a flow are stored: with what they wait for, all of a chunk or none."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from winch.core.errors import LostClaim, StorageUnavailable
from winch.core.flow import FLOW_ALIKE, FlowNote, Inputs, range_of
from winch.core.job import JobRecord, keep_awaited
from winch.engine.base.log import log
from winch.engine.base.operation import OnConnection, Operation, until_answered
from winch.engine.tasks.task import Bound
from winch.storage.decide.waits import AWAITED_HEADER, Dependencies
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.params import ClaimRef, Enqueued, JobFilter, NewJob, Wait
from winch.storage.protocol import Driver

if TYPE_CHECKING:
    from winch.engine.client.client import Client

CHUNK = 500
BOOK = "flow"
# Which batches are inside which, as OUTER/INNER; OUTER/ANYWHERE: one whose members chose their own ids.
INNER_BOOK = "flow.inner"
ANYWHERE = "*"
KEEP_NOTE = timedelta(days=180)

Waits = list[tuple[str, list[Wait]]]


class BatchOwner(msgspec.Struct, frozen=True):
    """What the members of one batch have alike. `is_given`: a later attempt of the member that adds them
    gives the same ids again."""

    tags: tuple[str, ...]
    headers: dict[str, str]
    has_death: bool
    is_given: bool


def member(
    call: Bound[Any],
    job_id: str,
    tags: tuple[str, ...],
    headers: dict[str, str],
    *,
    is_given: bool = False,
) -> NewJob:
    """A member as it is stored. Those of one node share tags and headers, the very objects, so that
    stores see what they have alike. Its id was drawn by Winch; `is_given`: a repeat gives it again."""
    return marked(call.new_job(job_id), tags, headers, is_given=is_given)


def marked(new: NewJob, tags: tuple[str, ...], headers: dict[str, str], *, is_given: bool) -> NewJob:
    """The job with the tags and headers of its flow. One that others wait for is kept long enough."""
    return msgspec.structs.replace(
        new,
        is_given_id=is_given,
        keep=keep_awaited(new.keep) if AWAITED_HEADER in headers else new.keep,
        tags=(*new.tags, *tags) if new.tags else tags,
        headers={**new.headers, **headers} if new.headers else headers,
    )


def send(
    client: Client,
    jobs: Sequence[NewJob],
    waits: Waits,
    conn: object,
    claim: ClaimRef | None = None,
) -> Operation[list[Enqueued]]:
    """Store members with what they wait for, all or none, trying again while the store is out of
    reach."""
    if not jobs:
        return []
    jobs = client.writer.prepared(jobs)
    return (yield from client.writer.with_hooks(jobs, store_members(client, jobs, waits, conn, claim)))


def store_members(
    client: Client,
    jobs: Sequence[NewJob],
    waits: Waits,
    conn: object,
    claim: ClaimRef | None,
) -> Operation[list[Enqueued]]:
    driver = client.driver()
    answers: list[Enqueued] | None
    if not waits and claim is None and not conn:
        return (yield from client.writer.store_prepared(jobs))
    after = Dependencies(waits, claim)
    if conn is not None:
        connection = getattr(conn, "connection", conn) if hasattr(conn, "result") else conn
        yield from client.writer.index(jobs, connection)
        answers = yield OnConnection(connection, driver.enqueue_after(jobs, after))
        return _unless_lost(answers)

    def store(is_repeat: bool) -> Operation[list[Enqueued] | None]:
        yield from client.writer.index(jobs)
        found: list[Enqueued] | None = yield driver.enqueue_after(jobs, after, is_repeat=is_repeat)
        return found

    answers, _ = yield from until_answered(store)
    return _unless_lost(answers)


def _unless_lost(answers: list[Enqueued] | None) -> list[Enqueued]:
    if answers is None:
        raise LostClaim("this attempt lost its claim and cannot add members")
    return answers


def write_note(client: Client, flow_id: str, note: FlowNote, conn: object) -> Operation[None]:
    """Keep what people want to know about the flow; one that cannot be kept stops nothing."""
    driver = client.driver()
    body = msgspec.json.encode(note).decode()
    verb = driver.kv_put([KvRecord(book=BOOK, key=flow_id, body=body, keep=KEEP_NOTE)])
    if conn is not None:
        yield OnConnection(conn, verb)
        return

    def put(is_repeat: bool) -> Operation[None]:
        yield verb

    try:
        yield from until_answered(put)
    except StorageUnavailable as error:
        log.warning("the note about flow %s was not kept: %s", flow_id, error)


def write_outer(client: Client, inner: str, outers: Sequence[str], conn: object) -> Operation[None]:
    """Keep which batches are around this one, before it has members: they are members of those, and
    their ids are beside their own batch's."""
    driver = client.driver()
    lines = [
        KvRecord(book=INNER_BOOK, key=f"{outer}/{inner}", body="{}", keep=KEEP_NOTE) for outer in outers
    ]
    verb = driver.kv_put(lines)
    yield verb if conn is None else OnConnection(conn, verb)


def members_page(
    driver: Driver, flow: str, which: JobFilter, *, has_inner: bool = True
) -> Operation[list[JobRecord]]:
    """Members of a flow, newest id first, up to the limit of `which`. They are looked for where their
    ids are: a walk over all jobs takes as long as the store is large."""
    flows = {flow[:FLOW_ALIKE]: flow}
    if has_inner:
        lines = yield driver.kv_list(
            KvFilter(book=INNER_BOOK, after=f"{flow}/", before=f"{flow}0", limit=10_000)
        )
        inner = {line.key.removeprefix(f"{flow}/") for line in lines}
        if ANYWHERE in inner:
            return (yield from _walked(driver, which, None, None))
        flows |= {one[:FLOW_ALIKE]: one for one in inner}
    found: list[JobRecord] = []
    for alike in sorted(flows, reverse=True):
        first, last = range_of(flows[alike])
        left = msgspec.structs.replace(which, limit=which.limit - len(found))
        if left.limit:
            found += yield from _walked(driver, left, first, last)
    return found


def _walked(
    driver: Driver, which: JobFilter, first: str | None, last: str | None
) -> Operation[list[JobRecord]]:
    """The jobs between two ids, or of the whole store, up to the limit of `which`."""
    found: list[JobRecord] = []
    while len(found) < which.limit:
        size = min(which.limit - len(found), CHUNK)
        asked = msgspec.structs.replace(which, after=last, first=first, limit=size)
        page = yield driver.list_jobs(asked)
        found += page.jobs
        if page.next is None:
            break
        last = page.next
    return found


def inputs_text(inputs: Inputs) -> str:
    return msgspec.json.encode(inputs).decode()


def next_chunk(members: Iterator[tuple[NewJob, list[Wait]]]) -> tuple[list[NewJob], Waits]:
    """The next members to store in one call, and what they wait for."""
    jobs: list[NewJob] = []
    waits: Waits = []
    for new, before in itertools.islice(members, CHUNK):
        jobs.append(new)
        if before:
            waits.append((new.id, before))
    return jobs, waits

"""Batches that no block holds open: one process makes the batch, any process adds members under ids that
their producers chose, and one commits it. Used where a protocol has such batches.

What a process must know to add members is in the store, under the batch's id. Each member is waited for
by itself: its callbacks wait for more with every call that stores members, in the same transaction. No
callback runs before the batch is committed, because all of them wait for the signal that `commit` sends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from winch.core.errors import ConfigError
from winch.core.flow import (
    FLOW_HEADER,
    INPUTS_HEADER,
    FlowNote,
    Inputs,
    Wants,
    member_id,
    members_prefix,
    members_prefix_of,
    tag_of,
)
from winch.core.lifecycle import JobState
from winch.engine.base.operation import Operation
from winch.engine.flows.batch import Callbacks, batch_headers, gate_of, refuse_turn
from winch.engine.flows.store import (
    CHUNK,
    Waits,
    inputs_text,
    marked,
    send,
    write_note,
)
from winch.storage.decide.waits import AWAITED_HEADER, all_key, signal_key
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.params import Enqueued, JobFilter, NewJob, Wait

if TYPE_CHECKING:
    from winch.core.job import JobRecord
    from winch.engine.client.client import Client

BOOK = "open-batch"
KEEP = timedelta(days=180)


class OpenBatch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the store keeps of an open batch. `turns`: the FIFO keys of its callbacks and of those
    around it; `outers`: the batches around it, the nearest first."""

    id: str
    name: str
    created_at: datetime
    kinds: tuple[Wants, ...]
    turns: tuple[str, ...] = ()
    outers: tuple[Callbacks, ...] = ()

    @property
    def all_callbacks(self) -> tuple[Callbacks, ...]:
        """Those of this batch, then those of the batches around it."""
        return (Callbacks(self.id, self.kinds), *self.outers)


class OpenBatchCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How a batch stands. `failed`: members that have failed and not completed since. `callbacks`: the
    state of each; one that is absent was deleted."""

    total: int
    pending: int
    failed: int
    callbacks: dict[Wants, JobState]


def start(
    client: Client, name: str, callbacks: Mapping[Wants, NewJob], outer: OpenBatch | None = None
) -> Operation[OpenBatch]:
    """A new batch, inside `outer` if there is one. Its callbacks are stored as jobs that wait."""
    batch_id = client.draw_id()
    own = tuple(new.fifo for new in callbacks.values() if new.fifo is not None)
    made = OpenBatch(
        id=batch_id,
        name=name,
        created_at=datetime.now(UTC),
        kinds=tuple(callbacks),
        turns=own if outer is None else (*outer.turns, *own),
        outers=() if outer is None else outer.all_callbacks,
    )
    jobs: list[NewJob] = []
    waits: Waits = []
    for kind, new in callbacks.items():
        if outer is not None:
            refuse_turn(new, outer.turns)
        headers = {FLOW_HEADER: batch_id, INPUTS_HEADER: inputs_text(Inputs(batch_id, wants=kind))}
        if outer is not None:
            headers[AWAITED_HEADER] = all_key(members_prefix(batch_id, kind))
        place = msgspec.structs.replace(new, id=member_id(batch_id, kind))
        jobs.append(marked(place, (f"{tag_of(batch_id)}:callback",), headers, is_given=False))
        waits.append((place.id, [Wait(signal_key(gate_of(batch_id)))]))
    ends = [Wait(all_key(members_prefix(batch_id, kind))) for kind in made.kinds]
    waits += [(waiting, ends) for one in made.outers for waiting in one.ids()]
    note = FlowNote(name=name, kind="batch", members=0, tasks=made.kinds)
    yield from write_note(client, batch_id, note, None)
    body = msgspec.json.encode(made).decode()
    yield client.driver().kv_put([KvRecord(book=BOOK, key=batch_id, body=body, keep=KEEP)])
    yield from send(client, jobs, waits, None)
    return made


def find(client: Client, batch_id: str) -> Operation[OpenBatch | None]:
    """The batch of this id; None where there is none."""
    which = KvFilter(book=BOOK, before=f"{batch_id}\x01", is_newest_first=True, limit=1)
    found: list[KvRecord] = yield client.driver().kv_list(which)
    if not found or found[0].key != batch_id:
        return None
    return msgspec.json.decode(found[0].body, type=OpenBatch)


def add(client: Client, batch: OpenBatch, jobs: Sequence[NewJob]) -> Operation[list[Enqueued]]:
    """Store members. Their ids are given, so that a repeat stores nothing twice. Raises ConfigError for
    one that is stored already and is no member."""
    yield from _check_members(client, batch, jobs)
    tags = tuple(tag_of(one.batch) for one in batch.all_callbacks)
    headers = batch_headers(batch.id, batch.kinds, batch.outers, batch.turns)
    answers: list[Enqueued] = []
    for at in range(0, len(jobs), CHUNK):
        members: list[NewJob] = []
        for new in jobs[at : at + CHUNK]:
            refuse_turn(new, batch.turns)
            own = headers | {AWAITED_HEADER: all_key(members_prefix_of(new.id))}
            members.append(marked(new, tags, own, is_given=True))
        ends = [Wait(all_key(members_prefix_of(new.id))) for new in members]
        waits: Waits = [(waiting, ends) for one in batch.all_callbacks for waiting in one.ids()]
        answers += yield from send(client, members, waits, None)
    return answers


def _check_members(client: Client, batch: OpenBatch, jobs: Sequence[NewJob]) -> Operation[None]:
    for at in range(0, len(jobs), CHUNK):
        found = yield client.driver().get([new.id for new in jobs[at : at + CHUNK]])
        for job in found:
            if job is not None and tag_of(batch.id) not in job.tags:
                raise ConfigError(
                    f"job {job.id} was stored before, and not as a member of batch {batch.id}. A job "
                    "joins a batch when it is stored"
                )


def commit(client: Client, batch: OpenBatch) -> Operation[None]:
    """Let the callbacks run as soon as the members allow it. A repeat changes nothing."""
    note = FlowNote(name=batch.name, kind="batch", members=0, tasks=batch.kinds, is_closed=True)
    yield from write_note(client, batch.id, note, None)
    yield from client.signal(gate_of(batch.id), 1, "stored", None)


def check_not_over(client: Client, batch: OpenBatch) -> Operation[None]:
    """Raises ConfigError once a callback no longer waits: then nothing can be added."""
    for job in (yield from _callbacks(client, batch)).values():
        if job.state is not JobState.BLOCKED:
            raise ConfigError(
                f"batch {batch.id} is over: its callback {job.id} is {job.state.value}. Members are "
                "added before the commit, or by a running member"
            )


def counts(client: Client, batch: OpenBatch) -> Operation[OpenBatchCounts]:
    """How the batch stands, by its members as the store has them."""
    total = pending = failed = 0
    after: str | None = None
    while True:
        which = JobFilter(tag=tag_of(batch.id), limit=CHUNK, after=after)
        page = yield client.driver().list_jobs(which)
        for job in page.jobs:
            total += 1
            pending += not job.state.is_final
            failed += job.state is not JobState.COMPLETED and job.error is not None
        after = page.next
        if after is None:
            break
    callbacks = {kind: job.state for kind, job in (yield from _callbacks(client, batch)).items()}
    return OpenBatchCounts(total=total, pending=pending, failed=failed, callbacks=callbacks)


def _callbacks(client: Client, batch: OpenBatch) -> Operation[dict[Wants, JobRecord]]:
    ids = Callbacks(batch.id, batch.kinds).ids()
    found: list[JobRecord | None] = yield client.driver().get(ids)
    return {kind: job for kind, job in zip(batch.kinds, found, strict=True) if job is not None}

"""Waiting in a handler: for signals, and for jobs it has spawned.

A handler that waits is `blocked` and holds no worker. What it waited for is looked up when it continues,
by the handler itself: that the store woke it means only that there may be something. A signal belongs
to the first wait that takes it and stays its own; a child has an id that follows from its parent's id
and the name of the step, so that it is created once, however often that is tried.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from winch.core import steps
from winch.core.errors import (
    ChildFailed,
    ConfigError,
    LostClaim,
    PayloadTooLarge,
    SignalTimeout,
    type_name,
)
from winch.core.gates.uses import FIFO, gates_of
from winch.core.job import Failure, JobRecord, keep_awaited
from winch.core.lifecycle import JobState
from winch.core.steps import StepRecord
from winch.core.values import codec
from winch.engine.base.encryption import unseal
from winch.engine.durable.runner import SAVE, Durable, Unwound
from winch.engine.flows.parts import check_part
from winch.engine.tasks.context import RAISE
from winch.engine.tasks.results import typed
from winch.engine.tasks.task import check_call, check_whole
from winch.storage.decide.waits import AWAITED_HEADER, job_key, signal_key
from winch.storage.params import Answer

if TYPE_CHECKING:
    from winch.engine.durable.steps import Steps
    from winch.engine.tasks.task import Bound

MAX_CHILDREN = 10_000
CHUNK = 1000


def wait_for(self: Steps, signal: str, timeout: timedelta | None, default: object) -> Durable:
    name, place, record = self.reach(f"signal {signal}", "signal")
    if record is not None and record.is_done:
        return None if record.result is None else codec.loads(record.result, what="the signal")
    if record is not None and record.is_failed:
        return _timed_out(signal, default)
    if self.is_replaying_only:
        raise Unwound
    life = self.history.life
    taken = yield self.store().take_signal(
        self.ref, signal, wanted_by=f"{name}~{life}" if life else name
    )
    if taken.answer is not Answer.TOOK:
        raise LostClaim(
            f"job {self.claim.id} no longer belongs to this attempt; it does not receive the signal"
        )
    if record is None:
        moment = yield from self.store_now()
        until = None if timeout is None else moment + timeout
        record = StepRecord(name=name, kind="signal", place=place, at=moment, until=until)
    if taken.payload is not None:
        done = msgspec.structs.replace(record, is_done=True, at=self.now(), result=taken.payload)
        self.put(done)
        yield SAVE
        return codec.loads(taken.payload, what="the signal")
    is_over = record.until is not None and self.now() >= record.until
    self.put(msgspec.structs.replace(record, is_failed=is_over))
    yield SAVE
    if is_over:
        return _timed_out(signal, default)
    waits = [(signal_key(signal), True)]
    yield from self.suspend(record.until, "waited", f"it waits for the signal {signal!r}", waits)
    return None


def _timed_out(signal: str, default: object) -> object:
    if default is RAISE:
        raise SignalTimeout(signal)
    return default


def spawn(self: Steps, call: Bound[Any], name: str) -> Durable:
    """Create one child and go on; returns its handle."""
    name, place, record = self.reach(name, "children")
    if record is None:
        if self.is_replaying_only:
            raise Unwound
        check_call(call, self.client, "ctx.spawn")
        check_whole(call, "ctx.spawn")
        ids = yield from _create(self, [call], name)
        record = StepRecord(
            name=name, kind="children", place=place, at=self.now(), is_done=True, result=_text(ids)
        )
        self.put(record)
        yield SAVE
    return call.task.handle(_ids(record)[0])


def gather(self: Steps, calls: Sequence[Bound[Any]], name: str) -> Durable:
    """Create the children, wait for all of them, and return their results in order."""
    name, place, record = self.reach(name, "children")
    if record is not None and record.is_done:
        found = codec.loads(record.result or "[]", what="the children's results")
        return _typed(name, calls, found, child_ids(self.claim.id, name, len(calls), self.history.life))
    if record is not None and record.is_failed:
        raise _child_failed(record)
    if self.is_replaying_only:
        raise Unwound
    if not calls:
        return []
    if record is None:
        for call in calls:
            check_call(call, self.client, "ctx.gather")
            check_whole(call, "ctx.gather")
        _check_turns(self, calls)
        ids = yield from _create(self, calls, name)
        record = StepRecord(name=name, kind="children", place=place, at=self.now(), result=_text(ids))
        self.put(record)
        yield SAVE
    ids = _ids(record)
    _check_count(name, len(ids), len(calls))
    children: list[JobRecord | None] = []
    for at in range(0, len(ids), CHUNK):
        children += yield self.store().get(ids[at : at + CHUNK])
    open_ = [
        job_id
        for job_id, child in zip(ids, children, strict=True)
        if child is not None and not child.state.is_final
    ]
    if open_:
        what = f"{len(open_)} of its children" if len(open_) > 1 else f"its child {open_[0]}"
        waits = [(job_key(job_id), False) for job_id in open_]
        yield from self.suspend(None, "waited", f"it waits for {what}", waits)
    results = yield from _collected(self, record, ids, children)
    return _typed(name, calls, results, ids)


def _check_count(name: str, known: int, given: int) -> None:
    if known != given:
        raise ConfigError(
            f"{name!r} has {known} children in the job's history and {given} in its handler; "
            "what is spawned must follow from the steps before"
        )


def _typed(name: str, calls: Sequence[Bound[Any]], found: list[Any], ids: Sequence[str]) -> list[Any]:
    """The children's results, each in the type of its task's annotation."""
    _check_count(name, len(found), len(calls))
    return [
        typed(call.task, value, job_id) for call, value, job_id in zip(calls, found, ids, strict=True)
    ]


def _check_turns(self: Steps, calls: Sequence[Bound[Any]]) -> None:
    """A parent keeps the turn of its FIFO key while it waits: a child of that key would wait for it."""
    held = {use.key.removeprefix("fifo:") for use in gates_of(self.claim.options) if use.kind == FIFO}
    for call in calls if held else ():
        if (key := call.new_job("").fifo) in held:
            raise ConfigError(
                f"ctx.gather cannot wait for {call.task.name} with the FIFO key {key!r}: this job keeps "
                "the turn of that key until it is final. Give the child another key, or use ctx.spawn, "
                "which does not wait"
            )


def _collected(
    self: Steps, record: StepRecord, ids: Sequence[str], children: Sequence[JobRecord | None]
) -> Durable:
    """All are final: their results, or what became of those that have none."""
    results: list[Any] = []
    failed: list[str] = []
    words: list[str] = []
    for job_id, child in zip(ids, children, strict=True):
        if child is None or child.state is not JobState.COMPLETED:
            failed.append(job_id)
            words.append(_fate(job_id, child))
        elif child.result is not None:
            text = unseal(self.keys, child.result, job=child.id, task=child.task, field="result")
            results.append(codec.loads(text, what=f"the result of job {job_id}"))
        else:
            results.append(None)
    done = msgspec.structs.replace(record, at=self.now(), is_done=True)
    if not failed:
        try:
            text = codec.dumps(results, what="the children's results", limit=steps.MAX_STEP_BYTES)
            done = msgspec.structs.replace(done, result=text)
            self.history.check_room(done)
        except PayloadTooLarge as error:
            words.append(str(error))
    if words:
        message = "; ".join(words[:3]) + (f"; and {len(words) - 3} more" if len(words) > 3 else "")
        failure = Failure(type_name(ChildFailed), codec.clean_text(message, 4096))
        done = msgspec.structs.replace(record, at=self.now(), is_failed=True, error=failure)
        self.put(done)
        yield SAVE
        raise ChildFailed(message, failed)
    self.put(done)
    yield SAVE
    return results


def _create(self: Steps, calls: Sequence[Bound[Any]], name: str) -> Durable:
    """Store the children, each once; returns their ids in order."""
    if len(calls) > MAX_CHILDREN:
        raise ConfigError(
            f"{len(calls):,} children are too many for one call; the limit is {MAX_CHILDREN:,}. "
            "Spawn them from several child jobs"
        )
    for call in calls:
        check_part(call, "a parent")
    ids = child_ids(self.claim.id, name, len(calls), self.history.life)
    for at in range(0, len(calls), CHUNK):
        some = zip(calls[at : at + CHUNK], ids[at : at + CHUNK], strict=True)
        jobs = [
            msgspec.structs.replace(
                new,
                id=job_id,
                is_given_id=True,
                keep=keep_awaited(new.keep),
                headers={**new.headers, AWAITED_HEADER: self.claim.id},
            )
            for new, job_id in ((call.new_job(job_id), job_id) for call, job_id in some)
        ]
        yield from calls[0].task.storing(jobs)
    return ids


def child_ids(parent: str, step: str, count: int, life: int = 0) -> list[str]:
    return [child_id(parent, step, number, life) for number in range(count)]


def child_id(parent: str, step: str, number: int, life: int = 0) -> str:
    """The id of a child: it sorts beside its parent's, and is the same however often it is asked for in
    one life of the parent."""
    of = f"{parent}\0{step}\0{number}" + (f"\0{life}" if life else "")
    digest = hashlib.sha256(of.encode()).hexdigest()
    variant = "89ab"[int(digest[0], 16) & 3]
    return f"{parent[:8]}-{parent[9:13]}-7{digest[1:4]}-{variant}{digest[4:7]}-{digest[7:19]}"


def _text(ids: Sequence[str]) -> str:
    return msgspec.json.encode(list(ids)).decode()


def _ids(record: StepRecord) -> list[str]:
    return msgspec.json.decode(record.result or "[]", type=list[str])


def _child_failed(record: StepRecord) -> ChildFailed:
    message = "" if record.error is None else record.error.message
    return ChildFailed(message, _ids(record))


def _fate(job_id: str, child: JobRecord | None) -> str:
    if child is None:
        return f"job {job_id} is gone: deleted or pruned"
    error = child.error
    why = f"{error.name}: {error.message}" if error is not None else child.reason or "no reason"
    return f"job {job_id} ({child.task}) is {child.state}: {why}"

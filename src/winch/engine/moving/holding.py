"""What must not happen in two stores at once: the turns of FIFO keys, limits, and schedules.

The store that jobs go to holds each of them until the other one is done with it."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta

from winch.core.errors import ConfigError
from winch.core.gates.uses import FIFO, LIMIT, GateSpec, gates_of, with_gates
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.core.policy.queue_settings import Order, QueueRule
from winch.core.values.ids import random_id
from winch.engine.client.backpressure import BOOK as QUEUE_SETTINGS
from winch.engine.client.backpressure import PAUSED, UNTIL, pause_ends, pause_records, read_settings
from winch.engine.moving.carrying import (
    HOLDER,
    LIVE,
    RUNNER,
    Carrier,
    copy_records,
    records_of,
    store_time,
)
from winch.engine.moving.route import Scope
from winch.storage.decide.schedules import Adopt, Answered, Pause, Remove, ScheduleRow, read_definition
from winch.storage.kv_records import KvRecord
from winch.storage.protocol import Driver

BY = "winch move"
ON_THEIR_WAY = f"{BY}: its jobs are on their way"
FAR = datetime(2200, 1, 1, tzinfo=UTC)
SHUT = GateSpec(n=0)
# Books of settings: a record that the target has already stays as it is there.
COPIED = (QUEUE_SETTINGS, "needs", "webhook", "token")
IDEMPOTENCY = "idempotency"
# What the text of an effect begins with.
BEGUN, DONE = "open\n", "done\n"
# How long an outside effect is remembered in the target; what was asked for is not known there.
EFFECTS_KEPT = timedelta(days=1)
# After how many records the mover looks whether it still has the lock.
LOCK_EVERY = 50


def is_ours(reason: str | None) -> bool:
    """Whether a pause is one of a move."""
    return (reason or "").startswith(BY)


# -- FIFO keys --------------------------------------------------------------------------------------


def hold_keys(carrier: Carrier) -> None:
    """A FIFO key of which a member stays in the source for now is held in the target by a job that never
    becomes due: it stands first, and the next member starts when it is taken away."""
    there = {job.headers.get(RUNNER) for job in carrier.holders()}
    holders = [_holder(job) for job in carrier.staying() if job.fifo is not None and job.id not in there]
    if holders:
        carrier.put(holders)


def _holder(job: JobRecord) -> JobRecord:
    return JobRecord(
        id=random_id(secrets.token_bytes(16)),
        task=HOLDER,
        version=1,
        args="{}",
        queue=job.queue,
        priority=0,
        created_at=job.created_at,
        run_at=FAR,
        state=JobState.SCHEDULED,
        fifo=job.fifo,
        seq=job.seq,
        options=with_gates(None, [use for use in gates_of(job.options) if use.kind == FIFO]),
        headers={RUNNER: job.id},
    )


# -- limits -----------------------------------------------------------------------------------------


def limits_to_shut(carrier: Carrier) -> dict[str, GateSpec | None]:
    """The limits of jobs that stay in the source for now, with what people have set in the target."""
    used = _limits_of(carrier.staying())
    set_there = live_limits(carrier.target) if used else {}
    return {name: set_there.get(name) for name in sorted(used)}


def shut_limits(driver: Driver, names: Iterable[str]) -> None:
    """Let no job run under these limits."""
    if shut := dict.fromkeys(names, SHUT):
        driver.run(driver.set_limits(shut, by=BY))


def open_limits(carrier: Carrier, shut: Mapping[str, GateSpec | None]) -> Mapping[str, GateSpec | None]:
    """Open those under which no job is left in the source; returns the others."""
    if not shut:
        return shut
    used = _limits_of(carrier.jobs(LIVE))
    restore_limits(carrier.target, {name: spec for name, spec in shut.items() if name not in used})
    return {name: spec for name, spec in shut.items() if name in used}


def restore_limits(driver: Driver, before: Mapping[str, GateSpec | None]) -> None:
    """Give limits that are shut the numbers that people had set, or those of the code."""
    if not before:
        return
    shut = {limit.name for limit in driver.run(driver.limits()) if limit.spec == SHUT}
    if opened := {name: spec for name, spec in before.items() if name in shut}:
        driver.run(driver.set_limits(opened, by=BY))


def live_limits(driver: Driver) -> dict[str, GateSpec]:
    """What people have set in this store."""
    return {
        limit.name: limit.spec
        for limit in driver.run(driver.limits())
        if limit.is_live and limit.spec is not None and limit.spec != SHUT
    }


def _limits_of(jobs: Iterator[JobRecord]) -> set[str]:
    return {use.name for job in jobs for use in gates_of(job.options) if use.kind == LIMIT and use.name}


# -- schedules --------------------------------------------------------------------------------------


def schedules_of(driver: Driver, scope: Scope) -> list[ScheduleRow]:
    """The schedules whose jobs are in scope."""
    return [row for row in driver.run(driver.schedules()).found if scope.is_all or _is_in(scope, row)]


def _is_in(scope: Scope, row: ScheduleRow) -> bool:
    job = read_definition(row.definition).job
    return scope.covers(job.queue, job.tenant)


def announce_schedules(carrier: Carrier) -> None:
    """Have the target know the schedules and tick none of them."""
    for row in schedules_of(carrier.source, carrier.scope):
        _adopt(carrier, row, is_held=True)


def hand_schedules_over(carrier: Carrier) -> None:
    """Have the source tick none of them any more, then the target from the window on that came last."""
    for row in schedules_of(carrier.source, carrier.scope):
        if row.paused_at is not None and not is_ours(row.pause_reason):
            continue  # a person has paused it, and it stays so in both
        change = Pause(reason=f"{BY}: another store ticks it")
        paused = carrier.source.run(carrier.source.change_schedule(row.name, change)).row
        there = carrier.target.run(carrier.target.schedules(name=row.name)).found
        if paused is not None and not (there and there[0].paused_at is None):
            _adopt(carrier, paused, is_held=False)


def _adopt(carrier: Carrier, row: ScheduleRow, *, is_held: bool) -> None:
    reason = row.pause_reason
    if row.paused_at is None or is_ours(reason):
        reason = f"{BY}: another store ticks it"
    change = Adopt(
        definition=row.definition,
        is_code=row.is_code,
        last_window=row.last_window,
        pending=row.pending,
        is_held=is_held,
        reason=reason,
    )
    answer = carrier.target.run(carrier.target.change_schedule(row.name, change)).answer
    if answer is not Answered.DONE:
        raise ConfigError(f"schedule {row.name!r} cannot move: {answer}")


def forget_schedules(driver: Driver) -> None:
    """Remove those that a move has left behind in a store that it went back from."""
    for row in driver.run(driver.schedules()).found:
        if is_ours(row.pause_reason) and not row.declared_by:
            driver.run(driver.change_schedule(row.name, Remove()))


# -- settings ---------------------------------------------------------------------------------------


def copy_settings(carrier: Carrier) -> None:
    """What people have set in the source, where the target has no setting of its own."""
    source, target = carrier.source, carrier.target
    scope = carrier.scope
    if scope.tenant is not None:  # its queues are those of others, too
        return
    for book in COPIED if scope.is_all else (QUEUE_SETTINGS,):
        wanted = (one for one in records_of(source, book) if _is_copied(one, scope))
        copy_records(target, _watched(carrier, wanted), None)
    _copy_ends_of_pauses(carrier)
    for queue, one in read_settings(list(records_of(target, QUEUE_SETTINGS))).items():
        if scope.covers(queue, None):
            is_strict = one.order is Order.STRICT
            rule = QueueRule(concurrency=one.concurrency, is_strict=is_strict)
            target.run(target.set_queue(queue, rule))
    if scope.is_all and (specs := live_limits(source)):
        target.run(target.set_limits(dict(specs), by=BY))


def _is_copied(record: KvRecord, scope: Scope) -> bool:
    if record.key.startswith((UNTIL, PAUSED)):
        return False
    return scope.is_all or record.key in scope.queues


def _copy_ends_of_pauses(carrier: Carrier) -> None:
    """A pause with an end is over in the target at that time, too."""
    source, target = carrier.source, carrier.target
    now = store_time(source)
    for queue, until in pause_ends(list(records_of(source, QUEUE_SETTINGS))).items():
        if until > now and carrier.scope.covers(queue, None):
            copy_records(target, pause_records(queue, until, now), None)


def copy_effects(carrier: Carrier, known: set[KvRecord]) -> None:
    """The keys of outside effects that were begun or done, but for those that are known to be there."""
    target = carrier.target
    for record in _watched(carrier, records_of(carrier.source, IDEMPOTENCY)):
        if record in known:
            continue
        kept = KvRecord(book=IDEMPOTENCY, key=record.key, body=record.body, keep=EFFECTS_KEPT)
        there = target.run(target.kv_swap(kept))
        if there is not None and record.body.startswith(DONE):
            # It was begun when it was copied. What is done is not done again.
            target.run(target.kv_swap(kept, instead_of=BEGUN))
        known.add(record)


def _watched(carrier: Carrier, records: Iterable[KvRecord]) -> Iterator[KvRecord]:
    """These records, while no other mover is at work."""
    for place, record in enumerate(records):
        if place % LOCK_EVERY == 0:
            carrier.still_mine()
        yield record


def capped_queues(carrier: Carrier) -> frozenset[str]:
    """Queues with a concurrency of their own of which jobs still run in the source."""
    settings = read_settings(list(records_of(carrier.source, QUEUE_SETTINGS)))
    capped = {queue for queue, one in settings.items() if one.concurrency is not None}
    return frozenset(job.queue for job in carrier.running() if job.queue in capped)

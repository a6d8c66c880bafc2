"""What must not happen in two stores at once: the turns of FIFO keys and limits.

The store that jobs go to holds each of them until the other one is done with it."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

from winch.core.errors import ConfigError
from winch.core.gates.uses import FIFO, LIMIT, GateSpec, gates_of, with_gates
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.core.values.ids import random_id
from winch.engine.base.operation import Operation
from winch.engine.client.backpressure import BOOK as QUEUE_SETTINGS
from winch.engine.client.backpressure import read_settings
from winch.engine.moving.carrying import (
    HOLDER,
    LIVE,
    RUNNER,
    Carrier,
    records_of,
)
from winch.engine.moving.route import MoveStep, look
from winch.storage.protocol import Driver

BY = "winch move"
ON_THEIR_WAY = f"{BY}: its jobs are on their way"
FAR = datetime(2200, 1, 1, tzinfo=UTC)
SHUT = GateSpec(n=0)


def is_ours(reason: str | None) -> bool:
    """Whether a pause is one of a move."""
    return (reason or "").startswith(BY)


def refuse_resume(driver: Driver, what: str, reason: str | None) -> Operation[None]:
    """Refuse to end a pause of a move that is under way: jobs would run in both stores."""
    if not is_ours(reason):
        return
    route = (yield from look(driver)).route
    if route is not None and route.step is not MoveStep.DONE:
        raise ConfigError(
            f"winch move keeps {what} paused while jobs move to {route.address}: it ends with the move "
            "(winch move --resume, then --cutover; or --back)"
        )


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


def capped_queues(carrier: Carrier) -> frozenset[str]:
    """Queues with a concurrency of their own of which jobs still run in the source."""
    settings = read_settings(list(records_of(carrier.source, QUEUE_SETTINGS)))
    capped = {queue for queue, one in settings.items() if one.concurrency is not None}
    return frozenset(job.queue for job in carrier.running() if job.queue in capped)

"""What is asked of one job, and done to it by people: look, wait for its end, cancel, retry, delete."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from winch.core.errors import (
    ConfigError,
    DuplicateJob,
    InvalidPayload,
    InvalidTransition,
    JobFailed,
    JobNotFound,
    PayloadTooLarge,
    did_you_mean,
)
from winch.core.job import NO_CHANGES, JobRecord, RetryChanges
from winch.core.lifecycle import JobState, sources
from winch.core.values import codec
from winch.core.values.duration import Duration, parse_duration
from winch.core.values.ids import known_as
from winch.engine.base.encryption import Keyring, unseal
from winch.engine.base.operation import OnConnection, Operation, Sleep
from winch.engine.base.step_pages import whole_history
from winch.engine.client.audit import actor, noted
from winch.engine.client.why import why as explained
from winch.engine.tasks.options import with_from_step
from winch.storage.params import Acted
from winch.storage.protocol import Driver
from winch.storage.verbs import Verb

RESULT_PAUSES = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)


# -- looking -----------------------------------------------------------------------------------------


def _known(job_id: str) -> str:
    """The id as stores have it, from an id or an alias."""
    try:
        return known_as(job_id, "job id")
    except ConfigError as error:
        raise JobNotFound(str(job_id)[:100]) from error


def get(driver: Driver, job_id: str, conn: object = None) -> Operation[JobRecord]:
    verb = driver.get([_known(job_id)])
    [record] = yield verb if conn is None else OnConnection(conn, verb)
    if record is None:
        raise JobNotFound(job_id)
    found: JobRecord = record
    return found


def ended(
    driver: Driver, job_id: str, timeout: Duration | None, monotonic: Callable[[], float]
) -> Operation[JobRecord]:
    """The job once it is final; raises TimeoutError when it is not in time."""
    limit = None if timeout is None else parse_duration(timeout, "timeout").total_seconds()
    began = monotonic()
    round_ = 0
    while True:
        record = yield from get(driver, job_id)
        if record.state.is_final:
            return record
        waited = monotonic() - began
        if limit is not None and waited >= limit:
            raise TimeoutError(f"job {job_id} is still {record.state} after {timeout}")
        pause = RESULT_PAUSES[min(round_, len(RESULT_PAUSES) - 1)]
        left = float("inf") if limit is None else max(limit - waited, 0.001)
        yield Sleep(min(pause, left), most=left)
        round_ += 1


def result_of(record: JobRecord, keys: Keyring | None) -> Any:
    """What the handler of a final job returned; raises where it did not complete."""
    if record.state is not JobState.COMPLETED:
        error = record.error
        text = f"{error.name}: {error.message}" if error is not None else record.reason
        raise JobFailed(record.id, record.state, text)
    if record.result is None and record.reason is not None:
        raise InvalidPayload(f"job {record.id} completed, but {record.reason}")
    if record.result is None:
        return None
    text = unseal(keys, record.result, job=record.id, task=record.task, field="result")
    if (cut := codec.truncated(text)) is not None:
        raise PayloadTooLarge(
            f"job {record.id} completed, but its result was {cut.bytes:,} bytes and the limit is "
            f"{codec.MAX_RESULT_BYTES:,}; only its beginning is kept, in job.record.result"
        )
    return codec.loads(text, what="result")


def why(driver: Driver, job_id: str, start: str) -> Operation[str]:
    text = yield from explained(driver, _known(job_id), start=start)
    if text is None:
        raise JobNotFound(job_id)
    return text


# -- acting ------------------------------------------------------------------------------------------


def cancel(driver: Driver, job_id: str, reason: str | None, by: str | None) -> Operation[JobState]:
    ids = [_known(job_id)]
    was = yield from _operate("cancel", job_id, driver.cancel(ids, by=by or actor(), reason=reason))
    yield from noted(driver, "cancel", ids[0], was=was, reason=reason)
    return was


def retry(
    driver: Driver,
    job_id: str,
    by: str | None,
    *,
    from_step: str | None = None,
    keys: Keyring | None = None,
) -> Operation[JobState]:
    ids = [_known(job_id)]
    changes = NO_CHANGES
    if from_step is not None:
        changes = yield from _from_step(driver, ids[0], from_step, keys)
    was = yield from _operate("retry", job_id, driver.retry(ids, by=by or actor(), changes=changes))
    yield from noted(driver, "retry", ids[0], was=was, from_step=from_step)
    return was


def _from_step(driver: Driver, job_id: str, step: str, keys: Keyring | None) -> Operation[RetryChanges]:
    """The order to retry a job from this step. The worker carries it out, under its claim: what another
    attempt does meanwhile is not lost."""
    record = yield from get(driver, job_id)
    history = yield from whole_history(driver, keys, record)
    if history is None:
        raise ConfigError(f"job {job_id} has no steps; retry it without from_step")
    if history.compensation is not None:
        raise ConfigError(
            f"job {job_id} has undone steps, or undoes them now; retry it without from_step"
        )
    known = [one.name for one in history.steps if one.place >= 0]
    if step not in known:
        raise ConfigError(f"job {job_id} has no step {step!r}{did_you_mean(step, known)}")
    options = with_from_step(record.options, step, secrets.token_hex(8))
    return RetryChanges(options=options, from_step=step)


def delete(driver: Driver, job_id: str, by: str | None) -> Operation[JobState]:
    ids = [_known(job_id)]
    was = yield from _operate("delete", job_id, driver.delete(ids, by=by or actor()))
    yield from noted(driver, "delete", ids[0], was=was)
    return was


def _operate(name: str, given: str, verb: Verb[list[Acted]]) -> Operation[JobState]:
    """Carry out an operator's verb on one job; a lost race is raised here, for people."""
    [acted] = yield verb
    if acted.state is None:
        raise JobNotFound(given)
    if acted.holder is not None:
        raise DuplicateJob(
            f"job {acted.id} cannot be retried now: its unique key is held by job {acted.holder}",
            existing=acted.holder,
        )
    if not acted.took:
        raise InvalidTransition(acted.id, acted.state, name, sources(name))
    state: JobState = acted.state
    return state

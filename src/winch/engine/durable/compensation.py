"""Undoing: what a job has done is taken back when it fails for good or is cancelled.

The decision to end is written into the history first, and the attempt ends; the next one calls the undo
functions in reverse and remembers each. So there is one way, whatever was interrupted where.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from winch.core import steps as documents
from winch.core.errors import SUSPECT_TYPES, HistoryMismatch, JobCancelled, type_name
from winch.core.job import RESCUE_RULE, Failure, Note
from winch.core.lifecycle import JobState
from winch.core.outcome import Settled
from winch.core.steps import Compensation, StepRecord
from winch.engine.base.encryption import unseal
from winch.engine.base.failure import describe
from winch.engine.durable.history import History
from winch.engine.durable.runner import note_of
from winch.engine.durable.steps import ADVICE, error_text, names
from winch.storage.params import ClaimRef

if TYPE_CHECKING:
    from winch.core.job import Claim, JobRecord, SuspectRule
    from winch.core.policy.retry import Retry
    from winch.engine.base.encryption import Keyring
    from winch.engine.durable.steps import Steps
    from winch.storage.protocol import Driver

# Higher than any number of an attempt, and the highest that every store keeps.
LAST_NUMBER = 2**31 - 1


async def compensate(steps: Steps, retry: Retry) -> Settled:
    """Call the undo functions in reverse; returns how the job ends, or when it continues to undo."""
    assert steps.compensation is not None  # noqa: S101  # only then it is called
    for record in steps.history.to_undo:
        found = steps.undos.get(record.name)
        try:
            if found is None:
                raise HistoryMismatch(
                    f"step {record.name!r} must be undone, but the handler no longer has it. {ADVICE}"
                )
            undo, args, value = found
            await steps.acall(undo, *_undo_args(undo, args, value))
        except Exception as error:
            policy = retry.for_error(error)
            return await _not_undone(steps, record, describe(error), policy)
        steps.put(msgspec.structs.replace(record, is_undone=True))
        await steps.asave()
    cause = steps.compensation
    steps.compensation = msgspec.structs.replace(cause, undone_for=steps.run_at)
    await steps.asave()
    steps.is_decided = True
    return Settled(cause.to, cause.what, error=cause.error, reason=cause.reason)


async def _not_undone(
    steps: Steps, record: StepRecord, failure: Failure, policy: Retry | None
) -> Settled:
    assert steps.compensation is not None  # noqa: S101  # as above
    steps.is_decided = True
    tries = steps.compensation.tries + 1
    failed = f"the undo of step {record.name!r} failed {tries} time{'s' if tries > 1 else ''}"
    steps.compensation = msgspec.structs.replace(steps.compensation, tries=tries)
    await steps.asave()
    if policy is None or policy.gives_up(tries, timedelta(0)):
        cause = steps.compensation.reason or error_text(steps.compensation.error)
        left = names([r.name for r in steps.history.to_undo])
        return Settled(
            JobState.DEAD,
            "failed",
            error=failure,
            reason=f"{failed}; not undone: {left}. It was to be {steps.compensation.to}: {cause}",
        )
    delay = policy.delay(tries, steps.rng)
    return Settled(JobState.SCHEDULED, "compensating", delay, counts=False, error=failure, reason=failed)


async def ended(steps: Steps, settled: Settled, retry: Retry) -> Settled:
    """The attempt has come to this; a job that is to end for good is undone first."""
    if steps.compensation is not None and not steps.is_decided and (left := steps.history.to_undo):
        # Its time was over, or it was cancelled once more, in the middle of undoing.
        why = settled.error or Failure(type_name(JobCancelled), settled.reason or "interrupted")
        return await _not_undone(steps, left[0], why, retry)
    if settled.to not in (JobState.DEAD, JobState.CANCELLED):
        return settled
    if steps.must_compensate:
        steps.begin_compensation(settled)
        await steps.asave(is_patient=True, forgets_cancel=True)
        return undo_first(settled)
    if any(record.is_failed for record in steps.history.records.values()):
        # A retry tries these again; how they failed is in the job's own record.
        steps.history.keep(lambda record: not record.is_failed)
        await steps.asave(is_patient=True)
    return settled


def wanted_end(record: JobRecord, crash_rule: SuspectRule) -> Settled | None:
    """How the store wants this job to end, which has let it run to undo its steps: cancelled, or dead by
    the crashes that it has counted. None: it is to go on."""
    if record.cancel_requested_at is not None:
        return Settled(JobState.CANCELLED, "cancelled", reason=record.reason)
    for what, times, most in (
        ("crashed", record.crashes, crash_rule.most),
        ("rescued", record.rescues, RESCUE_RULE.most),
    ):
        if times >= most:
            deaths = [entry.error for entry in record.history if entry.what == what and entry.error]
            error = deaths[-1] if deaths else Failure(SUSPECT_TYPES[what], "unknown")
            # As the store words it where there is nothing to undo.
            reason = f"{what} {times} times; last cause: {error.message}"
            return Settled(JobState.DEAD, "failed", error=error, reason=reason)
    return None


def undo_first(settled: Settled) -> Settled:
    """The end of an attempt after which the job's steps are undone."""
    ended = "cancelled" if settled.to is JobState.CANCELLED else "failed"
    return Settled(
        JobState.SCHEDULED,
        "compensating",
        counts=False,
        error=settled.error,
        reason=f"it has {ended}, and undoes its steps: {settled.reason or error_text(settled.error)}",
    )


async def compensate_instead(
    driver: Driver, claim: Claim, keys: Keyring | None, settled: Settled
) -> Settled:
    """`ended` for an attempt whose process is no more: its history is in the store."""
    if settled.to not in (JobState.DEAD, JobState.CANCELLED):
        return settled
    ref = ClaimRef(claim.id, claim.token)
    [record] = await driver.arun(driver.get([claim.id]))
    if record is None or not record.has_undo or record.token != claim.token:
        return settled
    # Its process may have left a note on its way. After this one, such a note changes nothing.
    await driver.arun(driver.note(ref, Note(number=LAST_NUMBER - 1)))
    [record] = await driver.arun(driver.get([claim.id]))
    if record is None or record.token != claim.token:
        return settled
    stored = unseal(keys, record.checkpoint or "", job=claim.id, task=claim.task, field="checkpoint")
    head = documents.read(stored)
    if head is None or head.compensation is not None:
        return settled
    cause = Compensation(to=settled.to, what=settled.what, reason=settled.reason, error=settled.error)
    history = History(head)  # its pages are not needed: that it has something to undo is known
    history.compensation = cause
    note = note_of(claim, history.text(), keys, has_undo=True, number=LAST_NUMBER, forgets_cancel=True)
    await driver.arun(driver.note(ref, note))
    return undo_first(settled)


def _undo_args(undo: Callable[..., Any], args: Sequence[Any], value: Any) -> Sequence[Any]:
    """An undo is given the step's result; the step's arguments where it returned nothing."""
    try:
        takes = inspect.signature(getattr(undo, "__wrapped__", undo)).parameters
    except (TypeError, ValueError):
        pass  # a built-in that does not say
    else:
        if not takes:
            return ()
    return args if value is None else (value,)

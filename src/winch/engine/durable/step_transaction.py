"""A step in a transaction: its writes and the record that it was made, in one commit.

The note of the step is the last statement before the COMMIT. When the claim is lost nothing takes
effect. When the answer to the COMMIT is lost, the job's row is locked, which waits for a commit under
way, and then read: the history has the step, or it never will.
"""

from __future__ import annotations

import sys
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any

from winch.core.errors import ConfigError, LostClaim, StorageError, StorageUnavailable
from winch.engine.base import operation
from winch.engine.base.operation import Operation, Sleep
from winch.engine.tasks.transaction import SETTLE_PAUSE, SETTLE_SECONDS, Statements
from winch.storage.params import Standing

if TYPE_CHECKING:
    from winch.core.steps import StepRecord
    from winch.engine.durable.runner import InTransaction, StepRunner
    from winch.storage.protocol import Driver


def run(steps: StepRunner, driver: Driver, action: InTransaction) -> None:
    """In a plain handler."""
    begin = getattr(driver, "transaction", None)
    if begin is None:
        raise _no_transactions(driver)
    limits = steps.limits(driver)
    block: AbstractContextManager[Any] = (
        begin(**limits) if action.session is None else begin(action.session, **limits)
    )
    connection = block.__enter__()
    try:
        record = action.record(action.fn(Statements(connection), *action.args))
        steps.check(driver.run_on(connection, steps.note_with(driver, record)))
    except BaseException:
        block.__exit__(*sys.exc_info())
        raise
    try:
        block.__exit__(None, None, None)
    except StorageUnavailable as lost:
        if not lost.maybe_applied:
            raise
        operation.run(driver, _settle(steps, driver, record, lost))
    steps.kept(record)


async def arun(steps: StepRunner, driver: Driver, action: InTransaction) -> None:
    """In an async handler."""
    begin = getattr(driver, "atransaction", None)
    if begin is None:
        raise _no_transactions(driver)
    limits = steps.limits(driver)
    block: AbstractAsyncContextManager[Any] = (
        begin(**limits) if action.session is None else begin(action.session, **limits)
    )
    connection = await block.__aenter__()
    try:
        made = action.fn(Statements(connection), *action.args)
        record = action.record(await made if hasattr(made, "__await__") else made)
        steps.check(await driver.arun_on(connection, steps.note_with(driver, record)))
    except BaseException:
        await block.__aexit__(*sys.exc_info())
        raise
    try:
        await block.__aexit__(None, None, None)
    except StorageUnavailable as lost:
        if not lost.maybe_applied:
            raise
        await operation.arun(driver, _settle(steps, driver, record, lost))
    steps.kept(record)


def _settle(steps: StepRunner, driver: Driver, record: StepRecord, lost: Exception) -> Operation[None]:
    """Return when the transaction took effect; raise when it did not, or when that is unknown."""
    pauses = int(SETTLE_SECONDS / SETTLE_PAUSE)
    while True:
        try:
            [standing] = yield driver.standing([steps.ref])
            [job] = yield driver.get([steps.ref.id])
        except StorageError as error:
            pauses -= 1
            if pauses < 0:
                raise StorageUnavailable(
                    f"whether step {record.name!r} is committed could not be determined: {error}",
                    maybe_applied=True,
                ) from lost
            yield Sleep(SETTLE_PAUSE)
            continue
        if job is not None and steps.is_kept(job.checkpoint, record):
            return
        if standing is Standing.LIVE:
            raise StorageUnavailable(
                f"the transaction of step {record.name!r} was not committed: {lost}"
            ) from lost
        raise LostClaim(
            f"job {steps.ref.id} no longer belongs to this attempt; step {record.name!r} was rolled back"
        ) from lost


def _no_transactions(driver: Driver) -> ConfigError:
    return ConfigError(
        f"a step in a transaction needs a store with transactions; {driver.describe()} has none"
    )

"""What comes of an attempt: what its handler returned or raised becomes an outcome, and that a state."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from winch.core.errors import InvalidPayload, JobTimeout, MissingKey
from winch.core.job import Claim
from winch.core.lifecycle import JobState
from winch.core.outcome import (
    Cancel,
    Directive,
    Discard,
    Done,
    Failed,
    Outcome,
    RetryAfter,
    Settled,
    Snooze,
    settle,
)
from winch.core.policy.retry import DEFAULT_RETRY, Retry
from winch.core.values import codec
from winch.core.values.duration import format_duration
from winch.engine.base.encryption import seal
from winch.engine.base.failure import cause_of, describe, described
from winch.engine.base.log import log
from winch.engine.tasks import results
from winch.engine.tasks.runtime import Runtime
from winch.engine.tasks.task import Task
from winch.engine.worker.attempt import Attempt, Interrupt

if TYPE_CHECKING:
    from winch.engine.worker.running.choose import JobPlan

# A job of a newer version than this worker's waits this long before a worker looks again.
NEWER_PAUSE = timedelta(seconds=5)
# A job whose key this worker does not have: another may have it, or a deploy brings it.
KEY_PAUSE = timedelta(seconds=15)
# A note on the traceback of a handler that tried to end its process.
NOT_ITS_WORKER = "The attempt failed with this; a job must not end its worker."
# How most attempts end: completed, without a result.
COMPLETED = Settled(JobState.COMPLETED, "completed")


class Settler:
    """Decides what becomes of jobs. It never touches the store."""

    def __init__(self, runtime: Runtime, rng: random.Random) -> None:
        self._runtime = runtime
        self._rng = rng

    def settle(self, claim: Claim, outcome: Outcome, policy: Retry, spent: timedelta) -> Settled:
        age = claim.claimed_at - claim.created_at + spent
        return settle(outcome, attempt=claim.attempt, age=age, policy=policy, rng=self._rng)

    def unrun(self, claim: Claim, outcome: Outcome) -> Settled:
        """How a job ends that no handler was called for."""
        return self.settle(claim, outcome, DEFAULT_RETRY, timedelta(0))

    def returned(
        self, attempt: Attempt, plan: JobPlan, value: object, spent: float = 0.0
    ) -> Settled | None:
        """How an attempt ends whose handler returned this."""
        if isinstance(value, Directive):
            return self._ended(attempt, plan, lambda: directed(value), spent)
        done = self.done(value, attempt.claim, plan.task)
        return Settled(JobState.COMPLETED, "completed", result=done.result, reason=done.note)

    def raised(
        self, attempt: Attempt, plan: JobPlan, error: BaseException, spent: float = 0.0
    ) -> Settled | None:
        """How an attempt ends whose handler raised this."""
        return self._ended(attempt, plan, lambda: raised(error, attempt, plan), spent)

    def given_up(self, attempt: Attempt, plan: JobPlan, spent: float) -> Settled | None:
        """How an attempt ends whose handler does not."""
        return self._ended(attempt, plan, lambda: interrupted(attempt, plan), spent)

    def _ended(
        self,
        attempt: Attempt,
        plan: JobPlan,
        decide: Callable[[], Outcome | None],
        spent: float,
    ) -> Settled | None:
        claim, age = attempt.claim, timedelta(seconds=spent)
        try:
            outcome = decide()
            return None if outcome is None else self.settle(claim, outcome, plan.retry, age)
        except Exception as error:
            # Classes of the application take part in this. The handler has run: were the job released,
            # it would run again at once, and so on.
            log.exception("job %s: how it ended cannot be decided; its attempt failed", claim.id)
            most, total = plan.retry.attempts, plan.retry.total
            policy = msgspec.structs.replace(DEFAULT_RETRY, attempts=most, total=total)
            return self.settle(claim, Failed(describe(error), policy), policy, age)

    def outcome_of(self, value: object, claim: Claim, task: Task[Any, Any]) -> Outcome:
        """The outcome of a handler that returned this."""
        if isinstance(value, Directive):
            return directed(value)
        return self.done(value, claim, task)

    def done(self, value: object, claim: Claim, task: Task[Any, Any]) -> Done:
        """Completed with this result, as it is stored."""
        if value is None:
            return Done(None)
        try:
            text = results.dumps(task, value)
        except InvalidPayload as error:
            # The work is done; running it again would do it twice. Only its result is missing.
            log.warning("job %s completed, but %s; its result is not kept", claim.id, error)
            return Done(None, f"result not kept: {error}")
        if (cut := codec.truncated(text)) is not None:
            log.warning(
                "job %s completed with a result of %d bytes; only its beginning is kept",
                claim.id,
                cut.bytes,
            )
        return Done(seal(self._runtime.keys(), text, job=claim.id, task=claim.task, field="result"))


def without_key(claim: Claim, error: MissingKey) -> Outcome:
    """The outcome of a job that this worker cannot decrypt."""
    log.warning("job %s (%s) waits: %s", claim.id, claim.task, error)
    return Snooze(KEY_PAUSE, f"waits for a worker that can read it: {error}")


def newer(claim: Claim, task: Task[Any, Any]) -> Outcome:
    """The outcome of a job of a newer version of its task."""
    mine = f"this worker has version {task.options.version} of {task.name}"
    return Snooze(NEWER_PAUSE, f"{mine}, the job needs version {claim.version}")


def interrupted(attempt: Attempt, plan: JobPlan) -> Outcome | None:
    """The outcome of an interrupted attempt; None where its job is released or no longer this
    worker's."""
    if attempt.interrupted is Interrupt.TIMEOUT:
        return _timed_out(plan, is_silent=attempt.is_silent)
    if attempt.interrupted is Interrupt.CANCEL:
        return Cancel("cancelled while running")
    return None


def _timed_out(plan: JobPlan, *, is_silent: bool) -> Failed:
    if is_silent:
        limit = format_duration(plan.task.options.heartbeat or timedelta(0))
        why = f"gave no sign of life for its heartbeat of {limit} (ctx.progress, checkpoint or beat)"
    else:
        why = f"took longer than its timeout of {format_duration(plan.timeout or timedelta(0))}"
    return failed(JobTimeout(why), plan)


def raised(error: BaseException, attempt: Attempt, plan: JobPlan) -> Outcome | None:
    """The outcome of a handler that raised this."""
    if isinstance(error, Directive):
        return directed(error)
    if attempt.is_stopping:
        return interrupted(attempt, plan)
    if attempt.steps is not None and (decided := attempt.steps.decided(error)) is not None:
        return decided
    if isinstance(error, KeyboardInterrupt | SystemExit):
        error.add_note(NOT_ITS_WORKER)
    return failed(error, plan)  # a cancellation too: the handler's own doing, not ours


def failed(error: BaseException, plan: JobPlan) -> Failed:
    return Failed(describe(error), plan.retry.for_error(error))


def directed(directive: Directive) -> Outcome:
    """The outcome that a handler chose by RetryAfter, Snooze, Cancel or Discard."""
    if isinstance(directive, RetryAfter | Discard) and (cause := cause_of(directive)) is not None:
        # The job failed with that error: what was done about it must not hide it.
        directive.error = described(cause, directive.reason)
    return directive  # type: ignore[return-value]  # the four directives are outcomes as they are

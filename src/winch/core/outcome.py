"""What an attempt came to: a value, decided once, from what a handler returned or raised.

A handler may raise or return RetryAfter, Snooze, Discard or Cancel; any other return is Done, any
other exception is Failed. `settle` turns an outcome into the one thing the store needs to know: the
state to go to, and when.
"""

from __future__ import annotations

import random
from datetime import timedelta

import msgspec

from winch.core.errors import ConfigError, type_name
from winch.core.job import Failure
from winch.core.lifecycle import JobState
from winch.core.policy.retry import DEFAULT_RETRY, Retry
from winch.core.values.codec import MAX_ERROR_BYTES, MAX_RESULT_BYTES, clean_text
from winch.core.values.duration import Duration, parse_duration
from winch.core.values.redact import stored_text

MAX_REASON_BYTES = 8 * 1024


class Directive(Exception):
    """The base of what a handler may raise or return to choose its outcome."""


def _text(reason: object) -> str | None:
    """A reason as text. Handlers also give the exception that they have caught."""
    return reason if reason is None or isinstance(reason, str) else str(reason)


class RetryAfter(Directive):
    """Raise or return it in a handler to retry after this delay. This counts as a failed attempt.

    With `scope`, all jobs of the tasks with this scope are held for the same time, in the whole fleet.
    They lose no attempt.
    """

    def __init__(self, delay: Duration, reason: str | None = None, *, scope: str | None = None) -> None:
        self.reason: str | None = _text(reason)
        super().__init__(self.reason or f"retry after {delay}")
        self.delay: timedelta = parse_duration(delay, "RetryAfter delay")
        if scope is not None and not isinstance(scope, str):
            raise ConfigError(f"the scope of RetryAfter must be text, got {scope!r}")
        self.scope = scope
        self.error: Failure | None = None
        """The error that it was raised from, once it is known."""


class Snooze(Directive):
    """Raise or return it in a handler to run the job again after this delay. This costs no attempt."""

    def __init__(self, delay: Duration, reason: str | None = None) -> None:
        self.reason: str | None = _text(reason)
        super().__init__(self.reason or f"snooze for {delay}")
        self.delay: timedelta = parse_duration(delay, "Snooze delay")


class Discard(Directive):
    """Raise or return it in a handler to end the job as dead, with the reason and without a retry."""

    def __init__(self, reason: str | None = None) -> None:
        self.reason: str = _text(reason) or "discarded by the task"
        super().__init__(self.reason)
        self.error: Failure | None = None
        """The error that it was raised from, once it is known."""


class Cancel(Directive):
    """Raise or return it in a handler to cancel the job, with the reason."""

    def __init__(self, reason: str | None = None) -> None:
        self.reason: str = _text(reason) or "cancelled by the task"
        super().__init__(self.reason)


class Done(msgspec.Struct, frozen=True):
    """The handler returned; `result` is its JSON text, or None for nothing (`note` may say why)."""

    result: str | None = None
    note: str | None = None


class Failed(msgspec.Struct, frozen=True):
    """The handler raised. `policy` is the retry policy that fits the error; None: never retry."""

    error: Failure
    policy: Retry | None


class Settled(msgspec.Struct, frozen=True):
    """Where the job goes: the target state, the delay until it may run again, and the record."""

    to: JobState
    what: str
    delay: timedelta = timedelta(0)
    counts: bool = True
    result: str | None = None
    error: Failure | None = None
    reason: str | None = None
    log: str | None = None
    waits: tuple[tuple[str, bool], ...] = ()
    timeout: timedelta | None = None
    brake: str | None = None
    leaves_turn: bool = False


# A handler that waits, or undoes its steps, has decided already what comes next.
Outcome = Done | Failed | RetryAfter | Snooze | Discard | Cancel | Settled


def settle(
    outcome: Outcome,
    *,
    attempt: int,
    age: timedelta,
    policy: Retry,
    rng: random.Random,
) -> Settled:
    """Decide what becomes of attempt number `attempt` of a job of this age. Every store can hold the
    texts of what it returns."""
    return _storable(_settle(outcome, attempt, age, policy, rng))


def _settle(
    outcome: Outcome, attempt: int, age: timedelta, policy: Retry, rng: random.Random
) -> Settled:
    match outcome:
        case Settled():
            return outcome
        case Done(result=result, note=note):
            return Settled(JobState.COMPLETED, "completed", result=result, reason=note)
        case Snooze(delay=delay, reason=reason):
            return Settled(JobState.SCHEDULED, "snoozed", delay, counts=False, reason=reason)
        case Cancel(reason=reason):
            return Settled(JobState.CANCELLED, "cancelled", reason=reason)
        case Discard(reason=reason):
            error = outcome.error or Failure(type_name(Discard), reason)
            return Settled(JobState.DEAD, "discarded", error=error, reason=reason)
        case RetryAfter(delay=delay, reason=reason):
            error = outcome.error or Failure(type_name(RetryAfter), reason or str(outcome))
            settled = _again(error, policy, attempt, age, delay)
            if outcome.scope is None:
                return settled
            return msgspec.structs.replace(settled, delay=delay, brake=outcome.scope)
        case Failed(error=error, policy=fitting):
            if fitting is None:
                return Settled(JobState.DEAD, "failed", error=error, reason="never retried, by policy")
            delay, trouble = _delay(fitting, attempt, rng)
            return _again(error, fitting, attempt, age, delay, trouble)


def _delay(policy: Retry, attempt: int, rng: random.Random) -> tuple[timedelta, str | None]:
    """The delay by this policy. If the policy fails (it may be a function of the application), that of
    the default one, and why: the attempt counts, or the handler would run for ever."""
    try:
        return policy.delay(attempt, rng), None
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        return DEFAULT_RETRY.delay(
            attempt, rng
        ), f"its retry policy failed, and the default holds: {why}"


def _storable(settled: Settled) -> Settled:
    """The same with texts that are valid UTF-8 without NUL, and without secrets. A handler's reason may
    hold a file name of any bytes, and an outcome is stored together with its neighbours."""
    error = settled.error
    if error is not None:
        error = Failure(
            clean_text(error.type, MAX_ERROR_BYTES),
            stored_text(error.message, MAX_ERROR_BYTES),
            _clean(error.traceback, MAX_ERROR_BYTES),
        )
    return msgspec.structs.replace(
        settled,
        error=error,
        reason=None if settled.reason is None else stored_text(settled.reason, MAX_REASON_BYTES),
        log=_clean(settled.log, MAX_RESULT_BYTES),
        brake=_clean(settled.brake, MAX_REASON_BYTES),
    )


def _clean(text: str | None, limit: int) -> str | None:
    # Nearly all are ASCII, and need no copy.
    if text is None or (text.isascii() and "\0" not in text and len(text) <= limit):
        return text
    return clean_text(text, limit)


def _again(
    error: Failure,
    policy: Retry,
    attempt: int,
    age: timedelta,
    delay: timedelta,
    reason: str | None = None,
) -> Settled:
    if policy.gives_up(attempt, age):
        reason = (
            f"failed {attempt} time{'s' if attempt > 1 else ''}"
            if attempt >= policy.attempts
            else "retry time is over"
        )
        return Settled(JobState.DEAD, "failed", error=error, reason=reason)
    return Settled(JobState.RETRYING, "failed", delay, error=error, reason=reason)


# As in core/errors.py: a directive is known by its public path.
for _kind in [kind for kind in globals().values() if isinstance(kind, type)]:
    if issubclass(_kind, Directive) and _kind is not Directive:
        _kind.__module__ = "winch"
del _kind

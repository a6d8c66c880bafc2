"""The error tree.

WinchError
├── ConfigError            wrong at start-up; names the setting
│   └── MissingKey           encrypted with a key that is not configured here (.key)
├── StorageError           the driver failed; the original is in __cause__
│   ├── StorageUnavailable   worth retrying
│   ├── SchemaMismatch       run `winch migrate`
│   └── StorageFull          disk or memory of the store
├── JobNotFound · ScheduleNotFound · EndpointNotFound · FlowNotFound · UnknownTask
├── DuplicateJob           carries .existing
├── PayloadTooLarge · InvalidPayload
│   └── ResultMismatch       a result that does not fit its task's annotation (.value)
├── QueueFull              carries .retry_after
├── EnqueueUncertain       the answer was lost; retry with the same id (.ids)
├── InvalidTransition      the state does not allow it; carries .state, .verb, .allowed
├── JobFailed              `job.result()` of a job that died or was cancelled
├── HistoryMismatch        a workflow's code makes other steps than its history has
├── StepFailed             a step has failed as often as its own policy allows (.step)
├── SignalTimeout          the signal did not arrive in time (.signal); a TimeoutError too
├── ChildFailed            children that were waited for did not complete (.failed)
├── FlowFailed             a job that this one waits for in its flow did not complete
├── JobTimeout             an attempt took longer than its task allows; a TimeoutError too
├── JobCancelled           raised inside a plain handler that must end
├── JobCrashed             the process of an attempt died (never raised; in a job's history)
├── JobRescued             the worker of an attempt was lost (never raised; in a job's history)
├── DeliveryRefused        a webhook or an outbox target that must not be called, or refused the message
└── LostClaim              another worker owns the job now

Drivers translate their library's exceptions into this tree, so the same race gives the same error
from every store.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from datetime import timedelta


class WinchError(Exception):
    """The base of all errors that Winch raises."""


class ConfigError(WinchError):
    """A setting or option is wrong. The message names it. Raised at start-up, or where a task is
    defined.
    """


class MissingKey(ConfigError):
    """The text is encrypted with a key that this process does not have; `key` is the name of the key."""

    def __init__(self, key: str, known: Sequence[str] = ()) -> None:
        have = f"the keys here are {', '.join(known)}" if known else "no keys are configured here"
        super().__init__(f"it is encrypted with the key {key!r}; {have}. Add that key to WINCH_KEYS")
        self.key = key


class StorageError(WinchError):
    """The store returned an error that a retry does not fix."""


class StorageUnavailable(StorageError):
    """The store is unreachable, or its answer was lost.

    `maybe_applied` is True when the request may have taken effect, because the connection broke after
    it was sent.
    """

    def __init__(self, message: str, *, maybe_applied: bool = False) -> None:
        super().__init__(message)
        self.maybe_applied = maybe_applied


class SchemaMismatch(StorageError):
    """The store has no Winch schema, or that of another release. Run `winch migrate`."""


class StorageFull(StorageError):
    """The disk or memory of the store is full. Nothing was written."""


class JobNotFound(WinchError):
    """The store has no job with this id."""

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"no job with id {job_id!r}; it was never enqueued here, or it was deleted or pruned"
        )
        self.job_id = job_id


class ScheduleNotFound(WinchError):
    """There is no schedule with this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no schedule named {name!r}; app.schedules.list() returns the existing ones")
        self.name = name


class EndpointNotFound(WinchError):
    """There is no webhook endpoint with this id."""

    def __init__(self, endpoint_id: str) -> None:
        super().__init__(f"no webhook endpoint {endpoint_id!r}; app.webhooks.list() has those there are")
        self.endpoint_id = endpoint_id


class FlowNotFound(WinchError):
    """There is no flow with this id, or it was deleted some time after it ended."""

    def __init__(self, flow_id: str) -> None:
        super().__init__(f"no flow with id {flow_id!r}; it was never enqueued here, or it was pruned")
        self.flow_id = flow_id


class UnknownTask(WinchError):
    """No task with this name is registered."""

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        super().__init__(
            f"no task named {name!r}{did_you_mean(name, known)}; "
            "import the module that defines it, or check the name"
        )
        self.name = name


class DuplicateJob(WinchError):
    """A live job already holds this unique key; `existing` is its id."""

    def __init__(self, message: str, existing: str) -> None:
        super().__init__(message)
        self.existing = existing


class PayloadTooLarge(WinchError):
    """The arguments or the result exceed the size limit. Nothing was stored."""


class InvalidPayload(WinchError):
    """The arguments do not fit the task's signature, or cannot be stored as JSON."""


class ResultMismatch(InvalidPayload):
    """The stored result does not fit the task's return annotation; `value` is the result as plain
    data.
    """

    def __init__(self, message: str, value: object) -> None:
        super().__init__(message)
        self.value = value


class QueueFull(WinchError):
    """The queue has reached its limit of depth or age. Try again after `retry_after`."""

    def __init__(self, message: str, retry_after: timedelta) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EnqueueUncertain(WinchError):
    """The store's answer was lost, so the job may or may not be stored. Retry with the same `ids`."""

    def __init__(self, message: str, ids: Sequence[str]) -> None:
        super().__init__(message)
        self.ids: tuple[str, ...] = tuple(ids)


class InvalidTransition(WinchError):
    """The job's state does not allow this action; `state`, `verb` and `allowed` have the details."""

    def __init__(self, job_id: str, state: str, verb: str, allowed: Sequence[str]) -> None:
        super().__init__(f"job {job_id} is {state}; {verb} needs one of: {', '.join(allowed)}")
        self.job_id = job_id
        self.state = state
        self.verb = verb
        self.allowed: tuple[str, ...] = tuple(allowed)


class JobFailed(WinchError):
    """The job is dead or cancelled, so it has no result; `error` is its last error as text."""

    def __init__(self, job_id: str, state: str, error: str | None) -> None:
        super().__init__(f"job {job_id} is {state}" + (f": {error}" if error else ""))
        self.job_id = job_id
        self.state = state
        self.error = error


class HistoryMismatch(WinchError):
    """The handler does not repeat the steps that its job has stored: the code changed while the job
    ran.
    """


class StepFailed(WinchError):
    """A step failed as often as its retry policy allows; `error` is its last error as text."""

    def __init__(self, step: str, tries: int, error: str) -> None:
        super().__init__(f"step {step!r} failed {tries} time{'s' if tries > 1 else ''}: {error}")
        self.step = step
        self.tries = tries
        self.error = error


class SignalTimeout(WinchError, TimeoutError):
    """No signal of this name arrived within the `timeout` of `wait_for`."""

    def __init__(self, signal: str) -> None:
        super().__init__(f"signal {signal!r} did not arrive in time")
        self.signal = signal


class ChildFailed(WinchError):
    """A child that the job waited for is dead or cancelled; `failed` has the ids of those children."""

    def __init__(self, message: str, failed: Sequence[str]) -> None:
        super().__init__(message)
        self.failed: tuple[str, ...] = tuple(failed)


class LostClaim(WinchError):
    """This attempt no longer owns the job. Another worker may be running it now."""


class FlowFailed(WinchError):
    """A job that this one depends on in its flow did not complete."""


class JobTimeout(WinchError, TimeoutError):
    """The attempt ran longer than the timeout of its task."""


class JobCancelled(WinchError):  # names what happened, as asyncio's does
    """Raised inside a synchronous handler when its job is cancelled or lost, or the worker stops."""


class JobCrashed(WinchError):
    """The process of the attempt died. It is never raised: it is the type of a failure in a job's
    history.
    """


class JobRescued(WinchError):
    """The worker of the attempt was lost. It is never raised: it is the type of a failure in a job's
    history.
    """


class DeliveryRefused(WinchError):
    """A sink could not deliver a message: the address is forbidden, or the receiver refused it."""


# What the stores call the failure of an attempt that did not end by itself.
SUSPECT_TYPES = {"crashed": "winch.JobCrashed", "rescued": "winch.JobRescued"}


def type_name(kind: type[BaseException]) -> str:
    """The name under which an exception type is stored: "ValueError", "shop.Declined",
    "winch.JobTimeout".
    """
    return (
        kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    )


def within(sentence: str) -> str:
    """A sentence as the continuation after a colon: in lower case, unless it begins with a name."""
    return sentence if sentence[1:2].isupper() else sentence[:1].lower() + sentence[1:]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint with the nearest known word, or nothing: `" (did you mean 'queue'?)"`."""
    close = difflib.get_close_matches(word[:100], list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


# Tracebacks, pickles and the histories of jobs name an error by its public path, wherever it is defined.
for _kind in [kind for kind in globals().values() if isinstance(kind, type)]:
    if issubclass(_kind, WinchError):
        _kind.__module__ = "winch"
del _kind

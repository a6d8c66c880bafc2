"""The error tree.

WinchError
├── ConfigError            wrong at start-up; names the setting
│   └── MissingKey           encrypted with a key that is not configured here (.key)
├── StorageError           the driver failed; the original is in __cause__
│   ├── StorageUnavailable   worth retrying
│   ├── SchemaMismatch       run `winch migrate`
│   └── StorageFull          disk or memory of the store
├── JobNotFound · ScheduleNotFound · FlowNotFound · UnknownTask · DuplicateJob (carries .existing)
├── PayloadTooLarge · InvalidPayload
│   └── ResultMismatch       a result that does not fit its task's annotation (.value)
├── QueueFull              carries .retry_after
├── EnqueueUncertain       the answer was lost; retry with the same id (.ids)
├── InvalidTransition      the table said no; carries .state, .verb, .allowed
├── JobFailed              `job.result()` of a job that died or was cancelled
├── HistoryMismatch        a workflow's code makes other steps than its history has
├── StepFailed             a step has failed as often as its own policy allows (.step)
├── SignalTimeout          no signal came in time (.signal); a TimeoutError too
├── ChildFailed            children that were waited for did not complete (.failed)
├── FlowFailed             a job that this one waits for in its flow did not complete
├── JobTimeout             an attempt took longer than its task allows; a TimeoutError too
├── JobCancelled           raised inside a plain handler that must end
├── JobCrashed             the process of an attempt died (never raised; in a job's history)
├── JobRescued             the worker of an attempt was lost (never raised; in a job's history)
├── DeliveryRefused        a webhook or an outbox target that must not be called, or refused the message
└── LostClaim              someone else owns the job now

Drivers translate their library's exceptions into this tree, so the same race gives the same error
from every store.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from datetime import timedelta


class WinchError(Exception):
    """Any error that Winch itself raises."""


class ConfigError(WinchError):
    """A setting is wrong; raised at start-up or at the decorated definition, and names the setting."""


class MissingKey(ConfigError):
    """The text is encrypted with a key that this process does not have; `key` is its name."""

    def __init__(self, key: str, known: Sequence[str] = ()) -> None:
        have = f"the keys here are {', '.join(known)}" if known else "no keys are configured here"
        super().__init__(f"it is encrypted with key {key!r}; {have}. Add it to WINCH_KEYS")
        self.key = key


class StorageError(WinchError):
    """The store answered with an error that is not worth repeating as it is."""


class StorageUnavailable(StorageError):
    """The store could not be reached, or the answer was lost on the way.

    `maybe_applied` is True when the request may have taken effect all the same: the connection broke
    after sending. Verbs that may be repeated are repeated; a claim is given up instead.
    """

    def __init__(self, message: str, *, maybe_applied: bool = False) -> None:
        super().__init__(message)
        self.maybe_applied = maybe_applied


class SchemaMismatch(StorageError):
    """The store has no Winch schema, or one of another release: run `winch migrate`."""


class StorageFull(StorageError):
    """The store's disk or memory is full; nothing was written."""


class JobNotFound(WinchError):
    """No job with this id, neither live nor kept."""

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"no job with id {job_id!r}; it was never enqueued here, or it was deleted or pruned"
        )
        self.job_id = job_id


class ScheduleNotFound(WinchError):
    """No schedule of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no schedule named {name!r}; app.schedules.list() has those there are")
        self.name = name


class FlowNotFound(WinchError):
    """No flow of this id, or it is long over."""

    def __init__(self, flow_id: str) -> None:
        super().__init__(f"no flow with id {flow_id!r}; it was never enqueued here, or is long over")
        self.flow_id = flow_id


class UnknownTask(WinchError):
    """No task of this name is registered."""

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
    """Arguments or result exceed the size limit; nothing was stored."""


class InvalidPayload(WinchError):
    """Arguments do not fit the task's signature, or cannot be stored as JSON."""


class ResultMismatch(InvalidPayload):
    """A result is stored that the task's return annotation does not fit; `value` is the plain data."""

    def __init__(self, message: str, value: object) -> None:
        super().__init__(message)
        self.value = value


class QueueFull(WinchError):
    """The queue's depth or age limit is reached; try again after `retry_after`."""

    def __init__(self, message: str, retry_after: timedelta) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EnqueueUncertain(WinchError):
    """The store's answer was lost and repeating did not settle it; retry with the same `ids`."""

    def __init__(self, message: str, ids: Sequence[str]) -> None:
        super().__init__(message)
        self.ids: tuple[str, ...] = tuple(ids)


class InvalidTransition(WinchError):
    """The job's state does not allow this verb."""

    def __init__(self, job_id: str, state: str, verb: str, allowed: Sequence[str]) -> None:
        super().__init__(f"job {job_id} is {state}; {verb} needs one of: {', '.join(allowed)}")
        self.job_id = job_id
        self.state = state
        self.verb = verb
        self.allowed: tuple[str, ...] = tuple(allowed)


class JobFailed(WinchError):
    """The job whose result was asked for is dead or cancelled; `error` is the last one kept, as text."""

    def __init__(self, job_id: str, state: str, error: str | None) -> None:
        super().__init__(f"job {job_id} is {state}" + (f": {error}" if error else ""))
        self.job_id = job_id
        self.state = state
        self.error = error


class HistoryMismatch(WinchError):
    """The handler does not make the steps that its job's history has: the code has changed under it."""


class StepFailed(WinchError):
    """The step has failed as often as its retry policy allows; `error` is the last one, as text."""

    def __init__(self, step: str, tries: int, error: str) -> None:
        super().__init__(f"step {step!r} failed {tries} time{'s' if tries > 1 else ''}: {error}")
        self.step = step
        self.tries = tries
        self.error = error


class SignalTimeout(WinchError, TimeoutError):
    """No signal of this name came within the time that `wait_for` allowed."""

    def __init__(self, signal: str) -> None:
        super().__init__(f"no signal {signal!r} came in time")
        self.signal = signal


class ChildFailed(WinchError):
    """Jobs that a job has spawned and waited for are dead or cancelled; `failed` are their ids."""

    def __init__(self, message: str, failed: Sequence[str]) -> None:
        super().__init__(message)
        self.failed: tuple[str, ...] = tuple(failed)


class LostClaim(WinchError):
    """This attempt's claim has ended: the job was rescued, and somebody else may be running it now."""


class FlowFailed(WinchError):
    """A job that this one waits for in its flow did not complete."""


class JobTimeout(WinchError, TimeoutError):
    """The attempt took longer than its task allows."""


class JobCancelled(WinchError):  # names what happened, as asyncio's does
    """Raised inside a synchronous handler whose job was cancelled, lost, or must stop."""


class JobCrashed(WinchError):
    """The process of the attempt died. Nothing raises it: it is the type of a failure in a job's
    history."""


class JobRescued(WinchError):
    """The worker of the attempt was lost. Nothing raises it: it is the type of a failure in a job's
    history."""


class DeliveryRefused(WinchError):
    """A message was not delivered: its address must not be called, or the other side refused it."""


# What the stores call the failure of an attempt that did not end by itself.
SUSPECT_TYPES = {"crashed": "winch.JobCrashed", "rescued": "winch.JobRescued"}


def type_name(kind: type[BaseException]) -> str:
    """The name under which an exception type is stored, and can be imported: "ValueError",
    "shop.Declined", "winch.JobTimeout"."""
    return (
        kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    )


def within(sentence: str) -> str:
    """A sentence as it goes on after a colon: without its capital, unless a name begins with it."""
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

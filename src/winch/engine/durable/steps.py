"""Durable steps: a handler that can stop at any line and go on from there, on another machine, weeks
later.

A handler with steps is run from its beginning in every attempt. What it did before is not done again: a
step whose result is in the job's history returns that result. So the handler finds its way back to
where it was, and continues. So the same history must lead it the same way: what depends on
the outside world (time, random numbers, a database) belongs inside a step.

    step       runs once and is remembered; with `retry=` it is repeated by a policy of its own
    sleep      ends the attempt; the job is scheduled, holds no worker and spends no attempt
    version    which way this job went at a place where the code has changed since
    undo       what a finished step needs when the job fails for good or is cancelled

Undoing is an attempt of its own. The decision to end (dead, or cancelled) is written into the history
first; then the job runs once more, its handler only to find the undo functions again, and they are
called in reverse, each remembered like a step. A crash anywhere continues there.

Every write is the fenced `note`: a worker that lost the claim changes nothing and gets LOST. A crash
between a step's end and the note repeats the step; where job and data share a database, a step in a
transaction of its own (`ctx.step(…, transaction=True)`) has its writes and the note in one commit.

One body for both kinds of handlers: each operation is a generator, driven by a plain loop in a thread or
awaited on the event loop.
"""

from __future__ import annotations

import contextlib
import threading
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec

from winch.core.errors import (
    ChildFailed,
    ConfigError,
    HistoryMismatch,
    InvalidPayload,
    LostClaim,
    PayloadTooLarge,
    SignalTimeout,
    StepFailed,
)
from winch.core.job import Failure
from winch.core.lifecycle import JobState
from winch.core.outcome import Directive, Settled
from winch.core.steps import MAX_STEP_BYTES, Compensation, Kind, StepRecord
from winch.core.values import codec
from winch.core.values.duration import format_duration
from winch.engine.base.failure import describe
from winch.engine.durable.runner import (
    PARK,
    SAVE,
    Call,
    Durable,
    InTransaction,
    StepRunner,
    StepTools,
    Unwound,
)
from winch.engine.durable.waits import gather, spawn, wait_for
from winch.engine.tasks.results import converted

if TYPE_CHECKING:
    from winch.core.job import Claim
    from winch.core.policy.retry import Retry
    from winch.engine.tasks.context import Reports
    from winch.engine.tasks.task import Bound, Task


class Suspended(BaseException):
    """Ends the attempt of a handler that waits. No Exception, so that `except Exception` lets it
    pass."""


class Steps(StepRunner):
    """The durable side of one attempt."""

    def __init__(self, claim: Claim, task: Task[Any, Any], reports: Reports, tools: StepTools) -> None:
        super().__init__(claim, task, reports, tools)
        self._task = task
        compensation = self.history.compensation
        if compensation is not None and compensation.undone_for not in (None, claim.run_at):
            self.history.begin_anew()  # undone to its beginning, and brought back
        self._places: dict[int, str] | None = None
        self.undos: dict[str, tuple[Callable[..., Any], Sequence[Any], Any]] = {}
        self._visited: set[str] = set()
        self._times: dict[str, int] = {}
        self._callers: set[int] = set()
        self.is_replaying_only: bool = self.compensation is not None
        self.is_decided = False
        self._wake_at: datetime | None = None
        self._waits: dict[str, bool] = {}
        self.suspension: Settled | None = None

    # -- what the engine asks ----------------------------------------------------------------------

    @property
    def compensation(self) -> Compensation | None:
        """How the job is to end when its steps are undone."""
        return self.history.compensation

    @compensation.setter
    def compensation(self, compensation: Compensation) -> None:
        self.history.compensation = compensation

    @property
    def must_compensate(self) -> bool:
        return self.compensation is None and bool(self.history.to_undo)

    @property
    def _has_all_undos(self) -> bool:
        return all(record.name in self.undos for record in self.history.to_undo)

    def begin_compensation(self, settled: Settled) -> None:
        """The job is to end so, after its steps are undone."""
        self.compensation = Compensation(
            to=settled.to, what=settled.what, reason=settled.reason, error=settled.error
        )
        self.is_replaying_only = True

    def check_end(self) -> None:
        """The handler has returned: it must have made all that its history has. A suspension that it has
        swallowed still counts."""
        if self.suspension is not None:
            raise Suspended
        left = [
            r.name for r in self.history.records.values() if r.place >= 0 and r.name not in self._visited
        ]
        if left:
            raise HistoryMismatch(
                f"the handler of job {self.claim.id} returned without reaching {names(left)}, which its "
                f"history has. {ADVICE}"
            )

    def decided(self, error: BaseException) -> Settled | None:
        """What comes next where the steps decide that: the handler waits, or a step's own policy has
        ended, and to try the whole job again would change nothing."""
        if self.suspension is not None:
            return self.suspension
        if isinstance(error, StepFailed | SignalTimeout | ChildFailed):
            return Settled(JobState.DEAD, "failed", error=describe(error), reason=str(error))
        return None

    # -- what the handler asks ---------------------------------------------------------------------

    def step(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        *,
        undo: Callable[..., Any] | None,
        retry: Retry | None,
        name: str | None,
        transaction: object,
    ) -> Any:
        name = _name_of(fn) if name is None else _checked_name(name)
        return self._drive(self._step(fn, args, undo, retry, name, transaction))

    def sleep(self, duration: timedelta, name: str) -> Any:
        return self._drive(self._sleep(duration, _checked_name(name)))

    def wait_for(self, name: str, timeout: timedelta | None, default: object) -> Any:
        return self._drive(wait_for(self, _checked_name(name), timeout, default))

    def gather(self, calls: Sequence[Bound[Any]], name: str) -> Any:
        return self._drive(gather(self, calls, _checked_name(name)))

    def spawn(self, call: Bound[Any], name: str) -> Any:
        return self._drive(spawn(self, call, _checked_name(name)))

    def restart(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self._drive(self._restart(self._task.arguments.pack(args, kwargs)))

    def _restart(self, args: str) -> Durable:
        if self.suspension is not None:
            raise Suspended
        if self.is_replaying_only:
            raise Unwound
        yield PARK
        # Its attempt is handed back: the next claim has the same number, and counts as the first.
        attempts = self.claim.attempt + self.history.attempts - 1
        self.history.restart(args, self._task.options.version, attempts)
        yield SAVE
        self.suspension = Settled(
            JobState.SCHEDULED, "restarted", counts=False, reason="it begins anew with other arguments"
        )
        raise Suspended

    def version(self, change: str, newest: int) -> int:
        """The way this job goes: 1 when it had passed this place before the change was made."""
        name = f"version {_checked_name(change)}"
        record = self.history.records.get(name)
        if record is None:
            has_passed = any(place >= self._calls for place in self._by_place)
            version = 1 if has_passed else newest
            # Stored with the next step: until then nothing has happened that depends on it.
            self.put(
                StepRecord(name=name, kind="version", at=self.now(), is_done=True, result=str(version))
            )
            return version
        return int(record.result or "1")

    def save_checkpoint(self, text: str) -> Any:
        self.history.checkpoint = text
        return self._drive(self._saved())

    def _saved(self) -> Durable:
        yield SAVE

    # -- one step ----------------------------------------------------------------------------------

    def _step(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        undo: Callable[..., Any] | None,
        retry: Retry | None,
        name: str,
        transaction: object,
    ) -> Durable:
        name, place, record = self.reach(name, "step")
        if undo is not None and not callable(undo):
            raise ConfigError(f"undo of step {name!r} must be a function, got {undo!r}")
        if record is not None and record.is_done:
            return self._remembered(name, _value(record.result, fn, name), undo, args)
        tries = yield from self._may_be_made(name, record)

        given: list[Any] = []  # the value as later attempts get it, for this one

        def done(value: Any) -> StepRecord:
            what = f"the result of step {name!r}"
            text = codec.dumps(value, what=what, limit=MAX_STEP_BYTES)
            given[:] = [_value(text, fn, name)]
            codec.check_kept(value, given[0], what)
            return StepRecord(
                name=name,
                kind="step",
                place=place,
                at=self.now(),
                tries=tries + 1,
                is_done=True,
                result=None if value is None else text,
                has_undo=undo is not None,
            )

        self._active += 1
        try:
            if transaction is None or transaction is False:
                value = yield Call(fn, args)
            else:
                session = None if transaction is True else transaction
                yield InTransaction(fn, args, session, done)
        except (Directive, LostClaim):
            raise
        except Exception as error:
            if retry is None:
                raise
            yield from self._failed(name, place, tries + 1, retry, error)
        else:
            if name not in self.history.records or not self.history.records[name].is_done:
                yield from self._keep(name, place, tries + 1, lambda: done(value))
        finally:
            self._active -= 1
            self._left()
        return self._remembered(name, given[0], undo, args)

    def _remembered(
        self, name: str, value: Any, undo: Callable[..., Any] | None, args: Sequence[Any]
    ) -> Any:
        """What a step that is done returns, in the attempt that made it and in every later one."""
        if undo is not None:
            self.undos[name] = (undo, args, value)
        if self.is_replaying_only and self._has_all_undos:
            raise Unwound
        return value

    def _may_be_made(self, name: str, record: StepRecord | None) -> Durable:
        """Go on when the step is to be made now; returns how often it was tried before."""
        if self.is_replaying_only:
            raise Unwound
        if record is None:
            return 0
        if record.is_failed:
            raise StepFailed(name, record.tries, error_text(record.error))
        if record.until is not None and self.now() < record.until:
            yield from self.suspend(record.until, "slept", f"step {name!r} is tried again then")
        return record.tries

    def _keep(self, name: str, place: int, tries: int, done: Callable[[], StepRecord]) -> Durable:
        """Remember a step that is done. One whose result cannot be kept has failed for good: to make it
        again would only do its work twice."""
        try:
            record = done()
            self.history.check_room(record)
        except (InvalidPayload, PayloadTooLarge) as error:
            failure = describe(error)
            self.put(
                StepRecord(
                    name=name,
                    kind="step",
                    place=place,
                    at=self.now(),
                    tries=tries,
                    is_failed=True,
                    error=msgspec.structs.replace(failure, traceback=None),
                )
            )
            yield SAVE
            raise StepFailed(name, tries, error_text(failure)) from error
        self.put(record)
        yield SAVE

    def _failed(self, name: str, place: int, tries: int, retry: Retry, error: Exception) -> Durable:
        """A step that failed under a policy of its own: once more later, or for good."""
        policy = retry.for_error(error)
        failure = describe(error)
        is_final = policy is None or policy.gives_up(tries, timedelta(0))
        record = StepRecord(
            name=name,
            kind="step",
            place=place,
            at=self.now(),
            tries=tries,
            is_failed=is_final,
            error=msgspec.structs.replace(failure, traceback=None),
        )
        if policy is None or is_final:
            self.put(record)
            yield SAVE
            raise StepFailed(name, tries, error_text(failure)) from error
        moment = yield from self.store_now()
        until = moment + policy.delay(tries, self.rng)
        self.put(msgspec.structs.replace(record, until=until))
        yield SAVE
        self._active -= 1  # it waits from here on, and must not wait for itself
        try:
            yield from self.suspend(until, "slept", f"step {name!r} failed and is tried again then")
        finally:
            self._active += 1

    def _sleep(self, duration: timedelta, name: str) -> Durable:
        name, place, record = self.reach(name, "sleep")
        if record is None:
            if self.is_replaying_only:
                raise Unwound
            moment = yield from self.store_now()
            record = StepRecord(name=name, kind="sleep", place=place, at=moment, until=moment + duration)
            self.put(record)
            yield SAVE
        if record.until is not None and self.now() < record.until:
            if self.is_replaying_only:
                raise Unwound
            yield from self.suspend(record.until, "slept", f"it sleeps ({name})")

    # -- finding the way back ----------------------------------------------------------------------

    def reach(self, name: str, kind: Kind) -> tuple[str, int, StepRecord | None]:
        """The handler makes its next call: its name and place, and what the history has about it."""
        if self.suspension is not None:
            raise Suspended  # the handler swallowed the first one; nothing is done any more
        times = self._times[name] = self._times.get(name, 0) + 1
        key = name if times == 1 else f"{name}#{times}"
        place = self._calls
        self._calls += 1
        self._visited.add(key)
        self._callers.add(self._caller())
        record = self.history.records.get(key)
        if record is not None and record.kind != kind:
            raise HistoryMismatch(
                f"job {self.claim.id} has {key!r} in its history as a {record.kind}; its handler makes "
                f"it a {kind}. {ADVICE}"
            )
        # Calls made at the same time come in any order; only one after the other they must agree.
        other = self._by_place.get(place)
        is_alone = len(self._callers) == 1 and not self.is_replaying_only
        if record is None and other is not None and other not in self._visited and is_alone:
            raise HistoryMismatch(
                f"call {place + 1} of job {self.claim.id} is {key!r} in its handler and {other!r} in "
                f"its history. {ADVICE}"
            )
        return key, place, record

    def _caller(self) -> int:
        if not self._is_async:
            return threading.get_ident()
        import asyncio

        return id(asyncio.current_task())

    @property
    def _by_place(self) -> dict[int, str]:
        """The names of the steps that the history had when the attempt began, by their places."""
        if self._places is None:
            records = self.history.records.values()
            self._places = {record.place: record.name for record in records if record.place >= 0}
        return self._places

    # -- waiting -----------------------------------------------------------------------------------

    def suspend(
        self, until: datetime | None, what: str, reason: str, waits: Sequence[tuple[str, bool]] = ()
    ) -> Durable:
        """End the attempt; the job continues at this moment at the latest, or when what it waits for has
        come (storage/decide/waits.py has the keys). Does not return."""
        if until is not None:
            self._wake_at = until if self._wake_at is None else min(until, self._wake_at)
        self._waits |= dict(waits)
        yield PARK
        if self.suspension is None:
            delay = None if self._wake_at is None else max(self._wake_at - self.now(), timedelta(0))
            text = reason if delay is None else f"{reason}, {_for(delay)}"
            if self._waits:
                keys = tuple(self._waits.items())
                self.suspension = Settled(
                    JobState.BLOCKED, "waited", counts=False, reason=text, waits=keys, timeout=delay
                )
            else:
                self.suspension = Settled(
                    JobState.SCHEDULED, what, delay or timedelta(0), counts=False, reason=text
                )
        raise Suspended

    def _left(self) -> None:
        if not self._active and self._idle is not None:
            self._idle.set()


ADVICE = (
    "The code has changed since the job began: deploy that code again, or separate the versions with "
    "ctx.version(…)"
)


def names(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def _for(delay: timedelta) -> str:
    return f"for {format_duration(timedelta(seconds=round(delay.total_seconds())))}"


def error_text(error: Failure | None) -> str:
    return "no error" if error is None else f"{error.name}: {error.message}"


def _name_of(fn: Callable[..., Any]) -> str:
    name = getattr(fn, "__name__", None)
    if not isinstance(name, str) or name == "<lambda>":
        raise ConfigError(
            f"a step needs a name that is the same in every attempt, and {fn!r} has none; pass name=…"
        )
    return name


def _checked_name(name: str) -> str:
    if not isinstance(name, str) or not name.strip() or len(name) > codec.MAX_NAME_CHARS:
        raise ConfigError(
            f"the name of a step must be a text of 1 to {codec.MAX_NAME_CHARS} characters, got {name!r}"
        )
    codec.check_tree(name, "the name of a step")
    return name


def _value(text: str | None, fn: Callable[..., Any], name: str) -> Any:
    """What the step returned, in the type of its annotation: the same in the first and later
    attempts."""
    if text is None:
        return None
    what = f"the result of step {name!r}"
    return converted(codec.loads(text, what=what), _hint(fn), what)


# What functions are annotated to return: to evaluate that costs more than all else about a small step.
_hints: WeakKeyDictionary[Callable[..., Any], Any] = WeakKeyDictionary()


def _hint(fn: Callable[..., Any]) -> Any:
    made = getattr(fn, "__wrapped__", fn)
    made = getattr(made, "__func__", made)  # a bound method is a new object each time
    try:
        return _hints[made]
    except (KeyError, TypeError):  # TypeError: it cannot be a key
        pass
    try:
        hint = typing.get_type_hints(made).get("return", Any)
    except Exception:  # an annotation that cannot be evaluated is ignored
        return Any  # and looked at again: the name may be defined by then
    with contextlib.suppress(TypeError):
        _hints[made] = hint
    return hint

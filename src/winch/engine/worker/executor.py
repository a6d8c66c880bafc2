"""One job: read its arguments, call its handler, and say what came of it. Never touches the store."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from winch.core.errors import InvalidPayload, JobTimeout, MissingKey, UnknownTask, WinchError
from winch.core.flow import INPUTS_HEADER
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
from winch.core.policy.queue_settings import QueueSettings
from winch.core.policy.retry import DEFAULT_RETRY, Retry, from_stored
from winch.core.steps import is_history
from winch.core.values import codec
from winch.core.values.duration import format_duration
from winch.engine.base.current_job import current_job
from winch.engine.base.encryption import Keyring, seal, unseal
from winch.engine.base.failure import cause_of, describe, described
from winch.engine.base.log import log
from winch.engine.flows.compose import batch_of
from winch.engine.flows.inputs import with_inputs
from winch.engine.tasks import results
from winch.engine.tasks.collecting import Collected, CollectedArguments
from winch.engine.tasks.context import Context
from winch.engine.tasks.injection import Injector
from winch.engine.tasks.options import StoredOptions, stored_timeout
from winch.engine.tasks.runtime import Runtime
from winch.engine.tasks.task import Task
from winch.engine.worker.attempt import Attempt, Interrupt
from winch.engine.worker.durable_jobs import DurableSide
from winch.engine.worker.interrupts import (
    InThread,
    OnLoop,
    Paused,
    Together,
    in_own_context,
    resumed,
    uncancel,
)
from winch.engine.worker.running.process import Cells, Crash
from winch.engine.worker.running.thread_pool import ThreadCall, Threads
from winch.storage.protocol import Driver

# A job of a newer version than this worker's waits this long before somebody looks again.
NEWER_PAUSE = timedelta(seconds=5)
# A job whose key this worker does not have: another may have it, or a deploy brings it.
# What the traceback of a handler that tried to end its process says besides.
NOT_ITS_WORKER = "The attempt failed with this; a job must not end its worker."
KEY_PAUSE = timedelta(seconds=15)
# How most attempts end: completed, with nothing to tell.
COMPLETED = Settled(JobState.COMPLETED, "completed")

Call = tuple[Sequence[Any], dict[str, Any]]


class Plan(msgspec.Struct, frozen=True):
    """What the worker needs to know before it starts a job: its task, time limit and retry policy."""

    task: Task[Any, Any]
    timeout: timedelta | None
    retry: Retry
    is_alone: bool = False
    seconds: float | None = None
    """`timeout` as the worker counts it."""
    version: int = 1
    is_plain: bool = False
    """Nothing but its arguments goes into the handler: it can be called as it is."""
    is_laned: bool = False
    """A plain coroutine, which may be over as soon as it has begun."""


class Executor:
    """Runs handlers: coroutines on the loop, functions in threads, isolated ones in cells."""

    def __init__(
        self,
        runtime: Runtime,
        threads: Threads,
        monotonic: Callable[[], float],
        rng: random.Random,
        store: Callable[[], Driver],
        cells: Cells | None = None,
    ) -> None:
        self._runtime = runtime
        self._threads = threads
        self._monotonic = monotonic
        self._rng = rng
        self._store = store
        self._cells = cells
        self._durable = DurableSide(runtime, threads, monotonic, rng, store)
        # The plans of jobs without options of their own, by task.
        self.usual: dict[str, Plan] = {}
        # What operators have set for queues; refreshed by the worker.
        self.settings: Mapping[str, QueueSettings] = {}

    def plan(self, claim: Claim) -> Plan | Settled:
        """How to run this job; how it ends where it cannot be run at all."""
        set_for = self.settings.get(claim.queue) if self.settings else None
        is_usual = claim.options is None and not claim.is_suspect and set_for is None
        if is_usual and claim.expires_at is None:
            plan = self.usual.get(claim.task)
            if plan is not None:
                return plan
        try:
            task = self._runtime.tasks.get(claim.task)
        except UnknownTask as error:
            return self._unrun(claim, Discard(str(error)))
        timeout, retry = task.options.timeout, task.options.retry
        usual = self.usual.get(task.name)
        if usual is None:
            usual = self.usual[task.name] = self._planned(task, timeout, retry, is_suspect=False)
        if set_for is not None:
            retry = set_for.policy(retry)
        if claim.options is not None:
            try:
                said = msgspec.json.decode(claim.options, type=StoredOptions)
                if said.timeout is not None:
                    timeout = stored_timeout(said.timeout)
            except (msgspec.DecodeError, UnicodeEncodeError) as error:
                return self._unrun(claim, Discard(f"malformed: options: {error}"))
            if said.retry is not None:
                retry = from_stored(said.retry)
            if said.attempts is not None:
                retry = msgspec.structs.replace(retry, attempts=said.attempts)
        is_begun = claim.checkpoint is not None  # what has begun is worth ending
        if claim.expires_at is not None and claim.claimed_at >= claim.expires_at and not is_begun:
            when = f"{claim.expires_at:%Y-%m-%d %H:%M:%S} UTC"
            return self._unrun(claim, Cancel(f"expired at {when}, before it ran"))
        if is_usual:
            return usual
        return self._planned(task, timeout, retry, is_suspect=claim.is_suspect)

    def _planned(
        self, task: Task[Any, Any], timeout: timedelta | None, retry: Retry, *, is_suspect: bool
    ) -> Plan:
        is_alone = self._cells is not None and (task.options.isolate == "process" or is_suspect)
        is_plain = (
            not is_alone
            and task.options.collect is None
            and task.options.heartbeat is None
            and _takes_only_arguments(task)
        )
        return Plan(
            task,
            timeout,
            retry,
            is_alone,
            seconds=None if timeout is None else timeout.total_seconds(),
            version=task.options.version,
            is_plain=is_plain,
            is_laned=is_plain and task.is_async,
        )

    def call_of(self, claim: Claim, plan: Plan) -> Call | None:
        """The call that a plain job makes; None where there is more to it, or something is wrong."""
        if claim.version != plan.version or self._runtime.middleware or INPUTS_HEADER in claim.headers:
            return None
        try:
            return plan.task.arguments.unpack(claim.args)
        except InvalidPayload:
            return None  # malformed, or encrypted: the long way tells them apart

    def begin(self, attempt: Attempt, plan: Plan, call: Call) -> Settled | Paused | None:
        """Run a plain coroutine handler, to its end if it never waits. `resume` goes on from there."""
        args, kwargs = call
        try:
            handler = plan.task.fn(*args, **kwargs)
            run = contextvars.copy_context().run
            step = run(handler.send, None)
        except StopIteration as stop:
            return COMPLETED if stop.value is None else self.returned(attempt, plan, stop.value)
        except BaseException as error:  # whatever a handler raises is its outcome
            return self.raised(attempt, plan, error)
        return Paused(handler, run, step)

    @property
    def has_middleware(self) -> bool:
        """Whether something else runs around every job."""
        return bool(self._runtime.middleware)

    def returned(self, attempt: Attempt, plan: Plan, value: object) -> Settled | None:
        """How an attempt ends whose handler returned this at once."""
        return self._ended(attempt, plan, self._returned(value, attempt.claim, plan.task), 0.0)

    def raised(self, attempt: Attempt, plan: Plan, error: BaseException) -> Settled | None:
        """How an attempt ends whose handler raised this at once."""
        return self._ended(attempt, plan, _raised(error, attempt, plan), 0.0)

    async def resume(self, attempt: Attempt, plan: Plan, paused: Paused, began: float) -> Settled | None:
        """How an attempt that `begin` has begun ends."""
        outcome: Outcome | None
        try:
            value = await resumed(paused)
            outcome = self._returned(value, attempt.claim, plan.task)
        except BaseException as error:  # whatever a handler raises is its outcome
            outcome = _raised(error, attempt, plan)
        finally:
            if attempt.is_stopping:
                uncancel()
        return self._ended(attempt, plan, outcome, self._monotonic() - began)

    def ended_in_thread(self, attempt: Attempt, plan: Plan, call: ThreadCall) -> Settled | None:
        """How a plain function's call has ended; called in its thread."""
        if call.error is not None:
            return self._ended(attempt, plan, _raised(call.error, attempt, plan), call.spent)
        if call.value is None:
            return COMPLETED
        return self._ended(
            attempt, plan, self._returned(call.value, attempt.claim, plan.task), call.spent
        )

    def given_up(self, attempt: Attempt, plan: Plan, spent: float) -> Settled | None:
        """How an attempt ends whose handler does not."""
        return self._ended(attempt, plan, _interrupted(attempt, plan), spent)

    def _ended(
        self, attempt: Attempt, plan: Plan, outcome: Outcome | None, spent: float
    ) -> Settled | None:
        if outcome is None:
            return None
        if type(outcome) is Done:
            return Settled(JobState.COMPLETED, "completed", result=outcome.result, reason=outcome.note)
        return self._settle(attempt.claim, outcome, plan.retry, timedelta(seconds=spent))

    def _returned(self, value: object, claim: Claim, task: Task[Any, Any]) -> Outcome:
        if isinstance(value, Directive):
            return _directive(value)
        return _done(value, claim, task, self._runtime.keys())

    async def run(self, attempt: Attempt, plan: Plan) -> Settled | Crash | None:
        """How one attempt ends; None when the handler was interrupted and says nothing."""
        if plan.is_alone and self._cells is not None:
            return await self._run_alone(self._cells, attempt, plan)
        return await self.run_here(attempt, plan)

    async def _run_alone(self, cells: Cells, attempt: Attempt, plan: Plan) -> Settled | Crash | None:
        timeout = None if plan.timeout is None else plan.timeout.total_seconds()
        ended = await cells.run(attempt, timeout)
        if ended is not None or attempt.is_finished:
            return ended
        outcome = _interrupted(attempt, plan)
        spent = plan.timeout or timedelta(0)
        if outcome is None:
            return None
        settled = self._settle(attempt.claim, outcome, plan.retry, spent)
        return await self._durable.ended_alone(attempt.claim, settled)

    async def run_here(self, attempt: Attempt, plan: Plan) -> Settled | None:
        """`run` in this process."""
        if plan.task.options.collect is not None:
            [settled] = await self.run_together([attempt], [plan])
            return settled
        began = self._monotonic()
        outcome = await self._outcome(attempt, plan)
        if attempt.is_finished and not isinstance(outcome, Done):
            log.error(
                "job %s committed its own completion and then failed: %r", attempt.claim.id, outcome
            )
        if outcome is None or attempt.is_finished:
            return None
        spent = timedelta(seconds=self._monotonic() - began)
        settled = self._settle(attempt.claim, outcome, plan.retry, spent)
        if attempt.steps is not None:
            settled = await self._durable.ended(attempt, settled, plan.retry)
        lines = None if attempt.said is None else attempt.said.take_log()
        return settled if lines is None else msgspec.structs.replace(settled, log=lines)

    async def run_together(
        self, attempts: Sequence[Attempt], plans: Sequence[Plan]
    ) -> list[Settled | None]:
        """One call of a collecting task for many jobs: how each of them ends."""
        began = self._monotonic()
        task = plans[0].task
        outcomes: list[Outcome | None] = [None] * len(attempts)
        jobs: dict[int, Collected[Any]] = {}
        for place, (attempt, plan) in enumerate(zip(attempts, plans, strict=True)):
            read = self._collected(attempt, plan)
            if isinstance(read, Collected):
                jobs[place] = read
            else:
                outcomes[place] = read
        if jobs:
            raised = await self._call_together([attempts[place] for place in jobs], task, jobs.values())
            for place, job in jobs.items():
                outcomes[place] = self._outcome_of(job, raised, attempts[place], plans[place])
        spent = timedelta(seconds=self._monotonic() - began)
        return [
            None if outcome is None else self._settle(attempt.claim, outcome, plan.retry, spent)
            for attempt, plan, outcome in zip(attempts, plans, outcomes, strict=True)
        ]

    async def _call_together(
        self, attempts: Sequence[Attempt], task: Task[Any, Any], jobs: Iterable[Collected[Any]]
    ) -> BaseException | None:
        """Call the handler with all of them; what it raised, or returned as a directive."""
        arguments = task.arguments
        assert isinstance(arguments, CollectedArguments)  # noqa: S101  # as its options say
        together = Together(attempts)
        try:
            given = {arguments.parameter: list(jobs)}
            if task.is_async:
                together.handler = OnLoop(asyncio.current_task())
                call = self._on_loop(task, [], given, None)
                value = await in_own_context(call)
            else:
                value = await self._in_thread(together, task, [], given, None)
        except BaseException as error:  # whatever a handler raises is its outcome
            if isinstance(error, KeyboardInterrupt | SystemExit):
                error.add_note(NOT_ITS_WORKER)
            return error
        finally:
            if attempts[0].is_stopping:
                uncancel()
        return value if isinstance(value, Directive) else None

    def _collected(self, attempt: Attempt, plan: Plan) -> Collected[Any] | Outcome:
        """What the call is given for this job; its outcome where it cannot be given."""
        task, claim = plan.task, attempt.claim
        arguments = task.arguments
        assert isinstance(arguments, CollectedArguments)  # noqa: S101  # as its options say
        if claim.version > task.options.version:
            return _newer(claim, task)
        try:
            claim = self._opened(claim)
            args = arguments.read(task.current_args(claim.args, claim.version))
        except MissingKey as error:
            return _without_key(claim, error)
        except InvalidPayload as error:
            return Discard(f"malformed: {error}")
        return Collected(
            args, id=claim.id, attempt=claim.attempt, is_cancelled=lambda: attempt.is_unwanted
        )

    def _outcome_of(
        self, job: Collected[Any], raised: BaseException | None, attempt: Attempt, plan: Plan
    ) -> Outcome | None:
        """What was said about this job counts, also when the call ended badly; else how it ended."""
        said = job.said
        if said is None and attempt.is_stopping:
            return _interrupted(attempt, plan)
        said = raised if said is None else said
        if said is None or said == "done":
            return _done(job.result, attempt.claim, plan.task, self._runtime.keys())
        return _directive(said) if isinstance(said, Directive) else _failed(said, plan)

    def _settle(self, claim: Claim, outcome: Outcome, policy: Retry, spent: timedelta) -> Settled:
        age = claim.claimed_at - claim.created_at + spent
        return settle(outcome, attempt=claim.attempt, age=age, policy=policy, rng=self._rng)

    def _unrun(self, claim: Claim, outcome: Outcome) -> Settled:
        return self._settle(claim, outcome, DEFAULT_RETRY, timedelta(0))

    async def _outcome(self, attempt: Attempt, plan: Plan) -> Outcome | None:
        task, claim = plan.task, attempt.claim
        if claim.version > task.options.version:
            return _newer(claim, task)
        try:
            claim = self._opened(claim)
            text = task.current_args(claim.args, claim.version)
            if INPUTS_HEADER in claim.headers:
                given = await with_inputs(self._store, claim, task, text, self._runtime.keys())
                if not isinstance(given, str):
                    return given
                text = given
            args, kwargs = task.arguments.unpack(text)
        except MissingKey as error:
            return _without_key(claim, error)
        except InvalidPayload as error:
            return Discard(f"malformed: {error}")

        def call() -> Coroutine[Any, Any, Any]:
            made = self._call(attempt, claim, task, args, kwargs)
            return in_own_context(made) if task.is_async or self._runtime.middleware else made

        try:
            if is_history(claim.checkpoint):
                undone = await self._durable.undone(attempt, claim, task, plan.retry, call)
                if undone is not None:
                    return undone
            value = await call()
            if attempt.steps is not None:
                attempt.steps.check_end()
        except BaseException as error:  # whatever a handler raises is its outcome
            return _raised(error, attempt, plan)
        finally:
            if attempt.is_stopping:
                uncancel()
        return self._returned(value, claim, plan.task)

    def _opened(self, claim: Claim) -> Claim:
        """The claim with its arguments and checkpoint in plain text, for this attempt only."""
        keys, about = self._runtime.keys(), {"job": claim.id, "task": claim.task}
        saved = claim.checkpoint
        return msgspec.structs.replace(
            claim,
            args=unseal(keys, claim.args, **about, field="args"),
            checkpoint=saved if saved is None else unseal(keys, saved, **about, field="checkpoint"),
        )

    def _call(
        self,
        attempt: Attempt,
        claim: Claim,
        task: Task[Any, Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Coroutine[Any, Any, Any]:
        """The handler inside the app's middleware."""
        wants = task.arguments.injected
        hooks = self._runtime.middleware
        ctx = self._context(attempt, claim, task) if wants or hooks else None
        if task.is_async:
            attempt.handler = OnLoop(asyncio.current_task())
            handler = functools.partial(self._on_loop, task, args, kwargs, ctx)
        else:
            handler = functools.partial(self._in_thread, attempt, task, args, kwargs, ctx)
        for middleware in reversed(hooks):
            handler = functools.partial(middleware.run, ctx, handler)  # type: ignore[arg-type]
        return handler()

    def _context(self, attempt: Attempt, claim: Claim, task: Task[Any, Any]) -> Context:
        return Context(
            claim,
            attempt.reports,
            deadline=attempt.deadline,
            monotonic=self._monotonic,
            is_cancelled=lambda: attempt.is_stopping,
            store=self._store,
            resources=self._runtime.resources,
            finished=attempt.finished,
            client=task.client,
            keys=self._runtime.keys(),
            lease=self._runtime.lease().total_seconds(),
            batch=batch_of,
            durable=functools.partial(self._durable.steps, attempt, claim, task),
        )

    async def _on_loop(
        self,
        task: Task[Any, Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        ctx: Context | None,
    ) -> Any:
        wants = task.arguments.injected
        if not wants:
            return await task.fn(*args, **kwargs)
        if ctx is not None:
            current_job.set(ctx.job_id)  # the handler has a context of its own
        async with contextlib.AsyncExitStack() as stack:
            given = await Injector(ctx, self._runtime.resources).amake(wants, stack)
            args, given = task.arguments.with_injected(args, given)
            return await task.fn(*args, **kwargs, **given)

    async def _in_thread(
        self,
        attempt: Attempt | Together,
        task: Task[Any, Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        ctx: Context | None,
    ) -> Any:
        wants = task.arguments.injected

        def run() -> Any:
            if not wants:
                return task.fn(*args, **kwargs)
            if ctx is not None:
                current_job.set(ctx.job_id)  # a call in a thread has a context of its own
            with contextlib.ExitStack() as stack:
                given = Injector(ctx, self._runtime.resources).make(wants, stack)
                positional, named = task.arguments.with_injected(args, given)
                return task.fn(*positional, **kwargs, **named)

        call = self._threads.submit(run)
        attempt.handler = InThread(call, self._threads)
        assert call.done is not None  # noqa: S101  # a submitted call has one
        await call.done
        if call.error is not None:
            raise call.error
        return call.value


def _takes_only_arguments(task: Task[Any, Any]) -> bool:
    try:
        return not task.arguments.injected
    except WinchError:
        return False  # said when it is run, as its outcome


def _without_key(claim: Claim, error: MissingKey) -> Outcome:
    log.warning("job %s (%s) waits: %s", claim.id, claim.task, error)
    return Snooze(KEY_PAUSE, f"waits for a worker that can read it: {error}")


def _newer(claim: Claim, task: Task[Any, Any]) -> Outcome:
    mine = f"this worker has version {task.options.version} of {task.name}"
    return Snooze(NEWER_PAUSE, f"{mine}, the job needs version {claim.version}")


def _interrupted(attempt: Attempt, plan: Plan) -> Outcome | None:
    if attempt.interrupted is Interrupt.TIMEOUT:
        return timed_out(plan, is_silent=attempt.is_silent)
    if attempt.interrupted is Interrupt.CANCEL:
        return Cancel("cancelled while running")
    return None


def timed_out(plan: Plan, *, is_silent: bool = False) -> Failed:
    """The outcome of an attempt that took longer than it may, or gave no sign of life for too long."""
    if is_silent:
        limit = format_duration(plan.task.options.heartbeat or timedelta(0))
        said = f"gave no sign of life for its heartbeat of {limit} (ctx.progress, checkpoint or beat)"
    else:
        said = f"took longer than its timeout of {format_duration(plan.timeout or timedelta(0))}"
    return _failed(JobTimeout(said), plan)


def _raised(error: BaseException, attempt: Attempt, plan: Plan) -> Outcome | None:
    """What comes of what a handler raised."""
    if isinstance(error, Directive):
        return _directive(error)
    if attempt.is_stopping:
        return _interrupted(attempt, plan)
    if attempt.steps is not None and (decided := attempt.steps.decided(error)) is not None:
        return decided
    if isinstance(error, KeyboardInterrupt | SystemExit):
        error.add_note(NOT_ITS_WORKER)
    return _failed(error, plan)  # a cancellation too: the handler's own doing, not ours


def _failed(error: BaseException, plan: Plan) -> Failed:
    return Failed(describe(error), plan.retry.for_error(error))


def _directive(directive: Directive) -> Outcome:
    if isinstance(directive, RetryAfter | Discard) and (cause := cause_of(directive)) is not None:
        # The job failed with that error: what was done about it must not hide it.
        directive.error = described(cause, directive.reason)
    return directive  # type: ignore[return-value]  # the four directives are outcomes as they are


def _done(value: object, claim: Claim, task: Task[Any, Any], keys: Keyring | None) -> Outcome:
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
            "job %s completed with a result of %d bytes; only its beginning is kept", claim.id, cut.bytes
        )
    return Done(seal(keys, text, job=claim.id, task=claim.task, field="result"))

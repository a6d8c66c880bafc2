"""Runs one job's handler: reads its arguments, calls it, and settles what came of it.

It touches the store only for jobs with durable steps or inputs from other jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from winch.core.errors import InvalidPayload, MissingKey
from winch.core.flow import INPUTS_HEADER
from winch.core.job import Claim
from winch.core.outcome import Directive, Discard, Done, Outcome, Settled
from winch.core.steps import is_history, restarted
from winch.engine.base.current_job import current_job
from winch.engine.base.encryption import unseal
from winch.engine.base.log import log
from winch.engine.flows.batch import batch_of
from winch.engine.flows.inputs import with_inputs
from winch.engine.tasks.collecting import Collected, CollectedArguments
from winch.engine.tasks.context import Context, ContextTools
from winch.engine.tasks.injection import Injector
from winch.engine.tasks.runtime import Runtime
from winch.engine.tasks.task import Task
from winch.engine.worker.attempt import Attempt
from winch.engine.worker.durable_jobs import DurableJobs
from winch.engine.worker.interrupts import (
    InThread,
    OnLoop,
    Paused,
    Together,
    in_own_context,
    resumed,
    uncancel,
)
from winch.engine.worker.running.choose import Chooser, JobPlan, Way
from winch.engine.worker.running.django_connections import of_coroutines
from winch.engine.worker.running.process import Crash, IsolatedProcesses
from winch.engine.worker.running.threads import Threads
from winch.engine.worker.settle import (
    NOT_ITS_WORKER,
    Settler,
    directed,
    failed,
    interrupted,
    newer,
    raised,
    without_key,
)
from winch.storage.protocol import Driver


class Executor:
    """Runs handlers: coroutines on the loop, functions in threads, isolated ones in processes."""

    def __init__(
        self,
        runtime: Runtime,
        threads: Threads,
        monotonic: Callable[[], float],
        rng: random.Random,
        store: Callable[[], Driver],
        processes: IsolatedProcesses | None = None,
        *,
        counts_jobs: bool = False,
    ) -> None:
        self._runtime = runtime
        self._threads = threads
        self._monotonic = monotonic
        self._store = store
        self._processes = processes
        self.worker: str = ""
        """The id of the session whose jobs run here."""
        self._durable = DurableJobs(runtime, threads, monotonic, rng, store)
        self._context_tools = ContextTools(
            runtime, store, monotonic, steps=self._durable.steps, batch=batch_of
        )
        self.settler: Settler = Settler(runtime, rng)
        self.chooser: Chooser = Chooser(
            runtime,
            self.settler,
            has_processes=processes is not None,
            makes_rows=threads.makes_rows,
            counts_jobs=counts_jobs,
        )

    async def resume(
        self, attempt: Attempt, plan: JobPlan, paused: Paused, began: float
    ) -> Settled | None:
        """How an attempt ends whose coroutine has come to its first wait."""
        try:
            value = await resumed(paused)
            return self.settler.returned(attempt, plan, value, self._monotonic() - began)
        except BaseException as error:  # whatever a handler raises is its outcome
            return self.settler.raised(attempt, plan, error, self._monotonic() - began)
        finally:
            if attempt.is_stopping:
                uncancel()
            if of_coroutines.are_used:
                await of_coroutines.aclose_old()

    async def run(self, attempt: Attempt, plan: JobPlan) -> Settled | Crash | None:
        """How one attempt ends; None when the handler was interrupted and has no outcome."""
        if plan.way is Way.PROCESS and self._processes is not None:
            return await self._run_alone(self._processes, attempt, plan)
        return await self.run_here(attempt, plan)

    async def _run_alone(
        self, processes: IsolatedProcesses, attempt: Attempt, plan: JobPlan
    ) -> Settled | Crash | None:
        timeout = None if plan.timeout is None else plan.timeout.total_seconds()
        ended = await processes.run(attempt, timeout, self.worker)
        if ended is not None or attempt.is_finished:
            return ended
        outcome = interrupted(attempt, plan)
        spent = plan.timeout or timedelta(0)
        if outcome is None:
            return None
        settled = self.settler.settle(attempt.claim, outcome, plan.retry, spent)
        return await self._durable.ended_alone(attempt.claim, settled)

    async def run_here(self, attempt: Attempt, plan: JobPlan) -> Settled | None:
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
        claim = attempt.claim if attempt.steps is None else attempt.steps.claim
        settled = self.settler.settle(claim, outcome, plan.retry, spent)
        if attempt.steps is not None:
            settled = await self._durable.ended(attempt, settled, plan.retry)
        lines = None if attempt.made_reports is None else attempt.made_reports.take_log()
        return settled if lines is None else msgspec.structs.replace(settled, log=lines)

    async def run_together(
        self, attempts: Sequence[Attempt], plans: Sequence[JobPlan]
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
            error = await self._call_together([attempts[place] for place in jobs], task, jobs.values())
            for place, job in jobs.items():
                outcomes[place] = self._outcome_of(job, error, attempts[place], plans[place])
        spent = timedelta(seconds=self._monotonic() - began)
        return [
            None if outcome is None else self.settler.settle(attempt.claim, outcome, plan.retry, spent)
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

    def _collected(self, attempt: Attempt, plan: JobPlan) -> Collected[Any] | Outcome:
        """What the call is given for this job; its outcome where it cannot be given."""
        task, claim = plan.task, attempt.claim
        arguments = task.arguments
        assert isinstance(arguments, CollectedArguments)  # noqa: S101  # as its options say
        if claim.version > task.options.version:
            return newer(claim, task)
        try:
            claim = self._opened(claim)
            args = arguments.read(task.current_args(claim.args, claim.version))
        except MissingKey as error:
            return without_key(claim, error)
        except InvalidPayload as error:
            return Discard(f"malformed: {error}")
        return Collected(
            args, id=claim.id, attempt=claim.attempt, is_cancelled=lambda: attempt.is_unwanted
        )

    def _outcome_of(
        self, job: Collected[Any], error: BaseException | None, attempt: Attempt, plan: JobPlan
    ) -> Outcome | None:
        """The outcome that the call chose for this job, also when the call ended badly; else its end."""
        chosen = job.outcome
        if chosen is None and attempt.is_stopping:
            return interrupted(attempt, plan)
        chosen = error if chosen is None else chosen
        if chosen is None or chosen == "done":
            return self.settler.done(job.result, attempt.claim, plan.task)
        return directed(chosen) if isinstance(chosen, Directive) else failed(chosen, plan)

    async def _outcome(self, attempt: Attempt, plan: JobPlan) -> Outcome | None:
        task, claim = plan.task, attempt.claim
        if claim.version > task.options.version:
            return newer(claim, task)
        try:
            claim = restarted(self._opened(claim))
            if claim.version > task.options.version:
                return newer(claim, task)
            text = task.current_args(claim.args, claim.version)
            if INPUTS_HEADER in claim.headers:
                given = await with_inputs(self._store, claim, task, text, self._runtime.keys())
                if not isinstance(given, str):
                    return given
                text = given
            args, kwargs = task.arguments.unpack(text)
        except MissingKey as error:
            return without_key(claim, error)
        except InvalidPayload as error:
            return Discard(f"malformed: {error}")

        def call() -> Coroutine[Any, Any, Any]:
            made = self._call(attempt, claim, plan, args, kwargs)
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
            return raised(error, attempt, plan)
        finally:
            if attempt.is_stopping:
                uncancel()
        return self.settler.outcome_of(value, claim, plan.task)

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
        plan: JobPlan,
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Coroutine[Any, Any, Any]:
        """The handler inside the app's middleware."""
        task = plan.task
        wants = task.arguments.injected
        hooks = self._runtime.middleware
        ctx = self._context(attempt, claim, plan) if wants or hooks else None
        if task.is_async:
            attempt.handler = OnLoop(asyncio.current_task())
            handler = functools.partial(self._on_loop, task, args, kwargs, ctx)
        else:
            handler = functools.partial(self._in_thread, attempt, task, args, kwargs, ctx)
        for middleware in reversed(hooks):
            handler = functools.partial(middleware.run, ctx, handler)  # type: ignore[arg-type]
        return handler()

    def _context(self, attempt: Attempt, claim: Claim, plan: JobPlan) -> Context:
        return Context(
            claim, attempt, plan.task, self._context_tools, retry=plan.retry, worker=self.worker
        )

    async def _on_loop(
        self,
        task: Task[Any, Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        ctx: Context | None,
    ) -> Any:
        wants = task.arguments.injected
        if of_coroutines.are_used:
            await of_coroutines.aclose_old()
        try:
            if not wants:
                return await task.fn(*args, **kwargs)
            if ctx is not None:
                current_job.set(ctx.job_id)  # the handler has a context of its own
            async with contextlib.AsyncExitStack() as stack:
                given = await Injector(ctx, self._runtime.resources).amake(wants, stack)
                args, given = task.arguments.with_injected(args, given)
                return await task.fn(*args, **kwargs, **given)
        finally:
            if of_coroutines.are_used:
                await of_coroutines.aclose_old()

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

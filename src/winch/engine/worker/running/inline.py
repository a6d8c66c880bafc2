"""A fast path: plain coroutines one after the other, for as long as none of them waits for anything.

Saves: an attempt, an entry among the running jobs and a turn of the event loop for each coroutine that
is over at once. Nothing can interrupt such a coroutine while it holds the event loop, so it needs none
of them. `tests/engine/test_cost.py` counts the calls for each job; `WINCH_FAST=off` shows the
difference.

Must equal: `ON_LOOP`, the executor's `run_here`. What every job needs it gets here too: a place among
the started jobs before it starts, context variables of its own, and a finish. The first coroutine that
waits becomes an attempt like any other."""

from __future__ import annotations

import contextvars
from typing import NamedTuple

from winch.core.job import Claim
from winch.core.lifecycle import JobState
from winch.engine.base.log import log
from winch.engine.worker.attempt import Attempt
from winch.engine.worker.held_jobs import ref_of
from winch.engine.worker.interrupts import OnLoop, Paused
from winch.engine.worker.running.choose import JobPlan, Way
from winch.engine.worker.running.parts import Parts

_COMPLETED = JobState.COMPLETED
_INLINE = Way.INLINE


class Begun(NamedTuple):
    """A job that has come to its first wait."""

    attempt: Attempt
    paused: Paused
    plan: JobPlan


class _Raised:
    """What a handler raised, apart from what it may return."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Inline:
    """The jobs of one worker that end where they begin."""

    def __init__(self, parts: Parts) -> None:
        self._jobs = parts.jobs
        self._executor = parts.executor
        self._recorder = parts.recorder

    def run(self, on_loop: OnLoop, now: float, until: float) -> tuple[float, int, Begun | None]:
        """Run jobs until the next has another way, or it is `until`, or one waits.

        Returns when the last of them ended, how many ended, and the one that waits.
        """
        waiting, too_old, monotonic = self._jobs.waiting, self._jobs.too_old, self._jobs.monotonic
        places, completed = self._jobs.places, self._recorder.finisher.completed
        copy, runner = contextvars.copy_context, on_loop.runner
        ran = 0
        while now < until:
            try:
                item = waiting.popleft()
            except IndexError:
                break
            claim, sent, _, plan = item
            if type(plan) is not JobPlan or plan.way is not _INLINE or now - sent > too_old:
                waiting.appendleft(item)  # for the slot, which runs it in its way
                break
            try:
                args, kwargs = plan.task.arguments.unpack(claim.args)
            except Exception:  # malformed, or encrypted: the plain way distinguishes them
                waiting.appendleft(item)
                break
            seconds, began = plan.seconds, now
            if places is not None:
                places.begin(claim.id, claim.token, None if seconds is None else now + seconds)
            try:
                handler = plan.task.fn(*args, **kwargs)
                run = copy().run
                step = run(handler.send, None)
            except StopIteration as stop:
                now = monotonic()
                if places is not None:
                    places.end(claim.id, claim.token)
                ran += 1
                if stop.value is None:
                    completed(claim, now - began)
                else:
                    self._ended(claim, plan, stop.value, began)
            except BaseException as error:  # whatever a handler raises is its outcome
                now = monotonic()
                if places is not None:
                    places.end(claim.id, claim.token)
                ran += 1
                self._ended(claim, plan, _Raised(error), began)
            else:
                deadline = None if seconds is None else began + seconds
                attempt = self._jobs.attempts[claim.id, claim.token] = Attempt(claim, deadline)
                attempt.handler = on_loop
                return began, ran, Begun(attempt, Paused(handler, run, step), plan)
            if runner.cancelling():  # the handler has cancelled itself: that must not hit the next one
                break
        return now, ran, None

    async def go_on(self, begun: Begun, began: float) -> None:
        """Run a job that waits to its end."""
        attempt, paused, plan = begun
        try:
            ended = await self._executor.resume(attempt, plan, paused, began)
        finally:
            self._jobs.end(attempt)
        self._recorder.record(attempt, ended, began)

    def _ended(self, claim: Claim, plan: JobPlan, value: object, began: float) -> None:
        attempt = Attempt(claim, None)
        try:
            if isinstance(value, _Raised):
                settled = self._executor.settler.raised(attempt, plan, value.error)
            else:
                settled = self._executor.settler.returned(attempt, plan, value)
            self._recorder.record(attempt, settled, began)
        except Exception:
            log.exception("job %s: the worker itself failed; the job is released", claim.id)
            self._recorder.finisher.interrupted(ref_of(claim))

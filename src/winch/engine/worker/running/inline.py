"""Plain coroutines one after the other, for as long as none of them waits for anything.

Most coroutines that are over at once need nothing that a running job needs: nobody can interrupt one
while it holds the event loop, so it has no attempt, no deadline but the one on the board, and no slot of
its own. What every job needs it gets here too: a place on the board before it starts, context variables
of its own, and a finish. The first that waits is handed back, to be carried on as any other job.
"""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from winch.core.flow import INPUTS_HEADER
from winch.core.job import Claim
from winch.core.lifecycle import JobState
from winch.engine.base.log import log
from winch.engine.observe.throughput import Tally
from winch.engine.worker.attempt import Attempt
from winch.engine.worker.executor import Executor, Plan
from winch.engine.worker.finisher import Finisher
from winch.engine.worker.interrupts import OnLoop, Paused
from winch.engine.worker.outcomes import Recorder, ref_of
from winch.engine.worker.places import Places
from winch.engine.worker.running.collecting import Waiting
from winch.storage.decide.waits import AWAITED_HEADER
from winch.storage.params import Finish

_COMPLETED = JobState.COMPLETED


class Begun(NamedTuple):
    """A job that has come to its first wait."""

    attempt: Attempt
    paused: Paused
    plan: Plan


class _Raised:
    """What a handler raised, apart from what it may return."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Lane:
    """The jobs of one worker that end where they begin. `waiting` is shared with it."""

    def __init__(
        self,
        executor: Executor,
        recorder: Recorder,
        places: Places,
        finisher: Finisher,
        tally: Tally,
        waiting: deque[Waiting],
        attempts: dict[int, Attempt],
        *,
        too_old: float,
        monotonic: Callable[[], float],
    ) -> None:
        self._executor = executor
        self._recorder = recorder
        self._places = places
        self._finisher = finisher
        self._tally = tally
        self._waiting = waiting
        self._attempts = attempts
        self._too_old = too_old
        self._monotonic = monotonic

    @property
    def is_open(self) -> bool:
        """Whether nobody wants more than the call itself for every job."""
        return not self._recorder.is_heard and not self._executor.has_middleware

    def run(self, on_loop: OnLoop, now: float, until: float) -> tuple[float, int, Begun | None]:
        """Run jobs until the next is none for the lane, or it is `until`, or one waits.

        Returns when the last of them ended, how many ended, and the one that waits.
        """
        waiting, too_old, monotonic = self._waiting, self._too_old, self._monotonic
        usual, settings = self._executor.usual, self._executor.settings
        begin, end, count = self._places.begin, self._places.end, self._tally.ended
        copy, cancelling = contextvars.copy_context, on_loop.cancelling
        finishes: list[Finish] = []
        ran = 0
        try:
            while now < until:
                try:
                    item = waiting.popleft()
                except IndexError:
                    break
                claim, sent, _ = item
                plan = usual.get(claim.task)
                if (
                    plan is None
                    or not plan.is_laned
                    or claim.options is not None
                    or (claim.headers and INPUTS_HEADER in claim.headers)
                    or claim.is_suspect
                    or claim.expires_at is not None
                    or claim.version != plan.version
                    or now - sent > too_old
                    or (settings and claim.queue in settings)
                ):
                    waiting.appendleft(item)  # the long way is for all of these
                    break
                try:
                    args, kwargs = plan.task.arguments.unpack(claim.args)
                except Exception:  # malformed, or encrypted: the long way tells them apart
                    waiting.appendleft(item)
                    break
                seconds, began = plan.seconds, now
                place = begin(claim.id, claim.token, None if seconds is None else now + seconds)
                try:
                    handler = plan.task.fn(*args, **kwargs)
                    run = copy().run
                    step = run(handler.send, None)
                except StopIteration as stop:
                    now = monotonic()
                    end(claim.id, claim.token, place)
                    ran += 1
                    if stop.value is None:
                        count(claim, "completed", now - began)
                        finishes.append(
                            Finish(
                                id=claim.id,
                                token=claim.token,
                                to=_COMPLETED,
                                what="completed",
                                is_awaited=AWAITED_HEADER in claim.headers,
                            )
                        )
                    else:
                        self._ended(claim, place, plan, stop.value, began)
                except BaseException as error:  # whatever a handler raises is its outcome
                    now = monotonic()
                    end(claim.id, claim.token, place)
                    ran += 1
                    self._ended(claim, place, plan, _Raised(error), began)
                else:
                    deadline = None if seconds is None else began + seconds
                    attempt = self._attempts[place] = Attempt(claim, place, deadline)
                    attempt.handler = on_loop
                    return began, ran, Begun(attempt, Paused(handler, run, step), plan)
                if cancelling():  # the handler has cancelled itself: that must not hit the next one
                    break
        finally:
            if finishes:
                self._finisher.finish_all(finishes)
        return now, ran, None

    def _ended(self, claim: Claim, place: int, plan: Plan, value: object, began: float) -> None:
        attempt = Attempt(claim, place, None)
        try:
            if isinstance(value, _Raised):
                settled = self._executor.raised(attempt, plan, value.error)
            else:
                settled = self._executor.returned(attempt, plan, value)
            self._recorder.record(attempt, settled, began)
        except Exception:
            log.exception("job %s: the worker itself failed; the job is released", claim.id)
            self._finisher.interrupted(ref_of(claim))

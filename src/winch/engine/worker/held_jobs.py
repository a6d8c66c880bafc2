"""The jobs that one worker holds: those it has claimed and not started, and those that run."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from winch.core.gates.uses import holds_something
from winch.core.job import Claim
from winch.core.outcome import Settled
from winch.engine.base.log import log
from winch.engine.worker.attempt import Attempt, Interrupt
from winch.engine.worker.recycling import Recycling
from winch.engine.worker.running.choose import JobPlan, Way
from winch.engine.worker.started_jobs import StartedPlaces
from winch.storage.params import ClaimRef, Finish

# A claimed job that has not started: the claim, when it was sent for, when it came, and how to run it
# (or how it ends where it cannot be run).
Waiting = tuple[Claim, float, float, JobPlan | Settled]


class HeldJobs:
    """What the slots, the ways to run a handler and the monitors share.

    Threads take from `waiting` and add to `attempts` under `lock`, and the event loop holds it to look
    at both: a job is never seen in neither of them, nor in both."""

    def __init__(
        self,
        places: StartedPlaces | None,
        recycling: Recycling,
        *,
        too_old: float,
        monotonic: Callable[[], float],
    ) -> None:
        """`places`: where a supervisor sees which jobs have started; None without one."""
        self.places = places
        self.recycling = recycling
        self.too_old = too_old
        """Un-started claims older than this, in seconds, are released: others may have them."""
        self.monotonic = monotonic
        self.session: str = ""
        self.is_draining: bool = False
        self.waiting: deque[Waiting] = deque()
        self.attempts: dict[tuple[str, str], Attempt] = {}
        """Those that run, by job and token."""
        self.lock: threading.Lock = threading.Lock()

    def begin(self, claim: Claim, plan: JobPlan, now: float) -> Attempt:
        """An attempt that starts now, shown to the supervisor."""
        beat = plan.task.options.heartbeat
        attempt = Attempt(
            claim,
            None if plan.seconds is None else now + plan.seconds,
            None if beat is None else beat.total_seconds(),
            monotonic=self.monotonic,
        )
        if beat is not None:
            attempt.reports.sign()  # it counts from the start
        attempt.is_alone = plan.way is Way.PROCESS
        self.show(attempt)
        self.attempts[attempt.key] = attempt
        return attempt

    def show(self, attempt: Attempt) -> None:
        """Show the supervisor that the job has started, and when it has to end."""
        if self.places is not None:
            self.places.begin(*attempt.key, attempt.must_end_by, is_here=not attempt.is_alone)

    def end(self, attempt: Attempt) -> None:
        """The attempt has ended; its place is kept until the store knows."""
        del self.attempts[attempt.key]
        if self.places is not None:
            self.places.end(*attempt.key)

    def written(self, claims: Sequence[Finish | ClaimRef]) -> None:
        """The store knows of the end of these claims."""
        if self.places is not None:
            self.places.written(claims)

    @property
    def running(self) -> tuple[Attempt, ...]:
        return tuple(self.attempts.values())

    def drop_waiting(self) -> list[ClaimRef]:
        """Forget all that have not started."""
        with self.lock:
            unstarted = [ClaimRef(claim.id, claim.token) for claim, _, _, _ in self.waiting]
            self.waiting.clear()
        return unstarted

    def tokens(self) -> set[str]:
        """The tokens of all claims."""
        with self.lock:
            tokens = {claim.token for claim, _, _, _ in self.waiting}
            return tokens | {attempt.claim.token for attempt in self.running}

    # -- interrupts --------------------------------------------------------------------------------

    def interrupt_all(self, why: Interrupt) -> None:
        """Have every running handler end now."""
        for attempt in self.running:
            attempt.interrupt(why, self.monotonic())

    def cancel(self, ref: ClaimRef) -> None:
        """A cancel of this job was requested."""
        attempt = self.attempts.get((ref.id, ref.token))
        if attempt is None:
            return
        if attempt.is_together:
            attempt.is_unasked = True  # the others in the call go on
        elif not attempt.is_stopping:
            attempt.interrupt(Interrupt.CANCEL, self.monotonic())

    def lost(self, attempt: Attempt) -> None:
        """The store refused a report of this attempt: another worker has its job."""
        if self.attempts.get(attempt.key) is attempt and not attempt.is_stopping:
            attempt.interrupt(Interrupt.LOST, self.monotonic())

    def lease_over(self) -> None:
        """The store has been away for a lease. Others may run these jobs by now, and under a limit, a
        FIFO key or alone in a process that would be one too many: they stop, and are released when
        the store is there again. Plain handlers go on, and their ends are sent then."""
        stopping = [
            attempt for attempt in self.running if _must_stop(attempt) and not attempt.is_stopping
        ]
        if stopping:
            log.warning(
                "the store has been unreachable for one lease: ending %d handlers that run under "
                "a limit, with a FIFO key, or in processes of their own",
                len(stopping),
            )
        for attempt in stopping:
            attempt.interrupt(Interrupt.STOP, self.monotonic())

    def give_up(self, attempt: Attempt) -> None:
        """A handler that does not end: settle its job without it."""
        if attempt.is_given_up or attempt.handler is None:
            return
        if not attempt.handler.give_up():
            attempt.interrupt(
                Interrupt.STOP, self.monotonic()
            )  # a coroutine can only be interrupted again
            return
        attempt.is_given_up = True
        log.error(
            "job %s (%s) did not end when it was cancelled; its slot is given up",
            attempt.claim.id,
            attempt.claim.task,
        )
        if attempt.handler.leaves_a_thread:
            log.error("a thread is left behind; this worker takes no more jobs and is replaced")
            self.recycling.retire("a thread is left behind")


def _must_stop(attempt: Attempt) -> bool:
    """Whether another worker that runs the same job would be one too many."""
    claim = attempt.claim
    return attempt.is_alone or claim.has_permit or holds_something(claim.options)


def ref_of(claim: Claim) -> ClaimRef:
    return ClaimRef(claim.id, claim.token)

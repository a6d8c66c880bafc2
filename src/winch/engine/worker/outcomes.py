"""Records the end of an attempt: in the metrics, for subscribers, and by the finisher in the store."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from winch.core.errors import JobTimeout, type_name
from winch.core.gates.uses import holds_something
from winch.core.job import Claim, Failure
from winch.core.lifecycle import FINAL, JobState
from winch.core.outcome import Settled
from winch.core.values.fingerprint import fingerprint
from winch.engine.base.log import log
from winch.engine.observe.throughput import Tally
from winch.engine.tasks.events import Events, kind_of
from winch.engine.worker.attempt import Attempt, Interrupt
from winch.engine.worker.finisher import Finisher
from winch.engine.worker.held_jobs import HeldJobs, ref_of
from winch.engine.worker.running.process import Crash
from winch.storage.decide.settled import as_finish
from winch.storage.decide.waits import AWAITED_HEADER
from winch.storage.params import Finish

_TIMEOUT = type_name(JobTimeout)


class Recorder:
    """The one way from an attempt's end to the store."""

    def __init__(self, finisher: Finisher, jobs: HeldJobs, events: Events, tally: Tally) -> None:
        self.finisher = finisher
        self.tally = tally
        self.events = events
        self._jobs = jobs
        self._monotonic = jobs.monotonic
        self._is_verbose = log.isEnabledFor(logging.DEBUG)

    def record(self, attempt: Attempt, ended: Settled | Crash | None, began: float) -> None:
        claim = attempt.claim
        if attempt.is_finished:
            self.publish("completed", claim, duration=timedelta(seconds=self._monotonic() - began))
            self.tally.ended(claim, "completed", self._monotonic() - began)
            self._jobs.written([ref_of(claim)])
        elif isinstance(ended, Crash):
            log.error("job %s (%s): its process died: %s", claim.id, claim.task, ended.cause)
            self.finisher.crash(ref_of(claim), ended.cause)
            self.publish("crashed", claim, reason=ended.cause)
            self.tally.ended(claim, "crashed", self._monotonic() - began)
        elif ended is not None:
            self.finish(claim, ended, began)
        elif attempt.interrupted is Interrupt.STOP:
            self.finisher.interrupted(ref_of(claim))
        else:
            self._jobs.written([ref_of(claim)])  # another worker has it by now

    def finish(self, claim: Claim, settled: Settled, began: float) -> None:
        has_gates = claim.has_permit or (claim.options is not None and holds_something(claim.options))
        is_completed = settled.to is JobState.COMPLETED
        outcome = "completed" if is_completed else _outcome(settled.to)
        error = settled.error
        is_timeout = error is not None and error.type == _TIMEOUT and outcome in ("failed", "dead")
        self.tally.ended(claim, outcome, self._monotonic() - began, is_timeout=is_timeout)
        is_heard = self._is_verbose or self.events.is_heard
        if is_completed and settled.log is None and not is_heard and not has_gates:
            self.finisher.finish(
                Finish(
                    id=claim.id,
                    token=claim.token,
                    to=JobState.COMPLETED,
                    what="completed",
                    result=settled.result,
                    reason=settled.reason,
                    is_awaited=AWAITED_HEADER in claim.headers,
                )
            )
            return
        if error is not None:
            log_failure(claim, settled, error)
        self.publish(
            kind_of(settled.to),
            claim,
            duration=timedelta(seconds=self._monotonic() - began),
            error=settled.error,
            reason=settled.reason,
        )
        is_member = has_gates and settled.to in FINAL and self.finisher.continues(claim.options)
        end = self.finisher.finish_member if is_member else self.finisher.finish
        end(
            as_finish(
                settled,
                claim.id,
                claim.token,
                is_awaited=AWAITED_HEADER in claim.headers,
                is_gated=has_gates,
                fingerprint=(
                    fingerprint(claim.task, settled.error)
                    if settled.to is JobState.DEAD and settled.error is not None
                    else None
                ),
            )
        )

    def publish(self, kind: str, claim: Claim, **facts: Any) -> None:
        if self._is_verbose:
            took = facts.get("duration")
            took = "" if took is None else f" after {took.total_seconds():.3f}s"
            log.debug("job %s (%s) attempt %d: %s%s", claim.id, claim.task, claim.attempt, kind, took)
        self.events.send(kind, claim, **facts)


def _outcome(to: JobState) -> str:
    """The word under which an attempt's end is counted. A job that sleeps, waits or undoes its steps has
    not failed: its last attempt has the outcome."""
    if to in FINAL:
        return to.value
    return "failed" if to is JobState.RETRYING else "snoozed"


def log_failure(claim: Claim, settled: Settled, error: Failure) -> None:
    """One line with what happens next, and the traceback below it. The exception may have been raised in
    another process, so its traceback is text; every formatter shows it where that of an exception is."""
    next_up = f"retry in {settled.delay.total_seconds():.1f} s" if settled.delay else str(settled.to)
    record = log.makeRecord(
        log.name,
        logging.WARNING,
        __file__,
        0,
        "job %s (%s) attempt %d failed: %s: %s; %s",
        (claim.id, claim.task, claim.attempt, error.name, error.message, next_up),
        None,
    )
    record.exc_text = None if error.traceback is None else error.traceback.rstrip()
    log.handle(record)

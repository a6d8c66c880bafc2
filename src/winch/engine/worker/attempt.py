"""One attempt as the worker sees it while it runs: the claim, its deadline, and how to interrupt it."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

import msgspec

from winch.core.job import Claim
from winch.engine.durable.steps import Steps
from winch.engine.tasks.context import Reports


class Interrupt(StrEnum):
    """Why a running handler is asked to end."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    LOST = "lost"
    STOP = "stop"


class Handler(Protocol):
    """A handler that runs: a coroutine in its runner, a call in a thread, a job in its own process."""

    def interrupt(self, why: Interrupt) -> None:
        """Ask it to end. May be asked again."""
        ...

    def give_up(self) -> bool:
        """Stop waiting for it. False: it cannot be left alone here, only asked again."""
        ...

    @property
    def leaves_a_thread(self) -> bool:
        """Whether giving it up leaves a thread behind, so that the worker has to be replaced."""
        ...


class Attempt(msgspec.Struct, eq=False):
    """A running job. Interrupting it a second time repeats the request, not the decision."""

    claim: Claim
    deadline: float | None
    heartbeat: float | None = None
    """The longest time without a sign of life, in seconds."""
    monotonic: Callable[[], float] = time.monotonic
    handler: Handler | None = None
    interrupted: Interrupt | None = None
    interrupted_at: float = 0.0
    is_silent: bool = False
    is_alone: bool = False
    is_together: bool = False
    """One of many jobs in one call."""
    is_unasked: bool = False
    is_given_up: bool = False
    is_finished: bool = False
    is_over: bool = False
    """It has ended in its thread; the worker has not heard of it yet."""
    made_reports: Reports | None = None
    steps: Steps | None = None
    """Once it makes durable steps."""

    @property
    def key(self) -> tuple[str, str]:
        """What the worker and its supervisor know it by. A job that was lost and claimed again may run
        here twice, under two tokens."""
        return self.claim.id, self.claim.token

    @property
    def reports(self) -> Reports:
        """What it reports; made when it is needed, for most handlers report nothing."""
        if self.made_reports is None:
            self.made_reports = Reports(self.monotonic)
        return self.made_reports

    def interrupt(self, why: Interrupt, now: float) -> None:
        """Ask the handler to end."""
        if self.interrupted is None:
            self.interrupted = why
            self.interrupted_at = now
        if self.handler is not None:
            self.handler.interrupt(self.interrupted)

    def finished(self) -> None:
        """The handler has ended its job itself, in its own transaction."""
        self.is_finished = True

    @property
    def is_unwanted(self) -> bool:
        """Whether its outcome is no longer wanted: cancelled, lost, or out of time."""
        return self.is_unasked or self.is_stopping

    @property
    def must_end_by(self) -> float | None:
        """When it has timed out, unless it gives a sign of life before."""
        if self.heartbeat is None:
            return self.deadline
        silent = self.reports.signed_at + self.heartbeat
        return silent if self.deadline is None else min(silent, self.deadline)

    @property
    def is_stopping(self) -> bool:
        return self.interrupted is not None

"""One attempt as the worker sees it while it runs: the claim, its deadline, and how to interrupt it."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from winch.core.job import Claim
from winch.engine.context import Reports


class Interrupt(StrEnum):
    """Why a running handler is asked to end."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    LOST = "lost"
    STOP = "stop"


class JobTimeout(TimeoutError):
    """The attempt took longer than its task allows."""


class JobCancelled(Exception):  # names what happened, as asyncio's does
    """Raised inside a synchronous handler whose job was cancelled, lost, or must stop."""


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


class Attempt:
    """A running job. Interrupting it a second time repeats the request, not the decision."""

    __slots__ = (
        "claim",
        "deadline",
        "handler",
        "heartbeat",
        "interrupted",
        "interrupted_at",
        "is_alone",
        "is_finished",
        "is_given_up",
        "is_silent",
        "is_together",
        "is_unasked",
        "place",
        "reports",
    )

    def __init__(
        self,
        claim: Claim,
        place: int,
        deadline: float | None,
        heartbeat: float | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.claim = claim
        self.place = place
        self.deadline = deadline
        self.heartbeat = heartbeat  # the longest time without a sign of life, in seconds
        self.is_silent = False
        self.is_alone = False
        self.is_together = False  # one of many jobs in one call
        self.is_unasked = False
        self.handler: Handler | None = None
        self.interrupted: Interrupt | None = None
        self.interrupted_at = 0.0
        self.is_given_up = False
        self.is_finished = False
        self.reports = Reports(monotonic)

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
        """Whether nobody waits for it: cancelled, lost, or out of time."""
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

"""One attempt as the worker sees it while it runs: the claim, its deadline, and how to interrupt it."""

from __future__ import annotations

import asyncio
from enum import StrEnum

from winch.core.job import Claim
from winch.engine.threads import ThreadCall


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


class Attempt:
    """A running job. Interrupting it a second time repeats the request, not the decision."""

    __slots__ = (
        "call",
        "claim",
        "deadline",
        "interrupted",
        "interrupted_at",
        "is_given_up",
        "runner",
        "slot",
    )

    def __init__(self, claim: Claim, slot: int, deadline: float | None) -> None:
        self.claim = claim
        self.slot = slot
        self.deadline = deadline
        self.interrupted: Interrupt | None = None
        self.interrupted_at = 0.0
        self.is_given_up = False
        self.runner: asyncio.Task[None] | None = None
        self.call: ThreadCall | None = None

    def interrupt(self, why: Interrupt, now: float) -> None:
        """Ask the handler to end: cancel its coroutine, or raise in its thread."""
        if self.interrupted is None:
            self.interrupted = why
            self.interrupted_at = now
        if self.call is not None:
            self.call.interrupt(JobTimeout if self.interrupted is Interrupt.TIMEOUT else JobCancelled)
        elif self.runner is not None:
            self.runner.cancel()

    @property
    def is_stopping(self) -> bool:
        return self.interrupted is not None

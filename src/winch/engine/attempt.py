"""One attempt as the worker sees it while it runs: the claim, its deadline, and how to interrupt it."""

from __future__ import annotations

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
        "interrupted",
        "interrupted_at",
        "is_finished",
        "is_given_up",
        "reports",
        "slot",
    )

    def __init__(self, claim: Claim, slot: int, deadline: float | None) -> None:
        self.claim: Claim = claim
        self.slot: int = slot
        self.deadline: float | None = deadline
        self.handler: Handler | None = None
        self.interrupted: Interrupt | None = None
        self.interrupted_at: float = 0.0
        self.is_given_up: bool = False
        self.is_finished: bool = False
        self.reports: Reports = Reports()

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
    def is_stopping(self) -> bool:
        return self.interrupted is not None

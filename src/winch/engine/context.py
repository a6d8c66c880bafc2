"""What a running handler is given: facts about its attempt, by annotation (`ctx: Context`)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from winch.core.job import Claim


class Context:
    """One attempt at one job, as seen by its handler.

    `fence` grows with every claim of the job and never repeats: hand it to other systems so that they
    can refuse a late writer. `idempotency_key` is the same in every attempt.
    """

    __slots__ = ("_claim", "_deadline", "_is_cancelled", "_monotonic")

    def __init__(
        self,
        claim: Claim,
        *,
        deadline: float | None,
        monotonic: Callable[[], float],
        is_cancelled: Callable[[], bool],
    ) -> None:
        self._claim = claim
        self._deadline = deadline
        self._monotonic = monotonic
        self._is_cancelled = is_cancelled

    @property
    def job_id(self) -> str:
        return self._claim.id

    @property
    def task(self) -> str:
        return self._claim.task

    @property
    def queue(self) -> str:
        return self._claim.queue

    @property
    def attempt(self) -> int:
        """The number of this try, from 1."""
        return self._claim.attempt

    @property
    def fence(self) -> int:
        return self._claim.fence

    @property
    def idempotency_key(self) -> str:
        return self._claim.id

    @property
    def created_at(self) -> datetime:
        return self._claim.created_at

    @property
    def headers(self) -> dict[str, str]:
        return dict(self._claim.headers)

    @property
    def time_left(self) -> timedelta | None:
        """How long this attempt may still take; None without a timeout."""
        if self._deadline is None:
            return None
        return timedelta(seconds=max(0.0, self._deadline - self._monotonic()))

    @property
    def cancelled(self) -> bool:
        """True once a cancel was requested or the claim was lost: stop when convenient."""
        return self._is_cancelled()

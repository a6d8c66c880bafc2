"""Verbs that a driver does not have in this release: refused by name, with what to use instead."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NoReturn

from winch.core.errors import ConfigError
from winch.storage.params import ClaimRef, Enqueued, NewJob, Promoted, Wait
from winch.storage.verbs import Verb
from winch.storage.waits import Sent, Taken


class NoWaits:
    """For a driver whose capabilities say `has_waits=False`."""

    def describe(self) -> str:
        raise NotImplementedError  # pragma: no cover  # of the driver

    def signal(self, name: str, payload: str, *, id: str, now: datetime | None = None) -> Verb[Sent]:
        self._refuse_waits()

    def take_signal(
        self, claim: ClaimRef, name: str, *, wanted_by: str, now: datetime | None = None
    ) -> Verb[Taken]:
        self._refuse_waits()

    def enqueue_after(
        self,
        jobs: Sequence[NewJob],
        waits: Sequence[tuple[str, Sequence[Wait]]],
        *,
        claim: ClaimRef | None = None,
        is_repeat: bool = False,
        now: datetime | None = None,
    ) -> Verb[list[Enqueued] | None]:
        self._refuse_waits()

    def unblock(self, *, limit: int = 1000, now: datetime | None = None) -> Verb[Promoted]:
        self._refuse_waits()

    def _refuse_waits(self) -> NoReturn:
        raise ConfigError(
            f"signals and waiting for other jobs are not available on {self.describe()} in this "
            "release; use a sqlite:/// or postgresql:// URL"
        )

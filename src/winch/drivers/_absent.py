"""Verbs that a driver does not have in this release: refused by name, with what to use instead."""

from __future__ import annotations

from datetime import datetime
from typing import NoReturn

from winch.core.errors import ConfigError
from winch.storage.schedules import Change, Changed, ScheduleRun, Schedules
from winch.storage.verbs import Verb


class NoSchedules:
    """For a driver whose capabilities say `has_schedules=False`."""

    def describe(self) -> str:
        raise NotImplementedError  # pragma: no cover  # of the driver

    def schedules(self, *, name: str | None = None, now: datetime | None = None) -> Verb[Schedules]:
        self._refuse()

    def due_schedules(self, *, limit: int = 100, now: datetime | None = None) -> Verb[Schedules]:
        self._refuse()

    def change_schedule(
        self, name: str, change: Change, *, now: datetime | None = None
    ) -> Verb[Changed]:
        self._refuse()

    def schedule_runs(self, name: str, *, limit: int = 50) -> Verb[list[ScheduleRun]]:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ConfigError(
            f"schedules are not available on {self.describe()} in this release; use a sqlite:/// or "
            "postgresql:// URL"
        )

"""What Django needs to know of jobs: permissions, and a place in its admin. There is no table of it."""

from __future__ import annotations

from typing import Any

from django.db import models


class Job(models.Model):
    """A job in the store of TASKS. Django never reads or writes it: the admin reads the store."""

    id: Any = models.CharField(primary_key=True, max_length=64)

    class Meta:
        """Not a table of Django's: `managed` is off, so no migration touches it."""

        managed = False
        default_permissions: tuple[str, ...] = ("view",)
        permissions: tuple[tuple[str, str], ...] = (("operate_job", "Can retry and cancel jobs"),)

    def __str__(self) -> str:
        return str(self.id)


class JobSchedule(models.Model):
    """A schedule in the store of TASKS. Django never reads or writes it either."""

    name: Any = models.CharField(primary_key=True, max_length=200)

    class Meta:
        """Not a table of Django's: `managed` is off, so no migration touches it."""

        managed = False
        verbose_name = "schedule"
        default_permissions: tuple[str, ...] = ("view",)
        permissions: tuple[tuple[str, str], ...] = (("operate_jobschedule", "Can change schedules"),)

    def __str__(self) -> str:
        return str(self.name)

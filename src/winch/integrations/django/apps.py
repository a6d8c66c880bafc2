"""The Django app: `INSTALLED_APPS = [..., "winch.integrations.django"]`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db.models.signals import post_migrate


class WinchConfig(AppConfig):
    """Migrates the stores with Django's own databases, and checks them."""

    name = "winch.integrations.django"
    label = "winch"
    verbose_name = "Winch"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        checks.register(_check_stores, checks.Tags.database)
        checks.register(_check_builds, checks.Tags.compatibility, deploy=True)
        post_migrate.connect(_migrate, sender=self, dispatch_uid="winch.migrate")


def backends() -> Iterator[Any]:
    """The entries of TASKS that are Winch's."""
    from winch.integrations.django.api import task_backends
    from winch.integrations.django.backend import WinchBackend

    for alias in task_backends:
        backend = task_backends[alias]
        if isinstance(backend, WinchBackend):
            yield backend


def _usable_backends() -> Iterator[Any]:
    """Those whose settings name a store; the check of the settings reports the others."""
    from winch.integrations.django.checks import check_backend

    for backend in backends():
        if not any(found.id == "winch.E001" for found in check_backend(backend)):
            yield backend


def _check_stores(databases: Any = None, **_: Any) -> list[Any]:
    from winch.integrations.django.checks import check_store

    named = set(databases or ())
    return [
        found
        for backend in _usable_backends()
        if backend.store.database in named
        for found in check_store(backend)
    ]


def _check_builds(**_: Any) -> list[Any]:
    from winch.integrations.django.checks import check_build

    return [found for backend in _usable_backends() for found in check_build(backend)]


def _migrate(using: str, **_: Any) -> None:
    """`manage.py migrate` has migrated a database: bring the store beside it up to date as well. The
    connections are closed again: a test runner copies or drops the database next."""
    for backend in backends():
        store = backend.store
        if store.database == using and backend.options.get("migrate", True):
            try:
                if not store.app.driver.check_schema().is_ready:
                    store.app.migrate()
            finally:
                store.app.close()

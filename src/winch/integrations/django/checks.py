"""System checks of the integration: `manage.py check` names what would fail later.

The checks of settings open no database. `manage.py check --database default` also looks at the store,
and `manage.py check --deploy` at the SQLite build.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

from django.core import checks

from winch import App, JobState
from winch.errors import WinchError
from winch.integrations.django.stores import (
    JOIN,
    databases_in,
    is_shared,
    sqlite_file,
    sqlite_fixed_in,
    unopened,
)

if TYPE_CHECKING:
    from winch.integrations.django.backend import WinchBackend


def check_backend(backend: WinchBackend) -> list[Any]:
    """The findings about one entry of TASKS. No store is opened."""
    where = f"TASKS[{backend.alias!r}]"
    try:
        store = backend.store
        unopened(store.app.settings.url)
    except WinchError as error:
        return [checks.Error(f"{where}: {str(error).removeprefix(f'{where}: ')}", id="winch.E001")]
    found = _shared_file(where, store.app)
    if (
        not found
        and backend.options.get("transaction") == JOIN
        and not is_shared(store.app, store.database)
    ):
        found.append(
            checks.Error(
                f"{where}: transaction is 'join', but its jobs are not in DATABASES[{store.database!r}]",
                hint="Leave the option out, or use 'on_commit'.",
                id="winch.E002",
            )
        )
    return found


def _shared_file(where: str, app: App) -> list[Any]:
    """Jobs in Django's own file, on a build of SQLite that can lose rows there."""
    path, fixed_in = sqlite_file(app), sqlite_fixed_in(app)
    databases = [] if path is None or fixed_in is None else databases_in(path)
    if not databases:
        return []
    return [
        checks.Error(
            f"{where}: the jobs are in the file of DATABASES[{databases[0]!r}]. SQLite "
            f"{sqlite3.sqlite_version} can lose committed rows when two programs write one file",
            hint="Leave the option 'url' out, and the jobs get a file beside it. "
            f"SQLite {fixed_in} and later can share one.",
            id="winch.E004",
        )
    ]


def check_build(backend: WinchBackend) -> list[Any]:
    """What the SQLite build means for a deployment: `manage.py check --deploy`."""
    path, fixed_in = sqlite_file(backend.store.app), sqlite_fixed_in(backend.store.app)
    if path is None or fixed_in is None:
        return []
    return [
        checks.Warning(
            f"TASKS[{backend.alias!r}]: SQLite {sqlite3.sqlite_version} can lose committed rows when a "
            f"program other than Winch writes {path}",
            hint=f"Open this file with Winch only, or use a Python with SQLite {fixed_in} or later.",
            id="winch.W003",
        )
    ]


def check_store(backend: WinchBackend) -> list[Any]:
    """What is wrong with the store behind one entry of TASKS."""
    where = f"TASKS[{backend.alias!r}]"
    try:
        app = backend.store.app
        driver = app.driver
        status = driver.check_schema()
        if status.is_ready:
            return _unserved(backend, app)
    except WinchError as error:
        return [checks.Error(f"{where}: {error}", id="winch.E003")]
    finally:
        backend.store.app.close()
    if driver.capabilities.migrates_itself:
        return []
    is_with_django = backend.options.get("migrate", True)
    return [
        checks.Warning(
            f"{where}: {driver.describe()} has schema {status.current or 'none'}, this release needs "
            f"{status.newest}",
            hint=f"`manage.py {'migrate' if is_with_django else 'winch migrate'}` brings it up to date.",
            id="winch.W001",
        )
    ]


def _unserved(backend: WinchBackend, app: App) -> list[Any]:
    """Queues with jobs that no live worker serves."""
    left = [
        queue.name
        for queue in app.queues.list()
        if not queue.sessions and queue.paused_at is None and queue.counts.get(JobState.READY, 0)
    ]
    if not left:
        return []
    return [
        checks.Warning(
            f"TASKS[{backend.alias!r}]: jobs wait in {', '.join(sorted(left))}, which no worker serves",
            hint=f"Run `manage.py winch worker --queue-name {','.join(sorted(left))}`.",
            id="winch.W002",
        )
    ]

"""System checks of the integration: `manage.py check` names what would fail later.

The checks of settings ask no database. `manage.py check --database default` also looks at the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core import checks

from winch import App, JobState
from winch.errors import ConfigError, WinchError
from winch.integrations.django.stores import JOIN, check_options, is_shared

if TYPE_CHECKING:
    from winch.integrations.django.backend import WinchBackend


def check_backend(backend: WinchBackend) -> list[Any]:
    """The findings about one entry of TASKS."""
    where = f"TASKS[{backend.alias!r}]"
    try:
        check_options(backend.alias, backend.options)
        store = backend.store
    except (ConfigError, WinchError) as error:
        return [checks.Error(f"{where}: {error}", id="winch.E001")]
    found: list[Any] = []
    if backend.options.get("transaction") == JOIN and not is_shared(store.app, store.database):
        found.append(
            checks.Error(
                f"{where}: transaction is 'join', but its jobs are not in DATABASES[{store.database!r}]",
                hint="Leave the option out, or use 'on_commit'.",
                id="winch.E002",
            )
        )
    return found


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
    return [
        checks.Warning(
            f"{where}: {driver.describe()} has schema {status.current or 'none'}, this release needs "
            f"{status.newest}",
            hint="Run `manage.py winch migrate`.",
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

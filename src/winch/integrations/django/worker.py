"""The app that a worker of a Django project runs: `-A "winch.integrations.django.worker:make_app()"`.

`manage.py winch worker` starts exactly that; $DJANGO_TASKS_BACKEND names the entry of TASKS.
"""

from __future__ import annotations

import os

import django
from django.apps import apps

from winch import App
from winch.errors import ConfigError

ENV = "DJANGO_TASKS_BACKEND"
SPEC = "winch.integrations.django.worker:make_app()"


def make_app() -> App:
    """Set Django up, import the project's tasks and return the app of the entry of TASKS."""
    if not apps.ready:
        django.setup()
    from winch.integrations.django.api import task_backends
    from winch.integrations.django.backend import WinchBackend
    from winch.integrations.django.discovery import discover

    alias = os.environ.get(ENV, "default")
    backend = task_backends[alias]
    if not isinstance(backend, WinchBackend):
        raise ConfigError(
            f"TASKS[{alias!r}] is {type(backend).__qualname__}; set its BACKEND to "
            "'winch.integrations.django.WinchBackend'"
        )
    app = backend.store.app
    discover(app, alias, backend.options)
    app.import_path = SPEC
    return app

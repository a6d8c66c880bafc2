"""Winch in a Django project: a backend for Django's tasks, commands, checks, admin and dashboard.

    INSTALLED_APPS = [..., "winch.integrations.django"]
    TASKS = {"default": {"BACKEND": "winch.integrations.django.WinchBackend"}}

Names are imported when they are used: Django imports this package before its own models are ready.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from winch.core.lazy import lazy

if TYPE_CHECKING:
    from winch.integrations.django.backend import WinchBackend
    from winch.integrations.django.dashboard import default_access, from_settings, view
    from winch.integrations.django.decorators import WinchTask, schedule, task
    from winch.integrations.django.requests import RequestFilter, RequestMiddleware
    from winch.integrations.django.stores import app_of

__all__ = [
    "RequestFilter",
    "RequestMiddleware",
    "WinchBackend",
    "WinchTask",
    "app_of",
    "default_access",
    "from_settings",
    "schedule",
    "task",
    "view",
]

_HOMES = {
    "RequestFilter": "winch.integrations.django.requests",
    "RequestMiddleware": "winch.integrations.django.requests",
    "WinchBackend": "winch.integrations.django.backend",
    "WinchTask": "winch.integrations.django.decorators",
    "app_of": "winch.integrations.django.stores",
    "default_access": "winch.integrations.django.dashboard",
    "from_settings": "winch.integrations.django.dashboard",
    "schedule": "winch.integrations.django.decorators",
    "task": "winch.integrations.django.decorators",
    "view": "winch.integrations.django.dashboard",
}

__getattr__ = lazy(__name__, _HOMES)

"""Winch in a Django project: a backend for Django's tasks, commands, checks, admin and dashboard.

    INSTALLED_APPS = [..., "winch.integrations.django"]
    TASKS = {"default": {"BACKEND": "winch.integrations.django.WinchBackend"}}

Names are imported when they are used: Django imports this package before its own models are ready.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    "RequestFilter": "requests",
    "RequestMiddleware": "requests",
    "WinchBackend": "backend",
    "WinchTask": "decorators",
    "app_of": "stores",
    "default_access": "dashboard",
    "from_settings": "dashboard",
    "schedule": "decorators",
    "task": "decorators",
    "view": "dashboard",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

"""The settings of crashed.py: those of the shop, with other tasks."""

from __future__ import annotations

from examples.django_shop.settings import *  # noqa: F403  # as Django's projects vary their settings

TASKS = {
    "default": {
        "BACKEND": "winch.integrations.django.WinchBackend",
        "QUEUES": [],
        "OPTIONS": {"modules": ["tests.django.crashed_tasks"], "settings": {"kill_after": "200ms"}},
    }
}

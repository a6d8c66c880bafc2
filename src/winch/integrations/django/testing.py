"""Tests of a project whose tasks are Winch's.

    class OrderTest(TestCase):
        def test_an_order_sends_its_receipt(self):
            with jobs() as world:
                with self.captureOnCommitCallbacks(execute=True):
                    self.client.post("/orders", {"number": 7})
                world.run_all()
            self.assertEqual(Receipt.objects.count(), 1)

In the block the jobs are in memory, and time stands still until the test moves it. Handlers run in the
test's own thread, so they see the rows of its transaction. A `TestCase` never commits, so what waits for
the commit runs where Django's own helpers run it: `captureOnCommitCallbacks(execute=True)`, or the
fixture `django_capture_on_commit_callbacks` of pytest-django.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from winch.integrations.django.api import task_backends
from winch.integrations.django.discovery import discover
from winch.integrations.django.stores import close_all
from winch.testing import World, virtual

__all__ = ["close_all", "jobs"]


@contextmanager
def jobs(alias: str = "default") -> Iterator[World]:
    """The entry of TASKS on a store in memory with a virtual clock; see `winch.testing.virtual`."""
    backend = task_backends[alias]
    app = backend.store.app
    discover(app, alias, backend.options)
    with virtual(app) as world:
        yield world

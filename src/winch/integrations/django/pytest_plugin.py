"""The fixture `django_jobs`, beside those of pytest-django.

    def test_an_order_gets_its_receipt(client, db, django_jobs, django_capture_on_commit_callbacks):
        with django_capture_on_commit_callbacks(execute=True):
            client.post("/orders", {"number": "7"})
        django_jobs.run_all()
        assert Receipt.objects.count() == 1

pytest loads this in every run of every project that has Winch installed, so it imports nothing of Django
or the engine before a test uses the fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from winch.testing import World


@pytest.fixture
def django_jobs() -> Iterator[World]:
    """The jobs of `TASKS["default"]` in memory and in virtual time: `jobs()` of the module `testing`."""
    from winch.integrations.django.testing import jobs

    with jobs() as world:
        yield world

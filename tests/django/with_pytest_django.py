"""The example shop under pytest-django; scripts/django_suite.py runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.django_db
def test_an_order_gets_its_receipt(
    client: Any, django_jobs: Any, django_capture_on_commit_callbacks: Callable[..., Any]
) -> None:
    from examples.django_shop.shop.models import Receipt

    with django_capture_on_commit_callbacks(execute=True):
        assert client.post("/orders", {"number": "7"}).status_code == 202
    assert Receipt.objects.count() == 0
    django_jobs.run_all()
    assert Receipt.objects.get().text == "receipt for 7"


@pytest.mark.django_db(transaction=True)
def test_a_test_that_commits_needs_no_helper(client: Any, django_jobs: Any) -> None:
    from examples.django_shop.shop.models import Order, Receipt

    assert client.post("/orders", {"number": "8"}).status_code == 202
    assert client.post("/orders", {"number": "9", "card": "declined"}).status_code == 402
    django_jobs.run_all()
    assert [order.number for order in Order.objects.all()] == ["8"]
    assert Receipt.objects.get().text == "receipt for 8"

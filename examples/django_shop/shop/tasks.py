"""The shop's tasks. A worker imports this module of every installed app by itself."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from django.utils import timezone

from examples.django_shop.shop.models import Order, Receipt
from winch import Retry, Unique
from winch.integrations.django import schedule, task

log = logging.getLogger("shop")


@task(
    queue_name="mail",
    takes_context=True,
    retry=Retry.exponential("100ms", max="2s", attempts=20),
    timeout="30s",
    unique=Unique("number"),
)
def write_receipt(context: Any, number: str) -> str:
    """Write the receipt of an order; a second run finds it and writes nothing."""
    order = Order.objects.get(number=number)
    text = f"receipt for {order.number}"
    Receipt.objects.get_or_create(order=order, defaults={"text": text, "attempt": context.attempt})
    log.info("receipt %s", number)
    return text


@task()
async def count_orders() -> int:
    """How many orders there are."""
    return int(await Order.objects.acount())


@schedule("0 3 * * *", tz="Europe/Berlin")
@task()
def forget_old_orders(days: int = 365) -> int:
    """Delete orders that are older than this."""
    limit = timezone.now() - timedelta(days=days)
    deleted, _ = Order.objects.filter(created_at__lt=limit).delete()
    return int(deleted)

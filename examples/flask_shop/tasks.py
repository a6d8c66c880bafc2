"""The jobs of the shop: `flask --app examples.flask_shop.web winch worker -Q mail`."""

from __future__ import annotations

from flask import current_app

from examples.flask_shop.store import Receipt, jobs, transaction
from winch import Retry, Unique


@jobs.task(
    queue="mail",
    retry=Retry.exponential("100ms", max="2s", attempts=20),
    timeout="30s",
    unique=Unique("number"),
)
def write_receipt(number: str) -> str:
    """Write the receipt of an order; a second run finds it and writes nothing."""
    text = f"{current_app.config['SHOP_NAME']}: receipt for {number}"  # the app context is there
    with transaction() as session:
        if session.get(Receipt, number) is None:
            session.add(Receipt(number=number, text=text))
    return text

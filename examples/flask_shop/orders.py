"""Orders without the web: what the routes call."""

from __future__ import annotations

from examples.flask_shop.store import Order, Receipt, transaction
from examples.flask_shop.tasks import write_receipt
from winch import Job


class Declined(Exception):
    """The payment was refused: nothing of the order may stay."""


def place(number: str, customer: str, card: str) -> Job[str]:
    """Store an order and the job that writes its receipt: both, or neither."""
    with transaction() as session:
        order = Order(number=number, customer=customer)
        session.add(order)
        session.flush()
        job = session.jobs.enqueue_using(write_receipt.using(tenant=customer), number)
        order.job = job.id
        if card == "declined":
            raise Declined
    return job


def receipt_of(number: str) -> str | None:
    """The text of the receipt of an order, as soon as there is one."""
    with transaction() as session:
        found = session.get(Receipt, number)
        return None if found is None else found.text

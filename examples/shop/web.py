"""The shop's front: an order and the job that charges it are one commit."""

from __future__ import annotations

import sqlalchemy as sa
from fastapi import FastAPI
from pydantic import BaseModel

from examples.shop.books import checkouts, orders
from examples.shop.checkout import checkout
from examples.shop.tasks import app, books, load_csv, pay

web = FastAPI()


class Order(BaseModel):
    """What a customer wants. The id is the customer's, so that asking twice is one order."""

    id: str
    product: str
    quantity: int


class Answer(BaseModel):
    """The answer of a person to a checkout."""

    id: str
    ok: bool


class Import(BaseModel):
    """A price list to load."""

    id: str
    path: str


@web.post("/orders", status_code=202)
def place(order: Order) -> dict[str, str]:
    """Take an order: the row and the job that charges it exist together, or neither does. On Redis the
    order is taken when both are there."""
    with books.transaction() as tx:
        known = books.execute(tx, sa.select(orders.c.id).where(orders.c.id == order.id))
        if not known:
            values = {**order.model_dump(), "amount": order.quantity * 100, "state": "placed"}
            books.execute(tx, sa.insert(orders).values(**values))
        if not known and not books.is_apart:
            # The product stands for its merchant: each has a fair share of the payments.
            fair = pay.using(conn=tx, id=order.id, tenant=order.product)
            fair.enqueue(order.id, order.product)  # type: ignore[call-arg]  # ctx is injected
    if books.is_apart:
        # After the commit, and again when the customer repeats the request: one id is one job.
        fair = pay.using(id=order.id, tenant=order.product)
        fair.enqueue(order.id, order.product)  # type: ignore[call-arg]
    return {"order": order.id}


@web.post("/checkouts", status_code=202)
def begin_checkout(order: Order) -> dict[str, str]:
    """Take an order that a person must approve first."""
    with books.transaction() as tx:
        known = books.execute(tx, sa.select(checkouts.c.state).where(checkouts.c.order_id == order.id))
        if not known:
            values = {"order_id": order.id, "product": order.product, "quantity": order.quantity}
            books.execute(tx, sa.insert(checkouts).values(**values, state="open"))
        if not known and not books.is_apart:
            checkout.using(conn=tx, id=order.id).enqueue(order.id, order.quantity)  # type: ignore[call-arg]
    if books.is_apart:
        checkout.using(id=order.id).enqueue(order.id, order.quantity)  # type: ignore[call-arg]
    return {"checkout": order.id}


@web.post("/approvals", status_code=202)
def approve(answer: Answer) -> dict[str, bool]:
    """Approve or refuse. Two requests are one signal, and an early one is kept."""
    return {"new": app.signal(f"approval:{answer.id}", {"ok": answer.ok}, id=answer.id)}


@web.post("/imports", status_code=202)
def start_import(asked: Import) -> dict[str, str]:
    job = load_csv.using(id=asked.id).enqueue(asked.id, asked.path)  # type: ignore[call-arg]
    return {"job": job.id}


@web.get("/health")
def health() -> dict[str, str]:
    return {"status": "open"}

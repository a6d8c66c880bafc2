"""Checkout as a saga: hold the goods, ask a person, charge, pack; a checkout that is declined is undone.

Each step that writes to the books is one commit with the note that it was made, so it happens once
wherever its worker is killed. The undo may be repeated, and looks first. On Redis there is no such
commit: there every step may be repeated, and looks first.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from examples.shop.books import boxes, checkouts, holds
from examples.shop.provider import charge
from examples.shop.tasks import PROVIDER, app, books
from winch import Cancel, Context, Retry

BOXES = 2


def hold(tx: Any, order_id: str, quantity: int) -> str:
    books.run(tx.connection, sa.insert(holds).values(order_id=order_id, quantity=quantity))
    return order_id


def hold_once(order_id: str, quantity: int) -> str:
    with books.transaction() as tx:
        if not books.execute(tx, sa.select(holds).where(holds.c.order_id == order_id)):
            books.execute(tx, sa.insert(holds).values(order_id=order_id, quantity=quantity))
    return order_id


def give_back(order_id: str) -> None:
    with books.transaction() as tx:
        of_order = sa.select(holds.c.quantity).where(holds.c.order_id == order_id)
        held = sum(row[0] for row in books.execute(tx, of_order))
        if held:
            books.execute(tx, sa.insert(holds).values(order_id=order_id, quantity=-held))
        _settle(tx, order_id, "declined")


def close(tx: Any, order_id: str) -> None:
    books.run(tx.connection, _settled(order_id, "done"))


def close_once(order_id: str) -> None:
    with books.transaction() as tx:
        _settle(tx, order_id, "done")


def _settle(tx: Any, order_id: str, state: str) -> None:
    books.execute(tx, _settled(order_id, state))


def _settled(order_id: str, state: str) -> Any:
    return sa.update(checkouts).where(checkouts.c.order_id == order_id).values(state=state)


@app.task(queue="mail")
def pack(order_id: str, number: int, *, ctx: Context) -> int:
    """One box, written once."""
    box = {"order_id": order_id, "number": number}
    if books.is_apart:
        with books.transaction() as session:
            if not books.execute(session, sa.select(boxes).filter_by(**box)):
                books.execute(session, sa.insert(boxes).values(**box))
        return number
    with ctx.transaction() as tx:
        books.run(tx.connection, sa.insert(boxes).values(**box))
        tx.result = number
    return number


@app.task(queue="payments", retry=Retry.exponential("100ms", max="2s", attempts=50))
def checkout(order_id: str, quantity: int, *, ctx: Context) -> list[int]:
    """Takes days in a real shop, and no worker while it waits."""
    if books.is_apart:
        ctx.step(hold_once, order_id, quantity, name="hold", undo=give_back)
    else:
        ctx.step(hold, order_id, quantity, transaction=True, undo=give_back)
    approval = ctx.wait_for(f"approval:{order_id}", timeout="2d", default={"ok": False})
    if not approval["ok"]:
        raise Cancel(f"order {order_id} was declined")
    key = f"{ctx.idempotency_key}:charge"
    ctx.step(charge, PROVIDER, key, order_id, quantity * 100, retry=Retry.fixed("200ms", attempts=100))
    ctx.sleep("200ms")
    packed: list[int] = ctx.gather(*[pack.bind(order_id, n) for n in range(BOXES)])  # type: ignore[call-arg]
    if books.is_apart:
        ctx.step(close_once, order_id, name="close")
    else:
        ctx.step(close, order_id, transaction=True)
    return packed

"""The shop's jobs. Payment and stock are exactly once: one by the provider's key, one by one commit.

On Redis there is no such commit: there each job looks whether an earlier attempt has written, and the
jobs it enqueues have ids of their own, so that a second attempt enqueues the same ones.
"""

from __future__ import annotations

import csv
import hashlib
import os
import uuid
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from examples.shop.books import (
    Books,
    catalogue,
    imported,
    ledger,
    moves,
    orders,
    receipts,
    reports,
    stock,
    thumbnails,
)
from examples.shop.provider import charge
from winch import App, Context, Discard, Fifo, Limit, Retry, Unique

app = App(lease="3s", heartbeat="500ms", sweep="500ms", poll="200ms", grace="2s")
books = Books(app)
# How often the books are counted: every night in a real shop, more often where it is watched.
NIGHTLY = os.environ.get("SHOP_REPORT_EVERY")
PROVIDER = os.environ.get("SHOP_PROVIDER", "http://127.0.0.1:8999/")


@app.task(
    queue="payments",
    retry=Retry.exponential("100ms", max="2s", attempts=50),
    limit=[Limit(3, key="merchant")],
)
def pay(order_id: str, merchant: str, *, ctx: Context) -> None:
    """Charge an order; then mark it paid, move the stock and order a receipt, in one commit."""
    with books.transaction() as tx:
        found = books.execute(tx, sa.select(orders).where(orders.c.id == order_id))
    if not found:
        raise Discard(f"there is no order {order_id}")
    _, product, quantity, amount, _ = found[0]
    charge(PROVIDER, ctx.idempotency_key, order_id, amount)
    with books.effects(ctx, moves, order_id) as effects:
        if effects.is_new:
            effects.run(sa.update(orders).where(orders.c.id == order_id).values(state="paid"))
            effects.run(sa.insert(moves).values(order_id=order_id, product=product, quantity=-quantity))
            effects.run(
                sa.update(stock)
                .where(stock.c.product == product)
                .values(on_hand=stock.c.on_hand - quantity)
            )
        if effects.tx is not None:
            follow_up(order_id, product, conn=effects.tx)
    if books.is_apart:
        follow_up(order_id, product)


def follow_up(order_id: str, product: str, **options: Any) -> None:
    """Receipt, thumbnail and entry: the same three jobs, however often an order is paid for."""
    for task in (send_receipt, draw):
        job_id = uuid.uuid5(uuid.UUID(order_id), task.name)
        task.using(id=job_id, **options).enqueue(order_id)  # type: ignore[call-arg]  # ctx is injected
    reindex.using(**options).enqueue(product)  # type: ignore[call-arg]
    options["fifo"] = Fifo(f"ledger:{product}", on_death="block")
    entry = enter.using(id=uuid.uuid5(uuid.UUID(order_id), enter.name), **options)
    entry.enqueue(order_id, product)  # type: ignore[call-arg]


@app.task(queue="mail")
def enter(order_id: str, product: str, *, ctx: Context) -> None:
    """The next entry of a product's ledger. Reading the last number and writing the next is no lock: the
    FIFO key lets one entry of a product be written at a time."""
    with books.effects(ctx, ledger, order_id) as effects:
        if effects.is_new:
            last = sa.select(sa.func.max(ledger.c.number)).where(ledger.c.product == product)
            number = 1 + (effects.run(last)[0][0] or 0)
            values = {"product": product, "number": number, "order_id": order_id}
            effects.run(sa.insert(ledger).values(**values))


@app.task(queue="mail")
def send_receipt(order_id: str, *, ctx: Context) -> None:
    """Write the receipt: exactly one, because writing it and finishing the job are one commit."""
    with books.effects(ctx, receipts, order_id) as effects:
        if effects.is_new:
            effects.run(sa.insert(receipts).values(order_id=order_id))
        if effects.tx is not None:
            effects.tx.result = f"receipt for {order_id}"


@app.task(queue="pictures", isolate="process", timeout="30s")
def draw(order_id: str, *, ctx: Context) -> None:
    """A thumbnail, in a process of its own: heavy, and no other job suffers when it dies."""
    digest = order_id.encode()
    for _ in range(2000):
        digest = hashlib.sha256(digest).digest()
    with books.effects(ctx, thumbnails, order_id) as effects:
        if effects.is_new:
            effects.run(sa.insert(thumbnails).values(order_id=order_id, digest=digest.hex()))


@app.task(queue="imports", timeout="5m")
def load_csv(import_id: str, path: str, *, ctx: Context) -> int:
    """Load a price list line by line, with progress; after a crash it goes on where it was."""
    with Path(path).open() as file:
        lines = list(csv.reader(file))
    for number in range(ctx.last_checkpoint or 0, len(lines)):
        with books.transaction() as tx:
            values: dict[str, Any] = {"import_id": import_id, "line": number, "name": lines[number][0]}
            known = books.execute(
                tx,
                sa.select(imported.c.line).where(
                    imported.c.import_id == import_id, imported.c.line == number
                ),
            )
            if not known:  # the line was written, but its checkpoint was not
                books.execute(tx, sa.insert(imported).values(**values))
        if number % 10 == 9:
            ctx.checkpoint(number + 1)
            ctx.progress(100 * number / len(lines), f"{number} lines")
    return len(lines)


@app.task(queue="search", unique=Unique("product", mode="debounce", wait="300ms", max_wait="3s"))
def reindex(product: str, *, ctx: Context) -> None:
    """Bring the catalogue up to date: once for a burst of orders, again for one that comes meanwhile."""
    with books.effects(ctx, catalogue, product, "product") as effects:  # again is as good as once
        of_product = sa.select(stock.c.on_hand).where(stock.c.product == product)
        [(on_hand,)] = effects.run(of_product)
        effects.run(sa.delete(catalogue).where(catalogue.c.product == product))
        effects.run(sa.insert(catalogue).values(product=product, on_hand=on_hand))


@app.schedule(
    None if NIGHTLY else "0 2 * * *",
    every=NIGHTLY,
    tz=None if NIGHTLY else "Europe/Berlin",
    misfire="all",
    name="nightly",
)
@app.task(queue="reports")
def report(*, ctx: Context) -> int:
    """Count what was paid. One report for each window, whichever processes tick or are killed."""
    window = ctx.headers["winch-window"]
    with books.effects(ctx, reports, window, "window_at") as effects:
        paid = sa.select(sa.func.count()).select_from(orders).where(orders.c.state == "paid")
        count: int = effects.run(paid)[0][0]
        if effects.is_new:
            effects.run(sa.insert(reports).values(window_at=window, orders_paid=count))
        if effects.tx is not None:
            effects.tx.result = count
    return count

"""Checkout as a saga: reserve, ask a person, charge, pack each line as a job of its own; undone when it
fails.

winch worker -A examples.checkout:app
python -c "from examples.checkout import checkout; print(checkout.enqueue(7, ['book', 'pen']).id)"
winch signal approval:7 --payload '{"ok": true}'
"""

from __future__ import annotations

from winch import App, Context, Retry

app = App()
stock: dict[int, list[str]] = {}
money: list[str] = []


def reserve(order: int, lines: list[str]) -> int:
    stock[order] = lines
    return order


def release(order: int) -> None:
    stock.pop(order, None)


def charge(order: int) -> str:
    money.append(f"charge {order}")
    return f"ch-{order}"


def refund(charged: str) -> None:
    money.append(f"refund {charged}")


@app.task(name="checkout.pack")
def pack(order: int, line: str) -> str:
    if line == "lost":
        raise LookupError(f"order {order}: {line} is not on its shelf")
    return f"box with {line}"


@app.task(name="checkout")
async def checkout(order: int, lines: list[str], *, ctx: Context) -> list[str]:
    await ctx.step(reserve, order, lines, undo=release)
    approval = await ctx.wait_for(f"approval:{order}", timeout="2d", default={"ok": False})
    if not approval["ok"]:
        raise PermissionError(f"order {order} was not approved")
    await ctx.step(charge, order, undo=refund, retry=Retry.fixed("1m", attempts=5))
    await ctx.sleep("10m")  # the customer may still change the address
    packing = pack.using(retry=Retry.fixed("1s", attempts=2))
    boxes: list[str] = await ctx.gather(*[packing.bind(order, line) for line in lines])
    return boxes

"""A payment that happens once, however often it is requested: the key is known here and at the
provider."""

from __future__ import annotations

from winch import App, Context, Retry, RetryAfter

app = App()


class Provider:
    """Stands for a payment provider that knows idempotency keys, and whose answers get lost now and
    then."""

    def __init__(self) -> None:
        self.charges: dict[str, int] = {}
        self.calls = 0

    def charge(self, cents: int, key: str) -> str:
        self.calls += 1
        self.charges.setdefault(key, cents)
        if self.calls == 1:
            raise ConnectionError("the answer was lost")
        return f"charge {key}"


provider = Provider()


@app.task(name="payment.pay", retry=Retry.exponential("1s", attempts=5))
def pay(order: int, cents: int, *, ctx: Context) -> str:
    with app.idempotency.begin(f"charge:{order}", ttl="1d") as once:
        if once.new:
            once.result = provider.charge(cents, key=f"order-{order}")
        elif once.open:
            raise RetryAfter("5s", f"{once.holder} is at it")
    ctx.log.info("order %d: %s", order, once.result)
    return str(once.result)

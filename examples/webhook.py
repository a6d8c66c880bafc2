"""Webhook delivery with a day of retries, in order for each customer, through the outbox.

A real shop names a URL: app.outbox.sink("webhooks", http="https://…", secret="whsec_…"). Here a function
stands for a customer whose server is down until noon.
"""

from __future__ import annotations

from winch import App, Message, Retry, RetryAfter

app = App()
arrived: list[tuple[str | None, str]] = []
is_down = True


@app.outbox.sink("webhooks", retry=Retry.exponential("5s", max="1h", attempts=40), on_death="skip")
def deliver(message: Message) -> None:
    if is_down and message.key == "acme":
        raise RetryAfter("1h", "503 Service Unavailable, Retry-After: 3600")
    arrived.append((message.key, message.payload["what"]))


def publish(customer: str, what: str, conn: object = None) -> str:
    """Call it in the transaction of the change, with its connection."""
    return app.outbox.add("webhooks", key=customer, payload={"what": what}, conn=conn).id

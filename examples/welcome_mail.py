"""A welcome e-mail: one that bounces is never sent again, one that got no answer is.

The difference is the exception. An address that does not exist stays so: `Discard`. A server that did
not answer may do so later: the error itself, and the policy. `unique` makes a double click one letter.
"""

from __future__ import annotations

from winch import App, Context, Discard, Retry, Unique

app = App()


class Bounced(Exception):
    """The server knows no such address."""


class MailServer:
    """Stands for an SMTP server that answers, on some days."""

    def __init__(self) -> None:
        self.silent = 2
        self.sent: dict[str, str] = {}

    def send(self, to: str, *, key: str) -> None:
        if to.endswith("@nowhere.example"):
            raise Bounced(f"550 no such user: {to}")
        if self.silent:
            self.silent -= 1
            raise TimeoutError("no answer")
        self.sent[key] = to  # one letter for each key, however often it is requested


server = MailServer()


@app.task(
    name="mail.welcome",
    queue="mail",
    timeout="30s",
    retry=Retry.exponential("10s", max="1h", attempts=8),
    unique=Unique("address", within="1d"),
)
def welcome(address: str, *, ctx: Context) -> None:
    try:
        server.send(address, key=ctx.idempotency_key)
    except Bounced as error:
        raise Discard(str(error)) from error

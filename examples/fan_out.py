"""One event, many children: a newsletter goes to every reader, and one job reports the result."""

from __future__ import annotations

from winch import App, chord
from winch.types import FlowHandle

app = App()


@app.task(name="newsletter.send", queue="mail")
def send(reader: int, issue: str) -> bool:
    return bool(reader % 1000)  # one in a thousand has moved


@app.task(name="newsletter.report")
def report(sent: list[bool], issue: str) -> str:
    return f"{issue}: {sum(sent)} of {len(sent)} delivered"


def publish(issue: str, readers: int) -> FlowHandle:
    """Stored in chunks; the report runs once, when every letter is final."""
    letters = [send.bind(reader, issue) for reader in range(readers)]
    return chord(letters, report.partial(issue=issue), on_failure="continue").enqueue()

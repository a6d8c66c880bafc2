"""A CSV import that reports its progress and continues where it was.

The checkpoint is saved after every hundred lines. An attempt that dies between two of them reads at most
a hundred lines again, so a line is written under its number: writing it twice changes nothing.
"""

from __future__ import annotations

import csv
import io

from winch import App, Context, Retry

app = App()
EVERY = 100
rows: dict[int, list[str]] = {}
reads: list[int] = []


@app.task(name="import.csv", timeout="1h", heartbeat="5m", retry=Retry.fixed("1s", attempts=5))
def load(text: str, *, ctx: Context) -> int:
    lines = list(csv.reader(io.StringIO(text)))
    for number in range(ctx.last_checkpoint or 0, len(lines)):
        if lines[number] == ["cut"] and ctx.attempt == 1:
            raise ConnectionError("the connection to the database was cut")
        rows[number] = lines[number]
        reads.append(number)
        if (number + 1) % EVERY == 0:
            ctx.checkpoint(number + 1)
            ctx.progress(100 * (number + 1) / len(lines), f"{number + 1} of {len(lines)} lines")
    return len(lines)

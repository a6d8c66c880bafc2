"""The app of the server that the HTTP scenarios ask."""

from __future__ import annotations

import os

from winch import App

app = App(os.environ["BENCH_URL"])


@app.task(name="bench.add", queue="bench")
def add(a: int, b: int = 1) -> int:
    return a + b

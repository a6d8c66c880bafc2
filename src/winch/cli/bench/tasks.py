"""The tasks that `winch bench` runs, in a module that isolated processes can import too."""

from __future__ import annotations

import time

from winch.app import App

app: App = App()

# When each job of the measured kind has started: job number -> seconds of the performance counter.
started: dict[int, float] = {}


@app.task(name="winch.bench.coroutine")
async def coroutine(number: int) -> None:
    """Nothing, on the event loop."""
    started[number] = time.perf_counter()


@app.task(name="winch.bench.function")
def function(number: int) -> None:
    """Nothing, in a thread."""
    started[number] = time.perf_counter()


@app.task(name="winch.bench.isolated", isolate="process")
def isolated(pause: float) -> None:
    """Nothing, in a process of its own; at first a pause, so that all of them are started."""
    time.sleep(pause)

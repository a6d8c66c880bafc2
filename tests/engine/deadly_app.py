"""An importable app for jobs with steps in processes of their own; $WINCH_URL names the store."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from winch import App, Context

app = App(lease="3s", heartbeat="200ms", sweep="200ms", poll="100ms", grace="1s")


@app.task(isolate="process")
def checkout(path: str, *, ctx: Context) -> None:
    def say(word: str) -> None:
        with Path(path).open("a") as lines:
            lines.write(f"{word}\n")

    ctx.step(say, "reserve", name="reserve", undo=lambda _: say("release"))
    ctx.step(say, "charge", name="charge", undo=lambda _: say("refund"))
    os.kill(os.getpid(), signal.SIGKILL)

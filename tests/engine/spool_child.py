"""A process that spools or forwards, and kills itself at a given step: db, spool, what, step."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from winch import App, StorageUnavailable
from winch.engine.client import writer

writer.ENQUEUE_PAUSES = (0.001,)  # type: ignore[assignment]  # a test need not wait two seconds


def spool_app(db: str, spool: str) -> App:
    app = App(f"sqlite:///{db}", spool=spool)

    @app.task(name="t")
    def work(n: int) -> int:
        return n

    return app


def lose_store(app: App, *, maybe_applied: bool = False) -> None:
    """Enqueues fail from now on; with `maybe_applied` they take effect all the same."""
    app.ready()
    real = app.driver.run

    def run(verb: Any) -> Any:
        if verb.name != "enqueue":
            return real(verb)
        if maybe_applied:
            real(verb)
        raise StorageUnavailable("it is gone", maybe_applied=maybe_applied)

    app.driver.run = run  # type: ignore[method-assign]


def main(db: str, spool: str, what: str, fatal: str) -> None:
    app = spool_app(db, spool)

    def step(name: str) -> None:
        if name == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    assert app.spool is not None
    app.spool._step = step
    task = app.tasks.get("t")
    if what == "forward":
        app.forward_spool()
        return
    lose_store(app, maybe_applied=what == "lost answer")
    for n in range(3):
        job = task.enqueue(n)
        print(job.id, flush=True)  # noqa: T201  # the parent counts what was promised


if __name__ == "__main__":
    main(*sys.argv[1:])

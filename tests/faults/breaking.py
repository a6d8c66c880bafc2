"""Every background loop of a worker and of its supervisor, and how to end it by an unforeseen error.

As a program (`python -m tests.faults.breaking promoter worker …`) it is `winch` with a loop of its
supervisor broken. As an app (`tests.faults.breaking:app`) it breaks the loops of worker children: the
first child the first loop that BREAK_LOOPS names, the second the next, and so on. BREAK_COUNT is a file
that counts the children. BREAK_ISOLATED names the loop that breaks in the process of an isolated job.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from winch import App, Context, Retry
from winch.drivers.postgres.wakeups import listen as postgres_listen
from winch.drivers.redis.wakeups import listen as redis_listen
from winch.drivers.sqlite.connections.writer import Writer
from winch.drivers.sqlite.wakeups.bell import ClaimingSqliteBell
from winch.engine.maintenance.promoter import Promoter
from winch.engine.maintenance.pruner import Pruner
from winch.engine.maintenance.queue_settings import QueueRules
from winch.engine.maintenance.rescuer import Rescuer
from winch.engine.maintenance.spool_forwarder import Forwarder
from winch.engine.maintenance.ticker import Ticker
from winch.engine.observe.alerts import Alerts
from winch.engine.observe.busy_report import BusyReport
from winch.engine.observe.throughput import RateWriter
from winch.engine.observe.usage import UsageWriter
from winch.engine.supervisor import isolated_child
from winch.engine.supervisor.child import Child
from winch.engine.supervisor.commands import WorkerCommands
from winch.engine.supervisor.embedded import EmbeddedWorker
from winch.engine.supervisor.heartbeat import Leases
from winch.engine.supervisor.kills import Kills, Pulses
from winch.engine.supervisor.supervisor import Beating, Supervisor
from winch.engine.worker.executor import Executor
from winch.engine.worker.fetcher import Fetcher, GiveUps
from winch.engine.worker.finisher import Finisher
from winch.engine.worker.monitors import Cancels, Notes, Watch
from winch.engine.worker.queues.discovery import NewQueues
from winch.engine.worker.room import Reserved
from winch.engine.worker.running.threads import Threads
from winch.engine.worker.slots import Slots
from winch.engine.worker.worker import Worker

SOON = 0.3


class Unforeseen(Exception):
    """What no loop expects."""


def _coroutine(owner: Any, method: str) -> Callable[[], None]:
    assert callable(getattr(owner, method))

    async def broken(*_: Any, **__: Any) -> None:
        await asyncio.sleep(SOON)
        raise Unforeseen(f"{owner.__name__}.{method}")

    return lambda: setattr(owner, method, broken)


def _thread(owner: type, method: str) -> Callable[[], None]:
    assert callable(getattr(owner, method))

    def broken(*_: Any, **__: Any) -> None:
        time.sleep(SOON)
        raise Unforeseen(f"{owner.__name__}.{method}")

    return lambda: setattr(owner, method, broken)


def _writer() -> None:
    """The thread that writes breaks in the middle of its work, with callers that wait for it."""
    lead = Writer._lead

    def broken(self: Writer, own: Any) -> None:
        if own is None and time.monotonic() > began + 1.0:
            raise Unforeseen("Writer._lead")
        lead(self, own)

    began = time.monotonic()
    Writer._lead = broken  # type: ignore[method-assign]


def _session() -> None:
    """The store ends the child's session; starting a new one breaks."""
    _coroutine(Worker, "session_lost")()
    begin = Child._began

    def began(self: Child, session: str) -> None:
        begin(self, session)
        driver = self._driver
        threading.Timer(SOON, lambda: driver.run(driver.end_session(session))).start()

    Child._began = began  # type: ignore[method-assign]


# The name of each loop in a worker child on SQLite, and how to end it.
IN_CHILD: dict[str, Callable[[], None]] = {
    "fetcher": _coroutine(Fetcher, "run"),
    "give-ups": _coroutine(GiveUps, "run"),
    "watch": _coroutine(Watch, "run"),
    "cancels": _coroutine(Cancels, "run"),
    "notes": _coroutine(Notes, "run"),
    "usage": _coroutine(UsageWriter, "run"),
    "reserved slots": _coroutine(Reserved, "run"),
    "queue-rules": _coroutine(QueueRules, "run"),
    "new-queues": _coroutine(NewQueues, "run"),
    "rates": _coroutine(RateWriter, "run"),
    "forwarder": _coroutine(Forwarder, "run"),
    "finisher": _coroutine(Finisher, "run"),
    "slot": _coroutine(Slots, "run"),
    "link": _coroutine(Child, "_listen"),
    "session": _session,
    "sqlite-writer": _writer,
    "sqlite-bell": _thread(ClaimingSqliteBell, "_serve"),
    "job thread": _thread(Threads, "_work"),
}
IN_POSTGRES_CHILD: dict[str, Callable[[], None]] = {
    "listen": _coroutine(postgres_listen.Listener, "_run"),
}
IN_SUPERVISOR: dict[str, Callable[[], None]] = {
    "heartbeat": _coroutine(Beating, "run"),
    "leases": _coroutine(Leases, "run"),
    "pulses": _coroutine(Pulses, "run"),
    "promoter": _coroutine(Promoter, "run"),
    "ticker": _coroutine(Ticker, "run"),
    "rescuer": _coroutine(Rescuer, "run"),
    "pruner": _coroutine(Pruner, "run"),
    "alerts": _coroutine(Alerts, "run"),
    "busy-report": _coroutine(BusyReport, "run"),
    "commands": _coroutine(WorkerCommands, "_work"),
    "watch": _coroutine(Kills, "watch"),
    "reload": _coroutine(Supervisor, "_reload"),
    "child": _coroutine(Supervisor, "_bury"),
    "link": _coroutine(Supervisor, "_listen"),
}
# The worker of one Redis server claims while it waits; only its supervisor listens.
IN_REDIS_SUPERVISOR: dict[str, Callable[[], None]] = {
    "listen": _coroutine(redis_listen.Listener, "_run"),
}
IN_ISOLATED: dict[str, Callable[[], None]] = {
    "job": _coroutine(Executor, "run_here"),
    "reports": _coroutine(isolated_child, "_report"),
}
IN_EMBEDDED: dict[str, Callable[[], None]] = {"heart": _thread(EmbeddedWorker, "_beat")}


def _next() -> str | None:
    """The loop that this process is to break."""
    if "isolated-child" in sys.argv:
        return os.environ.get("BREAK_ISOLATED")
    names, count = os.environ.get("BREAK_LOOPS", "").split(","), os.environ.get("BREAK_COUNT")
    if count is None:
        return None
    with Path(count).open("ab") as file:
        number = file.tell()
        file.write(b".")
    return names[number] if number < len(names) else None


app = App(os.environ.get("BREAK_URL"), spool=os.environ.get("BREAK_SPOOL"), concurrency=2, poll="200ms")


@app.task(name="work")
def work() -> str:
    app.queues.list()  # a call that blocks, for the loops that only these need
    return "done"


@app.task(name="heavy", slots=2)
def heavy() -> None:
    """Nothing enqueues it: a worker that knows a heavy task has the loop of reserved slots."""


@app.task(name="alone", isolate="process", retry=Retry.never())
async def alone(*, ctx: Context) -> None:
    await asyncio.sleep(3 * SOON)


if __name__ == "__main__":
    from winch.cli import main
    from winch.engine.supervisor import child_process

    child_process.QUICK_DEATH = 0.0  # a child that dies young is replaced at once
    broken = sys.argv.pop(1)
    if broken != "none":
        (IN_SUPERVISOR | IN_REDIS_SUPERVISOR)[broken]()
    main()
elif (mine := _next()) is not None:
    (IN_CHILD | IN_POSTGRES_CHILD | IN_ISOLATED)[mine]()

"""What a worker writes to its log about itself: when it starts, and when a burst is over."""

from __future__ import annotations

import msgspec

from winch.core.version import __version__
from winch.engine.base.log import log
from winch.engine.base.operation import Operation
from winch.engine.observe.throughput import TaskRate
from winch.storage.protocol import Driver


class WorkerStarted(msgspec.Struct, frozen=True, tag="started"):
    """A child claims jobs from now on: of these queues, for so many tasks, so many at once. `uses` has
    one task for each queue that the app's tasks use. `pushes`: it sends jobs of any task to URLs."""

    queues: tuple[str, ...]
    tasks: int
    slots: int
    uses: dict[str, str]
    pushes: bool = False


def announce(started: WorkerStarted, *, app: str, store: str, processes: int) -> None:
    """One line with all that decides which jobs run here, and where they come from."""
    log.info(
        "winch %s: %s on %s; queues %s; %s; %s of %s",
        __version__,
        app,
        store,
        ", ".join(started.queues),
        "pushes jobs of any task" if started.pushes else _number(started.tasks, "task"),
        _number(processes, "process", "processes"),
        _number(started.slots, "slot"),
    )


def warn_of_unserved(driver: Driver, started: WorkerStarted) -> Operation[None]:
    """Warn of queues that the app's tasks use and no live worker serves: their jobs would wait."""
    sessions = yield driver.sessions()
    served = {queue for session in sessions for queue in session.queues}
    for queue in sorted(started.uses.keys() - served - set(started.queues)):
        log.warning(
            "no live worker serves queue %r, which task %s uses: its jobs wait; "
            "serve it with -Q %s or with -Q '*'",
            queue,
            started.uses[queue],
            ",".join((*started.queues, queue)),
        )


def summarize(done: TaskRate, seconds: float) -> None:
    """One line about a burst that is over."""
    log.info(
        "burst over after %.1f s: %d completed, %s, %d dead, %d cancelled",
        seconds,
        done.completed,
        _number(done.broken - done.dead, "failed attempt"),
        done.deaths,
        done.cancelled,
    )


def _number(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"

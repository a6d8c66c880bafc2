"""Looks for queues that have come up since a worker of all queues (`-Q '*'`) started."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from winch.engine.base.log import log
from winch.engine.base.service import Service
from winch.engine.tasks.runtime import Runtime
from winch.storage.protocol import Driver

EVERY = 10.0


async def known_queues(driver: Driver, runtime: Runtime) -> set[str]:
    """The queues that a task uses or the store knows, but for those that are pushed to a URL: they have
    workers of their own."""
    used = {task.options.queue for task in runtime.tasks}
    found = used | {queue.name for queue in await driver.arun(driver.queues(cap=1))}
    return found - runtime.pushed.keys()


class NewQueues(Service):
    """A session names its queues for its whole life, because the store and other workers rely on them.
    So the worker does not take up a new queue: it retires, and its successor serves that queue too. A
    worker inside an application has no successor and only logs the queue."""

    name = "new-queues"

    def __init__(
        self,
        driver: Driver,
        runtime: Runtime,
        chosen: Callable[[Iterable[str]], Sequence[str]],
        served: Sequence[str],
        retire: Callable[[str], None] | None,
    ) -> None:
        super().__init__()
        self._driver = driver
        self._runtime = runtime
        self._chosen = chosen
        self._served = set(served)
        self._retire = retire

    async def run_once(self) -> float:
        known = await known_queues(self._driver, self._runtime)
        new = sorted(set(self._chosen(known)) - self._served)
        if new and self._retire is not None:
            self._retire(f"queue {new[0]!r} is new")
        elif new:
            log.warning(
                "queue %r is new, and this worker serves the queues it found when it started; "
                "restart it to serve that one too",
                new[0],
            )
        self._served.update(new)
        return EVERY

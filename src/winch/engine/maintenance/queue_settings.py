"""Reads what operators have set for queues, about once a second, and ends pauses whose time is over.

Where the order or the concurrency of a queue has changed, jobs of producers that had not heard of it yet
are marked for a few seconds after (`binding`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from winch.core.policy.queue_settings import NO_SETTINGS, QueueSettings
from winch.engine.base.log import log
from winch.engine.base.operation import arun
from winch.engine.base.service import Service
from winch.engine.client.backpressure import BOOK, PAUSED, UNTIL, read_settings
from winch.engine.client.rebind import bind_queue
from winch.storage.params import KvFilter
from winch.storage.protocol import Driver

EVERY = 1.0
# How many looks after a change jobs that came just now are marked.
LOOKS = 3


class QueueRules(Service):
    name = "queue-rules"
    is_vital = False

    def __init__(
        self,
        driver: Driver,
        on_settings: Callable[[Mapping[str, QueueSettings]], None],
        every: float = EVERY,
    ) -> None:
        super().__init__()
        self._driver = driver
        self._on_settings = on_settings
        self._every = every
        self._known: dict[str, QueueSettings] | None = None
        self._changed: dict[str, int] = {}

    async def run_once(self) -> float:
        lines = await self._driver.arun(self._driver.kv_list(KvFilter(book=BOOK)))
        settings = read_settings(lines)
        self._on_settings(settings)
        await self._bind(settings)
        keys = {line.key for line in lines}
        for key in keys:
            queue = key.removeprefix(UNTIL)
            # The line of the pause itself is gone when its time is over, by the store's clock.
            if queue != key and PAUSED + queue not in keys:
                await self._driver.arun(self._driver.resume(queue, by="its pause is over"))
                await self._driver.arun(self._driver.kv_delete(BOOK, [key]))
                log.info("the pause of queue %s is over", queue)
        return self._every

    async def _bind(self, settings: dict[str, QueueSettings]) -> None:
        known, self._known = self._known, settings
        known = settings if known is None else known
        for queue in {*known, *settings}:
            before, after = known.get(queue, NO_SETTINGS), settings.get(queue, NO_SETTINGS)
            if (before.concurrency, before.order) != (after.concurrency, after.order):
                self._changed[queue] = LOOKS
        for queue in list(self._changed):
            self._changed[queue] -= 1
            if not self._changed[queue]:
                del self._changed[queue]
            settings_of_queue = settings.get(queue, NO_SETTINGS)
            await arun(
                self._driver, bind_queue(self._driver, queue, settings_of_queue, only_lately=True)
            )

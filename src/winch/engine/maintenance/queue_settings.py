"""Reads what operators have set for queues, about once a second, and ends pauses whose time is over."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from winch.core.policy.queue_settings import QueueSettings
from winch.engine.base.log import log
from winch.engine.base.service import Service
from winch.engine.client.backpressure import BOOK, PAUSED, UNTIL, read_settings
from winch.storage.kv_records import KvFilter
from winch.storage.protocol import Driver

EVERY = 1.0


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

    async def run_once(self) -> float:
        lines = await self._driver.arun(self._driver.kv_list(KvFilter(book=BOOK)))
        self._on_settings(read_settings(lines))
        keys = {line.key for line in lines}
        for key in keys:
            queue = key.removeprefix(UNTIL)
            # The line of the pause itself is gone when its time is over, by the store's clock.
            if queue != key and PAUSED + queue not in keys:
                await self._driver.arun(self._driver.resume(queue, by="its pause is over"))
                await self._driver.arun(self._driver.kv_delete(BOOK, [key]))
                log.info("the pause of queue %s is over", queue)
        return self._every

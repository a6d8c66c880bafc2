"""Reads what operators have set for queues, about once a second, and ends pauses whose time is over."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from winch.core.queue_settings import QueueSettings
from winch.engine.door import BOOK, PAUSED, UNTIL, read_settings
from winch.engine.log import log
from winch.engine.service import Service
from winch.storage.params import Lines
from winch.storage.protocol import Driver

EVERY = 1.0


class QueueRules(Service):
    name = "queue-rules"

    def __init__(
        self,
        driver: Driver,
        told: Callable[[Mapping[str, QueueSettings]], None],
        every: float = EVERY,
    ) -> None:
        super().__init__()
        self._driver = driver
        self._told = told
        self._every = every

    async def run_once(self) -> float:
        if not self._driver.capabilities.keeps_books:
            return 3600.0
        lines = await self._driver.arun(self._driver.read_lines(Lines(book=BOOK)))
        self._told(read_settings(lines))
        keys = {line.key for line in lines}
        for key in keys:
            queue = key.removeprefix(UNTIL)
            # The line of the pause itself is gone when its time is over, by the store's clock.
            if queue != key and PAUSED + queue not in keys:
                await self._driver.arun(self._driver.resume(queue, by="its pause is over"))
                await self._driver.arun(self._driver.strike_lines(BOOK, [key]))
                log.info("the pause of queue %s is over", queue)
        return self._every

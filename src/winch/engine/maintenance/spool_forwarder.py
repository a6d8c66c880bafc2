"""Hands jobs that were spooled while the store was out of reach to the store, once a minute."""

from __future__ import annotations

from winch.engine.base import operation
from winch.engine.base.log import log
from winch.engine.base.service import Service
from winch.engine.client.spool import Spool
from winch.storage.protocol import Driver

EVERY = 60.0


class Forwarder(Service):
    name = "forwarder"
    is_vital = False

    def __init__(self, driver: Driver, spool: Spool, every: float = EVERY) -> None:
        super().__init__()
        self._driver = driver
        self._spool = spool
        self._every = every

    async def run_once(self) -> float:
        sent = 0
        try:
            sent = await operation.arun(self._driver, self._spool.forward(self._driver))
        except OSError as error:
            log.error("the spool %s cannot be read: %s", self._spool.path, error)
        return self._every if sent else self.unasked(self._every)

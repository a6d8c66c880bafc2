"""Waking in the memory store."""

from __future__ import annotations

import asyncio


class MemoryBell:
    """Rings across threads: the enqueuing thread pokes the waiting event loop."""

    def __init__(self, bells: dict[MemoryBell, None], queues: frozenset[str], due: bool) -> None:
        self._bells = bells
        self.queues = queues
        self.due = due
        self._rang = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def ring(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._rang.set)
        except RuntimeError:  # the loop has closed: nothing waits there any more
            self._bells.pop(self, None)

    async def arm(self) -> None:
        self._rang.clear()

    async def wait(self, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self._rang.wait()
        except TimeoutError:
            return False
        return True

    async def aclose(self) -> None:
        self._bells.pop(self, None)

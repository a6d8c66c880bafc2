"""Reads that open pages share: one at a time, for a while, and no wait for a slow one that was read."""

from __future__ import annotations

import asyncio

import pytest

from winch.engine.base import shared_reads
from winch.engine.base.shared_reads import SharedReads


class Store:
    """Answers with 1, 2, 3, … when it is let go on."""

    def __init__(self) -> None:
        self.number = 0
        self.go = asyncio.Event()
        self.go.set()
        self.has_read = asyncio.Event()
        self.error: Exception | None = None

    async def read(self) -> int:
        await self.go.wait()
        if self.error is not None:
            raise self.error
        self.number += 1
        self.has_read.set()
        return self.number


def test_callers_at_once_share_one_read() -> None:
    async def main() -> None:
        shared, store = SharedReads(), Store()
        store.go.clear()
        asked = [asyncio.create_task(shared.get("x", store.read, 0)) for _ in range(5)]
        await asyncio.sleep(0)
        asked[0].cancel()
        store.go.set()
        assert await asyncio.gather(*asked[1:]) == [1] * 4, (
            "one that goes away takes nothing from others"
        )

    asyncio.run(main())


def test_a_slow_read_returns_the_last_answer_while_it_is_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        shared, store = SharedReads(), Store()
        monkeypatch.setattr(shared_reads, "TIMES", 0)
        monkeypatch.setattr(shared_reads, "SLOW", -1.0)  # every read counts as slow
        assert await shared.get("x", store.read, 0) == 1
        store.go.clear()
        store.has_read.clear()
        assert await shared.get("x", store.read, 0) == 1, "the last answer, while the next is read"
        store.go.set()
        await store.has_read.wait()
        await asyncio.sleep(0)
        assert await shared.get("x", store.read, 0) == 2
        monkeypatch.setattr(shared_reads, "OLDEST", -1.0)  # every answer is too old
        newest = await shared.get("x", store.read, 0)
        assert newest >= 3, "an old answer is not given"
        monkeypatch.setattr(shared_reads, "SLOW", 1e9)  # no read counts as slow
        monkeypatch.setattr(shared_reads, "OLDEST", 1e9)
        quick = await shared.get("y", store.read, 0)
        assert await shared.get("y", store.read, 0) == quick + 1, "a quick read is always new"
        shared.close()

    asyncio.run(main())


def test_after_a_change_no_earlier_answer_is_returned() -> None:
    async def main() -> None:
        shared, store = SharedReads(), Store()
        assert await shared.get("x", store.read, 60) == 1
        assert await shared.get("x", store.read, 60) == 1
        shared.forget()
        store.go.clear()
        asked = asyncio.create_task(shared.get("x", store.read, 60))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        shared.forget()  # while it is read: its answer may be of before
        store.go.set()
        assert await asked == 2
        assert await shared.get("x", store.read, 60) == 3

    asyncio.run(main())


def test_an_error_reaches_the_next_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        shared, store = SharedReads(), Store()
        monkeypatch.setattr(shared_reads, "TIMES", 0)
        monkeypatch.setattr(shared_reads, "SLOW", -1.0)
        assert await shared.get("x", store.read, 0) == 1
        store.error = OSError("away")
        assert await shared.get("x", store.read, 0) == 1
        for _ in range(5):
            await asyncio.sleep(0)
        with pytest.raises(OSError, match="away"):
            await shared.get("x", store.read, 0)

    asyncio.run(main())

"""Concurrent aenqueue calls share one insert, and the failure of one does not affect the others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from winch import App, EnqueueUncertain, StorageError, StorageUnavailable
from winch.engine.client.coalesce import MOST, Coalescer
from winch.storage.fast import is_fast
from winch.storage.params import Enqueued, NewJob


class Store:
    """Answers when the test lets it, and refuses the jobs that the test names."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.open = asyncio.Event()
        self.error: Exception | None = None
        self.refused: set[str] = set()

    async def send(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        self.calls.append([job.id for job in jobs])
        await self.open.wait()
        if self.error is not None:
            raise self.error
        if self.refused & {job.id for job in jobs}:
            raise StorageError("too odd to be stored")
        return [Enqueued(job.id, is_new=True) for job in jobs]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is, a call that waits does not go alone."""
    monkeypatch.setattr("winch.engine.client.coalesce.PATIENCE", 60.0)


def job(name: str) -> NewJob:
    return NewJob(id=name, task="t", args="{}")


async def held(store: Store, names: Sequence[str]) -> list[Any]:
    """All of these at once, the first of them on its way when the others come."""
    coalescer = Coalescer(store.send)
    calls = [asyncio.ensure_future(coalescer.store(job(name))) for name in names]
    await asyncio.sleep(0)
    store.open.set()
    return await asyncio.gather(*calls, return_exceptions=True)


def test_those_that_come_while_one_is_on_its_way_go_together() -> None:
    async def main() -> None:
        store = Store()
        names = [f"{n}" for n in range(MOST + 10)]
        answers = await held(store, names)
        assert [answer.id for answer in answers] == names
        assert [len(call) for call in store.calls] == [1, MOST, 9]

    asyncio.run(main())


def test_a_refused_job_does_not_affect_the_others() -> None:
    async def main() -> None:
        store = Store()
        store.refused = {"c"}
        a, b, c, d = await held(store, "abcd")
        assert [a.id, b.id, d.id] == ["a", "b", "d"]
        assert isinstance(c, StorageError)

    asyncio.run(main())


def test_each_caller_gets_its_own_outcome_when_a_reply_is_lost() -> None:
    async def main() -> None:
        store = Store()
        store.error = EnqueueUncertain("gone", ["a", "b", "c"])
        _, b, c = await held(store, "abc")
        assert (b.ids, c.ids) == (("b",), ("c",))
        store.error = StorageUnavailable("gone")
        assert all(isinstance(error, StorageUnavailable) for error in await held(store, "abc"))

    asyncio.run(main())


def test_a_call_cancelled_while_waiting_sends_nothing_and_delays_no_other() -> None:
    async def main() -> None:
        store = Store()
        coalescer = Coalescer(store.send)
        calls = [asyncio.ensure_future(coalescer.store(job(name))) for name in "abc"]
        await asyncio.sleep(0)
        calls[1].cancel()
        await asyncio.sleep(0)
        store.open.set()
        assert (await calls[0]).id == "a"
        assert (await calls[2]).id == "c"
        assert store.calls == [["a"], ["c"]]

    asyncio.run(main())


def test_a_slow_call_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("winch.engine.client.coalesce.PATIENCE", 0.0)

    async def main() -> None:
        store = Store()
        coalescer = Coalescer(store.send)
        calls = [asyncio.ensure_future(coalescer.store(job(name))) for name in "ab"]
        await asyncio.sleep(0)
        assert store.calls == [["a"], ["b"]]
        store.open.set()
        await asyncio.gather(*calls)

    asyncio.run(main())


@pytest.mark.skipif(not is_fast(), reason="it is about the fast path itself")
def test_aenqueue_joins_and_keeps_every_job_its_own() -> None:
    app = App("memory://")

    @app.task(name="t")
    async def t(n: int) -> None: ...

    sent: list[int] = []
    real = app.driver.enqueue

    def counted(jobs: Sequence[NewJob], **more: Any) -> Any:
        sent.append(len(jobs))
        return real(jobs, **more)

    carry = app.driver.arun

    async def carried(verb: Any) -> Any:
        await asyncio.sleep(0.001)  # as any store that is not in this process
        return await carry(verb)

    app.driver.enqueue = counted  # type: ignore[method-assign]
    app.driver.arun = carried  # type: ignore[method-assign]

    async def main() -> None:
        await t.aenqueue(-1)  # the first one reads the settings of queues
        sent.clear()
        jobs = await asyncio.gather(*(t.aenqueue(n) for n in range(50)))
        assert len({one.id for one in jobs}) == 50
        for n, one in enumerate(jobs):
            assert (await one.arefresh()).record.args == f'{{"n":{n}}}'
        keyed = await asyncio.gather(*(t.using(unique="k").aenqueue(n) for n in range(3)))
        assert len({one.id for one in keyed}) == 1  # each of them a call of its own

    asyncio.run(main())
    assert sum(sent[:-3]) == 50
    assert len(sent) < 10

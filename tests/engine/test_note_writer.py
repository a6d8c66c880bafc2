"""Writes of many jobs go together: each gets its own answer, and none waits for ever."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from winch.core.job import Note
from winch.engine.durable import note_writer
from winch.engine.durable.note_writer import NoteWriter
from winch.storage.params import Answer, ClaimRef
from winch.storage.protocol import Driver

NOTE = Note(checkpoint="{}")
BAD = ClaimRef("bad", "t")


class Store:
    """What a writer needs of a driver. It keeps each call and answers after `seconds`."""

    def __init__(self, seconds: float = 0.0, lost: Sequence[ClaimRef] = (), short: int = 0) -> None:
        self.calls: list[list[ClaimRef]] = []
        self._seconds = seconds
        self._lost = lost
        self._short = short

    def notes(self, notes: Sequence[tuple[ClaimRef, Note]]) -> list[ClaimRef]:
        return [ref for ref, _ in notes]

    def _answers(self, refs: list[ClaimRef]) -> list[Answer]:
        self.calls.append(refs)
        if BAD in refs:
            raise ValueError("it cannot be stored")
        found = [Answer.LOST if ref in self._lost else Answer.TOOK for ref in refs]
        return found[: len(found) - self._short]

    async def arun(self, refs: list[ClaimRef]) -> list[Answer]:
        await asyncio.sleep(self._seconds)
        return self._answers(refs)

    def run(self, refs: list[ClaimRef]) -> list[Answer]:
        time.sleep(self._seconds)
        return self._answers(refs)


def writer(store: Store) -> NoteWriter:
    return NoteWriter(lambda: cast(Driver, store))


def refs(count: int) -> list[ClaimRef]:
    return [ClaimRef(f"job-{n}", "t") for n in range(count)]


def together(one: NoteWriter, claims: Sequence[ClaimRef]) -> list[Any]:
    async def body() -> list[Any]:
        calls = [one.anote(ref, NOTE) for ref in claims]
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 10)

    return asyncio.run(body())


def in_threads(one: NoteWriter, claims: Sequence[ClaimRef]) -> list[Any]:
    start = threading.Barrier(len(claims))

    def call(ref: ClaimRef) -> Any:
        start.wait(10)
        try:
            return one.note(ref, NOTE)
        except ValueError as error:
            return error

    with ThreadPoolExecutor(len(claims)) as pool:
        return list(pool.map(call, claims, timeout=10))


@pytest.mark.parametrize("send", [together, in_threads])
def test_writes_of_one_moment_share_calls_and_each_gets_its_own_answer(send: Any) -> None:
    claims = refs(20)
    store = Store(seconds=0.02, lost=claims[3:5])
    answers = send(writer(store), claims)
    assert answers == [Answer.LOST if ref in claims[3:5] else Answer.TOOK for ref in claims]
    assert sorted(ref.id for call in store.calls for ref in call) == sorted(ref.id for ref in claims)
    assert len(store.calls) < 10


@pytest.mark.parametrize("send", [together, in_threads])
def test_a_write_that_cannot_be_stored_fails_alone(send: Any) -> None:
    claims = [*refs(6), BAD]
    answers = send(writer(Store(seconds=0.02)), claims)
    assert answers[:-1] == [Answer.TOOK] * 6
    assert isinstance(answers[-1], ValueError)


def test_a_slow_call_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(note_writer, "PATIENCE", 0.01)
    store = Store(seconds=0.5)
    one = writer(store)
    began = time.monotonic()

    async def body() -> None:
        first = asyncio.ensure_future(one.anote(ClaimRef("first", "t"), NOTE))
        await asyncio.sleep(0.05)
        await one.anote(ClaimRef("second", "t"), NOTE)
        await first

    asyncio.run(body())
    assert [len(call) for call in store.calls] == [1, 1]
    assert time.monotonic() - began < 0.9


def test_a_store_that_answers_too_little_leaves_no_handler_waiting() -> None:
    answers = together(writer(Store(short=1)), refs(3))
    assert {type(one) for one in answers} <= {ValueError, Answer}
    assert any(isinstance(one, ValueError) for one in answers)


def test_a_write_that_its_handler_left_is_not_sent_beside_the_next_one_of_the_job() -> None:
    store = Store(seconds=0.05)
    one = writer(store)
    first, second = refs(2)

    async def body() -> Answer:
        call = asyncio.ensure_future(one.anote(first, NOTE))  # on its way, the next ones wait
        await asyncio.sleep(0.01)
        left = asyncio.ensure_future(one.anote(second, NOTE))
        await asyncio.sleep(0)
        left.cancel()
        answer = await asyncio.wait_for(one.anote(second, NOTE), 10)
        await call
        return answer

    assert asyncio.run(body()) is Answer.TOOK
    assert store.calls == [[first], [second]]

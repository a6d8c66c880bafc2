"""A note whose sender gave it up reaches the store after later notes of the same claim."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from winch import App, Context, Retry
from winch.core.errors import StorageUnavailable
from winch.core.job import Note
from winch.engine.durable.note_writer import NoteWriter
from winch.storage.params import Answer, ClaimRef
from winch.storage.protocol import Driver

pytestmark = pytest.mark.servers

TWICE = Retry.fixed("1ms", attempts=2, jitter="none")


class Network:
    """It holds the first note back, as a network does that answers nothing, and brings it when asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held: list[tuple[ClaimRef, Note]] = []
        self.answers: list[Answer] = []
        send, asend = NoteWriter._send, NoteWriter._asend

        async def hold_or_asend(writer: NoteWriter, writes: list[Any]) -> None:
            if not self._holds(writes):
                await asend(writer, writes)

        def hold_or_send(writer: NoteWriter, writes: list[Any]) -> None:
            if not self._holds(writes):
                send(writer, writes)

        monkeypatch.setattr(NoteWriter, "_asend", hold_or_asend)
        monkeypatch.setattr(NoteWriter, "_send", hold_or_send)

    def _holds(self, writes: list[Any]) -> bool:
        if self.held:
            return False
        for one in writes:
            self.held.append((one.ref, one.note))
            one.error = StorageUnavailable("no reply", maybe_applied=True)
        return True

    def bring(self, driver: Driver) -> None:
        self.answers = driver.run(driver.notes(self.held))


def drain(app: App, enqueue: Callable[[], Any]) -> Any:
    async def main() -> Any:
        job = enqueue()
        async with app.worker(concurrency=2):
            found = await asyncio.wait_for(job, 30)
        await app.aclose()
        return found

    return asyncio.run(main())


@pytest.mark.parametrize("is_async", [True, False])
def test_a_late_note_sets_no_history_back(
    store_url: str, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, other = App(store_url), App(store_url)
    network = Network(monkeypatch)
    did: list[str] = []

    def act(name: str) -> str:
        did.append(name)
        return name

    def go_on(attempt: int) -> None:
        if attempt == 1:
            network.bring(other.driver)
            raise ValueError("once more")

    if is_async:

        @app.task(retry=TWICE)
        async def order(*, ctx: Context) -> Any:
            first = await ctx.step(act, "first", name="first")
            second = await ctx.step(act, "second", name="second")
            await asyncio.to_thread(go_on, ctx.attempt)
            return first + second
    else:

        @app.task(retry=TWICE)
        def order(*, ctx: Context) -> Any:
            first = ctx.step(act, "first", name="first")
            second = ctx.step(act, "second", name="second")
            go_on(ctx.attempt)
            return first + second

    found = drain(app, order.enqueue)
    other.close()
    assert found == "firstsecond"
    assert network.answers == [Answer.TOOK]
    assert did == ["first", "second"], "a recorded step ran again"


def test_checkpoints_and_steps_of_an_attempt_share_their_numbers(store_url: str) -> None:
    """A handler that stores checkpoints before its first step has its steps recorded all the same."""
    app = App(store_url)
    did: list[int] = []

    @app.task(retry=TWICE)
    def order(*, ctx: Context) -> object:
        if ctx.attempt == 1:
            for page in range(3):
                ctx.checkpoint({"page": page})
        ctx.step(did.append, 1, name="one")
        if ctx.attempt == 1:
            raise ValueError("once more")
        return ctx.last_checkpoint

    assert drain(app, order.enqueue) == {"page": 2}  # type: ignore[arg-type]
    assert did == [1]

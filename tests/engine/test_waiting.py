"""Waiting in a handler: signals, children, and a whole workflow killed at every place."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from winch import (
    App,
    ChildFailed,
    ConfigError,
    Context,
    InvalidPayload,
    JobState,
    PayloadTooLarge,
    Retry,
    SignalTimeout,
)
from winch.engine.durable.waits import child_id
from winch.testing import World, virtual

ONCE = Retry.fixed("1s", attempts=1)


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'never.db'}")


@pytest.fixture
def did() -> list[str]:
    return []


# -- signals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("is_early", [True, False])
def test_a_signal_is_waited_for_without_a_worker(app: App, is_async: bool, is_early: bool) -> None:
    if is_async:

        @app.task
        async def approve(order: int, *, ctx: Context) -> Any:
            return await ctx.wait_for(f"approval:{order}", timeout="2d")
    else:

        @app.task
        def approve(order: int, *, ctx: Context) -> Any:
            return ctx.wait_for(f"approval:{order}", timeout="2d")

    with virtual(app) as world:
        if is_early:
            assert app.signal("approval:7", {"ok": True}, id="click 1")
        job = approve.enqueue(7)
        world.advance("1d")
        if not is_early:
            assert (job.refresh().state, job.record.attempt) == (JobState.BLOCKED, 0)
            assert "it waits for the signal 'approval:7', for 2d" in job.why()
            assert app.signal("approval:7", {"ok": True}, id="click 1")
            assert not app.signal("approval:7", {"ok": False}, id="click 1")
            world.run_once()
        assert job.result() == {"ok": True}
        assert not app.signal("approval:7", {"ok": False}, id="click 1")  # also after it was taken


def test_a_signal_that_does_not_come_in_time_ends_the_wait(app: App, did: list[str]) -> None:
    @app.task
    async def raises(*, ctx: Context) -> None:
        await ctx.step(lambda: did.append("made"), name="make", undo=lambda: did.append("undone"))
        await ctx.wait_for("never", timeout="1h")

    @app.task
    async def goes_on(*, ctx: Context) -> str:
        found = await ctx.wait_for("never", timeout="1h", default="no answer")
        if ctx.attempt == 1:
            raise ValueError  # the same way in the next attempt
        return str(found)

    @app.task
    async def catches(*, ctx: Context) -> str:
        try:
            await ctx.wait_for("never", timeout="1h")
        except SignalTimeout as late:
            await ctx.sleep("1h")
            return f"no {late.signal}"
        return "came"

    with virtual(app) as world:
        first, second = raises.enqueue(), goes_on.enqueue()  # type: ignore[call-arg]
        third = catches.enqueue()  # type: ignore[call-arg]
        world.run_all()
        assert first.refresh().state is JobState.DEAD
        assert "signal 'never' did not arrive in time" in first.why()
        assert second.result() == "no answer"
        assert third.result() == "no never"
    assert did == ["made", "undone"]


def test_signals_of_one_name_are_taken_one_by_one_and_stay_taken(app: App) -> None:
    @app.task
    async def two(*, ctx: Context) -> list[Any]:
        found = [await ctx.wait_for("item"), await ctx.wait_for("item")]
        if ctx.attempt == 1:
            raise ValueError
        return found

    with virtual(app) as world:
        job = two.enqueue()
        world.run_once()
        for number in range(3):
            app.signal("item", number)
            world.advance("1s")
        world.run_all()
        assert job.result() == [0, 1]
        other = two.enqueue()
        world.run_once()
        assert "it waits for the signal 'item'" in other.why()


def test_waits_at_the_same_time_are_woken_by_whatever_comes_first(app: App, did: list[str]) -> None:
    async def one(ctx: Context, name: str) -> None:
        await ctx.wait_for(name)
        did.append(name)

    @app.task
    async def both(*, ctx: Context) -> None:
        await asyncio.gather(one(ctx, "a"), one(ctx, "b"), ctx.sleep("2h"))

    with virtual(app) as world:
        job = both.enqueue()  # type: ignore[call-arg]
        world.advance("1m")
        app.signal("b")
        world.advance("1m")
        assert did == ["b"]
        assert job.refresh().state is JobState.BLOCKED
        app.signal("a")
        world.advance("1m")
        assert job.refresh().state is JobState.SCHEDULED  # only the sleep is left
        world.run_all()
        assert job.refresh().state is JobState.COMPLETED


def test_a_blocked_job_can_be_cancelled(app: App, did: list[str]) -> None:
    @app.task
    async def waits(*, ctx: Context) -> None:
        await ctx.step(lambda: did.append("made"), name="make", undo=lambda: did.append("undone"))
        await ctx.wait_for("never")

    @app.task
    async def only_waits(*, ctx: Context) -> None:
        await ctx.wait_for("never")

    with virtual(app) as world:
        jobs = [waits.enqueue(), only_waits.enqueue()]  # type: ignore[call-arg]
        world.advance("1d")
        for job in jobs:
            job.cancel()
        world.run_once()
        assert [job.refresh().state for job in jobs] == [JobState.CANCELLED] * 2
    assert did == ["made", "undone"]


@pytest.mark.parametrize(
    "name, payload, id_, error",
    [
        ("", 1, None, ConfigError),
        ("x" * 257, 1, None, ConfigError),
        ("a\0b", 1, None, InvalidPayload),
        ("go", float("nan"), None, InvalidPayload),
        ("go", "x" * 300_000, None, PayloadTooLarge),
        ("go", 1, "x" * 300, ConfigError),
    ],
)
def test_wrong_signals_are_refused(
    app: App, name: str, payload: Any, id_: str | None, error: type[Exception]
) -> None:
    with virtual(app), pytest.raises(error):
        app.signal(name, payload, id=id_)


def test_a_signal_whose_answer_was_lost_is_sent_once(app: App) -> None:
    with virtual(app) as world:
        world.lose_reply("signal")
        assert app.signal("go", 1)
        assert world._store._state.waits.signals.__len__() == 1


def test_signals_can_be_sent_from_async_code(app: App) -> None:
    async def send() -> list[bool]:
        return [await app.asignal("go", 1, id="1"), await app.asignal("go", 1, id="1")]

    with virtual(app):
        assert asyncio.run(send()) == [True, False]


# -- children ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [True, False])
def test_children_run_on_any_worker_and_their_results_come_back_in_order(
    app: App, did: list[str], is_async: bool
) -> None:
    @app.task
    def square(number: int) -> int:
        did.append(str(number))
        return number * number

    if is_async:

        @app.task
        async def parent(*, ctx: Context) -> Any:
            calls = [square.using(delay=f"{9 - n}h").bind(n) for n in range(3)]
            return [await ctx.gather(*calls), await ctx.gather(), (await ctx.spawn(square.bind(9))).id]
    else:

        @app.task
        def parent(*, ctx: Context) -> Any:
            calls = [square.using(delay=f"{9 - n}h").bind(n) for n in range(3)]
            return [ctx.gather(*calls), ctx.gather(), ctx.spawn(square.bind(9)).id]

    with virtual(app) as world:
        job = parent.enqueue()
        world.advance("1h")
        assert job.refresh().state is JobState.BLOCKED
        assert "it waits for 3 of its children" in job.why()
        world.run_all()
        results, nothing, last = job.result()
        assert (results, nothing) == ([0, 1, 4], [])
        assert last == child_id(job.id, "spawn", 0)
        assert job.refresh().record.attempt == 1
    assert did == ["2", "1", "0", "9"]


def test_a_child_with_the_fifo_key_of_its_parent_is_not_waited_for(app: App, did: list[str]) -> None:
    """The parent keeps its turn while it waits. A child that it only spawns runs after it."""

    @app.task(retry=ONCE)
    def child(number: int) -> None:
        did.append(f"child {number}")

    @app.task(retry=ONCE)
    async def parent(*, ctx: Context) -> None:
        await ctx.spawn(child.using(fifo="orders").bind(1))
        await ctx.gather(child.using(fifo="others").bind(2))
        did.append("parent")
        await ctx.gather(child.using(fifo="orders").bind(3))

    with virtual(app) as world:
        job = parent.using(fifo="orders").enqueue()  # type: ignore[call-arg]
        world.run_all()
        assert job.refresh().state is JobState.DEAD
        assert "ctx.gather cannot wait for" in job.why()
        assert "with the FIFO key 'orders'" in job.why()
    assert did == ["child 2", "parent", "child 1"]


def test_failed_children_are_reported_once_all_are_final(app: App, did: list[str]) -> None:
    @app.task(retry=ONCE)
    def child(number: int) -> None:
        did.append(f"child {number}")
        if number == 1:
            raise ValueError("no good")

    @app.task
    async def parent(*, ctx: Context) -> None:
        await ctx.step(lambda: did.append("made"), name="make", undo=lambda: did.append("undone"))
        await ctx.gather(*[child.using(delay=f"{n}h").bind(n) for n in (1, 2)])

    @app.task
    async def careful(*, ctx: Context) -> list[str]:
        try:
            await ctx.gather(child.bind(1))
        except ChildFailed as failed:
            return [str(failed), *failed.failed]
        return []

    with virtual(app) as world:
        job, other = parent.enqueue(), careful.enqueue()  # type: ignore[call-arg]
        world.run_all()
        assert job.refresh().state is JobState.DEAD
        assert "is dead: ValueError: no good" in job.why()
        message, failed = other.result()
        assert failed in message
    assert did == ["made", "child 1", "child 1", "child 2", "undone"]


def test_a_deleted_child_is_not_waited_for(app: App) -> None:
    @app.task
    def child() -> None: ...

    @app.task
    async def parent(*, ctx: Context) -> None:
        await ctx.gather(child.using(delay="1h").bind())

    with virtual(app) as world:
        job = parent.enqueue()  # type: ignore[call-arg]
        world.run_once()
        [waiting] = world.jobs(state="scheduled")
        app.jobs.delete(waiting.id)
        world.run_all()
        assert "is gone" in job.why()


def test_results_of_children_that_are_too_big_raise(app: App) -> None:
    @app.task
    def big() -> str:
        return "x" * 100_000

    @app.task
    async def parent(*, ctx: Context) -> None:
        await ctx.gather(*[big.bind() for _ in range(4)])

    with virtual(app) as world:
        job = parent.enqueue()  # type: ignore[call-arg]
        world.run_all()
        assert "the children's results" in job.why()


def test_ids_of_children_follow_from_parent_step_and_number() -> None:
    parent = "019b76da-a800-7000-89e7-a54d87bdc1f7"
    assert child_id(parent, "gather", 0) == child_id(parent, "gather", 0)
    ids = {child_id(parent, step, number) for step in ("gather", "gather#2") for number in range(100)}
    assert len(ids) == 200
    assert all(one.startswith("019b76da-a800-7") for one in ids)


# -- all together --------------------------------------------------------------------------------------


class Checkout:
    """Six steps, a sleep, a signal, two children, and compensation."""

    def __init__(self, app: App, did: list[str], *, breaks: bool) -> None:
        @app.task(name="pack")
        async def pack(line: int) -> str:
            did.append(f"pack {line}")
            await asyncio.sleep(0)
            return f"box {line}"

        def made(name: str) -> Callable[[], str]:
            def make() -> str:
                did.append(name)
                return name

            return make

        def undone(name: str) -> Callable[[str], None]:
            def undo(value: str) -> None:
                assert value == name
                did.append(f"undo {name}")

            return undo

        @app.task(name="checkout", retry=Retry.fixed("1s", attempts=2, jitter="none"))
        async def checkout(order: int, *, ctx: Context) -> list[Any]:
            for name in ("reserve", "charge"):
                await ctx.step(made(name), name=name, undo=undone(name))
            approval = await ctx.wait_for(f"approval:{order}", timeout="2d")
            await asyncio.sleep(0)
            await ctx.step(made("invoice"), name="invoice")
            await ctx.sleep("10m")
            boxes = await ctx.gather(pack.bind(1), pack.bind(2))
            for name in ("ship", "tell", "close"):
                await ctx.step(made(name), name=name, undo=undone(name))
            if breaks:
                raise ConnectionError("the very end")
            return [approval, boxes]

        self.task: Any = checkout


@pytest.mark.parametrize("breaks", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_whole_workflow_killed_at_any_place_has_the_same_outcome(app: App, breaks: bool) -> None:
    did: list[str] = []
    checkout = Checkout(app, did, breaks=breaks)
    steps = ["reserve", "charge", "invoice", "pack 1", "pack 2", "ship", "tell", "close"]
    undone = [f"undo {name}" for name in ("close", "tell", "ship", "charge", "reserve")]

    def run(world: World) -> None:
        did.clear()
        job = checkout.task.enqueue(7)
        world.advance("1h")
        app.signal("approval:7", {"by": "ada"}, id="click")
        app.signal("approval:7", {"by": "bob"}, id="click")
        world.run_all()
        if breaks:
            assert job.refresh().state is JobState.DEAD
            assert "the very end" in job.why()
        else:
            assert job.result() == [{"by": "ada"}, ["box 1", "box 2"]]
        made = list(dict.fromkeys(did))
        assert sorted(made) == sorted([*steps, *(undone if breaks else [])])
        if breaks:
            assert [name for name in made if name.startswith("undo")] == undone
        assert len(did) <= len(made) + 2  # one crash repeats what ran then: a step, or the children
        assert len(world.jobs(task="pack")) == 2  # each child once

    with virtual(app) as world:
        world.crash_at(1_000_000)
        run(world)
        places = world.places
    assert places > 30
    for place in itertools.count(1):
        with virtual(app) as world:
            world.crash_at(place)
            run(world)
            if world.places < place:
                break


@pytest.mark.parametrize(
    "options, words",
    [
        ({"unique": "k"}, "takes no unique key"),
        ({"id": "01234567-89ab-7cde-8f01-23456789abcd"}, "takes no id="),
        ({"conn": object()}, "takes no conn="),
    ],
)
@pytest.mark.parametrize("verb", ["gather", "spawn"])
def test_a_child_keeps_every_option_or_is_refused(
    app: App, verb: str, options: dict[str, Any], words: str
) -> None:
    @app.task(name="child")
    def child() -> None: ...

    @app.task(retry=ONCE)
    async def parent(*, ctx: Context) -> None:
        await getattr(ctx, verb)(child.using(**options).bind())

    with virtual(app) as world:
        job = parent.enqueue()  # type: ignore[call-arg]
        world.run_all()
        assert job.refresh().state is JobState.DEAD
        assert not world.jobs(task="child")
        assert f"child: a job of a parent {words}" in job.why()

"""Undoing the steps of a job that ends badly, killed at every place too."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.step_kit import ONCE, TWICE, whats
from winch import (
    App,
    Context,
    JobState,
)
from winch.core.job import MAX_RESCUES
from winch.testing import World, virtual


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'never.db'}")


@pytest.fixture
def did() -> list[str]:
    return []


class Shop:
    """Three steps with undo, one without; it fails at `breaks_at`."""

    def __init__(self, app: App, did: list[str], *, is_async: bool = True) -> None:
        self.did = did
        self.breaks_at: str | None = None
        self.unreliable_undos = 0

        async def checkout(order: int, *, ctx: Context) -> str:
            await ctx.step(self.reserve, order, undo=self.release)
            charge = await ctx.step(self.charge, order, undo=self.refund)
            await ctx.step(self.mail, charge)
            await ctx.sleep("1h")
            await ctx.step(self.ship, order, undo=self.recall)
            self.maybe("end")
            return "shipped"

        def plain(order: int, *, ctx: Context) -> str:
            ctx.step(self.reserve, order, undo=self.release)
            charge = ctx.step(self.charge, order, undo=self.refund)
            ctx.step(self.mail, charge)
            ctx.sleep("1h")
            ctx.step(self.ship, order, undo=self.recall)
            self.maybe("end")
            return "shipped"

        self.task: Any = app.task(name="checkout", retry=TWICE)(checkout if is_async else plain)

    def maybe(self, name: str) -> None:
        if self.breaks_at == name:
            raise ConnectionError(f"{name} broke")

    def reserve(self, order: int) -> None:
        self.maybe("reserve")
        self.did.append(f"reserve {order}")

    def release(self, order: int) -> None:  # the step returned nothing: its arguments
        self.did.append(f"release {order}")

    async def charge(self, order: int) -> str:
        self.maybe("charge")
        self.did.append(f"charge {order}")
        return f"ch-{order}"

    def refund(self, charge: str) -> None:
        if self.unreliable_undos:
            self.unreliable_undos -= 1
            raise ConnectionError("the bank is closed")
        self.did.append(f"refund {charge}")

    def mail(self, charge: str) -> None:
        self.did.append(f"mail {charge}")

    def ship(self, order: int) -> None:
        self.maybe("ship")
        self.did.append("ship")

    async def recall(self) -> None:
        self.did.append("recall")


class PlainShop(Shop):
    def charge(self, order: int) -> str:  # type: ignore[override]
        self.did.append(f"charge {order}")
        return f"ch-{order}"

    def recall(self) -> None:  # type: ignore[override]
        self.did.append("recall")


@pytest.fixture(params=["async", "plain"])
def shop(request: pytest.FixtureRequest, app: App, did: list[str]) -> Shop:
    is_async = request.param == "async"
    return (Shop if is_async else PlainShop)(app, did, is_async=is_async)


def test_a_job_that_fails_for_good_is_undone_in_reverse(app: App, shop: Shop) -> None:
    shop.breaks_at = "end"
    with virtual(app) as world:
        job = shop.task.enqueue(7)
        world.run_all()
        assert job.refresh().state is JobState.DEAD
        assert "failed 2 times" in job.why()
        assert "end broke" in job.why()
        assert whats(job) == ["slept", "failed", "compensating", "failed"]
        assert not job.record.has_undo
    done = ["reserve 7", "charge 7", "mail ch-7", "ship"]
    assert shop.did == [*done, "recall", "refund ch-7", "release 7"]


def test_a_step_that_failed_is_not_undone(app: App, shop: Shop) -> None:
    shop.breaks_at = "ship"
    with virtual(app) as world:
        shop.task.enqueue(7)
        world.run_all()
    assert shop.did == ["reserve 7", "charge 7", "mail ch-7", "refund ch-7", "release 7"]


def test_a_sleeping_job_that_is_cancelled_is_undone_first(app: App, shop: Shop) -> None:
    with virtual(app) as world:
        job = shop.task.enqueue(7)
        world.advance("10m")
        job.cancel(reason="changed my mind")
        assert job.refresh().state is JobState.READY
        world.run_once()
        assert job.refresh().state is JobState.CANCELLED
        assert "changed my mind" in job.why()
        assert shop.did[3:] == ["refund ch-7", "release 7"]
        job.retry()  # a new life: all is made again
        world.run_all()
        assert job.result() == "shipped"
    assert shop.did[5:] == ["reserve 7", "charge 7", "mail ch-7", "ship"]


def test_a_running_job_that_is_cancelled_is_undone_first(app: App, did: list[str]) -> None:
    @app.task
    async def long(*, ctx: Context) -> None:
        await ctx.step(lambda: did.append("made"), name="make", undo=lambda: did.append("undone"))
        await asyncio.sleep(3600)

    with virtual(app) as world:
        job = long.using(timeout="2h").enqueue()  # type: ignore[call-arg]
        world.advance("1m")
        job.cancel()
        world.advance("1m")
        assert job.refresh().state is JobState.CANCELLED
    assert did == ["made", "undone"]


def test_a_job_whose_workers_vanish_is_undone_before_it_is_dead(app: App, did: list[str]) -> None:
    worlds: list[World] = []

    @app.task
    async def checkout(*, ctx: Context) -> None:
        for name, undo in (("reserve", "release"), ("charge", "refund")):
            await ctx.step(
                did.append, name, name=name, undo=lambda _, name_of_undo=undo: did.append(name_of_undo)
            )
        did.append("crash")
        worlds[0].crash_worker()
        await asyncio.sleep(1)

    task: Any = checkout
    with virtual(app) as world:
        worlds.append(world)
        job = task.enqueue()
        world.run_all()
        assert job.refresh().state is JobState.DEAD
        assert whats(job) == ["rescued"] * MAX_RESCUES + ["failed"]
        assert "rescued 10 times; last cause: lease over" in job.why()
        assert not job.record.has_undo
    assert did == ["reserve", "charge", *["crash"] * MAX_RESCUES, "refund", "release"]


def test_an_undo_that_fails_is_repeated_and_what_is_undone_stays_so(app: App, shop: Shop) -> None:
    shop.breaks_at, shop.unreliable_undos = "end", 1
    with virtual(app) as world:
        job = shop.task.enqueue(7)
        world.run_all()
        assert job.refresh().state is JobState.DEAD
        assert "end broke" in job.why()
    assert shop.did[4:] == ["recall", "refund ch-7", "release 7"]


def test_an_undo_that_always_fails_ends_in_a_dead_job_that_names_the_steps_left(
    app: App, shop: Shop
) -> None:
    shop.breaks_at, shop.unreliable_undos = "end", 99
    with virtual(app) as world:
        job = shop.task.enqueue(7)
        world.run_all()
        assert job.refresh().state is JobState.DEAD
        assert "the undo of step 'charge' failed 2 times; not undone: 'charge', 'reserve'" in job.why()
        shop.unreliable_undos = 0
        job.retry()  # goes on undoing
        world.run_all()
        assert job.refresh().state is JobState.DEAD
        assert "failed 2 times" in job.why()
    assert shop.did[4:] == ["recall", "refund ch-7", "release 7"]


def test_a_job_without_undo_that_died_goes_on_where_it_failed(app: App, did: list[str]) -> None:
    is_broken = True

    @app.task(retry=ONCE)
    def import_(*, ctx: Context) -> str:
        ctx.step(did.append, "first", name="first")
        if is_broken:
            raise ValueError
        ctx.step(did.append, "second", name="second")
        return "done"

    with virtual(app) as world:
        job = import_.enqueue()  # type: ignore[call-arg]
        world.run_all()
        assert job.refresh().state is JobState.DEAD
        is_broken = False
        job.retry()
        world.run_all()
        assert job.result() == "done"
        assert did == ["first", "second"]
        job.retry()  # it had completed: there is nowhere to go on from
        world.run_all()
    assert did == ["first", "second"] * 2


# -- killed at every place -----------------------------------------------------------------------------


def worlds(app: App, run: Callable[[World], None]) -> Iterator[int]:
    """Run it undisturbed, then once for each place at which its worker may die there."""
    with virtual(app) as world:
        world.crash_at(1_000_000)
        run(world)
        places = world.places
    for place in itertools.count(1):
        if place > places:
            return
        with virtual(app) as world:
            world.crash_at(place)
            run(world)
        yield place


@pytest.mark.parametrize("breaks_at", [None, "end", "cancel"])
def test_a_kill_at_any_place_does_not_change_the_outcome(app: App, breaks_at: str | None) -> None:
    did: list[str] = []
    shop = Shop(app, did)
    shop.breaks_at = breaks_at

    def run(world: World) -> None:
        did.clear()
        job = shop.task.enqueue(7)
        if breaks_at == "cancel":
            world.advance("30m")
            job.cancel(reason="enough")
        world.run_all()
        job.refresh()
        made = list(dict.fromkeys(did))  # a step that was killed before its note is made again
        match breaks_at:
            case None:
                assert job.result() == "shipped"
                assert made == ["reserve 7", "charge 7", "mail ch-7", "ship"]
            case "cancel":
                assert job.state is JobState.CANCELLED
                assert made == ["reserve 7", "charge 7", "mail ch-7", "refund ch-7", "release 7"]
            case _:
                assert job.state is JobState.DEAD
                undone = ["recall", "refund ch-7", "release 7"]
                assert made == ["reserve 7", "charge 7", "mail ch-7", "ship", *undone]
        assert len(did) <= len(made) + 1  # one crash repeats one step at most

    assert sum(1 for _ in worlds(app, run)) >= 15


def test_a_lost_reply_to_a_note_changes_nothing(app: App, shop: Shop) -> None:
    with virtual(app) as world:
        world.lose_reply("note", 3)
        world.refuse("note", 2)
        job = shop.task.enqueue(7)
        world.run_all()
        assert job.result() == "shipped"
    assert shop.did == ["reserve 7", "charge 7", "mail ch-7", "ship"]

"""Durable steps: a handler that goes on where it was, whatever happened to the worker that ran it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from winch import (
    App,
    Context,
    HistoryMismatch,
    Job,
    JobState,
    PayloadTooLarge,
    Retry,
    Snooze,
    StepFailed,
)
from winch.core import steps
from winch.core.job import MAX_RESCUES
from winch.core.steps import MAX_STEP_BYTES
from winch.testing import World, virtual

ONCE = Retry.fixed("1s", attempts=1)
TWICE = Retry.fixed("1s", attempts=2, jitter="none")


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'never.db'}")


@pytest.fixture
def did() -> list[str]:
    return []


def history(job: Job[Any]) -> steps.StepHistory:
    found = steps.read(job.refresh().record.checkpoint)
    assert found is not None
    return found


def whats(job: Job[Any]) -> list[str]:
    return [entry.what for entry in job.refresh().record.history]


# -- steps ---------------------------------------------------------------------------------------------


@dataclass
class Hold:
    order: int
    lines: list[str]


@pytest.mark.parametrize("is_async", [True, False])
def test_a_step_is_made_once_however_often_its_job_is_tried(
    app: App, did: list[str], is_async: bool
) -> None:
    def reserve(order: int) -> Hold:
        did.append(f"reserve {order}")
        return Hold(order, ["a", "b"])

    def finish(hold: Hold, attempt: int) -> str:
        assert isinstance(hold, Hold)  # as the annotation says, in every attempt
        if attempt < 3:
            raise ConnectionError
        return "+".join(hold.lines)

    if is_async:

        @app.task
        async def order(number: int, *, ctx: Context) -> str:
            hold = await ctx.step(reserve, number)
            return finish(hold, ctx.attempt)
    else:

        @app.task
        def order(number: int, *, ctx: Context) -> str:
            hold = ctx.step(reserve, number)
            return finish(hold, ctx.attempt)

    with virtual(app) as world:
        job = order.enqueue(7)  # type: ignore[call-arg]
        world.run_all()
        assert job.result() == "a+b"
        assert did == ["reserve 7"]
        assert job.refresh().record.attempt == 3


def test_steps_of_one_name_are_told_apart_by_their_number(app: App, did: list[str]) -> None:
    def add(number: int) -> int:
        did.append(f"add {number}")
        return number

    @app.task
    def total(*, ctx: Context) -> int:
        found = sum(ctx.step(add, number) for number in (1, 2, 3))
        if ctx.attempt == 1:
            raise ConnectionError
        return int(found)

    with virtual(app) as world:
        job = total.enqueue()  # type: ignore[call-arg]
        world.run_all()
        assert job.result() == 6
        assert [record.name for record in history(job).steps] == ["add", "add#2", "add#3"]
    assert did == ["add 1", "add 2", "add 3"]


def test_an_async_handler_may_make_steps_of_plain_functions_and_at_the_same_time(
    app: App, did: list[str]
) -> None:
    async def slow(name: str) -> str:
        did.append(f"{name} begins")
        await asyncio.sleep(1)
        did.append(f"{name} ends")
        return name

    def plain(name: str) -> str:
        did.append(name)
        return name

    @app.task
    async def both(*, ctx: Context) -> list[str]:
        found = await asyncio.gather(
            ctx.step(slow, "a", name="a"), ctx.step(slow, "b", name="b"), ctx.step(plain, "c")
        )
        if ctx.attempt == 1:
            raise ConnectionError
        return list(found)

    with virtual(app) as world:
        job = both.enqueue()  # type: ignore[call-arg]
        world.run_all()
        assert job.result() == ["a", "b", "c"]
    assert sorted(did) == ["a begins", "a ends", "b begins", "b ends", "c"]


def test_a_step_with_a_policy_is_repeated_without_a_worker_and_without_an_attempt(
    app: App, did: list[str]
) -> None:
    def flaky() -> str:
        did.append("try")
        if len(did) < 3:
            raise ConnectionError("not yet")
        return "at last"

    @app.task(retry=ONCE)
    async def job_of_it(*, ctx: Context) -> str:
        return str(await ctx.step(flaky, retry=Retry.fixed("1h", attempts=5, jitter="none")))

    with virtual(app) as world:
        job = job_of_it.enqueue()  # type: ignore[call-arg]
        world.advance("30m")
        assert job.refresh().state is JobState.SCHEDULED
        assert "'flaky' failed" in job.why()
        world.advance("31m")
        assert len(did) == 2
        world.run_all()
        assert job.result() == "at last"
        assert job.refresh().record.attempt == 1
        assert whats(job) == ["slept", "slept"]


def test_a_step_that_has_failed_for_good_ends_its_job_and_is_tried_again_by_a_retry(
    app: App, did: list[str]
) -> None:
    is_broken = True

    def call() -> str:
        did.append("call")
        if is_broken:
            raise ConnectionError("still down")
        return "up"

    @app.task
    async def caller(*, ctx: Context) -> str:
        return str(await ctx.step(call, retry=TWICE))

    with virtual(app) as world:
        job = caller.enqueue()  # type: ignore[call-arg]
        world.run_all()
        assert job.refresh().state is JobState.DEAD
        assert "step 'call' failed 2 times: ConnectionError: still down" in job.why()
        assert len(did) == 2
        is_broken = False
        job.retry()
        world.run_all()
        assert job.result() == "up"


def test_a_handler_may_catch_a_failed_step_and_takes_the_same_way_in_every_attempt(app: App) -> None:
    def call() -> None:
        raise ConnectionError("down")

    @app.task(retry=TWICE)
    def caller(*, ctx: Context) -> str:
        way = "through"
        try:
            ctx.step(call, retry=ONCE)
        except StepFailed as failed:
            way = f"around {failed.step}"
        if ctx.attempt == 1:
            raise ValueError
        return way

    with virtual(app) as world:
        job = caller.enqueue()  # type: ignore[call-arg]
        world.run_all()
        assert job.result() == "around call"


@pytest.mark.parametrize("value", ["x" * (MAX_STEP_BYTES + 1), object()])
def test_a_result_that_cannot_be_kept_ends_the_job_because_the_work_is_done(
    app: App, did: list[str], value: object
) -> None:
    def make() -> object:
        did.append("made")
        return value

    @app.task
    def maker(*, ctx: Context) -> None:
        ctx.step(make)

    with virtual(app) as world:
        job = maker.enqueue()  # type: ignore[call-arg]
        world.run_all()
        assert job.refresh().state is JobState.DEAD
        assert "the result of step 'make'" in job.why()
    assert did == ["made"]


def test_a_history_that_grows_too_big_says_what_to_do(app: App) -> None:
    def make(_: int) -> str:
        return "x" * 200_000

    @app.task
    def maker(*, ctx: Context) -> None:
        for number in range(10):
            ctx.step(make, number)

    with virtual(app) as world:
        job = maker.enqueue()  # type: ignore[call-arg]
        world.run_all()
        assert job.refresh().state is JobState.DEAD
        assert "the history of 6 steps is" in job.why()
        assert "spawn children" in job.why()


def test_what_a_step_raises_to_choose_an_outcome_is_the_jobs(app: App, did: list[str]) -> None:
    def later() -> str:
        did.append("looked")
        if len(did) == 1:
            raise Snooze("2h")
        return "now"

    @app.task
    def looker(*, ctx: Context) -> str:
        return str(ctx.step(later, retry=TWICE))

    with virtual(app) as world:
        job = looker.enqueue()  # type: ignore[call-arg]
        world.advance("1h")
        assert whats(job) == ["snoozed"]
        world.run_all()
        assert job.result() == "now"


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda ctx: ctx.step(lambda: 1), "say name="),
        (lambda ctx: ctx.step(print, name=" "), "the name of a step must be"),
        (lambda ctx: ctx.step(print, name="x" * 300), "1 to 256"),
        (lambda ctx: ctx.step(asyncio.sleep, 0), "made by a plain handler"),
        (lambda ctx: ctx.step(print, undo="undo"), "must be a function"),
        (lambda ctx: ctx.sleep(5), "sleep"),
        (lambda ctx: ctx.version("x", 1), "newest must be 2 or more"),
    ],
)
def test_wrong_calls_say_what_to_do(app: App, make: Callable[[Context], Any], message: str) -> None:
    @app.task(retry=ONCE)
    def wrong(*, ctx: Context) -> None:
        make(ctx)

    with virtual(app) as world:
        job = wrong.enqueue()  # type: ignore[call-arg]
        world.run_all()
        assert job.refresh().record.error is not None
        assert message in job.record.error.message  # type: ignore[union-attr]


def test_a_checkpoint_of_the_handlers_own_stays_beside_the_steps(app: App) -> None:
    seen: list[Any] = []

    @app.task(retry=TWICE)
    def mixed(*, ctx: Context) -> None:
        seen.append(ctx.last_checkpoint)
        ctx.checkpoint({"page": 1})
        ctx.step(len, "abc")
        ctx.checkpoint({"page": 2})
        ctx.step(len, "abcd")
        if ctx.attempt == 1:
            raise ValueError

    with virtual(app) as world:
        job = mixed.enqueue()  # type: ignore[call-arg]
        world.run_all()
        assert job.refresh().state is JobState.COMPLETED
        assert [record.result for record in history(job).steps] == ["3", "4"]
    assert seen == [None, {"page": 2}]


# -- sleeping ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [True, False])
def test_thirty_days_of_sleep_take_milliseconds_and_no_attempt(
    app: App, did: list[str], is_async: bool
) -> None:
    def note(what: str) -> None:
        did.append(f"{what} on day {(world.now - began).days}")

    if is_async:

        @app.task(timeout="1m", retry=ONCE)
        async def trial(*, ctx: Context) -> str:
            await ctx.step(note, "welcome", name="welcome")
            await ctx.sleep("23d")
            await ctx.step(note, "remind", name="remind")
            await ctx.sleep("7d")
            return "over"
    else:

        @app.task(timeout="1m", retry=ONCE)
        def trial(*, ctx: Context) -> str:
            ctx.step(note, "welcome", name="welcome")
            ctx.sleep("23d")
            ctx.step(note, "remind", name="remind")
            ctx.sleep("7d")
            return "over"

    spent = time.process_time()
    with virtual(app) as world:
        began = world.now
        job = trial.enqueue()  # type: ignore[call-arg]
        world.advance("1d")
        assert (job.refresh().state, job.record.attempt) == (JobState.SCHEDULED, 0)
        assert "it sleeps" in job.why()
        world.advance("29d")
        assert job.result() == "over"
        assert (world.now - began).days == 30
        assert whats(job) == ["slept", "slept"]
    assert did == ["welcome on day 0", "remind on day 23"]
    assert time.process_time() - spent < 1.0


def test_a_swallowed_suspension_still_counts(app: App, did: list[str]) -> None:
    @app.task
    async def stubborn(*, ctx: Context) -> str:
        try:
            await ctx.sleep("1d")
        except BaseException:
            did.append("swallowed")
            try:
                await ctx.step(did.append, "too late", name="late")
            except BaseException:
                did.append("again")
        return "done"

    with virtual(app) as world:
        job = stubborn.enqueue()  # type: ignore[call-arg]
        world.advance("1h")
        assert job.refresh().state is JobState.SCHEDULED
        assert did == ["swallowed", "again"]
        world.run_all()
        assert job.result() == "done"


def test_sleeps_at_the_same_time_wait_for_the_first_and_for_steps_under_way(
    app: App, did: list[str]
) -> None:
    async def work() -> None:
        await asyncio.sleep(60)
        did.append("worked")

    async def nap(ctx: Context, span: str) -> None:
        await ctx.sleep(span, name=f"sleep {span}")
        did.append(f"slept {span}")

    @app.task
    async def busy(*, ctx: Context) -> None:
        await asyncio.gather(nap(ctx, "2h"), nap(ctx, "1h"), ctx.step(work))

    with virtual(app) as world:
        began = world.now
        job = busy.enqueue()  # type: ignore[call-arg]
        world.run_all()
        assert job.refresh().state is JobState.COMPLETED
        assert (world.now - began).total_seconds() == pytest.approx(7200, abs=2)
    assert did == ["worked", "slept 1h", "slept 2h", "slept 1h"]


def test_a_job_that_has_begun_does_not_expire(app: App) -> None:
    @app.task
    async def sleeper(*, ctx: Context) -> str:
        await ctx.sleep("2h")
        return "worth ending"

    with virtual(app) as world:
        job = sleeper.using(expires="1h").enqueue()  # type: ignore[call-arg]
        world.run_all()
        assert job.result() == "worth ending"


# -- code and history ----------------------------------------------------------------------------------


class Deploys:
    """A task whose code is replaced while its jobs are under way."""

    def __init__(self, app: App) -> None:
        self.code: Callable[[Context], Any] = lambda ctx: None

        @app.task(name="deployed", retry=TWICE)
        def run(*, ctx: Context) -> Any:
            return self.code(ctx)

        self.task = run


def first(ctx: Context) -> list[Any]:
    return [ctx.step(len, "a", name="one"), ctx.sleep("1d"), ctx.step(len, "ab", name="two")]


@pytest.mark.parametrize(
    "later, message",
    [
        (lambda ctx: [ctx.step(len, "x", name="new"), *first(ctx)], "call 1 of job"),
        (lambda ctx: [ctx.step(len, "a", name="one")], "returned without making 'sleep'"),
        (lambda ctx: [ctx.sleep("1d", name="one")], "as a step"),
        (lambda ctx: None, "without making 'one', 'sleep'"),
    ],
)
def test_code_that_disagrees_with_the_history_is_told_so(
    app: App, later: Callable[[Context], Any], message: str
) -> None:
    deployed = Deploys(app)
    deployed.code = first
    with virtual(app) as world:
        job = deployed.task.enqueue()
        world.advance("1h")
        deployed.code = later
        world.advance("1d")
        error = job.refresh().record.error
        assert error is not None
        assert error.type.endswith("HistoryMismatch")
        assert message in error.message
        assert "ctx.version" in error.message
        deployed.code = first  # the deploy is taken back in time
        job.retry()
        world.run_all()
        assert job.refresh().state is JobState.COMPLETED


def test_version_lets_running_jobs_take_the_old_way_and_new_ones_the_new(app: App) -> None:
    deployed = Deploys(app)
    deployed.code = first

    def changed(ctx: Context) -> Any:
        extra = [ctx.step(len, "new", name="new")] if ctx.version("a check first") == 2 else []
        return [*extra, *first(ctx)]

    with virtual(app) as world:
        old = deployed.task.enqueue()
        world.advance("1h")
        deployed.code = changed
        new = deployed.task.enqueue()
        world.run_all()
        assert (old.result(), new.result()) == ([1, None, 2], [3, 1, None, 2])


def test_a_history_that_somebody_has_damaged_kills_its_job_and_no_other(app: App) -> None:
    with pytest.raises(Exception, match="malformed"):
        steps.read('{"winch":"steps","steps":7}')
    assert steps.read('{"page":1}') is None
    record = steps.StepRecord(name="a", kind="step", at=virtual(app).now, result="x" * 2_000_000)
    with pytest.raises(PayloadTooLarge, match="history"):
        steps.write(steps.StepHistory(steps=(record,)))


# -- undoing -------------------------------------------------------------------------------------------


class Shop:
    """Three steps with undo, one without; it fails where it is told to."""

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
        assert whats(job) == ["slept", "failed", "unwinding", "failed"]
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
            await ctx.step(did.append, name, name=name, undo=lambda _, said=undo: did.append(said))
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


def test_an_undo_that_never_works_ends_in_a_dead_job_that_says_what_is_left(
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
def test_killed_at_any_place_it_comes_to_the_same_end(app: App, breaks_at: str | None) -> None:
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


def test_a_mismatch_is_an_error_of_winch() -> None:
    assert issubclass(HistoryMismatch, Exception)

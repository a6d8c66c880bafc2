"""Durable steps: a handler that goes on where it was, whatever happened to the worker that ran it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engine.step_kit import ONCE, TWICE, history, whats
from winch import (
    App,
    Context,
    HistoryMismatch,
    JobState,
    Retry,
    Snooze,
    StepFailed,
)
from winch.core import steps
from winch.core.steps import MAX_STEP_BYTES
from winch.testing import virtual


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'never.db'}")


@pytest.fixture
def did() -> list[str]:
    return []


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
        assert isinstance(hold, Hold)  # of the annotated type, in every attempt
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


def test_steps_of_one_name_are_numbered(app: App, did: list[str]) -> None:
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


def test_a_history_that_grows_too_big_raises_with_the_remedy(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("winch.engine.durable.history.MAX_HISTORY_BYTES", 1024 * 1024)

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
        assert "ctx.restart" in job.why()


def test_an_outcome_raised_in_a_step_is_the_outcome_of_the_job(app: App, did: list[str]) -> None:
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
        (lambda ctx: ctx.step(lambda: 1), "pass name="),
        (lambda ctx: ctx.step(print, name=" "), "the name of a step must be"),
        (lambda ctx: ctx.step(print, name="x" * 300), "1 to 256"),
        (lambda ctx: ctx.step(asyncio.sleep, 0), "calls the step is not"),
        (lambda ctx: ctx.step(print, undo="undo"), "must be a function"),
        (lambda ctx: ctx.sleep(5), "sleep"),
        (lambda ctx: ctx.version("x", 1), "newest must be 2 or more"),
    ],
)
def test_wrong_calls_raise_with_the_remedy(
    app: App, make: Callable[[Context], Any], message: str
) -> None:
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
        (lambda ctx: [ctx.step(len, "a", name="one")], "returned without reaching 'sleep'"),
        (lambda ctx: [ctx.sleep("1d", name="one")], "as a step"),
        (lambda ctx: None, "without reaching 'one', 'sleep'"),
    ],
)
def test_code_that_disagrees_with_the_history_raises(
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


def test_a_damaged_history_kills_its_job_and_no_other(app: App) -> None:
    with pytest.raises(Exception, match="malformed"):
        steps.read('{"winch":"steps","steps":7}')
    assert steps.read('{"page":1}') is None
    with pytest.raises(Exception, match="page of the history"):
        steps.read_page("7")


def test_a_mismatch_is_an_error_of_winch() -> None:
    assert issubclass(HistoryMismatch, Exception)

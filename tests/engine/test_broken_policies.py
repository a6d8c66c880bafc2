"""Policies and outcomes of the application that fail themselves: the attempt counts, and the handler
does not run for ever."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from winch import App, Cancel, ConfigError, Discard, JobState, Retry, RetryAfter, Snooze
from winch.storage.params import NewJob

MOST = 5
UNKNOWN_JITTER = (
    '{"retry":{"kind":"linear","base":"PT0S","factor":1,"max":"PT1H","attempts":1,'
    '"jitter":"of a later release"}}'
)


def broken(attempt: int) -> timedelta:
    raise RuntimeError("no delay today")


def negative(attempt: int) -> timedelta:
    return timedelta(seconds=-1)


def nothing(attempt: int) -> Any:
    return None


def failing(app: App, is_async: bool, **options: Any) -> tuple[Any, list[int]]:
    """A task whose handler always fails, and its runs. After some it gives up, to end the test."""
    runs: list[int] = []

    def fail() -> None:
        runs.append(1)
        if len(runs) > MOST:
            raise Discard("it ran too often")
        raise ValueError("as always")

    async def afail() -> None:
        fail()

    return app.task(name="fail", **options)(afail if is_async else fail), runs


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("fn", [broken, negative, nothing])
def test_a_custom_policy_that_fails(fn: Callable[[int], timedelta], is_async: bool) -> None:
    app = App("memory://")
    app.driver.migrate()
    task, runs = failing(app, is_async, retry=Retry.custom(fn, attempts=2))
    job = task.enqueue()
    app.run_worker(burst=True)
    record = job.refresh().record
    assert (record.state, record.attempt, len(runs)) == (JobState.RETRYING, 1, 1)
    assert record.reason.startswith("its retry policy failed, and the default holds: ")
    app.driver.run(app.driver.retry([job.id], by="test"))
    app.run_worker(burst=True)
    assert (job.refresh().state, len(runs)) == (JobState.DEAD, 2)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_stored_policy_that_cannot_be_read(is_async: bool) -> None:
    app = App("memory://")
    app.driver.migrate()
    _, runs = failing(app, is_async)
    job = NewJob(id=app.client.draw_id(), task="fail", args="{}", options=UNKNOWN_JITTER)
    app.driver.run(app.driver.enqueue([job]))
    app.run_worker(burst=True)
    assert (app.jobs.get(job.id).record.state, len(runs)) == (JobState.DEAD, 1)


@pytest.mark.parametrize("on", [broken, {ValueError: "1s"}, {"ValueError": None}, [ValueError]])
def test_an_invalid_map_of_policies_is_refused(on: Any) -> None:
    with pytest.raises(ConfigError, match="retry on must map types of exceptions"):
        Retry.fixed("1s", on=on)


class WithoutReason(Discard):
    """It forgets to call what it is made from."""

    def __init__(self) -> None:
        pass


OUTCOMES: dict[str, tuple[Callable[[], BaseException], JobState, str]] = {
    "an exception as the reason": (lambda: Discard(KeyError("gone")), JobState.DEAD, "'gone'"),  # type: ignore[arg-type]
    "a number as the reason": (lambda: Cancel(42), JobState.CANCELLED, "42"),  # type: ignore[arg-type]
    "a list as the reason": (lambda: Snooze("1h", [1]), JobState.SCHEDULED, "[1]"),  # type: ignore[arg-type]
    "a number as the scope": (lambda: RetryAfter("1h", scope=1), JobState.RETRYING, ""),  # type: ignore[arg-type]
    "a class without a reason": (WithoutReason, JobState.RETRYING, ""),
}


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("is_raised", [False, True])
@pytest.mark.parametrize("name", OUTCOMES)
def test_a_malformed_outcome_has_a_defined_result(name: str, is_raised: bool, is_async: bool) -> None:
    app = App("memory://")
    app.driver.migrate()
    make, state, reason = OUTCOMES[name]
    runs: list[int] = []

    def choose() -> Any:
        runs.append(1)
        if len(runs) > MOST:
            return None
        outcome = make()
        if is_raised:
            raise outcome
        return outcome

    async def achoose() -> Any:
        return choose()

    job = app.task(name="choose")(achoose if is_async else choose).enqueue()
    app.run_worker(burst=True)
    record = job.refresh().record
    assert (record.state, record.reason or "", len(runs)) == (state, reason, 1)


class Picky(msgspec.Struct):
    """A type of the application whose own check fails in a way that is no verdict on the value."""

    n: int

    def __post_init__(self) -> None:
        if self.n:
            READ.append(self.n)
            raise KeyError("no such thing")


READ: list[int] = []


@pytest.mark.parametrize("way", ["inline", "row", "row of two", "collecting"])
def test_arguments_that_fail_to_be_read_cost_an_attempt(way: str) -> None:
    app = App("memory://")
    app.driver.migrate()
    READ.clear()

    def take(p: Picky) -> None:
        pass

    async def atake(p: Picky) -> None:
        pass

    def wrong(jobs: list[int]) -> None:
        """No collecting task has such a parameter."""

    if way == "collecting":
        app.task(name="take", collect=10)(wrong)  # type: ignore[arg-type]  # that is the point
    else:
        app.task(name="take")(atake if way == "inline" else take)
    numbers = [0, 1] if way == "row of two" else [1]
    jobs = [NewJob(id=app.client.draw_id(), task="take", args=f'{{"p":{{"n":{n}}}}}') for n in numbers]
    app.driver.run(app.driver.enqueue(jobs))
    app.run_worker(burst=True)
    *others, bad = [app.jobs.get(job.id).record for job in jobs]
    assert [one.state for one in others] == [JobState.COMPLETED] * len(others)
    assert (bad.state, bad.attempt) == (JobState.RETRYING, 1)
    assert len(READ) <= MOST

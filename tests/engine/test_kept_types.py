"""What JSON would bring back as another type is refused, unless an annotation names its type."""

from __future__ import annotations

import gc
import typing
import weakref
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from winch import App, Context, InvalidPayload, JobState, Retry

MOMENT = datetime(2026, 3, 1, tzinfo=UTC)
CHANGING = [
    (b"raw", "bytes"),
    (bytearray(b"raw"), "bytes"),
    ({1, 2}, "a set"),
    (frozenset({1}), "a set"),
    (MOMENT, "a date or time"),
    (date(2026, 3, 1), "a date or time"),
    (timedelta(seconds=3), "a timedelta"),
]


def untyped(value):  # type: ignore[no-untyped-def]
    return value


def anything(value: Any) -> Any:
    return value


def star(*value: Any) -> Any:
    return value


def loose(value: dict[str, Any]) -> dict[str, Any]:
    return value


def typed(raw: bytes, some: set[int], at: datetime, inner: dict[str, list[date]]) -> list[str]:
    return [type(raw).__name__, type(some).__name__, type(at).__name__, str(inner["x"][0].year)]


def ran(app: App, job: Any) -> Any:
    app.run_worker(burst=True)
    return job.refresh()


@pytest.mark.parametrize("fn", [untyped, anything, star])
@pytest.mark.parametrize("value, name", CHANGING)
def test_an_untyped_argument_is_refused(fn: Callable[..., Any], value: Any, name: str) -> None:
    task = App("memory://").task(fn)
    for given in (value, [value], {"a": (1, [value])}):
        with pytest.raises(InvalidPayload, match=f"'value' of .* holds {name}.*annotate its type"):
            task.enqueue(given)


@pytest.mark.parametrize("value, name", CHANGING)
def test_an_annotation_that_leaves_parts_open_is_no_help(value: Any, name: str) -> None:
    task = App("memory://").task(loose)
    with pytest.raises(InvalidPayload, match=f"holds {name}"):
        task.enqueue({"a": value})


@pytest.mark.parametrize("value, name", CHANGING)
def test_a_partial_call_is_refused_too(value: Any, name: str) -> None:
    def last(first: Any, second: Any) -> None: ...

    with pytest.raises(InvalidPayload, match=f"'second' of .* holds {name}"):
        App("memory://").task(last).partial(value)


def test_annotated_arguments_come_back_as_they_were() -> None:
    app = App("memory://")
    job = app.task(typed).enqueue(b"raw", {1}, MOMENT, {"x": [date(2026, 3, 1)]})
    assert ran(app, job).result() == ["bytes", "set", "datetime", "2026"]


@pytest.mark.parametrize("value, name", CHANGING)
def test_an_untyped_result_is_not_kept(value: Any, name: str) -> None:
    app = App("memory://")

    @app.task
    def give() -> Any:
        return {"a": [value]}

    job = ran(app, give.enqueue())
    assert job.state is JobState.COMPLETED, "the work is done, whatever its result is"
    with pytest.raises(InvalidPayload, match=f"result not kept: the result of .*give holds {name}"):
        job.result()


def test_an_annotated_result_comes_back_as_it_was() -> None:
    app = App("memory://")

    @app.task
    def give() -> tuple[bytes, dict[str, datetime]]:
        return b"raw", {"at": MOMENT}

    assert ran(app, give.enqueue()).result() == (b"raw", {"at": MOMENT})


@pytest.mark.parametrize("value, name", CHANGING)
def test_a_signal_with_such_a_value_is_refused(value: Any, name: str) -> None:
    app = App("memory://")
    for payload in (value, {"a": [value]}):
        with pytest.raises(InvalidPayload, match=f"payload of a signal holds {name}.*; pass"):
            app.signal("approval:7", payload)
    assert app.signal("approval:7", {"a": [1, "b", None, 2.5]})


@pytest.mark.parametrize("value, name", CHANGING)
def test_a_checkpoint_with_such_a_value_is_refused(value: Any, name: str) -> None:
    app = App("memory://")
    refused: list[str] = []

    @app.task
    def work(ctx: Context) -> None:
        with pytest.raises(InvalidPayload) as info:
            ctx.checkpoint({"at": value})
        refused.append(str(info.value))
        ctx.checkpoint({"page": 3})

    assert ran(app, work.enqueue()).state is JobState.COMPLETED
    assert len(refused) == 1
    assert f"the checkpoint holds {name}" in refused[0]


@pytest.mark.parametrize("value, name", CHANGING)
def test_an_untyped_result_of_a_step_with_such_a_value_fails_the_attempt(value: Any, name: str) -> None:
    app = App("memory://")

    @app.task(retry=Retry.fixed("1s", attempts=1))
    async def work(ctx: Context) -> None:
        await ctx.step(untyped, value)

    job = ran(app, work.enqueue())
    assert job.state is JobState.DEAD
    assert f"the result of step 'untyped' holds {name}" in job.record.error.message


def test_a_typed_result_of_a_step_comes_back_as_its_type() -> None:
    app = App("memory://")
    seen: list[Any] = []

    def moment() -> datetime:
        return MOMENT

    def raw() -> dict[str, bytes]:
        return {"a": b"raw"}

    @app.task(retry=Retry.fixed("10ms", attempts=2))
    async def work(ctx: Context) -> None:
        seen.append((await ctx.step(moment), await ctx.step(raw)))
        if ctx.attempt == 1:
            raise RuntimeError("once more")

    assert ran(app, work.enqueue()).state is JobState.COMPLETED
    assert seen == [(MOMENT, {"a": b"raw"})] * 2


class Shop:
    """Its method is a new object at each look."""

    def opened(self) -> date:
        return date(2026, 3, 1)


def test_the_annotation_of_a_step_is_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[Any] = []
    real = typing.get_type_hints

    def counted(made: Any, **options: Any) -> dict[str, Any]:
        evaluated.append(made)
        return real(made, **options)

    def opened() -> date:
        return date(2026, 3, 1)

    app, shop, found = App("memory://"), Shop(), []

    @app.task
    def job(ctx: Context) -> None:
        for _ in range(3):
            found.append(ctx.step(opened))
            found.append(ctx.step(shop.opened, name="shop"))

    monkeypatch.setattr(typing, "get_type_hints", counted)
    assert ran(app, job.enqueue()).state is JobState.COMPLETED
    assert found == [date(2026, 3, 1)] * 6
    assert [evaluated.count(one) for one in (opened, Shop.opened)] == [1, 1]


def test_a_step_made_within_its_handler_is_forgotten_with_it() -> None:
    app, made = App("memory://"), []

    @app.task
    def job(ctx: Context) -> None:
        def inner() -> int:
            return 1

        made.append(weakref.ref(inner))
        ctx.step(inner)

    assert ran(app, job.enqueue()).state is JobState.COMPLETED
    gc.collect()
    assert made[0]() is None

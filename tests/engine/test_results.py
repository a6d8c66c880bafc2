"""Results come back as the type that their task's return annotation names."""

from __future__ import annotations

import asyncio
import enum
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest

from winch import App, Context, ResultMismatch, Snooze, chain, group
from winch.engine.tasks.task import Bound
from winch.testing import virtual


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Order:
    id: uuid.UUID
    total: Decimal
    lines: list[int]


class Point(msgspec.Struct):
    x: int
    y: int


class Pair(NamedTuple):
    a: int
    b: str


class Named(TypedDict):
    name: str


class Model(pydantic.BaseModel):
    at: datetime


ID = uuid.UUID("12345678-1234-5678-1234-567812345678")
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ORDER = Order(ID, Decimal("9.90"), [1, 2])

VALUES: list[tuple[Any, Any]] = [
    (Order, ORDER),
    (list[Order], [ORDER]),
    (dict[int, Decimal], {7: Decimal("1.5")}),
    (Order | None, ORDER),
    (Order | None, None),
    (Order | Snooze, ORDER),
    (Decimal, Decimal("0.10")),
    (uuid.UUID, ID),
    (datetime, NOW),
    (date, NOW.date()),
    (timedelta, timedelta(seconds=90)),
    (Colour, Colour.RED),
    (Point, Point(1, 2)),
    (Pair, Pair(1, "x")),
    (tuple[int, ...], (1, 2)),
    (set[str], {"a"}),
    (bytes, b"\0\1"),
    (Named, {"name": "n"}),
    (Model, Model(at=NOW)),
    (list[Model], [Model(at=NOW)]),
    (float, 2.0),
    (int, 3),
    (Any, {"a": [1]}),
    (object, {"a": [1]}),
]


@pytest.fixture
def app() -> Iterator[App]:
    app = App("memory://")
    yield app
    app.close()


@pytest.mark.parametrize("hint, value", VALUES)
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_a_result_is_what_the_handler_returned(app: App, hint: Any, value: Any, is_async: bool) -> None:
    if is_async:

        async def work() -> Any:
            return value
    else:

        def work() -> Any:  # type: ignore[misc]
            return value

    work.__annotations__["return"] = hint
    task = app.task(name="work")(work)
    with virtual(app) as world:
        job = task.enqueue()
        world.run_all()
        for found in (job.result(), app.jobs.get(job.id).result()):
            assert found == value
            assert type(found) is type(value)
        assert asyncio.run(job.aresult()) == value


def test_without_an_annotation_a_result_is_plain_data(app: App) -> None:
    @app.task(name="bare")
    def bare():  # type: ignore[no-untyped-def]
        return ORDER

    with virtual(app) as world:
        job = bare.enqueue()
        world.run_all()
        assert job.result() == {"id": str(ID), "total": "9.90", "lines": [1, 2]}


def test_a_result_of_a_task_that_is_not_known_here_is_plain_data(app: App) -> None:
    @app.task(name="known")
    def known() -> Decimal:
        return Decimal(1)

    with virtual(app) as world:
        job = known.enqueue()
        world.run_all()
        del app.tasks._tasks["known"]
        assert job.result() == "1"


def test_a_result_that_does_not_fit_raises_and_carries_the_plain_value(app: App) -> None:
    @app.task(name="wrong")
    def wrong() -> Order:
        return {"id": "no uuid"}  # type: ignore[return-value]

    with virtual(app) as world:
        job = wrong.enqueue()
        world.run_all()
        with pytest.raises(
            ResultMismatch, match=rf"job {job.id} \(wrong\) does not fit .*Order"
        ) as info:
            job.result()
        assert info.value.value == {"id": "no uuid"}
        assert job.state == "completed"


def test_an_annotation_that_json_cannot_become_raises_and_carries_the_plain_value(app: App) -> None:
    @app.task(name="either")
    def either() -> Order | Model:
        return ORDER

    with virtual(app) as world:
        job = either.enqueue()
        world.run_all()
        with pytest.raises(ResultMismatch, match="cannot be read as its annotation") as info:
            job.result()
        assert info.value.value == {"id": str(ID), "total": "9.90", "lines": [1, 2]}


def test_flows_hand_typed_results_on_and_give_them_back(app: App) -> None:
    seen: list[Any] = []

    @app.task(name="make")
    def make(n: int) -> Order:
        return Order(ID, Decimal(n), [])

    @app.task(name="double")
    def double(order: Order) -> Decimal:
        seen.append(order)
        return order.total * 2

    with virtual(app) as world:
        one = chain(make.bind(2), double.partial()).enqueue()
        many = group([make.bind(1), make.bind(2)]).enqueue()
        world.run_all()
        assert seen == [Order(ID, Decimal(2), [])]
        assert one.result() == Decimal(4)
        assert many.result() == [Order(ID, Decimal(1), []), Order(ID, Decimal(2), [])]


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_gathered_results_are_typed_in_every_attempt(app: App, is_async: bool) -> None:
    seen: list[Any] = []

    @app.task(name="make")
    def make(n: int) -> Order:
        return Order(ID, Decimal(n), [])

    @app.task(name="count")
    def count() -> Decimal:
        return Decimal(7)

    calls: list[Bound[Any]] = [make.bind(1), count.bind()]
    if is_async:

        @app.task(name="parent")
        async def parent(*, ctx: Context) -> None:
            seen.append(await ctx.gather(*calls))
            await ctx.sleep("1h")
    else:

        @app.task(name="parent")
        def parent(*, ctx: Context) -> None:
            seen.append(ctx.gather(*calls))
            ctx.sleep("1h")

    with virtual(app) as world:
        job = parent.enqueue()  # type: ignore[call-arg]
        world.run_all()
        assert job.refresh().state == "completed"
    found = [Order(ID, Decimal(1), []), Decimal(7)]
    assert seen == [found, found]

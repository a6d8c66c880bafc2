"""What takes calls refuses what is no call, and calls of another app, before anything is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from winch import (
    App,
    ConfigError,
    Context,
    InvalidPayload,
    Job,
    JobFailed,
    Retry,
    batch,
    chain,
    chord,
    flow,
    group,
    map_,
)
from winch.engine.tasks.task import Task
from winch.testing import World, virtual

Take = Callable[[App, Any], Any]
ONCE = Retry.fixed("1s", attempts=1)


def in_batch(app: App, call: Any) -> None:
    with batch("b") as made:
        made.enqueue(own(app).bind(1), call)


def after_batch(app: App, call: Any) -> None:
    with batch("b", on_success=own(app).bind(2), on_complete=call) as made:
        made.enqueue(own(app).bind(1))


def in_flow(app: App, call: Any) -> None:
    made = flow("f")
    first = made.add(own(app).bind(1))
    made.add(call, after=[first])
    made.enqueue()


TAKERS: dict[str, Take] = {
    "enqueue_many": lambda app, call: app.enqueue_many([own(app).bind(1), call]),
    "enqueue_many of an iterator": lambda app, call: app.enqueue_many(iter([call])),
    "chain": lambda app, call: chain(own(app).bind(1), call).enqueue(),
    "group": lambda app, call: group([own(app).bind(1), call]).enqueue(),
    "group of an iterator": lambda app, call: group(iter([own(app).bind(1), call])).enqueue(),
    "chord member": lambda app, call: chord([own(app).bind(1), call], own(app).bind(2)).enqueue(),
    "chord callback": lambda app, call: chord([own(app).bind(1)], call).enqueue(),
    "batch member": in_batch,
    "batch callback": after_batch,
    "flow": in_flow,
}


def own(app: App) -> Task[[int], int]:
    return app.tasks.get("own")


def make_app(name: str = "own") -> App:
    app = App("memory://")

    @app.task(name=name)
    def task(n: int) -> int:
        return n

    return app


@pytest.fixture
def app() -> Iterator[App]:
    app = make_app()
    yield app
    app.close()


@pytest.fixture
def other() -> Iterator[App]:
    app = make_app("foreign")
    yield app
    app.close()


def plain(n: int) -> int:
    return n


@pytest.mark.parametrize("taker", TAKERS)
def test_a_call_of_another_app_is_refused_by_name(taker: str, app: App, other: App) -> None:
    with pytest.raises(ConfigError, match="foreign belongs to another app"):
        TAKERS[taker](app, other.tasks.get("foreign").bind(1))
    assert not other.jobs.list()
    assert not [job for job in app.jobs.list() if job.record.task == "foreign"]


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize(
    "given, words",
    [
        (own, r"the task own itself; add its arguments with \.bind"),
        (lambda app: own(app).using(delay="1m"), r"the task own itself"),
        (lambda app: plain, r"the function plain; decorate it with @app\.task"),
        (lambda app: ("own", 1), "got a tuple"),
        (lambda app: 7, "got a int"),
    ],
    ids=["task", "using", "function", "tuple", "number"],
)
def test_an_object_that_is_no_call_is_refused_with_the_remedy(
    taker: str, given: Callable[[App], Any], words: str, app: App
) -> None:
    with pytest.raises(ConfigError, match=words):
        TAKERS[taker](app, given(app))


def test_the_coroutine_of_a_task_is_no_call(app: App) -> None:
    @app.task(name="async")
    async def work() -> None: ...

    with pytest.raises(ConfigError, match=r"the coroutine of .*work"):
        asyncio.run(app.aenqueue_many([work()]))  # type: ignore[list-item]


def test_enqueue_many_stores_no_call_without_its_first_argument(app: App) -> None:
    with pytest.raises(InvalidPayload, match=r"own\.partial\(…\) has no result before it"):
        app.enqueue_many([own(app).partial()])
    assert not app.jobs.list()


def test_enqueue_many_takes_an_iterable(app: App) -> None:
    with pytest.raises(ConfigError, match=r"an iterable of task\.bind"):
        app.enqueue_many(own(app).bind(1))  # type: ignore[arg-type]


def test_map_takes_a_task(app: App, other: App) -> None:
    with pytest.raises(ConfigError, match="map_ takes a task"):
        map_(plain, [1, 2]).enqueue()
    with pytest.raises(ConfigError, match="another app"):
        chain(own(app).bind(1), map_(other.tasks.get("foreign"), [1, 2])).enqueue()


@pytest.mark.parametrize("how", ["gather", "spawn", "batch"])
@pytest.mark.parametrize("what", ["foreign", "task"])
def test_a_handler_cannot_add_them_either(how: str, what: str, app: App, other: App) -> None:
    call: Any = other.tasks.get("foreign").bind(1) if what == "foreign" else own(app)

    @app.task(name="parent", retry=ONCE)
    async def parent(*, ctx: Context) -> None:
        if how == "batch":
            await ctx.batch.aenqueue(call)
        else:
            await getattr(ctx, how)(call)

    with virtual(app) as world:
        with batch("b") as made:
            [job] = made.enqueue(parent.bind())  # type: ignore[call-arg]
        with pytest.raises(JobFailed, match="belongs to another app" if what == "foreign" else "itself"):
            finish(world, job)
    assert not other.jobs.list()


def finish(world: World, job: Job[Any]) -> Any:
    world.run_all()
    return job.result()


def test_a_schedule_takes_a_task_of_its_own_app(app: App, other: App) -> None:
    foreign = other.tasks.get("foreign")
    with pytest.raises(ConfigError, match="foreign belongs to another app"):
        app.schedules.add("s", foreign, every="1h", args={"n": 1})
    with pytest.raises(ConfigError, match="foreign belongs to another app"):
        app.schedule(every="1h", args={"n": 1})(foreign)

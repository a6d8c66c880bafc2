"""Settings of queues while everything runs: retries, what a full queue does, pauses that end."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from winch import App, ConfigError, JobState, QueueFull, Rate, Retry, chain
from winch.testing import virtual

STORES = ["memory", "sqlite"]


def new_app(store: str, tmp_path: Any) -> App:
    return App("memory://" if store == "memory" else f"sqlite:///{tmp_path / 'winch.db'}")


@pytest.fixture(params=STORES)
def app(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    app = new_app(request.param, tmp_path)

    @app.task(name="t", queue="mail")
    def t(n: int = 0) -> int:
        return n

    yield app
    app.close()


def age(app: App) -> None:
    """Let what the client has read be old."""
    app.client.writer.admission.forget()


def enqueue(app: App, times: int = 1, **options: Any) -> list[Any]:
    task = app.tasks.get("t")
    return [task.using(**options).enqueue(n) for n in range(times)]


def test_a_full_queue_rejects_with_a_retry_after(app: App) -> None:
    app.queues.configure("mail", max_depth=3, on_full="reject")
    enqueue(app, 3)
    with pytest.raises(QueueFull, match="max_depth is 3") as full:
        enqueue(app)
    assert full.value.retry_after == timedelta(seconds=1)
    with pytest.raises(QueueFull):
        app.enqueue_many([app.tasks.get("t").bind(n) for n in range(2)])
    enqueue(app, queue="other")
    assert len(app.jobs.list(queue="mail")) == 3
    app.run_worker(queues=["mail"], burst=True)
    age(app)
    enqueue(app, 3)
    app.queues.configure("mail", max_depth=None)
    age(app)
    enqueue(app, 10)


def test_a_bulk_that_does_not_fit_is_refused_whole(app: App) -> None:
    app.queues.configure("mail", max_depth=3)
    with pytest.raises(QueueFull):
        app.enqueue_many([app.tasks.get("t").bind(n) for n in range(4)])
    assert app.jobs.list() == []


def test_shed_drops_what_is_low(app: App) -> None:
    app.queues.configure("mail", max_depth=1, on_full="shed")
    [first] = enqueue(app)
    [low] = enqueue(app, priority="low")
    [usual] = enqueue(app)
    assert (first.is_shed, low.is_shed, usual.is_shed) == (False, True, False)
    assert {job.id for job in app.jobs.list()} == {first.id, usual.id}
    jobs = app.enqueue_many([app.tasks.get("t").using(priority=p).bind() for p in (-1, 0, -1)])
    assert [job.is_shed for job in jobs] == [True, False, True]


def test_delay_smooths_a_burst_into_a_rate(app: App) -> None:
    app.queues.configure("mail", max_depth=2, on_full="delay", drain="10/s")
    jobs = [job.record for job in enqueue(app, 6)]
    assert [job.state for job in jobs] == [JobState.READY] * 2 + [JobState.SCHEDULED] * 4
    waits = [round((job.run_at - job.created_at).total_seconds(), 3) for job in jobs[2:]]
    assert waits == [0.1, 0.2, 0.3, 0.4]


def test_block_waits_for_room_and_gives_up_in_the_end() -> None:
    app = App("memory://")

    @app.task(name="t", queue="mail")
    async def t() -> None: ...

    with virtual(app) as world:
        app.queues.configure("mail", max_depth=1, on_full="block", block_for="3s")
        t.enqueue()
        before = world.now
        second = t.enqueue()  # the worker takes the first one while it waits
        assert second.is_new
        assert world.now - before < timedelta(seconds=2)
        app.queues.pause("mail")
        before = world.now
        with pytest.raises(QueueFull):
            t.enqueue()
        assert world.now - before >= timedelta(seconds=3)


def test_async_enqueues_are_kept_out_too() -> None:
    app = App("memory://")

    @app.task(name="t", queue="mail")
    async def t() -> None: ...

    async def fill() -> None:
        await t.aenqueue()
        with pytest.raises(QueueFull):
            await t.aenqueue()

    app.queues.configure("mail", max_depth=1)
    asyncio.run(fill())


def test_an_old_queue_is_full() -> None:
    app = App("memory://")

    @app.task(name="t", queue="mail")
    async def t() -> None: ...

    with virtual(app, queues=["other"]) as world:
        app.queues.configure("mail", max_age="1m")
        t.enqueue()
        world.advance("59s")
        t.enqueue()
        world.advance("2s")
        with pytest.raises(QueueFull, match="max_age"):
            t.enqueue()


def test_in_the_callers_transaction_a_full_queue_is_full_too(tmp_path: Any) -> None:
    app = new_app("sqlite", tmp_path)

    @app.task(name="t", queue="mail")
    def t() -> None: ...

    app.queues.configure("mail", max_depth=1)
    with app.transaction() as conn:
        t.using(conn=conn).enqueue()
        with pytest.raises(QueueFull):
            t.using(conn=conn).enqueue()
    assert len(app.jobs.list()) == 1
    app.close()


def test_retries_and_backoff_of_a_queue_go_before_the_tasks_own() -> None:
    app = App("memory://")

    @app.task(name="bad", queue="mail", retry=Retry.fixed("1h", attempts=9))
    def bad() -> None:
        raise ValueError("no")

    with virtual(app) as world:
        app.queues.configure("mail", retries=2, backoff="5s")
        world.advance("2s")
        job = bad.enqueue()
        own = bad.using(retry=Retry.fixed("1s", attempts=1)).enqueue()
        world.advance("11s")
        assert job.refresh().state is JobState.DEAD
        assert job.record.attempt == 3
        assert (own.refresh().state, own.record.attempt) == (JobState.DEAD, 1)
        app.queues.configure("mail", retries=None, backoff=None)
        assert app.queues.settings() == {}


@pytest.mark.parametrize(
    "backoff",
    [
        Retry.exponential("1s", factor=3, max="5s", jitter="none"),
        "exponential 1s factor=3 max=5s jitter=none",
    ],
)
def test_the_backoff_of_a_queue_may_be_a_policy(backoff: Retry | str) -> None:
    app = App("memory://")
    ran: list[float] = []

    @app.task(name="bad", queue="mail", retry=Retry.fixed("1h", attempts=5))
    def bad() -> None:
        ran.append((world.now - began).total_seconds())
        raise ValueError("no")

    with virtual(app) as world:
        app.queues.configure("mail", backoff=backoff)
        world.advance("2s")
        began = world.now
        job = bad.enqueue()
        world.advance("1m")
        assert job.refresh().state is JobState.DEAD
    assert ran == [0, 1, 4, 9, 14]


def test_a_pause_with_an_end_ends() -> None:
    app = App("memory://")

    @app.task(name="t", queue="mail")
    async def t() -> None: ...

    with virtual(app) as world:
        app.queues.pause("mail", reason="provider is down", until="10m")
        job = t.enqueue()
        world.advance("9m")
        assert job.refresh().state is JobState.READY
        assert "provider is down (until 2026-01-01 00:10:00 UTC)" in job.why()
        world.advance("2m")
        assert job.refresh().state is JobState.COMPLETED
        app.queues.pause("mail", until=world.now + timedelta(minutes=1))
        app.queues.pause("mail", reason="for good")
        job = t.enqueue()
        world.advance("1h")
        assert job.refresh().state is JobState.READY
        app.queues.resume("mail")
        world.run_all()


@pytest.mark.parametrize(
    "given, message",
    [
        ({"max_dept": 1}, r"did you mean 'max_depth'\?"),
        ({"max_depth": 0}, "whole number from 1"),
        ({"retries": -1}, "whole number from 0"),
        ({"on_full": "explode"}, "on_full must be one of reject, block, shed, delay"),
        ({"on_full": "delay"}, "needs max_depth"),
        ({"drain": "fast"}, "drain must look like"),
        ({"backoff": "0s"}, "longer than zero"),
    ],
)
def test_wrong_settings_are_refused_with_a_reason(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        App("memory://").queues.configure("mail", **given)


def test_concurrency_of_a_queue_is_the_fleets() -> None:
    app = App("memory://")
    running: list[int] = []
    most: list[int] = []

    @app.task(name="slow", queue="mail")
    async def slow() -> None:
        running.append(1)
        most.append(len(running))
        await asyncio.sleep(10)
        running.pop()

    with virtual(app) as world:
        app.queues.configure("mail", concurrency=2)
        app.enqueue_many([slow.bind() for _ in range(6)])
        world.advance("5s")
        assert len(running) == 2
        app.queues.configure("mail", concurrency=3)
        world.run_all()
        assert max(most) == 3
        app.queues.configure("mail", concurrency=None)
        app.enqueue_many([slow.bind() for _ in range(6)])
        world.run_all()
        assert len(world.jobs(state="completed")) == 12


def test_jobs_that_wait_for_the_queues_concurrency_fill_it() -> None:
    app = App("memory://")

    @app.task(name="slow", queue="mail")
    async def slow() -> None:
        await asyncio.sleep(100)

    with virtual(app) as world:
        app.queues.configure("mail", concurrency=1, max_depth=3)
        for _ in range(4):
            slow.enqueue()
            world.advance("2s")
        with pytest.raises(QueueFull):
            slow.enqueue()
        world.run_all()


def test_strict_order_lets_no_lower_priority_go_first(app: App) -> None:
    ran: list[int] = []

    @app.task(name="note", queue="strict")
    def note(n: int) -> None:
        ran.append(n)

    app.queues.configure("strict", order="strict")
    age(app)
    jobs = [note.using(priority=priority).enqueue(n) for n, priority in enumerate((0, 1, -1, 2, 1))]
    assert [job.record.priority for job in jobs] == [0, 1, -1, 2, 1]
    app.run_worker(queues=["strict"], concurrency=1, burst=True)
    assert ran == [3, 1, 4, 0, 2]
    with pytest.raises(ConfigError, match="order must be one of aged, strict"):
        app.queues.configure("strict", order="sorted")  # type: ignore[arg-type]
    assert str(app.queues.settings()["strict"].order) == "strict"


def test_producers_are_held_to_a_rate_for_each_key(app: App) -> None:
    @app.task(name="rated", enqueue_rate=Rate(3, per="1m", key="customer"))
    def rated(customer: str) -> None: ...

    for _ in range(3):
        rated.enqueue("acme")
    with pytest.raises(QueueFull, match="rate:rated:customer=acme: no more than 3") as full:
        rated.enqueue("acme")
    assert timedelta(seconds=50) < full.value.retry_after <= timedelta(minutes=1)
    asyncio.run(rated.aenqueue("other"))
    with pytest.raises(QueueFull):
        app.enqueue_many([rated.bind("third") for _ in range(4)])
    app.enqueue_many([rated.bind("third") for _ in range(3)])
    assert len(app.jobs.list(task="rated")) == 7
    with pytest.raises(ConfigError, match="enqueue_rate must be Rate"):
        app.task(name="x", enqueue_rate=5)(lambda: None)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="no argument"):
        app.task(name="y", enqueue_rate=Rate(1, per="1s", key="unknown"))(lambda: None)


def test_members_of_a_flow_keep_to_the_order_and_concurrency_of_their_queue(app: App) -> None:
    app.queues.configure("mail", order="strict", concurrency=1, max_depth=1, on_full="reject")
    age(app)
    urgent = app.tasks.get("t").using(priority=2)
    made = chain(urgent.bind(1), app.tasks.get("t").bind(2)).enqueue()
    members = app.flows.members(made.id)
    assert sorted(job.priority for job in members) == [0, 2]
    assert [job.options for job in members] == [None, None], "the claim reads the queue"
    while not made.last[0].refresh().state.is_final:
        app.run_worker(queues=["mail"], burst=True)
    assert made.result() == 2


def test_concurrency_and_order_hold_for_jobs_that_are_in_the_queue(app: App) -> None:
    ran: list[int] = []
    running: list[int] = []
    most: list[int] = []

    @app.task(name="note", queue="set")
    async def note(n: int) -> None:
        ran.append(n)
        running.append(n)
        most.append(len(running))
        await asyncio.sleep(0.01)
        running.remove(n)

    priorities = (0, 1, -1, 2, 1)
    jobs = [note.using(priority=priority).enqueue(n) for n, priority in enumerate(priorities)]
    late = note.using(delay="1h", priority=3).enqueue(9)
    app.queues.configure("set", order="strict", concurrency=1)
    found = [job.refresh().record for job in [*jobs, late]]
    assert [job.priority for job in found] == [*priorities, 3], "nothing is written to jobs"
    app.run_worker(queues=["set"], concurrency=5, burst=True)
    assert ran == [3, 1, 4, 0, 2]
    assert max(most) == 1
    app.queues.configure("set", order=None, concurrency=None)
    late.retry()
    app.run_worker(queues=["set"], concurrency=5, burst=True)
    assert ran[-1] == 9


def test_concurrency_holds_for_a_producer_that_reads_no_settings() -> None:
    app = App("memory://")
    running: list[int] = []

    @app.task(name="slow", queue="mail")
    async def slow() -> None:
        running.append(1)
        await asyncio.sleep(100)
        running.pop()

    with virtual(app) as world:
        app.queues.configure("mail", concurrency=1)
        admission = app.client.writer.admission
        admission._looked_at = admission.open_until = float("inf")  # it never looks again
        for _ in range(3):
            slow.enqueue()
        world.advance("30s")
        assert len(running) == 1
        why = [job.why() for job in world.jobs(task="slow")]
        assert (
            sum("waits for its queue 'mail' (limit 'queue:mail'): 1 of 1 run" in one for one in why) == 2
        )
        world.run_all()


def test_jobs_of_a_schedule_keep_to_the_concurrency_of_their_queue() -> None:
    app = App("memory://")
    running: list[int] = []

    @app.task(name="slow", queue="mail")
    async def slow() -> None:
        running.append(1)
        await asyncio.sleep(100)
        running.pop()

    with virtual(app) as world:
        app.queues.configure("mail", concurrency=1)
        app.schedules.add("often", task="slow", every="10s")
        world.advance("45s")
        assert len(running) == 1
        jobs = world.jobs(task="slow")
        assert len(jobs) >= 4
        app.schedules.pause("often")
        world.run_all()

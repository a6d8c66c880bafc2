"""The virtual world: the real engine, in memory, in a time that passes only when a test advances it."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest

from winch import App, ConfigError, Context, Depends, JobState, Retry, Snooze, StorageUnavailable
from winch.core.job import MAX_RESCUES
from winch.testing import World, virtual


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'never.db'}")


def test_thirty_days_of_retries_take_less_than_a_second(app: App) -> None:
    seen: list[datetime] = []

    @app.task(retry=Retry.exponential("1m", factor=2, max="3d", attempts=22, jitter="none"))
    def stubborn(*, ctx: Context) -> str:
        seen.append(world.now)
        if ctx.attempt < 22:
            raise ConnectionError(f"attempt {ctx.attempt}")
        return "at last"

    began = time.process_time()  # a busy machine must not decide
    with virtual(app) as world:
        job = stubborn.enqueue()  # type: ignore[call-arg]  # ctx is injected
        world.advance("30d")
        assert job.refresh().state is JobState.COMPLETED
        assert job.result() == "at last"
    assert time.process_time() - began < 1.0
    waits = [later - earlier for earlier, later in itertools.pairwise(seen)]
    policy = [min(timedelta(minutes=2**n), timedelta(days=3)) for n in range(21)]
    assert waits == policy  # to the microsecond


def test_a_delayed_job_runs_at_exactly_its_time(app: App) -> None:
    ran: list[datetime] = []

    @app.task
    def stamp() -> None:
        ran.append(world.now)

    with virtual(app) as world:
        due = world.now + timedelta(hours=2)
        job = stamp.using(delay="2h").enqueue()
        world.advance("1h59m59s")
        world.advance(timedelta(microseconds=999_999))
        assert job.refresh().state is JobState.SCHEDULED
        world.advance(timedelta(microseconds=1))
        assert job.refresh().state is JobState.COMPLETED
        assert ran == [due]
        assert world.now == due


def test_due_jobs_run_in_order(app: App) -> None:
    ran: list[tuple[str, float]] = []

    @app.task
    async def note(name: str) -> None:
        ran.append((name, (world.now - began).total_seconds()))

    with virtual(app) as world:
        began = world.now
        for name, delay in (("c", "3d"), ("a", "90s"), ("b", "90001ms"), ("now", "0s")):
            note.using(delay=delay).enqueue(name)
        world.advance("4d")
    assert ran == [("now", 0.0), ("a", 90.0), ("b", 90.001), ("c", 259200.0)]


def test_nothing_runs_before_a_call_and_run_once_keeps_the_time(app: App) -> None:
    @app.task(queue="mail")
    def add(a: int, b: int) -> int:
        return a + b

    with virtual(app) as world:
        before = world.now
        job, later = add.enqueue(1, 2), add.using(delay="1s").enqueue(3, 4)
        assert [j.id for j in world.jobs(state="ready")] == [job.id]
        assert world.run_once() == 1
        assert world.run_once() == 0
        assert (job.refresh().state, later.refresh().state) == (JobState.COMPLETED, JobState.SCHEDULED)
        assert world.now == before
        assert world.run_all() == 1
        assert world.now == before + timedelta(seconds=1)
        assert [j.id for j in world.jobs()] == [job.id, later.id]


def test_a_queue_named_only_by_an_enqueue_is_served_at_once(app: App) -> None:
    @app.task
    def plain() -> int:
        return 1

    with virtual(app) as world:
        job = plain.using(queue="never heard of").enqueue()
        world.run_once()
        assert job.result() == 1


def test_run_all_names_the_jobs_that_will_not_end(app: App) -> None:
    @app.task
    def again() -> Snooze:
        return Snooze("1h")

    @app.task
    def paused() -> None: ...

    with virtual(app) as world:
        app.queues.pause("held")
        paused.using(queue="held").enqueue()  # no worker would claim it, so run_all does not wait for it
        world.run_all()
        job = again.enqueue()
        with pytest.raises(
            AssertionError, match=rf"1 jobs are not done after 2d .*\n  {job.id} .*again"
        ):
            world.run_all(within="2d")


def test_a_timeout_ends_a_handler_at_its_moment(app: App) -> None:
    ends: list[datetime] = []

    @app.task(timeout="15m", retry=Retry.never())
    async def hours() -> None:
        try:
            await asyncio.sleep(6 * 3600)
        finally:
            ends.append(world.now)

    with virtual(app) as world:
        began, job = world.now, hours.enqueue()
        world.advance("1d")
        assert job.refresh().state is JobState.DEAD
        assert job.record.error is not None
        assert job.record.error.type.endswith("JobTimeout")
        assert ends == [began + timedelta(minutes=15)]


def test_a_handler_that_sleeps_for_a_day_keeps_its_lease(app: App) -> None:
    @app.task(timeout=None)
    async def night(*, ctx: Context) -> int:
        await asyncio.sleep(24 * 3600)
        return ctx.attempt

    with virtual(app) as world:
        job: Any = night.enqueue()  # type: ignore[call-arg]  # ctx is injected
        world.advance("1d")
        assert job.result() == 1
        assert job.record.history == ()
        assert job.record.finished_at - job.record.created_at == timedelta(days=1)


def test_a_running_job_can_be_cancelled(app: App) -> None:
    @app.task
    async def hours() -> None:
        await asyncio.sleep(600)

    with virtual(app) as world:
        job = hours.enqueue()
        world.advance("1m")
        job.cancel("enough")
        world.advance("2s")
        assert job.refresh().state is JobState.CANCELLED


def test_an_expired_job_is_cancelled_unrun(app: App) -> None:
    @app.task
    def late() -> None: ...

    with virtual(app) as world:
        job = late.using(delay="2h", expires="1h").enqueue()
        world.advance("2h")
        assert job.refresh().state is JobState.CANCELLED


def test_final_jobs_are_pruned_in_time(app: App) -> None:
    @app.task(retention="10d")
    def brief() -> None: ...

    with virtual(app) as world:
        brief.enqueue()
        world.advance("9d")
        assert len(world.jobs(state="completed")) == 1
        world.advance("1d1m")
        assert world.jobs() == []


# -- crashes and faults ----------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["claim", "handler", "before finish"])
def test_the_job_of_a_crashed_worker_is_rescued_when_its_lease_is_over(app: App, point: Any) -> None:
    ran: list[datetime] = []

    @app.task
    async def work(*, ctx: Context) -> int:
        ran.append(world.now)
        await asyncio.sleep(0)
        return ctx.attempt

    with virtual(app) as world:
        began = world.now
        world.crash(at=point)
        job: Any = work.enqueue()  # type: ignore[call-arg]  # ctx is injected
        world.advance("29s")
        assert job.refresh().state is JobState.RUNNING  # the lease of 30 s is still good
        world.advance("16s")
        assert job.refresh().state is JobState.COMPLETED
        assert [entry.what for entry in job.record.history] == ["rescued"]
        lease, sweep = timedelta(seconds=30), timedelta(seconds=5)
        assert lease <= job.record.finished_at - began <= lease + 3 * sweep
        assert len(ran) == (1 if point == "claim" else 2)
        assert job.result() == 1  # a rescue costs no attempt


@pytest.mark.parametrize("hours", [-10, 10])
def test_a_clock_that_is_set_just_after_a_worker_died_delays_the_rescue_by_a_lease(
    app: App, hours: int
) -> None:
    """Set back, the lease of the dead worker would lie hours in the future."""
    ran: list[int] = []

    @app.task
    async def work() -> None:
        ran.append(1)
        await asyncio.sleep(0)

    with virtual(app) as world:
        world.crash(at="handler")
        job = work.enqueue()
        world.advance("1s")
        world.jump_clock(timedelta(hours=hours))
        world.advance("80s")  # two leases and a few sweeps
        assert job.refresh().state is JobState.COMPLETED
        assert len(ran) == 2


def test_a_worker_may_die_as_soon_as_it_has_started(app: App) -> None:
    @app.task
    def work(n: int) -> int:
        return n

    with virtual(app) as world:
        jobs = app.enqueue_many(work.bind(n) for n in range(30))
        world.crash(at="claim", times=2)
        world.run_once()
        assert {job.refresh().state for job in jobs} <= {JobState.RUNNING, JobState.COMPLETED}
        world.run_all()
        assert [job.result() for job in jobs] == list(range(30))
        assert max(job.record.rescues for job in jobs) == 1


def test_a_worker_that_dies_after_its_finish_loses_nothing(app: App) -> None:
    ran: list[int] = []

    @app.task
    def work() -> None:
        ran.append(1)

    with virtual(app) as world:
        world.crash(at="after finish")
        job = work.enqueue()
        world.advance("5m")
        assert job.refresh().state is JobState.COMPLETED
        assert (ran, job.record.rescues) == ([1], 0)
        assert len(app.workers.list()) == 1  # the dead one's session is over by now


def test_a_killed_handler_runs_no_line_more(app: App) -> None:
    lines: list[str] = []

    @app.task
    async def work() -> None:
        lines.append("before")
        try:
            await asyncio.sleep(10)
            lines.append("after")
        finally:
            lines.append("finally")

    with virtual(app) as world:
        work.enqueue()
        world.advance("5s")
        world.crash_worker()
        world.advance("20s")
        assert lines == ["before"]
        world.advance("1m")
        assert lines == ["before", "before", "after", "finally"]


def test_a_world_may_end_with_a_crash(app: App) -> None:
    @app.task
    async def work() -> None:
        await asyncio.sleep(10)

    with virtual(app) as world:
        work.enqueue()
        world.advance("1s")
        world.crash_worker()
    with virtual(app) as world:
        world.store_down("1h")
        world.crash_worker()
        world.advance("1m")


def test_a_job_whose_workers_vanish_again_and_again_is_dead(app: App) -> None:
    @app.task
    def poison() -> None: ...

    @app.task
    def neighbour() -> int:
        return 1

    with virtual(app) as world:
        world.crash(at="handler", times=MAX_RESCUES)
        job = poison.enqueue()
        world.run_all()
        assert job.refresh().state is JobState.DEAD
        assert job.record.rescues == MAX_RESCUES
        other = neighbour.enqueue()
        assert world.run_once() == 1
        assert other.result() == 1


def test_a_lost_answer_changes_nothing(app: App) -> None:
    ran: list[int] = []

    @app.task
    def once(n: int) -> None:
        ran.append(n)

    with virtual(app) as world:
        world.lose_reply("enqueue")
        job = once.enqueue(1)  # tried again with the same id
        assert len(world.jobs()) == 1
        world.lose_reply("finish")
        world.run_all()
        assert job.refresh().state is JobState.COMPLETED
        world.lose_reply("claim")
        second = once.enqueue(2)
        world.run_all()
        assert second.refresh().state is JobState.COMPLETED
        assert ran == [1, 2]


def test_a_store_that_is_down_only_delays(app: App) -> None:
    @app.task
    def work() -> int:
        return 1

    with virtual(app) as world:
        job = work.using(delay="10s").enqueue()
        world.store_down("30s")
        with pytest.raises(StorageUnavailable):
            work.enqueue()
        world.advance("20s")
        assert [j.state for j in world.jobs()] == [JobState.SCHEDULED]
        world.advance("20s")
        assert job.result() == 1
        assert job.record.finished_at is not None
        late = job.record.finished_at - job.record.created_at
        assert timedelta(seconds=30) <= late <= timedelta(seconds=36)


def test_unknown_crash_points_and_verbs_are_refused(app: App) -> None:
    with virtual(app) as world:
        with pytest.raises(ConfigError, match=r"no crash point 'before finsh' \(did you mean"):
            world.crash(at="before finsh")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="the store has no verb 'fnish'"):
            world.lose_reply("fnish")


# -- determinism -----------------------------------------------------------------------------------


def story(app: App, seed: int) -> list[Any]:
    """Crashes, jitter, faults and a hundred jobs; what happened, in order."""
    with virtual(app, seed=seed, concurrency=3) as world:
        app.enqueue_many(app.tasks.get("shaky").bind(n) for n in range(40))
        world.crash(at="claim")
        world.advance("10s")
        world.store_down("12s")
        world.advance("1m")
        for n in range(20):
            app.tasks.get("shaky").using(delay=timedelta(seconds=random.random() * 60)).enqueue(n)
        world.crash(at="handler", times=2)
        world.run_all()
        return list(world.events)


def test_the_same_seed_gives_the_same_history(app: App) -> None:
    @app.task(name="shaky", retry=Retry.exponential("1s", attempts=6, jitter="full"))
    async def shaky(n: int) -> float:
        await asyncio.sleep(random.random())
        if random.random() < 0.5:
            raise ValueError(n)
        return random.random()

    first, second, other = story(app, 7), story(app, 7), story(app, 8)
    assert len(first) > 200
    assert first == second
    assert first != other


def test_the_test_suites_own_randomness_is_not_touched(app: App) -> None:
    random.seed(3)
    expected = [random.random(), random.random()]
    random.seed(3)
    first = random.random()
    with virtual(app, seed=1):
        random.random()
    assert [first, random.random()] == expected


# -- the block -------------------------------------------------------------------------------------


def test_the_app_is_put_back_as_it_was(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'own.db'}")

    @app.task
    def plain() -> int:
        return 1

    own = plain.enqueue()
    clock, driver, surroundings = app.clock, app.driver, app.client.surroundings
    with pytest.raises(ZeroDivisionError), virtual(app):  # noqa: PT012  # the block is what ends badly
        inside = plain.enqueue()
        assert [job.id for job in app.jobs.list()] == [inside.id]
        _ = 1 // 0
    assert (app.clock, app.driver, app.client.surroundings) == (clock, driver, surroundings)
    assert [job.id for job in app.jobs.list()] == [own.id]
    app.close()


def test_no_store_of_the_app_is_opened(app: App, tmp_path: Path) -> None:
    @app.task
    def plain() -> None: ...

    with virtual(app) as world:
        plain.enqueue()
        world.run_all()
    assert list(tmp_path.iterdir()) == []


def test_resources_are_made_for_each_worker_and_cleaned_up(app: App) -> None:
    made: list[str] = []

    @app.lifespan
    async def resources() -> Any:
        made.append("made")
        yield {"n": len(made)}
        made.append("closed")

    @app.task
    async def use(n: Annotated[Any, Depends("n")]) -> int:
        return int(n)

    with virtual(app) as world:
        assert use.enqueue().result() == 1
        world.crash_worker()
        assert use.enqueue().result() == 2
        assert made == ["made", "made"]
    assert made == ["made", "made", "closed", "closed"]


def test_results_are_waited_for_in_virtual_time(app: App) -> None:
    @app.task
    def plain() -> int:
        return 1

    @app.task(timeout="2h")
    async def parent() -> int:
        return await (await plain.using(delay="1h").aenqueue()) + 1

    @app.task(retry=Retry.never())
    def blocking() -> int:
        return plain.enqueue().result()

    with virtual(app) as world:
        assert plain.using(delay="10s").enqueue().result(timeout="20s") == 1
        with pytest.raises(TimeoutError):
            plain.using(delay="1h").enqueue().result(timeout="20s")
        job, stuck = parent.enqueue(), blocking.enqueue()
        world.run_all()
        assert job.result() == 2
        assert stuck.refresh().record.error is not None
        assert "make the handler `async def`" in stuck.record.error.message  # type: ignore[union-attr]
        app.queues.pause("paused")
        with pytest.raises(RuntimeError, match="this one never will"):
            plain.using(queue="paused").enqueue().result()


def test_it_works_inside_an_async_test(app: App) -> None:
    threads: set[str] = set()

    @app.task
    async def on_loop(n: int) -> int:
        await asyncio.sleep(600)
        return n

    @app.task
    def plain(n: int) -> int:
        threads.add(threading.current_thread().name)
        return n

    async def main() -> None:
        with virtual(app) as world:
            first, second = await on_loop.aenqueue(1), await plain.using(delay="1d").aenqueue(2)
            assert await first == 1
            world.advance("1d")
            assert (await second.arefresh()).state is JobState.COMPLETED
            assert await plain.enqueue(3).aresult() == 3

    asyncio.run(asyncio.wait_for(main(), 20))
    assert len(threads) == 1


def test_a_thread_of_a_handler_is_waited_for_in_real_time(app: App) -> None:
    @app.task(timeout="1s")
    async def with_thread() -> str:
        await asyncio.to_thread(time.sleep, 0.05)
        return "done"

    with virtual(app) as world:
        job = with_thread.enqueue()
        world.advance("1h")
        assert job.result() == "done"


def test_a_handler_cannot_move_the_time(app: App) -> None:
    @app.task(retry=Retry.never())
    def jump() -> None:
        world.advance("1d")

    with virtual(app) as world:
        job = jump.enqueue()
        world.run_once()
        assert job.refresh().record.error is not None
        assert "only the test itself can move its time" in job.record.error.message  # type: ignore[union-attr]


def test_clock_and_start(app: App) -> None:
    start = datetime(2030, 6, 1, 12, tzinfo=UTC)
    with virtual(app, start=start) as world:
        world.clock.advance("1d")
        assert world.now == app.clock.now() == start + timedelta(days=1)
        world.advance_to(start + timedelta(days=2))
        with pytest.raises(ConfigError, match="time cannot go back"):
            world.advance_to(start)
    with pytest.raises(ConfigError, match="time zone"):
        virtual(app, start=datetime(2030, 6, 1))  # noqa: DTZ001  # the mistake under test


def test_a_busy_worker_leaves_the_rest_until_it_is_free(app: App) -> None:
    ends: list[float] = []

    @app.task
    async def hour() -> None:
        await asyncio.sleep(600)
        ends.append((world.now - began).total_seconds())

    with virtual(app, concurrency=2) as world:
        began = world.now
        app.enqueue_many(hour.bind() for _ in range(6))
        world.run_all()
    assert ends == [600.0, 600.0, 1200.0, 1200.0, 1800.0, 1800.0]


@pytest.fixture
def quick_world() -> Iterator[World]:
    with virtual(App("memory://", lease="3s", heartbeat="1s", sweep="1s")) as world:
        yield world


def test_a_world_is_a_fixture(quick_world: World) -> None:
    assert quick_world.run_all() == 0

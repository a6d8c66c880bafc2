"""`app.queues.purge` empties a queue of what waits in it and strands nothing that depends on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.redis_servers import RedisServer
from winch import App, Context, JobState, Retry, batch, chain
from winch.areas import queue_jobs
from winch.core.job import JobRecord
from winch.testing import virtual
from winch.types import Purged

ONCE = Retry.fixed("1s", attempts=1)


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    with ExitStack() as stack:
        if request.param == "redis":
            url = stack.enter_context(RedisServer()).url
        elif request.param == "postgres":
            url = request.getfixturevalue("postgres_url")
        else:
            url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/winch.db"
        app = App(url)
        app.migrate()
        yield app
        app.close()


def states(app: App) -> Counter[str]:
    return Counter(str(job.state) for job in app.jobs.list(limit=1000))


def test_it_deletes_what_waits_and_nothing_else(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_jobs, "PAGE", 3)

    @app.task(name="work", queue="mail")
    def work() -> None: ...

    work.enqueue()
    app.run_worker(queues=["mail"], burst=True)
    other = work.using(queue="other").enqueue()
    app.enqueue_many([work.bind() for _ in range(5)])
    app.enqueue_many([work.using(delay="1h").bind() for _ in range(4)])
    work.using(fifo="a").enqueue()
    work.using(fifo="a", unique="held").enqueue()
    assert app.queues.purge("mail", dry_run=True) == Purged(matched=11, is_dry_run=True)
    assert states(app)["completed"] == 1
    assert app.queues.purge("mail") == Purged(matched=11, deleted=11)
    assert states(app) == {"completed": 1, "ready": 1}
    assert other.refresh().state == "ready"
    assert app.queues.purge("mail") == Purged(matched=0)
    assert work.using(unique="held").enqueue().is_new, "a deleted job leaves its key"


def test_a_running_job_goes_on(app: App) -> None:
    seen: list[Purged] = []

    @app.task(name="work")
    def work() -> str:
        seen.append(app.queues.purge("default"))
        return "done"

    running, waiting = work.enqueue(), work.using(delay="1h").enqueue()
    app.run_worker(burst=True, concurrency=1)
    assert seen == [Purged(matched=1, deleted=1)]
    assert running.result() == "done"
    assert waiting.id not in [job.id for job in app.jobs.list()]


def test_an_awaited_job_is_cancelled_so_that_its_waiters_are_notified(app: App) -> None:
    ran: list[str] = []

    @app.task(name="work", queue="mail")
    def work() -> None:
        ran.append("work")

    @app.task(name="notify")
    def notify(what: str) -> None:
        ran.append(what)

    callbacks = {"on_success": notify.bind("success"), "on_complete": notify.bind("complete")}
    with batch("b", **callbacks) as made:
        made.enqueue(work.bind(), work.bind())
    then = chain(work.bind(), notify.bind("next")).enqueue()
    work.enqueue()
    assert app.queues.purge("mail") == Purged(matched=4, deleted=1, cancelled=3)
    app.run_worker(queues=["default", "mail"], burst=True)
    assert ran == ["complete"], "the batch is over, and not all of it completed"
    [last] = then.last
    assert last.refresh().state == "cancelled"


def test_a_child_that_a_job_waits_for_is_cancelled_too() -> None:
    app = App("memory://")

    @app.task(name="child", queue="mail")
    def child() -> None: ...

    @app.task(name="parent", retry=ONCE)
    async def parent(*, ctx: Context) -> None:
        await ctx.gather(child.using(delay="1d").bind())

    with virtual(app) as world:
        job = parent.enqueue()  # type: ignore[call-arg]
        world.run_once()
        assert app.queues.purge("mail") == Purged(matched=1, cancelled=1)
        world.run_all()
        record: JobRecord = job.refresh().record
        assert record.state is JobState.DEAD
        assert record.error is not None
        assert "is cancelled: its queue was purged" in record.error.message


def test_a_job_with_something_to_undo_undoes_it() -> None:
    app = App("memory://")
    did: list[str] = []

    @app.task(name="order", queue="mail")
    async def order(*, ctx: Context) -> None:
        await ctx.step(lambda: did.append("reserve"), name="reserve", undo=lambda: did.append("release"))
        await ctx.sleep("1d")

    with virtual(app) as world:
        job = order.enqueue()  # type: ignore[call-arg]
        world.run_once()
        assert app.queues.purge("mail") == Purged(matched=1, cancelled=1)
        world.run_all()
        assert job.refresh().state == "cancelled"
    assert did == ["reserve", "release"]

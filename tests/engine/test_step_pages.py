"""Long step histories: pages beside the job, read when the handler runs again, gone with the job."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.engine.step_kit import ONCE
from tests.redis_servers import RedisServer
from winch import App, Context, JobState, Keyring, Retry
from winch.core import steps
from winch.core.steps import PAGE_BOOK, PAGE_BYTES, PAGED_BOOK
from winch.engine.base import operation
from winch.engine.base.step_pages import sweep_pages, whole_history
from winch.storage.kv_records import KvFilter
from winch.testing import virtual

pytestmark = pytest.mark.servers

TWICE = Retry.fixed("1ms", attempts=2, jitter="none")


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with ExitStack() as stack:
        if request.param == "redis":
            yield stack.enter_context(RedisServer()).url
        elif request.param == "postgres":
            yield request.getfixturevalue("postgres_url")
        else:
            yield f"sqlite:///{tmp_path}/winch.db"


def lines(app: App, book: str) -> list[Any]:
    return app.driver.run(app.driver.kv_list(KvFilter(book=book)))


def make(number: int) -> str:
    return f"{number:06d}" + "x" * 9_994


@pytest.mark.parametrize("is_async", [True, False])
def test_a_history_over_a_megabyte_goes_on_where_it_was(url: str, is_async: bool) -> None:
    app = App(url)
    did: list[int] = []

    def counted(number: int) -> str:
        did.append(number)
        return make(number)

    def total(found: list[str], ctx: Context) -> int:
        if ctx.attempt == 1:
            raise ValueError("once more")
        return sum(map(len, found))

    if is_async:

        @app.task(name="long", retry=TWICE)
        async def along(*, ctx: Context) -> int:
            return total([await ctx.step(counted, n, name=f"s{n}") for n in range(150)], ctx)
    else:

        @app.task(name="long", retry=TWICE)
        def long(*, ctx: Context) -> int:
            return total([ctx.step(counted, n, name=f"s{n}") for n in range(150)], ctx)

    job = app.tasks.get("long").enqueue()
    app.run_worker(burst=True)
    assert job.refresh().state is JobState.COMPLETED, job.why()
    assert job.result() == 1_500_000
    assert did == list(range(150))
    record = job.refresh().record
    assert len(record.checkpoint or "") < 3 * PAGE_BYTES
    assert len(lines(app, PAGE_BOOK)) > 50
    whole = operation.run(app.driver, whole_history(app.driver, None, record))
    assert whole is not None
    assert [step.name for step in whole.steps] == [f"s{n}" for n in range(150)]
    app.jobs.delete(job.id)
    assert operation.run(app.driver, sweep_pages(app.driver, None)) is None
    assert lines(app, PAGE_BOOK) == lines(app, PAGED_BOOK) == []
    app.close()


def test_a_sweep_leaves_the_pages_of_jobs_that_are_there(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/winch.db")

    @app.task
    def long(*, ctx: Context) -> None:
        for n in range(10):
            ctx.step(make, n, name=f"s{n}")

    jobs = [long.enqueue() for _ in range(2)]  # type: ignore[call-arg]
    app.run_worker(burst=True)
    before = len(lines(app, PAGE_BOOK))
    app.jobs.delete(jobs[0].id)
    operation.run(app.driver, sweep_pages(app.driver, None))
    assert len(lines(app, PAGE_BOOK)) == before // 2
    assert [line.key for line in lines(app, PAGED_BOOK)] == [jobs[1].id]
    app.close()


def test_pages_are_encrypted_as_the_job_is(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/winch.db"
    app = App(url, keys=Keyring({"k1": bytes(32)}, current="k1"))
    seen = []

    @app.task(retry=TWICE)
    def long(*, ctx: Context) -> int:
        found = [ctx.step(make, n, name=f"secret{n}") for n in range(6)]
        seen.append(len("".join(found)))
        if ctx.attempt == 1:
            raise ValueError
        return len(found)

    job = long.enqueue()  # type: ignore[call-arg]
    app.run_worker(burst=True)
    assert job.result() == 6
    assert seen == [60_000, 60_000]
    bodies = [line.body for line in lines(app, PAGE_BOOK)]
    assert bodies
    assert not any("secret" in body or "xxxx" in body for body in bodies)
    app.close()


def test_undo_and_a_failed_step_reach_into_pages() -> None:
    app = App("memory://")
    undone: list[int] = []

    def undo(made: str) -> None:
        undone.append(int(made[:6]))

    def fail() -> None:
        raise ValueError("no")

    @app.task(retry=ONCE)
    def long(*, ctx: Context) -> None:
        for n in range(8):
            ctx.step(make, n, name=f"s{n}", undo=undo)
        ctx.step(fail)

    with virtual(app) as world:
        job = long.enqueue()  # type: ignore[call-arg]
        world.run_all()
        assert job.refresh().state is JobState.DEAD
        assert undone == list(reversed(range(8)))


def test_the_command_shows_steps_in_pages(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/winch.db"
    app = App(url)

    @app.task
    def long(*, ctx: Context) -> None:
        for n in range(9):
            ctx.step(make, n, name=f"step-{n}")

    job = long.enqueue()  # type: ignore[call-arg]
    app.run_worker(burst=True)
    app.close()
    shown = subprocess.run(
        [sys.executable, "-m", "winch", "jobs", "show", "--url", url, job.id],
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(f"step-{n}" in shown.stdout for n in range(9))


def test_steps_that_end_together_are_written_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(f"sqlite:///{tmp_path}/winch.db")
    sent: list[int] = []
    real = app.driver.notes

    def notes(some: Any) -> Any:
        sent.append(len(some))
        return real(some)

    monkeypatch.setattr(app.driver, "notes", notes)

    async def one(n: int) -> int:
        await asyncio.sleep(0.05)
        return n

    @app.task
    async def wide(*, ctx: Context) -> int:
        made = await asyncio.gather(*(ctx.step(one, n, name=f"s{n}") for n in range(20)))
        return sum(made)

    job = wide.enqueue()  # type: ignore[call-arg]
    app.run_worker(burst=True)
    assert job.result() == 190
    assert len(sent) <= 4
    assert len(steps.read(job.refresh().record.checkpoint).steps) == 20  # type: ignore[union-attr]
    app.close()


def test_a_missing_page_ends_the_job_with_a_reason(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/winch.db")

    @app.task(retry=TWICE)
    def long(*, ctx: Context) -> None:
        for n in range(9):
            ctx.step(make, n, name=f"s{n}")
        if ctx.attempt == 1:
            app.driver.run(app.driver.kv_delete(PAGE_BOOK, [lines(app, PAGE_BOOK)[0].key]))
            raise ValueError

    job = long.enqueue()  # type: ignore[call-arg]
    app.run_worker(burst=True)
    assert job.refresh().state is JobState.DEAD
    assert "pages of its steps are missing" in job.why()
    app.close()

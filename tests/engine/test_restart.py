"""A workflow that starts over: by `ctx.restart` with other arguments, by a retry from a chosen step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.engine.step_kit import ONCE, TWICE, history, whats
from tests.redis_servers import RedisServer
from winch import App, ConfigError, Context, JobState, Keyring, Retry
from winch.core.steps import PAGE_BOOK
from winch.storage.kv_records import KvFilter
from winch.testing import virtual

pytestmark = pytest.mark.servers


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
        yield app
        app.close()


@pytest.mark.parametrize("is_async", [True, False])
def test_a_restart_keeps_the_job_and_repeats_its_steps(app: App, is_async: bool) -> None:
    did: list[Any] = []

    def fetch(page: int) -> int:
        did.append(page)
        return page * 10

    if is_async:

        @app.task(name="walk")
        async def awalk(page: int, total: int = 0, *, ctx: Context) -> int:
            total += await ctx.step(fetch, page)
            return total if page == 3 else await ctx.restart(page + 1, total=total)
    else:

        @app.task(name="walk")
        def walk(page: int, total: int = 0, *, ctx: Context) -> int:
            total += ctx.step(fetch, page)
            return total if page == 3 else ctx.restart(page + 1, total=total)

    job = app.tasks.get("walk").enqueue(1)
    app.run_worker(burst=True)
    assert job.refresh().state is JobState.COMPLETED, job.why()
    assert job.result() == 60
    assert did == [1, 2, 3]
    assert whats(job) == ["restarted", "restarted"]
    found = history(job)
    assert (found.life, [step.name for step in found.steps]) == (2, ["fetch"])


def test_a_restart_is_encrypted_as_the_job_is(app: App) -> None:
    """Arguments of the new life, steps in the head and steps in pages; nothing is stored in plain."""
    sealed = App(app.settings.url, keys=Keyring({"k1": bytes(32)}))
    seen: list[tuple[int, str]] = []

    @sealed.task(name="walk", retry=Retry.fixed("1ms", attempts=2, jitter="none"))
    def walk(page: int, word: str, *, ctx: Context) -> str:
        seen.append((page, word))
        found = [ctx.step(lambda: "secret" * 2_000, name=f"secret{n}") for n in range(3)]
        if ctx.attempt == 1 and page == 2:
            raise ValueError("once more, with the arguments and steps of this life")
        return word if page == 3 else ctx.restart(page + 1, word=f"{word} secret{len(found)}")

    job = walk.enqueue(1, "a secret")  # type: ignore[call-arg]
    for _ in range(100):
        sealed.run_worker(burst=True)
        if job.refresh().state.is_final:
            break
        time.sleep(0.01)
    assert job.state is JobState.COMPLETED, job.why()
    assert job.result() == "a secret secret3 secret3"
    pages = sealed.driver.run(sealed.driver.kv_list(KvFilter(book=PAGE_BOOK)))
    [record] = sealed.driver.run(sealed.driver.get([job.id]))
    assert record is not None
    assert pages
    for text in (record.args, record.checkpoint, record.result, *(page.body for page in pages)):
        assert "secret" not in str(text)
    assert [page for page, _ in seen] == [1, 2, 2, 3]
    sealed.close()


def test_a_retry_from_a_step_keeps_what_was_before_it(app: App) -> None:
    did: list[str] = []

    def make(n: int) -> int:
        did.append(f"s{n}")
        return n

    @app.task(retry=ONCE)
    def work(*, ctx: Context) -> list[int]:
        return [ctx.step(make, n, name=f"s{n}") for n in range(4)]

    job = work.enqueue()  # type: ignore[call-arg]
    app.run_worker(burst=True)
    assert job.refresh().state is JobState.COMPLETED, job.why()
    assert app.jobs.retry(job.id, from_step="s2") is JobState.COMPLETED
    app.run_worker(burst=True)
    assert did == ["s0", "s1", "s2", "s3", "s2", "s3"]
    assert job.result() == [0, 1, 2, 3]
    retried = next(entry for entry in job.refresh().record.history if entry.what == "retried")
    assert retried.note == "from step s2"
    job.retry()  # a plain one begins at the beginning, as ever: the order was carried out
    app.run_worker(burst=True)
    assert did[6:] == ["s0", "s1", "s2", "s3"]


def test_a_dead_job_retried_from_a_step_is_not_cut_again_by_its_next_attempt(app: App) -> None:
    did: list[str] = []
    is_broken = True

    def check() -> None:
        did.append("check")
        if is_broken:
            raise ValueError("not yet")

    @app.task(retry=TWICE)
    def work(*, ctx: Context) -> None:
        for name in ("a", "b", "c"):
            ctx.step(did.append, name, name=name)
        ctx.step(check)

    with virtual(app) as world:
        job = work.enqueue()  # type: ignore[call-arg]
        world.run_all()
        assert job.refresh().state is JobState.DEAD
        assert did == ["a", "b", "c", "check", "check"]
        job.retry(from_step="b")
        world.run_all()
        assert did[5:] == ["b", "c", "check", "check"]
        is_broken = False
        job.retry()
        world.run_all()
        assert did[9:] == ["check"]
        assert job.refresh().state is JobState.COMPLETED


def test_attempts_before_a_restart_do_not_count() -> None:
    app = App("memory://")
    seen: list[tuple[int, int]] = []

    @app.task(retry=TWICE)
    def work(n: int, *, ctx: Context) -> int:
        seen.append((n, ctx.attempt))
        if ctx.attempt == 1:
            raise ValueError("once more")
        return n if n == 3 else ctx.restart(n + 1)

    with virtual(app) as world:
        job = work.enqueue(1)  # type: ignore[call-arg]
        world.run_all()
        assert job.result() == 3
    assert seen == [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)]


def test_children_and_signals_belong_to_one_life() -> None:
    app = App("memory://")
    ran: list[int] = []

    @app.task
    def child(n: int) -> int:
        ran.append(n)
        return n

    @app.task
    async def parent(n: int, *, ctx: Context) -> Any:
        [found] = await ctx.gather(child.bind(n))
        signal = await ctx.wait_for("go")
        return [found, signal] if n == 2 else await ctx.restart(n + 1)

    with virtual(app) as world:
        job = parent.enqueue(1)
        app.signal("go", "first")
        world.run_all()
        assert job.refresh().state is JobState.BLOCKED
        app.signal("go", "second")
        world.run_all()
        assert job.result() == [2, "second"]
    assert ran == [1, 2]


def test_a_restart_leaves_no_pages_and_undoes_nothing_from_before() -> None:
    app = App("memory://")
    undone: list[str] = []

    @app.task(retry=ONCE)
    def work(n: int, *, ctx: Context) -> None:
        for i in range(4):
            ctx.step(lambda: "x" * 9_000, name=f"{n}.{i}", undo=lambda _, i=i: undone.append(f"{n}.{i}"))
        if n == 1:
            ctx.restart(2)
        raise ValueError("no")

    with virtual(app) as world:
        job = work.enqueue(1)  # type: ignore[call-arg]
        world.run_all()
        assert job.refresh().state is JobState.DEAD
        pages = app.driver.run(app.driver.kv_list(KvFilter(book=PAGE_BOOK)))
    assert undone == ["2.3", "2.2", "2.1", "2.0"]
    assert pages
    assert not any('"name":"1.' in page.body for page in pages)


def test_an_invalid_retry_from_a_step_is_refused() -> None:
    app = App("memory://")

    @app.task
    def plain() -> None: ...

    @app.task(retry=ONCE)
    def work(*, ctx: Context) -> None:
        ctx.step(lambda: None, name="first", undo=lambda: None)
        raise ValueError

    with virtual(app) as world:
        one, other = plain.enqueue(), work.enqueue()  # type: ignore[call-arg]
        world.run_all()
        with pytest.raises(ConfigError, match="has no steps"):
            one.retry(from_step="first")
        with pytest.raises(ConfigError, match="has undone steps"):
            other.retry(from_step="first")

    @app.task(name="steps")
    def steps(*, ctx: Context) -> None:
        ctx.step(lambda: None, name="first")

    with virtual(app) as world:
        job = steps.enqueue()  # type: ignore[call-arg]
        world.run_all()
        with pytest.raises(ConfigError, match=r"no step 'firs'.*did you mean 'first'"):
            job.retry(from_step="firs")

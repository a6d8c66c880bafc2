"""Labels of workers and the needs of tasks: a job waits for a worker that has what its task needs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.engine.worker_kit import until, worker_process
from winch import App, ConfigError, JobState
from winch.core.policy.labels import absent, check_labels, meets
from winch.engine.base import operation
from winch.engine.client.needs import BOOK, Needs, publish_needs
from winch.storage.kv_records import KvFilter

GPU_TASKS = """
    import os
    from winch import App

    app = App(lease="3s", heartbeat="200ms", sweep="200ms", poll="100ms")

    @app.task(name="shop.render", needs={"gpu": "h100", "zone": "eu"})
    def render() -> int:
        return os.getpid()

    @app.task(name="shop.plain")
    def plain() -> int:
        return os.getpid()
"""


def test_a_job_runs_only_where_its_needs_are_met_and_why_names_the_label(
    store_url: str, tmp_path: Path
) -> None:
    app = App(store_url)
    app.driver.migrate()

    @app.task(name="shop.render", needs={"gpu": "h100", "zone": "eu"})
    def render() -> int:
        return 0

    @app.task(name="shop.plain")
    def plain() -> int:
        return 0

    with worker_process(store_url, tmp_path, "--label", "zone=eu", tasks=GPU_TASKS):
        until(app.workers.list, "a worker")
        [first] = app.workers.list()
        assert (first.labels, first.tasks) == ({"zone": "eu"}, ("shop.plain",))
        # The worker waits for a job: an idle one may be handed what it can run, and nothing else.
        assert plain.enqueue().result(timeout="20s") == first.pid
        job = render.enqueue()
        assert plain.enqueue().result(timeout="20s") == first.pid
        assert job.refresh().state is JobState.READY
        why = job.why()
        assert why.startswith(
            "No live worker has the label gpu=h100, which its task 'shop.render' needs. Start one: "
            "winch worker -A module:app -Q default --label gpu=h100 --label zone=eu"
        )
        flags = ("--label", "gpu=h100", "--label", "zone=us")
        with worker_process(store_url, tmp_path, *flags, tasks=GPU_TASKS, number=1):
            until(lambda: len(app.workers.list()) == 2, "a second worker")
            assert "has all that its task 'shop.render' needs: gpu=h100, zone=eu" in job.why()
            flags = ("--label", "gpu=h100", "--label", "zone=eu")
            with worker_process(store_url, tmp_path, *flags, tasks=GPU_TASKS, number=2):
                until(lambda: len(app.workers.list()) == 3, "a third worker")
                [third] = [one for one in app.workers.list() if len(one.tasks) == 2]
                assert job.result(timeout="20s") == third.pid
                more = [render.enqueue() for _ in range(20)]
                assert {one.result(timeout="20s") for one in more} == {third.pid}
    app.close()


def test_needs_that_a_task_no_longer_has_are_forgotten() -> None:
    app = App("memory://")
    driver = app.ready()

    def kept() -> list[tuple[str, str]]:
        return [(one.key, one.body) for one in driver.run(driver.kv_list(KvFilter(book=BOOK)))]

    operation.run(driver, publish_needs(driver, {"t": Needs({"gpu": "h100"}), "other": Needs()}))
    assert kept() == [("t", '{"labels":{"gpu":"h100"}}')]
    operation.run(driver, publish_needs(driver, {"t": Needs()}))
    assert kept() == []
    app.close()


def test_an_embedded_worker_has_labels() -> None:
    async def body() -> None:
        app = App("memory://", poll="50ms")

        @app.task(needs={"gpu": "h100"})
        async def render() -> str:
            return "done"

        with pytest.raises(ConfigError, match="every task of the app needs labels or slots"):
            async with app.worker():
                pass
        async with app.worker(labels={"gpu": "h100"}):
            assert await (await render.aenqueue()).aresult(timeout="10s") == "done"
        await app.aclose()

    asyncio.run(body())


@pytest.mark.parametrize(
    "given, message",
    [
        ("gpu=h100", "must be a mapping"),
        (["gpu"], "must be name=value"),
        ({"gpu": ""}, "letters, digits"),
        ({"gpu": 1}, "letters, digits"),
        ({"g=u": "x"}, "letters, digits"),
        (["a=1", "a=2"], "twice"),
        ({f"l{n}": "x" for n in range(33)}, "up to 32 labels"),
    ],
)
def test_labels_are_checked(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_labels(given, "labels")


def test_needs_are_met_by_equal_values() -> None:
    assert check_labels(["gpu=h100", "gpu=h100"], "labels") == {"gpu": "h100"}
    assert meets({"gpu": "h100", "zone": "eu"}, {"gpu": "h100"})
    assert meets({}, {})
    assert not meets({"gpu": "a10"}, {"gpu": "h100"})
    assert absent([{"gpu": "a10"}, {"zone": "eu"}], {"gpu": "h100", "zone": "eu"}) == ["gpu=h100"]

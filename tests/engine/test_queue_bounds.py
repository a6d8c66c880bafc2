"""What one worker bounds for single queues: jobs at once, and claims in a time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Command
from tests.engine.worker_kit import until, worker_process
from winch import App, Collected, ConfigError, JobState
from winch.core.policy.queue_limits import QueueLimit, parse_limits, parse_rates


class Running:
    """How many jobs of each queue run, and when each began."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.times: list[float] = []

    def begin(self, queue: str) -> None:
        with self._lock:
            self._now[queue] += 1
            self.most[queue] = max(self.most[queue], self._now[queue])
            self.times.append(time.monotonic())

    def end(self, queue: str) -> None:
        with self._lock:
            self._now[queue] -= 1


def tasks(app: App, running: Running, *, is_async: bool) -> tuple[Any, Any]:
    def make(queue: str) -> Any:
        @app.task(name=f"{queue} on the loop", queue=queue)
        async def on_the_loop(seconds: float) -> None:
            running.begin(queue)
            await asyncio.sleep(seconds)
            running.end(queue)

        @app.task(name=f"{queue} in a thread", queue=queue)
        def in_a_thread(seconds: float) -> None:
            running.begin(queue)
            time.sleep(seconds)
            running.end(queue)

        return on_the_loop if is_async else in_a_thread

    return make("mail"), make("other")


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("queues", [["mail", "other"], {"mail": 3, "other": 1}])
def test_a_worker_runs_no_more_jobs_of_a_queue_than_its_limit(is_async: bool, queues: Any) -> None:
    app, running = App("memory://", poll="1s"), Running()
    mail, other = tasks(app, running, is_async=is_async)
    stored = app.enqueue_many([mail.bind(0.004) for _ in range(60)])
    stored += app.enqueue_many([other.bind(0.004) for _ in range(200)])
    began = time.monotonic()
    app.run_worker(queues=queues, burst=True, concurrency=8, queue_limits={"mail": 2})
    assert {job.refresh().state for job in stored} == {JobState.COMPLETED}
    assert running.most["mail"] <= 2
    assert running.most["other"] > 2, "the other slots work meanwhile"
    assert time.monotonic() - began < 10, "the end of a job makes room at once, not at the next poll"


def test_a_worker_claims_no_more_jobs_of_a_queue_than_its_rate() -> None:
    app, running = App("memory://", poll="1s"), Running()
    mail, _ = tasks(app, running, is_async=True)
    stored = app.enqueue_many([mail.bind(0.0) for _ in range(25)])
    app.run_worker(queues=["mail"], burst=True, concurrency=4, queue_rates={"mail": "10/500ms"})
    assert {job.refresh().state for job in stored} == {JobState.COMPLETED}
    # A start follows its claim at once; a busy machine may delay one, so the bound has a little room.
    times = running.times
    spans = [times[n + 10] - times[n] for n in range(len(times) - 10)]
    assert min(spans) > 0.4, spans
    assert times[-1] - times[0] < 5


def test_members_of_a_fifo_key_and_collecting_calls_keep_the_limit(store_url: str) -> None:
    app, running = App(store_url, poll="100ms"), Running()
    app.driver.migrate()

    @app.task(queue="mail")
    async def member() -> None:
        running.begin("mail")
        await asyncio.sleep(0.002)
        running.end("mail")

    @app.task(queue="bulk", collect=50, collect_wait="1ms")
    async def together(jobs: list[Collected[dict[str, Any]]]) -> None:
        running.most["bulk"] = max(running.most["bulk"], len(jobs))

    calls = [member.using(fifo=f"key {n % 5}").bind() for n in range(40)]
    stored = app.enqueue_many([*calls, *(together.bind(n=n) for n in range(40))])
    limits = {"mail": 1, "bulk": 7}
    app.run_worker(queues=["mail", "bulk"], burst=True, concurrency=6, queue_limits=limits)
    assert {job.refresh().state for job in stored} == {JobState.COMPLETED}
    assert running.most == {"mail": 1, "bulk": running.most["bulk"]}
    assert running.most["bulk"] <= 7
    app.close()


def test_configure_changes_the_bounds_and_the_list_shows_them(store_url: str, tmp_path: Path) -> None:
    app = App(store_url)
    app.driver.migrate()
    winch = Command(tmp_path)
    winch.url = store_url
    flags = ("-Q", "default,mail", "--queue-limits", "mail=2", "--queue-rates", "mail=10/s")
    with worker_process(store_url, tmp_path, *flags):
        until(app.workers.list, "a worker")
        listed = winch("workers", "list", "--json").json["workers"]
        assert listed[0]["queue_limits"] == {"mail": {"limit": 2, "rate": "10/s"}}
        name = listed[0]["worker"]
        changed = winch(
            "workers", "configure", name, "--queue-limits", "mail=3,sms=1", "--queue-rates", ""
        )
        assert changed.code == 0, changed.err
        until(
            lambda: (
                [one.queue_limits for one in app.workers.list()]
                == [{"mail": QueueLimit(limit=3), "sms": QueueLimit(limit=1)}]
            ),
            "the new process",
        )
        [answer] = app.workers.configure(app.workers.list()[0].worker, queue_limits={}, wait="20s")
        assert answer.state == "done", answer
        until(lambda: [one.queue_limits for one in app.workers.list()] == [{}], "the newest process")
    app.close()


def test_bounds_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINCH_QUEUE_LIMITS", "mail=2, sms=1")
    app = App("memory://", queue_rates={"mail": "5/s"})
    assert app.settings.queue_limits == {"mail": 2, "sms": 1}

    async def body() -> None:
        async with app.worker(queues=["mail"], queue_limits={"mail": 4}):
            [session] = await app.workers.alist()
            assert session.queue_limits == {"mail": QueueLimit(4, "5/s")}
        await app.aclose()

    asyncio.run(body())


@pytest.mark.parametrize(
    "given", ["mail", "mail=0", "mail=x", "=1", "a=1,a=2", {"mail": True}, {"mail": 2000}, ["mail=1"], 3]
)
def test_limits_are_checked(given: Any) -> None:
    with pytest.raises(ConfigError, match="queue_limits"):
        parse_limits(given, "queue_limits")


@pytest.mark.parametrize("given", ["mail=10", "mail=0/s", "mail=x/s", {"mail": 5}, "mail=9000000/s"])
def test_rates_are_checked(given: Any) -> None:
    with pytest.raises(ConfigError, match="queue_rates"):
        parse_rates(given, "queue_rates")

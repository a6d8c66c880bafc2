"""What a server does beside answering: with the app in hand it keeps the app's schedules going."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.web.conftest import STORES
from winch import App
from winch.storage.crash_report import CrashReport
from winch.web.server.upkeep import Upkeep

SHOP = """
import winch
app = winch.App("sqlite:///winch.db", heartbeat="200ms", lease="2s", poll="100ms")

@app.schedule(every="1s", overlap="allow")
@app.task
def report() -> None: ...
"""


@pytest.mark.parametrize("store", STORES)
def test_only_a_server_and_a_schedule_in_code_gives_one_job_a_window(
    store: str, url_of: Callable[[str], str]
) -> None:
    url = url_of(store)
    app = _app(url)
    app.migrate()
    servers = [app] if store == "memory" else [_app(url) for _ in range(3)]

    async def serve() -> None:
        for one in servers:
            await asyncio.to_thread(one.ready)
        async with Upkeep(servers[0], is_read_only=False):
            others = [Upkeep(one, is_read_only=False) for one in servers[1:]]
            for other in others:
                await other.__aenter__()
            await until(lambda: len(list(app.jobs.list(limit=50))) >= 3)
            [schedule] = app.schedules.list()
            assert schedule.is_active
            assert app.workers.list() == [], "a server is no worker"
            for other in others:
                await other.__aexit__(None, None, None)
        for one in servers:
            if one is not app:
                await one.aclose()

    asyncio.run(serve())
    windows = [job.record.headers["winch-window"] for job in app.jobs.list(limit=50)]
    assert len(windows) >= 3
    assert len(set(windows)) == len(windows), "one job a window, however many servers tick"
    [schedule] = app.schedules.list()
    assert not schedule.is_active, "the servers have taken their declaration back"
    app.close()


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for what a store shows; it has no event to wait for."""
    async with asyncio.timeout(20):
        while not await asyncio.to_thread(is_so):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def _app(url: str, **settings: Any) -> App:
    app = App(url, heartbeat="200ms", lease="2s", poll="100ms", **settings)

    @app.schedule(every="1s", overlap="allow", name="report")
    @app.task(name="report")
    def report() -> None: ...

    return app


def test_a_lost_session_is_declared_again(tmp_path: Path) -> None:
    app = _app(f"sqlite:///{tmp_path / 'winch.db'}")
    driver = app.ready()

    async def serve() -> None:
        async with Upkeep(app, is_read_only=False):
            await until(lambda: bool(driver.run(driver.sessions())))
            [session] = driver.run(driver.sessions())
            driver.run(driver.end_session(session.id, CrashReport([], "lost")))
            assert not app.schedules.list()[0].is_active
            await until(lambda: app.schedules.list()[0].is_active)

    asyncio.run(serve())
    app.close()


def test_a_read_only_server_and_one_without_schedules_begin_no_session(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'winch.db'}"
    with_one, without = _app(url), App(url, heartbeat="50ms", lease="1s")
    driver = with_one.ready()
    without.ready()

    async def serve(app: App, is_read_only: bool) -> None:
        async with Upkeep(app, is_read_only=is_read_only):
            await asyncio.sleep(0.3)

    for app, is_read_only in ((with_one, True), (without, False)):
        asyncio.run(serve(app, is_read_only))
        assert driver.run(driver.sessions(is_ended_too=True)) == []
    with_one.close()
    without.close()


def test_winch_serve_alone_makes_the_autoscaler_scale_up(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    env = {k: v for k, v in os.environ.items() if not k.startswith("WINCH_")}
    command = [sys.executable, "-m", "winch", "serve", "-A", "shop:app", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=tmp_path
    ) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().decode().strip()

            def ask(path: str) -> Any:
                return httpx.get(f"{address}api/v1/{path}", timeout=10).json()

            deadline = time.monotonic() + 20
            while ask("autoscale?queue=default")["value"] == 0 and time.monotonic() < deadline:
                time.sleep(0.1)
            assert ask("autoscale?queue=default")["value"] > 0
            assert ask("workers")["workers"] == []
            assert ask("stats")["workers"] == 0
            [schedule] = ask("schedules")["schedules"]
            assert schedule["is_active"] is True
            metrics = httpx.get(f"{address}metrics", timeout=10).text
            assert 'winch_workers{state="live"} 0' in metrics
        finally:
            server.send_signal(signal.SIGTERM)
            assert server.wait(timeout=20) == 0

"""An operator in a real browser: each action by its button, then the store and the audit. Slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import winch
from tests.web.kit import Web
from tests.web.server import serving
from tests.web.test_actions import Operator
from tests.web.test_browser import _listen, browser
from tests.web.walk import Walk

__all__ = ["browser"]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis"])
def test_every_action_by_its_button(store: str, make_web: Callable[..., Web], browser: Any) -> None:
    web = make_web(store)
    app, op = web.app, Operator(web)
    for n in range(3):
        web.add.using(queue="low", tenant="acme").enqueue(n)
    op.kill(1, 2, 3, 4)
    group = app.dead.groups()[0].fingerprint
    web.add.using(unique="order:7", delay="1h").enqueue(7)
    app.schedules.add("hourly", task="shop.add", every="1h", args={"a": 1})
    made = winch.flow("import")
    first = made.add(web.add.bind(1))
    made.add(web.mail.bind("ada"), after=[first])
    flow = made.enqueue()
    with serving(app) as address:
        walk = Walk(web, browser, address)
        op, page, go, press, done = walk.op, walk.page, walk.go, walk.press, walk.done
        op.lines()

        def number_of(name: str) -> int:
            spec = next(one.spec for one in app.limits.list() if one.name == name)
            return 0 if spec is None else spec.n

        # Queues.
        go("/queues/low")
        page.locator("summary", has_text="Pause").click()
        page.fill("#pause-reason", "a move")
        press("Pause", "details[open] form")
        assert next(info for info in app.queues.list() if info.name == "low").pause_reason == "a move"
        done("pause queue")
        press("Resume")
        done("resume queue")
        press("Drain")
        assert app.queues.settings()["low"].draining
        done("drain queue")
        press("Resume")
        op.lines()
        page.locator("summary", has_text="Move jobs").click()
        page.fill("#move-to", "high")
        page.fill("#move-limit", "2")
        press("Count them…", "details[open] form")
        press("Move 2 jobs")
        assert len(app.jobs.list(queue="high")) == 2
        done("move jobs")
        go("/queues/low")
        press("Purge…")
        press("Purge 1 job")
        assert app.jobs.list(queue="low") == []
        done("purge queue")
        assert page.url.endswith("/queues?did=purged"), "nothing is left of it"
        go("/queues/high")
        page.fill("#set-concurrency", "4")
        press("Save settings")
        assert app.queues.settings()["high"].concurrency == 4
        done("configure queue")
        # Dead letters.
        go(f"/dead/{group}")
        page.fill("#assignee", "ada")
        press("Save")
        assert app.dead.marks()[group].assignee == "ada"
        done("dead group")
        press("Ignore")
        press("Open again")
        assert app.dead.marks()[group].state == "open"
        op.lines()
        page.fill("#patch", '{"b": 9}')
        press("Preview")
        assert page.locator(".diff .is-added").count() == 1
        assert op.lines() == []
        press("Try one first")
        assert app.dead.groups()[0].count == 3
        done("dead group")
        go(f"/dead/{group}")
        page.fill("#patch", '{"b": 9}')
        press("Preview")
        press("Replay 3 jobs")
        assert app.dead.groups() == []
        assert all('"b":9' in job.record.args for job in app.jobs.list(queue="cards", state="ready"))
        done("dead group")
        op.kill(5, queue="other")
        go(f"/dead/{app.dead.groups()[0].fingerprint}")
        press("Discard 1…")
        press("Discard 1 job")
        assert app.dead.groups() == []
        done("dead group")
        # Limits, breakers, keys, tenants.
        app.limits.set("limit:shop.add", 9)
        op.lines()
        go("/limits?key=order")
        page.locator("tr", has_text="shop.add").locator("input[name=value]").fill("5")
        press("Preview", "tr:has-text('shop.add')")
        press("Set it to 5")
        assert number_of("limit:shop.add") == 5
        done("limits")
        page.fill("#scope", "stripe")
        page.fill("#hold", "10m")
        press("Hold its jobs")
        assert app.limits.breakers()[0].name == "stripe"
        done("limits")
        press("Reset", "tr:has-text('stripe')")
        done("limits")
        go("/limits?key=order")
        press("Release…")
        press("Release 1 key")
        assert app.jobs.unique_keys(prefix="order") == []
        done("limits")
        go("/tenants")
        page.locator("tr", has_text="acme").locator("input[name=value]").fill("4")
        press("Set")
        assert number_of("tenant:acme") == 4
        done("limits")
        # Schedules.
        go("/schedules/hourly")
        press("Skip next")
        page.locator("summary", has_text="Pause").click()
        press("Pause", "details[open] form")
        assert app.schedules.get("hourly").paused_at is not None
        press("Resume")
        op.lines()
        page.fill("#fill-start", "2026-01-01T00:00")
        page.fill("#fill-end", "2026-01-01T03:00")
        press("Preview")
        press("Enqueue 3 jobs")
        assert len(app.schedules.history("hourly", limit=10)) >= 3
        done("schedule")
        press("Run now")
        assert "/jobs/" in page.url
        done("schedule")
        # Flows.
        go(f"/flows/{flow.id}")
        with page.expect_navigation():
            page.locator("svg.dag a").nth(1).click()
        press("Rerun from here")
        done("flow")
        press("Cancel flow…")
        press("Cancel 2 jobs")
        assert app.flows.get(flow.id).state == "cancelled"
        done("flow")
        press("Retry 2 cancelled")
        assert app.flows.get(flow.id).state == "running"
        done("flow")
        go("/schedules/hourly")
        press("Remove…")
        press("Remove 1 schedule")
        assert app.schedules.list() == []
        done("schedule")
        # The audit.
        go("/audit")
        page.fill("#f-action", "move jobs")
        press("Filter")
        assert page.locator("table.rows tbody tr").count() == 1
    assert walk.wrong == []
    assert len(walk.audited) >= 15


def test_commands_reach_a_worker_from_its_page(make_web: Callable[..., Web], browser: Any) -> None:
    """A real worker in this process: quiet, resume, stacks, and what it uses."""
    import asyncio

    web = make_web("sqlite")
    wrong: list[str] = []

    async def work(stop: asyncio.Event) -> None:
        async with web.app.worker(queues=["default"], concurrency=2):
            await stop.wait()

    from tests.web.kit import LoopThread

    runner, stop = LoopThread(), asyncio.Event()
    running = asyncio.run_coroutine_threadsafe(work(stop), runner._loop)
    try:
        with serving(web.app) as address:
            page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
            _listen(page, wrong)
            for _ in range(100):
                if web.app.workers.list():
                    break
                page.wait_for_timeout(100)
            page.goto(f"{address}/workers")
            page.locator("table.rows a.row-link").first.click()
            with page.expect_navigation(timeout=60_000):
                page.get_by_role("button", name="Quiet", exact=True).click()
            assert "did=worker-quiet" in page.url, page.url
            for _ in range(150):  # the process reports within ten seconds
                page.reload()
                if page.get_by_role("button", name="Resume", exact=True).count():
                    break
                page.wait_for_timeout(100)
            for name in ("Resume", "Stacks"):
                with page.expect_navigation(timeout=60_000):
                    page.get_by_role("button", name=name, exact=True).click()
            assert "Thread" in page.locator("pre.tall").inner_text()
    finally:
        runner._loop.call_soon_threadsafe(stop.set)
        running.result(30)
        runner.close()
    assert wrong == []
    actions = [line.action for line in web.app.audit.list()]
    assert actions == ["command worker"] * 3

"""An operator in a real browser: jobs, lists, views, files, schedules, settings and workers, each action
by its button, then the store and the audit. Slow. `test_walk.py` has queues, dead letters and flows."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import winch
from tests.web.kit import Web
from tests.web.server import serving
from tests.web.test_browser import browser
from tests.web.walk import Walk
from winch import JobState
from winch.web.tokens import Tokens

__all__ = ["browser"]

pytestmark = pytest.mark.slow
STORES = ["sqlite", "postgres", "redis"]


@pytest.mark.parametrize("store", STORES)
def test_jobs_one_by_one_and_many(store: str, make_web: Callable[..., Web], browser: Any) -> None:
    web = make_web(store)
    app = web.app
    jobs = [web.add.enqueue(n) for n in range(6)]
    mails = [web.mail.using(tenant="acme").enqueue(f"{n}@shop.example") for n in range(4)]
    with serving(app) as address:
        walk = Walk(web, browser, address)
        page, op = walk.page, walk.op
        [dead] = op.kill(7)
        # One job.
        walk.go(f"/jobs/{jobs[0].id}")
        walk.press("Cancel")
        assert jobs[0].refresh().state is JobState.CANCELLED
        walk.done("cancel")
        page.keyboard.press("R")
        page.wait_for_url("**did=retried")
        assert jobs[0].refresh().state is JobState.READY
        walk.done("retry")
        walk.press("Cancel")
        walk.done("cancel")
        # Edited before it is replayed: first what changes, then the deed.
        walk.go(f"/jobs/{dead}")
        page.locator("a[data-open=edit]").click()
        page.fill("#new-args", '{"a": 7, "b": 9}')
        walk.press("Show the changes")
        assert page.locator(".diff .is-removed").inner_text().endswith('"b": 1')
        assert page.locator(".diff .is-added").inner_text().endswith('"b": 9')
        walk.nothing_done()
        walk.press("Replay 1 job")
        assert json.loads(app.jobs.get(dead).record.args) == {"a": 7, "b": 9}
        assert app.jobs.get(dead).state is JobState.READY
        walk.done("edit and replay")
        walk.go(f"/jobs/{jobs[0].id}")
        page.locator("a[data-open=edit]").click()
        page.fill("#new-args", '{"a": "x"}')
        page.locator("#edit button[value=changes]").click()
        page.locator("#edit-error").wait_for()
        page.fill("#new-args", '{"a": 40}')
        walk.press("Show the changes")
        walk.press("Replay as a new job")
        [again] = app.jobs.list(tag=f"again:{jobs[0].id}")
        assert json.loads(again.record.args)["a"] == 40
        assert again.id in page.url
        walk.done("edit and replay")
        # One less.
        page.locator("main summary[aria-label=More]").click()
        page.locator("input[name=sure]").check()
        walk.press("Delete", ".menu[open]")
        assert app.jobs.list(tag=f"again:{jobs[0].id}") == []
        walk.done("delete")
        # Some that are ticked, and all that match; first the counts.
        walk.go("/jobs?q=queue:mail")
        for mail in mails[:2]:
            page.locator(f"input[value='{mail.id}']").check()
        walk.press("Cancel…", "#bulk")
        walk.nothing_done()
        walk.press("Cancel 2 jobs")
        page.get_by_text("2 of 2 jobs done").wait_for()
        assert [mail.refresh().state is JobState.CANCELLED for mail in mails] == [
            True,
            True,
            False,
            False,
        ]
        walk.done("bulk")
        walk.go("/jobs?q=queue:mail state:cancelled")
        page.locator("#all-rows").click()
        walk.press("Retry…", "#bulk")
        walk.press("Retry 2 jobs")
        page.get_by_text("2 of 2 jobs done").wait_for()
        assert {mail.refresh().state for mail in mails} == {JobState.READY}
        walk.done("bulk")
        walk.go("/jobs?q=tenant:acme")
        page.locator("#all-rows").click()
        walk.press("Delete…", "#bulk")
        page.fill("#reason", "a test of the shop")
        walk.press("Delete 4 jobs")
        page.get_by_text("4 of 4 jobs done").wait_for()
        assert app.jobs.list(queue="mail") == []
        walk.done("bulk")
        # One by hand.
        walk.go("/jobs/new?task=shop.mail")
        page.fill("#new-args", '{"to": "ada"}')
        page.fill("#new-delay", "1h")
        page.fill("#new-tags", "by-hand")
        walk.press("Enqueue")
        [made] = app.jobs.list(tag="by-hand")
        assert (made.record.queue, made.state) == ("mail", JobState.SCHEDULED)
        walk.done("enqueue")
    assert walk.wrong == [f"{address}/jobs/{jobs[0].id}/edit#edit: {REFUSED}"]


REFUSED = "Failed to load resource: the server responded with a status of 422 (Unprocessable Entity)"


@pytest.mark.parametrize("store", STORES)
def test_lists_views_files_and_how_pages_look(
    store: str, make_web: Callable[..., Web], browser: Any
) -> None:
    web = make_web(store)
    app = web.app
    for n in range(5):
        web.mail.using(tenant="acme", tags=["=1+1"]).enqueue(f"{n}@shop.example", password="CANARY")
    web.add.enqueue(1)
    with serving(app, instances=(("staging", "https://jobs.staging.example"),)) as address:
        walk = Walk(web, browser, address)
        page = walk.page
        walk.go("/jobs?q=queue:mail")
        # To take away: what is listed, without secrets and without formulas.
        rows = list(csv.DictReader(io.StringIO(walk.download("CSV"))))
        wanted = {job.id for job in app.jobs.list(queue="mail")}
        assert {row["id"] for row in rows} == wanted
        assert {row["tags"] for row in rows} == {"'=1+1"}
        lines = [json.loads(line) for line in walk.download("NDJSON").splitlines()]
        assert {line["id"] for line in lines} == wanted
        assert "CANARY" not in str(rows) + str(lines)
        walk.nothing_done()
        # A saved view.
        walk.open("Views")
        page.fill("#view-name", "mails of acme")
        walk.press("Save", ".menu[open]")
        walk.done("save view")
        walk.go("/jobs")
        walk.open("Views")
        with page.expect_navigation():
            page.get_by_role("link", name="mails of acme").click()
        assert page.url.endswith("/jobs?q=queue%3Amail")
        assert page.locator("tbody[data-rows] tr").count() == 5
        walk.open("Views")
        walk.press("Remove", ".menu[open]")
        walk.done("save view")
        assert "mails of acme" not in page.content()
        # Columns and density, remembered.
        page.locator("main summary[aria-label='Columns and density']").click()
        with page.expect_navigation():
            page.locator(".menu[open] a", has_text="Priority").click()
        page.locator("main summary[aria-label='Columns and density']").click()
        tall = page.locator("tbody[data-rows] tr").first.bounding_box()["height"]
        with page.expect_navigation():
            page.locator(".menu[open] a", has_text="Roomy").click()
        walk.go("/jobs")
        assert page.locator("th.c-priority").count() == 1
        assert page.locator("tbody[data-rows] tr").first.bounding_box()["height"] > tall
        # The settings: the same, and the theme and the time zone.
        walk.go("/settings")
        assert page.locator("main a[href='https://jobs.staging.example']").is_visible()
        assert page.input_value("#look-density") == "roomy"
        page.select_option("#look-theme", "contrast")
        page.fill("#look-zone", "Asia/Tokyo")
        page.select_option("#look-density", "compact")
        page.locator("input[name=show-priority]").uncheck()
        walk.press("Save", "#look")
        assert page.get_by_text("Kept in this browser.").is_visible()
        walk.go("/jobs")
        assert page.locator("html").get_attribute("data-theme") == "contrast"
        assert page.locator("th.c-priority").count() == 0
        assert page.locator("tbody[data-rows] tr").first.bounding_box()["height"] == tall
        assert "JST" in page.locator("tbody time").first.get_attribute("title")
        walk.nothing_done()
        page.locator(".side details.instance > summary").click()
        assert page.locator(".side a[href='https://jobs.staging.example']").is_visible()
        # A token, shown once, and revoked.
        walk.go("/settings")
        walk.open("New token")
        page.fill("#token-name", "ci")
        page.locator("input[name=role][value=enqueue]").check()
        page.fill("#token-queues", "mail")
        walk.press("Make the token")
        assert page.locator(".made code").inner_text().startswith("winch_")
        tokens = Tokens(app.ready())
        [token] = app.client.run(tokens.list())
        assert (token.name, token.roles, token.queues) == ("ci", ("enqueue",), ("mail",))
        walk.done("create token")
        walk.press("Revoke ci", "#tokens")
        assert app.client.run(tokens.list()) == []
        walk.done("revoke token")
        # The audit as a file.
        walk.go("/audit?action=save view")
        walk.open("Export")
        with page.expect_download() as found:
            page.get_by_role("link", name="As CSV").click()
        text = Path(found.value.path()).read_text(encoding="utf-8")
        kept = list(csv.DictReader(io.StringIO(text)))
        assert [row["action"] for row in kept] == ["save view", "save view"]
    assert walk.wrong == []


@pytest.mark.parametrize("store", STORES)
def test_schedules_limits_signals_and_a_pause_for_a_time(
    store: str, make_web: Callable[..., Web], browser: Any
) -> None:
    web = make_web(store)
    app = web.app
    web.add.enqueue(1)
    with serving(app) as address:
        walk = Walk(web, browser, address)
        page = walk.page
        walk.go("/schedules")
        walk.open("Add a schedule")
        page.fill("#add-name", "hourly")
        page.fill("#add-task", "shop.add")
        page.fill("#add-every", "1h")
        page.fill("#add-args", '{"a": 1}')
        walk.press("Add", ".menu[open]")
        assert [one.name for one in app.schedules.list()] == ["hourly"]
        walk.done("add schedule")
        page.fill("#edit-every", "2h")
        walk.press("Change")
        assert app.schedules.get("hourly").timing.every == timedelta(hours=2)
        walk.done("schedule")
        due = app.schedules.get("hourly").next_at
        assert due is not None
        walk.press("Skip next")
        assert app.schedules.get("hourly").next_at == due + timedelta(hours=2)
        walk.done("schedule")
        walk.open("Pause")
        page.fill("#pause-reason", "a holiday")
        walk.press("Pause", ".menu[open]")
        assert app.schedules.get("hourly").pause_reason == "a holiday"
        walk.done("schedule")
        # A limit that is set, and the value in the code again.
        app.limits.set("limit:shop.add", 3)
        walk.op.lines()
        walk.go("/limits")
        walk.press("Reset", "tr:has-text('shop.add')")
        assert app.limits.list() == []
        walk.done("limits")
        # A queue that is paused for a time.
        walk.go("/queues/default")
        walk.open("Pause")
        page.fill("#pause-reason", "a move")
        page.fill("#pause-until", "30m")
        walk.press("Pause", ".menu[open]")
        assert "a move (until " in (app.queues.list()[0].pause_reason or "")
        walk.done("pause queue")
        # A signal.
        walk.go("/flows")
        walk.open("Send a signal")
        page.fill("#signal-name", "approval:7")
        page.fill("#signal-payload", '{"ok": true}')
        walk.press("Send", ".menu[open]")
        walk.done("signal")
        # A group that is resolved.
        walk.op.kill(1)
        walk.go(f"/dead/{app.dead.groups()[0].fingerprint}")
        walk.press("Resolve")
        assert app.dead.marks()[app.dead.groups()[0].fingerprint].state == "resolved"
        walk.done("dead group")
    assert walk.wrong == []


WORKER = """
import time
import winch

app = winch.App({url!r})

@app.task(name="shop.nap", queue="naps")
def nap() -> None:
    time.sleep(0.01)
"""


@pytest.mark.parametrize("store", STORES)
def test_a_worker_process_is_configured_drained_and_stopped(
    store: str, make_web: Callable[..., Web], browser: Any, tmp_path: Path
) -> None:
    """Two real `winch worker`, commanded from their pages."""
    web = make_web(store)
    app = web.app
    (tmp_path / "naps.py").write_text(WORKER.format(url=app.settings.url))
    command = [str(Path(sys.executable).with_name("winch")), "worker", "-A", "naps:app", "-Q", "naps"]
    quiet: dict[str, Any] = {"cwd": tmp_path, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    workers = [subprocess.Popen(command, **quiet, env=os.environ) for _ in range(2)]
    try:
        with serving(app) as address:
            walk = Walk(web, browser, address)
            page = walk.page
            page.set_default_timeout(60_000)  # a heartbeat comes every few seconds
            for _ in range(300):
                if len(app.workers.list()) == 2:
                    break
                page.wait_for_timeout(100)
            first, second = app.workers.list()
            walk.go(f"/workers/{first.id}")
            walk.open("Configure")
            page.fill("#slots", "3")
            walk.press("Apply")
            walk.done("command worker")
            for _ in range(300):
                if sorted(one.slots for one in app.workers.list()) == [3, 10]:
                    break
                page.wait_for_timeout(100)
            assert sorted(one.slots for one in app.workers.list()) == [3, 10]
            walk.go(f"/workers/{second.id}")
            walk.press("Drain…")
            walk.nothing_done()
            walk.press(f"Drain {second.worker}")
            walk.done("command worker")
            [last] = _until(app, page, 1)
            walk.go("/workers")
            walk.press("Stop…", "tbody")
            walk.nothing_done()
            with page.expect_navigation():
                page.get_by_role("button", name=re.compile("^Stop ")).click()
            assert last.worker in str([line.target for line in app.audit.list(action="command worker")])
            walk.done("command worker")
            _until(app, page, 0)
        assert [worker.wait(30) for worker in workers] == [0, 0]
        assert walk.wrong == []
    finally:
        for worker in workers:
            worker.send_signal(signal.SIGKILL)
            worker.wait()


def _until(app: winch.App, page: Any, number: int) -> list[Any]:
    """The live workers, when there are so many."""
    for _ in range(300):
        found = [one for one in app.workers.list() if one.ended_at is None]
        if len(found) == number:
            return found
        page.wait_for_timeout(100)
    raise AssertionError(f"not {number} workers live: {app.workers.list()}")

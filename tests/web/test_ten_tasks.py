"""Ten tasks of an operator, done in a real browser with nothing but the pages: each takes at most five
clicks, and the store is asked whether it is done. Slow.

Typing is not counted; the Enter key is. With `WINCH_TEST_TASK_SHOTS=docs/images/tasks` a picture of each
is kept. The run prints what each took.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import winch
from tests.faults.clocks import MovableClock
from tests.web.conftest import TIMED
from tests.web.prepared import prepare, tasks_of
from tests.web.server import serving
from tests.web.test_browser import _listen, browser
from winch import App

__all__ = ["browser"]

pytestmark = pytest.mark.slow

MOST_CLICKS = 5
YESTERDAY = 100
# So long a worker must grow before its growth counts as a leak.
LEAK_SECONDS = 150
ROOT = Path(__file__).parents[2]
KEEP = os.environ.get("WINCH_TEST_TASK_SHOTS")
SHOTS = None if KEEP is None else Path(KEEP).resolve()
# The pictures do not name the machine on which they are taken.
NAMED = "import socket\nsocket.gethostname = lambda: {name!r}\n"
THUMBS = """
import time
import winch

app = winch.App({url!r})
kept = []

@app.task(name="thumbs.make", queue="thumbs")
def make(number: int) -> None:
    kept.append(b"x" * (1 << 20))
    time.sleep(0.3)

@app.task(name="icons.make", queue="icons")
def icon(number: int) -> None:
    time.sleep(0.1)
"""


class Operator:
    """One tab; counts what its hand does."""

    def __init__(self, app: App, page: Any, address: str) -> None:
        self.app, self.page, self.address = app, page, address
        self.clicks = 0
        self.number, self.is_shot = 0, False

    @contextlib.contextmanager
    def task(self, number: int, words: str) -> Iterator[Operator]:
        """From the overview to the end of the task; at most five clicks."""
        self.page.goto(f"{self.address}/")
        self.clicks, began = 0, time.monotonic()
        self.number, self.is_shot = number, False
        yield self
        took = time.monotonic() - began
        number_of = "1 click" if self.clicks == 1 else f"{self.clicks} clicks"
        TIMED.append(f"{number:2}. {words} {number_of}, {took:.1f} s")
        if not self.is_shot:
            self.shot()
        assert self.clicks <= MOST_CLICKS, f"{words}: {self.clicks} clicks"

    def shot(self) -> None:
        """Keep a picture of what is seen now, where the run keeps pictures."""
        self.is_shot = True
        if SHOTS is not None:
            self.page.wait_for_timeout(400)
            SHOTS.mkdir(parents=True, exist_ok=True)
            path = SHOTS / f"{self.number:02}.jpg"
            self.page.screenshot(path=path, type="jpeg", quality=62)

    def click(self, target: Any) -> None:
        """One click on what can be seen, and no wait for more than the page that it opens."""
        self.clicks += 1
        with self.page.expect_navigation():
            target.first.click()

    def open(self, target: Any) -> None:
        """One click that opens something on the page itself."""
        self.clicks += 1
        target.first.click()

    def enter(self) -> None:
        self.clicks += 1
        with self.page.expect_navigation():
            self.page.keyboard.press("Enter")

    def nav(self, name: str) -> None:
        self.click(self.page.locator(".side nav").get_by_role("link", name=name))

    def button(self, name: str) -> Any:
        return self.page.get_by_role("button", name=name, exact=True)

    def row(self, name: str) -> Any:
        return self.page.locator("main").get_by_role("link", name=name, exact=True)

    def text(self) -> str:
        return re.sub(r"\s+", " ", self.page.locator("main").inner_text())

    def audit(self, action: str) -> Any:
        return next(line for line in self.app.audit.list() if line.action == action)


def _flow(app: App) -> str:
    """A flow whose second node died: the picture that it needs was not there."""

    @app.task(name="catalogue.fetch", queue="catalogue")
    def fetch() -> str:
        return "catalogue.png"

    @app.task(name="catalogue.resize", queue="catalogue", retry=winch.Retry.fixed("1s", attempts=1))
    def resize(width: int) -> None:
        raise FileNotFoundError("catalogue.png")

    @app.task(name="catalogue.publish", queue="catalogue")
    def publish() -> None:
        pass

    made = winch.flow("publish the catalogue")
    first = made.add(fetch.bind())
    second = made.add(resize.bind(800), after=[first])
    made.add(publish.bind(), after=[second])
    flow = made.enqueue()
    app.run_worker(queues=["catalogue"], burst=True)
    return str(flow.id)


@pytest.fixture(scope="module")
def shop(browser: Any) -> Iterator[Operator]:
    """The shop on its bad day, two real workers, of which one leaks, and a tab on the overview."""
    there = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="shop-") as name:
        os.chdir(name)  # the pages show the path of the store
        try:
            yield from _shop(Path(name), browser)
        finally:
            os.chdir(there)


def _shop(folder: Path, browser: Any) -> Iterator[Operator]:
    url = "sqlite:///shop.db"
    app = App(url)
    app.migrate()
    clock = MovableClock(folder, "yesterday")
    clock.set(-86_400)
    environment = {**os.environ, **clock.env}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), clock.env.get("PYTHONPATH", "")])
    subprocess.run(
        [sys.executable, "-m", "tests.web.prepared", url, str(YESTERDAY)],
        cwd=folder, env=environment, check=True,
    )  # fmt: skip
    (folder / "thumbs.py").write_text(THUMBS.format(url=url))

    def before() -> str:
        own = App(url)
        make = own.declare(
            "thumbs.make", {"properties": {"number": {"type": "integer"}}}, queue="thumbs"
        )
        own.enqueue_many([make.bind(number=n) for n in range(3000)])
        wayne = own.declare("voice.dub", {"properties": {"film": {"type": "string"}}}, queue="voice")
        own.enqueue_many([wayne.using(tenant="wayne").bind(film=f"{n}.mov") for n in range(40)])
        flow = _flow(own)
        own.close()
        return flow

    with ThreadPoolExecutor(1) as other:  # the browser's driver has a loop in this thread
        flow = other.submit(before).result()
    tasks_of(app)
    prepare(app)
    with app.audit.actor("ada"):
        app.queues.pause("reports", reason="the warehouse is moving")
        app.limits.set("limit:media.transcode", 9)
    for queue in ("thumbs", "icons"):
        (folder / f"named-{queue}").mkdir()
        (folder / f"named-{queue}" / "sitecustomize.py").write_text(NAMED.format(name=queue))
    workers = [
        subprocess.Popen(
            [Path(sys.executable).with_name("winch"), "worker", "-A", "thumbs:app", "-Q", queue,
             "--concurrency", "1"],
            cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": "" if SHOTS is None else f"named-{queue}"},
        )
        for queue in ("thumbs", "icons")
    ]  # fmt: skip
    wrong: list[str] = []
    try:
        with serving(app, environment="production", name="shop") as address:
            page = browser.new_context(
                viewport={"width": 1440, "height": 900}, device_scale_factor=0.75
            ).new_page()
            page.set_default_timeout(15_000)
            _listen(page, wrong)
            operator = Operator(app, page, address)
            operator.flow, operator.leak = flow, workers[0]  # type: ignore[attr-defined]
            yield operator
    finally:
        for worker in workers:
            worker.send_signal(signal.SIGKILL)
            worker.wait()
    assert wrong == []


def test_why_does_payments_lag(shop: Operator) -> None:
    with shop.task(1, "Why does payments lag?") as hand:
        hand.click(hand.row("payments"))
        seen = hand.text()
        assert re.search(r"Jobs wait 3 m( \d+ s)? its objective is 1 m", seen)
        assert "All 24 slots of its workers are busy; 90 jobs are ready" in seen
    serving_it = [one for one in shop.app.workers.list() if "payments" in one.queues]
    assert sum(one.slots for one in serving_it) == sum(one.running for one in serving_it) == 24


def test_yesterdays_card_errors_are_replayed_with_a_new_amount_50_a_second(shop: Operator) -> None:
    words = "Replay yesterday's card errors with a new amount, 50 a second."
    with shop.task(2, words) as hand:
        hand.click(hand.page.locator("#health a.do", has_text="Review the group"))
        hand.page.fill("#since", "yesterday")
        hand.page.fill("#patch", '{"amount": 12.5}')
        assert hand.page.input_value("#rate") == "50/s"
        hand.click(hand.button("Preview"))
        assert hand.page.locator(".diff .is-added").inner_text().endswith('"amount": 12.5,')
        assert f"{YESTERDAY} are enqueued again, in about 2.0 s" in hand.text()
        hand.shot()
        hand.click(hand.button(f"Replay {YESTERDAY} jobs"))
        hand.page.get_by_text(f"{YESTERDAY} of {YESTERDAY} jobs done").wait_for()
    again = [
        job for job in shop.app.jobs.list(queue="payments", state="ready", limit=1000)
        if json.loads(job.record.args)["amount"] == 12.5
        and any(entry.what == "replayed" or entry.by for entry in job.record.history)
    ]  # fmt: skip
    assert len(again) == YESTERDAY
    moments = sorted(job.record.history[-1].at for job in again)
    assert moments[-1] - moments[0] > timedelta(seconds=1.5), "at its pace, not at once"
    [group] = [one for one in shop.app.dead.groups() if one.task == "billing.charge"]
    assert group.count == 24, "those of today stay"
    assert shop.audit("dead group").detail["patch"] == {"amount": 12.5}


def test_which_tenant_is_starving(shop: Operator) -> None:
    with shop.task(4, "Which tenant is starving? Give it more turns.") as hand:
        hand.nav("Tenants")
        assert "wayne waits longest" in hand.text()
        assert "with 40 jobs ready and none running" in hand.text()
        first = hand.page.locator("tbody tr").first
        assert first.locator("a.row-link").inner_text() == "wayne"
        first.locator("input[name=value]").fill("5")
        hand.shot()
        hand.click(first.get_by_role("button", name="Set"))
    [limit] = [one for one in shop.app.limits.list() if one.name == "tenant:wayne"]
    assert limit.spec is not None
    assert limit.spec.n == 5


def test_the_queue_page_names_the_actor_and_the_reason_of_a_pause(shop: Operator) -> None:
    with shop.task(5, "Who paused reports, and why? Let it go on.") as hand:
        hand.nav("Queues")
        hand.click(hand.row("reports"))
        assert "the warehouse is moving" in hand.text()
        assert "ada pause queue" in hand.text()
        hand.shot()
        hand.click(hand.button("Resume"))
    [queue] = [one for one in shop.app.queues.list() if one.name == "reports"]
    assert queue.paused_at is None
    assert shop.audit("resume queue").target == "reports"


def test_why_does_the_job_of_this_order_not_run(shop: Operator) -> None:
    with shop.task(6, "Why is order 48073 not charged?") as hand:
        hand.page.keyboard.press("/")
        hand.page.keyboard.type("args.order_id:48073 queue:payments")
        hand.page.locator("#palette-list [role=option]").first.wait_for()
        hand.enter()
        hand.click(hand.page.locator("tbody[data-rows] a.row-link"))
        seen = hand.text()
        assert "It waits for a worker" in seen
    [job] = [
        one for one in shop.app.jobs.list(queue="payments", state="ready", limit=1000)
        if json.loads(one.record.args)["order_id"] == 48073
    ]  # fmt: skip
    assert job.id in shop.page.url
    assert shop.app.jobs.get(job.id).why().strip() in seen


def waiting_of(app: App, tenant: str) -> list[str]:
    """The ready jobs of the tenant, in the queues that have tenants."""
    return [
        job.id
        for queue in app.queues.list() if queue.name not in ("thumbs", "icons")
        for job in app.jobs.list(queue=queue.name, state="ready", limit=1000)
        if job.record.tenant == tenant
    ]  # fmt: skip


def test_all_waiting_jobs_of_a_tenant_are_cancelled(shop: Operator) -> None:
    waiting = waiting_of(shop.app, "hooli")
    assert len(waiting) > 20
    with shop.task(7, "Cancel all that waits of the tenant hooli.") as hand:
        hand.nav("Jobs")
        hand.page.fill("#filter-q", "tenant:hooli state:ready")
        hand.enter()
        hand.open(hand.page.locator("#all-rows"))
        hand.shot()
        hand.click(hand.page.locator("#bulk button[value=cancel]"))
        hand.click(hand.button(f"Cancel {len(waiting)} jobs"))
        hand.page.get_by_text(f"{len(waiting)} of {len(waiting)} jobs done").wait_for()
    assert waiting_of(shop.app, "hooli") == []
    assert {shop.app.jobs.get(job_id).state for job_id in waiting} == {winch.JobState.CANCELLED}
    assert shop.audit("bulk").who == "local"


def test_a_flow_runs_again_from_the_node_that_broke(shop: Operator) -> None:
    with shop.task(8, "Run the catalogue again from the part that broke.") as hand:
        hand.nav("Flows")
        hand.click(hand.row("publish the catalogue"))
        assert "held up by resize, which died" in hand.text()
        hand.click(hand.page.locator("svg.dag a.state-dead, svg.dag a:has-text('resize')"))
        hand.shot()
        hand.click(hand.button("Rerun from here"))
    flow = shop.app.flows.get(shop.flow)  # type: ignore[attr-defined]
    assert flow.state == "running"
    # What comes after the node is claimed early, and waits until it has ended.
    assert dict(flow.counts) == {winch.JobState.COMPLETED: 1, winch.JobState.READY: 2}


def test_the_reports_that_were_missed_are_made(shop: Operator) -> None:
    days = [datetime.now(UTC).date() - timedelta(days=n) for n in (4, 1)]
    with shop.task(9, "The nightly report did not run for three nights: catch up.") as hand:
        hand.nav("Schedules")
        hand.click(hand.row("nightly report"))
        hand.page.fill("#fill-start", f"{days[0]}T00:00")
        hand.page.fill("#fill-end", f"{days[1]}T00:00")
        hand.click(hand.button("Preview"))
        assert "3 jobs are enqueued" in hand.text()
        hand.shot()
        hand.click(hand.button("Enqueue 3 jobs"))
    made = shop.app.schedules.history("nightly report", limit=10)
    assert len(made) == 3
    assert shop.audit("schedule").detail["enqueued"] == 3


def test_twice_as_many_films_are_transcoded_at_once(shop: Operator) -> None:
    with shop.task(10, "Let 18 films be transcoded at once instead of 9.") as hand:
        hand.nav("Limits")
        row = hand.page.locator("tr", has_text="media.transcode")
        row.locator("input[name=value]").fill("18")
        hand.click(row.get_by_role("button", name="Preview"))
        assert "from 9 to 18" in hand.text()
        hand.shot()
        hand.click(hand.button("Set it to 18"))
    [limit] = [one for one in shop.app.limits.list() if one.name == "limit:media.transcode"]
    assert limit.spec is not None
    assert limit.spec.n == 18


def test_the_worker_that_leaks_is_stopped(shop: Operator) -> None:
    """The last one: its worker has grown meanwhile. The other real worker goes on."""
    leak = shop.leak  # type: ignore[attr-defined]
    shop.page.goto(f"{shop.address}/workers")
    shop.page.get_by_text("grows:").first.wait_for(timeout=LEAK_SECONDS * 1000)
    with shop.task(3, "Stop the worker that leaks.") as hand:
        hand.nav("Workers")
        growing = hand.page.locator("tr", has_text="grows:")
        assert growing.count() == 1
        hand.shot()
        hand.click(growing.get_by_role("button", name="Stop…"))
        hand.click(hand.page.get_by_role("button", name=re.compile("^Stop ")))
    assert leak.wait(60) == 0, "it ended as asked"
    queues = {queue for one in shop.app.workers.list() for queue in one.queues}
    assert "thumbs" not in queues
    assert "icons" in queues
    assert shop.audit("command worker").detail["action"] == "stop"

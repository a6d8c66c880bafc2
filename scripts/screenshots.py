"""Pictures of the dashboard for the documentation: real jobs, a real worker, a real browser.

Every figure comes from a job that a worker ran. The hour before is run too, in about a minute: a second
process works in 60 rounds, and its clock is set to the next minute before each. The worker measures
how long the jobs of a round wait and run.

    python scripts/screenshots.py [docs/images [build/shots]]
    python scripts/screenshots.py --million build/shots/million [1000000]

The second folder gets every page: light, dark, in high contrast, and as wide as a phone. With --million
they are those of a store with a million jobs, which `million_store.py` fills.

Needs `pip install -e '.[e2e]'` and a Chromium ($WINCH_TEST_CHROMIUM or on the PATH).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

import winch
from scripts import million_store
from tests.faults.clocks import MovableClock
from tests.web.server import serving
from winch import App, Context, Limit, Retry
from winch.web.server.upkeep import Sampler

PAGES = {
    "overview": "/",
    "jobs": "/jobs",
    "queues": "/queues",
    "dead": "/dead",
    "schedules": "/schedules",
    "flows": "/flows",
    "workers": "/workers",
    "limits": "/limits",
    "tenants": "/tenants",
    "operations": "/operations",
    "audit": "/audit",
    "settings": "/settings",
    "new-job": "/jobs/new?task=shop.charge",
}
# Kept with the documentation.
KEPT = ("overview", "jobs", "job", "flow")
LOOKS = {
    "light": ("light", 1440),
    "dark": ("dark", 1440),
    "contrast": ("light", 1440),
    "phone": ("light", 390),
}
TENANTS = ("acme", "globex", "initech", "umbrella")
QUEUES = ["payments", "mail", "default", "reports"]
MINUTES = 60
FIRST_ORDER = 10_000  # of the hour before
# The provider fails for a quarter of these orders, which are charged within five of the sixty minutes.
OUTAGE = range(FIRST_ORDER + 35 * 1000, FIRST_ORDER + 40 * 1000)


def shop(url: str) -> tuple[App, dict[str, Any]]:
    app = App(url)
    app.migrate()
    dice = random.Random(7)  # noqa: S311  # for show

    @app.task(name="shop.charge", queue="payments", retry=Retry.fixed("200ms", attempts=3))
    async def charge(ctx: Context, order: int, amount: float = 9.5) -> float:
        await asyncio.sleep(dice.uniform(0.005, 0.06))
        is_hard = order % 25 == 0 or (order in OUTAGE and order % 4 == 0)
        if is_hard and (ctx.attempt < 3 or order % 500 == 0):
            raise ConnectionError("provider answered 503")
        return amount

    @app.task(
        name="shop.mail.receipt", queue="mail", retry=Retry.fixed("100ms", attempts=2), limit=Limit(6)
    )
    def receipt(order: int) -> str:
        if order % 1000 == 34:
            raise ValueError("no such address")
        return f"sent for {order}"

    @app.task(name="images.fetch")
    async def fetch(url: str) -> str:
        await asyncio.sleep(0.05)
        return url

    @app.task(name="images.resize")
    async def resize(image: str, width: int) -> str:
        await asyncio.sleep(0.02 * width / 100)
        return f"{image}@{width}"

    @app.task(name="images.upload")
    async def upload(image: str = "", *, where: str = "cdn") -> str:
        await asyncio.sleep(0.08)
        return f"{where}/{image}"

    @app.task(name="reports.publish", queue="reports")
    async def publish() -> None:
        await asyncio.sleep(0.3)

    return app, {
        "charge": charge, "receipt": receipt, "fetch": fetch, "resize": resize, "upload": upload,
        "publish": publish,
    }  # fmt: skip


async def fill(app: App, tasks: dict[str, Any]) -> str:
    """A flow, two schedules, delayed jobs and a paused queue; returns the flow, which has ended."""
    made = winch.flow("publish the catalogue")
    start = made.add(tasks["fetch"].bind("catalogue.png"))
    sizes = [
        made.add(tasks["resize"].bind("catalogue.png", width), after=[start])
        for width in (100, 400, 800)
    ]
    done = made.add(tasks["upload"].bind("catalogue.png"), after=sizes)
    made.add(tasks["publish"].bind(), after=[done])
    flow = made.enqueue()
    app.schedules.add("nightly report", task="reports.publish", cron="0 2 * * *")
    app.schedules.add("clear caches", task="reports.publish", every="1h")
    async with app.worker(queues=QUEUES, concurrency=8):
        await until_idle(app)
    for number in range(30):
        await tasks["receipt"].using(delay=f"{number + 1}m").aenqueue(number)
    app.queues.pause("reports", reason="the warehouse is moving")
    app.limits.trip("stripe", "20m", reason="the provider answers 503")
    return str(flow.id)


async def until_idle(app: App) -> None:
    for _ in range(400):
        if not any(sum(queue.counts.values()) for queue in await app.queues.alist()):
            return
        await asyncio.sleep(0.05)
    raise RuntimeError("the jobs did not end within 20 s")


def run_hour_before(folder: Path) -> None:
    """Run `hour_before` in a process whose clock can be set."""
    clock = MovableClock(folder, "shop")
    command = [sys.executable, __file__, "--hour-before", str(folder)]
    subprocess.run(command, env={**os.environ, **clock.env}, cwd=folder, check=True)


async def hour_before(folder: Path) -> None:
    """Sixty minutes of a shop's day, about a second of work each: more orders around minute 35."""
    app, tasks = shop("sqlite:///shop.db")
    clock = MovableClock(folder, "shop")
    sampler = Sampler(app.driver)
    last = time.time() // 60 * 60 + 120  # about when this ends
    is_set_by = 0
    for minute in range(MINUTES):
        shown = last - 60 * (MINUTES - minute) + 20
        is_set_by = min(0, int(shown - (time.time() - is_set_by)))
        clock.set(is_set_by)
        if minute == 0:
            await app.schedules.aadd(
                "sync the stock", task="images.fetch", every="2m", args={"url": "stock.csv"}
            )
        rush = 1 + 1.5 * math.exp(-(((minute - 35) / 8) ** 2))
        orders = range(FIRST_ORDER + 1000 * minute, FIRST_ORDER + 1000 * minute + int(40 * rush))
        charges = [tasks["charge"].using(tenant=tenant) for tenant in TENANTS]
        await app.aenqueue_many([charges[order % 7 % 4].bind(order) for order in orders])
        await app.aenqueue_many([tasks["receipt"].bind(order) for order in orders])
        async with app.worker(queues=QUEUES, concurrency=8):
            await asyncio.sleep(0.1)
            await sampler.run_once()
            await until_idle(app)
    await app.aclose()


@contextlib.contextmanager
def at_work(app: App, tasks: dict[str, Any]) -> Iterator[None]:
    """A worker in another thread that always has something to do."""
    is_over = threading.Event()

    async def work() -> None:
        async with app.worker(queues=QUEUES, concurrency=8):
            for order in range(100_000, 200_000):
                if is_over.is_set():
                    break
                await tasks["charge"].using(tenant=TENANTS[order % 7 % 4]).aenqueue(order)
                await tasks["receipt"].aenqueue(order)
                await asyncio.sleep(0.2)

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    time.sleep(7)  # a session, and the first rates
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def named() -> contextlib.AbstractContextManager[object]:
    """The pictures do not name the machine on which they are taken."""
    return mock.patch.object(socket, "gethostname", return_value="worker-1")


def fonts(folder: Path) -> None:
    """Let Chromium draw with Inter, where it is installed: the system's font of this machine is no
    reader's."""
    config = folder / "fonts.conf"
    config.write_text(
        '<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>'
        '<include ignore_missing="yes">/etc/fonts/fonts.conf</include>'
        '<match target="pattern"><test qual="any" name="family"><string>DejaVu Sans</string></test>'
        '<edit name="family" mode="prepend" binding="strong"><string>Inter</string></edit></match>'
        "<alias><family>sans-serif</family><prefer><family>Inter</family></prefer></alias></fontconfig>"
    )
    os.environ["FONTCONFIG_FILE"] = str(config)


def pictures(
    playwright: Any, address: str, paths: dict[str, str], every: Path, kept: Path | None
) -> None:
    """Each page in each look."""
    chromium = os.environ.get("WINCH_TEST_CHROMIUM") or shutil.which("chromium")
    browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
    for look, (theme, width) in LOOKS.items():
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        if look == "contrast":
            context.add_cookies([{"name": "winch-theme", "value": look, "url": address}])
        page = context.new_page()
        for page_name, path in paths.items():
            page.goto(address + path)
            page.wait_for_timeout(400)  # charts are drawn after the page
            page.screenshot(path=every / f"{page_name}-{look}.png", full_page=True)
            if kept is not None and look == "light" and page_name in KEPT:
                page.screenshot(path=kept / f"{page_name}.png")
        context.close()
    browser.close()


def million(every: Path, count: int) -> None:
    """The pages of a store with so many jobs."""
    from playwright.sync_api import sync_playwright

    every.mkdir(parents=True, exist_ok=True)
    with named(), tempfile.TemporaryDirectory(prefix="million-") as name:
        folder = Path(name)
        fonts(folder)
        app = App(f"sqlite:///{folder}/million.db")
        app.migrate()
        million_store.fill(app, million_store.declare(app), count)
        asyncio.run(Sampler(app.driver).run_once())
        [dead] = app.jobs.list(state="dead", limit=1)
        paths = {**PAGES, "queue": "/queues/q3", "job": f"/jobs/{dead.id}",
                 "group": f"/dead/{dead.record.fingerprint}",
                 "flow": f"/flows/{app.flows.list(limit=1)[0].id}"}  # fmt: skip
        paths["new-job"] = "/jobs/new?task=shop.charge"
        with (
            serving(app, environment="production", name="shop") as address,
            sync_playwright() as playwright,
        ):
            pictures(playwright, address, paths, every, None)


def main() -> None:
    into = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images").resolve()
    every = Path(sys.argv[2] if len(sys.argv) > 2 else "build/shots").resolve()
    for folder in (into, every):
        folder.mkdir(parents=True, exist_ok=True)
    from playwright.sync_api import sync_playwright

    with named(), tempfile.TemporaryDirectory(prefix="shop-") as name:
        folder = Path(name)
        os.chdir(folder)
        fonts(folder)
        run_hour_before(folder)
        app, tasks = shop("sqlite:///shop.db")
        flow = asyncio.run(fill(app, tasks))
        paths = {**PAGES, "flow": f"/flows/{flow}", "queue": "/queues/payments"}
        [dead, *_] = app.jobs.list(state="dead", limit=1)
        paths["job"] = f"/jobs/{dead.id}"
        paths["schedule"] = "/schedules/sync the stock"
        paths["group"] = f"/dead/{dead.record.fingerprint}"
        with (
            at_work(app, tasks),
            serving(app, environment="production", name="shop") as address,
            sync_playwright() as playwright,
        ):
            pictures(playwright, address, paths, every, into)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--hour-before"]:
        with named():
            asyncio.run(hour_before(Path(sys.argv[2])))
    elif sys.argv[1:2] == ["--million"]:
        million(Path(sys.argv[2]).resolve(), int(sys.argv[3]) if len(sys.argv) > 3 else 1_000_000)
    else:
        main()

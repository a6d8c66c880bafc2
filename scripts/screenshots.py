"""Pictures of the dashboard for the documentation: real jobs, a real worker, a real browser.

    python scripts/screenshots.py [docs/images]

Needs `pip install -e '.[e2e]'` and a Chromium ($WINCH_TEST_CHROMIUM or on the PATH).
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import winch
from tests.web.server import serving
from winch import App, Retry
from winch.web.upkeep import Sampler

PAGES = {
    "overview": "/",
    "jobs": "/jobs",
    "queues": "/queues",
    "dead": "/dead",
    "schedules": "/schedules",
    "flows": "/flows",
    "workers": "/workers",
    "settings": "/settings",
    "new-job": "/jobs/new?task=shop.charge",
}
# Kept with the documentation; the others are for whoever works on the pages.
KEPT = ("overview", "jobs", "job", "flow")


def shop(url: str) -> tuple[App, dict[str, Any]]:
    app = App(url)
    app.migrate()
    dice = random.Random(7)  # noqa: S311  # for show

    @app.task(name="shop.charge", queue="payments", retry=Retry.fixed("200ms", attempts=3))
    async def charge(order: int, amount: float = 9.5) -> float:
        await asyncio.sleep(dice.uniform(0.005, 0.06))
        if order % 17 == 0:
            raise ConnectionError("provider answered 503")
        return amount

    @app.task(name="shop.mail.receipt", queue="mail", retry=Retry.fixed("100ms", attempts=2))
    def receipt(order: int) -> str:
        if order % 41 == 0:
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
    """Some minutes of a shop's day in some seconds; returns a flow that has ended."""
    await app.aenqueue_many([tasks["charge"].bind(n) for n in range(240)])
    await app.aenqueue_many([tasks["receipt"].bind(n) for n in range(240)])
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
    async with app.worker(queues=["payments", "mail", "default", "reports"], concurrency=8):
        for _ in range(40):
            await asyncio.sleep(0.25)
            if not [q for q in app.queues.list() if sum(q.counts.values())]:
                break
        await asyncio.sleep(6)  # the rates are written every five seconds
    for number in range(30):
        await tasks["receipt"].using(delay=f"{number + 1}m").aenqueue(number)
    await app.aenqueue_many([tasks["charge"].bind(1000 + n) for n in range(60)])
    app.queues.pause("reports", reason="the warehouse is moving")
    await Sampler(app.driver).run_once()
    return str(flow.id)


def main() -> None:
    into = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images").resolve()
    into.mkdir(parents=True, exist_ok=True)
    chromium = os.environ.get("WINCH_TEST_CHROMIUM") or shutil.which("chromium")
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        app, tasks = shop("sqlite:///shop.db")
        flow = asyncio.run(fill(app, tasks))
        paths = {**PAGES, "flow": f"/flows/{flow}", "queue": "/queues/payments"}
        [dead, *_] = app.jobs.list(state="dead", limit=1)
        paths["job"] = f"/jobs/{dead.id}"
        is_full = "--all" in sys.argv
        with serving(app) as address, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            for theme in ("light", "dark") if is_full else ("light",):
                for width in (1200, 360) if is_full else (1200,):
                    context = browser.new_context(
                        viewport={"width": width, "height": 760}, color_scheme=theme
                    )
                    page = context.new_page()
                    for name, path in paths.items():
                        if not is_full and name not in KEPT:
                            continue
                        page.goto(address + path)
                        suffix = f"-{theme}-{width}" if is_full else ""
                        page.screenshot(path=into / f"{name}{suffix}.png", full_page=is_full)
                    context.close()
            browser.close()


if __name__ == "__main__":
    main()

"""What live pages cost, and whether they hold still: 1,000 jobs a minute, a real worker, a real browser.

    python scripts/live_cost.py [--seconds 30] [--per-minute 1000] [--url sqlite:////tmp/live.db]

A `winch worker` runs the jobs, a `winch serve` serves the pages, and a headless Chromium shows one page
after the other for so many seconds, with the pointer on a row. Prints the CPU of the tab and of the
server, as shares of one processor, and how many times the page changed. A row that moved under the
pointer, or a page that did not change, is an error.

Needs `pip install -e '.[e2e]'` and a Chromium ($WINCH_TEST_CHROMIUM or on the PATH).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

HOME = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HOME))

from scripts.million_store import declare  # noqa: E402
from winch import App  # noqa: E402

APP = "scripts.million_app:app"
# Each page with the row that the pointer is put on, and what changes while jobs run.
PAGES = {
    "overview": ("/", "main tr[data-key^=queue-]:visible", "main"),
    "jobs": ("/jobs", "tbody[data-rows] tr:nth-child(5)", "main"),
    "queues": ("/queues", "main tbody tr:visible", "main"),
    "workers": ("/workers", "main tbody tr:visible", "main"),
}


@dataclass
class Cost:
    """What one page cost in a stretch of time."""

    tab: float
    server: float
    changes: int
    moved: float
    """By so many pixels the row under the pointer moved, at most."""


@contextmanager
def running(url: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A `winch` command in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "winch", *words, "--app", APP],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=HOME,
        env={**os.environ, "WINCH_URL": url},
    )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def producing(url: str, per_minute: int) -> Iterator[None]:
    """Jobs at a steady pace, ten times a second."""
    is_over = threading.Event()

    def produce() -> None:
        app = App(url)
        add = declare(app)["add"]
        began, number = time.monotonic(), 0
        while not is_over.wait(0.1):
            due = int((time.monotonic() - began) * per_minute / 60)
            if due > number:
                app.enqueue_many([add.bind(n, f"user-{n % 50}") for n in range(number, due)])
                number = due
        app.close()

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def spent(processes: list[psutil.Process]) -> float:
    """The CPU seconds of these processes and of those below them."""
    total = 0.0
    for process in processes:
        try:
            for one in (process, *process.children(recursive=True)):
                times = one.cpu_times()
                total += times.user + times.system
        except psutil.NoSuchProcess:
            continue
    return total


def watch(
    page: Any, server: int, tab: list[psutil.Process], name: str, base: str, seconds: float
) -> Cost:
    """Show a page with the pointer on a row, and look at that row twice a second."""
    path, row, body = PAGES[name]
    page.goto(base + path)
    page.wait_for_timeout(1500)
    target = page.locator(row).first
    target.hover()
    handle = target.element_handle()
    before = handle.bounding_box()
    processes = [psutil.Process(server)]
    began, tab_before, server_before = time.monotonic(), spent(tab), spent(processes)
    changes, moved, text = 0, 0.0, page.locator(body).inner_text()
    while time.monotonic() - began < seconds:
        page.wait_for_timeout(500)
        box = handle.bounding_box()
        moved = max(moved, 1e6 if box is None else abs(box["y"] - before["y"]))
        now = page.locator(body).inner_text()
        changes += now != text
        text = now
    passed = time.monotonic() - began
    return Cost(
        (spent(tab) - tab_before) / passed, (spent(processes) - server_before) / passed, changes, moved
    )


def measure(url: str, seconds: float, per_minute: int) -> dict[str, Cost]:
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("WINCH_TEST_CHROMIUM") or shutil.which("chromium")
    app = App(url)
    app.migrate()
    app.close()
    with (
        running(url, "worker", "-Q", "q0", "--concurrency", "4"),
        running(url, "serve", "--port", "0") as server,
        producing(url, per_minute),
        sync_playwright() as playwright,
    ):
        line = server.stdout.readline().strip() if server.stdout else ""
        if not line.startswith("http://"):
            raise SystemExit(f"the server did not start; its first line was {line!r}")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        page.goto("about:blank")
        tab = [
            one
            for one in psutil.Process().children(recursive=True)
            if "--type=renderer" in " ".join(one.cmdline())
        ]
        base = line.rstrip("/").replace("127.0.0.1", "localhost")
        page.goto(base)
        time.sleep(8)  # a session of the worker, and the first rates
        found = {name: watch(page, server.pid, tab, name, base, seconds) for name in PAGES}
        browser.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="how long each page is shown")
    parser.add_argument("--per-minute", type=int, default=1000)
    parser.add_argument("--url", default="", help="another store than an empty one of SQLite")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="winch-live-") as folder:
        url = options.url or f"sqlite:///{folder}/live.db"
        found = measure(url, options.seconds, options.per_minute)
    print(f"{options.per_minute:,} jobs a minute, each page shown for {options.seconds:g} s")
    print(f"{'':<12}{'tab CPU':>10}{'server CPU':>12}{'changes':>10}{'row moved':>12}")
    for name, cost in found.items():
        mark = "" if cost.changes and not cost.moved else "  wrong"
        numbers = f"{cost.tab:>9.1%}{cost.server:>12.1%}{cost.changes:>10}{cost.moved:>9.0f} px"
        print(f"{name:<12}{numbers}{mark}")
    return 0 if all(cost.changes and not cost.moved for cost in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

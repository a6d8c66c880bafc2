"""The dashboard in `winch demo`: served and asked; on a terminal it stays, with jobs coming in."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path

from winch.app import App
from winch.cli import text
from winch.cli.dashboard import Dashboard, is_installed
from winch.cli.demo_stage import SETTINGS, Stage, WorkerProcess
from winch.cli.output import say


def show(stage: Stage, folder: Path) -> None:
    """Serve the dashboard, ask it what it shows, and stop it again."""
    stage.title("The dashboard")
    if not is_installed():
        stage.tell("it needs an extra: pip install 'winch[web]'")
        return
    dashboard = _dashboard(folder)
    try:
        address = dashboard.start()
        stage.tell(f"`winch serve` is at {address}")
        completed = _asked(address).get("completed", 0)
        stage.tell(f"its overview answers, and {completed:,} completed jobs are in its numbers")
    finally:
        dashboard.stop()
    word = "shows the jobs" if completed >= 1000 else "does not show them"
    stage.expect("dashboard", "winch serve", "shows the jobs", lambda: word)


def _dashboard(folder: Path) -> Dashboard:
    url = f"sqlite:///{folder / 'demo.db'}"
    return Dashboard(["--url", url, "--port", "0", "--environment", "demo"], SETTINGS)


def _asked(address: str | None) -> dict[str, int]:
    """What the server says about the jobs; nothing where it does not answer well."""
    if address is None:
        return {}
    try:
        with urllib.request.urlopen(address, timeout=10) as page:  # noqa: S310  # our own server
            is_well = page.status == 200 and b"Overview" in page.read()
        with urllib.request.urlopen(f"{address}api/v1/stats", timeout=10) as answer:  # noqa: S310
            jobs: dict[str, int] = json.loads(answer.read())["jobs"]
    except OSError:
        return {}
    return jobs if is_well else {}


def stay(app: App, folder: Path) -> None:
    """Serve the dashboard with jobs coming in, until somebody has seen enough."""
    from winch.cli.demo_tasks import add, count, doomed, flaky, greet, step

    worker, dashboard = WorkerProcess(folder), _dashboard(folder)
    worker.start()
    try:
        address = dashboard.start()
        say()
        say(f"{text.bold('The dashboard')} with live jobs: {text.bold(str(address))}")
        say(text.dim("Ctrl-C ends the tour."))
        number = 0
        while worker.is_alive:
            number += 1
            add.enqueue(number, b=1)
            greet.enqueue("Ada")
            app.enqueue_many([count.bind(n) for n in range(number % 40)])
            if number % 3 == 0:
                step.enqueue(number)
                flaky.enqueue()
            if number % 10 == 0:
                doomed.enqueue(number % 90)
            time.sleep(1.0)
    except KeyboardInterrupt:
        say()
    finally:
        dashboard.stop()
        worker.kill()

"""The dashboard of `winch demo`."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path

from winch import App
from winch.demo.stage import SETTINGS, Stage, WorkerProcess
from winch.demo.tasks import add, count, doomed, flaky, greet, haul, step, unload
from winch.demo.terminal import bold, dim, say
from winch.web.server.serve_process import ServeProcess, is_installed


class TourDashboard:
    """Served from the beginning and checked at the end; on a terminal it stays, with jobs coming in."""

    def __init__(self, folder: Path) -> None:
        url = f"sqlite:///{folder / 'demo.db'}"
        self._folder = folder
        self._server = ServeProcess(["--url", url, "--port", "0", "--environment", "demo"], SETTINGS)
        self._address: str | None = None

    def start(self, stage: Stage) -> None:
        stage.title("The dashboard")
        if not is_installed():
            stage.tell("it needs an extra: pip install 'winch-jobs[web]'")
            return
        self._address = self._server.start()
        stage.tell(f"`winch serve` is at {bold(str(self._address))}: open it and watch what follows")

    def stop(self) -> None:
        self._server.stop()

    def check(self, stage: Stage) -> None:
        """Check that it shows what has happened."""
        if not is_installed():
            return
        stage.title("The dashboard")
        completed = self._jobs().get("completed", 0)
        stage.tell(f"its overview answers, and {completed:,} completed jobs are in its numbers")
        word = "shows the jobs" if completed >= 1000 else "does not show them"
        stage.expect("dashboard", "winch serve", "shows the jobs", lambda: word)

    def _jobs(self) -> dict[str, int]:
        """The server's numbers of jobs by state; empty where it does not answer as it should."""
        if self._address is None:
            return {}
        try:
            with urllib.request.urlopen(self._address, timeout=10) as page:  # noqa: S310  # our own server
                is_well = page.status == 200 and b"Overview" in page.read()
            with urllib.request.urlopen(f"{self._address}api/v1/stats", timeout=10) as answer:  # noqa: S310
                jobs: dict[str, int] = json.loads(answer.read())["jobs"]
        except OSError:
            return {}
        return jobs if is_well else {}

    def stay(self, app: App) -> None:
        """Keep it on live data until Ctrl-C."""
        if self._address is None:
            return
        worker = WorkerProcess(self._folder)
        worker.start()
        say()
        say(f"{bold('The dashboard')} with live jobs: {bold(self._address)}")
        say(dim("Kill a worker process from another terminal, and watch its jobs continue:"))
        say(f"    kill -9 $(pgrep -P {worker.pid} | head -n 1)")
        say(dim("Ctrl-C ends the tour."))
        try:
            _keep_busy(app, worker)
        except KeyboardInterrupt:
            say()
        finally:
            worker.kill()


def _keep_busy(app: App, worker: WorkerProcess) -> None:
    number = 0
    while worker.is_alive:
        number += 1
        add.enqueue(number, b=1)
        greet.enqueue("Ada")
        unload.enqueue(number)
        app.enqueue_many([count.bind(n) for n in range(number % 40)])
        if number % 3 == 0:
            step.enqueue(number)
            flaky.enqueue()
            haul.enqueue(steps=7)
        if number % 10 == 0:
            doomed.enqueue(number % 90)
        time.sleep(1.0)

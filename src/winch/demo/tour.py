"""The tour of `winch demo`: a real worker, act after act, and what became of every job."""

from __future__ import annotations

import os
from pathlib import Path

from winch import App, WinchError
from winch.demo import flows, jobs, safety
from winch.demo.dashboard import TourDashboard
from winch.demo.stage import WAIT, Stage, TourEnding, WorkerProcess
from winch.demo.tasks import app
from winch.demo.terminal import dim, one_line, say

ACTS = (
    jobs.plain,
    jobs.bulk,
    jobs.collecting,
    jobs.queue,
    jobs.failures,
    jobs.people,
    jobs.versions,
    jobs.schedule,
    flows.limits,
    flows.flows,
    flows.workflow,
    safety.transactions,
    safety.exactly_once,
    safety.unique,
    safety.dead_letters,
    safety.deaf,
    safety.poison,
    safety.kill,
)


class Tour:
    """One run of the tour, with its database and its worker's log in `folder`."""

    def __init__(self, folder: Path) -> None:
        _leave_the_users_settings_alone(folder)
        app.configure({"url": f"sqlite:///{folder / 'demo.db'}"})
        self._folder = folder
        self._stage = Stage(app)
        self._dashboard = TourDashboard(folder)

    def seconds(self) -> float:
        """How long the tour has been running."""
        return self._stage.seconds()

    def run(self) -> list[TourEnding]:
        """Perform every act. A tour that cannot go on ends early, and its endings show it."""
        stage = self._stage
        app.migrate()
        worker = WorkerProcess(self._folder)
        try:
            _start(app, stage, worker)
            self._dashboard.start(stage)
            for act in ACTS:
                act(app, stage)
            self._dashboard.check(stage)
            stage.title("The end")
            stage.tell("the worker gets a SIGTERM")
            code = worker.stop()
            stage.tell(f"it finished what it had and exited with {code}")
            stage.expect("worker", "stops cleanly", "exit code 0", lambda: f"exit code {code}")
        except (TimeoutError, WinchError) as error:
            stage.tell(f"the tour stops here: {one_line(str(error))}")
            stage.expect("tour", "runs to its end", "reached", lambda: "not reached")
            for line in worker.last_words():
                say(f"  {dim('worker log')}  {one_line(line)}")
        finally:
            worker.kill()
        return stage.endings()

    def stay(self) -> None:
        """Keep the dashboard on live data until Ctrl-C."""
        self._dashboard.stay(app)

    def close(self) -> None:
        self._dashboard.stop()
        app.close()


def _leave_the_users_settings_alone(folder: Path) -> None:
    """The tour must look the same whatever this machine's environment and current folder are."""
    for name in [name for name in os.environ if name.startswith("WINCH_")]:
        del os.environ[name]
    if path := os.environ.get("PYTHONPATH"):
        absolute = (str(Path(part).absolute()) for part in path.split(os.pathsep) if part)
        os.environ["PYTHONPATH"] = os.pathsep.join(absolute)
    os.chdir(folder)


def _start(app: App, stage: Stage, worker: WorkerProcess) -> None:
    stage.title("A worker")
    worker.start()
    stage.tell(f"`winch worker -p 2 -c 8` is starting, process {worker.pid}")

    def are_two_live() -> bool:
        if not worker.is_alive:
            raise TimeoutError("the worker ended at once")
        return len(app.workers.list()) == 2

    stage.until(are_two_live, "two worker processes", WAIT)
    pids = " and ".join(str(session.pid) for session in app.workers.list())
    stage.tell(f"its two children {pids} are live; each has 8 slots and a lease of 3s")

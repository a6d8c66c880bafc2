"""`winch demo`: real jobs, a real worker and a real kill, on SQLite in a temporary folder."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from winch.app import App
from winch.cli.demo import flow, jobs, safety
from winch.cli.demo.dashboard import TourDashboard
from winch.cli.demo.stage import WAIT, Stage, WorkerProcess
from winch.cli.shared import text
from winch.cli.shared.options import start_logging
from winch.cli.shared.output import Column, Table, say
from winch.core.errors import WinchError

ACTS = (
    jobs.plain,
    jobs.bulk,
    jobs.collecting,
    jobs.queue,
    jobs.failures,
    jobs.people,
    jobs.versions,
    jobs.schedule,
    flow.limits,
    flow.flows,
    flow.workflow,
    safety.transactions,
    safety.exactly_once,
    safety.unique,
    safety.dead_letters,
    safety.deaf,
    safety.poison,
    safety.kill,
)


@click.command()
@click.option("--keep", is_flag=True, help="Keep the folder with the database and the worker's log.")
@click.option("-v", "--verbose", count=True, help="More log lines; twice: tracebacks too.")
def demo(keep: bool, verbose: int) -> None:
    """A tour on SQLite: real jobs, a real worker, a real kill.

    Takes about half a minute, needs nothing and leaves nothing behind. The dashboard is there from the
    beginning; on a terminal it stays, with jobs coming in, until Ctrl-C. Exit 1 when a job does not end
    as it should.
    """
    start_logging(verbose)
    folder = Path(tempfile.mkdtemp(prefix="winch-demo-"))
    _leave_the_users_settings_alone(folder)
    from winch.cli.demo.tasks import app

    app.configure({"url": f"sqlite:///{folder / 'demo.db'}"})
    stage = Stage(app)
    dashboard = TourDashboard(folder)
    is_well = False
    is_kept = True
    try:
        is_well = _perform(app, stage, dashboard, folder)
        if is_well and sys.stdin.isatty() and sys.stdout.isatty():
            dashboard.stay(app)
        is_kept = keep or not is_well
    except KeyboardInterrupt:
        is_kept = keep
        raise
    finally:
        dashboard.stop()
        app.close()
        if is_kept:
            say(f"the database and the worker's log are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if not is_well:
        click.get_current_context().exit(1)


def _leave_the_users_settings_alone(folder: Path) -> None:
    """The tour must look the same whatever this machine's environment and current folder say."""
    for name in [name for name in os.environ if name.startswith("WINCH_")]:
        del os.environ[name]
    if path := os.environ.get("PYTHONPATH"):
        absolute = (str(Path(part).absolute()) for part in path.split(os.pathsep) if part)
        os.environ["PYTHONPATH"] = os.pathsep.join(absolute)
    os.chdir(folder)


def _perform(app: App, stage: Stage, dashboard: TourDashboard, folder: Path) -> bool:
    say(text.bold("Winch demo") + text.dim(f"  in {folder}"))
    app.migrate()
    worker = WorkerProcess(folder)
    try:
        _start(app, stage, worker)
        dashboard.start(stage)
        for act in ACTS:
            act(app, stage)
        dashboard.ask(stage)
        stage.title("The end")
        stage.tell("the worker gets a SIGTERM")
        code = worker.stop()
        stage.tell(f"it finished what it had and exited with {code}")
        stage.expect("worker", "stops cleanly", "exit code 0", lambda: f"exit code {code}")
    except (TimeoutError, WinchError) as error:
        stage.tell(f"the tour stops here: {text.one_line(str(error))}")
        stage.expect("tour", "runs to its end", "reached", lambda: "not reached")
        for line in worker.last_words():
            say(f"  {text.dim('worker log')}  {text.one_line(line)}")
    finally:
        worker.kill()
    return _verdict(stage)


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


def _verdict(stage: Stage) -> bool:
    say()
    table = Table(
        [
            Column("JOB"),
            Column("WHAT IT IS", gives_way=True, drop=1),
            Column("EXPECTED"),
            Column("ACTUAL"),
            Column(""),
        ]
    )
    wrong = 0
    for name, what, expected, look in stage.expected:
        actual = _looked(look)
        is_right = actual == expected
        wrong += not is_right
        mark = text.state("ok", "completed") if is_right else text.state("WRONG", "dead")
        table.add(name, what, expected, actual, mark)
    table.show(indent="  ")
    say()
    number = len(stage.expected)
    if wrong:
        say(text.state(f"{wrong} of {number} did not end as they should.", "dead"))
    else:
        say(text.bold(f"All {number} ended as they should, in {stage.seconds():.1f}s."))
    return not wrong


def _looked(look: Callable[[], str]) -> str:
    try:
        return look()
    except WinchError as error:
        return text.one_line(f"{type(error).__name__}: {error}")

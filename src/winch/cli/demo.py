"""`winch demo`: real jobs, a real worker and a real kill, on SQLite in a temporary folder."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from winch.app import App
from winch.cli import text
from winch.cli.demo_stage import Stage, WorkerProcess
from winch.cli.output import Column, Table, say
from winch.cli.store import start_logging
from winch.core.duration import format_duration
from winch.core.errors import JobNotFound, WinchError
from winch.core.lifecycle import JobState
from winch.engine.handle import Job

BULK = 1000
WAIT = 20.0


@click.command()
@click.option("--keep", is_flag=True, help="Keep the folder with the database and the worker's log.")
@click.option("-v", "--verbose", count=True, help="More log lines; twice: tracebacks too.")
def demo(keep: bool, verbose: int) -> None:
    """A tour on SQLite: real jobs, a real worker, a real kill.

    Takes about ten seconds, needs nothing and leaves nothing behind. Exit 1 when a job does not end
    as it should.
    """
    start_logging(verbose)
    folder = Path(tempfile.mkdtemp(prefix="winch-demo-"))
    _leave_the_users_settings_alone(folder)
    from winch.cli.demo_tasks import app

    app.configure({"url": f"sqlite:///{folder / 'demo.db'}"})
    stage = Stage(app)
    is_well = False
    is_kept = True
    try:
        is_well = _perform(app, stage, folder)
        is_kept = keep or not is_well
    except KeyboardInterrupt:
        is_kept = keep
        raise
    finally:
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


def _perform(app: App, stage: Stage, folder: Path) -> bool:
    say(text.bold("Winch demo") + text.dim(f"  in {folder}"))
    app.migrate()
    worker = WorkerProcess(folder)
    try:
        _start(app, stage, worker)
        for act in (_plain, _bulk, _queue, _failures, _people, _transactions, _kill):
            act(app, stage)
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


def _plain(app: App, stage: Stage) -> None:
    from winch.cli.demo_tasks import add, greet

    stage.title("Plain jobs")
    stage.follow(add.enqueue(2, b=3), "add", "a function", "completed")
    stage.follow(greet.enqueue("Ada"), "greet", "a coroutine", "completed")
    later = greet.using(delay="2s").enqueue("Grace")
    stage.follow(later, "later", "delayed by 2s", "completed, on time", _on_time)
    stage.watch("add", "greet")


def _on_time(job: Job[Any]) -> str:
    record = job.record
    if record.claimed_at is None:
        return str(record.state)
    late = record.claimed_at - record.run_at
    is_on_time = timedelta(0) <= late < timedelta(seconds=2)
    return f"{record.state}, {'on time' if is_on_time else f'late by {format_duration(late)}'}"


def _bulk(app: App, stage: Stage) -> None:
    from winch.cli.demo_tasks import count

    stage.title("A thousand at once")
    began = stage.seconds()
    app.enqueue_many([count.bind(number) for number in range(BULK)])
    stage.tell(f"{BULK:,} jobs are enqueued in {stage.seconds() - began:.2f}s, one transaction")

    def is_done() -> bool:
        return not any(
            queue.name == "bulk" and sum(queue.counts.values()) for queue in app.queues.list()
        )

    stage.until(is_done, "the thousand jobs", WAIT)
    spent = stage.seconds() - began
    stage.tell(f"all of them ran; {spent:.1f}s from the first enqueue to the last finish")
    stage.expect("bulk", f"{BULK:,} jobs in one call", f"{BULK:,} completed", lambda: _tally(app))


def _tally(app: App) -> str:
    found: Counter[str] = Counter()
    after: str | None = None
    while True:
        page = app.jobs.list(task="demo.count", limit=1000, after=after)
        found.update(str(job.state) for job in page)
        after = page.next
        if after is None:
            return ", ".join(f"{number:,} {state}" for state, number in found.items())


def _queue(app: App, stage: Stage) -> None:
    from winch.cli.demo_tasks import step

    stage.title("A paused queue, and priority")
    app.queues.pause("line", reason="the tour says so")
    many = app.enqueue_many([step.bind(number) for number in range(40)])
    urgent = step.using(priority="critical").enqueue(99)
    stage.tell("queue `line` is paused, and 40 jobs wait in it")
    stage.follow(
        urgent,
        "urgent",
        "priority critical, enqueued last",
        "completed, started first",
        lambda job: _rank(job, many),
    )
    stage.tell(f"winch why: {text.one_line(urgent.why())}")
    app.queues.resume("line")
    stage.tell("the queue is resumed")
    stage.watch("urgent")
    stage.until(lambda: all(job.refresh().state.is_final for job in many), "the line", WAIT)
    stage.tell("all 40 others are done, too")
    done = sum(job.state is JobState.COMPLETED for job in many)
    stage.expect("line", "40 jobs of a paused queue", "40 completed", lambda: f"{done} completed")


def _rank(urgent: Job[Any], others: list[Job[Any]]) -> str:
    mine = urgent.record.claimed_at
    before = sum(1 for job in others if mine and (job.record.claimed_at or mine) < mine)
    return f"{urgent.state}, started {'first' if not before else f'after {before} others'}"


def _failures(app: App, stage: Stage) -> None:
    from winch.cli.demo_tasks import doomed, endless, flaky, patient, pointless

    stage.title("What may go wrong")

    def with_attempt(job: Job[Any]) -> str:
        return f"{job.state}, attempt {job.record.attempt}"

    trying = flaky.enqueue()
    waiting = patient.enqueue()
    stage.follow(trying, "flaky", "fails twice, then works", "completed, attempt 3", with_attempt)
    stage.follow(doomed.enqueue(7), "doomed", "fails at every attempt", "dead, attempt 2", with_attempt)
    stage.follow(pointless.enqueue(), "pointless", "says that it is not worth it", "dead")
    stage.follow(waiting, "patient", "snoozes once", "completed, attempt 1", with_attempt)
    stage.follow(endless.enqueue(), "endless", "runs past its timeout of 1s", "dead")
    stage.watch("flaky", "doomed", "pointless", "patient", "endless", "later")


def _people(app: App, stage: Stage) -> None:
    from winch.cli.demo_tasks import add, film

    stage.title("Cancel")
    running = film.enqueue(minutes=90)
    stage.follow(running, "film", "cancelled while it runs", "cancelled")
    stage.watch("film", state=JobState.RUNNING)
    running.cancel("nobody watches it")
    stage.watch("film")
    waiting = add.using(delay="1h").enqueue(1, b=1)
    waiting.cancel("never mind")
    stage.follow(waiting, "unborn", "cancelled before it runs", "cancelled")
    stage.watch("unborn")


def _transactions(app: App, stage: Stage) -> None:
    from winch.cli.demo_tasks import receipt

    stage.title("Transactions and ids")
    with app.transaction() as conn:
        conn.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        conn.execute("INSERT INTO orders VALUES (1)")
        kept = receipt.using(conn=conn).enqueue(1)
    stage.tell("order 1 and its receipt's job are committed together")
    stage.follow(kept, "receipt", "in a transaction that commits", "completed")
    gone = ""
    try:
        with app.transaction() as conn:
            conn.execute("INSERT INTO orders VALUES (2)")
            gone = receipt.using(conn=conn).enqueue(2).id
            raise _CardRefused
    except _CardRefused:
        stage.tell("order 2 is rolled back, and its receipt's job with it")
    stage.expect("rolled back", "in a transaction that rolls back", "never existed",
                 lambda: _existence(app, gone))  # fmt: skip
    given = uuid.uuid4()
    first = receipt.using(id=given).enqueue(3)
    second = receipt.using(id=given).enqueue(3)
    gave = "made another job" if second.is_new else "gave the same job back"
    stage.tell(f"a job is enqueued twice with one id; the second enqueue {gave}")
    stage.follow(first, "same id", "one id, enqueued twice", "completed, one job",
                 lambda job: f"{job.state}, {'two jobs' if second.is_new else 'one job'}")  # fmt: skip
    stage.watch("receipt", "same id")


class _CardRefused(Exception):
    """What makes the tour's second order roll back."""


def _existence(app: App, job_id: str) -> str:
    try:
        return str(app.jobs.get(job_id).state)
    except JobNotFound:
        return "never existed"


def _kill(app: App, stage: Stage) -> None:
    from winch.cli.demo_tasks import haul

    stage.title("kill -9")
    job = haul.enqueue(seconds=3.5)

    def told(job: Job[Any]) -> str:
        crashes = sum(entry.what == "crashed" for entry in job.record.history)
        return f"{job.state}, after {text.count(crashes, 'crash')}"

    stage.follow(job, "haul", "its process is killed under it", "completed, after 1 crash", told)
    stage.watch("haul", state=JobState.RUNNING)
    stage.until(lambda: _ran_for(job, timedelta(seconds=1)), "the job to be partly done", WAIT)
    pid = next(s.pid for s in app.workers.list() if s.id == job.refresh().record.session)
    stage.tell(f"part of it is done; kill -9 {pid}, without a warning")
    WorkerProcess.kill_child(pid)
    stage.watch("haul")
    stage.until(lambda: len(app.workers.list()) == 2, "the new child", WAIT)
    pids = " and ".join(str(session.pid) for session in app.workers.list())
    stage.tell(f"the worker has replaced the dead child; live now: {pids}")


def _ran_for(job: Job[Any], span: timedelta) -> bool:
    claimed = job.refresh().record.claimed_at
    return claimed is not None and text.now() - claimed >= span


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

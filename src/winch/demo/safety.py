"""The later acts of `winch demo`: what keeps jobs and data right when something goes wrong."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from winch import App, Job, JobNotFound
from winch.demo import tasks
from winch.demo.stage import WAIT, Stage, WorkerProcess
from winch.demo.tasks import doomed, haul, pay, receipt
from winch.demo.terminal import count, one_line, state
from winch.types import JobState


def transactions(app: App, stage: Stage) -> None:
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


def exactly_once(app: App, stage: Stage) -> None:
    stage.title("Exactly once")
    with app.transaction() as conn:
        conn.execute("CREATE TABLE ledger (paid INTEGER)")
    job = pay.enqueue(4)

    def ending(job: Job[Any]) -> str:
        with app.transaction() as conn:
            [rows] = conn.execute("SELECT count(*) FROM ledger").fetchone()
        children = len(list(app.jobs.list(tag="of pay")))
        return f"{job.state}, {count(rows, 'row')}, {count(children, 'child', 'children')}"

    stage.follow(job, "pay", "fails after its INSERT, then works", "completed, 1 row, 1 child", ending)
    stage.watch("pay")
    stage.tell("row, receipt's job and completion were one commit; the failed attempt left nothing")


def unique(app: App, stage: Stage) -> None:
    stage.title("Unique keys")
    once = receipt.using(unique="receipt:5", delay="500ms")
    first, second = once.enqueue(5), once.enqueue(5)
    found = "two jobs" if second.id != first.id else "one job"
    stage.follow(first, "unique", "one key, enqueued twice", "completed, one job",
                 lambda job: f"{job.state}, {found}")  # fmt: skip
    stage.tell(f"the second enqueue found the key held; there is {found}")
    stage.watch("unique")


def dead_letters(app: App, stage: Stage) -> None:
    stage.title("Dead letters")
    job = doomed.enqueue(8)
    stage.follow(job, "mended", "dead, replayed with other arguments", "completed")
    stage.until(lambda: job.refresh().state is JobState.DEAD, "the job to die", WAIT)
    stage.tell(f"it is {state('dead')}; winch dead groups shows:")
    for group in app.dead.groups():
        line = f"{group.count} x {group.task}: {group.error_name} {group.message}"
        stage.tell(f"    {one_line(line)}")
    done = app.dead.replay([job.id], args={"order": 108})
    stage.tell(f"winch dead replay --args '{{\"order\": 108}}': {done.replayed} replayed")
    stage.watch("mended")


def poison(app: App, stage: Stage) -> None:
    stage.title("A job that kills its process")
    neighbours = app.enqueue_many([tasks.neighbour.bind(number) for number in range(12)])
    job = tasks.poison.enqueue()

    def ending(job: Job[Any]) -> str:
        crashes = sum(entry.what == "crashed" for entry in job.record.history)
        return f"{job.state}, after {count(crashes, 'crash', 'crashes')}"

    def beside() -> str:
        found = [other.refresh() for other in neighbours]
        done = sum(other.state is JobState.COMPLETED for other in found)
        spent = sum(other.record.attempt - 1 for other in found)
        return f"{done} completed, {count(spent, 'attempt')} lost"

    stage.follow(job, "poison", "kills whatever process runs it", "dead, after 3 crashes", ending)
    stage.watch("poison")
    stage.until(lambda: all(n.refresh().state.is_final for n in neighbours), "its neighbours", WAIT)
    stage.tell("it ran alone after its first crash; the 12 jobs beside it are done")
    stage.expect("neighbours", "12 jobs beside it", "12 completed, 0 attempts lost", beside)


def deaf(app: App, stage: Stage) -> None:
    stage.title("A job that ignores its timeout")
    stage.follow(tasks.deaf.enqueue(), "deaf", "ignores its timeout of 1s, isolated", "dead")
    stage.watch("deaf")


def kill(app: App, stage: Stage) -> None:
    stage.title("kill -9")
    job = haul.enqueue(steps=7)

    def ending(job: Job[Any]) -> str:
        crashes = sum(entry.what == "crashed" for entry in job.record.history)
        return f"{job.state}, after {count(crashes, 'crash')}"

    stage.follow(job, "haul", "its process is killed under it", "completed, after 1 crash", ending)
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
    return claimed is not None and datetime.now(UTC) - claimed >= span

"""Metrics and events report what happened: every way in which an attempt or a job can end."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from winch import App, Cancel, Context, Discard, Job, JobState, Retry, RetryAfter, Snooze
from winch.core.job import MAX_CRASHES, MAX_RESCUES
from winch.engine.maintenance.rescuer import Rescuer
from winch.engine.observe import throughput
from winch.engine.observe.prometheus import Counters
from winch.engine.observe.throughput import MINUTE, RateWriter, Tally
from winch.engine.tasks.events import KINDS, JobEvent
from winch.storage.params import ClaimParams, NewSession

FINISHED = "winch_jobs_finished_total"
STARTED, RETRIES, DEAD = "winch_jobs_started_total", "winch_job_retries_total", "winch_jobs_dead_total"


def counted(app: App, task: str) -> dict[str, int]:
    """The counters of one task that are not zero, by family and outcome, as a server exposes them."""
    series = app.client.run(throughput.read(app.ready(), MINUTE, int(time.time()), 3))
    counters = Counters()
    for one in series.rates:
        counters.add(one)
    found: dict[str, int] = {}
    for line in counters.render():
        matched = re.fullmatch(r"(\w+_total)\{(.*)\} (-?\d+)", line)
        if matched and f'task="{task}"' in matched[2] and matched[3] != "0":
            outcome = re.search(r'outcome="(\w+)"', matched[2])
            found[matched[1] + (f":{outcome[1]}" if outcome else "")] = int(matched[3])
    found.pop("winch_jobs_enqueued_total", None)
    return found


@dataclass(frozen=True)
class Case:
    name: str
    act: Callable[..., Any]
    counts: dict[str, int]
    events: list[str]
    options: dict[str, Any] = field(default_factory=dict)
    using: dict[str, Any] = field(default_factory=dict)
    state: JobState = JobState.COMPLETED


def returns(ctx: Context) -> int:
    return 1


def raises(ctx: Context) -> None:
    raise ValueError("no")


def discards(ctx: Context) -> None:
    raise Discard("no")


def cancels(ctx: Context) -> None:
    raise Cancel("no")


def snoozes(ctx: Context) -> None:
    raise Snooze("1h")


def asks_again(ctx: Context) -> None:
    raise RetryAfter("1h")


async def sleeps(ctx: Context) -> None:
    await ctx.sleep("1h")


async def waits(ctx: Context) -> None:
    await ctx.wait_for("approval", timeout="1h")


CHILDREN: list[Any] = []


async def gathers(ctx: Context) -> None:
    await ctx.gather(CHILDREN[-1].bind())


async def undoes(ctx: Context) -> None:
    await ctx.step(len, "x", name="x", undo=lambda _: None)
    raise ValueError("no")


async def is_slow(ctx: Context) -> None:
    await asyncio.sleep(20)


async def is_slow_and_undoes(ctx: Context) -> None:
    await ctx.step(len, "x", name="x", undo=lambda _: None)
    await asyncio.sleep(20)


NEVER = Retry.fixed("1s", attempts=1)
LATER = Retry.fixed("1h", attempts=5)
CASES = [
    Case("returns", returns, {STARTED: 1, f"{FINISHED}:success": 1}, ["started", "completed"]),
    Case(
        "fails and will be retried",
        raises,
        {STARTED: 1, f"{FINISHED}:failure": 1, RETRIES: 1},
        ["started", "retrying"],
        options={"retry": LATER},
        state=JobState.RETRYING,
    ),
    Case(
        "fails for the last time",
        raises,
        {STARTED: 1, f"{FINISHED}:failure": 1, DEAD: 1},
        ["started", "dead"],
        options={"retry": NEVER},
        state=JobState.DEAD,
    ),
    Case(
        "discards",
        discards,
        {STARTED: 1, f"{FINISHED}:failure": 1, DEAD: 1},
        ["started", "dead"],
        state=JobState.DEAD,
    ),
    Case(
        "cancels itself",
        cancels,
        {STARTED: 1, f"{FINISHED}:cancelled": 1},
        ["started", "cancelled"],
        state=JobState.CANCELLED,
    ),
    Case(
        "has expired",
        returns,
        {STARTED: 1, f"{FINISHED}:cancelled": 1},
        ["cancelled"],
        using={"expires": "1ms"},
        state=JobState.CANCELLED,
    ),
    Case("snoozes", snoozes, {STARTED: 1}, ["started", "snoozed"], state=JobState.SCHEDULED),
    Case(
        "asks to be retried",
        asks_again,
        {STARTED: 1, f"{FINISHED}:failure": 1, RETRIES: 1},
        ["started", "retrying"],
        options={"retry": LATER},
        state=JobState.RETRYING,
    ),
    Case("sleeps", sleeps, {STARTED: 1}, ["started", "snoozed"], state=JobState.SCHEDULED),
    Case("waits for a signal", waits, {STARTED: 1}, ["started", "snoozed"], state=JobState.BLOCKED),
    Case(
        "gathers children",
        gathers,
        {STARTED: 2, f"{FINISHED}:success": 1},
        ["started", "snoozed", "started", "completed"],
    ),
    Case(
        "undoes its steps",
        undoes,
        {STARTED: 2, f"{FINISHED}:failure": 1, DEAD: 1},
        ["started", "snoozed", "started", "dead"],
        options={"retry": NEVER},
        state=JobState.DEAD,
    ),
    Case(
        "times out",
        is_slow,
        {STARTED: 1, f"{FINISHED}:timeout": 1, DEAD: 1},
        ["started", "dead"],
        options={"retry": NEVER, "timeout": "100ms"},
        state=JobState.DEAD,
    ),
    Case(
        "times out and undoes its steps",
        is_slow_and_undoes,
        {STARTED: 2, f"{FINISHED}:timeout": 1, DEAD: 1},
        ["started", "snoozed", "started", "dead"],
        options={"retry": NEVER, "timeout": "100ms"},
        state=JobState.DEAD,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_an_attempt_is_counted_by_its_outcome(case: Case, tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'w.db'}", poll="50ms")
    heard: list[str] = []

    @app.task(name="child")
    def child() -> None: ...

    CHILDREN.append(child)
    task = app.task(name="it", **case.options)(case.act)

    def hear(event: JobEvent) -> None:
        if event.task == "it" and event.kind != "enqueued":
            heard.append(event.kind)

    for kind in KINDS:
        app.on(kind, hear)
    job = task.using(**case.using).enqueue()
    time.sleep(0.005)
    app.run_worker(burst=True)
    assert job.refresh().state is case.state
    assert counted(app, "it") == case.counts
    assert heard == case.events
    app.close()


def test_a_job_that_is_given_back_counts_as_nothing(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'w.db'}", grace="50ms", kill_after="1s")
    is_running = asyncio.Event()
    heard: list[str] = []
    app.on("retrying", lambda event: heard.append(event.kind))

    @app.task(name="it")
    async def it() -> None:
        is_running.set()
        await asyncio.sleep(20)

    job = it.enqueue()

    async def stop_while_it_runs() -> None:
        async with app.worker():
            await is_running.wait()

    asyncio.run(stop_while_it_runs())
    assert job.refresh().state is JobState.READY
    assert counted(app, "it") == {}
    assert heard == []
    app.close()


def rescued(app: App, job: Job[Any], times: int) -> Tally:
    """Claim the job again and again for a worker whose lease is over; returns what was counted."""
    driver, tally = app.ready(), Tally("sweeper")
    rescuer = Rescuer(driver, 1.0, lambda: datetime.now(UTC), tally, app.runtime.events)
    for number in range(times):
        then = datetime.now(UTC) - timedelta(seconds=5)
        session = NewSession(
            id=f"s{number}", worker="w", host="h", pid=1, queues=("default",), tasks=("it",),
            slots=1, lease=timedelta(seconds=1), release="",
        )  # fmt: skip
        driver.run(driver.start_session(session, now=then))
        params = ClaimParams(session=session.id, token=f"token{number}", queues=("default",), limit=1)
        claims = driver.run(driver.claim(params))
        assert [claim.id for claim in claims] == [job.id]
        asyncio.run(rescuer.run_once())
    asyncio.run(RateWriter(driver, tally).run_once())
    return tally


def test_a_rescue_is_a_lost_attempt_and_too_many_are_a_death(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'w.db'}")
    heard: list[tuple[str, str | None]] = []
    app.on("dead", lambda event: heard.append((event.kind, event.reason)))

    @app.task(name="it")
    def it() -> None: ...

    job = it.enqueue()
    rescued(app, job, MAX_RESCUES)
    assert job.refresh().state is JobState.DEAD
    assert counted(app, "it") == {
        STARTED: MAX_RESCUES,
        f"{FINISHED}:lost": MAX_RESCUES,
        DEAD: 1,
    }
    assert heard == [("dead", job.record.reason)]
    app.close()


CRASHING = """
import os, signal
from pathlib import Path
import winch
app = winch.App("sqlite:///winch.db", poll="50ms", sweep="200ms")

@app.task(name="apart", isolate="process")
def apart() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

@app.task(name="inside")
def inside() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

def note(event: winch.JobEvent) -> None:
    with Path("events").open("a") as file:
        file.write(f"{event.task} {event.kind}\\n")

for kind in ("crashed", "dead"):
    app.on(kind, note)
"""


@pytest.mark.faults
@pytest.mark.parametrize("task", ["apart", "inside"])
def test_a_crash_is_a_lost_attempt_and_too_many_are_a_death(task: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(CRASHING)
    app = App(f"sqlite:///{tmp_path / 'winch.db'}")
    run = [sys.executable, "-m", "winch"]
    subprocess.run([*run, "enqueue", task, "-A", "shop:app"], cwd=tmp_path, check=True)
    subprocess.run([*run, "worker", "-A", "shop:app", "--burst"], cwd=tmp_path, check=True, timeout=120)
    [job] = app.jobs.list(limit=1)
    assert job.state is JobState.DEAD
    assert counted(app, task) == {
        STARTED: MAX_CRASHES,
        f"{FINISHED}:lost": MAX_CRASHES,
        DEAD: 1,
    }
    if task == "apart":
        # The process that holds the subscribers lives on. If it dies itself, there is no subscriber.
        heard = (tmp_path / "events").read_text().splitlines()
        assert heard == ["apart crashed"] * MAX_CRASHES + ["apart dead"]
    app.close()

"""Jobs in processes of their own: killable, replaceable, and blamed only for what they did."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine import isolated_app as tasks
from winch import App, Job, JobState
from winch.core.job import Failure
from winch.core.values.fingerprint import fingerprint
from winch.engine.base.exit_reason import describe_death


def run(body: Callable[[Any], Awaitable[None]], app: App = tasks.app, **options: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            async with app.worker(**options) as worker:
                await body(worker)

    asyncio.run(main())


async def until(job: Job[Any], *states: JobState) -> Job[Any]:
    while (await job.arefresh()).state not in states:  # noqa: ASYNC110  # a store has no event to wait on
        await asyncio.sleep(0.01)
    return job


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_isolated_jobs_run_elsewhere_and_reuse_their_process() -> None:
    async def body(_: Any) -> None:
        pids = [await (await tasks.where.aenqueue()) for _ in range(3)]
        assert len(set(pids)) == 1
        assert pids[0] != os.getpid()
        assert await (await tasks.where_async.aenqueue("at")) == f"at {pids[0]}"

    run(body, concurrency=1)


def test_outcomes_come_back_as_from_anywhere_else() -> None:
    async def body(_: Any) -> None:
        failed: Job[Any] = await tasks.fails.aenqueue()  # type: ignore[call-arg]  # ctx is injected
        record = (await until(failed, JobState.DEAD)).record
        assert [e.error.message for e in record.history if e.error] == ["attempt 1", "attempt 2"]
        discarded = await until(await tasks.discards.aenqueue(), JobState.DEAD)
        assert discarded.record.reason == "worthless"

    run(body, concurrency=1)


def test_an_isolated_handler_knows_its_worker() -> None:
    async def body(worker: Any) -> None:
        job: Job[str] = await tasks.whose.aenqueue()  # type: ignore[call-arg]  # ctx is injected
        assert await job == worker.session

    run(body, concurrency=1)


@pytest.mark.parametrize(
    "how, cause",
    [("SIGKILL", "killed by SIGKILL"), ("SIGSEGV", "killed by SIGSEGV"), ("exit", "exit code 7")],
)
def test_a_job_that_kills_its_process_is_dead_after_three_deaths(how: str, cause: str) -> None:
    async def body(_: Any) -> None:
        job = await until(await tasks.dies.aenqueue(how), JobState.DEAD)
        record = job.record
        assert [entry.what for entry in record.history] == ["crashed"] * 3
        assert record.crashes == 3
        assert record.reason == f"crashed 3 times; last cause: {cause}"

    run(body, concurrency=1)


CRASHING = """
import os, signal
import winch
app = winch.App("sqlite:///winch.db", poll="50ms", sweep="200ms", crash_limit=2)

@app.task(name="apart", isolate="process")
def apart() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

@app.task(name="inside")
def inside() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

@app.task(name="undone", isolate="process")
def undone(*, ctx: winch.Context) -> None:
    ctx.step(str, name="reserve", undo=lambda _: None)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.faults
@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("task", ["apart", "inside", "undone"])
def test_a_setting_limits_the_crashes_of_a_job(task: str, limit: int, tmp_path: Path) -> None:
    """`apart` dies in a process of its own, and the worker ends it; `inside` takes the worker's process
    with it, and the supervisor ends it; `undone` runs once more to undo its step."""
    (tmp_path / "shop.py").write_text(CRASHING)
    env = {name: value for name, value in os.environ.items() if not name.startswith("WINCH_")}
    if limit != 2:  # which the code sets
        env["WINCH_CRASH_LIMIT"] = str(limit)
    for command in (["enqueue", task, "-A", "shop:app"], ["worker", "-A", "shop:app", "--burst"]):
        subprocess.run(
            [sys.executable, "-m", "winch", *command], cwd=tmp_path, env=env, check=True, timeout=120
        )
    app = App(f"sqlite:///{tmp_path / 'winch.db'}")
    [job] = app.jobs.list(limit=1)
    record = job.record
    assert (record.state, record.crashes) == (JobState.DEAD, limit)
    ends = ["failed"] if task == "undone" else []
    assert [entry.what for entry in record.history] == ["crashed"] * limit + ends
    app.close()


def test_a_job_that_kills_its_process_is_undone_before_it_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINCH_URL", f"sqlite:///{tmp_path / 'store.db'}")
    from tests.engine import deadly_app

    did = tmp_path / "did"
    task: Any = deadly_app.checkout
    deadly_app.app.ready()

    async def body(_: Any) -> None:
        record = (await until(await task.aenqueue(str(did)), JobState.DEAD)).record
        assert [entry.what for entry in record.history] == ["crashed"] * 3 + ["failed"]
        assert (record.crashes, record.has_undo) == (3, False)
        assert record.reason == "crashed 3 times; last cause: killed by SIGKILL"
        # The same death as that of a job with nothing to undo: they are in one group.
        assert record.fingerprint == fingerprint(record.task, Failure("crashed", "killed by SIGKILL"))

    run(body, app=deadly_app.app, concurrency=1)
    assert did.read_text().split() == ["reserve", "charge", "refund", "release"]


def test_a_hanging_isolated_job_is_killed() -> None:
    async def body(worker: Any) -> None:
        job = await until(await tasks.hangs.aenqueue(), JobState.DEAD)
        assert job.record.error is not None
        assert job.record.error.type.endswith("JobTimeout")
        assert (job.record.attempt, job.record.crashes) == (1, 0)
        assert worker.why_retiring is None

    run(body, concurrency=1)


def test_no_process_is_left_behind(tmp_path: Path) -> None:
    mark = tmp_path / "pid"

    async def body(_: Any) -> None:
        await tasks.naps.aenqueue(60, str(mark))
        while not (mark.exists() and mark.read_text()):  # noqa: ASYNC110  # another process writes it
            await asyncio.sleep(0.01)

    run(body, concurrency=1)
    assert not is_alive(int(mark.read_text()))


def test_a_death_in_words() -> None:
    assert describe_death(-9) == "killed by SIGKILL"
    assert describe_death(-9, is_oom=True) == "out of memory (SIGKILL)"
    assert describe_death(-11) == "killed by SIGSEGV"
    assert describe_death(3) == "exit code 3"

"""A workflow on a real store, in a process that kills itself at a chosen statement.

    python -m tests.faults.workflow_app URL [PLACE]

Runs a worker until the workflow is final. PLACE counts the calls of the store that are not mere polling,
before and after each; at that one the process is killed by SIGKILL, as by somebody else.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from datetime import timedelta
from typing import Any

import winch
from winch.core.lifecycle import JobState
from winch.testing._life import POLLS

IS_RUN = __name__ == "__main__"
URL = sys.argv[1] if IS_RUN else "memory://"
PLACE = int(sys.argv[2]) if IS_RUN else 0
JOB = "019b76da-a800-7000-89e7-a54d87bdc1f7"

app = winch.App(URL)
passed = itertools.count(1)


def here() -> int:
    """One more place; the chosen one is the last."""
    place = next(passed)
    if place == PLACE:
        os.kill(os.getpid(), signal.SIGKILL)
    return place


def mark(tx: Any, name: str) -> str:
    # One spelling for both: there is nothing to quote in these names.
    tx.execute(f"INSERT INTO effect VALUES ('{name}')")
    here()
    return name


@app.task(name="pack")
def pack(line: int, *, ctx: winch.Context) -> str:
    ctx.step(mark, f"pack {line}", name="mark", transaction=True)
    return f"box {line}"


@app.task(name="checkout", retry=winch.Retry.fixed("10ms", attempts=2, jitter="none"))
def checkout(order: int, *, ctx: winch.Context) -> list[Any]:
    def undo(name: str) -> None:
        with app.client.driver().transaction() as conn:  # type: ignore[attr-defined]
            conn.execute(f"INSERT INTO effect VALUES ('undo {name}')")

    for name in ("reserve", "charge"):
        ctx.step(mark, name, name=name, transaction=True, undo=undo)
    approval = ctx.wait_for(f"approval:{order}", timeout="2d")
    ctx.step(mark, "invoice", name="invoice", transaction=True)
    ctx.sleep("50ms")
    boxes = ctx.gather(pack.bind(1), pack.bind(2))  # type: ignore[call-arg]
    for name in ("ship", "tell", "close"):
        ctx.step(mark, name, name=name, transaction=True)
    if order < 0:
        raise ConnectionError("the very end")
    return [approval, boxes]


def counted(driver: Any) -> None:
    """Have the driver count its calls."""
    run, arun, run_on = driver.run, driver.arun, driver.run_on

    def counting(verb: Any) -> Any:
        is_counted = verb.name not in POLLS
        if is_counted:
            here()
        answer = run(verb)
        if is_counted:
            here()
        return answer

    async def acounting(verb: Any) -> Any:
        is_counted = verb.name not in POLLS
        if is_counted:
            here()
        answer = await arun(verb)
        if is_counted or (verb.name == "claim" and answer):
            here()
        return answer

    def counting_on(conn: object, verb: Any) -> Any:  # inside the step's own transaction
        here()
        answer = run_on(conn, verb)
        here()
        return answer

    driver.run, driver.arun, driver.run_on = counting, acounting, counting_on


async def main() -> None:
    driver = app.client.driver()
    # What a supervisor does when it has reaped a child: its session is over at once, not after a lease.
    for session in driver.run(driver.sessions()):
        driver.run(driver.end_session(session.id))
    run = driver.run
    counted(driver)
    async with app.worker(queues=["default"], concurrency=2):
        for _ in range(600):
            [job] = run(driver.get([JOB]))
            if job is not None and job.state in (JobState.COMPLETED, JobState.DEAD):
                sys.stdout.write(f"{next(passed) - 1}\n")
                return
            await asyncio.sleep(timedelta(milliseconds=20).total_seconds())
    raise SystemExit("the workflow did not end")


if IS_RUN:
    asyncio.run(main())

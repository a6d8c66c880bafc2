"""A workflow on a real store, in a process that kills itself at a chosen statement.

    python -m tests.faults.workflow_app

Reads lines "URL PLACE" and forks a process for each: Winch is imported once. Answers "CODE PLACES".
The process runs a worker until the workflow is final. PLACE counts the calls of the store that are not
mere polling, before and after each; at that one the process kills itself with SIGKILL.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import traceback
from datetime import timedelta
from typing import Any

import winch
from winch.core.lifecycle import JobState
from winch.testing._life import POLLS

PLACE = 0
JOB = "019b76da-a800-7000-89e7-a54d87bdc1f7"

app = winch.App("memory://")
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


def made(url: str) -> winch.App:
    app = winch.App(url)

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

    return app


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


def begun(url: str, place: int) -> tuple[int, int]:
    """How a process ended that ran the workflow, and how many places it has passed. There is no thread
    and no connection yet where this is called, so that a fork is a fresh start."""
    global app, PLACE
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        code = 1
        try:
            os.dup2(writer, sys.stdout.fileno())
            app, PLACE = made(url), place
            asyncio.run(main())
            sys.stdout.flush()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        number = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), int(number or 0)


if __name__ == "__main__":
    for line in sys.stdin:
        url, number = line.split()
        code, places = begun(url, int(number))
        sys.stdout.write(f"{code} {places}\n")
        sys.stdout.flush()

"""The inside of an isolated process: it runs one job at a time for a worker, until the line ends."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable

import msgspec

from winch.core.errors import ConfigError, StorageError
from winch.core.outcome import Settled
from winch.engine.base.loops import EX_BROKEN, LoopEnded, Loops, log_ended
from winch.engine.observe.usage import resident_memory
from winch.engine.tasks.runtime import Runtime
from winch.engine.worker.attempt import Attempt
from winch.engine.worker.executor import Executor
from winch.engine.worker.monitors import NOTES_EVERY
from winch.engine.worker.running.choose import PLAIN, JobPlan
from winch.engine.worker.running.process import (
    ENV,
    MAX_MESSAGE,
    JobEnded,
    LifeSign,
    ProcessStart,
    ProcessStore,
    RunJob,
    StopJob,
    order_decoder,
)
from winch.engine.worker.running.threads import Threads
from winch.storage.params import ClaimRef
from winch.storage.protocol import Driver

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel end this process when its worker dies, also when a handler holds the GIL."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def from_env() -> tuple[socket.socket, ProcessStore]:
    """The line to the worker and the worker's store."""
    start = msgspec.json.decode(os.environ.pop(ENV), type=ProcessStart)
    os.set_inheritable(start.fd, False)
    return socket.socket(fileno=start.fd), start.store


async def serve(runtime: Runtime, line: socket.socket, store: Callable[[], Driver]) -> None:
    """RunJob what comes down the line; return when it ends."""
    line.setblocking(False)
    reader, writer = await asyncio.open_unix_connection(sock=line, limit=MAX_MESSAGE)
    threads = Threads(1, asyncio.get_running_loop())
    executor = Executor(runtime, threads, time.monotonic, random.Random(), store)  # noqa: S311  # jitter
    encode = msgspec.json.Encoder().encode
    runtime.is_isolated = True
    await runtime.start()
    loops = Loops(_broke)
    running: Attempt | None = None
    work: asyncio.Task[None] | None = None

    async def run(order: RunJob) -> None:
        nonlocal running
        claim, executor.worker = order.claim, order.worker
        plan = executor.chooser.plan(claim)
        settled: Settled | None
        is_finished = False
        if isinstance(plan, JobPlan):
            deadline = None if order.timeout is None else time.monotonic() + order.timeout
            running = attempt = Attempt(claim, deadline)
            if order.is_first:
                writer.write(encode(LifeSign()) + b"\n")  # from now on it is the handler's time
            reporting: asyncio.Task[None] | None = None
            if plan.way not in PLAIN:  # else it has no context to report with
                beat = plan.task.options.heartbeat
                every = NOTES_EVERY if beat is None else min(NOTES_EVERY, beat.total_seconds() / 4)
                reporting = loops.start("reports", _report(attempt, every, writer, store))
            settled = await executor.run_here(attempt, plan)
            running = None
            if reporting is not None:
                loops.cancel(reporting)
            is_finished = attempt.is_finished
        else:
            settled = plan
        memory = resident_memory() if order.weighs else 0
        writer.write(encode(JobEnded(settled, is_finished, memory)) + b"\n")
        await writer.drain()

    while True:
        order_line = await reader.readline()
        if not order_line.endswith(b"\n"):
            break
        match order_decoder.decode(order_line):
            case RunJob() as order:
                work = loops.start("job", run(order), may_return=lambda: True)
            case StopJob(why=why, is_silent=is_silent):
                if running is not None:
                    running.is_silent = is_silent
                    running.interrupt(why, time.monotonic())
    if work is not None and not work.done():
        os._exit(1)  # the worker is gone, and with it the claim
    await runtime.stop()


def _broke(ended: LoopEnded) -> None:
    """The worker sees that this process has died, and does not wait for its job for ever."""
    log_ended(ended, "This process ends")
    os._exit(EX_BROKEN)


async def _report(
    attempt: Attempt, every: float, writer: asyncio.StreamWriter, store: Callable[[], Driver]
) -> None:
    """Send signs of life to the worker and reports to the store while the handler runs."""
    signed_at = attempt.reports.signed_at
    while True:
        await asyncio.sleep(every)
        if attempt.reports.signed_at > signed_at:
            signed_at = attempt.reports.signed_at
            writer.write(msgspec.json.encode(LifeSign()) + b"\n")
        note = attempt.reports.take()
        if note is not None:
            # Progress is worth no failure, also where this process cannot reach the store (memory://).
            with contextlib.suppress(StorageError, ConfigError):
                driver, ref = store(), ClaimRef(attempt.claim.id, attempt.claim.token)
                await driver.arun(driver.note(ref, note))

"""One body of client logic, two front doors.

An operation is a generator that yields verbs (and pauses) and is sent their results. `run` drives it
for synchronous callers, `arun` for asynchronous ones; neither half is written twice.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from winch.storage.protocol import Driver
from winch.storage.verbs import Verb

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait this many seconds, before something is looked at again.

    A caller that is notified of the end of a job looks less often, and waits until then or for `most`.
    """

    seconds: float
    most: float = 0.0


@dataclass(frozen=True, slots=True)
class OnConnection:
    """Run the verb on the caller's own connection."""

    conn: object
    verb: Verb[Any]


@dataclass(frozen=True, slots=True)
class Blocking:
    """Call a function that waits for a disk or a server: in a thread if an event loop is running."""

    call: Callable[[], Any]


Operation = Generator[Verb[Any] | Sleep | OnConnection | Blocking, Any, T]


class RunOperation(Protocol):
    """How synchronous callers' operations are carried out."""

    def __call__(self, driver: Driver, operation: Operation[T], /) -> T: ...


class ARunOperation(Protocol):
    """How asynchronous callers' operations are carried out."""

    async def __call__(self, driver: Driver, operation: Operation[T], /) -> T: ...


def _sleep(pause: Sleep) -> None:
    time.sleep(pause.seconds)


def run(driver: Driver, operation: Operation[T], /, *, wait: Callable[[Sleep], None] = _sleep) -> T:
    answer: Any = None
    error: Exception | None = None
    while True:
        try:
            step = operation.throw(error) if error else operation.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
        answer, error = None, None
        try:
            if isinstance(step, Sleep):
                wait(step)
            elif isinstance(step, OnConnection):
                answer = driver.run_on(step.conn, step.verb)
            elif isinstance(step, Blocking):
                answer = step.call()
            else:
                answer = driver.run(step)
        except Exception as raised:  # handed to the operation, which decides
            error = raised


async def arun(
    driver: Driver,
    operation: Operation[T],
    /,
    *,
    wait: Callable[[Sleep], Awaitable[None]] | None = None,
) -> T:
    import asyncio  # a synchronous producer never needs it, and it is slow to import

    answer: Any = None
    error: Exception | None = None
    while True:
        try:
            step = operation.throw(error) if error else operation.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
        answer, error = None, None
        try:
            if isinstance(step, Sleep):
                await (asyncio.sleep(step.seconds) if wait is None else wait(step))
            elif isinstance(step, OnConnection):
                answer = await driver.arun_on(step.conn, step.verb)
            elif isinstance(step, Blocking):
                answer = await asyncio.to_thread(step.call)
            else:
                answer = await driver.arun(step)
        except Exception as raised:  # handed to the operation, which decides
            error = raised

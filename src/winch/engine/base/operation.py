"""One body of client logic, two front doors.

An operation is a generator that yields verbs (and pauses) and is sent their results. `run` drives it
for synchronous callers, `arun` for asynchronous ones; neither half is written twice.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from winch.core.errors import StorageUnavailable
from winch.storage.protocol import Driver
from winch.storage.verbs import Verb

T = TypeVar("T")

# The store is out of reach: about two seconds of trying.
PAUSES = (0.05, 0.15, 0.3, 0.6, 1.0)


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


def drive(
    plan: Generator[Any, Any, T],
    act: Callable[[Any], Any],
    catch: type[BaseException] = Exception,
) -> T:
    """Carry out a plan: `act` does each of its steps. The plan is sent the answer, or the error."""
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = plan.throw(error) if error is not None else plan.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
        answer, error = None, None
        try:
            answer = act(step)
        except catch as raised:  # handed to the plan, which decides
            error = raised


async def adrive(
    plan: Generator[Any, Any, T],
    act: Callable[[Any], Awaitable[Any]],
    catch: type[BaseException] = Exception,
) -> T:
    """`drive` on an event loop."""
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = plan.throw(error) if error is not None else plan.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
        answer, error = None, None
        try:
            answer = await act(step)
        except catch as raised:
            error = raised


def run(driver: Driver, operation: Operation[T], /, *, wait: Callable[[Sleep], None] = _sleep) -> T:
    def act(step: Any) -> Any:
        if isinstance(step, Sleep):
            return wait(step)
        if isinstance(step, OnConnection):
            return driver.run_on(step.conn, step.verb)
        return step.call() if isinstance(step, Blocking) else driver.run(step)

    return drive(operation, act)


async def arun(
    driver: Driver,
    operation: Operation[T],
    /,
    *,
    wait: Callable[[Sleep], Awaitable[None]] | None = None,
) -> T:
    import asyncio  # a synchronous producer never needs it, and it is slow to import

    async def act(step: Any) -> Any:
        if isinstance(step, Sleep):
            return await (asyncio.sleep(step.seconds) if wait is None else wait(step))
        if isinstance(step, OnConnection):
            return await driver.arun_on(step.conn, step.verb)
        if isinstance(step, Blocking):
            return await asyncio.to_thread(step.call)
        return await driver.arun(step)

    return await adrive(operation, act)


def until_answered(call: Callable[[bool], Operation[T]]) -> Operation[tuple[T, bool]]:
    """Carry out `call(is_repeat)` until the store answers, for about two seconds; then the caller
    decides. `is_repeat`, which is returned too: a try before this one may have taken effect."""
    is_repeat = False
    for pause in PAUSES:
        try:
            return (yield from call(is_repeat)), is_repeat
        except StorageUnavailable as error:
            is_repeat = is_repeat or error.maybe_applied
            yield Sleep(pause)
    return (yield from call(is_repeat)), is_repeat

"""Handlers while they run: how each kind is interrupted and given up, and how a coroutine is stepped."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import types
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any

from winch.core.errors import JobCancelled, JobTimeout
from winch.engine.worker.attempt import Attempt, Handler, Interrupt
from winch.engine.worker.running.threads import ThreadCall, Threads


class OnLoop:
    """A coroutine that is stepped by a runner of this loop."""

    leaves_a_thread = False

    def __init__(self, runner: asyncio.Task[Any] | None) -> None:
        assert runner is not None  # noqa: S101  # a coroutine runs in a task
        self.runner: asyncio.Task[Any] = runner

    async def absorb(self) -> None:
        """Take a cancellation that came when nothing could be cancelled any more."""
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        uncancel()

    def interrupt(self, why: Interrupt) -> None:
        self.runner.cancel()

    def give_up(self) -> bool:
        return False


class InThread:
    """A function that runs in a thread."""

    leaves_a_thread = True

    def __init__(self, call: ThreadCall, threads: Threads) -> None:
        self._call = call
        self._threads = threads

    def interrupt(self, why: Interrupt) -> None:
        self._call.interrupt(JobTimeout if why is Interrupt.TIMEOUT else JobCancelled)

    def give_up(self) -> bool:
        self._threads.give_up(self._call)
        return True


class Together:
    """The one handler of many attempts. They are interrupted together, so one of them speaks for all."""

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        self.handler: Handler | None = None
        self._is_given_up = False
        for attempt in attempts:
            attempt.handler = _Member(self, is_speaker=attempt is attempts[0])

    def give_up(self) -> bool:
        if self.handler is None:
            return False
        if not self._is_given_up:
            self._is_given_up = self.handler.give_up()
        return self._is_given_up


class _Member:
    """One attempt's part in a collecting call."""

    def __init__(self, together: Together, *, is_speaker: bool) -> None:
        self._together = together
        self._is_speaker = is_speaker

    def interrupt(self, why: Interrupt) -> None:
        if self._is_speaker and self._together.handler is not None:
            self._together.handler.interrupt(why)

    def give_up(self) -> bool:
        return self._together.give_up()

    @property
    def leaves_a_thread(self) -> bool:
        return self._together.handler is not None and self._together.handler.leaves_a_thread


class Paused:
    """A coroutine that has come to its first wait, with the context it runs in."""

    __slots__ = ("handler", "run", "step")

    def __init__(self, handler: Coroutine[Any, Any, Any], run: Callable[..., Any], step: Any) -> None:
        self.handler: Coroutine[Any, Any, Any] = handler
        self.run: Callable[..., Any] = run
        self.step: Any = step


@types.coroutine
def in_own_context(handler: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Drive a handler's coroutine with context variables of its own, without a task of its own.

    A task per job would cost several times what a short job does; stepping the coroutine inside a
    copied context gives the same isolation.
    """
    run = contextvars.copy_context().run
    try:
        step = run(handler.send, None)
    except StopIteration as stop:
        return stop.value
    return (yield from _onward(Paused(handler, run, step)))


@types.coroutine
def resumed(paused: Paused) -> Generator[Any, Any, Any]:
    """Drive a handler's coroutine onward from its first wait to its end."""
    return (yield from _onward(paused))


def _onward(paused: Paused) -> Generator[Any, Any, Any]:
    handler, run, step = paused.handler, paused.run, paused.step
    while True:
        value: Any = None
        error: BaseException | None = None
        try:
            value = yield step
        except BaseException as raised:  # cancellation included: it is the handler's to see
            error = raised
        try:
            step = run(handler.send, value) if error is None else run(handler.throw, error)
        except StopIteration as stop:
            return stop.value


def uncancel() -> None:
    """The cancellation was for the handler; the runner that carries it lives on."""
    runner = asyncio.current_task()
    while runner is not None and runner.cancelling():
        runner.uncancel()

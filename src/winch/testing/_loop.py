"""An event loop whose time is virtual: it never waits for a timer, it moves its clock to it.

Nothing else is changed: tasks, futures, timeouts and sleeps are asyncio's own, so whatever runs here
does not notice, except that a day takes milliseconds. When nothing is ready and no timer is due the loop
is idle, and the one place where asyncio would wait (its selector) moves the clock instead.

Between two moments at which something happens, a worker polls: many times a second, day and night,
and finds nothing. The loop asks (`outlook`) how long that will go on and leaps over it. The timers
that have come due meanwhile then fire once, in their order, as after a laptop's lid was opened.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from winch.core.values.duration import Duration
from winch.engine.base.service import polling
from winch.testing._life import life_of

NEVER = float("inf")
# A handler with a real socket or thread gets this much real time before the virtual clock moves on.
IO_GRACE = 0.01
THREAD_GRACE = 0.05


class VirtualClock:
    """Time that moves only on request; in whole microseconds, so that it never rounds."""

    def __init__(self, start: datetime, advance: Callable[[Duration], None]) -> None:
        self._start = start
        self._micros = 0
        self._advance = advance

    def now(self) -> datetime:
        return self._start + timedelta(microseconds=self._micros)

    def time(self) -> float:
        return self.now().timestamp()

    def monotonic(self) -> float:
        return self._micros / 1_000_000

    def advance(self, by: Duration) -> None:
        """Let this much time pass and run everything that comes due in it, in order."""
        self._advance(by)

    def jump(self, by: timedelta) -> None:
        """Set the wall clock forward or back, as an operator does. No time passes by it."""
        self._start += by

    def seconds_at(self, moment: datetime) -> float:
        """The monotonic reading at this moment."""
        return (moment - self._start) / timedelta(seconds=1)

    def move_to(self, seconds: float) -> None:
        self._micros = max(self._micros, round(seconds * 1_000_000))


@dataclass(frozen=True)
class Outlook:
    """The moment until which nothing happens by itself, and the services whose passes count even so."""

    still_until: float
    awake: frozenset[str] = frozenset()


class _Selector(selectors.DefaultSelector):
    """Waits for nothing; asks what to do instead."""

    idle: Callable[[], float | None] = staticmethod(lambda: None)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        # Beside the loop's own pipe there is a real socket: its answer may be on its way.
        if len(self.get_map()) > 1 and (ready := super().select(IO_GRACE)):
            return ready
        return super().select(self.idle())


class VirtualLoop(asyncio.SelectorEventLoop):
    """asyncio's loop on a virtual clock.

    It runs only inside `run_to`: until the clock has reached a moment and everything due by then is
    done, or until the world has nothing left to wait for.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._horizon = NEVER
        self._is_enough: Callable[[], bool] = lambda: False
        self._reached: asyncio.Future[None] | None = None
        self._outside = 0
        self.outlook: Callable[[], Outlook] = lambda: Outlook(0.0)
        selector = _Selector()
        super().__init__(selector)
        # The clock counts whole microseconds; a timer within one of them is due.
        self._clock_resolution = 1e-6
        selector.idle = self._idle

    def time(self) -> float:
        return self._clock.monotonic()

    # -- driving -----------------------------------------------------------------------------------

    def run_to(self, horizon: float, is_enough: Callable[[], bool] = lambda: False) -> None:
        """Run everything up to this moment, itself included; stop early when it is enough."""
        self._horizon, self._is_enough = horizon, is_enough
        self._reached = self.create_future()
        try:
            self.run_until_complete(self._reached)
        finally:
            self._reached, self._horizon = None, NEVER

    def _idle(self) -> float | None:
        """Nothing is ready: move the clock. Returns how long to wait, in real seconds, for real I/O."""
        timers: list[Any] = self._scheduled  # type: ignore[attr-defined]  # asyncio's heap of timers
        if self._outside:
            return THREAD_GRACE  # a thread works for a handler: virtual time waits for it
        if self._reached is not None and (self._reached.done() or self._is_enough()):
            return self._enough()
        following = timers[0].when() if timers else NEVER
        if self._reached is None:
            if following == NEVER:
                return None  # nothing but real I/O can end this
            self._clock.move_to(following)
            return 0
        if following > self._horizon:
            self._clock.move_to(self._horizon)
            return self._enough()
        goal = max(following, self._leap(timers))
        self._clock.move_to(min(goal, self._horizon))
        return 0

    def _enough(self) -> float:
        if self._reached is not None and not self._reached.done():
            self._reached.set_result(None)
        return 0

    def _leap(self, timers: list[Any]) -> float:
        """The next moment at which more happens than a poll in vain."""
        outlook = self.outlook()
        goal = outlook.still_until
        for timer in timers:
            if timer.when() < goal and not timer.cancelled():
                service = timer._context.get(polling, "")
                if not service or service in outlook.awake:
                    goal = timer.when()
        return goal

    # -- what runs here ----------------------------------------------------------------------------

    def create_task(
        self, coro: Any, *, name: object = None, context: Context | None = None, **more: Any
    ) -> asyncio.Task[Any]:
        """A task; one that is started by a mortal worker ends with it."""
        context = copy_context() if context is None else context
        life = life_of(context)
        mortal = coro if life is None else life.mortal(coro)
        task = super().create_task(mortal, name=name, context=context, **more)
        if life is not None:
            life.tasks.append(task)
        return task

    def run_in_executor(  # type: ignore[override]  # the same call, less precisely typed
        self, executor: Any, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = super().run_in_executor(executor, func, *args)
        self._outside += 1
        future.add_done_callback(self._back)
        return future

    def _back(self, _: asyncio.Future[Any]) -> None:
        self._outside -= 1


def has_running_loop() -> bool:
    """Whether an event loop runs in this thread. Callers go on outside of an `except` block, so that the
    RuntimeError for none does not become the context of what handlers raise."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True

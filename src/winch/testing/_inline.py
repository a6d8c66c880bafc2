"""`inline(app)`: an enqueue runs its job at once, for quick tests of what surrounds it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
import threading
from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from typing import Any, TypeVar

from winch.app import App
from winch.core.job import Claim
from winch.core.values.clock import Clock
from winch.core.values.ids import random_id
from winch.drivers.memory import MemoryDriver
from winch.engine.base import operation
from winch.engine.base.operation import Operation, Sleep
from winch.engine.client.client import Surroundings
from winch.engine.tasks.context import Context
from winch.engine.tasks.events import kind_of
from winch.engine.tasks.middleware import Middleware
from winch.engine.worker.attempt import Attempt
from winch.engine.worker.executor import Executor
from winch.engine.worker.running.choose import JobPlan
from winch.storage.decide.settled import as_finish
from winch.storage.params import ClaimParams, ClaimRef, NewSession
from winch.storage.protocol import Driver
from winch.testing._crew import InlineThreads, own_runtime
from winch.testing._loop import has_running_loop

T = TypeVar("T")

# A handler that enqueues itself would go on for ever.
MOST_JOBS = 10_000


@contextlib.contextmanager
def inline(app: App, *, raises: bool = True) -> Iterator[None]:
    """Run every job that is enqueued in this block at once, before its enqueue returns.

        with inline(app):
            signup("ann@example.org")           # enqueues send_welcome, which has run when this returns

    The app's store is a new one in memory for the length of the block. Arguments are packed and
    unpacked, the context is injected, hooks are called and the outcome is stored, as in a worker. What
    a handler raises is raised by the enqueue, unless `raises` is False; then look at the job's state.

    A job that a handler enqueues runs after that handler has ended. A failed job is not tried again, a
    delayed one waits for ever, and timeouts are not watched: `virtual` has all of that.
    """
    bench = _Bench(app, raises)
    surroundings = Surroundings(clock=app.clock, run=bench.run, arun=bench.arun)
    with app.standing_in(bench.store, surroundings):
        try:
            yield
        finally:
            bench.close()


class _Catch(Middleware):
    """The outermost hook: keeps what the attempt raised."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    async def run(self, ctx: Context, call_next: Callable[[], Any]) -> Any:
        self.error = None
        try:
            return await call_next()
        except BaseException as error:
            self.error = error
            raise


class _Bench:
    """Claims, runs and finishes in the caller what the caller has enqueued."""

    def __init__(self, app: App, raises: bool) -> None:
        self.store = _Store(app.clock)
        self._app = app
        self._clock = app.clock
        self._raises = raises
        self._runtime = own_runtime(app.runtime)
        self._catch = _Catch()
        self._loop = asyncio.new_event_loop()
        self._executor = Executor(
            self._runtime,
            InlineThreads(self._loop),
            self._clock.monotonic,
            random.Random(),
            lambda: self.store,
        )
        self._session = self.store.start()
        self._is_busy = False
        self._has_resources = False

    # -- what the client calls ---------------------------------------------------------------------

    def run(self, driver: Driver, asked: Operation[T], /) -> T:
        answer = operation.run(driver, asked, wait=self._refuse)
        if self._has_work:
            self._complain(_here(self._loop, self._work()))
        return answer

    async def arun(self, driver: Driver, asked: Operation[T], /) -> T:
        answer = await operation.arun(driver, asked, wait=self._arefuse)
        if self._has_work:
            self._complain(await self._work())
        return answer

    def _refuse(self, _: Sleep) -> None:
        raise RuntimeError(
            "in inline mode nothing happens while you wait: the job is not final and will not be. "
            "Is it delayed, or has it failed? winch.testing.virtual runs retries and delays"
        )

    async def _arefuse(self, pause: Sleep) -> None:
        self._refuse(pause)

    def _complain(self, error: BaseException | None) -> None:
        if error is not None and self._raises:
            raise error

    # -- running -----------------------------------------------------------------------------------

    @property
    def _has_work(self) -> bool:
        # What a handler enqueues waits until the handler has ended, as it would for a worker.
        return not self._is_busy and self.store.has_ready

    async def _work(self) -> BaseException | None:
        """Run what is ready and what that makes ready; returns the first error."""
        first: BaseException | None = None
        self._is_busy = True
        try:
            await self._make_resources()
            for _ in range(MOST_JOBS):
                claim = self.store.take(self._session, self._app.tasks.names)
                if claim is None:
                    return first
                error = await self._attempt(claim)
                first = first or error
        finally:
            self._is_busy = False
        raise RuntimeError(
            f"{MOST_JOBS} jobs have run and there are still more: does one enqueue itself?"
        )

    async def _attempt(self, claim: Claim) -> BaseException | None:
        self._runtime.middleware = [self._catch, *self._app.runtime.middleware]
        self._catch.error = None
        began = self._clock.monotonic()
        plan = self._executor.chooser.plan(claim)
        settled = plan
        if isinstance(plan, JobPlan):
            limit = None if plan.timeout is None else began + plan.timeout.total_seconds()
            self._runtime.events.send("started", claim)
            attempt = Attempt(claim, limit)
            ended = await self._executor.run_here(attempt, plan)
            note = attempt.reports.take()
            if note is not None:
                self.store.run(self.store.note(ClaimRef(claim.id, claim.token), note))
            if ended is None:
                return None
            settled = ended
        if isinstance(settled, JobPlan):  # pragma: no cover  # one of the two above
            raise AssertionError
        self._runtime.events.send(kind_of(settled.to), claim, error=settled.error, reason=settled.reason)
        self.store.run(self.store.finish([as_finish(settled, claim.id, claim.token)]))
        # RetryAfter, Discard and the like are chosen outcomes, not errors of the code under test.
        return self._catch.error if settled.what == "failed" and _is_error(self._catch.error) else None

    async def _make_resources(self) -> None:
        if not self._has_resources:
            self._has_resources = True
            await self._runtime.start()

    def close(self) -> None:
        try:
            if self._has_resources:
                _here(self._loop, self._runtime.stop())
        finally:
            self._loop.close()


class _Store(MemoryDriver):
    """One session that may claim from every queue."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)

    def start(self) -> str:
        session = NewSession(
            id=random_id(random.randbytes(16)),
            worker="inline",
            host="",
            pid=0,
            release="",
            queues=(),
            tasks=(),
            slots=1,
            lease=timedelta(days=365),  # no heartbeat extends it, and nothing rescues
        )
        self.run(self.start_session(session))
        return session.id

    @property
    def has_ready(self) -> bool:
        return bool(self._state.keys)

    def take(self, session: str, tasks: tuple[str, ...]) -> Claim | None:
        queues = tuple(sorted({job.queue for job in self._state.live.values()}))
        params = ClaimParams(
            session=session, token=random_id(random.randbytes(16)), queues=queues, limit=1, tasks=tasks
        )
        claims = self.run(self.claim(params))
        return claims[0] if claims else None


def _is_error(error: BaseException | None) -> bool:
    from winch.core.outcome import Directive

    return error is not None and not isinstance(error, Directive)


def _here(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Carry out `work` before returning, whether or not an event loop runs in this thread."""
    if not has_running_loop():
        return loop.run_until_complete(work)
    # A loop cannot run inside another one: the work gets a thread, and this one waits for it.
    ended: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            ended.append(loop.run_until_complete(work))
        except BaseException as error:  # raised again where it is waited for
            errors.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name="winch-inline")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return ended[0]

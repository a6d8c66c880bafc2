"""A worker child: one Worker under the eyes of a supervisor that holds no user code."""

from __future__ import annotations

import asyncio
import faulthandler
import signal
import sys
import time

from winch.engine.base.log import log
from winch.engine.base.loops import EX_BROKEN, LoopEnded, Loops, threads_watched, watch_tasks
from winch.engine.base.settings import Settings
from winch.engine.supervisor.forking import ForkGuard
from winch.engine.supervisor.messages import (
    Counted,
    Drain,
    Drained,
    DumpStacks,
    Hello,
    LeaseOver,
    Link,
    Quiet,
    Retire,
    Retiring,
    SessionBegan,
    SessionLost,
    Stacks,
)
from winch.engine.tasks.runtime import Runtime
from winch.engine.worker.announce import announce
from winch.engine.worker.config import WorkerConfig
from winch.engine.worker.running.process import EX_IMPORT, IsolationFailed
from winch.engine.worker.stacks import stacks_text
from winch.engine.worker.started_jobs import StartedJobs
from winch.engine.worker.worker import Worker
from winch.storage.protocol import Driver

EX_LEFT = 70  # claims were left to their leases


class Child:
    """Runs until it has to drain, until the burst is over, or until its supervisor is gone."""

    def __init__(
        self,
        driver: Driver,
        runtime: Runtime,
        settings: Settings,
        config: WorkerConfig,
        started: StartedJobs,
        *,
        announces: int = 0,
    ) -> None:
        self._announces = announces
        self._driver = driver
        self._settings = settings
        self._asked = asyncio.Event()
        self._end_by = float("inf")
        self._started = started
        self.worker: Worker = Worker(driver, runtime, config, started=started, on_session=self._began)
        self._loops = Loops(self.worker.broke)
        self.worker.tally.on_rates = lambda rates: self._link.send(Counted(rates))

    def _began(self, session: str) -> None:
        self._link.send(SessionBegan(session))
        started = self.worker.started()
        self._link.send(started)
        if self._announces:  # here, and not in the supervisor: the line comes before the first job's
            app, store = self._settings.app or "an app", self._driver.describe()
            announce(started, app=app, store=store, processes=self._announces)
            self._announces = 0

    async def run(self, link: Link) -> int:
        """The child's whole life; returns its exit code."""
        self._link = link
        settings = self._settings
        link.send(
            Hello(
                settings.url,
                settings.schema,
                settings.events == "full",
                settings.lease.total_seconds(),
                settings.heartbeat.total_seconds(),
                settings.sweep.total_seconds(),
                settings.poll.total_seconds(),
                settings.grace.total_seconds(),
                settings.crash_rule,
                settings.misfire_deadline,
            )
        )
        self._started.pulse()
        watch_tasks(self.worker.broke)
        with threads_watched(self.worker.broke):
            try:
                return await self._live(link)
            except LoopEnded:  # while it started; it has been logged
                return EX_BROKEN

    async def _live(self, link: Link) -> int:
        # From the start: a message may make it quiet before it claims.
        self._loops.start("link", self._listen(), may_return=lambda: True)
        await self._start()
        # A service manager may signal every process of the group, not only the supervisor.
        grace = self._settings.grace.total_seconds()
        ForkGuard([signal.SIGTERM])
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._terminated, grace)
        ends = [
            asyncio.create_task(self._asked.wait(), name="winch asked"),
            asyncio.create_task(self.worker.drained.wait(), name="winch drained"),
        ]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        left = await self._drain(grace)
        for task in ends:
            task.cancel()
        await self._loops.stop()
        if self.worker.broken is None:
            link.send(Drained(left))
        await self._driver.aclose()
        broken = self.worker.broken
        if broken is not None:
            is_import = isinstance(broken, IsolationFailed) and broken.is_import_error
            return EX_IMPORT if is_import else EX_BROKEN
        return EX_LEFT if left else 0

    async def _start(self) -> None:
        """Start the worker, unless one of its loops ends meanwhile."""
        starting = asyncio.ensure_future(self.worker.start())
        drained = asyncio.ensure_future(self.worker.drained.wait())
        await asyncio.wait([starting, drained], return_when=asyncio.FIRST_COMPLETED)
        drained.cancel()
        if starting.done():
            starting.result()
        elif self.worker.broken is not None:
            starting.cancel()
            raise self.worker.broken
        else:  # it is to be replaced already
            await starting

    async def _drain(self, grace: float) -> int:
        """Stop as requested; or, without a request, be replaced, and let running jobs take their
        time."""
        why = self.worker.why_retiring
        if why is not None and not self._asked.is_set():
            self._link.send(Retiring(why))
            grace = self.worker.time_needed(grace)
        elif self._asked.is_set():
            grace = self._end_by - time.monotonic()  # longer than usual where the request is a drain
        return await self.worker.drain(max(min(grace, self._end_by - time.monotonic()), 0.0))

    async def _listen(self) -> None:
        async for message in self._link.messages():
            match message:
                case Drain(grace=grace):
                    self._ask(grace)
                case Retire(why=why):
                    self.worker.retire(why)
                case Quiet(is_quiet=is_quiet):
                    self.worker.quiet(is_quiet or self._asked.is_set())
                case SessionLost(session=session):
                    # In the background: with the store out of reach this lasts, and a stop may come.
                    self._loops.start(
                        "session", self.worker.session_lost(session), may_return=lambda: True
                    )
                case LeaseOver():
                    self.worker.lease_over()
                case DumpStacks(number=None):
                    self._dump()
                case DumpStacks(number=int(number)):
                    self._link.send(Stacks(number, stacks_text(self.worker.attempts)))
                case _:
                    log.error("unexpected message from the supervisor: %r", message)
        # This session gets no more beats: end well within what is left of its lease.
        log.error("the supervisor is gone; stopping")
        self._ask(min(self._settings.grace.total_seconds(), self._settings.lease.total_seconds() / 3))

    def _terminated(self, grace: float) -> None:
        if not self._asked.is_set():
            log.warning("SIGTERM was sent to this process, not to its supervisor: it drains and ends")
        self._ask(grace)

    def _ask(self, grace: float) -> None:
        self._end_by = min(self._end_by, time.monotonic() + grace)
        # A second request, or one that comes while it retires, may leave less time than the first.
        self.worker.end_by(self._end_by)
        self._asked.set()
        # Also where it has not started yet: a claim that is made only to be given back is one too many.
        self.worker.quiet(True)

    def _dump(self) -> None:
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        for attempt in self.worker.attempts:
            claim = attempt.claim
            log.info("running: job %s (%s) attempt %d", claim.id, claim.task, claim.attempt)


def ignore_terminal_signals() -> None:
    """Ctrl-C reaches the whole group; only the supervisor decides what it means."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("SIGTSTP", "SIGTTIN", "SIGUSR1", "SIGUSR2", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)

"""The parent process: keeps children running, beats for them, and finds the job that caused a crash.

Because no user code runs here, nothing a handler does can keep the heart from beating or a sweep
from happening. The supervisor learns where the store is from its first child's greeting: importing
the application to find out would bring user code in.

A child that dies is reaped at once; its page of started jobs shows which ones had started. Those are
suspects, and the same verb ends the session in the store, so that its jobs run again immediately, not
after the lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shlex
import time
from collections.abc import AsyncIterator, Callable, Sequence

from winch.core.errors import ConfigError, StorageError
from winch.core.job import CRASH_RULE
from winch.core.lifecycle import JobState
from winch.engine.base import operation
from winch.engine.base.log import log
from winch.engine.base.loops import EX_BROKEN, LoopEnded, Loops, log_ended, threads_watched, watch_tasks
from winch.engine.base.service import Backoff, Service
from winch.engine.maintenance.promoter import Promoter
from winch.engine.maintenance.pruner import Pruner
from winch.engine.maintenance.rescuer import Rescuer
from winch.engine.maintenance.ticker import Ticker
from winch.engine.observe.store_ends import count_store_ends
from winch.engine.observe.store_timing import watch
from winch.engine.observe.throughput import RateWriter, Tally
from winch.engine.observe.worker_metrics import WorkerMetrics
from winch.engine.supervisor.child_process import (
    EX_LEFT,
    HOPELESS,
    QUICK_DEATH,
    ChildProcess,
    Restarts,
    start_child,
)
from winch.engine.supervisor.commands import STACKS_WITHIN, WorkerCommands
from winch.engine.supervisor.heartbeat import Heart, Leases
from winch.engine.supervisor.kills import Kills, Pulses
from winch.engine.supervisor.messages import (
    Counted,
    Drain,
    Drained,
    DumpStacks,
    Hello,
    LeaseOver,
    Quiet,
    Retire,
    Retiring,
    SessionBegan,
    SessionLost,
    Stacks,
)
from winch.engine.supervisor.signals import handle_signals
from winch.engine.worker.announce import WorkerStarted, summarize, warn_of_unserved
from winch.storage.crash_report import CrashReport
from winch.storage.params import ClaimRef
from winch.storage.protocol import Driver

KILL_AFTER = 10.0
DEFAULT_GRACE = 30.0  # for a stop that comes before the first child has greeted
SETTLE = 5.0
_numbers = itertools.count(1)


class Supervisor:
    """Keeps `processes` children running until it has to stop."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        processes: int,
        slots: int,
        grace: float | None,
        burst: bool,
        replaces: bool = True,
        connect: Callable[[Hello], Driver],
        changes: Callable[[], AsyncIterator[str]] | None = None,
        metrics: WorkerMetrics | None = None,
        more: Callable[[Driver], Sequence[Service]] = lambda _: (),
    ) -> None:
        self._id = os.urandom(8).hex()
        self._command = list(command)
        self._processes = processes
        self._slots = slots
        self._grace = grace
        self._burst = burst
        self._replaces = replaces
        self._connect = connect
        self._changes = changes
        self._more = more
        self._has_started = False
        self._checking: asyncio.Task[None] | None = None
        self.metrics: WorkerMetrics = metrics or WorkerMetrics()
        self.metrics.running = lambda: (
            len(child.started.started()) for child in self._children.values() if child.sessions
        )
        self.metrics.held = lambda: sum(len(one.started.kept()) for one in self._children.values())
        self._is_changed = asyncio.Event()
        self._is_quiet = False
        self._crash_rule = CRASH_RULE  # until a child's greeting brings that of the app
        self._children: dict[int, ChildProcess] = {}
        self._kills = Kills(self._children, self.metrics)
        self._restarts = Restarts()
        self._tending: set[asyncio.Task[None]] = set()
        self._driver: Driver | None = None
        self._heart: Heart | None = None
        self._commands: WorkerCommands | None = None
        self._asked_stacks: dict[int, asyncio.Future[str]] = {}
        self._services: list[Service] = []
        self._loops = Loops(self._broke)
        self._stopping = asyncio.Event()
        self._left = 0
        self._code = 0
        self._tally = Tally(os.urandom(8).hex())
        self._tally.on_rates = self.metrics.counters.add
        self._rates: RateWriter | None = None

    async def run(self) -> int:
        """Run until stopped; returns the exit code."""
        handle_signals(self)
        watch_tasks(self._broke)
        with threads_watched(self._broke):
            return await self._supervise()

    async def _supervise(self) -> int:
        began = time.monotonic()
        for number in range(self._processes):
            self._spawn_soon(number, 0.0)
        self._loops.start("watch", self._kills.watch())
        if self._changes is not None:
            self._loops.start("reload", self._reload(self._changes))
        while self._tending:
            await asyncio.wait(self._tending, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)  # a tended child's callback may have begun another
        for service in self._services:
            service.stop()
        if self._commands is not None:
            await self._commands.flush()
        await self._write_rates()
        if self._checking is not None:
            if self._burst:
                await self._checking
            self._checking.cancel()
        await self._loops.stop()
        if self._burst and self._driver is not None:
            summarize(self.metrics.counters.total, time.monotonic() - began)
        if self._driver is not None:
            await self._driver.aclose()
        return self._code or (EX_LEFT if self._left else 0)

    async def _write_rates(self) -> None:
        """Write the counts of the last seconds before the process ends."""
        if self._rates is not None:
            with contextlib.suppress(StorageError, TimeoutError):  # numbers, not jobs
                async with asyncio.timeout(2.0):
                    await self._rates.run_once()

    # -- what signals and commands do --------------------------------------------------------------

    @property
    def grace(self) -> float:
        return DEFAULT_GRACE if self._grace is None else self._grace

    def stop(self, grace: float) -> None:
        self._stopping.set()
        self.metrics.is_stopping = True
        self._kills.stop_by = min(self._kills.stop_by, time.monotonic() + grace + KILL_AFTER)
        for child in self._children.values():
            child.is_ending = True
        self._send(Drain(grace))

    def quiet(self, is_quiet: bool) -> None:
        self._is_quiet = self.metrics.is_quiet = is_quiet  # children that follow get it, too
        self._send(Quiet(is_quiet))

    def dump_stacks(self) -> None:
        self._send(DumpStacks())

    async def stacks(self, session: str) -> str:
        child = next((one for one in self._children.values() if session in one.sessions), None)
        if child is None:
            raise ConfigError("the process has ended")
        number = next(_numbers)
        asked: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._asked_stacks[number] = asked
        child.link.send(DumpStacks(number))
        try:
            async with asyncio.timeout(STACKS_WITHIN if child.is_turning else 0.0):
                return await asked
        except TimeoutError:
            return await child.stacks_without_loop()
        finally:
            del self._asked_stacks[number]

    def configure(self, changed: Sequence[str]) -> str:
        """Replace the children by some with these settings; running jobs end in the old ones."""
        if self._burst or self._stopping.is_set():
            raise ConfigError("a worker that is about to end keeps its settings")
        # The last of an option counts.
        self._command = [*self._command, *changed]
        what = shlex.join(changed)
        self._send(Retire(f"an operator has set {what}"))
        them = "process by one" if self._processes == 1 else f"{self._processes} processes by some"
        return f"replaces its {them} with {what}"

    def _send(self, message: Drain | Retire | Quiet | DumpStacks) -> None:
        for child in self._children.values():
            child.link.send(message)

    def _broke(self, ended: LoopEnded) -> None:
        """A loop has ended that should not have: stop the children, and let a new process take over."""
        if self._code == EX_BROKEN:
            return
        log_ended(ended, "The supervisor stops its children and exits")
        self._code = EX_BROKEN
        self.stop(self.grace)
        # The loop that ended may be the one that kills those that do not stop.
        asyncio.get_running_loop().call_later(self.grace + KILL_AFTER + 1.0, self._kills.kill_all)

    # -- children ----------------------------------------------------------------------------------

    def _spawn_soon(self, number: int, delay: float) -> None:
        tending = self._tend(number, delay)
        task = self._loops.start(f"child {number}", tending, may_return=lambda: True)
        self._tending.add(task)
        task.add_done_callback(self._tending.discard)

    async def _tend(self, number: int, delay: float) -> None:
        """One child from birth to burial."""
        if delay:
            waits = [asyncio.ensure_future(event.wait()) for event in (self._stopping, self._is_changed)]
            await asyncio.wait(waits, timeout=delay, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
        if self._stopping.is_set():
            return
        try:
            child = await self._spawn(number)
        except OSError as error:
            log.error("a child cannot be started, trying again: %s", error)
            self._spawn_soon(number, QUICK_DEATH)
            return
        listening = self._loops.start(f"link {number}", self._listen(child), may_return=lambda: True)
        code = await child.process.wait()
        # The child's last messages may still be on the line.
        await asyncio.wait([listening], timeout=1.0)
        self._loops.cancel(listening)
        await self._bury(child, code)

    async def _spawn(self, number: int) -> ChildProcess:
        announces = self._processes if number == 0 and not self._has_started else 0
        command = self._command
        child = await start_child(command, number, self._slots, announces=announces, supervisor=self._id)
        self._children[child.pid] = child
        if command is not self._command:  # it was changed while the process was being made
            child.link.send(Retire("an operator has changed its settings"))
        if self._is_quiet:
            child.link.send(Quiet(True))
        if self._stopping.is_set():  # the signal came while the process was being made
            child.is_ending = True
            child.link.send(Drain(max(0.0, self._kills.stop_by - KILL_AFTER - time.monotonic())))
        return child

    async def _listen(self, child: ChildProcess) -> None:
        async for message in child.link.messages():
            match message:
                case Hello():
                    self._meet(message)
                case SessionBegan(session=session):
                    if self._heart is not None:
                        for earlier in child.sessions:
                            self._heart.drop(earlier)
                        self._heart.add(session)
                    child.sessions.append(session)
                case WorkerStarted():
                    self._started(message)
                case Drained(left=left):
                    child.left = left
                    child.is_ending = True
                case Counted(rates=rates):
                    self.metrics.counters.add(rates)
                case Stacks(number=number, text=text):
                    asked = self._asked_stacks.get(number)
                    if asked is not None and not asked.done():
                        asked.set_result(text)
                case Retiring():
                    child.is_retiring = child.is_ending = True
                    self._replace(child.number)
                case _:
                    log.error("unexpected message from a child: %r", message)

    def _meet(self, hello: Hello) -> None:
        """The first greeting: open the store, start the heart and the maintenance loops."""
        if self._driver is not None:
            return
        self._driver = driver = self._connect(hello)
        self.metrics.lease = hello.lease
        self._crash_rule = hello.crash_rule
        self.metrics.backend = driver.name
        watch(driver, self.metrics.timings)
        ticker = Ticker(driver, hello.poll, misfire_deadline=hello.misfire_deadline)
        self.metrics.missed = ticker.missed
        if self._grace is None:  # set in the app's code, which only its children read
            self._grace = hello.grace
        self._heart = Heart(driver, hello.lease, time.monotonic)
        self._commands = WorkerCommands(driver, self._loops, self)
        self._services = [
            Beating(self, hello.heartbeat),
            Leases(self._heart, min(hello.heartbeat, hello.lease / 10), self.lease_over),
            Pulses(driver, self._children, hello.lease),
            Promoter(driver, hello.poll),
            ticker,
            Rescuer(driver, hello.sweep, self._heart.proven_at, self._tally),
            Pruner(driver),
            *self._more(driver),
        ]
        self._rates = RateWriter(driver, self._tally)
        self._services.append(self._rates)
        for service in self._services:
            self._loops.serve(service)

    def _started(self, started: WorkerStarted) -> None:
        """The first child claims jobs: look for queues that no worker serves."""
        if not self._has_started and self._driver is not None:
            self._has_started = True
            self._checking = asyncio.create_task(self._check_queues(self._driver, started))

    async def _check_queues(self, driver: Driver, started: WorkerStarted) -> None:
        if not self._burst:
            await asyncio.sleep(SETTLE)  # a fleet starts together: the others may not be there yet
        with contextlib.suppress(StorageError):  # a warning is worth no second try
            await operation.arun(driver, warn_of_unserved(driver, started))

    async def _bury(self, child: ChildProcess, code: int) -> None:
        """A child has ended: end its session in the store, then replace it."""
        del self._children[child.pid]
        started = [job.claim for job in child.started.started()]
        cause = child.death(code)
        if code == EX_BROKEN:  # no job's fault
            child.culprits = []
        culprits = started if child.culprits is None else child.culprits
        if cause is not None and child.sessions:
            self.metrics.deaths += 1
            log.error("child %d died (%s) while running %d jobs", child.pid, cause, len(started))
        is_ended = await self._end_session(child, culprits, cause)
        child.close()
        if child.left or not is_ended:
            self._left += max(child.left, 1)
        if self._stopping.is_set():
            return
        if child.is_retiring and not self._replaces:
            return
        if child.is_retiring:
            if child.is_replaced:
                self._replace(child.number)  # its successor may be waiting to be replaced in turn
            else:
                self._spawn_soon(child.number, 0.0)
            return
        if self._burst and code == 0:
            return
        if self._changes is not None and code in HOPELESS:
            log.error("the app cannot be started (exit code %d); waiting for the next change", code)
            self._spawn_soon(child.number, float("inf"))
            return
        has_been_up = self._driver is not None and not self._burst
        if self._restarts.is_hopeless(child, code, has_been_up=has_been_up):
            log.error("children cannot be started (exit code %d); stopping", code)
            self._code = code
            self.stop(self.grace)
            return
        self._spawn_soon(child.number, self._restarts.delay(child, code))

    def _replace(self, number: int) -> None:
        """Start a retiring child's successor beside it: its last jobs may take long.

        At most one predecessor is left beside a child, or jobs that take long would pile up processes;
        the next one has to wait for its end.
        """
        if not self._replaces:
            return
        here = [child for child in self._children.values() if child.number == number]
        waiting = [child for child in here if child.is_retiring and not child.is_replaced]
        if waiting and len(here) == 1 and not self._stopping.is_set():
            waiting[0].is_replaced = True
            self._spawn_soon(number, 0.0)

    async def _end_session(
        self, child: ChildProcess, culprits: Sequence[ClaimRef], cause: str | None
    ) -> bool:
        """Whether the store knows that the child's session has ended."""
        if self._driver is None or self._heart is None or not child.sessions:
            return True
        session = child.sessions[-1]
        backoff = Backoff("supervisor")
        while True:
            crash = None if cause is None else CrashReport(culprits, cause, self._crash_rule)
            verb = self._driver.end_session(session, crash)
            try:
                async with asyncio.timeout(10.0):
                    rescued = await self._driver.arun(verb)
            except (StorageError, TimeoutError) as error:
                pause = backoff.failed(error)
                if self._stopping.is_set() and time.monotonic() + pause > self._kills.stop_by:
                    return False
                await asyncio.sleep(pause)
                continue
            self._heart.drop(session)
            for job in rescued:
                log.warning("job %s was running in a child that ended; it is %s now", job.id, job.to)
            crashed = {ref.id for ref in culprits} if cause is not None else set()
            await count_store_ends(
                self._driver,
                self._tally,
                None,  # the subscribers died with the child
                lost=[job.id for job in rescued if job.id in crashed],
                dead=[job.id for job in rescued if job.to is JobState.DEAD],
            )
            return True

    async def _reload(self, changes: Callable[[], AsyncIterator[str]]) -> None:
        """Replace the children whenever their code has changed."""
        async for what in changes():
            log.info("%s has changed; replacing the children", what)
            self._restarts.forget()
            self._send(Retire(f"{what} has changed"))
            self._is_changed.set()  # a child that waits after a failed start is started now
            await asyncio.sleep(0)
            self._is_changed.clear()

    # -- heartbeats --------------------------------------------------------------------------------

    async def beat(self) -> None:
        if self._driver is None or self._heart is None:
            return
        lost = await operation.arun(self._driver, self._heart.beat())
        self.metrics.beaten_at = time.monotonic()
        for session in lost:
            for child in self._children.values():
                if child.sessions and child.sessions[-1] == session:
                    child.link.send(SessionLost(session))
        if self._commands is not None and self._heart.commands:
            self._commands.received(self._heart.commands)

    def lease_over(self) -> None:
        """The store has been away for a lease: what must not run twice stops."""
        for child in self._children.values():
            child.link.send(LeaseOver())


class Beating(Service):
    """The heart of all children, in one statement per beat."""

    name = "heartbeat"

    def __init__(self, supervisor: Supervisor, every: float) -> None:
        # Others count a lease from the store's return. A supervisor that paused for longer than that
        # would be given up though it lives, so a missed beat is tried again no later than the next
        # would be due.
        super().__init__(longest_pause=every)
        self._supervisor = supervisor
        self._every = every

    async def run_once(self) -> float:
        await self._supervisor.beat()
        return self._every

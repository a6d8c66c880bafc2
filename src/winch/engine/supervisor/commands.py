"""Carries out what operators send to a worker through the store: each command once, one by one."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from winch.core.errors import ConfigError, StorageError, WinchError
from winch.core.values.redact import mask_text
from winch.core.version import __version__
from winch.engine.base import operation
from winch.engine.base.log import log
from winch.engine.base.loops import Loops
from winch.engine.client.worker_commands import CommandAnswer, WorkerCommand, store_answer
from winch.engine.supervisor.worker_options import changed_options
from winch.storage.protocol import Driver

# Commands live for minutes in the store. So many that are met are remembered; older ones are long gone.
MOST_REMEMBERED = 10_000
# How long the end of a process waits for answers that are being stored.
LAST_ANSWERS = 2.0
# How long a request for stacks waits for an event loop that may be blocked.
STACKS_WITHIN = 3.0
# The grace period of a drain: years.
UNTIL_ENDED = 1e8


class WorkerControl(Protocol):
    """What commands act on: a supervisor with its children, or a worker inside an application."""

    @property
    def grace(self) -> float:
        """The seconds that running jobs get when it stops."""
        ...

    def stop(self, grace: float) -> None: ...

    def quiet(self, is_quiet: bool) -> None: ...

    async def stacks(self, session: str) -> str:
        """The stacks of the process of this session."""
        ...

    def configure(self, changed: Sequence[str]) -> str:
        """Serve with these flags from now on; returns what happens."""
        ...


async def carry_out(control: WorkerControl, session: str, command: WorkerCommand) -> str:
    """Do what the command names, and return the text of its answer. ConfigError: it cannot be done."""
    match command.do:
        case "quiet":
            control.quiet(True)
            return "claims nothing; running jobs continue"
        case "resume":
            control.quiet(False)
            return "claims again"
        case "stop":
            grace = control.grace if command.grace is None else command.grace
            log.info("stopping: no new jobs, running ones get %gs", grace)
            control.stop(grace)
            return f"stops; running jobs get {grace:g}s"
        case "drain":
            log.info("draining: no new jobs, running ones take their time")
            control.stop(UNTIL_ENDED)
            return "drains: claims nothing, and ends when its last job has ended"
        case "stacks":
            return await control.stacks(session)
        case "configure":
            changed = changed_options(
                concurrency=command.concurrency,
                queues=command.queues,
                queue_limits=command.queue_limits,
                queue_rates=command.queue_rates,
            )
            return control.configure(changed)
        case _:
            raise ConfigError(f"this worker (Winch {__version__}) does not know {command.do!r}")


class Brought(NamedTuple):
    """A command that the answer to a beat brought."""

    session: str
    key: str
    body: str


class WorkerCommands:
    """The commands that this process has met, and their answers until these are stored."""

    def __init__(self, driver: Driver, loops: Loops, control: WorkerControl) -> None:
        self._driver = driver
        self._loops = loops
        self._control = control
        # None: waits for its turn. An answer stays here until it is stored; then the key alone does.
        self._answers: dict[str, CommandAnswer | None] = {}
        self._stored: set[str] = set()
        self._todo: deque[Brought] = deque()
        self._working: asyncio.Task[None] | None = None

    def received(self, commands: Sequence[Brought]) -> None:
        """A beat brought these. One that was met before is not carried out again."""
        waiting = {one.key for one in self._todo}
        for one in commands:
            if one.key not in self._answers:
                self._answers[one.key] = None
                self._todo.append(one)
            elif one.key not in self._stored and one.key not in waiting and self._is_idle:
                self._todo.append(one)  # its answer could not be stored
        while len(self._answers) > MOST_REMEMBERED:
            oldest = next(iter(self._answers))
            del self._answers[oldest]
            self._stored.discard(oldest)
        if self._todo and self._is_idle:
            self._working = self._loops.start("commands", self._work(), may_return=lambda: True)

    @property
    def _is_idle(self) -> bool:
        return self._working is None or self._working.done()

    async def flush(self) -> None:
        """Wait for answers that are being stored, for a moment."""
        if self._working is not None and not self._working.done():
            await asyncio.wait([self._working], timeout=LAST_ANSWERS)

    async def _work(self) -> None:
        while self._todo:
            one = self._todo.popleft()
            answer = self._answers.get(one.key)
            if answer is None:
                answer = self._answers[one.key] = await self._answer(one)
            try:
                await operation.arun(self._driver, store_answer(self._driver, one.key, answer))
            except StorageError as error:
                log.warning("the answer to a command is stored with the next beat: %s", error)
            else:
                self._stored.add(one.key)
                self._answers[one.key] = CommandAnswer(state=answer.state)  # a text may be long

    async def _answer(self, one: Brought) -> CommandAnswer:
        try:
            command = msgspec.json.decode(one.body, type=WorkerCommand)
            log.info("command from %s: %s", command.by, command.do)
            return CommandAnswer(state="done", text=await carry_out(self._control, one.session, command))
        except msgspec.DecodeError as error:
            return CommandAnswer(state="failed", text=f"the command is not readable: {error}")
        except WinchError as error:
            return CommandAnswer(state="failed", text=mask_text(str(error)))
        except Exception as error:  # one odd command must not end the worker
            log.exception("a command failed")
            return CommandAnswer(state="failed", text=mask_text(f"{type(error).__name__}: {error}"))


class StacksWithoutLoop:
    """Answers requests for stacks in the thread of the heart, while the event loop is blocked.

    The loop answers once more when it turns again: the request does nothing twice that matters."""

    def __init__(self, driver: Driver, stacks: Callable[[], str]) -> None:
        self._driver = driver
        self._stacks = stacks
        self._since: dict[str, float] = {}

    def beaten(self, commands: Sequence[Brought]) -> None:
        """A beat brought these commands: those that the loop has not answered yet are among them."""
        now = time.monotonic()
        self._since = {one.key: self._since.get(one.key, now) for one in commands}
        for one in commands:
            if now - self._since[one.key] >= STACKS_WITHIN and _is_for_stacks(one):
                answer = CommandAnswer(state="done", text=self._stacks())
                try:
                    operation.run(self._driver, store_answer(self._driver, one.key, answer))
                except StorageError as error:
                    log.warning("stacks are stored with the next beat: %s", error)


def _is_for_stacks(command: Brought) -> bool:
    try:
        return msgspec.json.decode(command.body, type=WorkerCommand).do == "stacks"
    except msgspec.DecodeError:
        return False

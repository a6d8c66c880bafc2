"""How durable calls are carried out: in a plain handler's thread or on an async handler's loop, with
every write of the history fenced and in its turn."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from winch.core import steps
from winch.core.errors import ConfigError, LostClaim, StorageError, StorageFull, StorageUnavailable
from winch.core.job import Note
from winch.core.steps import StepHistory, StepRecord
from winch.engine.base import operation
from winch.engine.base.encryption import seal, unseal
from winch.engine.base.operation import Blocking, Sleep, adrive, drive
from winch.engine.base.step_pages import forget_pages, page_records, read_pages
from winch.engine.durable.history import History
from winch.storage.kv_records import KvRecord
from winch.storage.params import Answer, ClaimRef

if TYPE_CHECKING:
    from winch.core.job import Claim
    from winch.engine.base.encryption import Keyring
    from winch.engine.client.client import Client
    from winch.engine.durable.note_writer import NoteWriter
    from winch.engine.tasks.context import Reports
    from winch.engine.tasks.runtime import Runtime
    from winch.engine.tasks.task import Task
    from winch.storage.protocol import Driver
    from winch.storage.verbs import Verb

# How long a step's result is held while the store is out of reach, before the attempt fails.
SAVE_SECONDS = 60.0
# How often the loop turns before a handler that waits is taken to wait with all its parts.
LOOKS = 5
SAVE_PAUSES = (0.05, 0.15, 0.3, 0.6, 1.0)


@dataclass(frozen=True, slots=True)
class Call:
    """Call the function: a coroutine is awaited, a plain function of an async handler runs in a
    thread."""

    fn: Callable[..., Any]
    args: Sequence[Any]


@dataclass(frozen=True, slots=True)
class InTransaction:
    """Call the function in a transaction, and put the record it comes to into the same commit."""

    fn: Callable[..., Any]
    args: Sequence[Any]
    session: object
    record: Callable[[Any], StepRecord]


class _Save:
    """Have the store keep the history as it is now."""


class _Park:
    """Wait until no other call of this handler is under way."""


SAVE = _Save()
PARK = _Park()

Durable = Generator[Any, Any, Any]


class Unwound(BaseException):
    """Ends a handler that was only called to find its undo functions."""


@dataclass(frozen=True, slots=True)
class StepTools:
    """What a worker gives to the durable steps of all its attempts."""

    runtime: Runtime
    store: Callable[[], Driver]
    monotonic: Callable[[], float]
    rng: random.Random
    notes: NoteWriter
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]


class StepRunner:
    """The part of an attempt's durable side that talks to the store and calls functions."""

    def __init__(self, claim: Claim, task: Task[Any, Any], reports: Reports, tools: StepTools) -> None:
        """`claim` has its checkpoint in plain text."""
        self.claim: Claim = claim
        self.ref: ClaimRef = ClaimRef(claim.id, claim.token)
        self.run_at: datetime = claim.run_at
        self.client: Client = task.client
        self._is_async = task.is_async
        self._reports = reports
        self._tools = tools
        self.store: Callable[[], Driver] = tools.store
        self.keys: Keyring | None = tools.runtime.keys()
        self.rng: random.Random = tools.rng
        self._began = tools.monotonic()
        head = steps.read(claim.checkpoint) or StepHistory(checkpoint=claim.checkpoint)
        self.history: History = History(head)
        self._version = self._stored = 0
        self._unstored: list[tuple[str, str]] = []
        self._active = 0
        self._calls = 0
        self._lock = threading.Lock()
        self._alock: Any = None
        self._idle: Any = None

    def put(self, record: StepRecord) -> None:
        """Take the record into the history, which the next save keeps."""
        self.history.put(record)

    def now(self) -> datetime:
        """The store's time, or a little before it: when the claim was made, and how long that is ago."""
        return self.claim.claimed_at + timedelta(seconds=max(self._tools.monotonic() - self._began, 0.0))

    def store_now(self) -> Generator[Any, Any, datetime]:
        """The store's time exactly."""
        facts = yield self.store().explain(self.claim.id)
        return self.now() if facts is None else max(facts.now, self.now())

    # -- carrying it out ---------------------------------------------------------------------------

    def _drive(self, operation: Durable) -> Any:
        return self._arun(operation) if self._is_async else self._run(operation)

    def _run(self, operation: Durable) -> Any:
        """In a plain handler's thread."""
        return drive(operation, self._act, BaseException)  # an interrupt is the step's to see

    def _act(self, action: Any) -> Any:
        driver = self.store()
        if action is SAVE:
            self._version += 1
            wanted = self._version
            with self._lock:
                if self._stored < wanted:
                    wanted = self._version
                    self._repeated(lambda: self._spill(driver))
                    self._repeated(lambda: self.check(self._tools.notes.note(self.ref, self._note())))
                    self._stored = wanted
            if self.history.left:
                left, self.history.left = self.history.left, ()
                with contextlib.suppress(StorageError):
                    operation.run(driver, forget_pages(driver, self.claim.id, left))
        elif action is PARK:
            return None
        elif isinstance(action, Call):
            value = action.fn(*action.args)
            if inspect.isawaitable(value):
                _close(value)
                raise ConfigError(
                    f"{action.fn!r} is async, but the handler that calls the step is not; make the "
                    "task `async def`, or the step's function a plain one"
                )
            return value
        elif isinstance(action, InTransaction):
            from winch.engine.durable.step_transaction import run

            with self._lock:
                self._repeated(lambda: self._spill(driver))  # not within: the file has one writer
                run(self, driver, action)
        elif isinstance(action, Sleep):
            time.sleep(action.seconds)
        elif isinstance(action, Blocking):
            return action.call()
        else:
            return driver.run(action)
        return None

    def _repeated(self, send: Callable[[], None]) -> None:
        for number, pause in enumerate(_pauses()):
            try:
                send()
            except (StorageUnavailable, StorageFull):
                if number > SAVE_SECONDS:
                    raise
                time.sleep(pause)
            else:
                return

    def _spill(self, driver: Driver) -> None:
        """Store the pages that the history has outgrown."""
        if self.history.is_long or self._unstored:
            driver.run(driver.kv_put(self._pages()))
            self._unstored = []

    async def _aspill(self, driver: Driver) -> None:
        if self.history.is_long or self._unstored:
            await driver.arun(driver.kv_put(self._pages()))
            self._unstored = []

    def _pages(self) -> list[KvRecord]:
        """The pages to store now. They stay in `_unstored` until the store has them."""
        if self.history.is_long:
            claim = self.claim
            cut = self.history.cut_pages(claim.token[-12:])
            self._unstored += [
                (key, seal(self.keys, text, job=claim.id, task=claim.task, field="steps"))
                for key, text in cut
            ]
        return page_records(self.claim.id, self._unstored)

    async def _arun(self, operation: Durable) -> Any:
        """On an async handler's loop."""
        return await adrive(operation, self._aact, BaseException)

    async def _aact(self, action: Any) -> Any:
        driver = self.store()
        if action is SAVE:
            await self.asave()
        elif action is PARK:
            await self._quiet()
        elif isinstance(action, Call):
            return await self.acall(action.fn, *action.args)
        elif isinstance(action, InTransaction):
            from winch.engine.durable.step_transaction import arun

            async with self._writing():
                await self._aspill(driver)
                await arun(self, driver, action)
        elif isinstance(action, Sleep):
            await asyncio.sleep(action.seconds)
        elif isinstance(action, Blocking):
            return await asyncio.to_thread(action.call)
        else:
            return await driver.arun(action)
        return None

    async def _quiet(self) -> None:
        """Return when no step is under way and no other part of the handler comes to make one."""
        while True:
            calls = self._calls
            for _ in range(LOOKS):  # others have just started, or got an end they waited for
                await asyncio.sleep(0)
            if self._active:
                self._idle = self._idle or asyncio.Event()
                self._idle.clear()
                await self._idle.wait()
            elif calls == self._calls:
                return

    def _writing(self) -> Any:
        """One write of the history after the other: a later one must not be overtaken by an earlier."""
        if self._alock is None:
            self._alock = asyncio.Lock()
        return self._alock

    async def asave(self, *, is_patient: bool = False, forgets_cancel: bool = False) -> None:
        """Have the store keep the history; `is_patient`: however long that takes. Steps that end at the
        same time are written together."""
        self._version += 1
        wanted = self._version
        async with self._writing():
            if self._stored >= wanted and not forgets_cancel:
                return
            until = float("inf") if is_patient else self._tools.monotonic() + SAVE_SECONDS
            for pause in _pauses():
                wanted = self._version
                try:
                    await self._aspill(self.store())
                    note = self._note(forgets_cancel=forgets_cancel)
                    answer = await self._tools.notes.anote(self.ref, note)
                except (StorageUnavailable, StorageFull):
                    if self._tools.monotonic() > until:
                        raise
                    await asyncio.sleep(pause)
                else:
                    self.check(answer)
                    self._stored = wanted
                    break
        if self.history.left:
            await self._forget_left()

    async def _forget_left(self) -> None:
        """Delete pages that the stored head names no more. One that stays behind goes with the job."""
        left, self.history.left = self.history.left, ()
        with contextlib.suppress(StorageError):
            await operation.arun(self.store(), forget_pages(self.store(), self.claim.id, left))

    async def load(self) -> None:
        """Read the pages of a long history, before the handler runs."""
        if self.history.is_whole:
            return
        claim, pages = self.claim, self.history.pages
        texts = await operation.arun(self.store(), read_pages(self.store(), claim.id, pages))
        self.history.take_pages(
            [unseal(self.keys, one, job=claim.id, task=claim.task, field="steps") for one in texts]
        )

    async def acall(self, fn: Callable[..., Any], *args: Any) -> Any:
        """The function's value: awaited, or from a thread so that the loop continues."""
        if inspect.iscoroutinefunction(fn) or getattr(fn, "is_async", False):
            return await fn(*args)
        value = await self._tools.in_thread(lambda: fn(*args))
        return await value if inspect.isawaitable(value) else value

    def _note(self, *, forgets_cancel: bool = False) -> Note:
        history = self.history
        return note_of(
            self.claim,
            history.text(),
            self.keys,
            has_undo=bool(history.to_undo),
            number=self._reports.next_number(),
            forgets_cancel=forgets_cancel,
        )

    def note_with(self, driver: Driver, record: StepRecord) -> Verb[Answer]:
        """The verb that keeps the history with one more step, which is taken in when that is kept."""
        text = self.history.text(record)
        has_undo = record.has_undo or bool(self.history.to_undo)
        number = self._reports.next_number()
        note = note_of(self.claim, text, self.keys, has_undo=has_undo, number=number)
        return driver.note(self.ref, note)

    def kept(self, record: StepRecord) -> None:
        """The store has this record."""
        self.put(record)
        self._reports.sign()

    def is_kept(self, stored: str | None, record: StepRecord) -> bool:
        """Whether a checkpoint read from the store has this record."""
        if stored is None:
            return False
        claim = self.claim
        found = steps.read(unseal(self.keys, stored, job=claim.id, task=claim.task, field="checkpoint"))
        return found is not None and any(s.name == record.name and s.is_done for s in found.steps)

    def check(self, answer: Answer) -> None:
        if answer is not Answer.TOOK:
            raise LostClaim(
                f"job {self.claim.id} no longer belongs to this attempt; the step is not recorded"
            )
        self._reports.sign()

    def limits(self, driver: Driver) -> dict[str, float]:
        """A part of the lease, on stores with one writer: heartbeats must get through."""
        share = getattr(driver, "transaction_share", None)
        if share is None:
            return {}
        return {"limit": self._tools.runtime.lease().total_seconds() * share}


def note_of(
    claim: Claim,
    text: str,
    keys: Keyring | None,
    *,
    has_undo: bool,
    number: int,
    forgets_cancel: bool = False,
) -> Note:
    """The note that keeps this head of a history. Every sending has a number of its own: one that the
    network brings after a later one changes nothing."""
    return Note(
        checkpoint=seal(keys, text, job=claim.id, task=claim.task, field="checkpoint"),
        has_undo=has_undo,
        forgets_cancel=forgets_cancel,
        number=number,
    )


def _pauses() -> Generator[float, None, None]:
    yield from SAVE_PAUSES
    while True:
        yield SAVE_PAUSES[-1]


def _close(value: Any) -> None:
    if isinstance(value, Coroutine):
        value.close()
    elif hasattr(value, "cancel"):
        value.cancel()

"""A store that fails on purpose: before it acts, after it has acted, or not at all until it is released.

    flaky = FlakyStorage(driver)
    flaky.fail_after("claim")           # the next claim takes effect, and its answer is lost
    app = Worker(flaky.driver, …)

A verb is a value with a name, so one place is enough: the wrapper stands in the runners and leaves the
verbs as they are.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

from winch.core.errors import StorageUnavailable
from winch.storage.protocol import Driver
from winch.storage.verbs import Sending, Unhurried, Verb

T = TypeVar("T")
Way = Literal["before", "after", "hang"]


@dataclass
class _Fault:
    verb: str
    way: Way
    left: int
    go_on: threading.Event


class FlakyStorage:
    """A driver with faults that you inject; `counters` has the calls that really took place."""

    def __init__(self, inner: Driver) -> None:
        self._inner = inner
        self._faults: list[_Fault] = []
        self._lock = threading.Lock()
        self.counters: Counter[str] = Counter()
        self.is_down: bool = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def driver(self) -> Driver:
        """This wrapper as the driver it stands for: what it does not change it hands on."""
        return cast(Driver, self)

    # -- faults ------------------------------------------------------------------------------------

    def fail_before(self, verb: str, times: int = 1) -> None:
        """Make the next calls of this verb fail without an effect."""
        self._add(verb, "before", times)

    def fail_after(self, verb: str, times: int = 1) -> None:
        """Let the next calls of this verb take effect, and lose their answers."""
        self._add(verb, "after", times)

    def hang(self, verb: str, times: int = 1) -> threading.Event:
        """Make the next calls of this verb wait, before they act, until the event is set."""
        return self._add(verb, "hang", times)

    def down(self) -> None:
        """Make every call fail without an effect, until `up`."""
        self.is_down = True

    def up(self) -> None:
        """The store can be reached again."""
        self.is_down = False

    def heal(self) -> None:
        """Drop all faults that are still to come, and release the calls that hang."""
        self.up()
        with self._lock:
            for fault in self._faults:
                fault.go_on.set()
            self._faults.clear()

    @property
    def count(self) -> int:
        """How many calls there were, of all verbs."""
        return self.counters.total()

    def _add(self, verb: str, way: Way, times: int) -> threading.Event:
        fault = _Fault(verb, way, times, threading.Event())
        with self._lock:
            self._faults.append(fault)
        return fault.go_on

    def _next(self, verb: str) -> _Fault | None:
        if self.is_down:
            self.counters[f"down {verb}"] += 1
            raise StorageUnavailable(f"{verb} failed on purpose: the store is down", maybe_applied=False)
        with self._lock:
            for fault in self._faults:
                if fault.verb == verb and fault.left > 0:
                    fault.left -= 1
                    self.counters[f"{fault.way} {verb}"] += 1
                    return fault
        return None

    # -- runners -----------------------------------------------------------------------------------

    def run(self, verb: Verb[T]) -> T:
        """Run a verb, with the fault that is due for it."""
        fault = self._next(verb.name)
        if fault is not None and fault.way == "hang":
            fault.go_on.wait()
        _fail(fault, "before", verb.name)
        result = self._inner.run(verb)
        _fail(fault, "after", verb.name)
        return result

    def sending(self, verb: Verb[T]) -> Sending[T]:
        """The verb as an enqueue that is sent and awaited in one piece."""
        return Unhurried(self.run, verb)

    async def arun(self, verb: Verb[T]) -> T:
        """`run` without blocking the event loop."""
        fault = self._next(verb.name)
        if fault is not None and fault.way == "hang":
            while not fault.go_on.is_set():  # noqa: ASYNC110  # set by another thread, or never
                await asyncio.sleep(0.005)
        _fail(fault, "before", verb.name)
        result = await self._inner.arun(verb)
        _fail(fault, "after", verb.name)
        return result


def _fail(fault: _Fault | None, way: Way, verb: str) -> None:
    if fault is not None and fault.way == way:
        words = "nothing was sent" if way == "before" else "the answer was lost"
        raise StorageUnavailable(f"{verb} failed on purpose: {words}", maybe_applied=way == "after")

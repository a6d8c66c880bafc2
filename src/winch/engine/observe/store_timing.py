"""How long the store takes to answer: noted at the seam, once for every verb of a process."""

from __future__ import annotations

import time
from bisect import bisect_left
from contextvars import ContextVar
from typing import Any

from winch.engine.observe.prometheus import Histogram, histogram
from winch.engine.observe.throughput import BOUNDS
from winch.storage.protocol import Driver
from winch.storage.verbs import Sending, Verb

# A driver may carry an asynchronous call out by a synchronous one: that is one call, not two.
_is_inside: ContextVar[bool] = ContextVar("winch_is_timed", default=False)
NAME = "winch_backend_operation_duration_seconds"


class Timings:
    """The times of one process's verbs, by their names."""

    def __init__(self) -> None:
        self._ops: dict[str, Histogram] = {}

    def note(self, op: str, seconds: float) -> None:
        buckets, spent = self._ops.get(op) or ({}, 0.0)
        place = bisect_left(BOUNDS, seconds)
        buckets[place] = buckets.get(place, 0) + 1
        self._ops[op] = (buckets, spent + seconds)

    def render(self) -> list[str]:
        found = [({"op": op}, timed) for op, timed in sorted(self._ops.items())]
        return histogram(NAME, "How long the store took for what this process asked of it.", found)


def watch(driver: Driver, timings: Timings) -> None:
    """Have the times of all that this driver carries out noted, also where it fails."""
    run, arun, begin = driver.run, driver.arun, driver.sending

    def timed(verb: Verb[Any]) -> Any:
        if _is_inside.get():
            return run(verb)
        began = time.monotonic()
        try:
            return run(verb)
        finally:
            timings.note(verb.name, time.monotonic() - began)

    async def atimed(verb: Verb[Any]) -> Any:
        began = time.monotonic()
        outside = _is_inside.set(True)
        try:
            return await arun(verb)
        finally:
            _is_inside.reset(outside)
            timings.note(verb.name, time.monotonic() - began)

    def sending(verb: Verb[Any]) -> Sending[Any]:
        return _Timed(begin(verb), verb.name, timings)

    vars(driver).update(run=timed, arun=atimed, sending=sending)


class _Timed:
    """A verb in two halves, timed from the one to the other."""

    def __init__(self, sending: Sending[Any], op: str, timings: Timings) -> None:
        self._sending = sending
        self._op = op
        self._timings = timings
        self._began = 0.0

    def send(self) -> None:
        self._began = time.monotonic()
        self._sending.send()

    def answer(self) -> Any:
        outside = _is_inside.set(True)
        try:
            return self._sending.answer()
        finally:
            _is_inside.reset(outside)
            self._timings.note(self._op, time.monotonic() - self._began)

"""How long the store takes to answer: noted at the seam, once for every verb of a process."""

from __future__ import annotations

import time
from bisect import bisect_left
from contextvars import ContextVar
from typing import Any

from winch.engine.exposition import Histogram, histogram
from winch.engine.rates import BOUNDS
from winch.storage.protocol import Driver
from winch.storage.verbs import Verb

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
    run, arun = driver.run, driver.arun

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

    vars(driver).update(run=timed, arun=atimed)

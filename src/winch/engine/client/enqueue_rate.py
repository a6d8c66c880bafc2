"""How many jobs of a task producers may enqueue in a time, for each value of an argument.

`@app.task(enqueue_rate=Rate(100, per="1m", key="customer"))`. What was taken is a line of the store's
books for each value, changed by compare and swap: no producer waits for another's transaction, and all
of the fleet count together. Windows are by the producers' own clocks. What is taken is not given back
when the caller's transaction rolls back.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from winch.core.errors import QueueFull, StorageUnavailable
from winch.core.gates.rates import rate_use, written
from winch.core.gates.uses import GateUse, Look
from winch.core.policy.limits import name_of, value_text
from winch.core.values.duration import format_duration
from winch.engine.base.operation import Blocking, Operation
from winch.storage.kv_records import KvRecord

if TYPE_CHECKING:
    from datetime import datetime

    from winch.core.policy.limits import Rate
    from winch.engine.tasks.task import Bound
    from winch.storage.protocol import Driver

BOOK = "enqueue rate"
# Producers of one key at the same moment: the one that loses a swap looks again.
TRIES = 50
_MICROSECOND = timedelta(microseconds=1)


def accepted(
    driver: Driver, bounds: Iterable[Bound[Any]], now: datetime, *, is_apart: bool = False
) -> Operation[None]:
    """Take what these calls need from their rates; raises QueueFull where there is not enough, and then
    nothing of the call may be stored. A store that does not answer refuses no job."""
    wanted: dict[str, tuple[Rate, int]] = {}
    for bound in bounds:
        rate = bound.task.options.enqueue_rate
        if rate is not None:
            key = _key(bound, rate)
            _, count = wanted.get(key, (rate, 0))
            wanted[key] = (rate, count + rate.weight)
    for key, (rate, weight) in sorted(wanted.items()):
        try:
            yield from _take(driver, key, rate, weight, now, is_apart)
        except StorageUnavailable:
            return


def _key(bound: Bound[Any], rate: Rate) -> str:
    name = name_of(rate, bound.task.name)
    if rate.key is None:
        return name
    [value] = bound.task.arguments.values(bound.args, [rate.key]).values()
    return f"{name}={value_text(value)}"


def _take(
    driver: Driver, key: str, rate: Rate, weight: int, now: datetime, is_apart: bool
) -> Operation[None]:
    spec = rate.spec
    use = GateUse(key, "rate", n=spec.n, per=spec.per, how=spec.how, burst=spec.burst)
    at = int(now.timestamp() * 1_000_000)
    keep = max(2 * spec.per * _MICROSECOND, timedelta(minutes=1))
    state: str | None = None
    for _ in range(TRIES):
        look = Look(key, state=state)
        used = rate_use(look, use)
        next_at = used.next_at(weight, at)
        if next_at is not None:
            raise QueueFull(
                f"{key}: no more than {spec.n:,} may be enqueued in {format_duration(rate.per)}; "
                "nothing was enqueued. Try again later",
                max((next_at - at) * _MICROSECOND, timedelta(milliseconds=1)),
            )
        used.take(weight, at)
        line = KvRecord(book=BOOK, key=key, body=written(used), keep=keep)
        swap = driver.kv_swap(line, instead_of=state)
        # From a thread: a caller with its own connection may have no pool in its event loop.
        state = yield Blocking(partial(driver.run, swap)) if is_apart else swap
        if state is None:
            return
    raise QueueFull(f"{key}: too many producers at once; try again", timedelta(milliseconds=100))

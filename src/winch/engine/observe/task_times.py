"""How long the attempts of each task waited and ran lately, as the roll-ups in the store have it."""

from __future__ import annotations

import msgspec

from winch.engine.base.operation import Operation
from winch.engine.observe.throughput import MINUTE, TaskRate, percentile, read
from winch.storage.protocol import Driver

MINUTES = 60


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that half, 95 % and 99 % of the attempts stayed under; None without any attempt."""

    p50: float | None
    p95: float | None
    p99: float | None

    @classmethod
    def of(cls, buckets: dict[int, int]) -> Percentiles:
        p50, p95, p99 = (_rounded(percentile(buckets, share)) for share in (0.5, 0.95, 0.99))
        return cls(p50=p50, p95=p95, p99=p99)


class TaskTimes(msgspec.Struct, frozen=True, kw_only=True):
    """One task in the last hour. `started` counts attempts, those that sleep, wait or snooze too;
    `wait` is from the moment a job was due to its start."""

    task: str
    started: int
    completed: int
    failed: int
    dead: int
    run: Percentiles
    wait: Percentiles

    @classmethod
    def of(cls, task: str, rate: TaskRate) -> TaskTimes:
        return cls(
            task=task,
            started=rate.started,
            completed=rate.completed,
            failed=rate.broken,
            dead=rate.deaths,
            run=Percentiles.of(rate.run),
            wait=Percentiles.of(rate.wait),
        )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def task_times(driver: Driver, now: int) -> Operation[list[TaskTimes]]:
    """The tasks with attempts in the last hour, the busiest first; `now` in seconds since the epoch."""
    series = yield from read(driver, MINUTE, now, MINUTES)
    found = [TaskTimes.of(task, rate) for task, rate in series.by_task().items()]
    return sorted(found, key=lambda one: (-one.started, one.task))

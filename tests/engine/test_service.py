"""A background loop receives a stop at once, whether it waits or works, and no wait ends it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from winch import App
from winch.app import SystemClock
from winch.core.errors import StorageUnavailable
from winch.drivers.memory import MemoryDriver
from winch.engine.base.service import LONGEST_PAUSE, Backoff, Service, doubled
from winch.engine.client.client import Surroundings
from winch.engine.supervisor.child_process import LONGEST_RESTART, Restarts
from winch.engine.supervisor.supervisor import Beating, Supervisor
from winch.testing import FlakyStorage

LONG = 3600.0


class Counted(Service):
    """Counts its passes; `step` decides what each does."""

    name = "counted"

    def __init__(self, step: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.passes = 0
        self.step = step

    async def run_once(self) -> float:
        self.passes += 1
        self.step()
        return LONG


def run(service: Service, stop_after: float | None = None) -> None:
    """Run it to its end, which must not be long in coming."""

    async def to_its_end() -> None:
        if stop_after is not None:
            asyncio.get_running_loop().call_later(stop_after, service.stop)
        async with asyncio.timeout(10):
            await service.run()

    asyncio.run(to_its_end())


def test_a_stop_ends_the_wait_between_two_passes() -> None:
    service = Counted()
    run(service, stop_after=0.01)
    assert service.passes == 1


def test_a_stop_during_a_pass_leaves_nothing_to_wait_for() -> None:
    service = Counted()
    service.step = service.stop
    run(service)
    assert service.passes == 1


def test_a_second_stop_changes_nothing() -> None:
    class Twice(Counted):
        def stop(self) -> None:
            super().stop()
            super().stop()

    run(Twice(), stop_after=0.01)


def test_a_stop_ends_the_pause_after_a_failure() -> None:
    def fail() -> None:
        raise StorageUnavailable("away", maybe_applied=False)

    run(Counted(fail), stop_after=0.01)


def test_a_wait_that_breaks_off_is_followed_by_the_next_pass() -> None:
    class Broken(Counted):
        async def idle(self, seconds: float) -> None:
            if self.passes == 3:
                self.stop()
            raise RuntimeError("the bell is broken")

    service = Broken()
    run(service)
    assert service.passes == 3


def test_a_cancelled_service_is_cancelled() -> None:
    async def cancel() -> None:
        runner = asyncio.create_task(Counted().run())
        await asyncio.sleep(0.01)
        runner.cancel()
        await runner

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())


def test_an_urgent_loop_keeps_its_pauses_below_its_limit() -> None:
    patient, hurried = Backoff("patient"), Backoff("hurried", longest=0.5)
    gone = StorageUnavailable("gone")
    assert max(hurried.failed(gone) for _ in range(20)) <= 0.5
    assert 2.5 <= [patient.failed(gone) for _ in range(20)][-1] <= LONGEST_PAUSE


@pytest.mark.parametrize("failures", [2**10, 2**14])
def test_a_loop_outlives_any_number_of_failures_in_a_row(failures: int) -> None:
    backoff, gone = Backoff("patient"), StorageUnavailable("gone")
    pauses = [backoff.failed(gone) for _ in range(failures)]
    assert 0 < pauses[-1] <= LONGEST_PAUSE


@pytest.mark.parametrize("times", [0, 31, 1024, 2**31, 2**53])
def test_a_pause_can_be_doubled_any_number_of_times(times: int) -> None:
    assert 0.5 <= doubled(0.5, times, 30.0) <= 30.0


def test_a_child_that_dies_at_once_is_started_again_however_often_it_died() -> None:
    restarts, dying = Restarts(), cast(Any, SimpleNamespace(started_at=time.monotonic()))
    delays = [restarts.delay(dying, 1) for _ in range(2**11)]
    assert delays[:3] == [0.5, 1.0, 2.0]
    assert delays[-1] == LONGEST_RESTART


def test_a_missed_beat_is_tried_again_by_the_time_of_the_next() -> None:
    class Gone(Supervisor):
        def __init__(self) -> None:
            self.tries: list[float] = []

        async def beat(self) -> None:
            self.tries.append(time.monotonic())
            raise StorageUnavailable("gone")

    supervisor = Gone()
    run(Beating(supervisor, every=0.01), stop_after=0.5)
    assert len(supervisor.tries) >= 10  # with the pauses of other loops it would be two


def test_a_pass_without_a_store_call_does_not_report_recovery(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Idle(Counted):
        async def run_once(self) -> float:
            self.passes += 1
            if self.passes in (1, 3):
                raise StorageUnavailable("gone")
            if self.passes == 4:
                self.stop()
                return 0.0
            return self.unasked(0.0)

    caplog.set_level(logging.INFO, logger="winch")
    run(Idle())
    assert [record.message for record in caplog.records] == [
        "counted: the store is unreachable, trying again: gone",
        "counted: the store is back after 2 failed tries",
    ]


def test_every_idle_loop_is_silent_about_a_store_that_stays_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A worker without jobs, whose loops mostly have nothing to ask."""
    flaky = FlakyStorage(MemoryDriver(SystemClock()))
    app = App("memory://", lease="400ms", heartbeat="100ms", sweep="100ms", poll="100ms")
    caplog.set_level(logging.INFO, logger="winch")

    async def outage() -> None:
        async with app.worker():
            flaky.down()
            await asyncio.sleep(3)
            lines = [r.message for r in caplog.records if "the store is back" in r.message]
            flaky.heal()
        assert lines == []

    with app.standing_in(flaky.driver, Surroundings(app.clock)):
        asyncio.run(outage())

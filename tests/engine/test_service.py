"""A background loop hears of a stop at once, whether it waits or works, and no wait ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from winch.core.errors import StorageUnavailable
from winch.engine.service import Service

LONG = 3600.0


class Counted(Service):
    """Counts its passes; what each does is told by `step`."""

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

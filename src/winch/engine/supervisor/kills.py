"""Children that do not end or do not turn: the supervisor kills the first, and releases jobs of the
second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from winch.core.errors import StorageError
from winch.engine.base.log import log
from winch.engine.base.service import Service
from winch.engine.observe.worker_metrics import WorkerMetrics
from winch.engine.supervisor.child_process import ChildProcess
from winch.storage.protocol import Driver

WATCH_EVERY = 0.25

Children = Mapping[int, ChildProcess]
"""By pid."""


class Kills:
    """Kills children that are past a job's last moment, or past the shutdown's."""

    def __init__(self, children: Children, metrics: WorkerMetrics) -> None:
        self._children = children
        self._metrics = metrics
        self.stop_by: float = float("inf")
        """When the last child has to be gone, on the monotonic clock."""

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_EVERY)
            now = self._metrics.turned_at = time.monotonic()
            for child in list(self._children.values()):
                late = [job.claim for job in child.started.started() if 0 < job.deadline < now]
                if child.cause is not None:
                    continue  # killed, to be reaped in a moment
                if late:
                    log.error(
                        "child %d is blocked past the deadline of job %s; killing it",
                        child.pid,
                        late[0].id,
                    )
                    child.kill("timed out, and did not end when asked to", late)
                elif now > self.stop_by:
                    log.error("child %d did not stop in time; killing it", child.pid)
                    child.kill("did not stop in time", [])

    def kill_all(self) -> None:
        for child in self._children.values():
            child.process.kill()


class Pulses(Service):
    """Looks for children that stand still; apart from the watch, which must not wait for a store."""

    name = "pulses"

    def __init__(self, driver: Driver, children: Children, lease: float) -> None:
        super().__init__()
        self._driver = driver
        self._children = children
        self._lease = lease

    async def run_once(self) -> float:
        for child in list(self._children.values()):
            await self._release_unstarted(child)
        return WATCH_EVERY

    async def _release_unstarted(self, child: ChildProcess) -> None:
        """Release what a child holds and has not started, when its loop has not turned for a lease.

        The supervisor beats its heart, so no other worker would ever take these jobs. The child, should
        it wake up, starts nothing that it sent for more than half a lease ago, and claims nothing
        without showing a pulse first: what is read here while the pulse stays the same can be given
        away."""
        pulse = child.started.last_pulse
        is_still = pulse > 0 and time.monotonic() - pulse > self._lease
        if not is_still or pulse == child.still_since or not child.sessions:
            return
        kept = child.started.kept()
        try:
            async with asyncio.timeout(self._lease):
                held = await self._driver.arun(self._driver.held(child.sessions[-1]))
                unstarted = [ref for ref in held if ref not in kept]
                if child.started.last_pulse != pulse:
                    return
                if unstarted:
                    await self._driver.arun(self._driver.release(unstarted))
        except (StorageError, TimeoutError) as error:
            log.warning(
                "child %d does not respond; the jobs it has not started are not released yet: %s",
                child.pid,
                error,
            )
            return
        child.still_since = pulse
        log.warning(
            "child %d has not responded for one lease; released %d jobs it had not started",
            child.pid,
            len(unstarted),
        )

"""What probes and scrapers read about a supervisor and its children."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from winch.engine.observe.health_server import Checks
from winch.engine.observe.prometheus import Counters, build_info, family, missed_windows
from winch.engine.observe.store_timing import Timings

# The supervisor looks at its children several times a second; one that has not for so long is stuck.
STILL = 10.0


@dataclass
class WorkerMetrics:
    """Filled by the supervisor as it goes; read by its health port."""

    lease: float = 30.0
    backend: str = "unknown"
    is_quiet: bool = False
    is_stopping: bool = False
    deaths: int = 0
    turned_at: float = field(default_factory=time.monotonic)
    beaten_at: float | None = None
    """When the last answered heartbeat was, on the monotonic clock; None before the first."""
    counters: Counters = field(default_factory=Counters)
    timings: Timings = field(default_factory=Timings)
    missed: Mapping[str, int] = field(default_factory=dict)
    """Missed windows by schedule."""
    running: Callable[[], Iterable[int]] = lambda: ()
    # Jobs that have started and are not known to the store as ended, wherever they run.
    held: Callable[[], int] = lambda: 0
    """How many jobs run in each child that has begun a session."""

    def is_turning(self) -> bool:
        """Whether the supervisor has looked at its children lately."""
        return time.monotonic() - self.turned_at < STILL

    def live(self) -> Checks:
        return {"supervisor": "pass" if self.is_turning() else "has not turned for a while"}

    def ready(self) -> Checks:
        children = len(list(self.running()))
        beaten = self.beaten_at is not None and time.monotonic() - self.beaten_at < self.lease
        return {
            **self.live(),
            "children": "pass" if children else "none has begun a session",
            "store": "pass" if beaten else "has not answered a heartbeat for a lease",
            "claims": "stopping" if self.is_stopping else "quiet" if self.is_quiet else "pass",
        }

    def render(self) -> str:
        running = list(self.running())
        lines = family(
            "winch_worker_processes",
            "gauge",
            "Children that have begun a session.",
            [({}, len(running))],
        )
        lines += family(
            "winch_worker_running_jobs", "gauge", "Jobs that run in them.", [({}, sum(running))]
        )
        lines += family(
            "winch_worker_accepting",
            "gauge",
            "1 while jobs are claimed, 0 while quiet or stopping.",
            [({}, float(not (self.is_quiet or self.is_stopping)))],
        )
        lines += family(
            "winch_worker_child_deaths_total", "counter", "Children that died.", [({}, self.deaths)]
        )
        if self.beaten_at is not None:
            at = time.time() - (time.monotonic() - self.beaten_at)
            lines += family(
                "winch_worker_heartbeat_timestamp_seconds",
                "gauge",
                "The last heartbeat that the store answered.",
                [({}, round(at, 3))],
            )
        lines += build_info(self.backend) + self.counters.render()
        lines += missed_windows(self.missed) + self.timings.render()
        return "\n".join(lines) + "\n"

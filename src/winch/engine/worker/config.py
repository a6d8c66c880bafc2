"""How one worker runs: what the command line, the settings or `app.worker` have decided."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from winch.core.policy.queue_limits import QueueLimit
from winch.engine.client.spool import Spool
from winch.engine.worker.queues.order import QueueOrder, Queues
from winch.engine.worker.running.process import ProcessStore


def worker_name() -> str:
    """What pages call the worker in this process."""
    return f"{socket.gethostname()}-{os.getpid()}"


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """How one worker runs. Seconds on the monotonic clock."""

    order: Queues
    concurrency: int
    lease: timedelta
    heartbeat: float
    poll: float
    release: str = ""
    burst: bool = False
    process_command: tuple[str, ...] | None = None
    process_store: ProcessStore | None = None
    # How long an interrupted handler gets to end before it is given up, and a blocked loop is killed.
    kill_after: float = 10.0
    max_jobs: int | None = None
    max_memory: int | None = None
    max_lifetime: float | None = None
    spool: Spool | None = None
    # Whether a supervisor starts another worker in its place when this one retires.
    is_replaced: bool = False
    # What acts on commands to this worker: the same for all processes of one supervisor.
    supervisor: str = ""
    # What this worker offers to tasks that need something.
    labels: Mapping[str, str] = field(default_factory=dict)
    # What it bounds for single queues.
    queue_limits: Mapping[str, QueueLimit] = field(default_factory=dict)

    def order_among(self, known: Iterable[str], rng: random.Random) -> QueueOrder:
        """The order over the queues that are named, or over all that are known."""
        order = self.order
        return order if isinstance(order, QueueOrder) else order.among(known, rng)

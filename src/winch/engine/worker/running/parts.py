"""What every way to run a handler works with."""

from __future__ import annotations

from dataclasses import dataclass

from winch.engine.worker.executor import Executor
from winch.engine.worker.held_jobs import HeldJobs
from winch.engine.worker.outcomes import Recorder


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one worker that start a job, run it and record its end."""

    jobs: HeldJobs
    executor: Executor
    recorder: Recorder

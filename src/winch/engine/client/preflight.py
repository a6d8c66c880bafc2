"""Does this code read what is queued? Every waiting job's arguments, put through the task's own checks.

Run it with the code about to be deployed, against the live store: it changes nothing there.
"""

from __future__ import annotations

import msgspec

from winch.core.errors import ConfigError, InvalidPayload, UnknownTask
from winch.core.job import JobRecord
from winch.core.lifecycle import LIVE, JobState
from winch.engine.base.encryption import Keyring, unseal
from winch.engine.base.operation import Operation
from winch.engine.tasks.registry import Registry
from winch.storage.params import JobFilter
from winch.storage.protocol import Driver

PAGE = 500


class Misfit(msgspec.Struct, frozen=True):
    """Queued jobs of one task and version that this code cannot run, with one of them as a sample."""

    task: str
    version: int
    problem: str
    count: int
    sample: str


class Preflight(msgspec.Struct, frozen=True):
    """The number of queued jobs that were read, and those that this code cannot run."""

    read: int
    misfits: tuple[Misfit, ...]


def preflight(driver: Driver, tasks: Registry, keys: Keyring | None, most: int) -> Operation[Preflight]:
    """Look at up to `most` live jobs, newest first."""
    found: dict[tuple[str, int, str], list[str]] = {}
    read, after = 0, None
    states = tuple(state for state in JobState if state in LIVE)
    while read < most:
        page = yield driver.list_jobs(
            JobFilter(states=states, limit=min(PAGE, most - read), after=after)
        )
        for job in page.jobs:
            read += 1
            problem = _problem(job, tasks, keys)
            if problem is not None:
                found.setdefault((job.task, job.version, problem), []).append(job.id)
        after = page.next
        if after is None:
            break
    misfits = [
        Misfit(task, version, problem, len(ids), ids[0])
        for (task, version, problem), ids in found.items()
    ]
    return Preflight(read, tuple(sorted(misfits, key=lambda misfit: (-misfit.count, misfit.task))))


def _problem(job: JobRecord, tasks: Registry, keys: Keyring | None) -> str | None:
    try:
        task = tasks.get(job.task)
    except UnknownTask:
        return "this code has no such task; the jobs would wait"
    if job.version > task.options.version:
        return f"this code has version {task.options.version}; the jobs would wait"
    try:
        args = unseal(keys, job.args, job=job.id, task=job.task, field="args")
        task.arguments.check(task.current_args(args, job.version))
    except (InvalidPayload, ConfigError) as error:
        return str(error)
    except Exception as error:  # an upgrader is the application's code
        return f"its upgrader failed: {type(error).__name__}: {error}"
    return None

"""Which jobs hold the unique keys."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from winch.core.job import JobRecord
from winch.core.lifecycle import FINAL
from winch.drivers.memory.records import State
from winch.storage.decide.unique import Holder
from winch.storage.params import NewJob


def holders(state: State) -> dict[str, Holder]:
    """The holders of the unique keys: a live job holds its own."""
    return {
        job.unique_key: Holder(job.id, job.state)
        for job in state.live.values()
        if job.unique_key is not None
    }


def key_holder(state: State, job: JobRecord) -> str | None:
    """The live job that holds the unique key of a final job by now."""
    holder = holders(state).get(job.unique_key or "")
    return holder.id if holder is not None and job.state in FINAL else None


def holders_of(state: State, jobs: Sequence[NewJob], at: datetime) -> dict[str, Holder]:
    """The holders of the keys of these jobs; with `unique_within` a final job may be one."""
    found = holders(state)
    for new in jobs:
        key = new.unique_key
        if key is not None and new.unique_within is not None and key not in found:
            job_id, until = state.kept_keys.get(key, ("", at))
            if until > at and job_id in state.archive:
                found[key] = Holder(job_id, None)
    return found

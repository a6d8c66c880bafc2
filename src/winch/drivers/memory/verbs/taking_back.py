"""Taking a running job back from its claim."""

from __future__ import annotations

from datetime import datetime

from winch.core import changes
from winch.core.job import JobRecord, SuspectRule
from winch.core.lifecycle import JobState
from winch.drivers.memory.verbs.base import Base


def give_back(
    base: Base,
    job: JobRecord,
    at: datetime,
    *,
    by_token: str | None,
    by_holder: bool = False,
    has_started: bool = False,
) -> JobState:
    """Make the job ready again, unrun; returns its state."""
    freed = changes.given_back(job, at, by_holder=by_holder, has_started=has_started)
    base.put(freed, "released", at, by_token=by_token)
    return freed.state


def suspect(
    base: Base,
    job: JobRecord,
    what: str,
    cause: str,
    at: datetime,
    rule: SuspectRule,
    *,
    by_token: str | None = None,
) -> JobState:
    """Take the job back from a claim that ended badly; returns its state."""
    taken = changes.suspected(job, what, cause, at, rule, by_token=by_token)
    base.put(taken, "rescued", at, by_token=by_token)
    return taken.state

"""Jobs that wait for a signal or for other jobs: what the store keeps about it.

Nobody who waits and nobody who is waited for locks what the other needs. Whoever changes something that
a job may wait for (a signal sent, an awaited job that is final, a wait begun) writes down in the same
transaction that the key is to be looked at again; `unblock` takes such keys up, after they are
committed, and looks. So of a wait and what ends it, committed in any order, the later one is looked at
last and finds the other. A look for nothing does no harm.
"""

from __future__ import annotations

from datetime import timedelta

import msgspec

from winch.storage.params import Answer

SIGNAL = "signal:"
JOB = "job:"
# Comes with the job's end, and only where that is its death.
DEAD = "dead:"
# A job that others may wait for says so in its headers: the store looks at nothing else when it ends.
AWAITED_HEADER = "winch-awaited"
# A signal is kept this long after it was taken, so that a repeat of it is known; one that nobody waits
# for is kept longer.
KEEP_TAKEN = timedelta(days=7)
KEEP_UNTAKEN = timedelta(days=30)


class Sent(msgspec.Struct, frozen=True):
    """What became of a signal: stored now, or known from before by its id."""

    id: str
    is_new: bool


class Taken(msgspec.Struct, frozen=True):
    """The answer to a claim that asks for a signal. `payload` is None where there is none yet."""

    answer: Answer
    payload: str | None = None


def signal_key(name: str) -> str:
    return SIGNAL + name


def death_key(job_id: str) -> str:
    return DEAD + job_id


def job_key(job_id: str) -> str:
    return JOB + job_id

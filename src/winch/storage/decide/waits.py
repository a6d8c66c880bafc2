"""Jobs that wait for a signal or for other jobs: what the store keeps about it.

A waiting job and the job it waits for never lock what the other needs. A call that changes something
that a job may wait for (a signal sent, an awaited job that is final, a wait begun) writes down in the
same transaction that the key is to be looked at again; `unblock` takes such keys up, after they are
committed, and looks. So of a wait and what ends it, committed in any order, the later one is looked at
last and finds the other. A look for nothing does no harm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import msgspec

from winch.core.flow import FLOW_HEADER
from winch.storage.params import Answer, ClaimRef, Wait

SIGNAL = "signal:"
JOB = "job:"
# Comes with the job's end, and only where that is its death.
DEAD = "dead:"
# Has come while no job is live whose id begins so, with the first so many characters; see `all_key`.
ALL = "all:"
PREFIX = 30
# A job that others may wait for is marked in its headers: the store looks at nothing else when it ends.
# The value is the key of `all_key` for one of many that are waited for together, with EACH behind it
# where it is waited for alone too; any other value is for a job that is waited for alone.
AWAITED_HEADER = "winch-awaited"
EACH = "+job"
# A signal is kept this long after it was taken, so that a repeat of it is known; one that no job waits
# for is kept longer.
KEEP_TAKEN = timedelta(days=7)
KEEP_UNTAKEN = timedelta(days=30)
# A final job is kept past its time, and never trimmed, while another job still needs its outcome:
# its parent is live (the header's value), its `all_key` is waited for, or a live member of its flow was
# stored with members before it. When that is so it is looked at again after this time.
STILL_AWAITED = timedelta(days=1)


class Sent(msgspec.Struct, frozen=True):
    """What became of a signal: stored now, or known from before by its id."""

    id: str
    is_new: bool


class KeptSignal(msgspec.Struct, frozen=True):
    """A signal that no job has taken."""

    name: str
    id: str
    payload: str


class Dependencies(msgspec.Struct, frozen=True):
    """What jobs wait for, by their ids. With a `claim` they are added only while it is live."""

    waits: Sequence[tuple[str, Sequence[Wait]]]
    claim: ClaimRef | None = None


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


def all_key(prefix: str) -> str:
    """All jobs whose ids begin so (PREFIX characters) are final, or gone. They are not counted: whether
    one is live is looked at when one of them has ended."""
    return ALL + prefix


def bounds(key: str) -> tuple[str, str]:
    """The first and the last id that an `all_key` is about."""
    prefix = key.removeprefix(ALL)
    return prefix + "000000", prefix + "ffffff"


def lie_together(ids: Sequence[str]) -> bool:
    """Whether these ids are of those that begin alike, so that a walk from the first to the last of them
    meets few others."""
    prefix = ids[0][:PREFIX]
    return len(ids) > 1 and all(job_id.startswith(prefix) for job_id in ids)


class Awaited(msgspec.Struct, frozen=True, array_like=True):
    """What may still need a final job, by its headers."""

    parent: str
    key: str | None
    flow: str | None


def awaited_by(headers: Mapping[str, str]) -> Awaited | None:
    """What to look for before a final job with these headers is removed; None: nothing."""
    header = headers.get(AWAITED_HEADER)
    if header is None:
        return None
    key = header.removesuffix(EACH) if header.startswith(ALL) else None
    return Awaited(header, key, headers.get(FLOW_HEADER))


def ended_keys(header: str, job_id: str) -> list[str]:
    """What is to be looked at again when a job with this AWAITED_HEADER has ended."""
    if not header.startswith(ALL):
        return [job_key(job_id)]
    together = header.removesuffix(EACH)
    return [together] if together == header else [together, job_key(job_id)]

"""Jobs on their way from one store to another; docs/protocol/move.md has the rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from winch.core import steps
from winch.core.errors import InvalidPayload
from winch.core.flow import INPUTS_HEADER
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.storage.decide.unique import Holder
from winch.storage.decide.waits import AWAITED_HEADER
from winch.storage.params import Enqueued, NewJob
from winch.storage.verbs import Now, Verb

# The book of numbers and open parcels; a store that keeps them elsewhere has none of it.
PARCELS = "parcel"
# The record of `raise_fence` among them.
FENCE = "fence"
_LAST, _OPEN, _IN = "last/", "open/", "in/"
_TIED = (INPUTS_HEADER, AWAITED_HEADER)

_decode = msgspec.json.Decoder(tuple[JobRecord, ...])


class Parcel(msgspec.Struct, frozen=True):
    """Jobs that have left their store and are in no other yet, for sure. `number` is 0 and there are no
    jobs where none is open."""

    number: int = 0
    jobs: tuple[JobRecord, ...] = ()


NO_PARCEL = Parcel()


def is_movable(job: JobRecord) -> bool:
    """Whether the job may leave its store alone: it does not run, and nothing ties it to others."""
    return job.state is not JobState.RUNNING and not is_tied(job)


def is_tied(job: JobRecord) -> bool:
    """Whether the job waits for jobs or signals, or may be waited for: it leaves with all of its family,
    or it ends where it began."""
    if any(header in job.headers for header in _TIED):
        return True
    return not job.state.is_final and waits_in_handler(job)


def waits_in_handler(job: JobRecord) -> bool:
    """Whether its handler waits for a signal or for its children, or has been woken and not run yet:
    what it waits for is in its store."""
    if job.state is JobState.BLOCKED and job.gate is None and INPUTS_HEADER not in job.headers:
        return True
    if job.checkpoint is None:
        return False
    if not steps.is_history(job.checkpoint):  # the handler's own checkpoint, or one that is encrypted
        return INPUTS_HEADER not in job.headers and any(one.what == "waited" for one in job.history)
    try:
        head = steps.read(job.checkpoint)
    except InvalidPayload:
        return False
    return head is not None and any(
        step.kind in ("signal", "children") and not (step.is_done or step.is_failed)
        for step in head.steps
    )


def takes_whole(jobs: Sequence[JobRecord], count: int) -> bool:
    """Whether these are all of the `count` jobs of a family, and none of them runs."""
    return len(jobs) == count and all(job.state is not JobState.RUNNING for job in jobs)


def arriving(job: JobRecord) -> JobRecord:
    """The job as its new store keeps it: one that waited is ready; a claim decides anew."""
    if job.state is JobState.BLOCKED:
        return msgspec.structs.replace(job, state=JobState.READY, gate=None, reason=None)
    return job


def last_key(move: str) -> str:
    """The record with the number of the last parcel that has left the store."""
    return _LAST + move


def open_key(move: str) -> str:
    """The record with the parcel that is open."""
    return _OPEN + move


def in_key(move: str) -> str:
    """The record with the number of the last parcel that has come to the store."""
    return _IN + move


def written(number: int, jobs: Iterable[JobRecord]) -> str:
    """A parcel as text."""
    return f"{number} {msgspec.json.encode(tuple(jobs)).decode()}"


def read(text: str) -> Parcel:
    """A parcel from `written`."""
    number, _, jobs = text.partition(" ")
    return Parcel(int(number), _decode.decode(jobs))


class MoveVerbs(Protocol):
    """Jobs leave a store for another one, or come from one. docs/protocol/move.md has the rules."""

    def move_out(
        self, move: str, number: int, ids: Sequence[str], *, is_whole: bool = False, now: Now = None
    ) -> Verb[Parcel]:
        """The parcel of this move that is open. Where none is and `number` is higher than that of every
        parcel before: take those of the jobs that `is_movable` allows out of the store and keep them in
        a new parcel with this number, in one transaction. With `is_whole` take all of them, whatever
        ties them, or none: none where one runs or is not there. What a job had of its gates is free, as
        after `delete`; no job that stays is woken wrongly, because none waits for one that leaves."""

    def move_in(
        self, move: str, number: int, jobs: Sequence[JobRecord], *, now: Now = None
    ) -> Verb[bool]:
        """Store the jobs of a parcel as they are, each as `arriving` has it, and wake their workers.
        False where a parcel with this number or a higher one has come before: nothing is changed. A job
        whose id is there stays as it is there. One whose unique key another job holds comes without
        the key. Numbers of FIFO members that this store draws from now on are not less than its
        clock."""

    def move_done(self, move: str, number: int) -> Verb[None]:
        """Forget the open parcel with this number; another number changes nothing."""

    def raise_fence(self, number: int) -> Verb[bool]:
        """Refuse every `enqueue_fenced` with a lower number from now on. False: such a call is under way
        and may still be committed; nothing is changed, so ask again. A lower number than the one there
        changes nothing and is answered True."""

    def enqueue_fenced(
        self, jobs: Sequence[NewJob], number: int, *, is_repeat: bool = False, now: Now = None
    ) -> Verb[list[Enqueued] | None]:
        """`enqueue`, fenced in the same transaction. None: the fence is higher than this number, and no
        job is stored; in a cluster some may be, and a repeat finds them."""

    def key_holders(self, keys: Sequence[str]) -> Verb[list[Holder | None]]:
        """The live jobs that hold these unique keys."""

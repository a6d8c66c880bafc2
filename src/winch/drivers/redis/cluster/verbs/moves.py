"""Jobs that leave a cluster for another store, or come to it.

Each part keeps a parcel and numbers of its own. A call that reached some parts only is repeated with the
same number, and changes the others alone. Two movers at once are kept apart by the lock of the move."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from winch.core.gates.places import families_of
from winch.core.gates.uses import is_gated
from winch.core.job import JobRecord
from winch.drivers.redis.cluster.fan_out import FanOut, whole
from winch.drivers.redis.cluster.homes import GateHomes
from winch.drivers.redis.cluster.shards import EVERYWHERE, HOME, shard_of
from winch.drivers.redis.cluster.verbs.enqueue import ClusterEnqueueVerbs
from winch.drivers.redis.verbs.base import Body
from winch.drivers.redis.verbs.enqueue import fenced
from winch.drivers.redis.verbs.moves import MoveVerbs
from winch.storage.decide.schedules import SCHEDULE_HEADER
from winch.storage.decide.unique import Holder
from winch.storage.params import Enqueued, NewJob
from winch.storage.parcels import NO_PARCEL, Parcel, is_tied
from winch.storage.verbs import Now, Verb


class ClusterMoveVerbs:
    """What a move needs; see storage/parcels.py for the contracts."""

    def __init__(
        self, plain: MoveVerbs, fan_out: FanOut, homes: GateHomes, enqueue: ClusterEnqueueVerbs
    ) -> None:
        self._plain = plain
        self._enqueue = enqueue
        self._fan_out = fan_out
        self._homes = homes

    def move_out(
        self, move: str, number: int, ids: Sequence[str], *, is_whole: bool = False, now: Now = None
    ) -> Verb[Parcel]:
        def body() -> Body[Parcel]:
            there = yield from self._taken(move, 0, (), now)
            if there.number or not number:
                return there
            return (yield from self._taken(move, number, ids, now, is_whole=is_whole))

        return Verb("move_out", body)

    def _taken(
        self,
        move: str,
        number: int,
        ids: Sequence[str],
        now: datetime | None,
        *,
        is_whole: bool = False,
    ) -> Body[Parcel]:
        """What all parts have of the open parcel, once they have taken what is theirs of these."""
        wanted: dict[int, list[str]] = {part: [] for part in EVERYWHERE}
        for job_id in ids:
            if not is_whole:  # a family whose members are all at home leaves in one transaction
                wanted[shard_of(job_id)].append(job_id)
            wanted[HOME].append(job_id)
        asked = [
            (part, self._plain.move_out(move, number, some, is_whole=is_whole, now=now).steps())
            for part, some in wanted.items()
        ]
        parcels = whole((yield from self._fan_out.scatter(asked)))
        opened = [parcel for parcel in parcels if parcel.number]
        if not opened:
            return NO_PARCEL
        first = min(parcel.number for parcel in opened)
        jobs = [job for parcel in opened if parcel.number == first for job in parcel.jobs]
        return Parcel(first, tuple(jobs))

    def move_in(
        self, move: str, number: int, jobs: Sequence[JobRecord], *, now: Now = None
    ) -> Verb[bool]:
        def body() -> Body[bool]:
            for family in sorted({one for job in jobs for one in families_of(job.options)}):
                yield from self._homes.gather(family)
            parts: dict[int, list[JobRecord]] = {HOME: []}  # home has the number of every parcel
            for job in jobs:
                parts.setdefault(_part_of(job), []).append(job)
            asked = [
                (part, self._plain.move_in(move, number, some, now=now).steps())
                for part, some in parts.items()
            ]
            return any(whole((yield from self._fan_out.scatter(asked))))

        return Verb("move_in", body)

    def move_done(self, move: str, number: int) -> Verb[None]:
        def body() -> Body[None]:
            yield from self._fan_out.everywhere(lambda: self._plain.move_done(move, number).steps())

        return Verb("move_done", body)

    def raise_fence(self, number: int) -> Verb[bool]:
        def body() -> Body[bool]:
            yield from self._fan_out.everywhere(lambda: self._plain.raise_fence(number).steps())
            return True

        return Verb("raise_fence", body)

    def enqueue_fenced(
        self, jobs: Sequence[NewJob], number: int, *, is_repeat: bool = False, now: Now = None
    ) -> Verb[list[Enqueued] | None]:
        return fenced(self._enqueue.enqueue(jobs, is_repeat=is_repeat, now=now, fence=number))

    def key_holders(self, keys: Sequence[str]) -> Verb[list[Holder | None]]:
        return self._plain.key_holders(keys)  # jobs with unique keys are at home


def _part_of(job: JobRecord) -> int:
    is_at_home = (
        job.unique_key is not None
        or job.tenant is not None
        or job.fifo is not None
        or is_gated(job.options)
        or is_tied(job)
        or SCHEDULE_HEADER in job.headers  # its schedule, at home, counts it
    )
    return HOME if is_at_home else shard_of(job.id)

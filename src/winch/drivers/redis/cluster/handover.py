"""The hand-over: a job that begins to have to do with others moves from its shard to home, as it runs or
before it runs again.

`depart` takes it out of the shard and keeps all of it as a message, `arrive` makes it at home what it
was, once, and `forget` lets the message go. Each is one script in one part. A driver that is interrupted
leaves a message behind; the next verb that misses the job, or the next rescue, continues with it. Where
the store replicates, the next step is made only when a replica has the one before. All of it is walked
by tests/model/handover.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from winch.core.errors import StorageUnavailable
from winch.drivers.redis.cluster.fan_out import ClusterBase, FanOut, whole
from winch.drivers.redis.cluster.homes import GateHomes
from winch.drivers.redis.cluster.shards import EVERYWHERE, HOME, ClusterRoute, shard_of
from winch.drivers.redis.records import MICROSECOND
from winch.drivers.redis.verbs.base import Body
from winch.storage.params import ClaimRef

T = TypeVar("T")
Item = TypeVar("Item")

# How long a move is remembered: longer than any message is on its way.
REMEMBERED_FOR = timedelta(days=1) // MICROSECOND
AT_ONCE = 100
# A job that stays because its gates are in its shard; the family of the gates follows.
_SPREAD = b"spread:"

# What lets a job leave its shard: its live claim's token; True where it rests and may be retried; its
# queue where it is ready; False for nothing but what has left already.
# 1 for a job of any state.
Sought = str | bool | int | tuple[str]


class Handover:
    """Verbs by id, wherever the job is, and the way home."""

    def __init__(
        self, base: ClusterBase, fan_out: FanOut, route: ClusterRoute, homes: GateHomes
    ) -> None:
        self._call = base.call
        self._replicated = base.replicated
        self._fan_out = fan_out
        self._route = route
        self._homes = homes
        homes.move, homes.confirmed = self._move_any, self._confirmed
        self.claimed_at_home: set[str] = set()
        """Ids of jobs that are at home, as far as this driver knows: they are looked for there first."""

    def by_id(
        self,
        items: Sequence[Item],
        id_of: Callable[[Item], str],
        body: Callable[[Sequence[Item]], Body[Sequence[T]]],
        is_missing: Callable[[T], bool],
    ) -> Body[list[T]]:
        """Each item in the shard of its id; those that are not found there are looked for at home."""
        answers: list[Any] = [None] * len(items)
        groups: dict[int, list[int]] = {}
        for index, item in enumerate(items):
            job_id = id_of(item)
            where = HOME if job_id in self.claimed_at_home else shard_of(job_id)
            groups.setdefault(where, []).append(index)
        results = yield from self._fan_out.scatter(
            [(where, body([items[index] for index in group])) for where, group in groups.items()]
        )
        missing: list[int] = []
        for (where, group), found in zip(groups.items(), whole(results), strict=True):
            for index, answer in zip(group, found, strict=True):
                answers[index] = answer
                if where != HOME and is_missing(answer):
                    missing.append(index)
        for is_last in (False, True):
            if not missing:
                break
            (found,) = whole(
                (yield from self._fan_out.scatter([(HOME, body([items[index] for index in missing]))]))
            )
            for index, answer in zip(missing, found, strict=True):
                answers[index] = answer
            if not is_last:
                lost = [index for index in missing if is_missing(answers[index])]
                went = yield from self._went_home([id_of(items[index]) for index in lost])
                missing = [index for index in lost if id_of(items[index]) in went]
        return answers

    def _went_home(self, ids: Sequence[str]) -> Body[set[str]]:
        """Those of these jobs, found in no part, that are on their way home or were when it was looked;
        they have arrived now."""
        if not ids:
            return set()
        groups = _by_shard(ids)
        asked = [(number, self._call("whereabouts", ids=some)) for number, some in groups.items()]
        replies = whole((yield from self._fan_out.ask(asked)))
        moved = {
            job_id: word
            for some, words in zip(groups.values(), replies, strict=True)
            for job_id, word in zip(some, words, strict=True)
            if word
        }
        yield from self.move({job_id: False for job_id, word in moved.items() if word == b"leaving"})
        return set(moved)

    def bring_home(self, claims: Iterable[ClaimRef]) -> Body[None]:
        """Let these running jobs go on at home. A job that is there already, or whose claim is not
        live, stays where it is."""
        tokens = {ref.id: ref.token for ref in claims if ref.id not in self.claimed_at_home}
        if tokens:
            yield from self.move(tokens)

    def let_rest_at_home(self, ids: Sequence[str]) -> Body[None]:
        """Bring jobs home that do not run and may be retried; others stay where they are."""
        yield from self.move(dict.fromkeys(ids, True))
        self.claimed_at_home.difference_update(ids)

    def let_wait_at_home(self, queue: str, ids: Sequence[str]) -> Body[None]:
        """Bring jobs home that are ready in this queue; others stay where they are."""
        for start in range(0, len(ids), AT_ONCE):
            yield from self.move(dict.fromkeys(ids[start : start + AT_ONCE], (queue,)))
        self.claimed_at_home.difference_update(ids)

    def move(self, which: Mapping[str, Sought]) -> Body[None]:
        """Bring jobs home that are as `which` describes them, and those on their way already."""
        wanted = self._replicated
        groups = _by_shard(which)
        asked = [
            (
                number,
                self._call(
                    "depart",
                    confirmations=wanted,
                    confirm=wanted > 0,
                    claims=[(job_id, which[job_id]) for job_id in some],
                ),
            )
            for number, some in groups.items()
        ]
        replies = whole((yield from self._fan_out.ask(asked)))
        messages: dict[str, bytes] = {}
        staying: dict[str, str] = {}
        for some, reply in zip(groups.values(), replies, strict=True):
            found = self._confirmed(reply, wanted)
            for job_id, text in zip(some, found, strict=True):
                if text.startswith(_SPREAD):
                    staying[job_id] = text.removeprefix(_SPREAD).decode()
                elif text:
                    messages[job_id] = text
        if staying:  # their gates go home with all jobs that use them, these among them
            for family in sorted(set(staying.values())):
                yield from self._homes.gather(family, is_doubted=True)
            yield from self.move({job_id: which[job_id] for job_id in staying})
        if not messages:
            return
        reply = yield self._call(
            "arrive",
            blobs=list(messages.values()),
            confirmations=wanted,
            confirm=wanted > 0,
            ids=list(messages),
        )
        self._confirmed(reply, wanted)
        self.claimed_at_home.update(messages)
        gone = [(number, self._call("forget", ids=some)) for number, some in _by_shard(messages).items()]
        whole((yield from self._fan_out.ask(gone)))

    def _move_any(self, ids: Sequence[str]) -> Body[None]:
        for start in range(0, len(ids), AT_ONCE):
            yield from self.move(dict.fromkeys(ids[start : start + AT_ONCE], 1))

    def let_follow_gates(self, ids: Sequence[str]) -> Body[None]:
        """Bring jobs home whose gates are there."""
        asked = [(number, self._call("strays", ids=some)) for number, some in _by_shard(ids).items()]
        found = whole((yield from self._fan_out.ask(asked)))
        if strays := [job_id.decode() for some in found for job_id in some]:
            yield from self.move(dict.fromkeys(strays, 1))

    def _confirmed(self, reply: Any, wanted: int) -> Any:
        """The reply, where enough replicas have confirmed it."""
        if not wanted:
            return reply
        reply, confirmed = reply
        if not isinstance(confirmed, int) or confirmed < wanted:
            count = confirmed if isinstance(confirmed, int) else 0
            raise StorageUnavailable(
                f"{self._route.address.describe()}: {count} of {wanted} replicas have confirmed "
                "that a job moves to the home shard; the move continues when they have",
                maybe_applied=True,
            )
        return reply

    def settle(self) -> Body[None]:
        """Go on with moves that were begun and not ended."""
        asked = [
            (number, self._call("settle", keep=REMEMBERED_FOR, limit=AT_ONCE)) for number in EVERYWHERE
        ]
        left = whole((yield from self._fan_out.ask(asked)))
        found = {job_id.decode(): False for ids in left for job_id in ids}
        if found:
            yield from self.move(found)
        yield from self._homes.settle()


def _by_shard(ids: Iterable[str]) -> dict[int, list[str]]:
    groups: dict[int, list[str]] = {}
    for job_id in ids:
        groups.setdefault(shard_of(job_id), []).append(job_id)
    return groups

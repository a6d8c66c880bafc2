"""How verbs reach the parts of a store in a cluster.

The bodies of the verbs are those of one server. Several of them, one per part, are driven side by side:
what they want to send in the same moment goes out as one call per node (lua/cluster/each.lua).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import hiredis

from winch.core.errors import StorageUnavailable, WinchError
from winch.drivers.redis.address import HostPort
from winch.drivers.redis.cluster.shards import EVERYWHERE, SHARDS, ClusterRoute, meta_keys
from winch.drivers.redis.connections.routing import TRIES, delay, translated
from winch.drivers.redis.scripts import (
    PartCall,
    RetryPause,
    ScriptBatch,
    ScriptCall,
    call,
    call_many,
    command,
    script_for_many,
)
from winch.drivers.redis.verbs.base import Base, Body, Step

T = TypeVar("T")


class ClusterBase(Base):
    """How a verb calls a script in a part of the store that is chosen later."""

    def call(
        self, name: str, /, *, blobs: Sequence[bytes] = (), confirmations: int = 0, **args: Any
    ) -> PartCall:
        args["in_cluster"] = True
        return PartCall(name, args, blobs, confirmations)

    def sendable(self, what: Step) -> ScriptCall | ScriptBatch | RetryPause:
        if isinstance(what, PartCall):  # of a body that nothing has sent elsewhere: home
            return call(self.key, what.name, what.args, what.blobs, confirmations=what.confirmations)
        return what


class FanOut:
    """Drives the bodies of verbs in several parts of the store at once."""

    def __init__(self, route: ClusterRoute) -> None:
        self._route = route
        self._keys = meta_keys(route.address.schema)
        self._next_shard = 1 + random.randrange(SHARDS)  # noqa: S311  # not a secret

    def learn(self) -> Body[None]:
        self._route.learn((yield command("CLUSTER", "SLOTS")))

    def prepare(self, names: Sequence[str]) -> Body[None]:
        """Give every node these scripts before they are needed. A node that does not take them now gets
        each with its first call."""
        texts = [script_for_many(name).text for name in names]
        yield ScriptBatch(
            [
                command("SCRIPT", "LOAD", text, where=number, is_brief=True)
                for number in self._route.bells()
                for text in texts
            ]
        )

    def shards_in_turn(self, least: int) -> tuple[list[int], list[int]]:
        """At least so many shards to look at first, and the others. Of a node all shards are looked at,
        unless that would be twice as many: each call of a node has its cost. The next call begins where
        this one ends, so that all have their turn."""
        owners, start = self._route.owners, self._next_shard
        order = [1 + (start - 1 + index) % SHARDS for index in range(SHARDS)]
        nodes = list(dict.fromkeys(map(owners.get, order)))
        order.sort(key=lambda number: nodes.index(owners.get(number)))
        most = least
        while most < 2 * least and owners.get(order[most]) == owners.get(order[most - 1]):
            most += 1
        self._next_shard = order[most]
        return order[:most], order[most:]

    def scatter(
        self,
        bodies: Sequence[tuple[int, Body[T]]],
        *,
        budget: int | None = None,
        is_brief: bool = False,
    ) -> Body[list[T | WinchError]]:
        """Drive bodies side by side, each in its part of the store; what each came to, or its error."""
        results: list[Any] = [None] * len(bodies)
        wanted: dict[int, Any] = {}
        for index, (_, body) in enumerate(bodies):
            self._advance(index, body, None, wanted, results)
        while wanted:
            asked = [(bodies[index][0], part) for index, part in wanted.items()]
            replies = yield from self.ask(asked, budget=budget, is_brief=is_brief)
            indexes, wanted = list(wanted), {}
            for index, reply in zip(indexes, replies, strict=True):
                if isinstance(reply, WinchError):
                    results[index] = reply
                else:
                    self._advance(index, bodies[index][1], reply, wanted, results)
        return results

    @staticmethod
    def _advance(
        index: int, body: Body[Any], reply: Any, wanted: dict[int, Any], results: list[Any]
    ) -> None:
        try:
            wanted[index] = body.send(reply)
        except StopIteration as stop:
            results[index] = stop.value
        except WinchError as error:
            results[index] = error

    def ask(
        self,
        asked: Sequence[tuple[int, PartCall]],
        *,
        budget: int | None = None,
        is_brief: bool = False,
    ) -> Body[list[Any]]:
        """Send each part's call to the node that has the part: one call per node and script."""
        replies: list[Any] = [None] * len(asked)
        pending: Sequence[int] = range(len(asked))
        tries = 0
        while pending:
            if self._route.is_stale:
                yield from self.learn()
            groups: dict[object, list[int]] = {}
            for index in pending:
                where, part = asked[index]
                if is_brief and self._route.is_avoided(where):
                    replies[index] = StorageUnavailable(
                        f"{self._route.address.describe()}: a node that did not answer just now is "
                        "passed over"
                    )
                    continue
                owner = self._route.owners.get(where, where)
                groups.setdefault((owner, part.name), []).append(index)
            again: list[int] = []
            batches = [list(groups.values())] if budget is None else [[g] for g in groups.values()]
            for batch in batches:
                calls = [
                    call_many(
                        self._keys,
                        [asked[index] for index in group],
                        bell=self._route.bell_of(asked[group[0]][0]),
                        budget=budget,
                        is_brief=is_brief,
                    )
                    for group in batch
                ]
                # Before the calls: one that fails forgets which node had its part.
                owners = [self._route.owners.get(asked[group[0]][0]) for group in batch]
                answers = yield ScriptBatch(calls)
                for group, node, answer in zip(batch, owners, answers, strict=True):
                    again += self._took(group, node, answer, asked, replies)
                    if budget is not None:
                        budget -= sum(map(_spent, (replies[index] for index in group)))
            tries += 1
            if again and (is_brief or tries > TRIES):
                for index in again:
                    text = "TRYAGAIN the slot is moving to another node"
                    replies[index] = translated(text, self._route)
                again = []
            if again:
                self._route.is_stale = True
                yield RetryPause(delay(tries))
            pending = again
        return replies

    def _took(
        self,
        group: Sequence[int],
        owner: HostPort | None,
        answer: Any,
        asked: Sequence[tuple[int, PartCall]],
        replies: list[Any],
    ) -> list[int]:
        """Put the answer of one node into the replies; returns what has to be asked again."""
        again = []
        confirmed = None
        if asked[group[0]][1].confirmations and isinstance(answer, list):
            answer, confirmed = answer
            if isinstance(confirmed, int) and confirmed < asked[group[0]][1].confirmations:
                self._route.note_unreplicated(owner)
        if isinstance(answer, WinchError):
            if isinstance(answer, StorageUnavailable):  # a node that is full, say, has answered
                self._route.avoid(owner)
            for index in group:
                replies[index] = answer
            return []
        for index, reply in zip(group, answer, strict=True):
            if isinstance(reply, hiredis.ReplyError):
                if str(reply).startswith("TRYAGAIN"):
                    again.append(index)
                else:
                    if str(reply).startswith("NOREPLICAS"):
                        self._route.note_unreplicated(owner)
                    replies[index] = translated(str(reply), self._route)
            else:
                replies[index] = reply if confirmed is None else [reply, confirmed]
        return again

    def everywhere(self, body: Callable[[], Body[T]]) -> Body[list[T]]:
        """The same in every part; home's is the first."""
        results = yield from self.scatter([(number, body()) for number in EVERYWHERE])
        return whole(results)


def whole(results: Iterable[T | WinchError]) -> list[T]:
    """The results, where none is an error; else what there is to raise for all of them."""
    found: list[T] = []
    errors: list[WinchError] = []
    for result in results:
        if isinstance(result, WinchError):
            errors.append(result)
        else:
            found.append(result)
    if not errors:
        return found
    worst = next((e for e in errors if not isinstance(e, StorageUnavailable)), errors[0])
    is_partly = bool(found) or any(
        isinstance(error, StorageUnavailable) and error.maybe_applied for error in errors
    )
    if is_partly and isinstance(worst, StorageUnavailable) and not worst.maybe_applied:
        raise StorageUnavailable(str(worst), maybe_applied=True) from worst
    raise worst


def _spent(reply: Any) -> int:
    """How much of a budget a reply has used up: prune, rescue, claim; see lua/cluster/each.lua."""
    if isinstance(reply, int):
        return reply
    if not isinstance(reply, list):
        return 0
    if reply and isinstance(reply[0], int):  # the moment of a claim stands first
        return sum(len(ids) for ids in reply[2::4])
    return len(reply) // 4

"""Claims over all parts of a store in a cluster.

The first ready jobs of all parts are looked at, then taken where they are. What has gates or a tenant is
at home: where a queue has such jobs, home receives the first plain ones elsewhere and decides whose
turn it is; how many it leaves free is how many of those are taken.

A queue with a concurrency is claimed at home alone, where its permits are counted. Its first jobs
elsewhere move home before, no more than may run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from winch.core.errors import StorageUnavailable, WinchError
from winch.core.job import Claim, strict_place
from winch.drivers.redis.cluster.claim_plan import ClaimPlan, Heads, planned
from winch.drivers.redis.cluster.fan_out import ClusterBase, FanOut
from winch.drivers.redis.cluster.handover import Handover
from winch.drivers.redis.cluster.shards import EVERYWHERE, HOME, SHARDS
from winch.drivers.redis.verbs.base import Body
from winch.drivers.redis.verbs.claim import ClaimVerbs
from winch.storage.params import ClaimParams
from winch.storage.verbs import Now, Verb

T = TypeVar("T")
# Claims for so many jobs or fewer take the very first of all parts; larger ones take what some parts
# have, in turn.
EXACT = 64
# How many shards a large claim looks at first; at most twice as many, to look at whole nodes.
LOOKED_AT = 16
# How many ids of jobs claimed at home are remembered, to ask there first.
REMEMBERED = 100_000
# How long the reply of a claim from one queue is: the moment, the queue, ids, envelopes, states.
COMMON = 5

At = Callable[[str, int], Body[list[Claim]]]


class ClusterClaimVerbs:
    """Take the first ready jobs of all parts."""

    def __init__(self, base: ClusterBase, fan_out: FanOut, handover: Handover) -> None:
        self._sort_keys: dict[str, tuple[int, int]] = {}
        self._plain = ClaimVerbs(base, self._sort_keys)
        self._call = base.call
        self._fan_out = fan_out
        self._handover = handover

    def claim(self, params: ClaimParams, *, now: Now = None) -> Verb[list[Claim]]:
        def at(queue: str, limit: int) -> Body[list[Claim]]:
            # Each part has its share of the free slots.
            free = None if params.free is None else -(-params.free * limit // params.limit)
            chosen = msgspec.structs.replace(params, queues=(queue,), limit=limit, free=free)
            return self._plain.claim(chosen, now=now).steps()

        def body() -> Body[list[Claim]]:
            heads = yield from self._heads(params)
            if not heads.gated and not heads.rooms:
                found = yield from self._claim_plain(heads, params.queues, params.limit, at)
                if not found and heads.later:  # what was looked at is closed, and other parts have jobs
                    yield from self._read(heads, params, heads.later, 0)
                    found = yield from self._claim_plain(heads, params.queues, params.limit, at)
                return found
            found = []
            for queue in params.queues:
                free = params.limit - len(found)
                if free <= 0:
                    break
                if queue in heads.rooms:
                    found += yield from self._claim_counted(heads, queue, free, at)
                elif queue in heads.gated:
                    found += yield from self._claim_gated(heads, queue, free, at)
                else:
                    found += yield from self._claim_plain(heads, (queue,), free, at)
            return found

        return Verb("claim", body)

    def first_elsewhere(self, params: ClaimParams, here: int) -> Body[dict[str, tuple[str, int]]]:
        """The first job of each queue that is not in this part, with its sort key."""
        queues = params.queues
        heads = Heads(queues)
        what = self._call("heads", queues=queues, count=1, gated=True, tasks=_known(params))
        replies = yield from self._fan_out.ask([(number, what) for number in EVERYWHERE], is_brief=True)
        for number, reply in zip(EVERYWHERE, replies, strict=True):
            heads.add(number, None if isinstance(reply, WinchError) else reply)
        found = {queue: heads.first_away(queue, 1, here) for queue in queues}
        return {
            queue: (job_id.decode(), key) for queue, first in found.items() for key, job_id, _ in first
        }

    def claimed_at_home(self, claims: Sequence[Claim]) -> None:
        """Remember that these jobs are at home: they are asked for there first."""
        if len(self._handover.claimed_at_home) > REMEMBERED:
            self._handover.claimed_at_home.clear()
        self._handover.claimed_at_home.update(claim.id for claim in claims)

    def _heads(self, params: ClaimParams) -> Body[Heads]:
        """The ready jobs of all parts, as far as a claim has to know them."""
        heads = Heads(params.queues)
        is_exact = params.limit <= EXACT
        is_gated = params.gated != 0
        count = min(params.limit, 2 + params.limit // 8) if is_exact else 0
        if is_gated and not is_exact:
            count = 2 + 2 * params.limit // SHARDS
        numbers: Sequence[int] = EVERYWHERE
        later: Sequence[int] = ()
        if not is_exact:
            first, later = self._fan_out.shards_in_turn(LOOKED_AT)
            numbers = [HOME, *first]
        for _ in range(2):
            if not numbers:
                break
            yield from self._read(heads, params, numbers, count)
            # Of a part that may have more of the first ones than it was asked for, more is read.
            if is_exact:
                numbers, count = heads.unread(params.limit), params.limit
            else:
                is_enough = sum(map(heads.total, params.queues[:1])) >= params.limit
                numbers = () if is_enough else later
                heads.later = later if is_enough else ()
        return heads

    def _read(self, heads: Heads, params: ClaimParams, numbers: Sequence[int], count: int) -> Body[None]:
        """Look at the first `count` ready jobs of these parts."""
        what = self._call(
            "heads",
            queues=params.queues,
            count=count,
            gated=params.gated != 0,
            tasks=_known(params),
        )
        replies = yield from self._fan_out.ask([(number, what) for number in numbers], is_brief=True)
        for number, reply in zip(numbers, replies, strict=True):
            heads.add(number, None if isinstance(reply, WinchError) else reply)

    def _claim_plain(self, heads: Heads, queues: Sequence[str], limit: int, at: At) -> Body[list[Claim]]:
        plan = planned(heads, limit, queues, is_exact=limit <= EXACT)
        found = yield from self._claim_planned(plan, at)
        if len(found) < sum(plan.values()):
            found += yield from self._claim_rest(heads, plan, queues, limit - len(found), at)
        order = {queue: index for index, queue in enumerate(queues)}
        keys = self._places(heads, found)
        found.sort(key=lambda claim: (order[claim.queue], keys[claim.id], claim.id))
        return found

    def _places(self, heads: Heads, claims: Iterable[Claim]) -> dict[str, int]:
        """Where the jobs stood in their queues."""
        found = {}
        for claim in claims:
            key, priority = self._sort_keys.pop(claim.id, (0, 0))
            found[claim.id] = strict_place(key, priority) if claim.queue in heads.strict else key
        return found

    def _claim_counted(self, heads: Heads, queue: str, limit: int, at: At) -> Body[list[Claim]]:
        """Claims from a queue with a concurrency: at home, where it is counted."""
        found: list[Claim] = []
        room = min(limit, heads.rooms[queue])
        first = heads.first_of_all(queue)
        # A claim passes over tasks that its worker does not know: then all that was read moves.
        for some in (first[:room], first[room:]):
            if len(found) >= room:
                break
            if away := [job_id.decode() for _, job_id, number in some if number != HOME]:
                yield from self._handover.let_wait_at_home(queue, away)
            asked = at(queue, room - len(found))
            (result,) = yield from self._fan_out.scatter([(HOME, asked)], is_brief=True)
            found += self._claimed(HOME, result)
        for claim in found:
            self._sort_keys.pop(claim.id, None)
        return found

    def _claim_gated(self, heads: Heads, queue: str, limit: int, at: At) -> Body[list[Claim]]:
        away = heads.first_away(queue, limit, HOME)
        elsewhere = [(job_id.decode(), key) for key, job_id, _ in away]
        behind: list[int] = []
        asked = _with_jobs_away(elsewhere, at(queue, limit), behind)
        results = yield from self._fan_out.scatter([(HOME, asked)], is_brief=True)
        home = self._claimed(HOME, results[0])
        plan: ClaimPlan = {}
        for _, _, number in away[: limit - len(home)]:
            plan[number, queue] = plan.get((number, queue), 0) + 1
        found = yield from self._claim_planned(plan, at)
        if len(found) < sum(plan.values()):
            found += yield from self._claim_rest(
                heads, plan, (queue,), limit - len(home) - len(found), at
            )
        keys = self._places(heads, (*home, *found))
        found.sort(key=lambda claim: (keys[claim.id], claim.id))
        if not behind:  # there was nothing with a gate or a tenant any more
            merged = [*home, *found]
            merged.sort(key=lambda claim: (keys[claim.id], claim.id))
            return merged
        # Home's are in the order of their turns, which between tenants is not that of the keys.
        merged, taken = [], 0
        for claim, count in zip(home, behind, strict=True):
            merged += [*found[taken:count], claim]
            taken = count
        return merged + found[taken:]

    def _claim_planned(self, plan: ClaimPlan, at: At, *, budget: int | None = None) -> Body[list[Claim]]:
        bodies = [(number, at(queue, limit)) for (number, queue), limit in plan.items()]
        results = yield from self._fan_out.scatter(bodies, budget=budget, is_brief=True)
        found: list[Claim] = []
        for (number, _), result in zip(plan, results, strict=True):
            found += self._claimed(number, result)
        return found

    def _claimed(self, number: int, result: list[Claim] | WinchError) -> list[Claim]:
        if isinstance(result, WinchError):
            # A node that is down is passed over. One that may have given jobs away makes the whole
            # claim unknown: its token is given up, and so is what others have given.
            if not isinstance(result, StorageUnavailable) or result.maybe_applied:
                raise result
            return []
        if number == HOME and result:
            self.claimed_at_home(result)
        return result

    def _claim_rest(
        self, heads: Heads, plan: ClaimPlan, queues: Sequence[str], limit: int, at: At
    ) -> Body[list[Claim]]:
        """Some gave less than was planned: jobs of tasks that this worker does not know, or other
        workers were faster. The rest comes from the other parts, node by node."""
        found: list[Claim] = []
        for queue in queues:
            if len(found) >= limit:
                break
            rest = {
                (number, queue): limit
                for number in heads.numbers(queue)
                if heads.count(number, queue) > plan.get((number, queue), 0)
                # Of a part that was visited, gates have given what they give.
                and not (queue in heads.spread and (number, queue) in plan)
            }
            if rest:
                found += yield from self._claim_planned(rest, at, budget=limit - len(found))
        return found


def _known(params: ClaimParams) -> dict[str, bool] | None:
    return None if params.tasks is None else dict.fromkeys(params.tasks, True)


def _with_jobs_away(away: Sequence[tuple[str, int]], body: Body[T], behind: list[int]) -> Body[T]:
    """A claim at home that receives the jobs elsewhere; `behind`: how many of those have their turn
    before each that it takes."""
    what: Any = next(body)
    while True:
        what.args["away"] = away
        reply: Any = yield what
        if len(reply) > COMMON:
            behind += reply.pop()
        try:
            what = body.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result

"""Gates in a cluster: those with a key in the shard of the key or at home, all others at home. What is
set for a queue, and for limits by name, is known in every part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from winch.core.gates.uses import GateSpec
from winch.core.policy.queue_settings import QueueRule
from winch.drivers.redis.cluster.fan_out import ClusterBase, FanOut, whole
from winch.drivers.redis.cluster.handover import Handover
from winch.drivers.redis.cluster.shards import EVERYWHERE, HOME
from winch.drivers.redis.verbs.base import Body
from winch.drivers.redis.verbs.gates import GateVerbs, read_limits
from winch.storage.gate_records import LimitInfo
from winch.storage.params import Promoted
from winch.storage.verbs import Now, Verb

# An admit of fewer than this goes from part to part, so that it admits no more.
AT_LARGE = 1000


class ClusterGateVerbs(GateVerbs):
    """Set what claims read: home counts, and the shards of a queue with a concurrency give nothing."""

    def __init__(self, base: ClusterBase, fan_out: FanOut, handover: Handover) -> None:
        super().__init__(base)
        self._part_call = base.call
        self._fan_out = fan_out
        self._handover = handover

    def set_queue(self, queue: str, rule: QueueRule, *, now: Now = None) -> Verb[None]:
        def body() -> Body[None]:
            # Home notes it first: a call that dies half way is ended by the next rescue.
            number = yield self._part_call(
                "begin_rule",
                queue=queue,
                concurrency=rule.concurrency or False,
                is_strict=rule.is_strict,
            )
            yield from self._rule_everywhere(queue, rule, number, now)

        return Verb("set_queue", body)

    def _rule_everywhere(
        self, queue: str, rule: QueueRule, number: int, now: datetime | None
    ) -> Body[None]:
        # Home is never open while a shard is closed: a call that dies half way keeps no job back.
        parts = [(HOME,), [part for part in EVERYWHERE if part != HOME]]
        for numbers in parts if rule.concurrency is not None else reversed(parts):
            results = yield from self._fan_out.scatter(
                [
                    (part, self.set_here(queue, rule, now, is_shard=part != HOME, number=number))
                    for part in numbers
                ]
            )
            running = [ref for refs in whole(results) for ref in refs]
            yield from self._handover.bring_home(running)  # where they count
        yield self._part_call("end_rule", queue=queue, number=number)

    def settle(self, now: datetime | None) -> Body[None]:
        """Go on with rules that were begun and not ended."""
        found = yield self._part_call("rules_begun")
        for place in range(0, len(found), 4):
            queue, number, concurrency, is_strict = found[place : place + 4]
            rule = QueueRule(concurrency=concurrency or None, is_strict=bool(is_strict))
            yield from self._rule_everywhere(queue.decode(), rule, number, now)

    def admit(self, *, limit: int = 1000, is_sweep: bool = False, now: Now = None) -> Verb[Promoted]:
        plain = super().admit

        def body() -> Body[Promoted]:
            found: list[Promoted] = []
            parts: list[Sequence[int]] = [EVERYWHERE]
            if limit < AT_LARGE:
                asked = [(number, self._part_call("waited_at")) for number in EVERYWHERE]
                some = whole((yield from self._fan_out.ask(asked)))
                parts = [(number,) for number in EVERYWHERE if number == HOME or some[number]]
            for numbers in parts:
                left = limit - sum(one.count for one in found)
                if left <= 0:
                    break
                found += whole(
                    (
                        yield from self._fan_out.scatter(
                            [
                                (number, plain(limit=left, is_sweep=is_sweep, now=now).steps())
                                for number in numbers
                            ]
                        )
                    )
                )
            following = [one.next_at for one in found if one.next_at is not None]
            return Promoted(
                sum(one.count for one in found),
                min(following, default=None),
                max(one.now for one in found),
            )

        return Verb("admit", body)

    def set_limits(
        self, specs: Mapping[str, GateSpec | None], *, by: str | None, now: Now = None
    ) -> Verb[None]:
        plain = super().set_limits

        def body() -> Body[None]:
            yield from self._fan_out.everywhere(lambda: plain(specs, by=by, now=now).steps())

        return Verb("set_limits", body)

    def limits(self) -> Verb[list[LimitInfo]]:
        def body() -> Body[list[LimitInfo]]:
            asked = [(number, self._part_call("limits")) for number in EVERYWHERE]
            home, *shards = whole((yield from self._fan_out.ask(asked)))
            rows, used, waiting, caps = home
            for _, more_used, more_waiting, _ in shards:
                used, waiting = used + more_used, waiting + more_waiting
            return read_limits(rows, used, waiting, caps)

        return Verb("limits", body, is_read=True)

    def has_gated(self, queues: Sequence[str]) -> Verb[bool]:
        def body() -> Body[bool]:
            asked = [(number, self._part_call("has_gated", queues=queues)) for number in EVERYWHERE]
            return any(whole((yield from self._fan_out.ask(asked))))

        return Verb("has_gated", body, is_read=True)

"""Gates in a cluster: all of them are at home. What is set for a queue is known in every part."""

from __future__ import annotations

from datetime import datetime

from winch.core.policy.queue_settings import QueueRule
from winch.drivers.redis.cluster.fan_out import ClusterBase, FanOut, whole
from winch.drivers.redis.cluster.handover import Handover
from winch.drivers.redis.cluster.shards import EVERYWHERE, HOME
from winch.drivers.redis.verbs.base import Body
from winch.drivers.redis.verbs.gates import GateVerbs
from winch.storage.verbs import Verb


class ClusterGateVerbs(GateVerbs):
    """Set what claims read: home counts, and the shards of a queue with a concurrency give nothing."""

    def __init__(self, base: ClusterBase, fan_out: FanOut, handover: Handover) -> None:
        super().__init__(base)
        self._fan_out = fan_out
        self._handover = handover

    def set_queue(self, queue: str, rule: QueueRule, *, now: datetime | None = None) -> Verb[None]:
        def body() -> Body[None]:
            # Home is never open while a shard is closed: a call that dies half way keeps no job back.
            parts = [(HOME,), [number for number in EVERYWHERE if number != HOME]]
            for numbers in parts if rule.concurrency is not None else reversed(parts):
                results = yield from self._fan_out.scatter(
                    [
                        (number, self.set_here(queue, rule, now, is_shard=number != HOME))
                        for number in numbers
                    ]
                )
                running = [ref for refs in whole(results) for ref in refs]
                yield from self._handover.bring_home(running)  # where they count

        return Verb("set_queue", body)

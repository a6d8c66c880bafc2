"""Limits, rates, FIFO keys and tenants. What the store holds about them is in gate_state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from winch.core.gates.uses import GateSpec, is_gated, queue_key
from winch.core.lifecycle import JobState
from winch.core.policy.queue_settings import NO_RULE, QueueRule
from winch.drivers.memory.gate_state import Permit
from winch.drivers.memory.verbs.base import Base, verb
from winch.storage.decide.gates import CODE, queue_limit
from winch.storage.gate_records import LimitInfo
from winch.storage.params import Promoted
from winch.storage.verbs import Now, Verb


class GateVerbs:
    """Open gates, and set their numbers."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self._state = base.state

    def admit(self, *, limit: int = 1000, is_sweep: bool = False, now: Now = None) -> Verb[Promoted]:
        def body() -> Promoted:
            at = self._base.now(now)
            gates = self._state.gates
            keys = gates.due(at)
            if is_sweep:
                gates.forget(self._base.is_known)
                keys = gates.waited_at()
            count = self._base.open_gates(keys, at)
            return Promoted(count, gates.next_at(), at)

        return verb("admit", body)

    def set_limits(
        self, specs: Mapping[str, GateSpec | None], *, by: str | None, now: Now = None
    ) -> Verb[None]:
        def body() -> None:
            at = self._base.now(now)
            self._base.open_gates(self._state.gates.set(specs, by or CODE, by is not None, at), at)

        return verb("set_limits", body)

    def set_queue(self, queue: str, rule: QueueRule, *, now: Now = None) -> Verb[None]:
        def body() -> None:
            if rule == NO_RULE:
                self._state.rules.pop(queue, None)
            else:
                self._state.rules[queue] = rule
            if rule.concurrency is not None:
                for job in self._state.live.values():
                    if job.queue == queue and job.state is JobState.RUNNING:
                        permit = Permit(job.token, 1)
                        self._state.gates.permits.setdefault((queue_key(queue), job.id), permit)
            self._base.ring({queue})

        return verb("set_queue", body)

    def limits(self) -> Verb[list[LimitInfo]]:
        def body() -> list[LimitInfo]:
            found = self._state.gates.limits()
            for queue, rule in self._state.rules.items():
                if rule.concurrency is not None:
                    used = len(self._state.gates.holders(queue_key(queue)))
                    found.append(queue_limit(queue, rule.concurrency, used))
            return sorted(found, key=lambda limit: limit.name)

        return verb("limits", body, is_read=True)

    def has_gated(self, queues: Sequence[str]) -> Verb[bool]:
        def body() -> bool:
            return any(queue in self._state.rules for queue in queues) or any(
                job.state is JobState.READY and job.queue in queues and is_gated(job.options)
                for job in self._state.live.values()
            )

        return verb("has_gated", body, is_read=True)

"""Limits, rates, FIFO keys and tenants. What the store holds about them is in gate_state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec.structs import replace

from winch.core.gates.uses import GateSpec, is_gated
from winch.core.job import EPOCH, sort_key
from winch.core.lifecycle import JobState
from winch.drivers.memory.verbs.base import Base, verb
from winch.storage.params import LimitInfo, Promoted, Rebinding
from winch.storage.verbs import Verb


class GateVerbs:
    """Open gates, and set their numbers."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self._state = base.state

    def admit(
        self, *, limit: int = 1000, is_sweep: bool = False, now: datetime | None = None
    ) -> Verb[Promoted]:
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
        self,
        specs: Mapping[str, GateSpec | None],
        *,
        by: str,
        is_live: bool = True,
        now: datetime | None = None,
    ) -> Verb[None]:
        def body() -> None:
            at = self._base.now(now)
            self._base.open_gates(self._state.gates.set(specs, by, is_live, at), at)

        return verb("set_limits", body)

    def rebind(self, changes: Sequence[Rebinding], *, now: datetime | None = None) -> Verb[list[bool]]:
        def body() -> list[bool]:
            return [self._rebound(change) for change in changes]

        return verb("rebind", body)

    def _rebound(self, change: Rebinding) -> bool:
        job = self._state.live.get(change.id)
        if job is None or job.state is JobState.RUNNING:
            return False
        if (job.options, job.priority) != (change.options, change.priority):
            return False
        ahead = sort_key(EPOCH, change.to_priority) - sort_key(EPOCH, job.priority)
        if job.id in self._state.keys:  # else it gets one when it is ready
            self._state.keys[job.id] += ahead
        self._state.live[job.id] = replace(job, options=change.to_options, priority=change.to_priority)
        return True

    def limits(self) -> Verb[list[LimitInfo]]:
        return verb("limits", self._state.gates.limits, is_read=True)

    def has_gated(self, queues: Sequence[str]) -> Verb[bool]:
        def body() -> bool:
            return any(
                job.state is JobState.READY and job.queue in queues and is_gated(job.options)
                for job in self._state.live.values()
            )

        return verb("has_gated", body, is_read=True)

"""Gates in a cluster: all of them are at home. Only a verb on jobs by id has to find them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from winch.core.gates.uses import is_gated
from winch.drivers.redis.cluster.fan_out import ClusterBase
from winch.drivers.redis.cluster.handover import Handover
from winch.drivers.redis.verbs.base import Body
from winch.drivers.redis.verbs.gates import GateVerbs
from winch.storage.params import Rebinding
from winch.storage.verbs import Verb


class ClusterGateVerbs(GateVerbs):
    """Bring a job home when it gets its first gate."""

    def __init__(self, base: ClusterBase, handover: Handover) -> None:
        super().__init__(base)
        self._handover = handover

    def rebind(self, changes: Sequence[Rebinding], *, now: datetime | None = None) -> Verb[list[bool]]:
        plain = super().rebind

        def body() -> Body[list[bool]]:
            begun = [one for one in changes if is_gated(one.to_options) and not is_gated(one.options)]
            yield from self._handover.let_wait_at_home(begun)  # where the gates are
            took = yield from self._handover.by_id(
                changes,
                lambda one: one.id,
                lambda some: plain(some, now=now).steps(),
                lambda took: not took,
            )
            self._handover.claimed_at_home.difference_update([one.id for one in begun])
            return took

        return Verb("rebind", body)

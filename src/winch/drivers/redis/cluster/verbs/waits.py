"""Waits in a cluster: a job that waits, or takes a signal, is at home."""

from __future__ import annotations

from collections.abc import Sequence

from winch.drivers.redis.cluster.fan_out import ClusterBase
from winch.drivers.redis.cluster.handover import Handover
from winch.drivers.redis.cluster.homes import GateHomes
from winch.drivers.redis.verbs.base import Body
from winch.drivers.redis.verbs.enqueue import EnqueueVerbs
from winch.drivers.redis.verbs.waits import WaitVerbs
from winch.storage.decide.waits import Dependencies, Taken
from winch.storage.params import ClaimRef, Enqueued, NewJob
from winch.storage.verbs import Now, Verb


class ClusterWaitVerbs(WaitVerbs):
    """Bring a running job home before it waits."""

    def __init__(
        self, base: ClusterBase, enqueue: EnqueueVerbs, handover: Handover, homes: GateHomes
    ) -> None:
        super().__init__(base, enqueue)
        self._handover = handover
        self._homes = homes

    def enqueue_after(
        self, jobs: Sequence[NewJob], after: Dependencies, *, is_repeat: bool = False, now: Now = None
    ) -> Verb[list[Enqueued] | None]:
        """At home, where jobs that wait and jobs that are waited for find each other."""
        plain = super().enqueue_after

        def body() -> Body[list[Enqueued] | None]:
            if after.claim is not None:
                yield from self._handover.bring_home([after.claim])
            yield from self._homes.gather_for(jobs)
            stored = plain(jobs, after, is_repeat=is_repeat, now=now)
            return (yield from stored.steps())

        return Verb("enqueue_after", body)

    def take_signal(self, claim: ClaimRef, name: str, *, wanted_by: str, now: Now = None) -> Verb[Taken]:
        plain = super().take_signal

        def body() -> Body[Taken]:
            yield from self._handover.bring_home([claim])
            taking = plain(claim, name, wanted_by=wanted_by, now=now)
            return (yield from taking.steps())

        return Verb("take_signal", body)

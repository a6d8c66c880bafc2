"""Schedules in a cluster: they are at home, and so are the jobs of their windows."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from winch.core.gates.places import families_of
from winch.drivers.redis.cluster.fan_out import ClusterBase
from winch.drivers.redis.cluster.homes import GateHomes
from winch.drivers.redis.verbs.base import Body
from winch.drivers.redis.verbs.schedules import ScheduleVerbs
from winch.storage.decide.schedules import Change, Changed, Effect
from winch.storage.verbs import Now, Verb


class ClusterScheduleVerbs(ScheduleVerbs):
    """Bring the gates of a schedule's jobs home before the jobs are stored."""

    def __init__(self, base: ClusterBase, homes: GateHomes) -> None:
        super().__init__(base)
        self._homes = homes

    def change_schedule(self, name: str, change: Change, *, now: Now = None) -> Verb[Changed]:
        plain = super().change_schedule

        def body() -> Body[Changed]:
            return (yield from self._homes.at_home(plain(name, change, now=now).steps()))

        return Verb("change_schedule", body)

    def _change(self, name: str, seen: int, effect: Effect, now: datetime | None) -> Any:
        what = super()._change(name, seen, effect, now)
        families = {one for job in effect.jobs if job is not None for one in families_of(job.options)}
        if families:
            what.args["families"] = sorted(families)
        return what

"""The gates of the memory driver: the holders of permits, and the state of each gate.

Written for clarity: permits are a mapping, a look at a gate counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from winch.core.gates.draw import Draw, Fair, draw, tenant_key
from winch.core.gates.passes import Admission, Candidate, passes, room
from winch.core.gates.scopes import braked, counted
from winch.core.gates.uses import FIFO, GateSpec, GateUse, Look, gates_of, is_gated, queue_key
from winch.core.job import JobRecord, fifo_order, from_micros, to_micros
from winch.core.lifecycle import JobState
from winch.storage.decide.gates import Setting, gate_info, limit_info, why_ended
from winch.storage.gate_records import GateInfo, LimitInfo
from winch.storage.params import ClaimParams, Finish


class Permit(NamedTuple):
    """`token`: of the claim it goes with; None: a turn, which lasts until the job is final."""

    token: str | None
    weight: int


@dataclass
class Gates:
    """All that the store holds about gates. `live` and `keys` are the driver's own."""

    live: dict[str, JobRecord]
    keys: dict[str, int]
    states: dict[str, str] = field(default_factory=dict)
    open_at: dict[str, int] = field(default_factory=dict)
    permits: dict[tuple[str, str], Permit] = field(default_factory=dict)
    settings: dict[str, Setting] = field(default_factory=dict)

    # -- looking -----------------------------------------------------------------------------------

    def look(self, use: GateUse) -> Look:
        setting = self.settings.get(use.name)
        return Look(
            use.key,
            used=sum(p.weight for (key, _), p in self.permits.items() if key == use.key),
            state=self.states.get(use.key),
            spec=None if setting is None else setting.spec,
            turn=next(
                (job for (key, job), p in self.permits.items() if key == use.key and p.token is None),
                None,
            ),
            head=next((job.id for job in self._members(use.key)), None) if use.kind == FIFO else None,
            open_at=self.open_at.get(use.key),
        )

    def _members(self, key: str) -> list[JobRecord]:
        """The live members of a FIFO key, in order."""
        found = (
            job for job in self.live.values() if any(use.key == key for use in gates_of(job.options))
        )
        return sorted(found, key=fifo_order)

    def next_seq(self, options: str | None, at: datetime) -> int | None:
        """The number of a new member: greater than those of all live members of its FIFO key, also when
        the clock has gone back. None for a job without such a key."""
        keys = [use.key for use in gates_of(options) if use.kind == FIFO]
        if not keys:
            return None
        lasts = [fifo_order(job)[0] + 1 for key in keys for job in self._members(key)[-1:]]
        return max([to_micros(at), *lasts])

    def waiting(self, key: str) -> list[JobRecord]:
        found = [job for job in self.live.values() if job.state is JobState.BLOCKED and job.gate == key]
        if key.startswith("fifo:"):
            return sorted(found, key=fifo_order)
        return sorted(found, key=lambda job: (self.keys[job.id], job.id))

    # -- claiming ----------------------------------------------------------------------------------

    def draw(
        self,
        queue: str,
        ready: list[JobRecord],
        places: Mapping[str, int],
        params: ClaimParams,
        limit: int,
        gated: int,
        at: datetime,
    ) -> tuple[Admission, Draw]:
        """Decide about one queue's ready jobs, plain ones among them, in the order of `places`."""
        plain = [(places[job.id], job.id) for job in ready if not is_gated(job.options)]
        candidates = [
            Candidate(
                job.id,
                job.queue,
                places[job.id],
                job.attempt,
                gates_of(job.options),
                job.tenant,
            )
            for job in ready
            if is_gated(job.options)
        ]
        looks = {use.key: self.look(use) for job in candidates for use in job.gates}
        admission = Admission(looks, to_micros(at))
        fair = None
        key = tenant_key(queue)
        if any(job.tenant is not None for job in candidates):
            tenants = {job.tenant for job in candidates if job.tenant is not None}
            weights = {
                tenant: self.settings[f"tenant:{tenant}"].spec.n
                for tenant in tenants
                if f"tenant:{tenant}" in self.settings
            }
            fair = Fair.of(self.states.get(key), weights)
        drawn = draw(admission, candidates, plain, fair, limit=limit, scoped=gated)
        if fair is not None:
            self.states[key] = fair.dump()
        for look in admission.changed.values():
            self._keep(look)
        for granted in admission.permits:
            token = None if granted.is_turn else params.token
            self.permits[granted.gate, granted.job] = Permit(token, granted.weight)
        return admission, drawn

    def _keep(self, look: Look) -> None:
        if look.state is not None:
            self.states[look.key] = look.state
        if look.open_at is None:
            self.open_at.pop(look.key, None)
        else:
            self.open_at[look.key] = look.open_at

    # -- giving back -------------------------------------------------------------------------------

    def left(self, before: JobRecord, after: JobRecord | None) -> list[JobRecord]:
        """Take back what a job no longer needs; returns the jobs that may try instead, one for each
        unit."""
        uses = gates_of(before.options)
        is_ended = after is None or after.state.is_final
        is_dead = after is not None and after.state is JobState.DEAD
        freed: dict[str, int] = {}
        for use in uses:
            permit = self.permits.get((use.key, before.id))
            if use.kind == FIFO:
                if is_ended and not (is_dead and use.blocks_on_death):
                    self.permits.pop((use.key, before.id), None)
                    freed[use.key] = 1
            elif permit is not None and (
                is_ended or after is None or after.state is not JobState.RUNNING
            ):
                del self.permits[use.key, before.id]
                freed[use.key] = max(permit.weight, 1)
        return [job for key in sorted(freed) for job in self._next(key, freed[key])]

    def holders(self, key: str) -> list[str]:
        """The jobs that hold a permit of this gate."""
        return sorted(job for held, job in self.permits if held == key)

    def queue_left(self, job: JobRecord) -> bool:
        """Take back what an ended claim of this job had of its queue's concurrency; whether it had."""
        return self.permits.pop((queue_key(job.queue), job.id), None) is not None

    def turn_left(self, job: JobRecord) -> list[JobRecord]:
        """Take the turn of a job that is not final; returns the next members of its FIFO keys."""
        keys = [use.key for use in gates_of(job.options) if use.kind == FIFO]
        left = [key for key in keys if self.permits.pop((key, job.id), None) is not None]
        return [next_ for key in left for next_ in self._next(key, 1)]

    def next_members(self, ended: Iterable[JobRecord]) -> set[str]:
        """The first members of the FIFO keys that these jobs have left, where they have no other gate
        and no tenant."""
        keys = {use.key for job in ended for use in gates_of(job.options) if use.kind == FIFO}
        looks = [self.look(GateUse(key, FIFO)) for key in keys]
        heads = [self.live[look.head] for look in looks if look.turn is None and look.head is not None]
        return {job.id for job in heads if job.tenant is None and len(gates_of(job.options)) == 1}

    def take_turn(self, job: JobRecord) -> None:
        """Give the turn of its FIFO key to this job, which has no other gate."""
        (use,) = gates_of(job.options)
        self.permits[use.key, job.id] = Permit(None, 0)

    def take_permit(self, job: JobRecord, limits: set[str], token: str, at: datetime) -> bool:
        """Give permits to a job that has one gate, one of these limits, if there is room."""
        uses = gates_of(job.options)
        if len(uses) != 1 or uses[0].key not in limits or job.tenant is not None:
            return False
        if not passes(self.look(uses[0]), uses[0], job.id, job.attempt, to_micros(at))[0]:
            return False
        self.permits[uses[0].key, job.id] = Permit(token, uses[0].weight)
        return True

    def _next(self, key: str, most: int) -> list[JobRecord]:
        waiting = self.waiting(key)
        if not key.startswith("fifo:"):
            return waiting[:most]
        look = self.look(GateUse(key, FIFO))
        return [job for job in waiting if look.turn is None and job.id == look.head]

    def opened(self, key: str, at: datetime) -> list[JobRecord]:
        """The waiting jobs that the gate lets through now; notes when to look again for the others."""
        waiting = self.waiting(key)
        if not waiting:
            self.open_at.pop(key, None)
            return []
        use = next(use for use in gates_of(waiting[0].options) if use.key == key)
        look = self.look(use)
        if use.kind == FIFO:
            first = look.turn or look.head
            return [job for job in waiting if job.id == first]
        count, next_at = room(look, use, to_micros(at), len(waiting))
        if count < len(waiting) and next_at is not None:
            self.open_at[key] = next_at
        else:
            self.open_at.pop(key, None)
        return waiting[:count]

    def due(self, at: datetime) -> list[str]:
        return sorted(key for key, moment in self.open_at.items() if moment <= to_micros(at))

    def next_at(self) -> datetime | None:
        return from_micros(min(self.open_at.values())) if self.open_at else None

    def forget(self, known: Callable[[str], bool]) -> None:
        """Take back the turns of jobs that are gone for good."""
        for key, job in list(self.permits):
            if not known(job):
                del self.permits[key, job]

    def waited_at(self) -> list[str]:
        """Every gate at which jobs wait."""
        return sorted({job.gate for job in self.live.values() if job.gate is not None})

    def finished(self, job: JobRecord, outcome: Finish, at: datetime) -> list[str]:
        """Let a scope's brake and breaker know how an attempt ended."""
        changed = []
        now = to_micros(at)
        why = why_ended(outcome)
        if outcome.brake is not None:
            key = f"scope:{outcome.brake}"
            until = to_micros(at + outcome.delay)
            self.states[key] = braked(self.states.get(key), until, why)
            changed.append(key)
        for use in gates_of(job.options):
            if use.breaker is not None and outcome.what in ("completed", "failed"):
                is_ok = outcome.to is JobState.COMPLETED
                self.states[use.key] = counted(
                    self.states.get(use.key), use.breaker, is_ok, job.claimed_at, now, why
                )
                changed.append(use.key)
        return sorted(set(changed))

    # -- reports -----------------------------------------------------------------------------------

    def info(self, job: JobRecord) -> GateInfo | None:
        """The gate a blocked job waits at."""
        use = next((use for use in gates_of(job.options) if use.key == job.gate), None)
        if use is None or job.state is not JobState.BLOCKED:
            return None
        waiting = [other.id for other in self.waiting(use.key)]
        return gate_info(self.look(use), use, self.holders(use.key), waiting.index(job.id))

    def limits(self) -> list[LimitInfo]:
        used: dict[str, int] = {}
        waiting: dict[str, int] = {}
        for job in self.live.values():
            for use in gates_of(job.options):
                permit = self.permits.get((use.key, job.id))
                if permit is not None and use.name:
                    used[use.name] = used.get(use.name, 0) + permit.weight
                if job.gate == use.key and use.name:
                    waiting[use.name] = waiting.get(use.name, 0) + 1
        return [
            limit_info(name, self.settings.get(name), used.get(name, 0), waiting.get(name, 0))
            for name in {*used, *waiting, *self.settings}
        ]

    def set(
        self, specs: Mapping[str, GateSpec | None], by: str, is_live: bool, at: datetime
    ) -> Iterable[str]:
        """Change settings; returns the gates with waiting jobs that they are about."""
        for name, spec in specs.items():
            known = self.settings.get(name)
            if known is not None and known.is_live and not is_live:
                continue
            if spec is None:
                self.settings.pop(name, None)
            else:
                self.settings[name] = Setting(spec, is_live, by, at)
        return [
            key
            for key in self.waited_at()
            for use in gates_of(self.waiting(key)[0].options)
            if use.key == key and use.name in specs
        ]

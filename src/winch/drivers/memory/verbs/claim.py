"""Claims."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from winch.core import changes
from winch.core.gates.uses import LIMIT, gates_of, is_gated, queue_key
from winch.core.job import Claim, JobRecord, strict_place
from winch.core.lifecycle import JobState
from winch.core.policy.queue_settings import NO_RULE, QueueRule
from winch.drivers.memory.gate_state import Permit
from winch.drivers.memory.verbs.base import Base, verb
from winch.storage.params import ClaimParams
from winch.storage.verbs import Now, Verb


class ClaimVerbs:
    """Take jobs to run."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self._state = base.state

    def claim(self, params: ClaimParams, *, now: Now = None) -> Verb[list[Claim]]:
        def body() -> list[Claim]:
            at = self._base.now(now)
            session = self._state.sessions.get(params.session)
            if session is None or session.ended_at is not None:
                return []
            taken: list[Claim] = []
            for queue in params.queues:
                if queue in self._state.paused:
                    continue
                taken += self._draw(queue, params, params.limit - len(taken), at)
            return taken

        return verb("claim", body)

    def next_members(self, ended: Sequence[JobRecord], params: ClaimParams, at: datetime) -> list[Claim]:
        """Take the next members of the FIFO keys of these jobs, which are final now, and the next jobs
        of their limits: those that a claim would take first."""
        heads = self._state.gates.next_members(ended)
        limits = {use.key for job in ended for use in gates_of(job.options) if use.kind == LIMIT}
        taken: list[Claim] = []
        if not self._base.is_live(params.session):
            return taken
        for queue in params.queues:
            if queue in self._state.paused:
                continue
            if queue in self._state.rules:
                return taken
            ready = [job for job in self._state.live.values() if self._fits(job, queue, params)]
            is_shared = any(
                job.tenant is not None and job.state is JobState.READY and job.queue == queue
                for job in self._state.live.values()
            )
            for job in sorted(ready, key=lambda job: (self._state.keys[job.id], job.id)):
                if is_shared or len(taken) == params.limit:
                    return taken
                if job.id in heads:
                    self._state.gates.take_turn(job)
                elif not self._state.gates.take_permit(job, limits, params.token, at):
                    return taken
                taken.append(self._take(job, params, at, NO_RULE))
        return taken

    def _draw(self, queue: str, params: ClaimParams, limit: int, at: datetime) -> list[Claim]:
        """Take up to `limit` jobs of one queue; those whose gates are closed are blocked there."""
        rule = self._state.rules.get(queue, NO_RULE)
        if rule != NO_RULE and params.gated == 0:
            return []
        if rule.concurrency is not None:
            limit = min(limit, rule.concurrency - len(self._state.gates.holders(queue_key(queue))))
            if limit <= 0:
                return []
        places = {
            job.id: strict_place(self._state.keys[job.id], job.priority)
            if rule.is_strict
            else self._state.keys[job.id]
            for job in self._state.live.values()
            if self._fits(job, queue, params)
        }
        ready = [self._state.live[i] for i in sorted(places, key=lambda i: (places[i], i))]
        plain = [job for job in ready if not is_gated(job.options)]
        if params.gated == 0 or len(plain) == len(ready):
            return [self._take(job, params, at, rule) for job in plain[:limit]]
        gated = limit if params.gated is None else params.gated
        admission, drawn = self._state.gates.draw(queue, ready, places, params, limit, gated, at)
        if any(look.open_at is not None for look in admission.changed.values()):
            self._base.ring(set(), due=True)  # the next gate may open before the promoter wakes
        for job_id, key in admission.held.items():
            self._base.put(changes.held(self._state.live[job_id], key), "held", at)
        chosen = drawn.arranged({i: self._state.live[i] for i in admission.taken}, plain)
        return [self._take(job, params, at, rule) for job in chosen]

    def _fits(self, job: JobRecord, queue: str, params: ClaimParams) -> bool:
        return (
            job.state is JobState.READY
            and job.queue == queue
            and (params.tasks is None or job.task in params.tasks)
        )

    def _take(self, job: JobRecord, params: ClaimParams, at: datetime, rule: QueueRule) -> Claim:
        if rule.concurrency is not None:
            self._state.gates.permits[queue_key(job.queue), job.id] = Permit(params.token, 1)
        running = changes.claimed(job, params.token, params.session, at)
        self._base.put(running, "claimed", at)
        return Claim(
            id=job.id,
            token=params.token,
            task=job.task,
            version=job.version,
            args=job.args,
            queue=job.queue,
            attempt=running.attempt,
            fence=running.fence,
            created_at=job.created_at,
            run_at=job.run_at,
            claimed_at=at,
            is_suspect=job.is_suspect,
            expires_at=job.expires_at,
            headers=job.headers,
            options=job.options,
            checkpoint=job.checkpoint,
            has_permit=rule.concurrency is not None,
        )

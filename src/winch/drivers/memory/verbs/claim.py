"""Claims, and how they end."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from winch.core import changes
from winch.core.gates.uses import is_gated
from winch.core.job import CRASH_RULE, Claim, JobRecord, Note, SuspectRule
from winch.core.lifecycle import JobState
from winch.drivers.memory.verbs.waits import Waits
from winch.storage.params import (
    Answer,
    ClaimParams,
    ClaimRef,
    Finish,
    Standing,
)
from winch.storage.verbs import Verb


class Working(Waits):
    """Mixed into the memory driver."""

    def claim(self, params: ClaimParams, *, now: datetime | None = None) -> Verb[list[Claim]]:
        def body() -> list[Claim]:
            at = self._now(now)
            session = self._state.sessions.get(params.session)
            if session is None or session.ended_at is not None:
                return []
            taken: list[Claim] = []
            for queue in params.queues:
                if queue in self._state.paused:
                    continue
                taken += self._draw(queue, params, params.limit - len(taken), at)
            return taken

        return self._verb("claim", body)

    def _draw(self, queue: str, params: ClaimParams, limit: int, at: datetime) -> list[Claim]:
        """Take up to `limit` jobs of one queue; those whose gates are closed are blocked there."""
        ready = sorted(
            (job for job in self._state.live.values() if self._fits(job, queue, params)),
            key=lambda job: (self._state.keys[job.id], job.id),
        )
        plain = [job for job in ready if not is_gated(job.options)]
        if params.gated == 0 or len(plain) == len(ready):
            return [self._take(job, params, at) for job in plain[:limit]]
        gated = limit if params.gated is None else params.gated
        admission, drawn = self._state.gates.draw(queue, ready, params, limit, gated, at)
        if any(look.open_at is not None for look in admission.changed.values()):
            self._ring(set(), due=True)  # whoever opens gates may have to do so sooner than it sleeps
        for job_id, key in admission.held.items():
            self._put(changes.held(self._state.live[job_id], key), "held", at)
        chosen = drawn.arranged({i: self._state.live[i] for i in admission.taken}, plain)
        return [self._take(job, params, at) for job in chosen]

    def _fits(self, job: JobRecord, queue: str, params: ClaimParams) -> bool:
        return (
            job.state is JobState.READY
            and job.queue == queue
            and (params.tasks is None or job.task in params.tasks)
        )

    def _take(self, job: JobRecord, params: ClaimParams, at: datetime) -> Claim:
        running = changes.claimed(job, params.token, params.session, at)
        self._put(running, "claimed", at)
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
        )

    def finish(self, outcomes: Sequence[Finish], *, now: datetime | None = None) -> Verb[list[Answer]]:
        def body() -> list[Answer]:
            at = self._now(now)
            return [self._finish_one(outcome, at) for outcome in outcomes]

        return self._verb("finish", body)

    def _finish_one(self, outcome: Finish, at: datetime) -> Answer:
        job = self._state.live.get(outcome.id)
        if job is None or job.state is not JobState.RUNNING or job.token != outcome.token:
            return self._repeated(outcome.id, outcome.token, (outcome.to, outcome.what))
        ended = changes.finished(job, outcome.token, outcome, at)
        self._put(ended, "finished", at, by_token=outcome.token)
        if ended.state is JobState.BLOCKED:
            self._begin_wait(outcome, at)
        if outcome.leaves_turn:
            self._admitted(self._state.gates.turn_left(job), at)
        self._open(self._state.gates.finished(job, outcome, at), at)
        return Answer.TOOK

    def _repeated(self, job_id: str, token: str, end: changes.End | None) -> Answer:
        is_repeat = changes.is_repeat(self._ended_as(job_id, token), end)
        return Answer.ALREADY if is_repeat else Answer.LOST

    def _ended_as(self, job_id: str, token: str) -> str | None:
        job = self._state.live.get(job_id) or self._state.archive.get(job_id)
        if job is None:
            return None
        return changes.ended_as(token, job.state, job.ended_token, changes.whats_of(job.history))

    def release(
        self, claims: Sequence[ClaimRef], *, has_started: bool = False, now: datetime | None = None
    ) -> Verb[list[Answer]]:
        def body() -> list[Answer]:
            at = self._now(now)
            answers = []
            for ref in claims:
                job = self._state.live.get(ref.id)
                if job is None or job.state is not JobState.RUNNING or job.token != ref.token:
                    end = (JobState.READY, changes.RELEASED)
                    answers.append(self._repeated(ref.id, ref.token, end))
                    continue
                self._give_back(job, at, by_token=ref.token, by_holder=True, has_started=has_started)
                answers.append(Answer.TOOK)
            return answers

        return self._verb("release", body)

    def _give_back(
        self,
        job: JobRecord,
        at: datetime,
        *,
        by_token: str | None,
        by_holder: bool = False,
        has_started: bool = False,
    ) -> JobState:
        freed = changes.given_back(job, at, by_holder=by_holder, has_started=has_started)
        self._put(freed, "released", at, by_token=by_token)
        return freed.state

    def give_up(self, session: str, tokens: Sequence[str], *, now: datetime | None = None) -> Verb[int]:
        def body() -> int:
            at = self._now(now)
            mine = [job for job in self._running(session) if job.token in tokens]
            for job in mine:
                self._give_back(job, at, by_token=job.token)
            return len(mine)

        return self._verb("give_up", body)

    def crash(
        self,
        claims: Sequence[ClaimRef],
        *,
        cause: str,
        rule: SuspectRule = CRASH_RULE,
        now: datetime | None = None,
    ) -> Verb[list[Answer]]:
        def body() -> list[Answer]:
            at = self._now(now)
            answers = []
            for ref in claims:
                job = self._state.live.get(ref.id)
                if job is None or job.state is not JobState.RUNNING or job.token != ref.token:
                    answers.append(self._repeated(ref.id, ref.token, None))
                    continue
                self._suspect(job, "crashed", cause, at, rule, by_token=ref.token)
                answers.append(Answer.TOOK)
            return answers

        return self._verb("crash", body)

    def note(self, claim: ClaimRef, note: Note) -> Verb[Answer]:
        def body() -> Answer:
            job = self._state.live.get(claim.id)
            if job is None or job.state is not JobState.RUNNING or job.token != claim.token:
                return Answer.LOST
            self._state.live[job.id] = changes.noted(job, note)
            return Answer.TOOK

        return self._verb("note", body)

    def standing(self, claims: Sequence[ClaimRef]) -> Verb[list[Standing]]:
        def body() -> list[Standing]:
            found = []
            for ref in claims:
                job = self._state.live.get(ref.id)
                if job is not None and job.state is JobState.RUNNING and job.token == ref.token:
                    found.append(Standing.LIVE)
                elif self._ended_as(ref.id, ref.token) is not None:
                    found.append(Standing.ENDED)
                else:
                    found.append(Standing.LOST)
            return found

        return self._verb("standing", body)

    def held(self, session: str) -> Verb[list[ClaimRef]]:
        def body() -> list[ClaimRef]:
            running = sorted(self._running(session), key=lambda job: job.id)
            return [ClaimRef(job.id, job.token or "") for job in running]

        return self._verb("held", body, is_read=True)

    def cancels(self, sessions: Sequence[str]) -> Verb[list[ClaimRef]]:
        def body() -> list[ClaimRef]:
            return [
                ClaimRef(job.id, job.token or "")
                for session in sessions
                for job in self._running(session)
                if job.cancel_requested_at is not None
            ]

        return self._verb("cancels", body, is_read=True)

    def _suspect(
        self,
        job: JobRecord,
        what: str,
        cause: str,
        at: datetime,
        rule: SuspectRule,
        *,
        by_token: str | None = None,
    ) -> JobState:
        taken = changes.suspected(job, what, cause, at, rule, by_token=by_token)
        self._put(taken, "rescued", at, by_token=by_token)
        return taken.state

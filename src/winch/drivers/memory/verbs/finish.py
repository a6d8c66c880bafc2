"""How claims end, and what a running handler notes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from winch.core import changes
from winch.core.job import Claim, Note
from winch.core.lifecycle import JobState
from winch.drivers.memory.verbs.base import Base, verb
from winch.drivers.memory.verbs.claim import ClaimVerbs
from winch.drivers.memory.verbs.taking_back import give_back, suspect
from winch.drivers.memory.verbs.waits import WaitVerbs
from winch.storage.crash_report import CrashReport
from winch.storage.params import Answer, ClaimParams, ClaimRef, Finish, Standing
from winch.storage.verbs import Now, Verb


class FinishVerbs:
    """End claims, and say whether they still stand."""

    def __init__(self, base: Base, waits: WaitVerbs, claims: ClaimVerbs) -> None:
        self._base = base
        self._claims = claims
        self._state = base.state
        self._waits = waits

    def finish(self, outcomes: Sequence[Finish], *, now: Now = None) -> Verb[list[Answer]]:
        def body() -> list[Answer]:
            at = self._base.now(now)
            return [self._finish_one(outcome, at) for outcome in outcomes]

        return verb("finish", body)

    def finish_and_claim(
        self, outcomes: Sequence[Finish], then: ClaimParams, *, now: Now = None
    ) -> Verb[tuple[list[Answer], list[Claim]]]:
        def body() -> tuple[list[Answer], list[Claim]]:
            at = self._base.now(now)
            answers = [self._finish_one(outcome, at) for outcome in outcomes]
            took = [o.id for o, answer in zip(outcomes, answers, strict=True) if answer is Answer.TOOK]
            ended = [self._state.archive[job_id] for job_id in took if job_id in self._state.archive]
            return answers, self._claims.next_members(ended, then, at)

        return verb("finish_and_claim", body)

    def _finish_one(self, outcome: Finish, at: datetime) -> Answer:
        job = self._state.live.get(outcome.id)
        if job is None or job.state is not JobState.RUNNING or job.token != outcome.token:
            return self._repeated(outcome.id, outcome.token, (outcome.to, outcome.what))
        ended = changes.finished(job, outcome.token, outcome, at)
        self._base.put(ended, "finished", at, by_token=outcome.token)
        if ended.state is JobState.BLOCKED:
            self._waits.begin(outcome, at)
        if outcome.leaves_turn:
            self._base.admit(self._state.gates.turn_left(job), at)
        self._base.open_gates(self._state.gates.finished(job, outcome, at), at)
        return Answer.TOOK

    def release(
        self, claims: Sequence[ClaimRef], *, has_started: bool = False, now: Now = None
    ) -> Verb[list[Answer]]:
        def body() -> list[Answer]:
            at = self._base.now(now)
            answers = []
            for ref in claims:
                job = self._state.live.get(ref.id)
                if job is None or job.state is not JobState.RUNNING or job.token != ref.token:
                    end = (JobState.READY, changes.RELEASED)
                    answers.append(self._repeated(ref.id, ref.token, end))
                    continue
                give_back(
                    self._base, job, at, by_token=ref.token, by_holder=True, has_started=has_started
                )
                answers.append(Answer.TOOK)
            return answers

        return verb("release", body)

    def give_up(self, session: str, tokens: Sequence[str], *, now: Now = None) -> Verb[int]:
        def body() -> int:
            at = self._base.now(now)
            mine = [job for job in self._base.running(session) if job.token in tokens]
            for job in mine:
                give_back(self._base, job, at, by_token=job.token)
            return len(mine)

        return verb("give_up", body)

    def crash(self, crash: CrashReport, *, now: Now = None) -> Verb[list[Answer]]:
        def body() -> list[Answer]:
            at = self._base.now(now)
            answers = []
            for ref in crash.claims:
                job = self._state.live.get(ref.id)
                if job is None or job.state is not JobState.RUNNING or job.token != ref.token:
                    answers.append(self._repeated(ref.id, ref.token, None))
                    continue
                suspect(self._base, job, "crashed", crash.cause, at, crash.rule, by_token=ref.token)
                answers.append(Answer.TOOK)
            return answers

        return verb("crash", body)

    def note(self, claim: ClaimRef, note: Note) -> Verb[Answer]:
        return verb("note", lambda: self._noted(claim, note))

    def notes(self, notes: Sequence[tuple[ClaimRef, Note]]) -> Verb[list[Answer]]:
        return verb("notes", lambda: [self._noted(claim, note) for claim, note in notes])

    def _noted(self, claim: ClaimRef, note: Note) -> Answer:
        job = self._state.live.get(claim.id)
        if job is None or job.state is not JobState.RUNNING or job.token != claim.token:
            return Answer.LOST
        if note.number is not None:
            token, number = self._state.note_numbers.get(job.id, ("", 0))
            if token == claim.token and note.number <= number:
                return Answer.TOOK  # a later note is stored already
            self._state.note_numbers[job.id] = (claim.token, note.number)
        self._state.live[job.id] = changes.noted(job, note)
        return Answer.TOOK

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

        return verb("standing", body)

    def _repeated(self, job_id: str, token: str, end: changes.End | None) -> Answer:
        is_repeat = changes.is_repeat(self._ended_as(job_id, token), end)
        return Answer.ALREADY if is_repeat else Answer.LOST

    def _ended_as(self, job_id: str, token: str) -> str | None:
        job = self._state.live.get(job_id) or self._state.archive.get(job_id)
        if job is None:
            return None
        return changes.ended_as(token, job.state, job.ended_token, changes.whats_of(job.history))

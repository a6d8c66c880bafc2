"""What becomes of a claim in a cluster: each claim in the part that has its job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from winch.core.job import CRASH_RULE, Claim, Note, SuspectRule
from winch.drivers.redis.cluster.fan_out import FanOut, whole
from winch.drivers.redis.cluster.handover import Handover
from winch.drivers.redis.cluster.shards import HOME
from winch.drivers.redis.cluster.verbs.claim import ClusterClaimVerbs
from winch.drivers.redis.verbs.base import Body
from winch.drivers.redis.verbs.finish import FinishVerbs
from winch.storage.params import Answer, ClaimParams, ClaimRef, Finish, Standing
from winch.storage.verbs import Verb


class ClusterFinishVerbs:
    """End claims where their jobs are. An outcome that concerns other jobs brings its job home first."""

    def __init__(
        self, plain: FinishVerbs, claims: ClusterClaimVerbs, fan_out: FanOut, handover: Handover
    ) -> None:
        self._plain = plain
        self._claims = claims
        self._fan_out = fan_out
        self._handover = handover

    def finish(self, outcomes: Sequence[Finish], *, now: datetime | None = None) -> Verb[list[Answer]]:
        def body() -> Body[list[Answer]]:
            yield from self._handover.bring_home(
                ClaimRef(outcome.id, outcome.token) for outcome in outcomes if _needs_others(outcome)
            )
            answers = yield from self._handover.by_id(
                outcomes,
                lambda outcome: outcome.id,
                lambda some: self._plain.finish(some, now=now).steps(),
                lambda answer: answer is Answer.LOST,
            )
            self._handover.claimed_at_home.difference_update([outcome.id for outcome in outcomes])
            return answers

        return Verb("finish", body)

    def finish_and_claim(
        self, outcomes: Sequence[Finish], then: ClaimParams, *, now: datetime | None = None
    ) -> Verb[tuple[list[Answer], list[Claim]]]:
        def body() -> Body[tuple[list[Answer], list[Claim]]]:
            home = self._handover.claimed_at_home
            if not all(outcome.id in home for outcome in outcomes) or any(map(_needs_others, outcomes)):
                return (yield from self.finish(outcomes, now=now).steps()), []
            away = yield from self._claims.first_elsewhere(then.queues)
            steps = self._plain.finish_and_claim(outcomes, then, now=now, away=away).steps()
            ((answers, claims),) = whole((yield from self._fan_out.scatter([(HOME, steps)])))
            home.difference_update([outcome.id for outcome in outcomes])
            self._claims.claimed_at_home(claims)
            return answers, claims

        return Verb("finish_and_claim", body)

    def release(
        self, claims: Sequence[ClaimRef], *, has_started: bool = False, now: datetime | None = None
    ) -> Verb[list[Answer]]:
        return Verb(
            "release",
            lambda: self._handover.by_id(
                claims,
                lambda ref: ref.id,
                lambda some: self._plain.release(some, has_started=has_started, now=now).steps(),
                lambda answer: answer is Answer.LOST,
            ),
        )

    def crash(
        self,
        claims: Sequence[ClaimRef],
        *,
        cause: str,
        rule: SuspectRule = CRASH_RULE,
        now: datetime | None = None,
    ) -> Verb[list[Answer]]:
        return Verb(
            "crash",
            lambda: self._handover.by_id(
                claims,
                lambda ref: ref.id,
                lambda some: self._plain.crash(some, cause=cause, rule=rule, now=now).steps(),
                lambda answer: answer is Answer.LOST,
            ),
        )

    def note(self, claim: ClaimRef, note: Note) -> Verb[Answer]:
        def at(some: Sequence[ClaimRef]) -> Body[list[Answer]]:
            answer = yield from self._plain.note(some[0], note).steps()
            return [answer]

        def body() -> Body[Answer]:
            (answer,) = yield from self._handover.by_id(
                [claim], lambda ref: ref.id, at, lambda answer: answer is Answer.LOST
            )
            return answer

        return Verb("note", body)

    def notes(self, notes: Sequence[tuple[ClaimRef, Note]]) -> Verb[list[Answer]]:
        return Verb(
            "notes",
            lambda: self._handover.by_id(
                notes,
                lambda one: one[0].id,
                lambda some: self._plain.notes(some).steps(),
                lambda answer: answer is Answer.LOST,
            ),
        )

    def standing(self, claims: Sequence[ClaimRef]) -> Verb[list[Standing]]:
        return Verb(
            "standing",
            lambda: self._handover.by_id(
                claims,
                lambda ref: ref.id,
                lambda some: self._plain.standing(some).steps(),
                lambda answer: answer is Standing.LOST,
            ),
        )

    def give_up(self, session: str, tokens: Sequence[str], *, now: datetime | None = None) -> Verb[int]:
        def body() -> Body[int]:
            given = yield from self._fan_out.everywhere(
                lambda: self._plain.give_up(session, tokens, now=now).steps()
            )
            return sum(given)

        return Verb("give_up", body)


def _needs_others(outcome: Finish) -> bool:
    """Whether the end of a claim concerns what is at home: what the job waits for, or a brake."""
    return bool(outcome.waits) or outcome.timeout is not None or outcome.brake is not None

"""What becomes of a claim in a cluster: each claim in the part that has its job."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from winch.core.job import Claim, Note
from winch.drivers.redis.cluster.fan_out import FanOut, whole
from winch.drivers.redis.cluster.handover import Handover
from winch.drivers.redis.cluster.shards import HOME, shard_of
from winch.drivers.redis.cluster.verbs.claim import ClusterClaimVerbs
from winch.drivers.redis.verbs.base import Body
from winch.drivers.redis.verbs.finish import FinishVerbs
from winch.storage.crash_report import CrashReport
from winch.storage.params import Answer, ClaimParams, ClaimRef, Finish, Standing
from winch.storage.verbs import Now, Verb


class ClusterFinishVerbs:
    """End claims where their jobs are. An outcome that concerns other jobs brings its job home first."""

    def __init__(
        self, plain: FinishVerbs, claims: ClusterClaimVerbs, fan_out: FanOut, handover: Handover
    ) -> None:
        self._plain = plain
        self._claims = claims
        self._fan_out = fan_out
        self._handover = handover

    def finish(self, outcomes: Sequence[Finish], *, now: Now = None) -> Verb[list[Answer]]:
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
        self, outcomes: Sequence[Finish], then: ClaimParams, *, now: Now = None
    ) -> Verb[tuple[list[Answer], list[Claim]]]:
        def body() -> Body[tuple[list[Answer], list[Claim]]]:
            where = self._one_part(outcomes)
            if where is None or any(map(_needs_others, outcomes)):
                return (yield from self.finish(outcomes, now=now).steps()), []
            away = yield from self._claims.first_elsewhere(then, where)
            steps = self._plain.finish_and_claim(outcomes, then, now=now, away=away).steps()
            ((answers, claims),) = whole((yield from self._fan_out.scatter([(where, steps)])))
            if where == HOME:
                self._handover.claimed_at_home.difference_update([outcome.id for outcome in outcomes])
                self._claims.claimed_at_home(claims)
            elif Answer.LOST in answers:  # some may have gone home
                again = [
                    one for one, answer in zip(outcomes, answers, strict=True) if answer is Answer.LOST
                ]
                found = iter((yield from self.finish(again, now=now).steps()))
                answers = [next(found) if answer is Answer.LOST else answer for answer in answers]
            return answers, claims

        return Verb("finish_and_claim", body)

    def _one_part(self, outcomes: Sequence[Finish]) -> int | None:
        """The part that all of these jobs are in, as far as this driver knows."""
        home = self._handover.claimed_at_home
        found = {HOME if one.id in home else shard_of(one.id) for one in outcomes}
        return found.pop() if len(found) == 1 else None

    def release(
        self, claims: Sequence[ClaimRef], *, has_started: bool = False, now: Now = None
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

    def crash(self, crash: CrashReport, *, now: Now = None) -> Verb[list[Answer]]:
        def at(some: Sequence[ClaimRef]) -> Body[list[Answer]]:
            return self._plain.crash(msgspec.structs.replace(crash, claims=some), now=now).steps()

        return Verb(
            "crash",
            lambda: self._handover.by_id(
                crash.claims,
                lambda ref: ref.id,
                at,
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

    def give_up(self, session: str, tokens: Sequence[str], *, now: Now = None) -> Verb[int]:
        def body() -> Body[int]:
            given = yield from self._fan_out.everywhere(
                lambda: self._plain.give_up(session, tokens, now=now).steps()
            )
            return sum(given)

        return Verb("give_up", body)


def _needs_others(outcome: Finish) -> bool:
    """Whether the end of a claim concerns what is at home: what the job waits for, or a brake."""
    return bool(outcome.waits) or outcome.timeout is not None or outcome.brake is not None

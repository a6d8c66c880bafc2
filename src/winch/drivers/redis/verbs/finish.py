"""What becomes of a claim: its end, its notes, and whether it still stands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from winch.core.changes import died_of
from winch.core.job import Claim, Failure, Note
from winch.core.lifecycle import JobState
from winch.core.values.fingerprint import trace
from winch.drivers.redis.records import MICROSECOND, micros, read_claims
from winch.drivers.redis.verbs.base import Base, Body, suspect_rule, wait_rows
from winch.storage.crash_report import CrashReport
from winch.storage.decide.gates import why_ended
from winch.storage.params import Answer, ClaimParams, ClaimRef, Finish, Standing
from winch.storage.verbs import Now, Verb

_ANSWERS = {answer.value.encode(): answer for answer in Answer}
_Done = tuple[list[str], list[str], list[str | bool]]
_STANDINGS = {standing.value.encode(): standing for standing in Standing}


class FinishVerbs:
    """End claims and note what running handlers report."""

    def __init__(self, base: Base) -> None:
        self._call = base.call

    def finish(self, outcomes: Sequence[Finish], *, now: Now = None) -> Verb[list[Answer]]:
        def body() -> Body[list[Answer]]:
            done, others = _apart(outcomes)
            reply = yield self._call("finish", now=micros(now), done=done, others=others)
            return _answers(outcomes, reply[0], reply[1])

        return Verb("finish", body)

    def finish_and_claim(
        self,
        outcomes: Sequence[Finish],
        then: ClaimParams,
        *,
        now: Now = None,
        away: Mapping[str, tuple[str, int]] | None = None,
    ) -> Verb[tuple[list[Answer], list[Claim]]]:
        """`away`: in a cluster, the first plain job of each queue in other parts, with its sort key."""

        def body() -> Body[tuple[list[Answer], list[Claim]]]:
            done, others = _apart(outcomes)
            plain, rest, taken = yield self._call(
                "finish_and_claim",
                now=micros(now),
                done=done,
                others=others,
                session=then.session,
                token=then.token,
                queues=then.queues,
                limit=then.limit,
                tasks=None if then.tasks is None else dict.fromkeys(then.tasks, True),
                at_once=then.at_once,
                away=away or None,
            )
            return _answers(outcomes, plain, rest), read_claims(taken, then.token)

        return Verb("finish_and_claim", body)

    def release(
        self, claims: Sequence[ClaimRef], *, has_started: bool = False, now: Now = None
    ) -> Verb[list[Answer]]:
        def body() -> Body[list[Answer]]:
            reply = yield self._call(
                "release", now=micros(now), claims=_pairs(claims), started=has_started
            )
            return [_ANSWERS[answer] for answer in reply]

        return Verb("release", body)

    def give_up(self, session: str, tokens: Sequence[str], *, now: Now = None) -> Verb[int]:
        def body() -> Body[int]:
            given: int = yield self._call(
                "give_up", now=micros(now), session=session, tokens=dict.fromkeys(tokens, True)
            )
            return given

        return Verb("give_up", body)

    def crash(self, crash: CrashReport, *, now: Now = None) -> Verb[list[Answer]]:
        def body() -> Body[list[Answer]]:
            reply = yield self._call(
                "crash",
                now=micros(now),
                claims=_pairs(crash.claims),
                cause=crash.cause,
                trace=trace(Failure("crashed", crash.cause)),
                rule=suspect_rule(crash.rule),
            )
            return [_ANSWERS[answer] for answer in reply]

        return Verb("crash", body)

    def note(self, claim: ClaimRef, note: Note) -> Verb[Answer]:
        def body() -> Body[Answer]:
            reply = yield self._call("note", notes=[_note(claim, note)])
            return _ANSWERS[reply[0]]

        return Verb("note", body)

    def notes(self, notes: Sequence[tuple[ClaimRef, Note]]) -> Verb[list[Answer]]:
        def body() -> Body[list[Answer]]:
            reply = yield self._call("note", notes=[_note(claim, note) for claim, note in notes])
            return [_ANSWERS[answer] for answer in reply]

        return Verb("notes", body)

    def standing(self, claims: Sequence[ClaimRef]) -> Verb[list[Standing]]:
        def body() -> Body[list[Standing]]:
            reply = yield self._call("standing", claims=_pairs(claims))
            return [_STANDINGS[answer] for answer in reply]

        return Verb("standing", body)


def _note(claim: ClaimRef, note: Note) -> dict[str, Any]:
    fields = {
        "progress": note.progress,
        "checkpoint": note.checkpoint,
        "log": note.log,
        "has_undo": note.has_undo,
        "forgets_cancel": note.forgets_cancel or None,
        "number": note.number,
    }
    known = {name: value for name, value in fields.items() if value is not None}
    return {"claim": (claim.id, claim.token), **known}


def _is_plain(outcome: Finish) -> bool:
    """Whether it completes the job with a result and nothing else."""
    return (
        outcome.to is JobState.COMPLETED
        and outcome.reason is None
        and outcome.log is None
        and outcome.brake is None
    )


def _apart(outcomes: Sequence[Finish]) -> tuple[_Done, list[dict[str, Any]]]:
    """Plain completions, and all others, each of these with how many plain ones stand before it."""
    done = [outcome for outcome in outcomes if _is_plain(outcome)]
    others: list[dict[str, Any]] = []
    if len(done) != len(outcomes):
        for place, outcome in enumerate(outcomes):
            if not _is_plain(outcome):
                others.append({"behind": place - len(others), **_outcome(outcome)})
    return (
        [outcome.id for outcome in done],
        [outcome.token for outcome in done],
        [False if outcome.result is None else outcome.result for outcome in done],
    ), others


def _answers(outcomes: Sequence[Finish], done: Any, others: Sequence[bytes]) -> list[Answer]:
    """The answers in the order of the outcomes. `done` is a number where all completions took."""
    plain = done if isinstance(done, list) else [b"took"] * done
    if not others:
        return [_ANSWERS[answer] for answer in plain]
    completed, rest = iter(plain), iter(others)
    return [_ANSWERS[next(completed if _is_plain(outcome) else rest)] for outcome in outcomes]


def _outcome(outcome: Finish) -> dict[str, Any]:
    error = outcome.error
    fields: dict[str, Any] = {
        "id": outcome.id,
        "token": outcome.token,
        "to": outcome.to.value,
        "what": outcome.what,
        "delay": outcome.delay // MICROSECOND,
        "counts": outcome.counts,
        "result": outcome.result,
        "reason": outcome.reason,
        "log": outcome.log,
        "fingerprint": outcome.fingerprint,
        "brake": outcome.brake,
    }
    if outcome.is_gated or outcome.brake is not None:
        fields["why"] = why_ended(outcome)
    if outcome.to is JobState.BLOCKED:
        fields["waits"] = wait_rows(outcome.waits)
        fields["timeout"] = None if outcome.timeout is None else outcome.timeout // MICROSECOND
        fields["leaves_turn"] = outcome.leaves_turn or None
    if error is not None:
        fields["error"] = {"type": error.type, "message": error.message, "traceback": error.traceback}
    if outcome.to is JobState.DEAD and outcome.fingerprint is None:
        fields["trace"] = trace(died_of(outcome))
    # A field that is not there is nil in the script, and so is one that is null.
    return {name: value for name, value in fields.items() if value is not None}


def _pairs(claims: Iterable[ClaimRef]) -> list[tuple[str, str]]:
    return [(ref.id, ref.token) for ref in claims]

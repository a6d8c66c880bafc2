"""What ends a claim, and what its worker writes while it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from winch.core import changes
from winch.core.job import Claim, Failure, Note
from winch.core.lifecycle import JobState
from winch.core.values.codec import clean_text
from winch.core.values.fingerprint import trace
from winch.drivers.postgres.records import read_claims, read_ended, write_claims, write_span
from winch.drivers.postgres.statements import Body, Ids, Statement
from winch.drivers.postgres.verbs.base import SOON_SECONDS, Base, rounds
from winch.drivers.postgres.verbs.crashes import crash_statement
from winch.drivers.postgres.verbs.gated_finish import finish_gated
from winch.storage.crash_report import CrashReport
from winch.storage.params import Answer, ClaimParams, ClaimRef, Finish, Standing
from winch.storage.verbs import Now, Verb

# The engine has cut texts to size already; here only what cannot be stored is taken out.
_NO_LIMIT = 1 << 30
# A finish of fewer jobs does not count leases down.
COUNTED = 16

_encode = msgspec.json.encode


class FinishVerbs:
    """See storage/families.py for the contracts."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self._finish = base.sql["finish"]

    def finish(self, outcomes: Sequence[Finish], *, now: Now = None) -> Verb[list[Answer]]:
        gated = [o for o in outcomes if o.is_gated or o.brake is not None]
        if not gated:
            return Verb("finish", lambda: self._finished(outcomes, now))
        plain = [o for o in outcomes if not (o.is_gated or o.brake is not None)]

        def body() -> Body[list[Answer]]:
            # In statements of their own, and first: a plain job never waits for a gate.
            first = iter((yield from self._finished(plain, now)) if plain else [])
            answers = yield from self._completed_gated(gated, now)
            if answers is None:
                answers = yield from finish_gated(
                    self._base, gated, lambda some: self._finished(some, now, is_alone=False), now
                )
            rest = iter(answers)
            return [next(rest if o.is_gated or o.brake is not None else first) for o in outcomes]

        return Verb("finish", body)

    def finish_and_claim(
        self, outcomes: Sequence[Finish], then: ClaimParams, *, now: Now = None
    ) -> Verb[tuple[list[Answer], list[Claim]]]:
        def body() -> Body[tuple[list[Answer], list[Claim]]]:
            if all(o.is_gated for o in outcomes) and _are_short(outcomes):
                found = yield from self._finish_members(outcomes, then, now)
                if found is not None:
                    return found
            ((is_live, *_),) = yield self._base.statement("finish_and_claim.begin", session=then.session)
            answers = yield from self.finish(outcomes, now=now).steps()
            took = [o.id for o, answer in zip(outcomes, answers, strict=True) if answer is Answer.TOOK]
            limit = then.limit if is_live else 0
            values = {**_write_then(then), "limit": limit, "ids": took, "now": now}
            rows = yield self._base.statement("finish_and_claim.next", **values)
            return answers, read_claims(rows, then.token, then.queues)

        return Verb("finish_and_claim", body)

    def _finish_members(
        self, outcomes: Sequence[Finish], then: ClaimParams, now: datetime | None
    ) -> Body[tuple[list[Answer], list[Claim]] | None]:
        """Jobs that are completed: one statement ends them and claims the next ones. None, and nothing
        is done, where that needs several statements (`_completed_gated`)."""
        values = {
            **_write_then(then),
            **_write_gated(outcomes, now),
            "at_once": then.at_once,
            "batch_from": self._base.batch_from,
        }
        rows = yield self._base.statement("finish_and_claim", is_alone=True, **values)
        if not rows:
            return None
        claims = read_claims([row[1:] for row in rows[1:]], then.token, then.queues)
        return (yield from self._took(outcomes, set(rows[0][0]), now)), claims

    def _completed_gated(
        self, outcomes: Sequence[Finish], now: datetime | None
    ) -> Body[list[Answer] | None]:
        """Jobs with gates that are completed: one statement ends them and returns their permits. None,
        and nothing is done, where transactions of this database have one snapshot for all statements,
        or a breaker counts one of the ends."""
        if not _are_short(outcomes):
            return None
        values = _write_gated(outcomes, now)
        ((number, took),) = yield self._base.statement("finish.gated", is_alone=True, **values)
        if number is None:
            return None
        if took is None:
            return [Answer.TOOK] * len(outcomes)
        return (yield from self._took(outcomes, set(took), now))

    def _took(
        self, outcomes: Sequence[Finish], took: set[str], now: datetime | None
    ) -> Body[list[Answer]]:
        """The answers to completed jobs with gates, of which these took."""
        refs = [ClaimRef(outcome.id, outcome.token) for outcome in outcomes]
        ends = [(outcome.to, outcome.what) for outcome in outcomes]

        def again(places: Sequence[int]) -> Statement:
            text = _write_outcomes([outcomes[place] for place in places])
            return self._base.statement(
                "finish.other", is_alone=True, outcomes=text, soon_seconds=SOON_SECONDS, now=now
            )

        return (yield from self._answers(refs, range(len(refs)), took, ends, again))

    def _finished(
        self, outcomes: Sequence[Finish], now: datetime | None, *, is_alone: bool = True
    ) -> Body[list[Answer]]:
        may_be_alone = is_alone

        def others(places: Sequence[int], *, is_alone: bool) -> Statement:
            text = _write_outcomes([outcomes[place] for place in places])
            return self._base.statement(
                "finish.other", is_alone=is_alone, outcomes=text, soon_seconds=SOON_SECONDS, now=now
            )

        def again(places: Sequence[int]) -> Statement:
            return others(places, is_alone=may_be_alone and not has_waits)

        def statements(places: Sequence[int]) -> list[Statement]:
            completed = [outcomes[place] for place in places if _is_plain(outcomes[place])]
            rest = [place for place in places if not _is_plain(outcomes[place])]
            is_all = len(places) == len(outcomes) and not (completed and rest)
            is_alone = may_be_alone and is_all and not has_waits
            made = []
            if completed:
                made.append(Statement(self._finish, _write_completed(completed, now), is_alone))
            if rest:
                made.append(others(rest, is_alone=is_alone))
            return made

        has_waits = any(outcome.to is JobState.BLOCKED for outcome in outcomes)
        took: Sequence[str] | None = None
        if outcomes and all(map(_is_plain, outcomes)) and _are_unlike(outcomes):
            ((took,),) = yield Statement(self._finish, _write_completed(outcomes, now), may_be_alone)
            if took is None:
                return [Answer.TOOK] * len(outcomes)
        refs = [ClaimRef(outcome.id, outcome.token) for outcome in outcomes]
        ends = [(outcome.to, outcome.what) for outcome in outcomes]
        if took is not None:
            return (yield from self._answers(refs, range(len(refs)), set(took), ends, again))
        answers = yield from self._end_claims(refs, statements, ends, again)
        if has_waits:
            pairs = zip(refs, answers, strict=True)
            blocked = {ref.id for ref, answer in pairs if answer is Answer.TOOK}
            yield from self._begin_waits(outcomes, blocked, now)
        return answers

    def release(
        self, claims: Sequence[ClaimRef], *, has_started: bool = False, now: Now = None
    ) -> Verb[list[Answer]]:
        def statements(places: Sequence[int]) -> list[Statement]:
            text = write_claims(claims[place] for place in places)
            is_alone = len(places) == len(claims)
            statement = self._base.statement(
                "release", is_alone=is_alone, claims=text, has_started=has_started, now=now
            )
            return [statement]

        ends = [(JobState.READY, changes.RELEASED)] * len(claims)
        return Verb("release", lambda: self._end_claims(claims, statements, ends))

    def _end_claims(
        self,
        refs: Sequence[ClaimRef],
        statements: Callable[[Sequence[int]], list[Statement]],
        ends: Sequence[changes.End] | None = None,
        again: Callable[[Sequence[int]], Statement] | None = None,
    ) -> Body[list[Answer]]:
        """Send the statements for the claims' places and return for each claim whether it took."""
        answers = [Answer.LOST] * len(refs)
        for places in rounds([ref.id for ref in refs]):
            took: set[str] = set()
            for statement in statements(places):
                rows = yield statement
                if statement.sql.name != "finish":
                    took.update(row[0] for row in rows)
                else:  # NULL: all of them
                    took.update(statement.values["ids"] if rows[0][0] is None else rows[0][0])
            answered = yield from self._answers(refs, places, took, ends, again)
            for place, answer in zip(places, answered, strict=True):
                answers[place] = answer
        return answers

    def _answers(
        self,
        refs: Sequence[ClaimRef],
        places: Sequence[int],
        took: set[str],
        ends: Sequence[changes.End] | None,
        again: Callable[[Sequence[int]], Statement] | None,
    ) -> Body[list[Answer]]:
        """The answers for these places; what did not take is looked up, and is a repeat only where the
        claim ended as `ends` names it (None: in any way). `again` ends those that are live
        after all: another transaction wrote to their row at the same moment, and `finish` skipped it."""
        found: dict[str, tuple[JobState, str | None, dict[str, str]]] = {}
        if missing := [place for place in places if refs[place].id not in took]:
            ids = [refs[place].id for place in missing]
            rows = yield self._base.statement("finish.ended", is_alone=True, ids=ids)
            live = {(row[0], row[1]) for row in rows}
            passed = [place for place in missing if (refs[place].id, refs[place].token) in live]
            if passed and again is not None:
                took = took | {row[0] for row in (yield again(passed))}
                rows = yield self._base.statement("finish.ended", is_alone=True, ids=ids)
            found = {row[0]: read_ended(*row[2:]) for row in rows}
        answers = []
        for place in places:
            ref = refs[place]
            if ref.id in took:
                answers.append(Answer.TOOK)
                continue
            ended = changes.ended_as(ref.token, *found[ref.id]) if ref.id in found else None
            end = None if ends is None else ends[place]
            is_repeat = changes.is_repeat(ended, end)
            answers.append(Answer.ALREADY if is_repeat else Answer.LOST)
        return answers

    def give_up(self, session: str, tokens: Sequence[str], *, now: Now = None) -> Verb[int]:
        def body() -> Body[int]:
            ((count, _),) = yield self._base.statement(
                "give_up", is_alone=True, session=session, tokens=list(tokens), now=now
            )
            return int(count)

        return Verb("give_up", body)

    def crash(self, crash: CrashReport, *, now: Now = None) -> Verb[list[Answer]]:
        def statements(places: Sequence[int]) -> list[Statement]:
            some = [crash.claims[place] for place in places]
            return [crash_statement(self._base, None, msgspec.structs.replace(crash, claims=some), now)]

        return Verb("crash", lambda: self._end_claims(crash.claims, statements))

    def note(self, claim: ClaimRef, note: Note) -> Verb[Answer]:
        def body() -> Body[Answer]:
            rows = yield self._base.statement(
                "note",
                is_alone=True,
                id=claim.id,
                token=claim.token,
                **msgspec.structs.asdict(note),
            )
            return Answer.TOOK if rows else Answer.LOST

        return Verb("note", body)

    def notes(self, notes: Sequence[tuple[ClaimRef, Note]]) -> Verb[list[Answer]]:
        if len(notes) == 1:
            [(claim, only)] = notes

            def alone() -> Body[list[Answer]]:
                return [(yield from self.note(claim, only).steps())]

            return Verb("notes", alone)

        def body() -> Body[list[Answer]]:
            rows = yield self._base.statement(
                "note.many",
                is_alone=True,
                ids=[claim.id for claim, _ in notes],
                tokens=[claim.token for claim, _ in notes],
                progresses=[note.progress for _, note in notes],
                checkpoints=[note.checkpoint for _, note in notes],
                logs=[note.log for _, note in notes],
                have_undo=[note.has_undo for _, note in notes],
                forget_cancel=[note.forgets_cancel for _, note in notes],
                numbers=[note.number for _, note in notes],
            )
            took = {row[0] for row in rows}
            return [Answer.TOOK if claim.id in took else Answer.LOST for claim, _ in notes]

        return Verb("notes", body)

    def standing(self, claims: Sequence[ClaimRef]) -> Verb[list[Standing]]:
        def body() -> Body[list[Standing]]:
            ids = [ref.id for ref in claims]
            yield self._base.statement("standing", ids=ids)
            rows = yield self._base.statement("finish.ended", ids=ids)
            live = {(row[0], row[1]) for row in rows}
            found = {row[0]: read_ended(*row[2:]) for row in rows}
            return [
                Standing.LIVE
                if (ref.id, ref.token) in live
                else Standing.ENDED
                if ref.id in found and changes.ended_as(ref.token, *found[ref.id]) is not None
                else Standing.LOST
                for ref in claims
            ]

        return Verb("standing", body)

    def _begin_waits(
        self, outcomes: Sequence[Finish], took: set[str], now: datetime | None
    ) -> Body[None]:
        """Store what the jobs wait for that a finish has blocked."""
        waits = []
        for outcome in outcomes:
            if outcome.id in took and (outcome.waits or outcome.timeout is not None):
                # A wait for nothing but the time has a key that never comes.
                keys = [(wait.key, wait.is_enough) for wait in outcome.waits] or [("", False)]
                seconds = write_span(outcome.timeout)
                waits += [_WaitRow(outcome.id, key, enough, seconds) for key, enough in keys]
        if waits:
            yield self._base.statement("finish.waits", ids=list({wait.job for wait in waits}))
            text = msgspec.json.encode(waits).decode()
            yield self._base.statement("finish.wait", waits=text, now=now)


class _WaitRow(msgspec.Struct, frozen=True):
    job: str
    key: str
    is_enough: bool
    timeout_seconds: float | None


def _write_then(then: ClaimParams) -> dict[str, Any]:
    """The parameters of a claim for the next members."""
    return {
        "session": then.session,
        "token": then.token,
        "queues": list(dict.fromkeys(then.queues)),
        "tasks": None if then.tasks is None else list(then.tasks),
        "limit": then.limit,
    }


def _are_unlike(outcomes: Sequence[Finish]) -> bool:
    """Whether no two of them are about one job."""
    return len({outcome.id for outcome in outcomes}) == len(outcomes)


def _are_short(outcomes: Sequence[Finish]) -> bool:
    """Whether all of them, of jobs with gates, may go the short way."""
    return all(_is_plain(o) and not o.leaves_turn and o.brake is None for o in outcomes) and (
        _are_unlike(outcomes)
    )


def _is_plain(outcome: Finish) -> bool:
    """Whether the outcome goes the short way: completed, with nothing to add to the row."""
    return outcome.to is JobState.COMPLETED and outcome.log is None and outcome.reason is None


# -- what is written ---------------------------------------------------------------------------------


class _OutcomeRow(msgspec.Struct, omit_defaults=True):
    job: str
    by_token: str
    state: str
    what: str
    delay_seconds: float
    counts: bool
    result: str | None = None
    error: Failure | None = None
    given_reason: str | None = None
    more_log: str | None = None
    fingerprint: str | None = None
    trace: str | None = None


def _write_completed(outcomes: Sequence[Finish], now: datetime | None) -> dict[str, Any]:
    """The parameters of `finish`: mostly all results are one, and then it is written once.

    Leases are counted down only by calls for many jobs. A single one may be part of the application's
    own transaction, and others would wait for its commit.
    """
    found = {outcome.result for outcome in outcomes}
    is_one = len(found) == 1
    leases: Counter[str] = Counter()
    if len(outcomes) >= COUNTED:
        leases.update(outcome.token for outcome in outcomes)
    return {
        "now": now,
        "leases": Ids(leases) if leases else None,
        "numbers": list(leases.values()) if leases else None,
        "ids": Ids(outcome.id for outcome in outcomes),
        "tokens": Ids(outcome.token for outcome in outcomes),
        "results": None if is_one else _encode({o.id: o.result for o in outcomes}).decode(),
        "result": found.pop() if is_one else None,
    }


def _write_gated(outcomes: Sequence[Finish], now: datetime | None) -> dict[str, Any]:
    """The same for jobs with gates, which have no leases."""
    values = _write_completed(outcomes, now)
    del values["leases"], values["numbers"]
    return values


def _write_outcomes(outcomes: Iterable[Finish]) -> str:
    return _encode(
        [
            _OutcomeRow(
                o.id,
                o.token,
                o.to.value,
                o.what,
                o.delay.total_seconds(),
                o.counts,
                o.result,
                _clean_error(o.error),
                _clean(o.reason),
                _clean(o.log),
                o.fingerprint,
                _trace(o),
            )
            for o in outcomes
        ]
    ).decode()


def _trace(outcome: Finish) -> str | None:
    """What the store makes a fingerprint of, for a job that dies without one."""
    if outcome.to is not JobState.DEAD or outcome.fingerprint is not None:
        return None
    return trace(changes.died_of(outcome))


def _clean(text: str | None) -> str | None:
    """Text that no person wrote: one odd character in it must not fail the batch it is written with."""
    return None if text is None else clean_text(text, _NO_LIMIT)


def _clean_error(error: Failure | None) -> Failure | None:
    if error is None:
        return None
    return Failure(
        clean_text(error.type, _NO_LIMIT),
        clean_text(error.message, _NO_LIMIT),
        _clean(error.traceback),
    )

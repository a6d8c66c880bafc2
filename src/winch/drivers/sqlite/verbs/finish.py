"""Ending claims: finish, release, give up, crash; notes and the standing of claims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from winch.core import changes
from winch.core.job import KEEP, LOG_LIMIT, Claim, Note, from_micros
from winch.core.lifecycle import JobState
from winch.core.values.codec import to_json
from winch.drivers._shared.rows import read_history
from winch.drivers.sqlite.connections.writer import store_time
from winch.drivers.sqlite.records import MICROSECOND
from winch.drivers.sqlite.statements import Ring, Step
from winch.drivers.sqlite.verbs import permits
from winch.drivers.sqlite.verbs.awaited import begin_waits
from winch.drivers.sqlite.verbs.base import Body, query, read_jobs
from winch.drivers.sqlite.verbs.changed_jobs import give_back, store
from winch.drivers.sqlite.verbs.claim import next_members
from winch.storage.crash_report import CrashReport
from winch.storage.params import Answer, ClaimParams, ClaimRef, Finish, Standing
from winch.storage.verbs import Now, Verb

T = TypeVar("T")
_claims = msgspec.json.Decoder(list[tuple[str, str, int]])
_texts = msgspec.json.Decoder(list[str])
_KEEP_COMPLETED = KEEP[JobState.COMPLETED] // MICROSECOND


class FinishVerbs:
    """See FinishVerbs in storage/families.py for the contracts."""

    def finish(self, outcomes: Sequence[Finish], *, now: Now = None) -> Verb[list[Answer]]:
        def body() -> Body[list[Answer]]:
            at = store_time(now)
            plain: dict[str, dict[str, str | None]] = {}
            for outcome in outcomes:
                if _is_plain(outcome) and not outcome.is_gated:
                    plain.setdefault(outcome.token, {}).setdefault(outcome.id, outcome.result)
            ended: set[tuple[str, str]] = set()
            gone: set[tuple[str, str]] = set()
            for token, results in plain.items():
                took, left = yield from _archive(results, token, at)
                ended.update((job_id, token) for job_id in took)
                gone.update((job_id, token) for job_id in results if job_id not in left)
            if any(outcome.is_awaited for outcome in outcomes):
                yield Ring(due=True)
            if len(ended) == len(outcomes):
                return [Answer.TOOK] * len(outcomes)
            rest = [one for one in outcomes if (one.id, one.token) not in gone]
            ended |= yield from _finish_rest(rest, at)
            return (yield from _answered(outcomes, ended))

        return Verb("finish", body)

    def finish_and_claim(
        self, outcomes: Sequence[Finish], then: ClaimParams, *, now: Now = None
    ) -> Verb[tuple[list[Answer], list[Claim]]]:
        def body() -> Body[tuple[list[Answer], list[Claim]]]:
            at = store_time(now)
            rings: list[Ring] = []
            ended = yield from _kept_apart(_finish_rest(outcomes, at, claims_next=True), rings)
            answers = yield from _answered(outcomes, ended)
            took = [o.id for o, answer in zip(outcomes, answers, strict=True) if answer is Answer.TOOK]
            claims = yield from _kept_apart(next_members(took, then, at), rings)
            if any(outcome.is_awaited for outcome in outcomes):
                rings.append(Ring(due=True))
            yield _less(rings, claims)
            return answers, claims

        return Verb("finish_and_claim", body)

    def release(
        self, claims: Sequence[ClaimRef], *, has_started: bool = False, now: Now = None
    ) -> Verb[list[Answer]]:
        def body() -> Body[list[Answer]]:
            at = store_time(now)
            rows = yield from query("release", ids=to_json([ref.id for ref in claims]))
            held = {(row[0], row[1]) for row in rows}
            answers: dict[int, Answer] = {}
            freed = []
            for index, ref in enumerate(claims):
                if (ref.id, ref.token) in held:
                    held.discard((ref.id, ref.token))
                    answers[index] = Answer.TOOK
                    freed.append(ref.id)
            yield from give_back(freed, at, by_holder=True, has_started=has_started)
            ends = [(JobState.READY, changes.RELEASED)] * len(claims)
            return (yield from _answers(claims, answers, ends))

        return Verb("release", body)

    def give_up(self, session: str, tokens: Sequence[str], *, now: Now = None) -> Verb[int]:
        def body() -> Body[int]:
            at = store_time(now)
            rows = yield from query("give_up", session=session, tokens=to_json(list(tokens)))
            yield from give_back([row[0] for row in rows], at)
            return len(rows)

        return Verb("give_up", body)

    def crash(self, crash: CrashReport, *, now: Now = None) -> Verb[list[Answer]]:
        claims = crash.claims

        def body() -> Body[list[Answer]]:
            at = store_time(now)
            rows = yield from query("crash", ids=to_json([ref.id for ref in claims]))
            held = {(row[0], row[1]) for row in rows}
            answers: dict[int, Answer] = {}
            for index, ref in enumerate(claims):
                if (ref.id, ref.token) in held:
                    held.discard((ref.id, ref.token))
                    answers[index] = Answer.TOOK
            jobs = yield from read_jobs(claims[index].id for index in answers)
            moment = from_micros(at)
            dead = [
                changes.suspected(job, "crashed", crash.cause, moment, crash.rule, by_token=job.token)
                for job in jobs.values()
            ]
            yield from store(dead, at)
            return (yield from _answers(claims, answers))

        return Verb("crash", body)

    def note(self, claim: ClaimRef, note: Note) -> Verb[Answer]:
        return Verb("note", lambda: _noted(claim, note), is_alone=True)

    def notes(self, notes: Sequence[tuple[ClaimRef, Note]]) -> Verb[list[Answer]]:
        def body() -> Body[list[Answer]]:
            answers = []
            for claim, note in notes:
                answers.append((yield from _noted(claim, note)))
            return answers

        return Verb("notes", body, is_alone=len(notes) == 1)

    def standing(self, claims: Sequence[ClaimRef]) -> Verb[list[Standing]]:
        def body() -> Body[list[Standing]]:
            rows = yield from query("standing", ids=to_json([ref.id for ref in claims]))
            live = {(row[0], row[1]) for row in rows}
            answers = yield from _answers(claims, {})
            return [
                Standing.LIVE
                if (ref.id, ref.token) in live
                else Standing.ENDED
                if answer is Answer.ALREADY
                else Standing.LOST
                for ref, answer in zip(claims, answers, strict=True)
            ]

        return Verb("standing", body)


def _noted(claim: ClaimRef, note: Note) -> Body[Answer]:
    rows = yield from query(
        "note",
        id=claim.id,
        token=claim.token,
        log_limit=LOG_LIMIT,
        **msgspec.structs.asdict(note),
    )
    return Answer.TOOK if rows else Answer.LOST


def _kept_apart(body: Body[T], rings: list[Ring]) -> Body[T]:
    """Carry out what this body does, and leave what it would wake in `rings`."""
    answer: Any = None
    while True:
        try:
            step = body.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result
        if isinstance(step, Ring):
            rings.append(step)
            answer = None
        else:
            answer = yield step


def _less(rings: Iterable[Ring], claims: Iterable[Claim]) -> Ring:
    """What these rings wake, without the jobs that are taken already."""
    all_ = Ring()
    for one in rings:
        all_.due = all_.due or one.due
        for queue, jobs in one.ready.items():
            all_.ready[queue] += jobs
    for claim in claims:
        all_.ready[claim.queue] -= 1
    for queue in [queue for queue, jobs in all_.ready.items() if jobs <= 0]:
        del all_.ready[queue]
    return all_


def _archive(
    results: Mapping[str, str | None], token: str, at: int
) -> Body[tuple[Iterable[str], set[str]]]:
    """Complete the plain claims among these that are live; which they are, and which have gates."""
    values = {
        "results": to_json(results),
        "token": token,
        "now": at,
        "keep_completed": _KEEP_COMPLETED,
    }
    count = yield Step("finish.archive", values, is_counted=True)
    took: Iterable[str] = results
    gated: set[str] = set()
    if count < len(results):  # not all of them are: their rows are still here to be looked at
        rows = yield from _live(list(results))
        took = [job_id for job_id, held, has_gates in rows if held == token and not has_gates]
        gated = {job_id for job_id, held, has_gates in rows if held == token and has_gates}
    if count:
        yield Step("record.awaited", {"ids": to_json(list(took))})
        yield Step("finish.leave", {"results": values["results"], "token": token})
    return took, gated


def _live(ids: Sequence[str]) -> Body[list[tuple[str, str, int]]]:
    """The claims among these that are live: job, token, and whether the job has gates."""
    [(text,)] = yield from query("finish", ids=to_json(ids))
    return _claims.decode(text)


def _is_plain(outcome: Finish) -> bool:
    """Whether it is a completion that adds nothing to the job's history."""
    return outcome.to is JobState.COMPLETED and outcome.reason is None and outcome.log is None


def _finish_rest(
    outcomes: Sequence[Finish], at: int, *, claims_next: bool = False
) -> Body[set[tuple[str, str]]]:
    """Finish what has gates or grows the job's history. Completions that no brake or breaker counts need
    no record in Python: the store moves their rows. The claims that were live. `claims_next`: their FIFO
    keys are left to `next_members`."""
    completed: dict[str, dict[str, str | None]] = {}
    for one in outcomes:
        if _is_plain(one) and one.brake is None:
            completed.setdefault(one.token, {}).setdefault(one.id, one.result)
    ended: set[tuple[str, str]] = set()
    for token, results in completed.items():
        values = {"results": to_json(results), "token": token}
        took: Iterable[str] = results
        count = yield Step(
            "finish.archive_gated",
            {**values, "now": at, "keep_completed": _KEEP_COMPLETED},
            is_counted=True,
        )
        if count < len(results):  # not all of them are: their rows are still here to be looked at
            [(text,)] = yield from query("finish.gated", **values)
            took = _texts.decode(text)
        ended.update((job_id, token) for job_id in took)
    if ended:
        ids = [job_id for job_id, _ in ended]
        as_json = to_json(ids)
        yield Step("record.awaited", {"ids": as_json}, is_counted=True)
        yield Step("record.leave", {"ids": as_json}, is_counted=True)
        yield from permits.leave(ids, ids, at, opens_keys=not claims_next)
    if len(ended) < len(outcomes):
        rest = [one for one in outcomes if (one.id, one.token) not in ended]
        ended |= yield from _finish_others(rest, at)
    return ended


def _finish_others(outcomes: Sequence[Finish], at: int) -> Body[set[tuple[str, str]]]:
    """Finish what grows the job's history or has gates; the claims among them that were live."""
    if not outcomes:
        return set()
    rows = yield from _live([outcome.id for outcome in outcomes])
    held = {(row[0], row[1]) for row in rows}
    live = {(o.id, o.token): o for o in reversed(outcomes) if (o.id, o.token) in held}
    jobs = yield from read_jobs(job_id for job_id, _ in live)
    moment = from_micros(at)
    ended = [changes.finished(jobs[i], token, live[i, token], moment) for i, token in live]
    yield from store(ended, at)
    yield from begin_waits(live.values(), ended, at)
    if leaving := [outcome.id for outcome in live.values() if outcome.leaves_turn]:
        yield from permits.leave_turns(leaving, at)
    if any(row[2] for row in rows) or any(o.brake is not None for o in live.values()):
        yield from permits.finished(jobs.values(), {o.id: o for o in live.values()}, at)
    return set(live)


def _answered(outcomes: Sequence[Finish], ended: set[tuple[str, str]]) -> Body[list[Answer]]:
    """The answers to these outcomes; `ended` are the claims that this call has ended."""
    refs = [ClaimRef(outcome.id, outcome.token) for outcome in outcomes]
    answers: dict[int, Answer] = {}
    for index, ref in enumerate(refs):
        if (ref.id, ref.token) in ended:
            ended.discard((ref.id, ref.token))
            answers[index] = Answer.TOOK
    return (yield from _answers(refs, answers, [(one.to, one.what) for one in outcomes]))


def _answers(
    refs: Sequence[ClaimRef],
    took: dict[int, Answer],
    ends: Sequence[changes.End] | None = None,
) -> Body[list[Answer]]:
    """Took, or what became of the claims that did not: ended by this token before, and in this way where
    `ends` names it, or lost."""
    if len(took) == len(refs):
        return [Answer.TOOK] * len(refs)
    missed = [ref.id for index, ref in enumerate(refs) if index not in took]
    rows = yield from query("finish.ended", ids=to_json(missed))
    found = {row[0]: (JobState(row[1]), row[2], changes.whats_of(read_history(row[3]))) for row in rows}
    answers = []
    for index, ref in enumerate(refs):
        if index in took:
            answers.append(Answer.TOOK)
            continue
        ended = changes.ended_as(ref.token, *found[ref.id]) if ref.id in found else None
        end = None if ends is None else ends[index]
        is_repeat = changes.is_repeat(ended, end)
        answers.append(Answer.ALREADY if is_repeat else Answer.LOST)
    return answers

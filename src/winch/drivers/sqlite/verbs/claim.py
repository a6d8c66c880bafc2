"""The verbs of producers and workers: enqueue, claim, what ends a claim, sessions, time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from winch.core import changes
from winch.core.job import (
    CRASH_RULE,
    KEEP,
    LOG_LIMIT,
    RESCUE_RULE,
    Claim,
    Note,
    SuspectRule,
    from_micros,
)
from winch.core.lifecycle import JobState
from winch.core.policy.retention import dead_limits
from winch.drivers.sqlite.records import (
    MICROSECOND,
    read_history,
    to_json,
)
from winch.drivers.sqlite.statements import Ring, Step
from winch.drivers.sqlite.verbs import gates
from winch.drivers.sqlite.verbs.base import (
    HEAD_START_MICROS,
    Body,
    ask,
    micros,
    read_jobs,
    store,
    verb,
)
from winch.drivers.sqlite.verbs.plain_claim import claim_plain
from winch.drivers.sqlite.verbs.waits import begin_waits, prune_waits, still_awaited
from winch.storage.decide.waits import STILL_AWAITED
from winch.storage.params import (
    Answer,
    ClaimParams,
    ClaimRef,
    Finish,
    NewSession,
    Promoted,
    Pulse,
    Rescued,
    Standing,
    Trim,
)
from winch.storage.verbs import Verb

KEEP_SESSIONS = timedelta(days=1)
_KEEP_COMPLETED = KEEP[JobState.COMPLETED] // MICROSECOND


class WorkingVerbs:
    """The hot half of Storage; see storage/families.py for the contracts."""

    # -- working -----------------------------------------------------------------------------------

    def claim(self, params: ClaimParams, *, now: datetime | None = None) -> Verb[list[Claim]]:
        def body() -> Body[list[Claim]]:
            at = micros(now)
            claims: list[Claim] = []
            gated = params.limit if params.gated is None else params.gated
            for queue in dict.fromkeys(params.queues):
                if len(claims) >= params.limit:
                    break
                left = params.limit - len(claims)
                if gated:
                    found, holding = yield from gates.claim_queue(params, queue, left, gated, at)
                    claims += found
                    gated = max(gated - holding, 0)
                else:
                    claims += yield from claim_plain(params, queue, left, at)
            return claims

        return Verb("claim", body)

    def finish(self, outcomes: Sequence[Finish], *, now: datetime | None = None) -> Verb[list[Answer]]:
        def body() -> Body[list[Answer]]:
            at = micros(now)
            completed: dict[str, dict[str, str | None]] = {}
            others: list[int] = []
            for place, outcome in enumerate(outcomes):
                if outcome.to is JobState.COMPLETED and outcome.reason is None and outcome.log is None:
                    completed.setdefault(outcome.token, {}).setdefault(outcome.id, outcome.result)
                else:
                    others.append(place)
            ended: set[tuple[str, str]] = set()
            gated: set[tuple[str, str]] = set()
            for token, results in completed.items():
                took, left = yield from _archive(results, token, at)
                ended.update((job_id, token) for job_id in took)
                gated.update((job_id, token) for job_id in left)
            if any(outcome.is_awaited for outcome in outcomes):
                ring = Ring()
                ring.due = True
                yield ring
            if len(ended) == len(outcomes):
                return [Answer.TOOK] * len(outcomes)
            rest = [outcomes[place] for place in others]
            rest += [one for one in outcomes if (one.id, one.token) in gated]
            ended |= yield from _finish_others(rest, at)
            refs = [ClaimRef(outcome.id, outcome.token) for outcome in outcomes]
            answers: dict[int, Answer] = {}
            for place, ref in enumerate(refs):
                if (ref.id, ref.token) in ended:
                    ended.discard((ref.id, ref.token))
                    answers[place] = Answer.TOOK
            return (yield from _answers(refs, answers, [(one.to, one.what) for one in outcomes]))

        return verb("finish", body)

    def release(
        self, claims: Sequence[ClaimRef], *, has_started: bool = False, now: datetime | None = None
    ) -> Verb[list[Answer]]:
        def body() -> Body[list[Answer]]:
            at = micros(now)
            rows = yield from ask("release", ids=to_json([ref.id for ref in claims]))
            held = {(row[0], row[1]) for row in rows}
            answers: dict[int, Answer] = {}
            freed = []
            for place, ref in enumerate(claims):
                if (ref.id, ref.token) in held:
                    held.discard((ref.id, ref.token))
                    answers[place] = Answer.TOOK
                    freed.append(ref.id)
            yield from _give_back(freed, at, by_holder=True, has_started=has_started)
            ends = [(JobState.READY, changes.RELEASED)] * len(claims)
            return (yield from _answers(claims, answers, ends))

        return verb("release", body)

    def give_up(self, session: str, tokens: Sequence[str], *, now: datetime | None = None) -> Verb[int]:
        def body() -> Body[int]:
            at = micros(now)
            rows = yield from ask("give_up", session=session, tokens=to_json(list(tokens)))
            yield from _give_back([row[0] for row in rows], at)
            return len(rows)

        return verb("give_up", body)

    def crash(
        self,
        claims: Sequence[ClaimRef],
        *,
        cause: str,
        rule: SuspectRule = CRASH_RULE,
        now: datetime | None = None,
    ) -> Verb[list[Answer]]:
        def body() -> Body[list[Answer]]:
            at = micros(now)
            rows = yield from ask("crash", ids=to_json([ref.id for ref in claims]))
            held = {(row[0], row[1]) for row in rows}
            answers: dict[int, Answer] = {}
            for place, ref in enumerate(claims):
                if (ref.id, ref.token) in held:
                    held.discard((ref.id, ref.token))
                    answers[place] = Answer.TOOK
            jobs = yield from read_jobs(claims[place].id for place in answers)
            moment = from_micros(at)
            dead = [
                changes.suspected(job, "crashed", cause, moment, rule, by_token=job.token)
                for job in jobs.values()
            ]
            yield from store(dead, at)
            return (yield from _answers(claims, answers))

        return verb("crash", body)

    def note(self, claim: ClaimRef, note: Note) -> Verb[Answer]:
        def body() -> Body[Answer]:
            rows = yield from ask(
                "note",
                id=claim.id,
                token=claim.token,
                progress=note.progress,
                checkpoint=note.checkpoint,
                log=note.log,
                log_limit=LOG_LIMIT,
                has_undo=None if note.has_undo is None else int(note.has_undo),
                forgets_cancel=int(note.forgets_cancel),
            )
            return Answer.TOOK if rows else Answer.LOST

        return verb("note", body)

    def standing(self, claims: Sequence[ClaimRef]) -> Verb[list[Standing]]:
        def body() -> Body[list[Standing]]:
            rows = yield from ask("standing", ids=to_json([ref.id for ref in claims]))
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

        return verb("standing", body)

    def held(self, session: str) -> Verb[list[ClaimRef]]:
        def body() -> Body[list[ClaimRef]]:
            return [ClaimRef(row[0], row[1]) for row in (yield from ask("held", session=session))]

        return verb("held", body, is_read=True)

    def cancels(self, sessions: Sequence[str]) -> Verb[list[ClaimRef]]:
        def body() -> Body[list[ClaimRef]]:
            rows = yield from ask("cancels", sessions=to_json(list(sessions)))
            order = {session: place for place, session in enumerate(sessions)}
            rows.sort(key=lambda row: order[row[2]])
            return [ClaimRef(row[0], row[1]) for row in rows]

        return verb("cancels", body, is_read=True)

    # -- sessions ----------------------------------------------------------------------------------

    def start_session(self, session: NewSession, *, now: datetime | None = None) -> Verb[datetime]:
        def body() -> Body[datetime]:
            at = micros(now)
            yield from ask(
                "start_session",
                id=session.id,
                worker=session.worker,
                host=session.host,
                pid=session.pid,
                release=session.release,
                queues=to_json(session.queues),
                tasks=to_json(session.tasks),
                slots=session.slots,
                lease=session.lease // MICROSECOND,
                now=at,
            )
            for one in session.schedules:
                said = {"name": one.name, "definition": one.definition}
                yield from ask("start_session.declare", id=session.id, timing=one.timing, **said)
                yield from ask("start_session.schedule", now=at, **said)
            return from_micros(at)

        return verb("start_session", body)

    def beat(self, sessions: Sequence[str], *, now: datetime | None = None) -> Verb[list[Pulse]]:
        def body() -> Body[list[Pulse]]:
            at = micros(now)
            beats: dict[str, int] = dict(
                (yield from ask("beat", sessions=to_json(list(sessions)), now=at))
            )
            moment = from_micros(at)
            return [
                Pulse(session, is_live=session in beats, beats=beats.get(session, 0), now=moment)
                for session in sessions
            ]

        return verb("beat", body)

    def end_session(
        self,
        session: str,
        *,
        started: Sequence[ClaimRef] = (),
        cause: str | None = None,
        rule: SuspectRule = CRASH_RULE,
        now: datetime | None = None,
    ) -> Verb[list[Rescued]]:
        def body() -> Body[list[Rescued]]:
            at = micros(now)
            yield from ask("end_session", session=session, reason=cause or "stopped", now=at)
            ids = [row[0] for row in (yield from ask("end_session.running", session=session))]
            jobs = yield from read_jobs(ids)
            guilty = {(ref.id, ref.token) for ref in started}
            moment = from_micros(at)
            taken, back = [], []
            for job in (jobs[i] for i in ids):
                if cause is not None and (job.id, job.token) in guilty:
                    changed = changes.suspected(job, "crashed", cause, moment, rule)
                else:
                    changed = changes.given_back(job, moment)
                taken.append(changed)
                back.append(Rescued(job.id, job.token or "", session, changed.state))
            yield from store(taken, at)
            return back

        return verb("end_session", body)

    def rescue(
        self, *, limit: int = 1000, as_of: datetime | None = None, now: datetime | None = None
    ) -> Verb[list[Rescued]]:
        def body() -> Body[list[Rescued]]:
            at = micros(now)
            yield from ask("rescue", now=at, as_of=at if as_of is None else min(at, micros(as_of)))
            ids = [row[0] for row in (yield from ask("rescue.orphans", limit=limit))]
            jobs = yield from read_jobs(ids)
            moment = from_micros(at)
            taken, back = [], []
            for job in (jobs[i] for i in ids):
                changed = changes.suspected(job, "rescued", "lease over", moment, RESCUE_RULE)
                taken.append(changed)
                back.append(Rescued(job.id, job.token or "", job.session or "", changed.state))
            yield from store(taken, at)
            return back

        return verb("rescue", body)

    # -- time --------------------------------------------------------------------------------------

    def promote(self, *, limit: int = 1000, now: datetime | None = None) -> Verb[Promoted]:
        def body() -> Body[Promoted]:
            at = micros(now)
            rows = yield from ask("promote", now=at, limit=limit, head_start=HEAD_START_MICROS)
            ring = Ring()
            for (queue,) in rows:
                ring.count(queue)
            yield ring
            later = yield from ask("promote.next")
            next_at = from_micros(later[0][0]) if later else None
            return Promoted(len(rows), next_at, from_micros(at))

        return verb("promote", body)

    def admit(
        self, *, limit: int = 1000, is_sweep: bool = False, now: datetime | None = None
    ) -> Verb[Promoted]:
        def body() -> Body[Promoted]:
            at = micros(now)
            if is_sweep:
                yield from ask("admit.forget")
                rows = yield from ask("admit.all")
            else:
                rows = yield from ask("admit.due", now=at, limit=limit)
            count = yield from gates.open_gates([row[0] for row in rows], at)
            ((next_at,),) = yield from ask("admit.next")
            return Promoted(count, None if next_at is None else from_micros(next_at), from_micros(at))

        return verb("admit", body)

    def prune(self, *, limit: int = 1000, now: datetime | None = None) -> Verb[int]:
        def body() -> Body[int]:
            at = micros(now)
            gone = yield from _prune_jobs(at, limit)
            yield from prune_waits(at)
            yield from ask("prune.sessions", before=at - KEEP_SESSIONS // MICROSECOND)
            yield from ask("prune.declarations")
            yield from ask("prune.keys", now=at)
            return gone

        return verb("prune", body)

    def trim(self, which: Trim, *, now: datetime | None = None) -> Verb[int]:
        def body() -> Body[int]:
            at = micros(now)
            total = 0
            for task, options in (yield from ask("trim", task=which.task, queue=which.queue)):
                if total >= which.limit and not which.is_dry_run:
                    break
                total += yield from _trim_task(task, options, which, at, which.limit - total)
            return total

        return verb("trim", body)


def _archive(
    results: Mapping[str, str | None], token: str, at: int
) -> Body[tuple[Iterable[str], Iterable[str]]]:
    """Complete the plain claims among these that are live; which they are, and which have gates."""
    values = {
        "results": to_json(results),
        "token": token,
        "now": at,
        "keep_completed": _KEEP_COMPLETED,
    }
    count = yield Step("finish.archive", values, is_counted=True)
    took: Iterable[str] = results
    gated: list[str] = []
    if count < len(results):  # not all of them are: their rows are still here to be looked at
        rows = yield from ask("finish", ids=to_json(list(results)))
        took = [job_id for job_id, held, has_gates in rows if held == token and not has_gates]
        gated = [job_id for job_id, held, has_gates in rows if held == token and has_gates]
    if count:
        yield from ask("record.awaited", ids=to_json(list(took)))
        yield from ask("finish.leave", results=values["results"], token=token)
    return took, gated


def _finish_others(outcomes: Sequence[Finish], at: int) -> Body[set[tuple[str, str]]]:
    """Finish what grows the job's history or has gates; the claims among them that were live."""
    if not outcomes:
        return set()
    rows = yield from ask("finish", ids=to_json([outcome.id for outcome in outcomes]))
    held = {(row[0], row[1]) for row in rows}
    live = {(o.id, o.token): o for o in reversed(outcomes) if (o.id, o.token) in held}
    jobs = yield from read_jobs(job_id for job_id, _ in live)
    moment = from_micros(at)
    ended = [changes.finished(jobs[i], token, live[i, token], moment) for i, token in live]
    yield from store(ended, at)
    yield from begin_waits(live.values(), ended, at)
    if leaving := [outcome.id for outcome in live.values() if outcome.leaves_turn]:
        yield from gates.leave_turns(leaving, at)
    if any(row[2] for row in rows) or any(o.brake is not None for o in live.values()):
        yield from gates.finished(jobs.values(), {o.id: o for o in live.values()}, at)
    return set(live)


def _prune_jobs(at: int, limit: int) -> Body[int]:
    """Delete final jobs whose keeping time is over, but for those that somebody still needs."""
    gone = 0
    while gone < limit:
        awaited = yield from ask("prune.awaited", now=at, limit=limit - gone)
        if not awaited:
            return gone + len((yield from ask("prune", now=at, limit=limit - gone)))
        needed = yield from still_awaited(awaited)
        if needed:
            later = at + STILL_AWAITED // MICROSECOND
            yield from ask("prune.later", ids=to_json(sorted(needed)), later=later)
        if ids := [job_id for job_id, _ in awaited if job_id not in needed]:
            gone += len((yield from ask("prune.these", ids=to_json(ids))))
    return gone


def _trim_task(task: str, options: str | None, which: Trim, at: int, limit: int) -> Body[int]:
    """Delete up to `limit` of what is too much of one task, or count it."""
    count, most_bytes = which.count, which.bytes
    if not which.is_forced:
        own = dead_limits(options)
        count = which.count if own.dead_count is None else own.dead_count
        most_bytes = which.bytes if own.dead_bytes is None else own.dead_bytes
    is_by_count = count is not None and most_bytes is None and which.older_than is None
    name = "trim.many" if is_by_count and which.queue is None else "trim.over"
    values: dict[str, Any] = {
        "task": task,
        "queue": which.queue,
        "count": count,
        "bytes": most_bytes,
        "before": None if which.older_than is None else at - which.older_than // MICROSECOND,
        "limit": limit,
        "skip": 0,
        "only_awaited": False,
    }
    if which.is_dry_run:
        ((count,),) = yield from ask("trim.matched", **values)
        awaited = yield from ask("trim.over", **values | {"only_awaited": True, "limit": -1})
        return int(count) - len((yield from still_awaited(awaited)))
    gone = 0
    while True:
        rows = yield from ask(name, **values)
        needed = yield from still_awaited(rows)
        if ids := [row[0] for row in rows if row[0] not in needed]:
            gone += len((yield from ask("trim.delete", ids=to_json(ids[: limit - gone]))))
        if len(rows) < limit or gone >= limit:
            return gone
        values["skip"] += len(needed)


def _give_back(
    ids: Sequence[str], at: int, *, by_holder: bool = False, has_started: bool = False
) -> Body[None]:
    if ids:
        jobs = yield from read_jobs(ids)
        moment = from_micros(at)
        freed = [
            changes.given_back(jobs[i], moment, by_holder=by_holder, has_started=has_started)
            for i in ids
        ]
        yield from store(freed, at)


def _answers(
    refs: Sequence[ClaimRef],
    took: dict[int, Answer],
    ends: Sequence[changes.End] | None = None,
) -> Body[list[Answer]]:
    """Took, or what became of the claims that did not: ended by this token before, and in this way where
    `ends` names it, or lost."""
    if len(took) == len(refs):
        return [Answer.TOOK] * len(refs)
    missed = [ref.id for place, ref in enumerate(refs) if place not in took]
    rows = yield from ask("finish.ended", ids=to_json(missed))
    found = {row[0]: (JobState(row[1]), row[2], changes.whats_of(read_history(row[3]))) for row in rows}
    answers = []
    for place, ref in enumerate(refs):
        if place in took:
            answers.append(Answer.TOOK)
            continue
        ended = changes.ended_as(ref.token, *found[ref.id]) if ref.id in found else None
        end = None if ends is None else ends[place]
        is_repeat = changes.is_repeat(ended, end)
        answers.append(Answer.ALREADY if is_repeat else Answer.LOST)
    return answers

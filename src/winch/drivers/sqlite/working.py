"""The verbs of producers and workers: enqueue, claim, what ends a claim, sessions, time."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from winch.core import changes
from winch.core.errors import ConfigError
from winch.core.job import KEEP, LOG_LIMIT, Claim, Note, from_micros, to_micros
from winch.core.lifecycle import JobState
from winch.core.retention import dead_limits
from winch.drivers.sqlite import gates
from winch.drivers.sqlite.bodies import (
    HEAD_START_MICROS,
    RING_WITHIN_MICROS,
    Body,
    ask,
    holders,
    kept_holders,
    micros,
    read_jobs,
    ring_for,
    store,
    verb,
)
from winch.drivers.sqlite.rows import (
    MICROSECOND,
    put_values,
    read_claims,
    read_history,
    to_json,
)
from winch.drivers.sqlite.steps import Ring, Step
from winch.drivers.sqlite.waiting import begin_waits, prune_waits
from winch.storage.params import (
    Answer,
    ClaimParams,
    ClaimRef,
    Enqueued,
    Finish,
    NewJob,
    NewSession,
    Promoted,
    Pulse,
    Rescued,
    Standing,
    Trim,
)
from winch.storage.unique import filled, planned
from winch.storage.verbs import Verb

KEEP_SESSIONS = timedelta(days=1)
_KEEP_COMPLETED = KEEP[JobState.COMPLETED] // MICROSECOND


class WorkingVerbs:
    """The hot half of Storage; see storage/protocol.py for the contracts."""

    # -- producing ---------------------------------------------------------------------------------

    def enqueue(
        self, jobs: Sequence[NewJob], *, is_repeat: bool = False, now: datetime | None = None
    ) -> Verb[list[Enqueued]]:
        def body() -> Body[list[Enqueued]]:
            at = micros(now)
            known: set[str] = set()
            # Ids that Winch drew are looked up only when the first call's answer was lost.
            if checked := [job.id for job in jobs if is_repeat or job.is_given_id]:
                known = {row[0] for row in (yield from ask("enqueue.known", ids=to_json(checked)))}
            keys = {job.unique_key for job in jobs if job.unique_key is not None}
            plan = None
            chosen = jobs
            if keys:
                held = yield from holders(keys)
                if within := {j.unique_key for j in jobs if j.unique_within is not None} - set(held):
                    held |= yield from kept_holders(within, at)
                plan = planned(jobs, held, known)
                chosen = plan.store
                if plan.take_over:
                    yield from ask("enqueue.take_over", ids=to_json(list(plan.take_over.values())))
            answers = []
            fresh: dict[str, NewJob] = {}
            for job in chosen:
                is_new = job.id not in known and job.id not in fresh
                if not is_new and not is_repeat and not (job.is_given_id and _is_given(job.id, fresh)):
                    raise _drawn_twice(job.id)
                if is_new:
                    fresh[job.id] = job
                answers.append(Enqueued(job.id, is_new))
            try:
                yield from _insert(list(fresh.values()), at)
            except sqlite3.IntegrityError as error:
                raise _drawn_twice(", ".join(fresh)) from error
            if plan is None:
                return answers
            kept = [job for job in fresh.values() if job.unique_within is not None]
            if kept:
                yield Step.each("enqueue.keep", [_kept(job, at) for job in kept])
            if plan.replace:
                yield from _replace(plan.replace, at)
            return filled(plan, answers)

        return verb("enqueue", body)

    # -- working -----------------------------------------------------------------------------------

    def claim(self, params: ClaimParams, *, now: datetime | None = None) -> Verb[list[Claim]]:
        def body() -> Body[list[Claim]]:
            at = micros(now)
            tasks = None if params.tasks is None else to_json(params.tasks)
            claims: list[Claim] = []
            gated = params.limit if params.gated is None else params.gated
            for queue in dict.fromkeys(params.queues):
                if len(claims) >= params.limit:
                    break
                if gated:
                    found, holding = yield from gates.claim_queue(
                        params, queue, params.limit - len(claims), gated, at
                    )
                    claims += found
                    gated = max(gated - holding, 0)
                    continue
                rows = yield from ask(
                    "claim",
                    now=at,
                    token=params.token,
                    session=params.session,
                    queue=queue,
                    tasks=tasks,
                    limit=params.limit - len(claims),
                )
                claims += read_claims(rows, params.token, from_micros(at))
            return claims

        return verb("claim", body)

    def finish(self, outcomes: Sequence[Finish], *, now: datetime | None = None) -> Verb[list[Answer]]:
        def body() -> Body[list[Answer]]:
            at = micros(now)
            rows = yield from ask("finish", ids=to_json([outcome.id for outcome in outcomes]))
            held = {(row[1], row[2]): row[0] for row in rows}
            gated = {row[1] for row in rows if row[3]}
            answers: dict[int, Answer] = {}
            completed: dict[str, str | None] = {}
            others: dict[str, Finish] = {}
            for place, outcome in enumerate(outcomes):
                row = held.pop((outcome.id, outcome.token), None)
                if row is None:
                    continue
                answers[place] = Answer.TOOK
                is_plain = outcome.reason is None and outcome.log is None and outcome.id not in gated
                if outcome.to is JobState.COMPLETED and is_plain:
                    completed[str(row)] = outcome.result
                else:
                    others[outcome.id] = outcome
            if completed:
                yield from ask(
                    "finish.archive",
                    results=to_json(completed),
                    now=at,
                    keep_completed=_KEEP_COMPLETED,
                )
                yield from ask("finish.leave", rows=to_json([int(row) for row in completed]))
            if others:
                jobs = yield from read_jobs(others)
                ended_at = from_micros(at)
                ended = [
                    changes.finished(jobs[i], other.token, other, ended_at)
                    for i, other in others.items()
                ]
                yield from store(ended, at)
                yield from begin_waits(others.values(), ended, at)
                if gated or any(other.brake is not None for other in others.values()):
                    yield from gates.finished(jobs.values(), others, at)
            if any(outcome.is_awaited for outcome in outcomes):
                ring = Ring()
                ring.due = True
                yield ring
            refs = [ClaimRef(outcome.id, outcome.token) for outcome in outcomes]
            return (yield from _answers(refs, answers))

        return verb("finish", body)

    def release(self, claims: Sequence[ClaimRef], *, now: datetime | None = None) -> Verb[list[Answer]]:
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
            yield from _give_back(freed, at, by_holder=True)
            return (yield from _answers(claims, answers))

        return verb("release", body)

    def give_up(self, session: str, tokens: Sequence[str], *, now: datetime | None = None) -> Verb[int]:
        def body() -> Body[int]:
            at = micros(now)
            rows = yield from ask("give_up", session=session, tokens=to_json(list(tokens)))
            yield from _give_back([row[0] for row in rows], at)
            return len(rows)

        return verb("give_up", body)

    def crash(
        self, claims: Sequence[ClaimRef], *, cause: str, now: datetime | None = None
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
                changes.suspected(job, "crashed", cause, moment, by_token=job.token)
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
                    changed = changes.suspected(job, "crashed", cause, moment)
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
                changed = changes.suspected(job, "rescued", "lease over", moment)
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
            rows = yield from ask("prune", now=at, limit=limit)
            yield from prune_waits(at)
            yield from ask("prune.sessions", before=at - KEEP_SESSIONS // MICROSECOND)
            yield from ask("prune.declarations")
            yield from ask("prune.keys", now=at)
            return len(rows)

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


def _trim_task(task: str, options: str | None, which: Trim, at: int, limit: int) -> Body[int]:
    """Delete up to `limit` of what is too much of one task, or count it."""
    count, most_bytes = which.count, which.bytes
    if not which.is_forced:
        own = dead_limits(options)
        count = which.count if own.dead_count is None else own.dead_count
        most_bytes = which.bytes if own.dead_bytes is None else own.dead_bytes
    is_by_count = count is not None and most_bytes is None and which.older_than is None
    name = "trim.many" if is_by_count and which.queue is None else "trim.over"
    values = {
        "task": task,
        "queue": which.queue,
        "count": count,
        "bytes": most_bytes,
        "before": None if which.older_than is None else at - which.older_than // MICROSECOND,
        "limit": limit,
    }
    if which.is_dry_run:
        rows = yield from ask("trim.matched", **values)
        return int(rows[0][0])
    ids = [row[0] for row in (yield from ask(name, **values))]
    if not ids:
        return 0
    return len((yield from ask("trim.delete", ids=to_json(ids))))


def _insert(jobs: Sequence[NewJob], at: int) -> Body[None]:
    """Jobs that share an envelope go in one statement: in a bulk of one task all of them do."""
    ring = Ring()
    for job, args in _groups(jobs):
        due = at
        if job.delay is not None:
            due = at + job.delay // MICROSECOND
        elif job.run_at is not None:
            due = to_micros(job.run_at)
        run_at = max(due, at)
        is_later = due > at
        values = {
            "id": job.id,
            "task": job.task,
            "version": job.version,
            "args": job.args,
            "queue": job.queue,
            "priority": job.priority,
            "now": at,
            "run_at": run_at,
            "state": "scheduled" if is_later else "ready",
            "tenant": job.tenant,
            "fifo": job.fifo,
            "unique_key": job.unique_key,
            "tags": to_json(job.tags) if job.tags else "[]",
            "headers": to_json(job.headers) if job.headers else "{}",
            "options": job.options,
            "expires_at": None if job.expires is None else at + job.expires // MICROSECOND,
            "max_attempts": job.max_attempts,
            "keep": None if job.keep is None else job.keep // MICROSECOND,
            "sort_key": run_at - job.priority * HEAD_START_MICROS,
        }
        if len(args) == 1:
            yield Step("enqueue.one", values)
        else:
            yield Step("enqueue", {**values, "jobs": to_json(args)})
        if not is_later:
            ring.count(job.queue, len(args))
        elif run_at - at < RING_WITHIN_MICROS:
            ring.due = True
    yield ring


def _kept(job: NewJob, at: int) -> dict[str, object]:
    within = (job.unique_within or timedelta(0)) // MICROSECOND
    return {"key": job.unique_key, "job": job.id, "until": at + within}


def _replace(news: Mapping[str, NewJob], at: int) -> Body[None]:
    jobs = yield from read_jobs(news)
    moment = from_micros(at)
    after = [changes.replaced(jobs[holder], new, moment) for holder, new in news.items()]
    rows = [{**put_values(job, at), "priority": job.priority} for job in after]
    yield Step.each("enqueue.replace", rows)
    yield ring_for(after, at)


def _groups(jobs: Sequence[NewJob]) -> Iterable[tuple[NewJob, dict[str, str]]]:
    """The jobs by their envelopes: one that has it, and the arguments of all of them by id."""
    if len(jobs) == 1:
        return [(jobs[0], {jobs[0].id: jobs[0].args})]
    groups: dict[tuple[object, ...], tuple[NewJob, dict[str, str]]] = {}
    for job in jobs:
        key = (
            job.task,
            job.queue,
            job.version,
            job.priority,
            job.delay,
            job.run_at,
            job.tenant,
            job.fifo,
            job.unique_key,
            job.tags,
            tuple(job.headers.items()) if job.headers else (),
            job.options,
            job.expires,
            job.max_attempts,
            job.keep,
        )
        group = groups.get(key)
        if group is None:
            groups[key] = (job, {job.id: job.args})
        else:
            group[1][job.id] = job.args
    return groups.values()


def _give_back(ids: Sequence[str], at: int, *, by_holder: bool = False) -> Body[None]:
    if ids:
        jobs = yield from read_jobs(ids)
        moment = from_micros(at)
        freed = [changes.given_back(jobs[i], moment, by_holder=by_holder) for i in ids]
        yield from store(freed, at)


def _answers(refs: Sequence[ClaimRef], took: dict[int, Answer]) -> Body[list[Answer]]:
    """Took, or what became of the claims that did not: ended by this token before, or lost."""
    if len(took) == len(refs):
        return [Answer.TOOK] * len(refs)
    missed = [ref.id for place, ref in enumerate(refs) if place not in took]
    rows = yield from ask("finish.ended", ids=to_json(missed))
    ended = {row[0]: (row[1], read_history(row[2])) for row in rows}
    answers = []
    for place, ref in enumerate(refs):
        if place in took:
            answers.append(Answer.TOOK)
        elif ref.id in ended and changes.was_ended_by(ref.token, *ended[ref.id]):
            answers.append(Answer.ALREADY)
        else:
            answers.append(Answer.LOST)
    return answers


def _is_given(job_id: str, fresh: Mapping[str, NewJob]) -> bool:
    return job_id not in fresh or fresh[job_id].is_given_id


def _drawn_twice(ids: str) -> ConfigError:
    return ConfigError(f"job id {ids} was drawn twice")

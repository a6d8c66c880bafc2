"""The verbs of producers and workers: enqueue, claim, what ends a claim, sessions, time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from time import monotonic
from typing import Any

import msgspec

from winch.core import changes
from winch.core.errors import ConfigError
from winch.core.job import CRASH_RULE, RESCUE_RULE, UNDO_LIVES, Claim, Failure, Note, SuspectRule
from winch.core.lifecycle import JobState
from winch.core.policy.retention import DeadLimits, dead_limits
from winch.core.policy.unique import Duplicate
from winch.core.values.fingerprint import trace
from winch.drivers.postgres.connections import libpq
from winch.drivers.postgres.records import (
    read_claims,
    read_ended,
    read_moment,
    write_alike,
    write_claims,
    write_completed,
    write_jobs,
    write_one,
    write_outcomes,
)
from winch.drivers.postgres.statements import Body, Step
from winch.drivers.postgres.verbs.base import BEGINNING, MANY, rounds
from winch.drivers.postgres.verbs.gates import GateVerbs
from winch.drivers.postgres.verbs.waits import WaitingVerbs
from winch.storage.decide.unique import Holder, filled, planned, takes_over
from winch.storage.decide.waits import KEEP_TAKEN, KEEP_UNTAKEN
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
from winch.storage.verbs import Verb

# A job due sooner than the promoter's own poll rings the bell; a later one is met by the poll.
SOON_SECONDS = 2.0
KEEP_SESSIONS = timedelta(days=1)
LEASE_OVER = "lease over"
# Claims by the hundred are of short jobs. What still runs after this is filed as running; and how many
# claims' rows are looked at for that, and removed, in one rescue.
OLD_SECONDS = 5.0
OLD_LEASES = 100
LEASES = 10_000


class WorkingVerbs(GateVerbs, WaitingVerbs):
    """The hot half of Storage; see storage/families.py for the contracts."""

    # -- producing ---------------------------------------------------------------------------------

    def enqueue(
        self, jobs: Sequence[NewJob], *, is_repeat: bool = False, now: datetime | None = None
    ) -> Verb[list[Enqueued]]:
        if not is_repeat and (lone := self._lone(jobs, now)) is not None:
            return lone
        return self._enqueue(jobs, is_repeat, now)

    def _enqueue(
        self, jobs: Sequence[NewJob], is_repeat: bool, now: datetime | None
    ) -> Verb[list[Enqueued]]:
        def plain(jobs: Sequence[NewJob]) -> Body[list[Enqueued]]:
            if len(jobs) == 1 and (one := write_one(jobs[0], now)):
                yield Step(self._sql[one[0]], one[1], is_alone=True)
            elif alike := write_alike(jobs):
                yield self._step("enqueue.alike", is_alone=True, now=now, **alike)
            else:
                text = write_jobs(jobs)
                yield self._step("enqueue", is_alone=True, jobs=text, now=now, soon_seconds=SOON_SECONDS)
            return [Enqueued(job.id, True) for job in jobs]

        def checked(jobs: Sequence[NewJob]) -> Body[list[Enqueued]]:
            rows = yield self._step(
                "enqueue.checked",
                is_alone=not is_repeat,
                jobs=write_jobs(_each_once(jobs)),
                now=now,
                soon_seconds=SOON_SECONDS,
            )
            stored = {row[0] for row in rows}
            if is_repeat and stored:
                rows = yield self._step("enqueue.final", ids=list(stored))
                if final := [row[0] for row in rows]:
                    yield self._step("enqueue.undo", ids=final)
                    stored.difference_update(final)
            answers = []
            for job in jobs:
                answers.append(Enqueued(job.id, job.id in stored))
                stored.discard(job.id)
            return answers

        def body() -> Body[list[Enqueued]]:
            if not jobs:
                return []
            if len({job.id for job in jobs}) < len(jobs):
                times = Counter(job.id for job in jobs)
                for job in jobs:
                    if times[job.id] > 1 and not (job.is_given_id or is_repeat):
                        raise ConfigError(f"job id {job.id} was drawn twice")
            if any(job.unique_key is not None for job in jobs):
                return (yield from keyed())
            return (yield from insert(jobs))

        def insert(jobs: Sequence[NewJob]) -> Body[list[Enqueued]]:
            is_checked = is_repeat or any(job.is_given_id for job in jobs)
            return (yield from checked(jobs) if is_checked else plain(jobs))

        def keyed() -> Body[list[Enqueued]]:
            known: set[str] = set()
            if looked_up := [job.id for job in jobs if is_repeat or job.is_given_id]:
                known = {row[0] for row in (yield self._step("cancel.states", ids=looked_up))}
            wanted: dict[str, str] = {}
            replacing: set[str] = set()
            for job in jobs:
                if job.unique_key is not None and job.id not in known:
                    wanted.setdefault(job.unique_key, job.id)
                    if job.on_duplicate is Duplicate.REPLACE or takes_over(job):
                        replacing.add(job.unique_key)
            held = yield from self._take_keys(wanted, replacing)
            won = [key for key in wanted if key not in held]
            within = {job.unique_key for job in jobs if job.unique_within is not None}
            if asked := [key for key in won if key in within]:
                for key, holder in (yield self._step("enqueue.kept", keys=asked, now=now)):
                    held[key] = Holder(holder, None)
            plan = planned(jobs, held, known)
            if plan.is_refused:
                if won:
                    yield self._step("enqueue.unkey", keys=won)
                return filled(plan, [])
            if plan.take_over:
                winners = {job.unique_key: job.id for job in reversed(plan.store)}
                yield self._step(
                    "enqueue.take_over",
                    keys=list(plan.take_over),
                    losers=list(plan.take_over.values()),
                    winners=[winners[key] for key in plan.take_over],
                )
            stored = (yield from insert(plan.store)) if plan.store else []
            if within:
                yield from self._keep_keys(plan.store, stored, now)
            if won and (within or not all(answer.is_new for answer in stored)):
                yield self._step("enqueue.unkey", keys=won)
            if plan.replace:
                changed = [msgspec.structs.replace(new, id=i) for i, new in plan.replace.items()]
                text = write_jobs(changed)
                yield self._step("enqueue.replace", jobs=text, now=now, soon_seconds=SOON_SECONDS)
            return filled(plan, stored)

        return self._write("enqueue", body, now)

    def _lone(self, jobs: Sequence[NewJob], now: datetime | None) -> Verb[list[Enqueued]] | None:
        """The enqueue of one plain job with its short way; None for any other."""
        if len(jobs) != 1 or (one := write_one(jobs[0], now)) is None:
            return None
        name = one[0]
        if name == "enqueue.plain":
            name = "enqueue.noted" if self._keeps_events else "enqueue.handed"
        elif self._keeps_events:
            return None
        step = Step(self._sql[name], one[1], is_alone=True)
        return Verb(
            "enqueue",
            lambda: self._enqueue(jobs, False, now).steps(),  # no repeat
            lone=libpq.StoreOne(step, [Enqueued(jobs[0].id, True)]),
        )

    def _keep_keys(
        self, jobs: Sequence[NewJob], stored: Sequence[Enqueued], now: datetime | None
    ) -> Body[None]:
        """Note until when the jobs that were stored have their unique keys, final or not."""
        kept = {
            job.unique_key: job
            for job, answer in zip(jobs, stored, strict=True)
            if answer.is_new and job.unique_key is not None and job.unique_within is not None
        }
        if kept:
            yield self._step(
                "enqueue.keep",
                keys=list(kept),
                jobs=[job.id for job in kept.values()],
                seconds=[(job.unique_within or timedelta(0)).total_seconds() for job in kept.values()],
                now=now,
            )

    # -- working -----------------------------------------------------------------------------------

    def claim(self, params: ClaimParams, *, now: datetime | None = None) -> Verb[list[Claim]]:
        # The first place of a queue counts: a second one would find what the first has locked.
        queues = list(dict.fromkeys(params.queues))

        def step(starts: list[int], *, is_wary: bool = False) -> Step:
            return self._step(
                "claim",
                is_alone=True,
                is_fixed=is_wary,  # it begins at the beginning, wherever others have come
                session=params.session,
                token=params.token,
                queues=queues,
                starts=starts,
                tasks=None if params.tasks is None else list(params.tasks),
                limit=params.limit,
                is_batch=params.limit >= self._batch_from,
                is_wary=is_wary,
                now=now,
            )

        def wary_step() -> Step:
            if len(queues) != 1 or params.limit >= self._batch_from:
                return step([BEGINNING] * len(queues), is_wary=True)
            return self._step(
                "claim.few",
                is_alone=True,
                is_fixed=True,
                session=params.session,
                token=params.token,
                queue=queues[0],
                tasks=None if params.tasks is None else list(params.tasks),
                limit=params.limit,
                now=now,
            )

        def wary() -> Body[list[Claim]]:
            # Jobs with gates are rare: one statement where there are none, else a transaction.
            if tuple(queues) not in self._with_gates:
                rows = yield wary_step()
                if rows:
                    self._row_hints.learn(rows)
                    return read_claims(rows, params.token, queues)
                ((has_gated,),) = yield self._step("has_gated", is_alone=True, queues=queues)
                if not has_gated:
                    return []
            return (yield from self._claim_gated(params, now))

        def body() -> Body[list[Claim]]:
            if params.gated != 0:
                return (yield from wary())
            starts_at, tasks = self._claim_starts, params.tasks
            starts = starts_at.starts(queues, tasks)
            sent = monotonic()
            rows = yield step(starts)
            if not rows and any(start > BEGINNING for start in starts):
                starts = [BEGINNING] * len(queues)
                sent = monotonic()
                rows = yield step(starts)
            seconds = monotonic() - sent
            claims = read_claims(rows, params.token, queues)
            self._row_hints.learn(rows)
            if len(claims) < params.limit:
                starts_at.emptied(queues, tasks)
            elif params.limit >= MANY:
                place = queues.index(claims[-1].queue)
                starts_at.emptied(queues[:place], tasks)
                starts_at.reached(queues[place], tasks, starts[place], rows[-1][0], seconds)
            return claims

        return self._write("claim", body, now)

    def finish(self, outcomes: Sequence[Finish], *, now: datetime | None = None) -> Verb[list[Answer]]:
        gated = [o for o in outcomes if o.is_gated or o.brake is not None]
        if not gated:
            return self._write("finish", lambda: self._finished(outcomes, now), now)
        plain = [o for o in outcomes if not (o.is_gated or o.brake is not None)]

        def body() -> Body[list[Answer]]:
            # In statements of their own, and first: a plain job never waits for a gate.
            first = iter((yield from self._finished(plain, now)) if plain else [])
            rest = iter(
                (
                    yield from self._finish_gated(
                        gated, lambda some: self._finished(some, now, is_alone=False), now
                    )
                )
            )
            return [next(rest if o.is_gated or o.brake is not None else first) for o in outcomes]

        return self._write("finish", body, now)

    def _finished(
        self, outcomes: Sequence[Finish], now: datetime | None, *, is_alone: bool = True
    ) -> Body[list[Answer]]:
        may_be_alone = is_alone

        def others(places: Sequence[int], *, is_alone: bool) -> Step:
            text = write_outcomes([outcomes[place] for place in places])
            return self._step(
                "finish.other", is_alone=is_alone, outcomes=text, soon_seconds=SOON_SECONDS, now=now
            )

        def again(places: Sequence[int]) -> Step:
            return others(places, is_alone=may_be_alone and not has_waits)

        def steps(places: Sequence[int]) -> list[Step]:
            completed = [outcomes[place] for place in places if _is_plain(outcomes[place])]
            rest = [place for place in places if not _is_plain(outcomes[place])]
            is_all = len(places) == len(outcomes) and not (completed and rest)
            is_alone = may_be_alone and is_all and not has_waits
            made = []
            if completed:
                values = write_completed(completed, None)
                made.append(self._step("finish", is_alone=is_alone, now=now, **values))
            if rest:
                made.append(others(rest, is_alone=is_alone))
            return made

        has_waits = any(outcome.to is JobState.BLOCKED for outcome in outcomes)
        took: Sequence[str] | None = None
        if outcomes and all(map(_is_plain, outcomes)) and _are_unlike(outcomes):
            values = write_completed(
                outcomes, self._row_hints.take([outcome.id for outcome in outcomes])
            )
            ((took,),) = yield self._step("finish", is_alone=may_be_alone, now=now, **values)
            if took is None:
                return [Answer.TOOK] * len(outcomes)
        refs = [ClaimRef(outcome.id, outcome.token) for outcome in outcomes]
        ends = [(outcome.to, outcome.what) for outcome in outcomes]
        if took is not None:
            return (yield from self._answers(refs, range(len(refs)), set(took), ends, again))
        answers = yield from self._end_claims(refs, steps, ends, again)
        if has_waits:
            pairs = zip(refs, answers, strict=True)
            blocked = {ref.id for ref, answer in pairs if answer is Answer.TOOK}
            yield from self._begin_waits(outcomes, blocked, now)
        return answers

    def release(
        self, claims: Sequence[ClaimRef], *, has_started: bool = False, now: datetime | None = None
    ) -> Verb[list[Answer]]:
        def steps(places: Sequence[int]) -> list[Step]:
            text = write_claims(claims[place] for place in places)
            is_alone = len(places) == len(claims)
            step = self._step(
                "release", is_alone=is_alone, claims=text, has_started=has_started, now=now
            )
            return [step]

        ends = [(JobState.READY, changes.RELEASED)] * len(claims)
        return self._write("release", lambda: self._end_claims(claims, steps, ends), now)

    def _end_claims(
        self,
        refs: Sequence[ClaimRef],
        steps: Callable[[Sequence[int]], list[Step]],
        ends: Sequence[changes.End] | None = None,
        again: Callable[[Sequence[int]], Step] | None = None,
    ) -> Body[list[Answer]]:
        """Send the steps for the claims' places and say for each pair whether it took."""
        answers = [Answer.LOST] * len(refs)
        for places in rounds([ref.id for ref in refs]):
            took: set[str] = set()
            for step in steps(places):
                rows = yield step
                if step.statement.name != "finish":
                    took.update(row[0] for row in rows)
                else:  # NULL: all of them
                    took.update(step.values["ids"] if rows[0][0] is None else rows[0][0])
            told = yield from self._answers(refs, places, took, ends, again)
            for place, answer in zip(places, told, strict=True):
                answers[place] = answer
        return answers

    def _answers(
        self,
        refs: Sequence[ClaimRef],
        places: Sequence[int],
        took: set[str],
        ends: Sequence[changes.End] | None,
        again: Callable[[Sequence[int]], Step] | None,
    ) -> Body[list[Answer]]:
        """The answers for these places; what did not take is looked up, and is a repeat only where the
        claim ended as `ends` names it (None: in any way). `again` ends those that are live
        after all: somebody wrote to their row at the same moment, and `finish` passed it over."""
        found: dict[str, tuple[JobState, str | None, dict[str, str]]] = {}
        if missing := [place for place in places if refs[place].id not in took]:
            ids = [refs[place].id for place in missing]
            rows = yield self._step("finish.ended", is_alone=True, ids=ids)
            live = {(row[0], row[1]) for row in rows}
            passed = [place for place in missing if (refs[place].id, refs[place].token) in live]
            if passed and again is not None:
                took = took | {row[0] for row in (yield again(passed))}
                rows = yield self._step("finish.ended", is_alone=True, ids=ids)
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

    def give_up(self, session: str, tokens: Sequence[str], *, now: datetime | None = None) -> Verb[int]:
        def body() -> Body[int]:
            ((count, _),) = yield self._step(
                "give_up", is_alone=True, session=session, tokens=list(tokens), now=now
            )
            return int(count)

        return self._write("give_up", body, now)

    def crash(
        self,
        claims: Sequence[ClaimRef],
        *,
        cause: str,
        rule: SuspectRule = CRASH_RULE,
        now: datetime | None = None,
    ) -> Verb[list[Answer]]:
        def steps(places: Sequence[int]) -> list[Step]:
            return [self._crash(None, [claims[place] for place in places], cause, rule, now)]

        return self._write("crash", lambda: self._end_claims(claims, steps), now)

    def _crash(
        self,
        session: str | None,
        started: Sequence[ClaimRef],
        cause: str | None,
        rule: SuspectRule,
        now: datetime | None,
    ) -> Step:
        return self._step(
            "crash",
            session=session,
            started=write_claims(started),
            is_own=session is None,
            cause=cause,
            trace=trace(Failure("crashed", cause or "")),
            most=rule.most,
            undo_lives=UNDO_LIVES,
            window_seconds=rule.within.total_seconds(),
            now=now,
        )

    def note(self, claim: ClaimRef, note: Note) -> Verb[Answer]:
        def body() -> Body[Answer]:
            self._row_hints.forget(claim.id)
            rows = yield self._step(
                "note",
                is_alone=True,
                id=claim.id,
                token=claim.token,
                progress=note.progress,
                checkpoint=note.checkpoint,
                log=note.log,
                has_undo=note.has_undo,
                forgets_cancel=note.forgets_cancel,
            )
            return Answer.TOOK if rows else Answer.LOST

        return Verb("note", body)

    def standing(self, claims: Sequence[ClaimRef]) -> Verb[list[Standing]]:
        def body() -> Body[list[Standing]]:
            ids = [ref.id for ref in claims]
            yield self._step("standing", ids=ids)
            rows = yield self._step("finish.ended", ids=ids)
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

    def held(self, session: str) -> Verb[list[ClaimRef]]:
        def body() -> Body[list[ClaimRef]]:
            rows = yield self._step("held", is_alone=True, session=session)
            return [ClaimRef(row[0], row[1]) for row in rows]

        return self._read("held", body)

    def cancels(self, sessions: Sequence[str]) -> Verb[list[ClaimRef]]:
        def body() -> Body[list[ClaimRef]]:
            rows = yield self._step("cancels", is_alone=True, sessions=list(sessions))
            place = {session: number for number, session in enumerate(sessions)}
            rows.sort(key=lambda row: place[row[2]])
            return [ClaimRef(row[0], row[1]) for row in rows]

        return self._read("cancels", body)

    # -- sessions ----------------------------------------------------------------------------------

    def start_session(self, session: NewSession, *, now: datetime | None = None) -> Verb[datetime]:
        def body() -> Body[datetime]:
            ((moment,),) = yield self._step(
                "start_session",
                is_alone=not session.schedules,
                id=session.id,
                worker=session.worker,
                host=session.host,
                pid=session.pid,
                release=session.release,
                queues=list(session.queues),
                tasks=list(session.tasks),
                slots=session.slots,
                lease_seconds=session.lease.total_seconds(),
                now=now,
            )
            if session.schedules:
                text = msgspec.json.encode(session.schedules).decode()
                yield self._step("start_session.declare", id=session.id, schedules=text, now=now)
            return read_moment(moment)

        return self._write("start_session", body, now)

    def beat(self, sessions: Sequence[str], *, now: datetime | None = None) -> Verb[list[Pulse]]:
        def body() -> Body[list[Pulse]]:
            rows = yield self._step("beat", is_alone=True, sessions=list(sessions), now=now)
            at = read_moment(rows[0][0])
            beats = {row[1]: row[2] for row in rows}
            return [Pulse(s, is_live=s in beats, beats=beats.get(s, 0), now=at) for s in sessions]

        return self._write("beat", body, now)

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
            yield self._step("end_session", session=session, reason=cause or "stopped", now=now)
            yield self._step("admit.lock_running", session=session)
            rows = yield self._crash(session, started, cause, rule, now)
            return [Rescued(row[0], row[1], session, JobState(row[2])) for row in rows]

        return self._write("end_session", body, now)

    def rescue(
        self, *, limit: int = 1000, as_of: datetime | None = None, now: datetime | None = None
    ) -> Verb[list[Rescued]]:
        def body() -> Body[list[Rescued]]:
            yield self._step("rescue", as_of=as_of, now=now)
            yield self._step("admit.lock_running", session=None)
            rows = yield self._step(
                "rescue.jobs",
                limit=limit,
                cause=LEASE_OVER,
                trace=trace(Failure("rescued", LEASE_OVER)),
                most=RESCUE_RULE.most,
                undo_lives=UNDO_LIVES,
                window_seconds=RESCUE_RULE.within.total_seconds(),
                now=now,
            )
            yield self._step(
                "rescue.leases", limit=LEASES, most=OLD_LEASES, old_seconds=OLD_SECONDS, now=now
            )
            yield self._step("rescue.file", most=OLD_LEASES, old_seconds=OLD_SECONDS, now=now)
            return [Rescued(row[0], row[1], row[2], JobState(row[3])) for row in rows]

        return self._write("rescue", body, now)

    # -- time --------------------------------------------------------------------------------------

    def promote(self, *, limit: int = 1000, now: datetime | None = None) -> Verb[Promoted]:
        def body() -> Body[Promoted]:
            ((at, count, next_at, _),) = yield self._step("promote", is_alone=True, limit=limit, now=now)
            later = None if next_at is None else read_moment(next_at)
            return Promoted(count, later, read_moment(at))

        return self._write("promote", body, now)

    def prune(self, *, limit: int = 1000, now: datetime | None = None) -> Verb[int]:
        def body() -> Body[int]:
            ((count,),) = yield self._step(
                "prune",
                is_alone=True,
                limit=limit,
                session_seconds=KEEP_SESSIONS.total_seconds(),
                now=now,
            )
            yield self._step(
                "prune.waits",
                is_alone=True,
                taken_seconds=KEEP_TAKEN.total_seconds(),
                untaken_seconds=KEEP_UNTAKEN.total_seconds(),
                now=now,
            )
            return int(count)

        return self._write("prune", body, now)

    def trim(self, which: Trim, *, now: datetime | None = None) -> Verb[int]:
        def over(task: str, count: int | None, most_bytes: int | None) -> dict[str, Any]:
            older = None if which.older_than is None else which.older_than.total_seconds()
            return {
                "task": task,
                "queue": which.queue,
                "count": count,
                "bytes": most_bytes,
                "older_seconds": older,
                "limit": which.limit,
                "now": now,
            }

        def body() -> Body[int]:
            counts: dict[str, int] = {}
            ranked: list[dict[str, Any]] = []
            rows = yield self._step("trim", is_alone=True, task=which.task, queue=which.queue)
            for task, options in rows:
                own = DeadLimits() if which.is_forced else dead_limits(options)
                count = which.count if own.dead_count is None else own.dead_count
                most_bytes = which.bytes if own.dead_bytes is None else own.dead_bytes
                is_by_count = count is not None and most_bytes is None and which.older_than is None
                if is_by_count and count is not None and which.queue is None and not which.is_dry_run:
                    counts[task] = count
                else:
                    ranked.append(over(task, count, most_bytes))
            if which.is_dry_run:
                total = 0
                for values in ranked:
                    ((number,),) = yield self._step("trim.matched", is_alone=True, **values)
                    total += number
                return total
            ids: list[str] = []
            if counts:
                rows = yield self._step(
                    "trim.many",
                    is_alone=True,
                    tasks=list(counts),
                    counts=list(counts.values()),
                    limit=which.limit,
                )
                ids += [row[0] for row in rows]
            for values in ranked:
                if len(ids) >= which.limit:
                    break
                rows = yield self._step("trim.over", is_alone=True, **values)
                ids += [row[0] for row in rows]
            if not ids:
                return 0
            ((gone,),) = yield self._step("trim.delete", is_alone=True, ids=ids[: which.limit])
            return int(gone)

        return self._write("trim", body, now)


def _are_unlike(outcomes: Sequence[Finish]) -> bool:
    """Whether no two of them are about one job."""
    return len({outcome.id for outcome in outcomes}) == len(outcomes)


def _is_plain(outcome: Finish) -> bool:
    """Whether the outcome goes the short way: completed, with nothing to add to the row."""
    return outcome.to is JobState.COMPLETED and outcome.log is None and outcome.reason is None


def _each_once(jobs: Sequence[NewJob]) -> Collection[NewJob]:
    """The first job of each id, in the order of the call: members of FIFO keys are numbered in it."""
    found: dict[str, NewJob] = {}
    for job in jobs:
        found.setdefault(job.id, job)
    return found.values()

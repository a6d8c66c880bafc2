"""The verbs of producers and workers: enqueue, claim, what ends a claim, sessions, time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec

from winch.core.changes import BLOCKED_REASON, died_of
from winch.core.errors import ConfigError, EnqueueUncertain
from winch.core.gates import is_gated
from winch.core.job import (
    CRASH_RULE,
    HEAD_START,
    RESCUE_RULE,
    Claim,
    Failure,
    JobRecord,
    Note,
    SuspectRule,
    from_micros,
)
from winch.core.lifecycle import JobState
from winch.core.policy.retention import dead_bytes, dead_limits
from winch.core.values.fingerprint import trace
from winch.drivers.redis.records import (
    MICROSECOND,
    Said,
    envelope,
    micros,
    read_claims,
    read_job,
)
from winch.drivers.redis.scripts import Bare
from winch.drivers.redis.verbs.base import Body, Verbs
from winch.storage.decide.gates import ROUNDS, why_ended
from winch.storage.decide.unique import takes_over
from winch.storage.decide.waits import ALL, AWAITED_HEADER, EACH
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
    Wait,
)
from winch.storage.verbs import Verb

KEEP_SESSIONS = timedelta(days=1) // MICROSECOND
LEASE_OVER = "lease over"
# Of how many kinds of lone jobs (queue, task, priority) the beginning of the request is kept.
ALIKE = 256
# How many characters the ids on one page share: see lua/parts/pages.lua.
BEGIN = 12
# Dead jobs that are read at once to find those that are too many.
STRETCH = 500
_HEAD_START = HEAD_START // MICROSECOND

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_ANSWERS = {answer.value.encode(): answer for answer in Answer}
_STANDINGS = {standing.value.encode(): standing for standing in Standing}


class DrawnTwice(ConfigError):
    """A job of this id is there, and nobody said that it might be."""


class TooMany:
    """Tells which dead jobs of a task, looked at from the newest on, are past its limits."""

    def __init__(self, which: Trim, before: datetime | None) -> None:
        self._which = which
        self._before = before
        self._count, self._bytes = which.count, which.bytes
        self._place = self._total = 0
        self.over: list[JobRecord] = []

    @property
    def is_enough(self) -> bool:
        return not self._which.is_dry_run and len(self.over) >= self._which.limit

    def look_at(self, job: JobRecord, *, is_awaited: bool) -> None:
        which = self._which
        if which.queue is not None and job.queue != which.queue:
            return
        if self._place == 0 and not which.is_forced:
            own = dead_limits(job.options)
            self._count = self._count if own.dead_count is None else own.dead_count
            self._bytes = self._bytes if own.dead_bytes is None else own.dead_bytes
        self._place += 1
        self._total += dead_bytes(job)
        if (
            (self._count is not None and self._place > self._count)
            or (self._bytes is not None and self._total > self._bytes)
            or (
                self._before is not None
                and job.finished_at is not None
                and job.finished_at <= self._before
            )
        ) and not is_awaited:
            self.over.append(job)


class WorkingVerbs(Verbs):
    """The hot half of Storage; see storage/families.py for the contracts."""

    _sort_keys: dict[str, int] | None = None
    """In a cluster: the sort keys of jobs that were just claimed, which several nodes have given."""
    _alike: dict[tuple[str, str, int], Bare]

    # -- producing ---------------------------------------------------------------------------------

    def enqueue(
        self, jobs: Sequence[NewJob], *, is_repeat: bool = False, now: datetime | None = None
    ) -> Verb[list[Enqueued]]:
        def body() -> Body[list[Enqueued]]:
            if not jobs:
                return []
            if is_lone:
                one, id_, stored = self._lone(jobs[0])
                reply = yield one.call(id_, stored)
                if (told := _stored_alone(jobs[0], reply)) is not None:
                    return told
            return (yield from self._store(jobs, is_repeat=is_repeat, now=now)) or []

        is_lone = (
            len(jobs) == 1
            and self._is_short
            and not is_repeat
            and now is None
            and not _is_special(jobs[0])
        )
        return Verb("enqueue", body, lone=partial(self._enqueue_alone, jobs) if is_lone else None)

    def _enqueue_alone(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """What the body of `enqueue` does for one plain job, without the steps in between."""
        one, id_, stored = self._lone(jobs[0])
        reply = self._pool.run_bare(one, id_, stored)
        told = _stored_alone(jobs[0], reply)
        if told is None:
            told = self._run(self._store(jobs))
        return told or []

    def _lone(self, job: NewJob) -> tuple[Bare, bytes, bytes]:
        """The call that stores one plain job, and its last two arguments."""
        stored = envelope(job)
        alike = job.queue, job.task, job.priority
        if (found := self._alike.get(alike)) is None:
            if len(self._alike) >= ALIKE:
                self._alike.clear()
            found = self._alike[alike] = Bare.of(
                self._key, "enqueue_one", job.queue, job.task, job.priority * _HEAD_START
            )
        return found, job.id.encode(), stored

    def _store(
        self,
        jobs: Sequence[NewJob],
        *,
        waits: Sequence[tuple[str, Sequence[Wait]]] = (),
        claim: ClaimRef | None = None,
        is_repeat: bool = False,
        now: datetime | None = None,
    ) -> Body[list[Enqueued] | None]:
        """Store jobs and what they wait for. None: the claim is not live, and nothing is stored."""
        wanted = self._place.replicated
        told: list[Enqueued] = []
        is_special = is_repeat or bool(waits) or claim is not None or any(map(_is_special, jobs))
        if is_special:
            what = self._call(
                "enqueue_special",
                blobs=[envelope(job) for job in jobs],
                confirmations=wanted,
                confirm=wanted > 0,
                now=micros(now),
                names=names_of(jobs),
                jobs=[new_row(job) for job in jobs],
                is_repeat=is_repeat,
                waits=[(job_id, _waits(some)) for job_id, some in waits],
                reason=BLOCKED_REASON,
                claim=None if claim is None else (claim.id, claim.token),
            )
        else:
            ids = [job.id for job in jobs]
            if len(ids) > 1 and len(set(ids)) < len(ids):
                (twice, _), *_ = Counter(ids).most_common(1)
                raise DrawnTwice(f"job id {twice} was drawn twice")
            begin = min(ids)[:BEGIN]  # where the greatest begins so, too, all of them do
            groups, blobs = _groups(jobs)
            what = self._call(
                "enqueue",
                blobs=blobs,
                confirmations=wanted,
                confirm=wanted > 0,
                now=micros(now),
                names=names_of(jobs),
                groups=groups,
                begin=begin if max(ids).startswith(begin) else None,
            )
            # Made now: who sends one thousand after the other does this while the server works.
            told = [Enqueued(job.id, True) for job in jobs]
        reply = yield what
        if wanted:
            reply, confirmed = reply
            if not isinstance(confirmed, int) or confirmed < wanted:
                raise EnqueueUncertain(
                    f"{confirmed if isinstance(confirmed, int) else 0} of {wanted} replicas have "
                    "confirmed the jobs; they are stored, but a failover may lose them. Enqueue "
                    "again with the same ids",
                    [job.id for job in jobs],
                )
        if not is_special:
            if reply:
                raise DrawnTwice(f"job id {reply.decode()} was drawn twice")
            return told
        found = _decode(reply)
        if "twice" in found:
            raise ConfigError(f"job id {found['twice']} was drawn twice")
        if "lost" in found:
            return None
        return [_stored(job, answer) for job, answer in zip(jobs, found["answers"], strict=True)]

    # -- working -----------------------------------------------------------------------------------

    def claim(self, params: ClaimParams, *, now: datetime | None = None) -> Verb[list[Claim]]:
        def body() -> Body[list[Claim]]:
            asked = self._call(
                "claim",
                now=micros(now),
                session=params.session,
                token=params.token,
                queues=params.queues,
                limit=params.limit,
                tasks=None if params.tasks is None else dict.fromkeys(params.tasks, True),
                gated=params.limit if params.gated is None else params.gated or None,
            )
            reply = yield asked
            for _ in range(ROUNDS):
                if len(reply) != 2:
                    break
                reply = yield asked  # it held as many as one call may, and took none yet
            return [] if len(reply) == 2 else read_claims(reply, params.token, self._sort_keys)

        return self._write("claim", body)

    def finish(self, outcomes: Sequence[Finish], *, now: datetime | None = None) -> Verb[list[Answer]]:
        def body() -> Body[list[Answer]]:
            done = [outcome for outcome in outcomes if _is_plain(outcome)]
            others: list[Finish] = []
            if len(done) < len(outcomes):
                others = [outcome for outcome in outcomes if not _is_plain(outcome)]
            reply = yield self._call(
                "finish",
                now=micros(now),
                done=(
                    [outcome.id for outcome in done],
                    [outcome.token for outcome in done],
                    [False if outcome.result is None else outcome.result for outcome in done],
                ),
                others=[_outcome(outcome) for outcome in others],
            )
            # A number: so many took, all of them.
            plain = reply[0] if isinstance(reply[0], list) else [b"took"] * reply[0]
            if not others:
                return [_ANSWERS[answer] for answer in plain]
            told, rest = iter(plain), iter(reply[1])
            return [_ANSWERS[next(told if _is_plain(outcome) else rest)] for outcome in outcomes]

        return self._write("finish", body)

    def release(
        self, claims: Sequence[ClaimRef], *, has_started: bool = False, now: datetime | None = None
    ) -> Verb[list[Answer]]:
        def body() -> Body[list[Answer]]:
            reply = yield self._call(
                "release", now=micros(now), claims=_pairs(claims), started=has_started
            )
            return [_ANSWERS[answer] for answer in reply]

        return self._write("release", body)

    def give_up(self, session: str, tokens: Sequence[str], *, now: datetime | None = None) -> Verb[int]:
        def body() -> Body[int]:
            given: int = yield self._call(
                "give_up", now=micros(now), session=session, tokens=dict.fromkeys(tokens, True)
            )
            return given

        return self._write("give_up", body)

    def crash(
        self,
        claims: Sequence[ClaimRef],
        *,
        cause: str,
        rule: SuspectRule = CRASH_RULE,
        now: datetime | None = None,
    ) -> Verb[list[Answer]]:
        def body() -> Body[list[Answer]]:
            reply = yield self._call(
                "crash",
                now=micros(now),
                claims=_pairs(claims),
                cause=cause,
                trace=trace(Failure("crashed", cause)),
                rule=_rule(rule),
            )
            return [_ANSWERS[answer] for answer in reply]

        return self._write("crash", body)

    def note(self, claim: ClaimRef, note: Note) -> Verb[Answer]:
        def body() -> Body[Answer]:
            reply = yield self._call(
                "note",
                claim=(claim.id, claim.token),
                progress=note.progress,
                checkpoint=note.checkpoint,
                log=note.log,
                has_undo=note.has_undo,
                forgets_cancel=note.forgets_cancel,
            )
            return _ANSWERS[reply]

        return self._write("note", body)

    def standing(self, claims: Sequence[ClaimRef]) -> Verb[list[Standing]]:
        def body() -> Body[list[Standing]]:
            reply = yield self._call("standing", claims=_pairs(claims))
            return [_STANDINGS[answer] for answer in reply]

        return self._write("standing", body)

    def held(self, session: str) -> Verb[list[ClaimRef]]:
        def body() -> Body[list[ClaimRef]]:
            reply = yield self._call("held", session=session)
            return [ClaimRef(*pair) for pair in _rows(reply, 2)]

        return self._read("held", body)

    def cancels(self, sessions: Sequence[str]) -> Verb[list[ClaimRef]]:
        def body() -> Body[list[ClaimRef]]:
            reply = yield self._call("cancels", sessions=sessions)
            return read_cancels(reply, sessions)

        return self._read("cancels", body)

    # -- sessions ----------------------------------------------------------------------------------

    def start_session(self, session: NewSession, *, now: datetime | None = None) -> Verb[datetime]:
        def body() -> Body[datetime]:
            said = Said(
                session.worker,
                session.host,
                session.pid,
                session.release,
                session.queues,
                session.tasks,
                session.slots,
            )
            at = yield self._call(
                "start_session",
                now=micros(now),
                id=session.id,
                blobs=[_encode(said)],
                lease=session.lease // MICROSECOND,
                schedules=[(one.name, one.definition, one.timing) for one in session.schedules],
            )
            return from_micros(at)

        return self._write("start_session", body)

    def beat(self, sessions: Sequence[str], *, now: datetime | None = None) -> Verb[list[Pulse]]:
        def body() -> Body[list[Pulse]]:
            at, *beats = yield self._call("beat", now=micros(now), sessions=sessions)
            moment = from_micros(at)
            return [
                Pulse(session, is_live=count >= 0, beats=max(count, 0), now=moment)
                for session, count in zip(sessions, beats, strict=True)
            ]

        return self._write("beat", body)

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
            reply = yield self._call(
                "end_session",
                now=micros(now),
                session=session,
                reason=cause or "stopped",
                started={ref.id: ref.token for ref in started},
                cause=cause,
                trace=None if cause is None else trace(Failure("crashed", cause)),
                rule=_rule(rule),
            )
            return [Rescued(row[0], row[1], session, JobState(row[2])) for row in _rows(reply, 3)]

        return self._write("end_session", body)

    def rescue(
        self, *, limit: int = 1000, as_of: datetime | None = None, now: datetime | None = None
    ) -> Verb[list[Rescued]]:
        def body() -> Body[list[Rescued]]:
            reply = yield self._call(
                "rescue",
                now=micros(now),
                as_of=micros(as_of),
                limit=limit,
                cause=LEASE_OVER,
                trace=trace(Failure("rescued", LEASE_OVER)),
                rule=_rule(RESCUE_RULE),
            )
            return [Rescued(row[0], row[1], row[2], JobState(row[3])) for row in _rows(reply, 4)]

        return self._write("rescue", body)

    # -- time --------------------------------------------------------------------------------------

    def promote(self, *, limit: int = 1000, now: datetime | None = None) -> Verb[Promoted]:
        def body() -> Body[Promoted]:
            at, count, next_at = yield self._call("promote", now=micros(now), limit=limit)
            return Promoted(count, None if next_at < 0 else from_micros(next_at), from_micros(at))

        return self._write("promote", body)

    def prune(self, *, limit: int = 1000, now: datetime | None = None) -> Verb[int]:
        def body() -> Body[int]:
            gone: int = yield self._call(
                "prune", now=micros(now), limit=limit, keep_sessions=KEEP_SESSIONS
            )
            return gone

        return self._write("prune", body)

    def trim(self, which: Trim, *, now: datetime | None = None) -> Verb[int]:
        def body() -> Body[int]:
            tasks = [which.task] if which.task is not None else None
            if tasks is None:
                tasks = [task.decode() for task in (yield self._call("deaths"))]
            before = None
            if which.older_than is not None:
                at = micros(now)
                if at is None:
                    at, *_ = yield self._call("explain", id="", queue="")
                before = from_micros(at) - which.older_than
            gone = 0
            for task in sorted(tasks):
                over = yield from self._too_many(task, which, before)
                if which.is_dry_run:
                    gone += len(over)
                    continue
                over = over[: which.limit - gone]
                if over:
                    gone += yield self._call(
                        "trim",
                        ids=[job.id for job in over],
                        died=[micros(job.finished_at) for job in over],
                    )
            return gone

        return self._write("trim", body)

    def _too_many(self, task: str, which: Trim, before: datetime | None) -> Body[list[JobRecord]]:
        """The dead jobs of a task that are past its limits, newest first."""
        rule, start = TooMany(which, before), 0
        while True:
            rows = yield self._call("deaths", task=task, start=start, count=STRETCH)
            ids = rows[0]
            for job_id, envelope_, state, awaited in zip(*rows, strict=True):
                rule.look_at(read_job(job_id.decode(), envelope_, state, None), is_awaited=awaited == 1)
            start += len(ids)
            if len(ids) < STRETCH or rule.is_enough:
                return rule.over


# -- what goes to the scripts, and what comes back ---------------------------------------------------


def _is_special(job: NewJob) -> bool:
    return (
        job.is_given_id
        or job.delay is not None
        or job.run_at is not None
        or job.unique_key is not None
        or job.keep is not None
        or is_gated(job.options)
        or (bool(job.headers) and _awaited(job) not in (False, _together(job)))
    )


def _awaited(job: NewJob) -> str | bool:
    """What its header says: waited for with others by this key, alone (True), both, or not at all."""
    said = job.headers.get(AWAITED_HEADER)
    return False if said is None else said if said.startswith(ALL) else True


def _together(job: NewJob) -> str | bool:
    said = _awaited(job)
    return said if isinstance(said, str) and not said.endswith(EACH) else False


def names_of(jobs: Sequence[NewJob]) -> dict[str, list[str]]:
    """The tasks of each queue."""
    if len(jobs) == 1:
        return {jobs[0].queue: [jobs[0].task]}
    found: dict[str, dict[str, None]] = {}
    for queue, task in {(job.queue, job.task) for job in jobs}:
        found.setdefault(queue, {})[task] = None
    return {queue: list(tasks) for queue, tasks in found.items()}


def _groups(
    jobs: Sequence[NewJob],
) -> tuple[list[tuple[str, int, str | bool, list[str]]], list[bytes]]:
    """Plain jobs by queue, priority, which give the sort key, and what they are waited for by together;
    and their envelopes in order."""
    if len(jobs) == 1:
        job = jobs[0]
        return [(job.queue, job.priority, _together(job), [job.id])], [envelope(job)]
    found: dict[tuple[str, int, str | bool], list[NewJob]] = {}
    for job in jobs:
        together = _together(job) if job.headers else False
        found.setdefault((job.queue, job.priority, together), []).append(job)
    groups = [(*key, [job.id for job in group]) for key, group in found.items()]
    return groups, [envelope(job) for group in found.values() for job in group]


def new_row(job: NewJob) -> tuple[Any, ...]:
    return (
        job.id,
        False,
        job.queue,
        job.priority,
        False if job.delay is None else job.delay // MICROSECOND,
        False if job.run_at is None else micros(job.run_at),
        job.is_given_id,
        job.unique_key or False,
        job.on_duplicate.value,
        False if job.keep is None else job.keep // MICROSECOND,
        _awaited(job),
        is_gated(job.options),
        takes_over(job),
        False if job.unique_within is None else job.unique_within // MICROSECOND,
        False if job.max_wait is None else job.max_wait // MICROSECOND,
    )


def _waits(waits: Iterable[Wait]) -> list[tuple[str, bool]]:
    return [(wait.key, wait.is_enough) for wait in waits]


def _stored_alone(job: NewJob, reply: bytes) -> list[Enqueued] | None:
    """From the reply of `enqueue_one`; None: events are kept, and nothing is stored yet."""
    if not reply:
        return [Enqueued(job.id, True)]
    if reply != b"+":
        raise ConfigError(f"job id {job.id} was drawn twice")
    return None


def _stored(job: NewJob, answer: Sequence[Any]) -> Enqueued:
    is_new, holder, is_replaced = (*answer, False, False)[:3]
    return Enqueued(job.id, is_new, holder or None, is_replaced)


def _is_plain(outcome: Finish) -> bool:
    """Whether it says no more than that the job is completed, and with what result."""
    return (
        outcome.to is JobState.COMPLETED
        and outcome.reason is None
        and outcome.log is None
        and outcome.brake is None
    )


def _outcome(outcome: Finish) -> dict[str, Any]:
    error = outcome.error
    said: dict[str, Any] = {
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
        said["why"] = why_ended(outcome)
    if outcome.to is JobState.BLOCKED:
        said["waits"] = _waits(outcome.waits)
        said["timeout"] = None if outcome.timeout is None else outcome.timeout // MICROSECOND
        said["leaves_turn"] = outcome.leaves_turn or None
    if error is not None:
        said["error"] = {"type": error.type, "message": error.message, "traceback": error.traceback}
    if outcome.to is JobState.DEAD and outcome.fingerprint is None:
        said["trace"] = trace(died_of(outcome))
    # A field that is not there is nil in the script, and so is one that is null.
    return {name: value for name, value in said.items() if value is not None}


def _rule(rule: SuspectRule) -> dict[str, int]:
    return {"most": rule.most, "within": rule.within // MICROSECOND}


def _pairs(claims: Iterable[ClaimRef]) -> list[tuple[str, str]]:
    return [(ref.id, ref.token) for ref in claims]


def _rows(reply: Sequence[bytes], width: int) -> list[tuple[str, ...]]:
    words = [word.decode() for word in reply]
    return [tuple(words[at : at + width]) for at in range(0, len(words), width)]


def read_cancels(reply: Sequence[bytes], sessions: Sequence[str]) -> list[ClaimRef]:
    """Claims from the reply of `cancels`, in the order of the sessions, then by id."""
    order = {session: place for place, session in enumerate(sessions)}
    rows = sorted(_rows(reply, 3), key=lambda row: (order[row[2]], row[0]))
    return [ClaimRef(row[0], row[1]) for row in rows]

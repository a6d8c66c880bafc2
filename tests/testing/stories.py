"""Histories for the checker: a `Story` writes what a store and its processes would have left behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec

from lab.history import History
from lab.history.lines import (
    Answered,
    Ended,
    Exited,
    Line,
    Nemesis,
    Replied,
    Sent,
    Stamp,
    Started,
)
from winch.core.flow import FLOW_HEADER, INPUTS_HEADER, Edge, Inputs, member_id
from winch.core.gates.uses import FIFO, LIMIT, RATE, GateUse, with_gates
from winch.core.job import Entry, JobRecord
from winch.core.lifecycle import JobState
from winch.core.values.ids import job_id, random_id
from winch.storage.decide.schedules import SCHEDULE_HEADER, WINDOW_HEADER, RunKind, ScheduleRun
from winch.storage.params import Event, SessionInfo

S = JobState
GATED = {
    "limit": (GateUse("limit:t", LIMIT, "limit:t", n=1),),
    "rate": (GateUse("rate:t", RATE, "rate:t", n=1, per=60_000_000),),
    "fifo": (GateUse("fifo:k", FIFO),),
}
Outcome = Literal["acked", "unknown", "failed", "killed"]
FinishAnswer = Literal["took", "already", "lost"]
replace = msgspec.structs.replace
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
LEASE = timedelta(seconds=3)
# The monotonic clock of these histories begins at NOW.
OFFSET = NOW.timestamp()


class Story:
    """Writes a history one step at a time, as a store and its processes would."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.at = 0.0
        self.events: list[Event] = []
        self.jobs: dict[str, JobRecord] = {}
        self.lines: list[Line] = []
        self.sessions: dict[str, SessionInfo] = {}
        self.pid = 100
        self.runs: list[ScheduleRun] = []
        self.windows: list[datetime] = []
        self.effects: list[str] = []

    @property
    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.at)

    def wait(self, seconds: float = 0.01) -> None:
        self.at += seconds

    def line(self, pid: int = 1) -> Stamp:
        self.wait()
        return {"pid": pid, "mono": self.at, "wall": OFFSET + self.at}

    def session(self) -> str:
        self.pid += 1
        session = random_id(self.rng.randbytes(16))
        self.sessions[session] = SessionInfo(
            id=session,
            worker="w",
            host="h",
            pid=self.pid,
            release="",
            queues=("default",),
            tasks=("t",),
            slots=2,
            started_at=self.now,
            lease_until=self.now + LEASE,
            beats=0,
            running=0,
        )
        return session

    def pid_of(self, session: str) -> int:
        return self.sessions[session].pid

    def end_session(self, session: str, reason: str) -> None:
        self.sessions[session] = replace(self.sessions[session], ended_at=self.now, end_reason=reason)

    def put(self, job: JobRecord, kind: str, *, by_token: str | None = None) -> None:
        before = self.jobs.get(job.id)
        token = job.token if kind == "claimed" else (before.token if before else None)
        self.jobs[job.id] = job
        self.event(job, kind, token, by_token)

    def event(self, job: JobRecord, kind: str, token: str | None, by_token: str | None) -> None:
        state = None if kind == "deleted" else job.state
        v = 1 + sum(1 for event in self.events if event.job == job.id)
        seq = len(self.events) + 1
        self.events.append(
            Event(seq, job.id, v, kind, state, token, by_token, job.session, job.attempt, self.now)
        )

    # -- steps -------------------------------------------------------------------------------------

    def enqueue(self, outcome: Outcome = "acked", *, is_stored: bool = True) -> str:
        job = job_id(1, self.rng.randbytes(10))
        call = self.rng.randbytes(4).hex()
        self.lines.append(Sent(**self.line(), call=call, ids=(job,)))
        self.wait()
        if is_stored:
            record = JobRecord(
                id=job,
                task="t",
                version=1,
                args="[]",
                queue="default",
                priority=0,
                created_at=self.now,
                run_at=self.now,
                state=S.READY,
            )
            self.put(record, "enqueued")
        if outcome != "killed":
            replied = Replied(**self.line(), call=call, outcome=outcome, ids=(job,), new=(True,))
            self.lines.append(replied if outcome == "acked" else replace(replied, new=()))
        return job

    def held(self, inputs: Inputs) -> str:
        """A job that waits for others."""
        job = self.enqueue()
        text = msgspec.json.encode(inputs).decode()
        headers = {FLOW_HEADER: inputs.flow, INPUTS_HEADER: text}
        self.put(replace(self.jobs[job], state=S.BLOCKED, headers=headers), "held")
        return job

    def member(self, flow: str, number: int = 0) -> str:
        job = self.enqueue()
        record = self.jobs.pop(job)
        one = member_id(flow, "m", number)
        self.events = [replace(e, job=one) if e.job == job else e for e in self.events]
        self.lines = [
            replace(line, ids=(one,))
            if isinstance(line, Sent | Replied) and line.ids == (job,)
            else line
            for line in self.lines
        ]
        self.jobs[one] = replace(record, id=one, headers={FLOW_HEADER: flow})
        return one

    def woken(self, job: str, session: str) -> None:
        self.wait()
        self.put(replace(self.jobs[job], state=S.READY), "admitted")
        self.run(job, session)

    def composed(self, session: str) -> None:
        """A chord and the callbacks of a batch, each after its members."""
        flow = job_id(1, self.rng.randbytes(10))
        members = [self.member(flow, number) for number in range(2)]
        callback = self.held(Inputs(flow, (Edge("m", 2),), "all"))
        done = self.held(Inputs(flow, wants="complete"))
        for member in members:
            self.run(member, session)
        self.woken(callback, session)
        self.woken(done, session)

    def scheduled(self, session: str) -> str:
        """A window of the schedule "nightly", and its job's life."""
        self.windows.append(self.windows[-1] + timedelta(minutes=1) if self.windows else NOW)
        job = self.of_window(self.windows[-1])
        self.run(job, session)
        return job

    def of_window(self, window: datetime, *, has_row: bool = True) -> str:
        self.wait()
        record = JobRecord(
            id=job_id(1, self.rng.randbytes(10)),
            task="t",
            version=1,
            args="[]",
            queue="default",
            priority=0,
            created_at=self.now,
            run_at=self.now,
            state=S.READY,
            headers={SCHEDULE_HEADER: "nightly", WINDOW_HEADER: window.isoformat()},
        )
        self.put(record, "enqueued")
        if has_row:
            self.runs.append(
                ScheduleRun(
                    schedule="nightly",
                    window=window,
                    kind=RunKind.ENQUEUED,
                    at=self.now,
                    job=record.id,
                )
            )
        return record.id

    def claim(self, job: str, session: str, token: str | None = None) -> str:
        self.wait()
        record = self.jobs[job]
        token = token or random_id(self.rng.randbytes(16))
        running = replace(
            record, state=S.RUNNING, token=token, session=session, attempt=record.attempt + 1
        )
        self.put(running, "claimed")
        return token

    def start(self, job: str) -> str:
        run = self.rng.randbytes(4).hex()
        record = self.jobs[job]
        line = self.line(self.pid_of(record.session or ""))
        self.lines.append(
            Started(**line, run=run, job=job, token=record.token or "", attempt=record.attempt)
        )
        return run

    def end(self, run: str, *, is_ok: bool = True) -> None:
        start = next(line for line in self.lines if isinstance(line, Started) and line.run == run)
        line = self.line(start.pid)
        self.lines.append(Ended(**line, run=run, job=start.job, token=start.token, is_ok=is_ok))

    def finish(self, job: str, token: str, to: JobState = S.COMPLETED) -> None:
        self.wait()
        record = self.jobs[job]
        self.put(replace(record, state=to, token=None), "finished", by_token=token)
        self.answer(job, token, "took")

    def answer(self, job: str, token: str, answer: FinishAnswer, verb: str = "finish") -> None:
        session = next(e.session for e in self.events if e.job == job and e.token == token)
        line = self.line(self.pid_of(session or ""))
        self.lines.append(Answered(**line, verb=verb, job=job, token=token, answer=answer))

    def give_back(self, job: str, kind: str, *, by_token: str | None = None) -> None:
        self.wait()
        record = self.jobs[job]
        back = replace(record, state=S.READY, token=None, attempt=record.attempt - 1)
        self.put(back, kind, by_token=by_token)

    def nemesis(self, action: str, *sessions: str) -> None:
        pids = tuple(self.pid_of(session) for session in sessions)
        self.lines.append(Nemesis(**self.line(), action=action, pids=pids))

    # -- whole lives -------------------------------------------------------------------------------

    def plain(self, session: str) -> str:
        job = self.enqueue()
        self.run(job, session)
        return job

    def transactional(self, session: str) -> str:
        job = self.enqueue()
        self.sessions[session] = replace(self.sessions[session], tasks=("t", "once"))
        self.jobs[job] = replace(self.jobs[job], task="once")
        self.run(job, session)
        self.effects.append(job)
        return job

    def run(self, job: str, session: str) -> str:
        token = self.claim(job, session)
        self.end(self.start(job))
        self.finish(job, token)
        return token

    def fails_once(self, session: str) -> None:
        job = self.enqueue()
        token = self.claim(job, session)
        self.end(self.start(job), is_ok=False)
        self.finish(job, token, S.RETRYING)
        self.wait()
        self.put(replace(self.jobs[job], state=S.READY), "promoted")
        self.run(job, session)

    def crashes(self, session: str) -> None:
        job = self.enqueue()
        dying = self.session()
        self.claim(job, dying)
        self.start(job)
        self.nemesis("kill", dying)
        self.end_session(dying, "killed by SIGKILL")
        self.give_back(job, "rescued")
        self.run(job, session)

    def sleeps_past_its_lease(self, session: str) -> str:
        job = self.enqueue()
        stopped = self.session()
        token = self.claim(job, stopped)
        run = self.start(job)
        self.nemesis("stop", stopped)
        self.wait(LEASE.total_seconds() + 0.4)
        self.end_session(stopped, "lease over")
        self.give_back(job, "rescued")
        self.run(job, session)
        self.nemesis("continue", stopped)
        self.end(run)
        self.answer(job, token, "lost")
        return job

    def is_released_after_its_commit(self, session: str) -> None:
        """The answer to a commit is lost, and the worker stops before it checks the outcome."""
        job = self.enqueue()
        self.answer(job, self.run(job, session), "lost", verb="release")

    def crashes_before_its_supervisor_dies(self, session: str) -> None:
        job = self.enqueue()
        doomed = self.session()
        token = self.claim(job, doomed)
        self.start(job)
        self.nemesis("kill", doomed)
        self.give_back(job, "rescued", by_token=token)
        self.run(job, session)
        self.wait(LEASE.total_seconds() + 0.4)
        self.end_session(doomed, "lease over")

    def is_drained(self, session: str) -> str:
        job = self.enqueue()
        stopping = self.session()
        token = self.claim(job, stopping)
        run = self.start(job)
        self.nemesis("term", stopping)
        self.end(run, is_ok=False)
        self.give_back(job, "released", by_token=token)
        self.end_session(stopping, "stopped")
        pid = self.pid_of(stopping)
        self.lines.append(Exited(**self.line(), worker=pid, code=0))
        self.run(job, session)
        return job

    def is_unknown(self, session: str) -> None:
        self.enqueue("unknown", is_stored=False)
        self.run(self.enqueue("unknown"), session)
        self.run(self.enqueue("killed"), session)

    def is_finished_twice(self, session: str) -> None:
        job = self.enqueue()
        token = self.run(job, session)
        self.answer(job, token, "already")

    def is_operated(self, session: str) -> None:
        job = self.plain(session)
        self.wait()
        again = replace(self.jobs[job], state=S.READY, attempt=0, history=self.noted("retried"))
        self.put(again, "retried")
        self.run(job, session)
        other = self.enqueue()
        self.wait()
        gone = replace(self.jobs[other], state=S.CANCELLED, history=self.noted("cancelled"))
        self.put(gone, "cancelled")
        third = self.plain(session)
        self.wait()
        self.event(self.jobs.pop(third), "deleted", None, None)

    def noted(self, what: str) -> tuple[Entry, ...]:
        return (Entry(what=what, at=self.now, by="ada"),)

    def batch(self, session: str) -> None:
        jobs = [self.enqueue() for _ in range(3)]
        token = random_id(self.rng.randbytes(16))
        for job in jobs:
            self.claim(job, session, token)
        for job in jobs:
            self.end(self.start(job))
            self.finish(job, token)

    def gated(self, kind: str, **fields: object) -> str:
        """Store a job with a gate of this kind."""
        job = self.enqueue()
        options = with_gates(None, GATED[kind])
        self.jobs[job] = replace(self.jobs[job], options=options, **fields)
        return job

    def share(self, session: str) -> None:
        """Jobs with a limit of one, a FIFO key and a unique key, one after the other."""
        number = self.rng.randbytes(4).hex()
        for kind in ("limit", "fifo"):
            first = self.gated(kind)
            self.wait(2)
            second = self.gated(kind)
            self.run(first, session)
            self.run(second, session)
        for _ in range(2):
            job = self.enqueue()
            self.jobs[job] = replace(self.jobs[job], unique_key=number)
            self.run(job, session)

    def history(self) -> History:
        return History(
            events=tuple(self.events),
            jobs=tuple(self.jobs.values()),
            sessions=tuple(self.sessions.values()),
            lines=tuple(self.lines),
            offset=OFFSET,
            runs=tuple(self.runs),
            windows={"nightly": tuple(self.windows)},
            effects=tuple(self.effects),
            transactional=("once",),
            expects_fault=True,
            takeover_limit=timedelta(seconds=1),
        )


def correct(seed: int) -> Story:
    """A run in which everything that may happen happens, in some order, and nothing is wrong."""
    story = Story(seed)
    session = story.session()
    lives: list[Callable[[str], object]] = [
        story.plain,
        story.fails_once,
        story.crashes,
        story.sleeps_past_its_lease,
        story.is_drained,
        story.is_unknown,
        story.is_finished_twice,
        story.is_released_after_its_commit,
        story.is_operated,
        story.batch,
        story.composed,
        story.scheduled,
        story.share,
    ]
    lives *= 2
    story.rng.shuffle(lives)
    for life in lives:
        story.wait(story.rng.random())
        life(session)
    return story

"""The checker finds what it is there to find: planted violations, each by its name."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from lab.history import History, Recorder, check, read
from lab.history.checker import RETURNING
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
Said = Literal["took", "already", "lost"]
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

    def answer(self, job: str, token: str, answer: Said) -> None:
        session = next(e.session for e in self.events if e.job == job and e.token == token)
        line = self.line(self.pid_of(session or ""))
        self.lines.append(Answered(**line, verb="finish", job=job, token=token, answer=answer))

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
        self.lines.append(Exited(**self.line(), who=pid, code=0))
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


@pytest.mark.parametrize("seed", range(20))
def test_a_correct_history_passes(seed: int) -> None:
    verdict = check(correct(seed).history())
    assert verdict.is_ok, verdict
    assert verdict.counters["recovered"] == 4
    assert verdict.counters["killed"] == 2
    assert verdict.counters["lost"] == 2
    assert verdict.counters["already"] == 2
    assert verdict.counters["rescued"] == 4
    assert len(verdict.takeovers) == 2


def test_a_crash_that_the_worker_told_itself_is_no_takeover() -> None:
    story = correct(1)
    story.crashes_before_its_supervisor_dies(story.session())
    verdict = check(story.history())
    assert verdict.is_ok, verdict
    assert len(verdict.takeovers) == 2


# --- planted violations: a correct history, and one thing wrong in it ---------------------------------

Plant = Callable[[Story, str], None]
PLANTED: list[tuple[str, Plant]] = []


def plant(invariant: str) -> Callable[[Plant], Plant]:
    def add(function: Plant) -> Plant:
        PLANTED.append((invariant, function))
        return function

    return add


def edit(story: Story, job: str, kind: str, **changes: object) -> None:
    """Change the job's last event of this kind."""
    index = max(i for i, e in enumerate(story.events) if e.job == job and e.kind == kind)
    story.events[index] = replace(story.events[index], **changes)


@plant("I1")
def acked_job_is_gone(story: Story, session: str) -> None:
    job = story.plain(session)
    del story.jobs[job]
    story.events = [event for event in story.events if event.job != job]


@plant("I1")
def job_is_gone_after_it_ran(story: Story, session: str) -> None:
    del story.jobs[story.plain(session)]


@plant("I1")
def job_that_nobody_asked_for(story: Story, session: str) -> None:
    job = story.plain(session)
    story.lines = [
        line for line in story.lines if not (isinstance(line, Sent | Replied) and job in line.ids)
    ]


@plant("I1b")
def repeat_is_stored_twice(story: Story, session: str) -> None:
    job = story.enqueue()
    story.put(story.jobs[job], "enqueued")
    story.run(job, session)


@plant("I1b")
def repeat_is_told_new_twice(story: Story, session: str) -> None:
    job = story.plain(session)
    replied = Replied(**story.line(), call="x", outcome="acked", ids=(job,), new=(True,))
    story.lines.append(replied)


@plant("I1b")
def repeat_returns_another_id(story: Story, session: str) -> None:
    job = story.plain(session)
    other = story.plain(session)
    sent = Sent(**story.line(), call="x", ids=(other,))
    replied = Replied(**story.line(), call="x", outcome="acked", ids=(job,))
    story.lines += [sent, replied]


@plant("I2")
def job_is_left_ready(story: Story, session: str) -> None:
    story.enqueue()


@plant("I2")
def job_is_left_running(story: Story, session: str) -> None:
    job = story.enqueue()
    story.claim(job, session)
    story.start(job)


@plant("I2")
def takeover_takes_too_long(story: Story, session: str) -> None:
    job = story.sleeps_past_its_lease(session)
    holder = next(e.session for e in story.events if e.job == job and e.kind == "rescued")
    held = story.sessions[holder or ""]
    story.sessions[held.id] = replace(held, lease_until=held.lease_until - timedelta(seconds=1))


@plant("I2")
def rescue_before_the_lease_is_over(story: Story, session: str) -> None:
    job = story.sleeps_past_its_lease(session)
    holder = next(e.session for e in story.events if e.job == job and e.kind == "rescued")
    held = story.sessions[holder or ""]
    story.sessions[held.id] = replace(held, lease_until=held.lease_until + LEASE)


@plant("I3")
def second_claim_while_one_is_live(story: Story, session: str) -> None:
    job = story.enqueue()
    story.claim(job, session)
    story.run(job, story.session())


@plant("I3")
def rescue_of_a_job_nobody_holds(story: Story, session: str) -> None:
    job = story.enqueue()
    story.wait()
    story.put(story.jobs[job], "rescued")
    story.run(job, session)


@plant("I4")
def stale_finish_takes_effect(story: Story, session: str) -> None:
    job = story.enqueue()
    stopped = story.session()
    stale = story.claim(job, stopped)
    run = story.start(job)
    story.nemesis("stop", stopped)
    story.end_session(stopped, "crashed")
    story.give_back(job, "rescued")
    story.claim(job, session)
    story.end(run)
    story.finish(job, stale)


@plant("I4")
def stale_release_takes_effect(story: Story, session: str) -> None:
    job = story.is_drained(session)
    edit(story, job, "released", by_token=random_id(bytes(16)))


@plant("I4")
def finish_without_a_token(story: Story, session: str) -> None:
    edit(story, story.plain(session), "finished", by_token=None)


@plant("I4")
def token_is_used_for_two_claims_of_a_job(story: Story, session: str) -> None:
    job = story.enqueue()
    token = story.claim(job, session)
    story.end(story.start(job), is_ok=False)
    story.give_back(job, "released", by_token=token)
    story.claim(job, session, token)
    story.end(story.start(job))
    story.finish(job, token)


@plant("I4")
def token_is_used_by_two_sessions(story: Story, session: str) -> None:
    token = story.run(story.enqueue(), session)
    other = story.enqueue()
    story.claim(other, story.session(), token)
    story.end(story.start(other))
    story.finish(other, token)


@plant("I4")
def live_token_is_refused(story: Story, session: str) -> None:
    job = story.enqueue()
    token = story.claim(job, session)
    story.end(story.start(job))
    story.answer(job, token, "lost")


@plant("I4")
def repeated_finish_is_answered_lost(story: Story, session: str) -> None:
    job = story.enqueue()
    story.answer(job, story.run(job, session), "lost")


@plant("I4")
def took_is_answered_and_nothing_took(story: Story, session: str) -> None:
    job = story.sleeps_past_its_lease(session)
    token = next(e.token for e in story.events if e.job == job and e.kind == "claimed")
    story.answer(job, token or "", "took")


@plant("I5")
def final_job_is_claimed_again(story: Story, session: str) -> None:
    job = story.plain(session)
    story.nemesis("kill", session)  # so that only the store is to blame
    story.run(job, story.session())


@plant("I5")
def completed_job_becomes_dead(story: Story, session: str) -> None:
    job = story.plain(session)
    story.wait()
    story.put(replace(story.jobs[job], state=S.DEAD), "cancelled")


@plant("I5")
def row_says_something_else(story: Story, session: str) -> None:
    job = story.plain(session)
    story.jobs[job] = replace(story.jobs[job], state=S.DEAD)


@plant("I6")
def completed_without_a_run(story: Story, session: str) -> None:
    job = story.enqueue()
    story.finish(job, story.claim(job, session))


@plant("I6")
def completed_after_an_error(story: Story, session: str) -> None:
    job = story.enqueue()
    token = story.claim(job, session)
    story.end(story.start(job), is_ok=False)
    story.finish(job, token)


@plant("I6")
def completed_before_the_handler_returned(story: Story, session: str) -> None:
    job = story.enqueue()
    token = story.claim(job, session)
    run = story.start(job)
    story.finish(job, token)
    story.wait(5)
    story.end(run)


@plant("I15")
def claim_after_the_stop(story: Story, session: str) -> None:
    stopping = story.session()
    story.nemesis("term", stopping)
    story.wait(1)
    story.plain(stopping)


@plant("I15")
def release_costs_an_attempt(story: Story, session: str) -> None:
    edit(story, story.is_drained(session), "released", attempt=1)


@plant("I15")
def job_is_left_leased_at_exit(story: Story, session: str) -> None:
    job = story.enqueue()
    stopping = story.session()
    story.claim(job, stopping)
    story.start(job)
    story.nemesis("term", stopping)
    story.lines.append(Exited(**story.line(), who=story.pid_of(stopping), code=0))
    story.end_session(stopping, "crashed")
    story.give_back(job, "rescued")
    story.run(job, session)


@plant("I20")
def claim_is_timed_by_the_workers_clock(story: Story, session: str) -> None:
    job = story.plain(session)
    for kind in ("enqueued", "claimed", "finished"):
        event = next(e for e in story.events if e.job == job and e.kind == kind)
        if kind != "enqueued":
            edit(story, job, kind, at=event.at + timedelta(hours=2))


@plant("I20")
def enqueue_is_timed_by_the_producers_clock(story: Story, session: str) -> None:
    job = story.plain(session)
    edit(story, job, "enqueued", at=NOW - timedelta(hours=2))


@plant("I20")
def time_goes_backwards(story: Story, session: str) -> None:
    job = story.plain(session)
    edit(story, job, "enqueued", at=story.now + timedelta(seconds=5))


@plant("alive")
def second_run_while_the_first_goes_on(story: Story, session: str) -> None:
    job = story.enqueue()
    busy = story.session()
    story.claim(job, busy)
    run = story.start(job)
    story.end_session(busy, "crashed")
    story.give_back(job, "rescued")
    story.run(job, session)
    story.end(run)


@plant("alive")
def second_run_after_the_first_returned(story: Story, session: str) -> None:
    job = story.enqueue()
    busy = story.session()
    story.claim(job, busy)
    story.end(story.start(job))
    story.end_session(busy, "crashed")
    story.give_back(job, "rescued")
    story.run(job, session)


@plant("alive")
def finished_work_is_lost_in_a_drain(story: Story, session: str) -> None:
    job = story.enqueue()
    stopping = story.session()
    token = story.claim(job, stopping)
    run = story.start(job)
    story.nemesis("term", stopping)
    story.end(run)
    story.give_back(job, "released", by_token=token)
    story.lines.append(Exited(**story.line(), who=story.pid_of(stopping), code=0))
    story.run(job, session)


@plant("I8")
def two_schedulers_fire_one_window(story: Story, session: str) -> None:
    story.scheduled(session)
    story.run(story.of_window(story.windows[-1]), session)


@plant("I8")
def window_is_left_out(story: Story, session: str) -> None:
    story.windows.append(story.windows[-1] + timedelta(minutes=1))
    story.scheduled(session)


@plant("I8")
def window_is_marked_and_its_job_is_not_stored(story: Story, session: str) -> None:
    job = story.scheduled(session)
    del story.jobs[job]
    story.windows.pop()


@plant("I8")
def job_is_stored_without_the_row_of_its_window(story: Story, session: str) -> None:
    story.windows.append(story.windows[-1] + timedelta(minutes=1))
    story.run(story.of_window(story.windows[-1], has_row=False), session)


@plant("I8")
def scheduler_with_a_wrong_clock_makes_a_window_of_its_own(story: Story, session: str) -> None:
    story.run(story.of_window(story.windows[-1] + timedelta(seconds=7)), session)


@plant("I12")
def callback_runs_while_a_member_waits(story: Story, session: str) -> None:
    flow = job_id(1, story.rng.randbytes(10))
    first, second = story.member(flow), story.member(flow, 1)
    callback = story.held(Inputs(flow, (Edge("m", 2),)))
    story.run(first, session)
    story.woken(callback, session)
    story.run(second, session)


@plant("I12")
def batch_calls_back_while_a_member_runs(story: Story, session: str) -> None:
    flow = job_id(1, story.rng.randbytes(10))
    member = story.member(flow)
    done = story.held(Inputs(flow, wants="complete"))
    token = story.claim(member, session)
    run = story.start(member)
    story.woken(done, session)
    story.end(run)
    story.finish(member, token)


@plant("I12")
def batch_calls_back_twice(story: Story, session: str) -> None:
    flow = job_id(1, story.rng.randbytes(10))
    member = story.member(flow)
    both = [story.held(Inputs(flow, wants="complete")) for _ in range(2)]
    story.run(member, session)
    for done in both:
        story.woken(done, session)


@plant("I12")
def batch_tells_of_a_death_that_was_none(story: Story, session: str) -> None:
    flow = job_id(1, story.rng.randbytes(10))
    member = story.member(flow)
    replied = story.held(Inputs(flow, wants="death"))
    story.run(member, session)
    story.woken(replied, session)


@plant("order")
def event_is_missing(story: Story, session: str) -> None:
    story.fails_once(session)
    last = story.events[-1]
    story.events = [e for e in story.events if not (e.job == last.job and e.v == 3)]


@plant("order")
def event_is_there_twice(story: Story, session: str) -> None:
    story.plain(session)
    story.events.append(replace(story.events[-1], seq=len(story.events) + 1))


@plant("order")
def ready_job_is_promoted(story: Story, session: str) -> None:
    job = story.enqueue()
    story.wait()
    story.put(story.jobs[job], "promoted")
    story.run(job, session)


@plant("I7")
def two_live_jobs_have_one_key(story: Story, session: str) -> None:
    jobs = [story.enqueue() for _ in range(2)]
    for job in jobs:
        story.jobs[job] = replace(story.jobs[job], unique_key="k")
    for job in jobs:
        story.run(job, session)


@plant("I9")
def fifo_member_overtakes(story: Story, session: str) -> None:
    first = story.gated("fifo")
    story.wait(5)
    second = story.gated("fifo")
    story.wait(5)
    story.run(second, session)
    story.run(first, session)


@plant("I9")
def fifo_members_run_together(story: Story, session: str) -> None:
    first, second = story.gated("fifo"), story.gated("fifo")
    token = story.claim(first, session)
    run = story.start(first)
    story.run(second, session)
    story.end(run)
    story.finish(first, token)


@plant("I9")
def fifo_member_starts_between_attempts(story: Story, session: str) -> None:
    first = story.gated("fifo")
    story.wait(5)
    second = story.gated("fifo")
    token = story.claim(first, session)
    story.end(story.start(first), is_ok=False)
    story.finish(first, token, S.RETRYING)
    story.run(second, session)
    story.put(replace(story.jobs[first], state=S.READY), "promoted")
    story.run(first, session)


@plant("I10")
def one_permit_too_many(story: Story, session: str) -> None:
    first, second = story.gated("limit"), story.gated("limit")
    token = story.claim(first, session)
    run = story.start(first)
    story.run(second, session)
    story.end(run)
    story.finish(first, token)


@plant("I10")
def dead_holder_is_not_counted(story: Story, session: str) -> None:
    first, second = story.gated("limit"), story.gated("limit")
    dying = story.session()
    story.claim(first, dying)
    story.start(first)
    story.nemesis("kill", dying)
    story.run(second, session)
    story.end_session(dying, "killed by SIGKILL")
    story.give_back(first, "rescued")
    story.run(first, session)


@plant("I11")
def rate_is_exceeded(story: Story, session: str) -> None:
    story.run(story.gated("rate"), session)
    story.wait(30)
    story.run(story.gated("rate"), session)


@plant("I18")
def nobody_is_named_for_a_retry(story: Story, session: str) -> None:
    job = story.plain(session)
    story.wait()
    story.put(replace(story.jobs[job], state=S.READY, attempt=0), "retried")
    story.run(job, session)


@plant("I13")
def crash_is_charged_as_a_failure(story: Story, session: str) -> None:
    job = story.enqueue()
    token = story.claim(job, session)
    run = story.start(job)
    entry = Entry(what="failed", at=story.now, attempt=1, token=token)
    story.end(run)
    story.jobs[job] = replace(story.jobs[job], history=(entry,))
    story.finish(job, token)


@plant("I13")
def poison_pill_is_run_a_fourth_time(story: Story, session: str) -> None:
    job = story.plain(session)
    story.jobs[job] = replace(story.jobs[job], crashes=4)


@plant("I14")
def effect_is_there_twice(story: Story, session: str) -> None:
    job = story.transactional(session)
    story.effects.append(job)


@plant("I14")
def completed_without_its_effect(story: Story, session: str) -> None:
    job = story.transactional(session)
    story.effects.remove(job)


@plant("I14")
def effect_of_a_job_that_is_not_there(story: Story, session: str) -> None:
    story.effects.append(job_id(1, story.rng.randbytes(10)))


@plant("I17")
def worker_takes_a_task_it_does_not_have(story: Story, session: str) -> None:
    job = story.plain(session)
    story.jobs[job] = replace(story.jobs[job], task="unheard-of")


@pytest.mark.parametrize("invariant, spoil", [pytest.param(*p, id=p[1].__name__) for p in PLANTED])
@pytest.mark.parametrize("seed", range(3))
def test_a_planted_violation_is_found_by_name(invariant: str, spoil: Plant, seed: int) -> None:
    story = correct(seed)
    known = set(story.jobs)
    spoil(story, story.session())
    verdict = check(story.history())
    found = verdict.named(invariant)
    assert found, f"{invariant} was not found: {verdict}"
    assert not {violation.job for violation in found} & known, f"an innocent job is blamed: {verdict}"
    for violation in found:
        assert len(violation.evidence) <= 3
        assert violation.words in str(verdict)


def test_every_invariant_has_a_planted_violation() -> None:
    names = {"I1", "I1b", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9", "I10", "I11", "I15", "I18"}
    names |= {"I12", "I13", "I14", "I17", "I20", "alive", "order"}
    assert {invariant for invariant, _ in PLANTED} == names
    assert len(PLANTED) >= 30


def test_a_run_without_the_fault_it_asked_for_fails() -> None:
    story = Story()
    story.plain(story.session())
    asked = story.history()
    assert [violation.invariant for violation in check(asked).violations] == ["nemesis"]
    assert check(replace(asked, expects_fault=False)).is_ok


def test_a_handler_that_failed_may_run_again() -> None:
    story = Story()
    story.fails_once(story.session())
    assert check(replace(story.history(), expects_fault=False)).is_ok


@pytest.mark.parametrize("error", ["CancelledError", "LostClaim"])
@pytest.mark.parametrize("is_killed", [True, False])
def test_who_is_interrupted_in_its_commit_may_have_committed(error: str, is_killed: bool) -> None:
    """Three hundred transactional jobs on PostgreSQL: the answer to a COMMIT was cut, and the worker
    ended because its supervisor was killed, before it could ask what had become of it."""
    story = Story()
    job, session = story.enqueue(), story.session()
    token = story.claim(job, session)
    run = story.start(job)
    story.end(run)
    story.finish(job, token)
    if is_killed:
        story.nemesis("kill", session)
    line = story.line(story.pid_of(session))
    story.lines.append(Ended(**line, run=run, job=job, token=token, is_ok=False, error=error))
    found = check(replace(story.history(), expects_fault=False)).violations
    is_excused = is_killed and error == "CancelledError"
    assert ("I6" in [one.invariant for one in found]) == (not is_excused)


@pytest.mark.parametrize("is_stopped", [True, False])
def test_who_stood_still_may_begin_after_another_has_ended(is_stopped: bool) -> None:
    """F3 on PostgreSQL, seed 10: the handler was stopped before its transaction began."""
    story = Story()
    job, slow, other = story.enqueue(), story.session(), story.session()
    token = story.claim(job, slow)
    if is_stopped:
        story.nemesis("stop", slow)
    story.wait(LEASE.total_seconds() + 1)
    story.end_session(slow, "lease over")
    story.give_back(job, "rescued")
    story.run(job, other)
    line = story.line(story.pid_of(slow))
    story.lines.append(Started(**line, run="late", job=job, token=token, attempt=1))
    found = check(replace(story.history(), expects_fault=False, takeover_limit=LEASE)).violations
    assert ("alive" in [one.invariant for one in found]) == (not is_stopped)


@pytest.mark.parametrize("pause", [0.1, 1.0])
def test_an_interrupt_may_fall_between_a_handlers_last_line_and_its_return(pause: float) -> None:
    """F28 on Redis Cluster, seed 63: the line was written 4 ms before the handler was interrupted."""
    story = Story()
    job, stopping, other = story.enqueue(), story.session(), story.session()
    token = story.claim(job, stopping)
    run = story.start(job)
    story.nemesis("term", stopping)
    story.end(run)
    story.wait(pause)
    story.nemesis("hurry", stopping)
    story.give_back(job, "released", by_token=token)
    story.lines.append(Exited(**story.line(), who=story.pid_of(stopping), code=0))
    story.run(job, other)
    found = check(story.history()).violations
    assert [one.invariant for one in found] == ([] if pause < RETURNING else ["alive"])


@pytest.mark.parametrize("pid", [0, 7])
def test_a_claim_over_http_lasts_as_long_as_its_lease_and_a_worker_as_its_process(pid: int) -> None:
    story = Story()
    job, held, other = story.enqueue(), story.session(), story.session()
    story.sessions[held] = replace(story.sessions[held], pid=pid)
    story.claim(job, held)
    story.end(story.start(job))
    story.wait(LEASE.total_seconds() + 1)
    story.end_session(held, "lease over")
    story.give_back(job, "rescued")
    story.run(job, other)
    found = check(replace(story.history(), expects_fault=False, takeover_limit=LEASE)).violations
    assert [one.invariant for one in found] == ([] if pid == 0 else ["alive"])


def test_one_claim_call_may_take_its_time_where_it_asks_several_servers() -> None:
    story = Story()
    session = story.session()
    first, second = story.plain(session), story.plain(session)
    token = next(event.token for event in story.events if event.job == first and event.token)
    mine = next(event.token for event in story.events if event.job == second and event.token)
    at = {event.kind: event.at + timedelta(seconds=1.6) for event in story.events if event.job == second}

    def replied(event: Event) -> Event:
        if event.job != second:
            return event
        mine_by = token if event.by_token == mine else event.by_token
        mine_is = token if event.token == mine else event.token
        return replace(event, token=mine_is, by_token=mine_by, at=at[event.kind])

    story.events = [replied(event) for event in story.events]
    story.lines = [
        replace(line, token=token) if getattr(line, "token", None) == mine else line
        for line in story.lines
    ]
    history = replace(story.history(), expects_fault=False)
    words = [one.words for one in check(history).violations if one.invariant == "I4"]
    assert words == ["a token was used by two claim calls"]
    assert not check(replace(history, claim_call=LEASE)).named("I4")


def test_lines_survive_and_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    call = recorder.sent(["a", "b"])
    recorder.replied(call, "acked", ["a", "b"], [True, False])
    recorder.nemesis("kill", [7], note="child")
    [file] = tmp_path.iterdir()
    file.write_bytes(file.read_bytes() + b'{"type":"sent","ca')
    sent, replied, act = read(tmp_path)
    assert isinstance(sent, Sent)
    assert sent.ids == ("a", "b")
    assert isinstance(replied, Replied)
    assert replied.new == (True, False)
    assert isinstance(act, Nemesis)
    assert act.pids == (7,)
    assert abs(act.mono - sent.mono) < 5

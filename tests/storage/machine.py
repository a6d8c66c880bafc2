"""A random walk over the verbs, with a driver held to invariants and, where wanted, to the reference.

`Ledger` (ledger.py) holds what must be true of any store. `StoreMachine` with a reference also compares
every answer and, after each step, every job, session and event.

Moments never collide: each step is a millisecond later than the one before, time is advanced by whole
seconds, and the jobs of one step differ by microseconds or priority. So the order of claims is decided
by the sort key alone, and both stores must give the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import hypothesis
import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.storage.gated import GATES
from tests.storage.ledger import Ledger
from winch.core.gates.places import lone_place
from winch.core.gates.uses import (
    FIFO,
    GateUse,
    gates_of,
    with_gates,
)
from winch.core.job import Failure, JobRecord, Note, to_micros
from winch.core.lifecycle import TRANSITIONS, JobState
from winch.core.policy.queue_settings import QueueRule
from winch.core.policy.unique import Duplicate
from winch.core.values.clock import FixedClock
from winch.core.values.ids import job_id, random_id, with_place
from winch.drivers.memory import MemoryDriver
from winch.storage.crash_report import CrashReport
from winch.storage.params import (
    Acted,
    Answer,
    ClaimParams,
    ClaimRef,
    Event,
    Finish,
    JobFilter,
    NewJob,
    NewSession,
    Rescued,
    Standing,
)
from winch.storage.protocol import Driver
from winch.storage.verbs import Verb
from winch.testing.conformance import Target
from winch.testing.conformance.bench import WHAT

T = TypeVar("T")

# The same walks on every machine and every run; a failure in CI is a failure at home.
STEADY = hypothesis.settings(
    derandomize=True,
    database=None,
    deadline=None,
    stateful_step_count=50,
    suppress_health_check=list(hypothesis.HealthCheck),
)

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
STEP = timedelta(milliseconds=1)
MICROSECOND = timedelta(microseconds=1)
QUEUES = ("a", "b")
TASKS = ("mail.send", "mail.sort")
KEYS = ("one", "two")
TARGETS = tuple(
    state
    for state in JobState  # in this order on every run: that of a set is another each time
    if state in TRANSITIONS["finish"][JobState.RUNNING] and state is not JobState.BLOCKED
)

seconds = st.sampled_from([1, 10, 45, 3600])
delays = st.sampled_from([0, 5, 60])
targets = st.sampled_from(TARGETS)
notes = st.builds(
    Note,
    progress=st.sampled_from([None, '{"percent":5}']),
    checkpoint=st.sampled_from([None, '{"page":7}']),
    log=st.sampled_from([None, "a line\n"]),
    number=st.sampled_from([None, 1, 2, 3]),
)
leaps = st.sampled_from([-10, 1, 10, 29, 30, 31, 60, 600, 3600, 40 * 3600, 72 * 3600, 9 * 86400])


class StoreMachine(RuleBasedStateMachine):
    """The walk. `target` gives the driver; with `reference` each step is compared with memory."""

    def __init__(self, target: Target, *, reference: bool) -> None:
        super().__init__()
        self.target = target
        self.driver = target.fresh(events=True)
        self.reference: Driver | None = None
        if reference:
            self.reference = MemoryDriver(FixedClock(START), events=True)
        self.ledger = Ledger()
        self.now = START
        self.drawn = 0
        self.known: list[NewJob] = []
        self.given: list[NewJob] = []
        self.refs: list[ClaimRef] = []
        self.finishes: list[Finish] = []
        self.gated: set[str] = set()
        self.concurrency: dict[str, int | None] = {}
        self.sessions: list[str] = []

    # -- asking both stores ------------------------------------------------------------------------

    def ask(
        self,
        verb: Callable[[Driver], Verb[T]],
        *,
        key: Callable[[Any], Any] | None = None,
        promised: Callable[[T], Any] = lambda answer: answer,
    ) -> T:
        """The driver's answer, which must be the reference's; with `key`, in whatever order; with
        `promised`, as far as that goes."""
        answer = self.driver.run(verb(self.driver))
        if self.reference is not None:
            expected = self.reference.run(verb(self.reference))
            if key is None:
                assert promised(answer) == promised(expected)
            else:
                assert sorted(answer, key=key) == sorted(expected, key=key)  # type: ignore[call-overload]
        return answer

    def step(self) -> datetime:
        self.now += STEP
        return self.now

    def jobs(self) -> dict[str, JobRecord]:
        ids = list(dict.fromkeys(job.id for job in self.known))
        found = self.ask(lambda driver: driver.get(ids), promised=ranked)
        return {job.id: job for job in found if job is not None}

    def number(self) -> int:
        self.drawn += 1
        return self.drawn

    def new_job(self, **fields: Any) -> NewJob:
        number = self.number()  # its first byte is the place in a cluster: another one each time
        drawn = bytes([number % 64]) + number.to_bytes(7, "big")
        made = job_id(to_micros(self.now) * 4096 // 1000, drawn)
        job = NewJob(**{"id": made, "task": TASKS[0], "args": "{}", "queue": QUEUES[0], **fields})
        place = None if "id" in fields else lone_place(job.options)
        if place is not None:  # as clients draw them: beside the only gate of the job
            job = msgspec.structs.replace(job, id=with_place(job.id, place))
        self.known.append(job)
        return job

    def enqueue(self, jobs: Sequence[NewJob], *, is_repeat: bool = False) -> None:
        now = self.now
        for stored in self.ask(lambda driver: driver.enqueue(jobs, is_repeat=is_repeat, now=now)):
            if stored.holder is None:
                self.ledger.stored(stored.id, is_new=stored.is_new)
            else:
                assert not self.ledger.states[stored.holder].is_final, "only a live job holds a key"

    # -- producing ---------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        self.start_session(lease=30)
        self.enqueue_ready(count=3, queue=QUEUES[0], task=TASKS[0], priority=0)

    @rule(
        count=st.integers(1, 3),
        queue=st.sampled_from(QUEUES),
        task=st.sampled_from(TASKS),
        priority=st.integers(-2, 2),
    )
    def enqueue_ready(self, count: int, queue: str, task: str, priority: int) -> None:
        self.step()
        self.enqueue([self.new_job(queue=queue, task=task, priority=priority + n) for n in range(count)])

    @rule(count=st.integers(1, 2), delay=seconds, queue=st.sampled_from(QUEUES))
    def enqueue_delayed(self, count: int, delay: int, queue: str) -> None:
        self.step()
        first = timedelta(seconds=delay)
        self.enqueue([self.new_job(queue=queue, delay=first + n * MICROSECOND) for n in range(count)])

    @rule(data=st.data(), keep=st.sampled_from([None, 0, 3600]), is_new=st.booleans())
    def enqueue_given(self, data: st.DataObject, keep: int | None, is_new: bool) -> None:
        self.step()
        if is_new or not self.given:
            kept = None if keep is None else timedelta(seconds=keep)
            self.given.append(self.new_job(is_given_id=True, keep=kept))
            self.enqueue([self.given[-1], self.given[-1]])
        else:
            self.enqueue([data.draw(st.sampled_from(self.given)), self.new_job(queue=QUEUES[1])])

    @rule(key=st.sampled_from(KEYS), mode=st.sampled_from(Duplicate), delay=delays, first=st.booleans())
    def enqueue_unique(self, key: str, mode: Duplicate, delay: int, first: bool) -> None:
        self.step()
        later = timedelta(seconds=delay) if delay else None
        args = f'{{"n":{self.drawn}}}'
        fields: dict[str, Any] = {"unique_key": key, "on_duplicate": mode, "args": args, "delay": later}
        new = self.new_job(is_given_id=first, **fields)
        self.enqueue([new])

    @rule(
        which=st.sampled_from(GATES),
        count=st.integers(1, 3),
        queue=st.sampled_from(QUEUES),
        tenant=st.sampled_from([None, None, "x", "y"]),
    )
    def enqueue_gated(
        self, which: tuple[GateUse, ...], count: int, queue: str, tenant: str | None
    ) -> None:
        self.step()
        fifo = next((use.key.removeprefix("fifo:") for use in which if use.kind == FIFO), None)
        options = with_gates(None, which)
        fields: dict[str, Any] = {"queue": queue, "tenant": tenant, "fifo": fifo, "options": options}
        self.enqueue([self.new_job(**fields) for _ in range(count)])

    @rule(is_sweep=st.booleans(), leap=st.sampled_from([0, 1, 10, 30, 60]))
    def admit(self, is_sweep: bool, leap: int) -> None:
        """Open the gates whose moment has come, or look at all of them."""
        self.now += timedelta(seconds=leap)
        now = self.step()
        # A gate at which no job waits any more may still have a moment, until admit has looked at it.
        self.ask(
            lambda driver: driver.admit(is_sweep=is_sweep, now=now),
            promised=lambda answer: (answer.count, answer.next_at if self.has_waiting() else None),
        )

    def has_waiting(self) -> bool:
        """Whether jobs wait at gates."""
        found = self.driver.run(self.driver.get(list({job.id for job in self.known})))
        return any(job is not None and job.gate is not None for job in found)

    @rule(
        queue=st.sampled_from(QUEUES),
        concurrency=st.sampled_from([None, None, 1, 2, 3]),
        is_strict=st.booleans(),
    )
    def set_queue(self, queue: str, concurrency: int | None, is_strict: bool) -> None:
        """An operator sets what claims read."""
        now = self.step()
        wanted = QueueRule(concurrency=concurrency, is_strict=is_strict)
        self.ask(lambda driver: driver.set_queue(queue, wanted, now=now))
        self.concurrency[queue] = concurrency

    @rule(data=st.data())
    def enqueue_repeated(self, data: st.DataObject) -> None:
        self.step()
        self.enqueue([data.draw(st.sampled_from(self.known))], is_repeat=True)

    # -- working -----------------------------------------------------------------------------------

    @rule(
        data=st.data(),
        queues=st.sampled_from([("a",), ("b",), ("a", "b"), ("b", "a")]),
        limit=st.integers(1, 4),
        tasks=st.sampled_from([None, None, (TASKS[0],), TASKS]),
    )
    def claim(
        self, data: st.DataObject, queues: tuple[str, ...], limit: int, tasks: tuple[str, ...] | None
    ) -> None:
        now = self.step()
        session = self.some_session(data)
        params = ClaimParams(
            session=session, token=self.token(), queues=queues, limit=limit, tasks=tasks
        )
        self.claim_with(params, now)

    @rule()
    def claim_everything(self) -> None:
        now = self.step()
        params = ClaimParams(session=self.sessions[-1], token=self.token(), queues=QUEUES, limit=100)
        self.claim_with(params, now)

    def claim_with(self, params: ClaimParams, now: datetime) -> None:
        for claim in self.ask(lambda driver: driver.claim(params, now=now)):
            self.ledger.claimed(claim, params.session)
            self.ledger.started(claim, to_micros(now))
            self.gated.update([claim.id] if gates_of(claim.options) else [])
            self.refs.append(ClaimRef(claim.id, claim.token))
            most = self.concurrency.get(claim.queue)
            assert claim.has_permit is (most is not None)
            if most is not None:
                running = [
                    job
                    for job in self.jobs().values()
                    if job.queue == claim.queue and job.state is JobState.RUNNING
                ]
                assert len(running) <= most, "no claim takes more than the queue runs at once"

    def some_session(self, data: st.DataObject) -> str:
        """Mostly one of the latest, which are mostly live."""
        session: str = data.draw(st.sampled_from([*self.sessions[:2], *self.sessions[-2:] * 3]))
        return session

    def token(self) -> str:
        return random_id(self.number().to_bytes(16, "big"))

    def some_refs(self, data: st.DataObject) -> list[ClaimRef]:
        """Claims of now and of before, each job once."""
        live = [ref for ref in self.refs if self.ledger.owns(ref)]
        is_live: bool = data.draw(st.sampled_from([True, True, False]))
        pool = live if live and is_live else self.refs
        drawn: list[ClaimRef] = data.draw(st.lists(st.sampled_from(pool), min_size=1, max_size=3))
        return list({ref.id: ref for ref in drawn}.values())

    def finish(self, outcomes: Sequence[Finish]) -> None:
        now = self.step()
        before = self.jobs()
        answers = self.ask(lambda driver: driver.finish(outcomes, now=now))
        assert len(answers) == len(outcomes)
        for outcome, answer in zip(outcomes, answers, strict=True):
            self.ledger.answered(ClaimRef(outcome.id, outcome.token), answer)
        self.unchanged(
            before, [o.id for o, a in zip(outcomes, answers, strict=True) if a is not Answer.TOOK]
        )
        self.finishes += outcomes

    def unchanged(self, before: dict[str, JobRecord], ids: Sequence[str]) -> None:
        after = self.jobs()
        for found in ids:
            assert after.get(found) == before.get(found), "a write that did not take changes nothing"

    def outcomes(
        self, refs: Sequence[ClaimRef], to: JobState, delay: int, counts: bool, *, brakes: bool = False
    ) -> list[Finish]:
        return [
            Finish(
                id=ref.id,
                token=ref.token,
                to=to,
                what=WHAT[to],
                delay=timedelta(seconds=delay) + n * MICROSECOND,
                counts=counts or to.is_final,
                result="1" if to is JobState.COMPLETED else None,
                error=Failure("E", "m") if to in (JobState.RETRYING, JobState.DEAD) else None,
                reason="because" if to in (JobState.DEAD, JobState.CANCELLED) else None,
                log="the end\n" if n else None,
                is_gated=ref.id in self.gated,
                brake="bank" if brakes and to is JobState.RETRYING else None,
            )
            for n, ref in enumerate(refs)
        ]

    @precondition(lambda self: self.refs)
    @rule(data=st.data(), to=targets, delay=delays, counts=st.booleans(), brakes=st.booleans())
    def finish_claims(
        self, data: st.DataObject, to: JobState, delay: int, counts: bool, brakes: bool
    ) -> None:
        self.finish(self.outcomes(self.some_refs(data), to, delay, counts, brakes=brakes))

    @rule(to=targets, delay=delays, counts=st.booleans(), leap=st.sampled_from([0, 0, 3600]))
    def work(self, to: JobState, delay: int, counts: bool, leap: int) -> None:
        """What a worker does most of the time, so that walks get somewhere."""
        self.promote(limit=1000, leap=leap)
        self.every_job_is_as_it_must_be()
        self.claim_everything()
        live = [ref for ref in self.refs if self.ledger.owns(ref)]
        self.finish(self.outcomes(live[:-1], to, delay, counts))

    @rule()
    def die(self) -> None:
        """A worker claims, and dies of it."""
        self.claim_everything()
        self.end(self.sessions[-1], [], cause="signal 9")

    @precondition(lambda self: self.finishes)
    @rule(data=st.data())
    def finish_again(self, data: st.DataObject) -> None:
        drawn = data.draw(st.lists(st.sampled_from(self.finishes), min_size=1, max_size=3))
        self.finish(list({outcome.id: outcome for outcome in drawn}.values()))

    @precondition(lambda self: self.ledger.owners)
    @rule(data=st.data(), to=targets)
    def finish_by_a_zombie(self, data: st.DataObject, to: JobState) -> None:
        """A session that is not the owner (any more) finishes a running job."""
        owned = data.draw(st.sampled_from(sorted(self.ledger.owners)))
        others = [ref.token for ref in self.refs if ref.token != self.ledger.owners[owned]]
        # Of the job's own earlier claims, of another job's, or unknown.
        mine = [ref.token for ref in self.refs if ref.id == owned and ref.token in others]
        token = data.draw(st.sampled_from([*mine * 3, *others[-3:], self.token()]))
        self.finish(self.outcomes([ClaimRef(owned, token)], to, delay=0, counts=True))

    @precondition(lambda self: len(self.refs) > 1)
    @rule(data=st.data())
    def finish_with_swapped_tokens(self, data: st.DataObject) -> None:
        one, other = data.draw(st.sampled_from(self.refs)), data.draw(st.sampled_from(self.refs))
        swapped = {ref.id: ref for ref in (ClaimRef(one.id, other.token), ClaimRef(other.id, one.token))}
        self.finish(self.outcomes(list(swapped.values()), JobState.COMPLETED, delay=0, counts=True))

    @precondition(lambda self: self.refs)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        now = self.step()
        refs = self.some_refs(data)
        before = self.jobs()
        answers = self.ask(lambda driver: driver.release(refs, now=now))
        for ref, answer in zip(refs, answers, strict=True):
            self.ledger.answered(ref, answer)
        self.unchanged(
            before, [r.id for r, a in zip(refs, answers, strict=True) if a is not Answer.TOOK]
        )

    @precondition(lambda self: self.refs)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        """Isolated jobs kill the processes of their own that they run in."""
        now = self.step()
        refs = self.some_refs(data)
        before = self.jobs()
        answers = self.ask(lambda driver: driver.crash(CrashReport(refs, "signal 11"), now=now))
        for ref, answer in zip(refs, answers, strict=True):
            self.ledger.answered(ref, answer)
        self.unchanged(
            before, [r.id for r, a in zip(refs, answers, strict=True) if a is not Answer.TOOK]
        )

    @precondition(lambda self: self.refs)
    @rule(data=st.data(), note=notes)
    def note(self, data: st.DataObject, note: Note) -> None:
        for ref in self.some_refs(data):
            is_live = self.ledger.owns(ref)
            before = self.jobs().get(ref.id)
            answer = self.ask(lambda driver, ref=ref: driver.note(ref, note))  # type: ignore[misc]
            assert answer is (Answer.TOOK if is_live else Answer.LOST)
            assert is_live or self.jobs().get(ref.id) == before

    @precondition(lambda self: self.refs)
    @rule(data=st.data())
    def stand(self, data: st.DataObject) -> None:
        refs = self.some_refs(data)
        standings = self.ask(lambda driver: driver.standing(refs))
        for ref, standing in zip(refs, standings, strict=True):
            assert (standing is Standing.LIVE) is self.ledger.owns(ref)
        session = self.some_session(data)
        mine = sorted(job for job, held in self.ledger.sessions.items() if held == session)
        refs = [ClaimRef(job, self.ledger.owners[job]) for job in mine]
        assert self.ask(lambda driver: driver.held(session)) == refs

    @precondition(lambda self: self.refs)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        now = self.step()
        session = self.some_session(data)
        tokens = {ref.token for ref in self.some_refs(data)}
        mine = [
            ClaimRef(owned, token)
            for owned, token in self.ledger.owners.items()
            if token in tokens and self.ledger.sessions[owned] == session
        ]
        assert self.ask(lambda driver: driver.give_up(session, sorted(tokens), now=now)) == len(mine)
        for ref in mine:
            self.ledger.ended(ref)

    # -- sessions ----------------------------------------------------------------------------------

    @rule(lease=st.sampled_from([30, 300]))
    def start_session(self, lease: int) -> None:
        now = self.step()
        session = NewSession(
            id=self.token(),
            worker="w",
            host="h",
            pid=1,
            release="1",
            queues=QUEUES,
            tasks=TASKS,
            slots=1,
            lease=timedelta(seconds=lease),
        )
        self.sessions.append(session.id)
        assert self.ask(lambda driver: driver.start_session(session, now=now)) == now

    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        now = self.step()
        sessions = data.draw(
            st.lists(st.sampled_from(self.sessions), min_size=1, max_size=3, unique=True)
        )
        self.ask(lambda driver: driver.beat(sessions, now=now))

    def taken_back(self, taken: Sequence[Rescued]) -> None:
        for rescued in taken:
            assert self.ledger.sessions[rescued.id] == rescued.session
            self.ledger.ended(ClaimRef(rescued.id, rescued.token))

    @rule(data=st.data(), cause=st.sampled_from([None, "signal 9", "signal 9"]))
    def end_session(self, data: st.DataObject, cause: str | None) -> None:
        session = self.some_session(data)
        stale = data.draw(st.lists(st.sampled_from(self.refs), max_size=2)) if self.refs else []
        self.end(session, stale, cause)

    def end(self, session: str, stale: Sequence[ClaimRef], cause: str | None) -> None:
        # All but one of what it runs had started, so that there is something to tell apart.
        now = self.step()
        mine = [ref for ref in self.refs if self.ledger.holds(session, ref)]
        started = [*stale, *(mine[1:] or mine)]
        crash = None if cause is None else CrashReport(started, cause)
        taken = self.ask(
            lambda driver: driver.end_session(session, crash, now=now),
            key=lambda rescued: rescued.id,
        )
        self.taken_back(taken)
        self.start_session(lease=30)

    @rule(leap=st.sampled_from([0, 0, 29, 30, 31, 300]), held_up=st.sampled_from([None, None, 10, 30]))
    def rescue(self, leap: int, held_up: int | None) -> None:
        self.now += timedelta(seconds=leap)
        now = self.step()
        as_of = None if held_up is None else now - timedelta(seconds=held_up)
        taken = self.ask(
            lambda driver: driver.rescue(as_of=as_of, now=now), key=lambda rescued: rescued.id
        )
        self.taken_back(taken)
        self.start_session(lease=30)

    # -- time --------------------------------------------------------------------------------------

    @rule(leap=leaps)
    def advance(self, leap: int) -> None:
        self.now += timedelta(seconds=leap)
        if leap < 0:
            self.ledger.starts.clear()

    @rule(limit=st.sampled_from([1, 1000, 1000]), leap=st.sampled_from([0, 60, 3600]))
    def promote(self, limit: int, leap: int) -> None:
        self.now += timedelta(seconds=leap)
        now = self.step()
        self.ask(lambda driver: driver.promote(limit=limit, now=now))

    @rule()
    def prune(self) -> None:
        now = self.step()
        count = self.ask(lambda driver: driver.prune(now=now))
        left = self.jobs()
        gone = [found for found in self.ledger.states if found not in left]
        assert len(gone) == count
        for found in gone:
            assert self.ledger.states.pop(found).is_final, "pruned only if final"

    # -- operators ---------------------------------------------------------------------------------

    def some_jobs(self, data: st.DataObject, verb: str, most: int) -> list[str]:
        """Mostly jobs in a state that the verb may be applied in, if there are any."""
        takes = [found for found, state in self.ledger.states.items() if state in TRANSITIONS[verb]]
        pool = [job.id for job in self.known]
        if takes and data.draw(st.sampled_from([True, True, False])):
            pool = takes
        ids: list[str] = data.draw(
            st.lists(st.sampled_from(pool), min_size=1, max_size=most, unique=True)
        )
        return ids

    def acted(self, verb: str, answers: list[Acted]) -> None:
        for answer in answers:
            self.ledger.acted(verb, answer)

    @rule(data=st.data(), reason=st.sampled_from([None, "wrong"]))
    def cancel(self, data: st.DataObject, reason: str | None) -> None:
        now, ids = self.step(), self.some_jobs(data, "cancel", most=3)
        self.acted(
            "cancel", self.ask(lambda driver: driver.cancel(ids, by="ada", reason=reason, now=now))
        )

    @precondition(lambda self: self.ledger.owners)
    @rule(data=st.data())
    def cancel_running(self, data: st.DataObject) -> None:
        now, ids = self.step(), [data.draw(st.sampled_from(sorted(self.ledger.owners)))]
        self.acted("cancel", self.ask(lambda driver: driver.cancel(ids, by="bob", now=now)))

    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        # One at a time: retried jobs arrive now, and two at once would be a tie.
        now, ids = self.step(), self.some_jobs(data, "retry", most=1)
        self.acted("retry", self.ask(lambda driver: driver.retry(ids, by="ada", now=now)))

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        now, ids = self.step(), self.some_jobs(data, "delete", most=2)
        self.acted("delete", self.ask(lambda driver: driver.delete(ids, by="ada", now=now)))

    @rule(queue=st.sampled_from(QUEUES), is_paused=st.sampled_from([False, False, True]))
    def pause_or_resume(self, queue: str, is_paused: bool) -> None:
        now = self.step()
        if is_paused:
            self.ask(lambda driver: driver.pause(queue, by="ada", reason="why", now=now))
        else:
            self.ask(lambda driver: driver.resume(queue, by="ada", now=now))

    # -- reading -----------------------------------------------------------------------------------

    @rule(data=st.data(), states=st.lists(st.sampled_from(JobState), max_size=2, unique=True))
    def read(self, data: st.DataObject, states: list[JobState]) -> None:
        now = self.step()
        one = data.draw(st.sampled_from(self.known)).id
        self.ask(lambda driver: driver.explain(one, now=now))
        self.ask(lambda driver: driver.list_jobs(JobFilter(states=tuple(states), limit=3)))
        self.ask(lambda driver: driver.cancels(self.sessions), key=lambda ref: ref.id)
        counts = self.ask(lambda driver: driver.counts())
        assert counts[JobState.RUNNING] == len(self.ledger.owners)
        assert sum(counts.values()) == len(self.ledger.states)

    @invariant()
    def every_job_is_as_it_must_be(self) -> None:
        self.ledger.seen(self.jobs())

    @invariant()
    def every_session_is_as_it_must_be(self) -> None:
        sessions = self.ask(lambda driver: driver.sessions(is_ended_too=True))
        assert sum(info.running for info in sessions) <= len(self.ledger.owners)

    def teardown(self) -> None:
        try:
            self.every_change_has_an_event()
        finally:
            self.target.finished(self.driver)

    def every_change_has_an_event(self) -> None:
        """In the order of each job's own changes; between the jobs of one verb the order is free."""
        events_of = by_job(self.driver.run(self.driver.events()))
        for events in events_of.values():
            assert [event.v for event in events] == list(range(1, len(events) + 1))
        if self.reference is not None:
            assert events_of == by_job(self.reference.run(self.reference.events()))


def ranked(jobs: list[JobRecord | None]) -> list[JobRecord | None]:
    """The jobs with the order of their FIFO numbers in place of the numbers, which each store draws in
    its own way."""
    numbers = sorted({job.seq for job in jobs if job is not None and job.seq is not None})
    place = {number: at for at, number in enumerate(numbers)}
    return [
        job if job is None or job.seq is None else msgspec.structs.replace(job, seq=place[job.seq])
        for job in jobs
    ]


def by_job(events: list[Event]) -> dict[str, list[Event]]:
    grouped: dict[str, list[Event]] = {}
    for event in events:
        grouped.setdefault(event.job, []).append(msgspec.structs.replace(event, seq=0))
    return grouped


def walk(target: Target, *, reference: bool, settings: hypothesis.settings) -> None:
    """Take random walks on the target; raises what the first bad one raised."""

    class Bound(StoreMachine):
        def __init__(self) -> None:
            super().__init__(target, reference=reference)

    run_state_machine_as_test(Bound, settings=settings)

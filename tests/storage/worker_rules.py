"""Rules of a walk: what workers do, what becomes of their sessions, and what time brings."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from hypothesis import strategies as st
from hypothesis.stateful import (
    precondition,
    rule,
)

from tests.storage.both_stores import (
    MICROSECOND,
    QUEUES,
    TASKS,
    BothStores,
    delays,
    leaps,
    notes,
    targets,
)
from winch.core.gates.uses import (
    gates_of,
)
from winch.core.job import Failure, JobRecord, Note, to_micros
from winch.core.lifecycle import JobState
from winch.core.values.ids import random_id
from winch.storage.crash_report import CrashReport
from winch.storage.params import (
    Answer,
    ClaimParams,
    ClaimRef,
    Finish,
    NewSession,
    Rescued,
    Standing,
)
from winch.testing.conformance.bench import WHAT


class WorkerRules(BothStores):
    """Claims, finishes, releases, crashes, heartbeats, rescues, promotions and prunes."""

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

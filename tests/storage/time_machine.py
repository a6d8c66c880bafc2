"""The random walk, with schedules, signals, waits and things to undo among its steps."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import hypothesis
import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from tests.storage.machine import QUEUES, TASKS, StoreMachine
from winch.core.job import Note
from winch.core.lifecycle import JobState
from winch.core.policy.schedule import Misfire, Overlap, Timing
from winch.storage.decide.schedules import (
    WINDOW_HEADER,
    Changed,
    Definition,
    Pause,
    Put,
    Remove,
    Resume,
    ScheduleRow,
    Skip,
    Tick,
    Trigger,
)
from winch.storage.decide.waits import AWAITED_HEADER, Dependencies, death_key, job_key, signal_key
from winch.storage.params import Answer, ClaimRef, Declared, NewJob, NewSession, Wait
from winch.testing.conformance import Target

NAMES = ("hourly", "often")
SIGNALS = ("go", "stop")
AWAITED = {AWAITED_HEADER: "1"}
EVERY = (timedelta(seconds=45), timedelta(hours=1))


class TimeMachine(StoreMachine):
    """What is asked of both stores here is compared by the machine below."""

    def __init__(self, target: Target, *, reference: bool) -> None:
        super().__init__(target, reference=reference)
        self.waited: list[str] = []  # jobs that others may wait for
        self.sent = 0

    # -- waits -------------------------------------------------------------------------------------

    def some_waits(self, data: st.DataObject) -> tuple[Wait, ...]:
        keys = [signal_key(name) for name in SIGNALS]
        keys += [key(one) for one in self.waited[-4:] for key in (job_key, death_key)]
        drawn = data.draw(st.lists(st.sampled_from(keys), min_size=1, max_size=3, unique=True))
        return tuple(Wait(key, is_enough=key.startswith(("signal:", "dead:"))) for key in drawn)

    @rule(count=st.integers(1, 2), queue=st.sampled_from(QUEUES))
    def enqueue_awaited(self, count: int, queue: str) -> None:
        self.step()
        jobs = [self.new_job(queue=queue, headers=AWAITED, priority=n) for n in range(count)]
        self.waited += [job.id for job in jobs]
        self.enqueue(jobs)

    @rule(data=st.data(), is_repeat=st.booleans(), is_claimed=st.booleans())
    def enqueue_after(self, data: st.DataObject, is_repeat: bool, is_claimed: bool) -> None:
        """A member and its waiter; then the same again, or by a claim of now or before."""
        now = self.step()
        member, after = self.new_job(headers=AWAITED), self.new_job(headers=AWAITED, queue=QUEUES[1])
        waits = [(after.id, (Wait(job_key(member.id)), *self.some_waits(data)))]
        blocked = [found for found, state in self.ledger.states.items() if state is JobState.BLOCKED]
        if blocked:
            waits.append((data.draw(st.sampled_from(blocked)), (Wait(job_key(member.id)),)))
        ref = data.draw(st.sampled_from(self.refs)) if is_claimed and self.refs else None
        for again in (False, True) if is_repeat else (False,):
            answer = self.ask(
                lambda driver, again=again: driver.enqueue_after(  # type: ignore[misc]
                    [member, after], Dependencies(waits, ref), is_repeat=again, now=now
                )
            )
            assert (answer is None) is (ref is not None and not self.ledger.owns(ref))
            for one in answer or ():
                self.ledger.stored(one.id, is_new=one.is_new)
        self.waited += [member.id, after.id]

    @precondition(lambda self: self.ledger.owners)
    @rule(data=st.data(), timeout=st.sampled_from([None, None, 0, 60, 3600]))
    def wait(self, data: st.DataObject, timeout: int | None) -> None:
        refs = [ref for ref in self.refs if self.ledger.owns(ref)]
        (made,) = self.outcomes([data.draw(st.sampled_from(refs))], JobState.BLOCKED, 0, counts=False)
        until = None if timeout is None else timedelta(seconds=timeout)
        waits = (
            self.some_waits(data)
            if timeout is None
            else data.draw(st.sampled_from([(), self.some_waits(data)]))
        )
        self.finish([msgspec.structs.replace(made, what="waited", waits=waits, timeout=until)])

    @rule(name=st.sampled_from(SIGNALS), is_repeat=st.booleans())
    def signal(self, name: str, is_repeat: bool) -> None:
        now = self.step()
        self.sent += not is_repeat
        id_ = f"{self.sent}"
        self.ask(lambda driver: driver.signal(name, f'"{id_}"', id=id_, now=now))

    @precondition(lambda self: self.refs)
    @rule(data=st.data(), name=st.sampled_from(SIGNALS), step=st.sampled_from(["one", "two"]))
    def take_signal(self, data: st.DataObject, name: str, step: str) -> None:
        now = self.step()
        for ref in self.some_refs(data):
            taken = self.ask(
                lambda driver, ref=ref: driver.take_signal(ref, name, wanted_by=step, now=now)  # type: ignore[misc]
            )
            assert (taken.answer is Answer.TOOK) is self.ledger.owns(ref)

    @rule(leap=st.sampled_from([0, 0, 0, 60, 3600]))
    def unblock(self, leap: int) -> None:
        self.now += timedelta(seconds=leap)
        now = self.step()
        # Each store decides whether another process may be at work.
        self.ask(
            lambda driver: driver.unblock(now=now),
            promised=lambda found: msgspec.structs.replace(found, is_more=False),
        )

    # -- undo --------------------------------------------------------------------------------------

    @precondition(lambda self: self.ledger.owners)
    @rule(data=st.data(), has_undo=st.sampled_from([True, True, False, None]), forgets=st.booleans())
    def note_undo(self, data: st.DataObject, has_undo: bool | None, forgets: bool) -> None:
        self.note_all(self.some_refs(data), Note(has_undo=has_undo, forgets_cancel=forgets))

    def note_all(self, refs: list[ClaimRef], note: Note) -> None:
        for ref in refs:
            answer = self.ask(lambda driver, ref=ref: driver.note(ref, note))  # type: ignore[misc]
            assert (answer is Answer.TOOK) is self.ledger.owns(ref)

    # -- schedules ---------------------------------------------------------------------------------

    def definition(self, data: st.DataObject) -> Definition:
        job = NewJob(id="", task=TASKS[0], args=f'{{"n":{self.drawn % 3}}}', queue=QUEUES[1])
        return Definition(
            timing=Timing(every=data.draw(st.sampled_from(EVERY))),
            job=job,
            misfire=data.draw(st.sampled_from(Misfire)),
            catch_up=2,
            overlap=data.draw(st.sampled_from(Overlap)),
        )

    @rule(data=st.data(), name=st.sampled_from(NAMES), is_new=st.booleans())
    def put_schedule(self, data: st.DataObject, name: str, is_new: bool) -> None:
        wanted = self.definition(data)
        self.change(name, Put(definition=wanted.text, timing=wanted.timing.key, is_new=is_new))

    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def declare(self, data: st.DataObject, name: str) -> None:
        now, wanted = self.step(), self.definition(data)
        session = NewSession(
            id=self.token(),
            worker="w",
            host="h",
            pid=1,
            release="1",
            queues=QUEUES,
            tasks=TASKS,
            slots=1,
            lease=timedelta(seconds=30),
            schedules=(Declared(name, wanted.text, wanted.timing.key),),
        )
        self.sessions.append(session.id)
        self.ask(lambda driver: driver.start_session(session, now=now))

    @rule(
        name=st.sampled_from(NAMES),
        change=st.sampled_from([Pause(reason="why"), Resume(), Resume(), Remove()]),
    )
    def change_schedule(self, name: str, change: Any) -> None:
        self.change(name, change)

    @rule(name=st.sampled_from(NAMES), is_repeat=st.booleans())
    def trigger(self, name: str, is_repeat: bool) -> None:
        change = Trigger(self.token())
        for _ in range(2 if is_repeat else 1):
            self.change(name, change)

    @rule(leap=st.sampled_from([0, 45, 60, 3600, 3 * 3600]), is_late=st.booleans())
    def tick(self, leap: int, is_late: bool) -> None:
        """All that want a tick; then the same by the same look, which comes too late."""
        self.now += timedelta(seconds=leap)
        now = self.step()
        due = self.ask(lambda driver: driver.due_schedules(now=now)).found
        for _ in range(2 if is_late else 1):
            for row in due:
                self.change(row.name, Tick(definition=row.definition, since=row.last_window))

    @rule()
    def skip(self) -> None:
        for row in self.rows():
            if row.next_at is not None:
                self.change(row.name, Skip(window=row.next_at))

    def change(self, name: str, change: Any) -> Changed:
        now = self.step()
        changed = self.ask(lambda driver: driver.change_schedule(name, change, now=now))
        for run in changed.runs:
            if run.job is not None and run.kind in ("enqueued", "triggered"):
                self.known.append(NewJob(id=run.job, task=TASKS[0], args="{}", is_given_id=True))
                self.ledger.stored(run.job, is_new=True)
        return changed

    def rows(self) -> tuple[ScheduleRow, ...]:
        now = self.now
        return self.ask(lambda driver: driver.schedules(now=now)).found

    @invariant()
    def every_schedule_is_as_it_must_be(self) -> None:
        for row in self.rows():
            runs = self.ask(lambda driver, row=row: driver.schedule_runs(row.name))  # type: ignore[misc]
            assert len({run.window for run in runs}) == len(runs), "a window has one run"

    @invariant()
    def every_window_has_one_job(self) -> None:
        jobs = [job for job in self.jobs().values() if WINDOW_HEADER in job.headers]
        assert len({job.id for job in jobs}) == len(jobs)


def walk(target: Target, *, reference: bool, settings: hypothesis.settings) -> None:
    """Take random walks on the target; raises what the first bad one raised."""

    class Bound(TimeMachine):
        def __init__(self) -> None:
            super().__init__(target, reference=reference)

    run_state_machine_as_test(Bound, settings=settings)

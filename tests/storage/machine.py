"""A random walk over the verbs, with a driver held to invariants and, where wanted, to the reference.

`Ledger` (ledger.py) holds what must be true of any store. `StoreMachine` with a reference also compares
every answer and, after each step, every job, session and event (both_stores.py). What workers do is in
worker_rules.py, with what time brings; producers and operators are here.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import hypothesis
import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.storage.both_stores import (
    KEYS,
    MICROSECOND,
    QUEUES,
    TASKS,
    delays,
    ranked,
    seconds,
)
from tests.storage.gated import GATES
from tests.storage.worker_rules import WorkerRules
from winch.core.gates.uses import (
    FIFO,
    GateUse,
    with_gates,
)
from winch.core.lifecycle import TRANSITIONS, JobState
from winch.core.policy.queue_settings import QueueRule
from winch.core.policy.unique import Duplicate
from winch.storage.params import (
    Acted,
    JobFilter,
)
from winch.testing.conformance import Target


class StoreMachine(WorkerRules):
    """The walk. `target` gives the driver; with `reference` each step is compared with memory."""

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
        self.ask(
            lambda driver: driver.list_jobs(JobFilter(states=tuple(states), limit=3)),
            promised=lambda page: msgspec.structs.replace(page, jobs=tuple(ranked(page.jobs))),
        )
        self.ask(lambda driver: driver.cancels(self.sessions), key=lambda ref: ref.id)
        counts = self.ask(lambda driver: driver.counts())
        assert counts[JobState.RUNNING] == len(self.ledger.owners)
        assert sum(counts.values()) == len(self.ledger.states)


def walk(target: Target, *, reference: bool, settings: hypothesis.settings) -> None:
    """Take random walks on the target; raises what the first bad one raised."""

    class Bound(StoreMachine):
        def __init__(self) -> None:
            super().__init__(target, reference=reference)

    run_state_machine_as_test(Bound, settings=settings)

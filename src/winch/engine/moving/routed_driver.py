"""Two stores as one, for producers and workers of the store that is left.

Every verb goes to the source but for those that a move concerns: an enqueue goes where the route says,
and a job is looked for in both stores. What a running job does for its claim stays in the source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar, cast

from winch.core.job import NO_CHANGES, JobRecord, RetryChanges
from winch.core.lifecycle import JobState
from winch.engine.base.operation import Sleep
from winch.engine.moving.plans import (
    On,
    Plan,
    answers_there,
    begun_in,
    flows_of,
    is_bound,
    is_led,
    parcels_now,
    stored_in,
)
from winch.engine.moving.route import MoveStep, Route
from winch.engine.moving.routed_settings import RoutedSettings
from winch.engine.moving.routing import PAUSE
from winch.storage.decide.unique import Holder
from winch.storage.decide.waits import Dependencies, Sent
from winch.storage.params import (
    Acted,
    Ending,
    Enqueued,
    Facts,
    JobFilter,
    NewJob,
    Page,
)
from winch.storage.parcels import Parcel
from winch.storage.protocol import Driver
from winch.storage.verbs import Now, Verb

# A job that waits for a signal, or may do so when it runs.
ONE_LIVE = JobFilter(states=tuple(state for state in JobState if not state.is_final), limit=1)
T = TypeVar("T")


class RoutedDriver(RoutedSettings):
    """A driver that knows the store to which its jobs may move."""

    # -- enqueue -----------------------------------------------------------------------------------

    def enqueue(
        self, jobs: Sequence[NewJob], *, is_repeat: bool = False, now: Now = None
    ) -> Verb[list[Enqueued]]:
        plain = self.source.enqueue(jobs, is_repeat=is_repeat, now=now)
        if self._is_idle and not is_repeat and not any(map(is_bound, jobs)):
            return plain
        return self._routed(plain, lambda: self._enqueue(jobs, is_repeat, now))

    def _enqueue(
        self, jobs: Sequence[NewJob], is_repeat: bool, now: datetime | None
    ) -> Plan[list[Enqueued]]:
        """Store each job where the route leads. Those of which it matters are fenced: a store that the
        route has left by then refuses them, and the route is read again."""
        is_fenced = is_repeat or any(map(is_bound, jobs))
        stored: dict[str, Enqueued] = {}
        left = list(jobs)
        refused: int | None = None
        while left:
            route = yield from self._settled() if is_fenced else self._current()
            here: list[NewJob] = []
            there: list[NewJob] = []
            to = other = self.source
            if route is not None and (route.step.to_target or route.step.is_back):
                to, other = self._both(route)
                here = [job for job in left if is_led(job, route)]
                begun = yield from begun_in(other, flows_of(here))
                there = [job for job in here if flows_of([job]) & begun]
                here = [job for job in here if not flows_of([job]) & begun]
                decided = yield from self._decided(here, other, route, is_repeat=is_repeat)
                if decided is None:
                    yield Sleep(PAUSE)
                    continue
                stored |= decided
            ids = {job.id for job in (*here, *there)}
            epoch = self._epoch_of(route) if is_fenced else None
            if refused is not None and epoch == refused:
                yield Sleep(PAUSE)
            for store, some in (
                (to, [job for job in here if job.id not in stored]),
                (other, there),
                (self.source, [job for job in left if job.id not in ids]),
            ):
                if not some:
                    continue
                fence = None if some is there else epoch  # a flow that has begun stays together
                answers = yield from stored_in(store, some, fence, is_repeat=is_repeat, now=now)
                if answers is None:
                    # In a cluster some of them may be stored, so the next call repeats them.
                    self._read_at, is_repeat, refused = float("-inf"), True, epoch
                elif len(some) == len(jobs):
                    return answers
                else:
                    stored |= {job.id: answer for job, answer in zip(some, answers, strict=True)}
            left = [job for job in left if job.id not in stored]
        return [stored[job.id] for job in jobs]

    def _epoch_of(self, route: Route | None) -> int | None:
        """What a fenced call gives that acts on this route; None: it needs no fence."""
        if route is None:
            return self._idle_epoch
        return None if route.step is MoveStep.DONE else route.epoch

    def _decided(
        self, jobs: Sequence[NewJob], other: Driver, route: Route, *, is_repeat: bool
    ) -> Plan[dict[str, Enqueued] | None]:
        """The answers for jobs that are, or whose keys are held, where new jobs do not go. A job goes
        from there to the open parcel and then to `to`: it is looked for in this order, and `to` decides
        last. None: a holder must come first that is still on its way."""
        ids = [job.id for job in jobs if job.is_given_id or is_repeat]
        keys = [job.unique_key for job in jobs if job.unique_key is not None]
        if not ids and not keys:
            return {}
        known: set[str] = set()
        held: dict[str, Holder] = {}
        if ids:
            found: list[Ending | None] = yield On(other, other.results(ids))
            known = {one for one, ending in zip(ids, found, strict=True) if ending is not None}
        if keys:
            holders: list[Holder | None] = yield On(other, other.key_holders(keys))
            held = {key: holder for key, holder in zip(keys, holders, strict=True) if holder is not None}
        parcel: Parcel = yield On(other, other.move_out(parcels_now(route), 0, ()))
        known |= {job.id for job in parcel.jobs}
        held |= {
            job.unique_key: Holder(job.id, job.state)
            for job in parcel.jobs
            if job.unique_key is not None and not job.state.is_final
        }
        return answers_there(jobs, known, held)

    def enqueue_after(
        self, jobs: Sequence[NewJob], after: Dependencies, *, is_repeat: bool = False, now: Now = None
    ) -> Verb[list[Enqueued] | None]:
        plain = self.source.enqueue_after(jobs, after, is_repeat=is_repeat, now=now)
        if after.claim is not None or self._is_idle:
            return plain

        def plan() -> Plan[list[Enqueued] | None]:
            route = yield from self._settled()
            to = self.source
            if route is not None and all(is_led(job, route) for job in jobs):
                to, other = self._both(route)
                # A flow that has begun goes on where it is, and so do the callbacks of its batch.
                awaiting = {waiting for waiting, _ in after.waits} - {job.id for job in jobs}
                there: list[Ending | None] = []
                if awaiting:
                    there = yield On(other, other.results([*awaiting]))
                if any(there) or (yield from begun_in(other, flows_of(jobs))):
                    to = other
            verb = to.enqueue_after(jobs, after, is_repeat=is_repeat, now=now)
            answers: list[Enqueued] | None = yield On(to, verb)
            return answers

        return self._routed(plain, plan)

    def signal(self, name: str, payload: str, *, id: str, now: Now = None) -> Verb[Sent]:
        plain = self.source.signal(name, payload, id=id, now=now)
        if self._is_idle:
            return plain

        def plan() -> Plan[Sent]:
            """To the store where jobs that wait for it may be: during a move that may be both."""
            route = yield from self._settled()
            to, other = (self.source, self.target) if route is None else self._both(route)
            first: Sent = yield On(to, to.signal(name, payload, id=id, now=now))
            if route is None or route.step in (MoveStep.ANNOUNCED, MoveStep.DONE):
                return first
            page: Page = yield On(other, other.list_jobs(ONE_LIVE))
            if not page.jobs:
                return first
            second: Sent = yield On(other, other.signal(name, payload, id=id, now=now))
            return second if first.is_new else first

        return self._routed(plain, plan)

    # -- jobs by id --------------------------------------------------------------------------------

    def get(self, ids: Sequence[str]) -> Verb[list[JobRecord | None]]:
        return self._by_id(self.source.get(ids), ids, lambda s, some: s.get(some), _is_some)

    def results(self, ids: Sequence[str]) -> Verb[list[Ending | None]]:
        return self._by_id(self.source.results(ids), ids, lambda s, some: s.results(some), _is_some)

    def explain(self, job_id: str, *, now: Now = None) -> Verb[Facts | None]:
        plain = self.source.explain(job_id, now=now)

        def plan() -> Plan[Facts | None]:
            found: Facts | None = yield On(self.source, plain)

            def look(store: Driver) -> Plan[bool]:
                nonlocal found
                found = yield On(store, store.explain(job_id, now=now))
                return found is not None

            if found is None:
                yield from self._sought(look, lambda job: job.id == job_id)
            return found

        return self._routed(plain, plan)

    def cancel(
        self, ids: Sequence[str], *, by: str, reason: str | None = None, now: Now = None
    ) -> Verb[list[Acted]]:
        return self._acted(ids, lambda s, some: s.cancel(some, by=by, reason=reason, now=now))

    def retry(
        self, ids: Sequence[str], *, by: str, changes: RetryChanges = NO_CHANGES, now: Now = None
    ) -> Verb[list[Acted]]:
        return self._acted(ids, lambda s, some: s.retry(some, by=by, changes=changes, now=now))

    def delete(self, ids: Sequence[str], *, by: str, now: Now = None) -> Verb[list[Acted]]:
        return self._acted(ids, lambda s, some: s.delete(some, by=by, now=now))

    def move(self, ids: Sequence[str], queue: str, *, by: str, now: Now = None) -> Verb[list[Acted]]:
        return self._acted(ids, lambda s, some: s.move(some, queue, by=by, now=now))

    def _acted(
        self, ids: Sequence[str], act: Callable[[Driver, Sequence[str]], Verb[list[Acted]]]
    ) -> Verb[list[Acted]]:
        return self._by_id(act(self.source, ids), ids, act, lambda one: one.state is not None)

    def release_key(self, key: str, *, by: str, now: Now = None) -> Verb[str | None]:
        plain = self.source.release_key(key, by=by, now=now)

        def plan() -> Plan[str | None]:
            holder: str | None = yield On(self.source, plain)

            def look(store: Driver) -> Plan[bool]:
                nonlocal holder
                holder = yield On(store, store.release_key(key, by=by, now=now))
                return holder is not None

            if holder is None:
                yield from self._sought(look, lambda job: job.unique_key == key)
            return holder

        return self._routed(plain, plan)


def _is_some(one: object) -> bool:
    return one is not None


def is_routed(driver: Driver) -> bool:
    """Whether this driver knows both stores of a move."""
    return isinstance(cast(object, driver), RoutedDriver)


def routed(connected: Callable[[str], Driver], url: str, move_to: str | None) -> Driver:
    """The driver of a store, for a process that may know where its jobs move."""
    source = connected(url)
    if move_to is None:
        return source
    target = connected(move_to)
    if source.describe() == target.describe():  # the move is over, or a command has the new URL
        return source
    return cast(Driver, RoutedDriver(source, target))

"""Two stores as one, for producers and workers of the store that is left.

Every verb goes to the source but for those that a move concerns: an enqueue goes where the route says,
and a job is looked for in both stores. What a running job does for its claim stays in the source.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar, cast

from winch.core.errors import ConfigError, StorageError
from winch.core.job import NO_CHANGES, JobRecord, RetryChanges
from winch.core.lifecycle import JobState
from winch.engine.base.operation import Sleep
from winch.engine.moving.families import FLOW_BOOKS
from winch.engine.moving.plans import (
    On,
    Plan,
    RoutedVerb,
    answers_there,
    begun_in,
    flows_of,
    is_bound,
    is_led,
    parcels_now,
    plain_of,
    sent_to,
    stored_in,
)
from winch.engine.moving.route import IDLE_LAG, LAG, LONGEST_HOLD, MoveStep, Route, look, swap
from winch.storage.decide.unique import Holder
from winch.storage.decide.waits import Sent
from winch.storage.kv_records import KvRecord
from winch.storage.params import (
    Acted,
    ClaimRef,
    Ending,
    Enqueued,
    Facts,
    JobFilter,
    NewJob,
    Page,
    Wait,
)
from winch.storage.parcels import Parcel
from winch.storage.protocol import Driver
from winch.storage.verbs import Sending, Unhurried, Verb

T = TypeVar("T")
A = TypeVar("A")
log: logging.Logger = logging.getLogger("winch")
# How long a caller waits before it looks again for a job that is on its way, or at a held route.
PAUSE = 0.01
ONE_BLOCKED = JobFilter(states=(JobState.BLOCKED,), limit=1)
# So often a job is looked for that is in neither store: it is on its way for a moment only.
LOOKS = 500


class RoutedDriver:
    """A driver that knows the store to which its jobs may move."""

    def __init__(
        self, source: Driver, target: Driver, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.source = source
        self.target = target
        self._monotonic = monotonic
        self._route: Route | None = None
        self._read_at = float("-inf")
        self._hold: tuple[str, float] | None = None
        self._is_target: str | None = None
        self._is_strange = False
        self._has_reached = False
        # What fenced calls give while no move is under way. During one the route has it.
        self._idle_epoch = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    # -- running -----------------------------------------------------------------------------------

    def run(self, verb: Verb[T]) -> T:
        if not isinstance(verb, RoutedVerb):
            return self.source.run(verb)
        answer: Any = None
        error: Exception | None = None
        plan = verb.plan()
        while True:
            try:
                step = plan.throw(error) if error is not None else plan.send(answer)
            except StopIteration as stop:
                result: T = stop.value
                return result
            answer, error = None, None
            try:
                if isinstance(step, Sleep):
                    time.sleep(step.seconds)
                else:
                    answer = step.driver.run(step.verb)
            except Exception as raised:  # the plan decides
                error = raised

    async def arun(self, verb: Verb[T]) -> T:
        if not isinstance(verb, RoutedVerb):
            return await self.source.arun(verb)
        import asyncio

        answer: Any = None
        error: Exception | None = None
        plan = verb.plan()
        while True:
            try:
                step = plan.throw(error) if error is not None else plan.send(answer)
            except StopIteration as stop:
                result: T = stop.value
                return result
            answer, error = None, None
            try:
                if isinstance(step, Sleep):
                    await asyncio.sleep(step.seconds)
                else:
                    answer = await step.driver.arun(step.verb)
            except Exception as raised:  # the plan decides
                error = raised

    def sending(self, verb: Verb[T]) -> Sending[T]:
        return Unhurried(self.run, verb) if isinstance(verb, RoutedVerb) else self.source.sending(verb)

    def run_on(self, conn: object, verb: Verb[T]) -> T:
        """In a caller's transaction everything is in the source: the next sweep moves its jobs."""
        return self.source.run_on(conn, plain_of(verb))

    async def arun_on(self, conn: object, verb: Verb[T]) -> T:
        return await self.source.arun_on(conn, plain_of(verb))

    def close(self) -> None:
        self.source.close()
        self.target.close()

    async def aclose(self) -> None:
        await self.source.aclose()
        await self.target.aclose()

    # -- the route ---------------------------------------------------------------------------------

    @property
    def _is_idle(self) -> bool:
        """Whether no move was under way a moment ago."""
        return self._route is None and self._monotonic() - self._read_at < IDLE_LAG

    def _current(self) -> Plan[Route | None]:
        """The route, as new as it must be. One that is done stays so."""
        route = self._route
        if route is not None and route.step is MoveStep.DONE:
            return route
        if self._monotonic() - self._read_at >= (IDLE_LAG if route is None else LAG):
            began = self._monotonic()
            yield from self._reached()
            route, _, epoch = yield from sent_to(self.source, look(self.source))
            if route is not None and route.store != self._is_target:
                _, self._is_target, _ = yield from sent_to(self.target, look(self.target))
                if route.store != self._is_target:
                    self._warn(route)
                    route = None
            if route is None:
                self._idle_epoch = epoch
            self._route, self._read_at = route, began
        return route

    def _reached(self) -> Plan[None]:
        """Open a connection to the target with the first call, so that none waits for it in a move."""
        if self._has_reached:
            return
        self._has_reached = True
        try:
            _, self._is_target, _ = yield from sent_to(self.target, look(self.target))
        except StorageError as error:
            log.warning("move_to is set, and its store cannot be used yet: %s", error)

    def _warn(self, route: Route) -> None:
        if not self._is_strange:
            self._is_strange = True
            log.error(
                "jobs of %s move to %s, but move_to names another store: new jobs stay here until the "
                "move takes them along; set move_to to its target",
                self.source.describe(),
                route.address,
            )

    def _settled(self) -> Plan[Route | None]:
        """The route once it is not held. A hold that lasts is of a mover that died: it is taken back."""
        while True:
            route = yield from self._current()
            if route is None or not route.step.is_held:
                self._hold = None
                return route
            if self._hold is None or self._hold[0] != route.nonce:
                self._hold = route.nonce, self._monotonic()
            if self._monotonic() - self._hold[1] > LONGEST_HOLD:
                back = MoveStep.OPEN if route.step.is_back else MoveStep.ANNOUNCED
                yield from sent_to(self.source, swap(self.source, route, route.changed(step=back)))
            yield Sleep(PAUSE)
            self._read_at = float("-inf")

    def _both(self, route: Route) -> tuple[Driver, Driver]:
        """The store that new jobs go to, and the other one."""
        if route.step.to_target:
            return self.target, self.source
        return self.source, self.target

    # -- enqueue -----------------------------------------------------------------------------------

    def enqueue(
        self, jobs: Sequence[NewJob], *, is_repeat: bool = False, now: datetime | None = None
    ) -> Verb[list[Enqueued]]:
        plain = self.source.enqueue(jobs, is_repeat=is_repeat, now=now)
        if self._is_idle and not is_repeat and not any(map(is_bound, jobs)):
            return plain
        return self._routed(plain, lambda: self._enqueue(jobs, is_repeat, now))

    def _routed(self, plain: Verb[T], plan: Callable[[], Plan[T]]) -> Verb[T]:
        return RoutedVerb(plain.name, plain.steps, plain.is_read, plan=plan, plain=plain)

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
        self,
        jobs: Sequence[NewJob],
        waits: Sequence[tuple[str, Sequence[Wait]]],
        *,
        claim: ClaimRef | None = None,
        is_repeat: bool = False,
        now: datetime | None = None,
    ) -> Verb[list[Enqueued] | None]:
        plain = self.source.enqueue_after(jobs, waits, claim=claim, is_repeat=is_repeat, now=now)
        if claim is not None or self._is_idle:
            return plain

        def plan() -> Plan[list[Enqueued] | None]:
            route = yield from self._settled()
            to = self.source
            if route is not None and all(is_led(job, route) for job in jobs):
                to, other = self._both(route)
                # A flow that has begun goes on where it is, and so do the callbacks of its batch.
                awaiting = {waiting for waiting, _ in waits} - {job.id for job in jobs}
                there: list[Ending | None] = []
                if awaiting:
                    there = yield On(other, other.results([*awaiting]))
                if any(there) or (yield from begun_in(other, flows_of(jobs))):
                    to = other
            verb = to.enqueue_after(jobs, waits, is_repeat=is_repeat, now=now)
            answers: list[Enqueued] | None = yield On(to, verb)
            return answers

        return self._routed(plain, plan)

    def signal(self, name: str, payload: str, *, id: str, now: datetime | None = None) -> Verb[Sent]:
        plain = self.source.signal(name, payload, id=id, now=now)
        if self._is_idle:
            return plain

        def plan() -> Plan[Sent]:
            """To the store where jobs that wait for it may be: during a move that may be both."""
            route = yield from self._settled()
            to, other = (self.source, self.target) if route is None else self._both(route)
            first: Sent = yield On(to, to.signal(name, payload, id=id, now=now))
            if route is None or route.step is MoveStep.ANNOUNCED:
                return first
            page: Page = yield On(other, other.list_jobs(ONE_BLOCKED))
            if not page.jobs:
                return first
            second: Sent = yield On(other, other.signal(name, payload, id=id, now=now))
            return second if first.is_new else first

        return self._routed(plain, plan)

    def kv_put(self, records: Sequence[KvRecord], *, now: datetime | None = None) -> Verb[None]:
        plain = self.source.kv_put(records, now=now)
        ours = [record for record in records if record.book in FLOW_BOOKS]
        if not ours or self._is_idle:
            return plain

        def plan() -> Plan[None]:
            """What is kept about a flow is in both stores: its members are in either one."""
            yield On(self.source, plain)
            route = yield from self._current()
            if route is not None and route.step.may_be_elsewhere:
                yield On(self.target, self.target.kv_put(ours, now=now))

        return self._routed(plain, plan)

    # -- jobs by id --------------------------------------------------------------------------------

    def get(self, ids: Sequence[str]) -> Verb[list[JobRecord | None]]:
        return self._by_id(self.source.get(ids), ids, lambda s, some: s.get(some), _is_some)

    def results(self, ids: Sequence[str]) -> Verb[list[Ending | None]]:
        return self._by_id(self.source.results(ids), ids, lambda s, some: s.results(some), _is_some)

    def explain(self, job_id: str, *, now: datetime | None = None) -> Verb[Facts | None]:
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

    def _sought(
        self, look: Callable[[Driver], Plan[bool]], is_sought: Callable[[JobRecord], bool]
    ) -> Plan[None]:
        """Look in both stores in the order in which jobs pass them, until `look` answers True or nothing
        of what is sought is on its way between them."""
        for _ in range(LOOKS):
            if (route := (yield from self._current())) is None:
                return
            to, other = self._both(route)
            if (yield from look(other)):
                return
            parcel: Parcel = yield On(other, other.move_out(parcels_now(route), 0, ()))
            if (yield from look(to)) or not any(map(is_sought, parcel.jobs)):
                return
            yield Sleep(PAUSE)

    def _by_id(
        self,
        plain: Verb[list[A]],
        ids: Sequence[str],
        read: Callable[[Driver, Sequence[str]], Verb[list[A]]],
        is_there: Callable[[A], bool],
    ) -> Verb[list[A]]:
        """The answers about jobs, each from the store that has it."""

        def plan() -> Plan[list[A]]:
            found: list[A] = yield On(self.source, plain)

            left = [place for place, one in enumerate(found) if not is_there(one)]

            def look(store: Driver) -> Plan[bool]:
                more: list[A] = yield On(store, read(store, [ids[place] for place in left]))
                for place, one in zip(left, more, strict=True):
                    found[place] = one
                left[:] = [place for place in left if not is_there(found[place])]
                return not left

            if left:
                yield from self._sought(look, lambda job: job.id in {ids[place] for place in left})
            return found

        return self._routed(plain, plan)

    def cancel(
        self, ids: Sequence[str], *, by: str, reason: str | None = None, now: datetime | None = None
    ) -> Verb[list[Acted]]:
        return self._acted(ids, lambda s, some: s.cancel(some, by=by, reason=reason, now=now))

    def retry(
        self,
        ids: Sequence[str],
        *,
        by: str,
        changes: RetryChanges = NO_CHANGES,
        now: datetime | None = None,
    ) -> Verb[list[Acted]]:
        return self._acted(ids, lambda s, some: s.retry(some, by=by, changes=changes, now=now))

    def delete(self, ids: Sequence[str], *, by: str, now: datetime | None = None) -> Verb[list[Acted]]:
        return self._acted(ids, lambda s, some: s.delete(some, by=by, now=now))

    def move(
        self, ids: Sequence[str], queue: str, *, by: str, now: datetime | None = None
    ) -> Verb[list[Acted]]:
        return self._acted(ids, lambda s, some: s.move(some, queue, by=by, now=now))

    def _acted(
        self, ids: Sequence[str], act: Callable[[Driver, Sequence[str]], Verb[list[Acted]]]
    ) -> Verb[list[Acted]]:
        return self._by_id(act(self.source, ids), ids, act, lambda one: one.state is not None)

    def release_key(self, key: str, *, by: str, now: datetime | None = None) -> Verb[str | None]:
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


def routed(connected: Callable[[str], Driver], url: str, move_to: str | None) -> Driver:
    """The driver of a store, for a process that may know where its jobs move."""
    source = connected(url)
    if move_to is None:
        return source
    target = connected(move_to)
    if source.describe() == target.describe():
        raise ConfigError(f"move_to names the store that url names: {source.describe()}")
    return cast(Driver, RoutedDriver(source, target))

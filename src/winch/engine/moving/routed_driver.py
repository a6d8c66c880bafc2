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
from winch.core.flow import FLOW_HEADER, tag_of
from winch.core.job import NO_CHANGES, JobRecord, RetryChanges
from winch.core.lifecycle import JobState
from winch.engine.base.operation import Sleep
from winch.engine.moving.plans import (
    On,
    Plan,
    RoutedVerb,
    answers_there,
    filled,
    parcels_now,
    plain_of,
    sent_to,
)
from winch.engine.moving.route import IDLE_LAG, LAG, LONGEST_HOLD, MoveStep, Route, look, swap
from winch.storage.decide.unique import Holder
from winch.storage.decide.waits import ALL, AWAITED_HEADER, Sent
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
from winch.storage.verbs import Now, Sending, Unhurried, Verb

T = TypeVar("T")
log: logging.Logger = logging.getLogger("winch")
# How long a caller waits before it looks again for a job that is on its way, or at a held route.
PAUSE = 0.01
# A job that waits for a signal, or may do so when it runs.
ONE_LIVE = JobFilter(states=tuple(state for state in JobState if not state.is_final), limit=1)
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
                back = MoveStep.FREE if route.step.is_back else MoveStep.ANNOUNCED
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
        self, jobs: Sequence[NewJob], *, is_repeat: bool = False, now: Now = None
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
        while left:
            route = yield from self._settled() if is_fenced else self._current()
            here: list[NewJob] = []
            there: list[NewJob] = []
            to = other = self.source
            if route is not None and (route.step.to_target or route.step.is_back):
                to, other = self._both(route)
                here = [job for job in left if _is_led(job, route)]
                begun = yield from _begun_in(other, flows_of(here))
                there = [job for job in here if flows_of([job]) & begun]
                here = [job for job in here if not flows_of([job]) & begun]
                decided = yield from self._decided(here, other, route, is_repeat=is_repeat)
                if decided is None:
                    yield Sleep(PAUSE)
                    continue
                stored |= decided
            ids = {job.id for job in (*here, *there)}
            epoch = self._epoch_of(route) if is_fenced else None
            for store, some in (
                (to, [job for job in here if job.id not in stored]),
                (other, there),
                (self.source, [job for job in left if job.id not in ids]),
            ):
                if not some:
                    continue
                fence = None if some is there else epoch  # a flow that has begun stays together
                answers = yield from _stored(store, some, fence, is_repeat=is_repeat, now=now)
                if answers is None:
                    # In a cluster some of them may be stored, so the next call repeats them.
                    self._read_at, is_repeat = float("-inf"), True
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
        now: Now = None,
    ) -> Verb[list[Enqueued] | None]:
        plain = self.source.enqueue_after(jobs, waits, claim=claim, is_repeat=is_repeat, now=now)
        if claim is not None or self._is_idle:
            return plain

        def plan() -> Plan[list[Enqueued] | None]:
            route = yield from self._settled()
            to = self.source
            if route is not None and all(_is_led(job, route) for job in jobs):
                to, other = self._both(route)
                # A flow that has begun goes on where it is, and so do the callbacks of its batch.
                awaiting = {waiting for waiting, _ in waits} - {job.id for job in jobs}
                there: list[Ending | None] = []
                if awaiting:
                    there = yield On(other, other.results([*awaiting]))
                if any(there) or (yield from _begun_in(other, flows_of(jobs))):
                    to = other
            verb = to.enqueue_after(jobs, waits, is_repeat=is_repeat, now=now)
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
        return self._sought(ids, lambda store, some: store.get(some), _is_absent)

    def results(self, ids: Sequence[str]) -> Verb[list[Ending | None]]:
        return self._sought(ids, lambda store, some: store.results(some), _is_absent)

    def explain(self, job_id: str, *, now: datetime | None = None) -> Verb[Facts | None]:
        def plan() -> Plan[Facts | None]:
            def ask(store: Driver, some: Sequence[str]) -> Plan[list[Facts | None]]:
                found: Facts | None = yield On(store, store.explain(job_id, now=now))
                return [found]

            [facts] = yield from self._looked_for([job_id], ask, _is_absent)
            return facts

        return self._routed(self.source.explain(job_id, now=now), plan)

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

    def _acted(
        self, ids: Sequence[str], act: Callable[[Driver, Sequence[str]], Verb[list[Acted]]]
    ) -> Verb[list[Acted]]:
        return self._sought(ids, act, lambda acted: acted.state is None)

    def _sought(
        self,
        ids: Sequence[str],
        verb: Callable[[Driver, Sequence[str]], Verb[list[T]]],
        is_absent: Callable[[T], bool],
    ) -> Verb[list[T]]:
        def ask(store: Driver, some: Sequence[str]) -> Plan[list[T]]:
            found: list[T] = yield On(store, verb(store, some))
            return found

        return self._routed(verb(self.source, ids), lambda: self._looked_for(ids, ask, is_absent))

    def _looked_for(
        self,
        ids: Sequence[str],
        ask: Callable[[Driver, Sequence[str]], Plan[list[T]]],
        is_absent: Callable[[T], bool],
    ) -> Plan[list[T]]:
        """The answers for these jobs, wherever they are. A job goes from one store to the open parcel
        and then to the other, and is looked for in this order, so that it is not missed."""
        found = yield from ask(self.source, ids)
        left = [place for place, one in enumerate(found) if is_absent(one)]
        route = (yield from self._current()) if left else None
        for turn in range(LOOKS):
            if not left or route is None:
                break
            to, other = self._both(route)
            if turn or other is not self.source:  # the source has just been asked
                left = yield from filled(found, left, ids, ask, other, is_absent)
            parcel: Parcel = yield On(other, other.move_out(parcels_now(route), 0, ()))
            left = yield from filled(found, left, ids, ask, to, is_absent)
            if {ids[place] for place in left} & {job.id for job in parcel.jobs}:
                yield Sleep(PAUSE)
            elif not left or (route := (yield from self._turned(route))) is None:
                break
        return found

    def _turned(self, route: Route) -> Plan[Route | None]:
        """The route by which to look once more; None where it still leads as it did."""
        if route.step is MoveStep.DONE:
            return None
        self._read_at = float("-inf")
        now = yield from self._current()
        return None if now is None or self._both(now) == self._both(route) else now


def _is_absent(one: object) -> bool:
    return one is None


def is_bound(job: NewJob) -> bool:
    """Whether it matters to which store the job goes: it has a key, a place in an order, or a given id,
    which one store must decide on."""
    return job.unique_key is not None or job.fifo is not None or job.is_given_id


def flows_of(jobs: Sequence[NewJob]) -> set[str]:
    """The flows that these jobs are members or callbacks of."""
    return {job.headers[FLOW_HEADER] for job in jobs if job.headers and FLOW_HEADER in job.headers}


def _is_led(job: NewJob, route: Route) -> bool:
    """Whether the job goes where the route leads. A child goes where its parent runs: workers of this
    process claim from the source alone."""
    is_child = bool(job.headers) and not job.headers.get(AWAITED_HEADER, ALL).startswith(ALL)
    return not is_child and route.scope.covers(job.queue, job.tenant)


def _begun_in(store: Driver, flows: set[str]) -> Plan[set[str]]:
    """Those of the flows that have jobs in this store."""
    found = set()
    for flow in sorted(flows):
        for tag in (tag_of(flow), f"{tag_of(flow)}:callback"):
            page: Page = yield On(store, store.list_jobs(JobFilter(tag=tag, limit=1)))
            if page.jobs:
                found.add(flow)
    return found


def _stored(
    store: Driver, jobs: Sequence[NewJob], epoch: int | None, *, is_repeat: bool, now: datetime | None
) -> Plan[list[Enqueued] | None]:
    """The answers of this store; None: it refuses jobs of so old a route."""
    answers: list[Enqueued] | None
    if epoch is None:
        answers = yield On(store, store.enqueue(jobs, is_repeat=is_repeat, now=now))
    else:
        answers = yield On(store, store.enqueue_fenced(jobs, epoch, is_repeat=is_repeat, now=now))
    return answers


def routed(connected: Callable[[str], Driver], url: str, move_to: str | None) -> Driver:
    """The driver of a store, for a process that may know where its jobs move."""
    source = connected(url)
    if move_to is None:
        return source
    target = connected(move_to)
    if source.describe() == target.describe():
        raise ConfigError(f"move_to names the store that url names: {source.describe()}")
    return cast(Driver, RoutedDriver(source, target))

"""Claims jobs for the free slots and a few ahead; waits for the bell when there are none.

Each claim call draws a new token. When its answer is lost the token is given up, never used again:
the jobs it may have taken are released by `give_up`, now and at every beat, because the claim may
still be on its way.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol, TypeVar

from winch.core.errors import StorageError, StorageUnavailable
from winch.core.job import Claim
from winch.core.values.ids import random_id
from winch.engine.base.log import log
from winch.engine.base.service import Service, polling
from winch.engine.worker.queues.bounds import QueueBounds
from winch.engine.worker.queues.order import QueueOrder
from winch.storage.params import Answer, ClaimParams, ClaimRef, Finish
from winch.storage.protocol import Bell, ClaimingBell, DeliveringBell, Driver
from winch.storage.verbs import Verb

T = TypeVar("T")
# What rings is one job mostly. A claim that waits for it asks for few, which costs some stores less than
# one by the hundred; where more has come, the next claim follows at once and asks for all there is room
# for.
RUNG = 32


class JobTaker(Protocol):
    """What a fetcher claims for: the slots of a worker."""

    @property
    def session(self) -> str: ...

    def room(self, asked: int = 0) -> int:
        """How many jobs to claim now, beside so many that an unanswered claim may bring."""
        ...

    def space(self, asked: int = 0) -> int:
        """The same, however few they are."""
        ...

    def free(self) -> int:
        """How many slots are free."""
        ...

    def deliver(self, claims: Sequence[Claim], sent: float) -> None:
        """Take jobs whose claim was sent at this moment."""
        ...

    def answered(self, seconds: float) -> None:
        """A claim took this long to be answered."""
        ...

    async def found_nothing(self) -> bool:
        """There was nothing to claim. True: claim again at once."""
        ...

    @property
    def is_empty(self) -> bool:
        """Whether no job waits or runs."""
        ...


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """What a fetcher claims. `tasks`: None is any. `is_gated`: some of the tasks have gates.
    `waits_in_store`: a claim may wait in the store until there is a job for it. `at_once`: how many jobs
    run at once; None where one call of a handler takes several jobs."""

    order: QueueOrder
    tasks: Sequence[str] | None
    poll: float
    is_gated: bool = False
    waits_in_store: bool = False
    at_once: int | None = None


class Fetcher(Service):
    name = "fetcher"

    def __init__(
        self,
        driver: Driver,
        settings: FetchSettings,
        taker: JobTaker,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        random_bytes: Callable[[int], bytes] = os.urandom,
        bounds: QueueBounds | None = None,
    ) -> None:
        """`bounds`: what this worker bounds for single queues."""
        super().__init__()
        order = settings.order
        self._bounds = bounds
        self.driver = driver
        self._order = order
        self._tasks = None if settings.tasks is None else tuple(settings.tasks)
        self._poll = settings.poll
        self._at_once = settings.at_once
        self._taker = taker
        # Jobs under a scope are claimed for free slots only. A worker whose tasks have gates always
        # looks for them. Another one checks now and then whether jobs with a FIFO key or a tenant were
        # stored, so that claims of plain jobs stay as they are.
        self._is_gated = settings.is_gated
        self._sees_gated = self._is_gated
        self._looked_at = float("-inf")
        self.monotonic = monotonic
        self._random_bytes = random_bytes
        # Of the driver itself: a wrapper around one, to watch or disturb it, sees every claim.
        claiming = getattr(type(driver), "claiming_bell", None) if settings.waits_in_store else None
        self._bell: Bell = (
            driver.bell(order.names) if claiming is None else claiming(driver, order.names)
        )
        # A claim that waits in the store is as old as its sending when its jobs come.
        self._waits_in_store = isinstance(self._bell, ClaimingBell)
        self._stays_armed = isinstance(self._bell, ClaimingBell) and self._bell.stays_armed
        if isinstance(self._bell, DeliveringBell):
            self._bell.on_claims = self._arrived
        self._sent_at = 0.0
        self._delivered: set[str] = set()
        self._expects_none = False
        self._slot_freed = asyncio.Event()
        self._quiet = False
        self._asked = 0  # what claims may bring that are not answered yet
        self.is_waiting: bool = False  # for a slot
        self._had_no_slot = False  # when it found nothing: a store then looks at few jobs with gates
        self.given_up: list[str] = []
        self.in_flight: set[str] = set()

    @property
    def session(self) -> str:
        return self._taker.session

    def slot_freed(self) -> None:
        self.is_waiting = False  # it will look: the next freed slot need not wake it again
        self._slot_freed.set()

    def quiet(self, is_quiet: bool) -> None:
        """Claim nothing while quiet; running jobs go on."""
        self._quiet = is_quiet
        self.look_up()

    def job_ended(self) -> None:
        """A job has ended here: its slot is free, and there may be room for one more of its queue. A
        claim without a free slot may have passed over jobs."""
        if self.is_waiting:
            self.slot_freed()
            return
        is_bounded = self._bounds is not None and self._bounds.is_full
        if is_bounded or (self._had_no_slot and self._taker.free()):
            self.look_up()

    def look_up(self) -> None:
        """Have it look at what was asked of it, whatever it waits for."""
        self._slot_freed.set()
        self.end_idling()
        if self._waits_in_store and isinstance(self._bell, ClaimingBell):
            self._bell.rouse()

    async def run_once(self) -> float:
        self._slot_freed.clear()
        self._had_no_slot = False
        room = 0 if self._quiet else self._taker.room(self._asked)
        if room == 0:
            await self._until_freed()
            return self.unasked(0.0)
        claims: list[Claim] = []
        sent = self.monotonic()
        if not self._expects_none:
            await self._look_for_gated()
            sent = self.monotonic()
            claims = await self._claim(room)
        if not claims:
            # Arm the bell, then look once more: what is stored in between rings it.
            await self._bell.arm()
            sent = self.monotonic()
            self._sees_gated = True
            had_no_slot = not self._taker.free()
            claims = await self._claim(room)
            self._had_no_slot = had_no_slot and not claims
        # A queue that had less than was asked for has mostly nothing a moment later: one look is enough.
        self._expects_none = self._stays_armed and len(claims) < room
        if not claims:
            if self._bounds is not None and self._bounds.opens_in is not None:
                return min(self._bounds.opens_in, self._poll)
            if await self._taker.found_nothing():
                return 0.0  # something may have come by what was done there
            if not self._waits_in_store or self._stopping.is_set():
                return self._poll
            self._sent_at = self.monotonic()
            self._delivered.clear()
            claims = await self._claim_when_rung(room)
            claims = [claim for claim in claims if claim.id not in self._delivered]
            if not claims:
                return 0.0
            if self._quiet:
                await self.driver.arun(
                    self.driver.release([ClaimRef(claim.id, claim.token) for claim in claims])
                )
                return 0.0
            self._taker.deliver(claims, self._sent_at)
            # The job that was waited for starts before the next claim is made and sent, which can wait.
            # Under load it is the other way round, so that the store works while the jobs run.
            await asyncio.sleep(0)
            return 0.0
        self._taker.deliver(claims, sent)
        return 0.0

    def _arrived(self, claims: list[Claim]) -> None:
        """What the bell's claim got, before this loop has heard of it: the job that was waited for
        starts in the next turn. While quiet it is left to `run_once`, which gives it back."""
        if claims and not self._quiet:
            self._delivered.update(claim.id for claim in claims)
            try:
                self._taker.deliver(claims, self._sent_at)
            except Exception:  # a hook's, as `run` reports it
                log.exception("%s failed; the loop continues", self.name)

    async def _claim_when_rung(self, room: int) -> list[Claim]:
        bell = self._bell
        assert isinstance(bell, ClaimingBell)  # noqa: S101  # as looked at when it was made
        return await self._noted(
            self._params(min(room, RUNG), None),
            self.driver.claim,
            lambda verb: bell.claim_when_rung(verb, self._poll, is_idle=self._taker.is_empty),
        )

    async def _look_for_gated(self) -> None:
        now = self.monotonic()
        if self._is_gated or now - self._looked_at < self._poll:
            return
        self._looked_at = now
        self._sees_gated = await self.driver.arun(self.driver.has_gated(self._order.names))

    async def run(self) -> None:
        """Claim after claim until `stop`: the loop of every service, spelled out here because each job
        passes through it."""
        polling.set(self.name)
        try:
            while not self._stopping.is_set():
                try:
                    delay = await self.run_once()
                except Exception as error:
                    await self.failed(error)
                    continue
                if self.is_failing:
                    self.recovered()
                if delay > 0:
                    await self.unless_stopped(self._bell.wait(delay))
        finally:
            await self._bell.aclose()

    def stop(self) -> None:
        super().stop()
        self.look_up()

    async def _until_freed(self) -> None:
        self.is_waiting = True
        try:
            async with asyncio.timeout(self._poll):
                await self._slot_freed.wait()
        except TimeoutError:
            pass
        finally:
            self.is_waiting = False

    async def more(self, task: str, limit: int) -> list[Claim]:
        """Claim jobs of this one task, for a call that collects them; none while quiet."""
        return [] if self._quiet else await self._claim(limit, (task,))

    async def finish_and_claim(self, outcomes: Sequence[Finish]) -> list[Answer] | None:
        """End members of FIFO keys and claim the next ones with it. None, and nothing is sent, where
        nothing may be claimed now."""
        is_over = self._quiet or self._stopping.is_set()
        room = 0 if is_over else min(self._taker.space(self._asked), len(outcomes))
        # Members of bounded queues are claimed apart.
        queues = None if self._bounds is None else self._bounds.unbounded(self._order.names)
        if room <= 0 or queues == ():
            return None
        sent = self.monotonic()
        self._asked += room
        try:
            answers, claims = await self._noted(
                self._params(room, None, queues),
                lambda then: self.driver.finish_and_claim(outcomes, then),
            )
        finally:
            self._asked -= room
        self._taker.deliver(claims, sent)
        if len(claims) < room:
            self.look_up()  # a claim that left these slots to the ends may have passed over jobs
        return answers

    def _gated(self, limit: int, *, is_for_one: bool) -> int:
        if not self._sees_gated:
            return 0
        return limit if is_for_one else min(limit, max(self._taker.free(), 1))

    async def _claim(self, limit: int, tasks: tuple[str, ...] | None = None) -> list[Claim]:
        sent = self.monotonic()
        self._asked += limit
        try:
            if self._bounds is None:
                claims = await self._noted(self._params(limit, tasks), self.driver.claim)
            else:
                claims = await self._claim_bounded(self._bounds, limit, tasks)
        finally:
            self._asked -= limit
        if claims:
            self._taker.answered(self.monotonic() - sent)
        return claims

    async def _claim_bounded(
        self, bounds: QueueBounds, limit: int, tasks: tuple[str, ...] | None
    ) -> list[Claim]:
        claims: list[Claim] = []
        order = self._order.strict or self._order.next()
        try:
            with closing(bounds.parts(order, lambda: self._taker.free() - len(claims))) as parts:
                for queues, most in parts:
                    room = limit - len(claims)
                    params = self._params(room if most is None else min(room, most), tasks, queues)
                    found = await self._noted(params, self.driver.claim)
                    bounds.claimed(found)
                    claims += found
                    if len(claims) >= limit:
                        break
        except StorageError:
            if not claims:
                raise  # else the next pass meets it
        finally:
            bounds.delivered(claims)  # the caller takes them without a wait
        return claims

    def _params(
        self, limit: int, tasks: tuple[str, ...] | None, queues: tuple[str, ...] | None = None
    ) -> ClaimParams:
        return ClaimParams(
            session=self._taker.session,
            token=random_id(self._random_bytes(16)),
            queues=queues or self._order.strict or self._order.next(),
            limit=limit,
            tasks=tasks or self._tasks,
            gated=self._gated(limit, is_for_one=tasks is not None),
            at_once=self._at_once if tasks is None else None,
            free=None if tasks is not None else self._taker.free(),
        )

    async def _noted(
        self,
        params: ClaimParams,
        verb: Callable[[ClaimParams], Verb[T]],
        run: Callable[[Verb[T]], Awaitable[T]] | None = None,
    ) -> T:
        """Carry out a verb that claims. Its token is noted before it is sent."""
        self.in_flight.add(params.token)
        try:
            return await (run or self.driver.arun)(verb(params))
        except StorageUnavailable as error:
            if error.maybe_applied:
                self.given_up.append(params.token)
            raise
        finally:
            self.in_flight.discard(params.token)


class GiveUps(Service):
    """Releases claims of this session that no part of this worker works on.

    Claims whose answer was lost, at every beat for as long as the session lasts. And, once in a lease,
    those that the store has and this worker has not: a store that was set back by less than a beat
    brings back claims whose jobs are finished and forgotten here, and no other worker would free them.
    """

    name = "give-ups"

    def __init__(
        self,
        fetcher: Fetcher,
        *,
        every: float,
        lease: float,
        in_use: Callable[[], set[str]],
    ) -> None:
        """`in_use` gives the tokens of all claims that this worker holds."""
        super().__init__()
        self._fetcher = fetcher
        self.driver: Driver = fetcher.driver
        self._every = every
        self._lease = lease
        self._in_use = in_use
        self._monotonic = fetcher.monotonic
        self._audited_at = self._monotonic()

    async def run_once(self) -> float:
        session = self._fetcher.session
        tokens = list(self._fetcher.given_up)
        has_asked = False
        if self._monotonic() - self._audited_at >= self._lease:
            began = self._monotonic()
            held = await self.driver.arun(self.driver.held(session))
            self._audited_at = began
            # Compared when the answer is read: whatever was claimed meanwhile is in use by now.
            in_use = self._in_use() | self._fetcher.in_flight
            tokens += {ref.token for ref in held} - in_use - set(tokens)
            has_asked = True
        if tokens and session == self._fetcher.session:
            await self.driver.arun(self.driver.give_up(session, tokens))
            has_asked = True
        return self._every if has_asked else self.unasked(self._every)

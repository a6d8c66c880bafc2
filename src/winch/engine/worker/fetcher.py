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

from winch.core.errors import StorageUnavailable
from winch.core.job import Claim
from winch.core.values.ids import random_id
from winch.engine.base.log import log
from winch.engine.base.service import Service
from winch.engine.worker.queue_order import QueueOrder
from winch.storage.params import ClaimParams, ClaimRef
from winch.storage.protocol import Bell, ClaimingBell, DeliveringBell, Driver
from winch.storage.verbs import Verb

# What rings is one job mostly. A claim that waits for it asks for few, which costs some stores less than
# one by the hundred; where more has come, the next claim follows at once and asks for all there is room
# for.
RUNG = 32


class Fetcher(Service):
    name = "fetcher"

    def __init__(
        self,
        driver: Driver,
        order: QueueOrder,
        tasks: Sequence[str],
        *,
        poll: float,
        session: Callable[[], str],
        room: Callable[[], int],
        free: Callable[[], int] | None = None,
        is_gated: bool = False,
        waits_in_store: bool = False,
        measured: Callable[[float], None],
        deliver: Callable[[Sequence[Claim], float], None],
        on_idle: Callable[[], Awaitable[bool]],
        is_idle: Callable[[], bool] = lambda: False,
        monotonic: Callable[[], float] = time.monotonic,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        super().__init__()
        self._driver = driver
        self._order = order
        self._tasks = tuple(tasks)
        self._poll = poll
        self._session = session
        self._room = room
        # Jobs that hold permits are claimed for free slots only. A worker whose tasks have gates always
        # looks for them; another finds out now and then whether somebody stored jobs with a FIFO key or
        # a tenant, so that claims of plain jobs stay as they are.
        self._free = free or room
        self._is_gated = is_gated
        self._sees_gated = self._is_gated
        self._looked_at = float("-inf")
        self._measured = measured
        self._deliver = deliver
        self._on_idle = on_idle
        self._is_idle = is_idle
        self._monotonic = monotonic
        self._entropy = entropy
        # Of the driver itself: whoever stands before one, to watch or disturb it, sees every claim.
        claiming = getattr(type(driver), "claiming_bell", None) if waits_in_store else None
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
        self.is_waiting: bool = False  # for a slot
        self.given_up: list[str] = []
        self.in_flight: set[str] = set()

    def slot_freed(self) -> None:
        self.is_waiting = False  # it will look: whoever comes next need not say it again
        self._slot_freed.set()

    def quiet(self, is_quiet: bool) -> None:
        """Claim nothing while quiet; running jobs go on."""
        self._quiet = is_quiet
        self._look_up()

    def _look_up(self) -> None:
        """Have it look at what was asked of it, whatever it waits for."""
        self._slot_freed.set()
        if self._waits_in_store and isinstance(self._bell, ClaimingBell):
            self._bell.rouse()

    async def run_once(self) -> float:
        self._slot_freed.clear()
        room = 0 if self._quiet else self._room()
        if room == 0:
            await self._until_freed()
            return self.unasked(0.0)
        claims: list[Claim] = []
        sent = self._monotonic()
        if not self._expects_none:
            await self._look_for_gated()
            sent = self._monotonic()
            claims = await self._claim(room)
        if not claims:
            # Say that somebody waits, then look once more: what was stored in between rings.
            await self._bell.arm()
            sent = self._monotonic()
            self._sees_gated = True
            claims = await self._claim(room)
        # A queue that had less than was asked for has mostly nothing a moment later: one look is enough.
        self._expects_none = self._stays_armed and len(claims) < room
        if not claims:
            if await self._on_idle():
                return 0.0  # something may have come by what was done there
            if not self._waits_in_store or self._stopping.is_set():
                return self._poll
            self._sent_at = self._monotonic()
            self._delivered.clear()
            claims = await self._claim_when_rung(room)
            claims = [claim for claim in claims if claim.id not in self._delivered]
            if not claims:
                return 0.0
            if self._quiet:
                await self._driver.arun(
                    self._driver.release([ClaimRef(claim.id, claim.token) for claim in claims])
                )
                return 0.0
            self._deliver(claims, self._sent_at)
            # The job that was waited for starts before the next claim is made and sent, which can wait.
            # Under load it is the other way round, so that the store works while the jobs run.
            await asyncio.sleep(0)
            return 0.0
        self._deliver(claims, sent)
        return 0.0

    def _arrived(self, claims: list[Claim]) -> None:
        """What the bell's claim got, before this loop has heard of it: the job that was waited for
        starts in the next turn. While quiet it is left to `run_once`, which gives it back."""
        if claims and not self._quiet:
            self._delivered.update(claim.id for claim in claims)
            try:
                self._deliver(claims, self._sent_at)
            except Exception:  # a hook's, as `run` tells it
                log.exception("%s failed; the loop goes on", self.name)

    async def _claim_when_rung(self, room: int) -> list[Claim]:
        bell = self._bell
        assert isinstance(bell, ClaimingBell)  # noqa: S101  # as looked at when it was made
        return await self._noted(
            self._params(min(room, RUNG), None),
            lambda verb: bell.claim_when_rung(verb, self._poll, is_idle=self._is_idle()),
        )

    async def _look_for_gated(self) -> None:
        now = self._monotonic()
        if self._is_gated or now - self._looked_at < self._poll:
            return
        self._looked_at = now
        self._sees_gated = await self._driver.arun(self._driver.has_gated(self._order.names))

    async def idle(self, seconds: float) -> None:
        await self._bell.wait(seconds)

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            await self._bell.aclose()

    def stop(self) -> None:
        super().stop()
        self._look_up()

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

    def _gated(self, limit: int, *, is_for_one: bool) -> int:
        if not self._sees_gated:
            return 0
        return limit if is_for_one else min(limit, max(self._free(), 1))

    async def _claim(self, limit: int, tasks: tuple[str, ...] | None = None) -> list[Claim]:
        sent = self._monotonic()
        claims = await self._noted(self._params(limit, tasks), self._driver.arun)
        if claims:
            self._measured(self._monotonic() - sent)
        return claims

    def _params(self, limit: int, tasks: tuple[str, ...] | None) -> ClaimParams:
        return ClaimParams(
            session=self._session(),
            token=random_id(self._entropy(16)),
            queues=self._order.next(),
            limit=limit,
            tasks=tasks or self._tasks,
            gated=self._gated(limit, is_for_one=tasks is not None),
        )

    async def _noted(
        self, params: ClaimParams, run: Callable[[Verb[list[Claim]]], Awaitable[list[Claim]]]
    ) -> list[Claim]:
        """Carry a claim out. Its token is noted before it is sent."""
        self.in_flight.add(params.token)
        try:
            return await run(self._driver.claim(params))
        except StorageUnavailable as error:
            if error.maybe_applied:
                self.given_up.append(params.token)
            raise
        finally:
            self.in_flight.discard(params.token)


class GiveUps(Service):
    """Releases claims of this session that nobody here works on.

    Claims whose answer was lost, at every beat for as long as the session lasts. And, once in a lease,
    those that the store has and this worker has not: a store that was set back by less than a beat
    brings back claims whose jobs are finished and forgotten here, and nobody else would free them.
    """

    name = "give-ups"

    def __init__(
        self,
        driver: Driver,
        *,
        every: float,
        lease: float,
        session: Callable[[], str],
        lost: list[str],
        in_use: Callable[[], set[str]],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._driver = driver
        self._every = every
        self._lease = lease
        self._session = session
        self._lost = lost
        self._in_use = in_use
        self._monotonic = monotonic
        self._audited_at = self._monotonic()

    async def run_once(self) -> float:
        session = self._session()
        tokens = list(self._lost)
        is_asked = False
        if self._monotonic() - self._audited_at >= self._lease:
            began = self._monotonic()
            held = await self._driver.arun(self._driver.held(session))
            self._audited_at = began
            # Compared when the answer is read: whatever was claimed meanwhile is in use by now.
            tokens += {ref.token for ref in held} - self._in_use() - set(tokens)
            is_asked = True
        if tokens and session == self._session():
            await self._driver.arun(self._driver.give_up(session, tokens))
            is_asked = True
        return self._every if is_asked else self.unasked(self._every)

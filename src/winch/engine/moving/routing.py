"""Runs verbs in two stores, and knows where the route leads."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from winch.core.errors import StorageError
from winch.core.job import JobRecord
from winch.engine.base.operation import Sleep, adrive, drive
from winch.engine.moving.plans import On, Plan, RoutedVerb, parcels_now, plain_of, sent_to
from winch.engine.moving.route import IDLE_LAG, LAG, LONGEST_HOLD, MoveStep, Route, look, swap
from winch.storage.parcels import Parcel
from winch.storage.protocol import Driver
from winch.storage.verbs import Sending, Unhurried, Verb

T = TypeVar("T")
A = TypeVar("A")
log: logging.Logger = logging.getLogger("winch")
# How long a caller waits before it looks again for a job that is on its way, or at a held route.
PAUSE = 0.01
# So often a job is looked for that is in neither store: it is on its way for a moment only.
LOOKS = 500


class Routing:
    """The two stores, what is known of the route, and how to look in both."""

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

        def act(step: Any) -> Any:
            if isinstance(step, Sleep):
                return time.sleep(step.seconds)
            return step.driver.run(step.verb)

        answer: T = drive(verb.plan(), act)
        return answer

    async def arun(self, verb: Verb[T]) -> T:
        if not isinstance(verb, RoutedVerb):
            return await self.source.arun(verb)

        async def act(step: Any) -> Any:
            if isinstance(step, Sleep):
                return await asyncio.sleep(step.seconds)
            return await step.driver.arun(step.verb)

        answer: T = await adrive(verb.plan(), act)
        return answer

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

    # -- both stores ---------------------------------------------------------------------------------

    def _routed(self, plain: Verb[T], plan: Callable[[], Plan[T]]) -> Verb[T]:
        return RoutedVerb(plain.name, plain.steps, plain.is_read, plan=plan, plain=plain)

    def _sought(
        self, look: Callable[[Driver], Plan[bool]], is_sought: Callable[[JobRecord], bool]
    ) -> Plan[None]:
        """Look in both stores in the order in which jobs pass them, until `look` answers True or nothing
        of what is sought is on its way between them. What is found in neither counts if the route was
        the same all the time: else jobs may have gone the other way meanwhile."""
        had_route = self._route is not None
        route = yield from self._current()
        for _ in range(LOOKS):
            if route is None:
                if had_route:  # the move has gone back meanwhile
                    yield from look(self.source)
                return
            had_route = True
            to, other = self._both(route)
            if (yield from look(other)):
                return
            parcel: Parcel = yield On(other, other.move_out(parcels_now(route), 0, ()))
            if (yield from look(to)):
                return
            before, self._read_at = route, float("-inf")
            route = yield from self._current()
            if any(map(is_sought, parcel.jobs)):
                yield Sleep(PAUSE)
            elif route is not None and route.nonce == before.nonce:
                return

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

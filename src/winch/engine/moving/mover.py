"""The mover: brings a move from one step to the next. Whatever it had begun when it died, another one
continues; docs/protocol/move.md has the steps and why each is safe."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Generator, Iterable
from datetime import timedelta
from typing import Any, TypeVar

from winch.core.errors import ConfigError
from winch.core.lifecycle import JobState
from winch.engine.base.operation import drive
from winch.engine.moving import holding, schedules, settings
from winch.engine.moving.carrying import LIVE, Carrier, is_ordered, jobs_of
from winch.engine.moving.holding import BY, ON_THEIR_WAY, is_ours
from winch.engine.moving.plans import parcels_of
from winch.engine.moving.route import (
    ALL,
    BOOK,
    EPOCH,
    IDLE_LAG,
    LOCK,
    LONGEST_HOLD,
    PROTOCOL,
    ROUTE,
    STORE,
    MoveRecords,
    MoveStep,
    Route,
    Scope,
    look,
    swap,
)
from winch.storage.kv_records import KvRecord
from winch.storage.protocol import Driver

T = TypeVar("T")
TRIES = 20
LEASE = timedelta(seconds=5)
SWEEP = 0.25
# How long producers are held for an enqueue that is under way, and how often the mover looks.
FENCE_WAIT, FENCE_PAUSE = LONGEST_HOLD / 2, 0.005


class Mover:
    """One process that moves. `tell` is called with each line worth reading."""

    def __init__(
        self,
        source: Driver,
        target: Driver,
        tell: Callable[[str], None] = lambda line: None,
        *,
        waits_for_lock: bool = False,
    ) -> None:
        self.source = source
        self.target = target
        self._waits_for_lock = waits_for_lock
        self._tell = tell
        self._me = secrets.token_hex(8)
        self._renewed_at: float | None = None
        self._effects: set[KvRecord] = set()

    # -- the record --------------------------------------------------------------------------------

    def route(self) -> Route | None:
        """The move that is under way from the source, or was done."""
        return self._records(self.source).route

    def _records(self, driver: Driver) -> MoveRecords:
        return _run(driver, look(driver))

    def begin(self, scope: Scope = ALL, *, final_too: bool = False) -> Route:
        """Announce a move. Everything was checked before."""
        self._hold_lock()
        before = self.route()
        self.refuse_second(before)
        there = self._records(self.target)
        if there.route is not None:  # of an earlier move, which led here
            settings.forget_copies(self.target, self.target)
            self._forget_route(self.target, there.epoch)
        route = Route(
            nonce=secrets.token_hex(8),
            move=secrets.token_hex(4),
            step=MoveStep.ANNOUNCED,
            store=self._target_id(),
            address=self.target.describe(),
            epoch=max(there.epoch, self._records(self.source).epoch) + 1,
            protocol=PROTOCOL,
            scope=scope,
            final_too=final_too,
        )
        self._change(before, route)
        self._tell(f"announced: {route.scope} moves to {route.address}")
        return route

    def refuse_second(self, before: Route | None) -> None:
        """Two moves from one store cannot be under way."""
        if before is not None and before.step is not MoveStep.DONE:
            raise ConfigError(
                f"{before.scope} already moves to {before.address}: run `winch move --resume`, or --back"
            )

    def _forget_route(self, driver: Driver, epoch: int) -> None:
        """A producer that finds no route gives the number of the last one."""
        self._keep_epoch(driver, epoch)
        driver.run(driver.kv_delete(BOOK, [ROUTE]))

    def _keep_epoch(self, driver: Driver, epoch: int) -> None:
        """A store that has no route, and whose fence is raised: what its own producers have to give."""
        driver.run(driver.kv_put([KvRecord(book=BOOK, key=EPOCH, body=str(epoch))]))

    def _target_id(self) -> str:
        record = KvRecord(book=BOOK, key=STORE, body=secrets.token_hex(8))
        there = self.target.run(self.target.kv_swap(record))
        return record.body if there is None else there

    def check_target(self, route: Route) -> None:
        """Refuse another store than that of the move."""
        if self._records(self.target).store != route.store:
            raise ConfigError(
                f"{route.scope} moves to {route.address}, which is not {self.target.describe()}"
            )

    def _change(self, before: Route | None, after: Route) -> Route:
        if not _run(self.source, swap(self.source, before, after)):
            raise ConfigError(
                "the move was changed by another process: a producer that had waited for too long, or "
                "another mover; run `winch move --resume`"
            )
        return after

    def _hold_lock(self) -> None:
        """Keep other movers out: of two at once each would send what the other has decided."""
        began = sent = time.monotonic()
        lease = LEASE.total_seconds()
        if self._renewed_at is not None and began - self._renewed_at < lease / 4:
            return
        if self._renewed_at is not None and began - self._renewed_at > lease:
            raise ConfigError("this mover stood still for too long; run `winch move --resume`")
        record = KvRecord(book=BOOK, key=LOCK, body=self._me, keep=LEASE)
        while True:
            there = self.source.run(self.source.kv_swap(record, instead_of=self._me))
            if there is None:
                break
            is_released = there == ""  # and gone in a moment
            if is_released or (self._waits_for_lock and time.monotonic() - began < 2 * lease):
                time.sleep(SWEEP / 10 if is_released else SWEEP)
                sent = time.monotonic()
                continue
            raise ConfigError(
                f"another `winch move` is at work on {self.source.describe()}, or died less than "
                f"{lease:.0f} s ago"
            )
        self._renewed_at = sent

    def release(self) -> None:
        """Let another mover begin at once."""
        if self._renewed_at is not None:
            over = KvRecord(book=BOOK, key=LOCK, body="", keep=timedelta(milliseconds=1))
            self.source.run(self.source.kv_swap(over, instead_of=self._me))

    def carrier(self, route: Route, *, is_back: bool | None = None) -> Carrier:
        """What carries the jobs in the direction of this step."""
        back = route.step.is_back if is_back is None else is_back
        stores = (self.target, self.source) if back else (self.source, self.target)
        return Carrier(*stores, parcels_of(route.move, is_back=back), route.scope, self._hold_lock)

    # -- from step to step -------------------------------------------------------------------------

    def advance(self, route: Route) -> Route:
        """Bring the move to the step at which all that is left is to sweep."""
        while True:
            self._hold_lock()
            match route.step:
                case MoveStep.ANNOUNCED:
                    route = self._open(route, MoveStep.HELD, MoveStep.OPEN)
                case MoveStep.HELD:
                    route = self._change(route, route.changed(step=MoveStep.ANNOUNCED))
                case MoveStep.BACK_HELD:
                    route = self.turn_back(self._change(route, route.changed(step=MoveStep.OPEN)))
                case MoveStep.OPEN:
                    route = self._carry_ordered(route, MoveStep.FREE)
                case MoveStep.BACK_OPEN:
                    route = self._carry_ordered(route, MoveStep.BACK_FREE)
                case MoveStep.FREE | MoveStep.BACK_FREE | MoveStep.DONE:
                    return route

    def turn_back(self, route: Route) -> Route:
        """Lead new jobs to the source again; what was announced only is taken back at once."""
        self._hold_lock()
        if route.step in (MoveStep.ANNOUNCED, MoveStep.HELD):
            self._resume(self.source, route)
            self._resume(self.target, route)
            schedules.forget_schedules(self.target)
            self._forget_route(self.source, route.epoch)
            self._tell("back: nothing had moved")
            return route
        if route.step is MoveStep.FREE:
            settings.bring_settings_back(self.carrier(route, is_back=False))
            # A mover that continues forwards from here holds all keys and limits again.
            route = self._change(route, route.changed(step=MoveStep.OPEN))
        carrier = self.carrier(route, is_back=False)
        carrier.settle()
        self._pause(self.target, route)
        if held := [job.id for job in carrier.holders()]:
            self.target.run(self.target.delete(held, by=BY))
        holding.restore_limits(self.target, route.limits)
        route = self._change(route, route.changed(limits={}))
        self._keep_epoch(self.target, route.epoch + TRIES)
        return self._open(route, MoveStep.BACK_HELD, MoveStep.BACK_OPEN)

    def _open(self, route: Route, held: MoveStep, opened: MoveStep) -> Route:
        """Let no producer store a job for a moment, and lead them to the other store then."""
        carrier = self.carrier(route, is_back=opened.is_back)
        names = {*self._queues(carrier.source, route), *self._queues(carrier.target, route)}
        self._pause_these(carrier.target, names)  # it runs nothing until all that comes first has come
        schedules.announce_schedules(carrier)
        self._effects.clear()
        settings.copy_effects(carrier, self._effects)
        time.sleep(IDLE_LAG)
        settings.copy_search(carrier, final_too=route.final_too)
        route = self._note_pauses(route)  # a later pause is set in both stores
        self._pause(carrier.source, route)
        for _ in range(TRIES):
            began = time.monotonic()
            before = route.step
            is_held, route = self._swapped(route, route.changed(step=held, epoch=route.epoch + 1))
            if not is_held:
                continue
            if self._fenced(carrier.source, route.epoch):
                carrier.prepare()
                is_open, route = self._swapped(route, route.changed(step=opened))
                if is_open:
                    took = round(1000 * (time.monotonic() - began))
                    where = carrier.target.describe()
                    self._tell(f"open: new jobs go to {where}; producers were held for {took} ms")
                    return route
            else:
                _, route = self._swapped(route, route.changed(step=before))
            time.sleep(SWEEP)  # a producer had waited for too long, or an enqueue takes long
        raise ConfigError(
            f"producers could not be held {TRIES} times: {carrier.source.describe()} answers too slowly "
            "now, or a transaction that stores jobs stays open; run `winch move --resume`"
        )

    def _fenced(self, driver: Driver, epoch: int) -> bool:
        """Have the store refuse producers of the old route; False: one of them stores jobs just now."""
        until = time.monotonic() + FENCE_WAIT
        while not driver.run(driver.raise_fence(epoch)):
            if time.monotonic() > until:
                return False
            time.sleep(FENCE_PAUSE)
        return True

    def _swapped(self, before: Route, after: Route) -> tuple[bool, Route]:
        """Whether this version follows, and the one that is there now."""
        if _run(self.source, swap(self.source, before, after)):
            return True, after
        there = self.route()
        if there is None or there.move != before.move:
            raise ConfigError("the move was ended by another process")
        return False, there

    def _carry_ordered(self, route: Route, freed: MoveStep) -> Route:
        """Bring what has an order, a key or a limit, then let the other store run."""
        carrier = self.carrier(route)
        self._pause(carrier.source, route)  # also queues that are new since
        carrier.settle()
        settings.copy_settings(carrier, is_back=freed is MoveStep.BACK_FREE)
        settings.copy_effects(carrier, self._effects)
        settings.copy_signals(carrier)
        holding.hold_keys(carrier)
        shut = {**holding.limits_to_shut(carrier), **route.limits}
        route = self._change(route, route.changed(limits=shut))
        holding.shut_limits(carrier.target, shut)
        count = carrier.carry(is_ordered)
        self._tell(f"carried {count} jobs with an order, a key, a limit or a tenant")
        self._tell(f"carried {carrier.carry_families(lambda: None)} jobs that wait for each other")
        schedules.hand_schedules_over(carrier)
        route = self._change(route, route.changed(step=freed))
        self._resume(carrier.target, route, unless=holding.capped_queues(carrier))
        return route

    # -- queues ------------------------------------------------------------------------------------

    def _queues(self, driver: Driver, route: Route) -> list[str]:
        if route.scope.tenant is not None:
            stores = (self.source, self.target)
            return sorted({job.queue for one in stores for job in jobs_of(one, route.scope, LIVE)})
        if route.scope.queues:
            return list(route.scope.queues)
        return [queue.name for queue in driver.run(driver.queues())]

    def _note_pauses(self, route: Route) -> Route:
        """Remember what people have paused: it stays paused in both stores."""
        were = {
            info.name: info.pause_reason
            for driver in (self.source, self.target)
            for info in driver.run(driver.queues())
            if info.paused_at is not None and not is_ours(info.pause_reason)
        }
        return self._change(route, route.changed(paused={**route.paused, **were}))

    def _pause(self, driver: Driver, route: Route) -> None:
        self._pause_these(driver, self._queues(driver, route))

    def _pause_these(self, driver: Driver, names: Iterable[str]) -> None:
        """Those that a person has paused stay as they are."""
        paused = {info.name for info in driver.run(driver.queues()) if info.paused_at is not None}
        for name in sorted(set(names) - paused):
            driver.run(driver.pause(name, by=BY, reason=ON_THEIR_WAY))

    def _resume(self, driver: Driver, route: Route, *, unless: frozenset[str] = frozenset()) -> None:
        for info in driver.run(driver.queues()):
            if info.paused_at is None or not is_ours(info.pause_reason) or info.name in unless:
                continue
            if info.name in route.paused:
                driver.run(driver.pause(info.name, by=BY, reason=route.paused[info.name]))
            else:
                driver.run(driver.resume(info.name, by=BY))

    # -- the rest ----------------------------------------------------------------------------------

    def sweep(self, route: Route) -> tuple[Route, int]:
        """Move what waits in the source by now; returns how many live jobs are left there."""
        self._hold_lock()
        carrier = self.carrier(route)
        settings.copy_effects(carrier, self._effects)  # before the jobs come that may repeat them
        carrier.carry(is_ordered)
        carrier.carry(lambda job: True)
        carrier.carry_families(lambda: self._pause(carrier.source, route))
        # Counted first: what follows has then seen the end of each job that is not counted.
        left = carrier.left()
        carrier.carry(lambda job: True, [JobState.DEAD])
        if route.final_too:
            carrier.carry(lambda job: True, [JobState.COMPLETED, JobState.CANCELLED])
        held = carrier.end_holders()
        shut = holding.open_limits(carrier, route.limits)
        if shut != route.limits:
            route = self._change(route, route.changed(limits=shut))
        schedules.hand_schedules_over(carrier)
        self._resume(carrier.target, route, unless=holding.capped_queues(carrier))
        if route.scope.tenant is not None or carrier.tied():
            self._resume(carrier.source, route)  # other tenants go on; what is tied ends where it began
        else:
            self._pause(carrier.source, route)
        return route, left + held

    def drain(self, route: Route) -> Route:
        """Sweep until no live job is left in the source."""
        reported_at: float = 0
        while True:
            route, left = self.sweep(route)
            if not left:
                carrier = self.carrier(route)
                settings.copy_search(carrier, final_too=route.final_too)
                settings.bring_signals(carrier)
                return route
            if time.monotonic() - reported_at > 5:
                reported_at = time.monotonic()
                what = "1 job still runs or waits" if left == 1 else f"{left} jobs still run or wait"
                self._tell(f"{what} for others where they began")
            time.sleep(SWEEP)

    def cut_over(self, route: Route) -> Route:
        """The move is done: the source keeps its history, and the record that leads to the target."""
        if route.step is not MoveStep.FREE:
            raise ConfigError(f"the move is at step {route.step}; run `winch move --resume` first")
        route, left = self.sweep(route)
        if left:
            raise ConfigError(
                f"{left} live jobs are left in {self.source.describe()}: run `winch move --resume` "
                "until there are none, or `winch move --back`"
            )
        route = self._change(route, route.changed(step=MoveStep.DONE))
        self._tell(f"done: set url to {route.address}, and restart processes when it suits you")
        return route

    def end_back(self, route: Route) -> None:
        """All is in the source again: nothing is left of the move but its audit lines."""
        self._resume(self.source, route)
        self._resume(self.target, route)
        schedules.forget_schedules(self.target)
        schedules.forget_schedules(self.source)  # those that were removed in the target
        settings.forget_copies(self.source, self.target)
        self._forget_route(self.source, route.epoch)  # last: without it no other mover goes on here
        self._tell(f"back: all jobs are in {self.source.describe()} again")


def _run(driver: Driver, operation: Generator[Any, Any, T]) -> T:
    return drive(operation, driver.run)

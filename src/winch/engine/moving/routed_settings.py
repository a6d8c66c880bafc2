"""What people set and change during a move: in both stores, or in the one that it holds for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeGuard

import msgspec

from winch.core.errors import ConfigError
from winch.core.gates.uses import GateSpec
from winch.core.policy.queue_settings import QueueRule
from winch.core.values.search import BOOK as SEARCH
from winch.engine.client.backpressure import BOOK as QUEUE_SETTINGS
from winch.engine.moving.families import FLOW_BOOKS
from winch.engine.moving.holding import ON_THEIR_WAY, is_ours
from winch.engine.moving.plans import On, Plan
from winch.engine.moving.route import MoveStep, Route
from winch.engine.moving.routing import Routing
from winch.engine.moving.schedules import is_in
from winch.engine.moving.settings import LED
from winch.storage.decide.schedules import (
    Answered,
    Change,
    Changed,
    Put,
    Remove,
    ScheduleRows,
    ScheduleRun,
    Tick,
    read_definition,
)
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.params import Depth, QueueInfo
from winch.storage.protocol import Driver
from winch.storage.verbs import Now, Verb

# What producers and people keep there is in both stores during a move.
BOTH = (*FLOW_BOOKS, QUEUE_SETTINGS, SEARCH, *LED)


class RoutedSettings(Routing):
    """Queues, schedules, limits and small records of two stores."""

    # -- queues ------------------------------------------------------------------------------------

    def pause(self, queue: str, *, by: str, reason: str | None = None, now: Now = None) -> Verb[None]:
        return self._in_both(queue, lambda s: s.pause(queue, by=by, reason=reason, now=now))

    def resume(self, queue: str, *, by: str, now: Now = None) -> Verb[None]:
        """Where the mover would keep the queue paused it is paused for the mover from now on."""
        plain = self.source.resume(queue, by=by, now=now)

        def plan() -> Plan[None]:
            route = yield from self._current()
            if not _leads(route, queue):
                yield On(self.source, plain)
                return
            for store in (self.source, self.target):
                found: list[QueueInfo] = yield On(store, store.queues())
                reasons = [one.pause_reason for one in found if one.name == queue and one.paused_at]
                if not reasons or is_ours(reasons[0]):
                    continue
                if route.step is MoveStep.ANNOUNCED or (
                    route.step.is_freed and store is self._both(route)[0]
                ):
                    yield On(store, store.resume(queue, by=by, now=now))
                else:
                    yield On(store, store.pause(queue, by=by, reason=ON_THEIR_WAY, now=now))

        return self._routed(plain, plan)

    def set_queue(self, queue: str, rule: QueueRule, *, now: Now = None) -> Verb[None]:
        return self._in_both(queue, lambda s: s.set_queue(queue, rule, now=now))

    def depth(self, queue: str, *, cap: int, now: Now = None) -> Verb[Depth]:
        """A queue that moves is as full as both of its parts."""
        plain = self.source.depth(queue, cap=cap, now=now)
        if self._is_idle:
            return plain

        def plan() -> Plan[Depth]:
            here: Depth = yield On(self.source, plain)
            route = yield from self._current()
            if not _leads(route, queue) or not route.step.may_be_elsewhere:
                return here
            there: Depth = yield On(self.target, self.target.depth(queue, cap=cap, now=now))
            ages = [one.oldest for one in (here, there) if one.oldest is not None]
            return Depth(min(here.ready + there.ready, cap), max(ages, default=None))

        return self._routed(plain, plan)

    def _in_both(self, queue: str, verb: Callable[[Driver], Verb[None]]) -> Verb[None]:
        """What people set for a queue holds in both stores while its jobs move."""
        plain = verb(self.source)

        def plan() -> Plan[None]:
            route = yield from self._current()
            yield On(self.source, plain)
            if _leads(route, queue):
                yield On(self.target, verb(self.target))

        return self._routed(plain, plan)

    def kv_put(self, records: Sequence[KvRecord], *, now: Now = None) -> Verb[None]:
        plain = self.source.kv_put(records, now=now)
        if self._is_idle or not any(record.book in BOTH for record in records):
            return plain

        def plan() -> Plan[None]:
            """What is kept about jobs and queues is in both stores: their jobs are in either one."""
            yield On(self.source, plain)
            route = yield from self._current()
            ours = [one for one in records if _is_in_both(one.book, one.key, route)]
            if ours:
                yield On(self.target, self.target.kv_put(ours, now=now))

        return self._routed(plain, plan)

    def kv_delete(self, book: str, keys: Sequence[str]) -> Verb[int]:
        plain = self.source.kv_delete(book, keys)
        if self._is_idle or book not in BOTH:
            return plain

        def plan() -> Plan[int]:
            count: int = yield On(self.source, plain)
            route = yield from self._current()
            if ours := [key for key in keys if _is_in_both(book, key, route)]:
                there: int = yield On(self.target, self.target.kv_delete(book, ours))
                count = max(count, there)
            return count

        return self._routed(plain, plan)

    def kv_swap(
        self, record: KvRecord, *, instead_of: str | None = None, now: Now = None
    ) -> Verb[str | None]:
        plain = self.source.kv_swap(record, instead_of=instead_of, now=now)
        if self._is_idle or record.book not in LED:
            return plain

        def plan() -> Plan[str | None]:
            """The store decides from which the record is read; the other one has it, too."""
            route = yield from self._current()
            first, second = self._settings_in(route)
            swapped = first.kv_swap(record, instead_of=instead_of, now=now)
            there: str | None = yield On(first, swapped)
            if there in (None, record.body) and _is_in_both(record.book, record.key, route):
                yield On(second, second.kv_put([record], now=now))
            return there

        return self._routed(plain, plan)

    def kv_list(self, which: KvFilter, *, now: Now = None) -> Verb[list[KvRecord]]:
        plain = self.source.kv_list(which, now=now)
        if self._is_idle or which.book not in LED:
            return plain

        def plan() -> Plan[list[KvRecord]]:
            store, _ = self._settings_in((yield from self._current()))
            records: list[KvRecord] = yield On(store, store.kv_list(which, now=now))
            return records

        return self._routed(plain, plan)

    def _settings_in(self, route: Route | None) -> tuple[Driver, Driver]:
        """The store whose tokens, webhook endpoints, views and marks hold, and the other one."""
        is_there = route is not None and route.scope.is_all and route.step.to_target
        if is_there and route is not None and route.step.is_freed:
            return self.target, self.source
        return self.source, self.target

    # -- schedules and limits ------------------------------------------------------------------------

    def change_schedule(self, name: str, change: Change, *, now: Now = None) -> Verb[Changed]:
        plain = self.source.change_schedule(name, change, now=now)
        if self._is_idle or isinstance(change, Tick):
            return plain

        def plan() -> Plan[Changed]:
            """What people do to a schedule is for the store that ticks it."""
            route = yield from self._current()
            if not _is_ticked_there(route) or not (yield from self._moves(route, name, change)):
                answer: Changed = yield On(self.source, plain)
                return answer
            there: Changed = yield On(self.target, self.target.change_schedule(name, change, now=now))
            if isinstance(change, Remove) and there.answer is not Answered.DECLARED:
                gone: Changed = yield On(self.source, plain)
                return gone if there.answer is Answered.MISSING else there
            return there

        return self._routed(plain, plan)

    def _moves(self, route: Route, name: str, change: Change) -> Plan[bool]:
        if isinstance(change, Put):
            job = read_definition(change.definition).job
            return route.scope.is_all or route.scope.covers(job.queue, job.tenant)
        for store in (self.target, self.source):
            rows: ScheduleRows = yield On(store, store.schedules(name=name))
            if rows.found:
                return is_in(route.scope, rows.found[0])
        return route.scope.is_all

    def schedules(self, *, name: str | None = None, now: Now = None) -> Verb[ScheduleRows]:
        plain = self.source.schedules(name=name, now=now)
        if self._is_idle:
            return plain

        def plan() -> Plan[ScheduleRows]:
            """As the store has them that ticks them."""
            route = yield from self._current()
            here: ScheduleRows = yield On(self.source, plain)
            if not _is_ticked_there(route):
                return here
            there: ScheduleRows = yield On(self.target, self.target.schedules(name=name, now=now))
            moved = {row.name: row for row in there.found}
            rows = {row.name: row for row in here.found if not is_in(route.scope, row)} | moved
            found = tuple(row for _, row in sorted(rows.items()))
            return msgspec.structs.replace(there, found=found)

        return self._routed(plain, plan)

    def schedule_runs(self, name: str, *, limit: int = 50) -> Verb[list[ScheduleRun]]:
        plain = self.source.schedule_runs(name, limit=limit)
        if self._is_idle:
            return plain

        def plan() -> Plan[list[ScheduleRun]]:
            runs: list[ScheduleRun] = []
            if _is_ticked_there((yield from self._current())):
                runs = yield On(self.target, self.target.schedule_runs(name, limit=limit))
            if not runs:
                runs = yield On(self.source, plain)
            return runs

        return self._routed(plain, plan)

    def set_limits(
        self, specs: Mapping[str, GateSpec | None], *, by: str | None, now: Now = None
    ) -> Verb[None]:
        plain = self.source.set_limits(specs, by=by, now=now)
        if self._is_idle or by is None:
            return plain

        def plan() -> Plan[None]:
            """What people set holds in both stores, but for limits that the mover holds shut in one."""
            self._read_at = float("-inf")
            route = yield from self._current()
            if route is not None and (shut := sorted(route.limits.keys() & specs.keys())):
                raise ConfigError(
                    f"the move holds {', '.join(shut)} until its last job in the store that is left has "
                    "ended: set it then"
                )
            yield On(self.source, plain)
            if route is not None and route.scope.is_all and route.step.may_be_elsewhere:
                yield On(self.target, self.target.set_limits(specs, by=by, now=now))

        return self._routed(plain, plan)


def _leads(route: Route | None, queue: str) -> TypeGuard[Route]:
    """Whether jobs of this queue move."""
    return route is not None and route.scope.covers(queue, route.scope.tenant)


def _is_ticked_there(route: Route | None) -> TypeGuard[Route]:
    """Whether the target ticks the schedules that move."""
    return route is not None and route.step.is_freed and route.step.to_target


def _is_in_both(book: str, key: str, route: Route | None) -> bool:
    if book == SEARCH:
        return route is not None
    if book in LED:
        return route is not None and route.scope.is_all and route.step.to_target
    if book in FLOW_BOOKS:
        return route is not None and route.step.may_be_elsewhere
    return book == QUEUE_SETTINGS and _leads(route, key.rpartition(":")[2])

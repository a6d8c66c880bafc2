"""The reference driver: everything in this process, written for clarity.

Other drivers are compared with this one by the property tests, so it spells out each rule of the
protocol in the plainest way. A verb is one function that runs under one lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from winch.core.values.clock import Clock
from winch.drivers._shared.callers import no_transactions
from winch.drivers._shared.composed import ComposedDriver, Families
from winch.drivers.memory.verbs.base import Base
from winch.drivers.memory.verbs.claim import ClaimVerbs
from winch.drivers.memory.verbs.enqueue import EnqueueVerbs
from winch.drivers.memory.verbs.finish import FinishVerbs
from winch.drivers.memory.verbs.gates import GateVerbs
from winch.drivers.memory.verbs.kv import KvVerbs
from winch.drivers.memory.verbs.moves import MoveVerbs
from winch.drivers.memory.verbs.operators import OperatorVerbs
from winch.drivers.memory.verbs.reads import ReadVerbs
from winch.drivers.memory.verbs.schedules import ScheduleVerbs
from winch.drivers.memory.verbs.sessions import SessionVerbs
from winch.drivers.memory.verbs.upkeep import UpkeepVerbs
from winch.drivers.memory.verbs.waits import WaitVerbs
from winch.drivers.memory.wakeups.bell import MemoryBell
from winch.storage.capabilities import Capabilities
from winch.storage.verbs import Sending, Unhurried, Verb

T = TypeVar("T")


class MemoryDriver(ComposedDriver):
    """`memory://`: for tests and for embedded workers in one process."""

    name = "memory"
    continues_limits: bool = True
    capabilities: Capabilities = Capabilities(
        is_durable=False, shares_processes=False, joins_transactions=False
    )

    def __init__(self, clock: Clock, *, events: bool = False) -> None:
        self._put_together(Base(clock, events=events))

    def _put_together(self, base: Base) -> None:
        """Build the families of verbs on this base."""
        self._base, self._state = base, base.state
        enqueue = EnqueueVerbs(base)
        claim = ClaimVerbs(base)
        waits = WaitVerbs(base, enqueue)
        schedules = self._schedules = ScheduleVerbs(base, enqueue)
        self._adopt(
            Families(
                enqueue=enqueue,
                claim=claim,
                finish=FinishVerbs(base, waits, claim),
                sessions=SessionVerbs(base, schedules),
                upkeep=UpkeepVerbs(base, waits),
                gates=GateVerbs(base),
                waits=waits,
                schedules=schedules,
                operators=OperatorVerbs(base),
                reads=ReadVerbs(base),
                kv=KvVerbs(base),
                moves=MoveVerbs(base, enqueue),
            )
        )

    def run(self, verb: Verb[T]) -> T:
        # A body yields once, under the lock, and is then run to its end: see verbs/base.py.
        with self._base.lock:
            steps = verb.steps()
            while True:
                try:
                    next(steps)
                except StopIteration as stop:
                    result: T = stop.value
                    return result

    def sending(self, verb: Verb[T]) -> Sending[T]:
        return Unhurried(self.run, verb)

    async def arun(self, verb: Verb[T]) -> T:
        return self.run(verb)

    def run_on(self, conn: object, verb: Verb[T]) -> T:
        raise no_transactions(self.describe())

    async def arun_on(self, conn: object, verb: Verb[T]) -> T:
        return self.run_on(conn, verb)

    def bell(self, queues: Sequence[str], *, due: bool = False) -> MemoryBell:
        bell = MemoryBell(self._base.bells, frozenset(queues), due)
        self._base.bells[bell] = None
        return bell

    def check_schema(self) -> _NoSchema:
        return _NoSchema()

    def migrate(self) -> list[str]:
        return []

    def migration_sql(self) -> str:
        return ""

    def describe(self) -> str:
        return "memory://"

    def close(self) -> None:
        """Nothing to give back; the jobs stay as long as the driver."""

    async def aclose(self) -> None:
        self.close()


@dataclass(frozen=True)
class _NoSchema:
    current: int | None = 0
    newest: int = 0
    is_ready: bool = True

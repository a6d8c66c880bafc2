"""Where new jobs go while a move is under way: one record in the store that is left.

The mover changes the record by swaps only, each from the very text that it has read. A producer acts on
what it has read for `lag` seconds at most: `IDLE_LAG` while there is no move, `LAG` during one. Where it
matters which store a job is in, the store itself refuses a producer whose `epoch` is too old.
"""

from __future__ import annotations

import secrets
from enum import StrEnum
from typing import NamedTuple

import msgspec

from winch.core.errors import ConfigError
from winch.core.gates.uses import GateSpec
from winch.engine.base.operation import Operation
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.protocol import Driver

BOOK = "move"
ROUTE, LOCK, STORE, EPOCH = "route", "lock", "store", "epoch"
# How old, in seconds, what a producer knows of the route may be: without a move, and during one.
IDLE_LAG, LAG = 1.0, 0.03
# A producer that has waited so long for a held route takes the hold back: its mover has died.
LONGEST_HOLD = 0.1


# What producers of this release keep; one that reads a higher number stores nothing.
PROTOCOL = 2


class MoveStep(StrEnum):
    """How far a move is. `back` ones lead from the target to the source again."""

    ANNOUNCED = "announced"
    HELD = "held"
    OPEN = "open"
    FREE = "free"
    DONE = "done"
    BACK_HELD = "back-held"
    BACK_OPEN = "back-open"
    BACK_FREE = "back-free"

    @property
    def is_held(self) -> bool:
        return self in (MoveStep.HELD, MoveStep.BACK_HELD)

    @property
    def to_target(self) -> bool:
        """Whether new jobs go to the target."""
        return self in (MoveStep.OPEN, MoveStep.FREE, MoveStep.DONE, MoveStep.BACK_HELD)

    @property
    def is_back(self) -> bool:
        return self in (MoveStep.BACK_HELD, MoveStep.BACK_OPEN, MoveStep.BACK_FREE)

    @property
    def may_be_elsewhere(self) -> bool:
        """Whether a job may be in the store that new jobs do not go to."""
        return self is not MoveStep.ANNOUNCED


class Scope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What moves: all, some queues, or the jobs of a tenant in all queues."""

    queues: tuple[str, ...] = ()
    tenant: str | None = None

    @property
    def is_all(self) -> bool:
        return not self.queues and self.tenant is None

    def covers(self, queue: str, tenant: str | None) -> bool:
        if self.tenant is not None and tenant != self.tenant:
            return False
        return not self.queues or queue in self.queues

    def __str__(self) -> str:
        if self.tenant is not None:
            return f"tenant {self.tenant!r}"
        names = ", ".join(map(repr, self.queues))
        return f"queue{'s' if len(self.queues) > 1 else ''} {names}" if names else "everything"


ALL = Scope()


class Route(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record. `nonce` differs in every version of it and stands first, so that a swap names one
    version. `store` is the id that the mover has given to the target.

    - `protocol`: what producers must keep.
    - `epoch`: the number that fenced enqueues give: see docs/protocol/move.md.
    - `paused`: the queues that people had paused, with their reasons.
    - `limits`: the limits that are shut in the store to which jobs go; `limits_before`: what people had
      set for them there.
    """

    nonce: str
    move: str
    step: MoveStep
    store: str
    address: str
    protocol: int
    epoch: int = 0
    scope: Scope = ALL
    paused: dict[str, str | None] = {}
    limits: tuple[str, ...] = ()
    limits_before: dict[str, GateSpec] = {}
    final_too: bool = False

    def changed(self, **fields: object) -> Route:
        """The next version."""
        return msgspec.structs.replace(self, nonce=secrets.token_hex(8), **fields)

    @property
    def text(self) -> str:
        return msgspec.json.encode(self).decode()

    @property
    def begin(self) -> str:
        """What the text of this version alone begins with."""
        return f'{{"nonce":"{self.nonce}"'


class MoveRecords(NamedTuple):
    """What a store's records say: its route, the id that a mover gave to the store, and the number that
    fenced enqueues give."""

    route: Route | None
    store: str | None
    epoch: int


def read_routes(records: list[KvRecord]) -> MoveRecords:
    """The records of a move, read."""
    bodies = {record.key: record.body for record in records}
    route = None
    if ROUTE in bodies:
        try:
            route = msgspec.json.decode(bodies[ROUTE], type=Route)
        except msgspec.ValidationError as error:
            raise _later(str(error)) from error
        if route.protocol > PROTOCOL:
            raise _later(f"protocol {route.protocol}, here {PROTOCOL}")
    epoch = int(bodies.get(EPOCH, "0")) if route is None else route.epoch
    return MoveRecords(route, bodies.get(STORE), epoch)


def _later(why: str) -> ConfigError:
    return ConfigError(
        f"a move is under way that another release of Winch has begun ({why}); upgrade this process"
    )


def look(driver: Driver) -> Operation[MoveRecords]:
    """Read them from a store, all at one moment."""
    records = yield driver.kv_list(KvFilter(book=BOOK, limit=10))
    return read_routes(records)


def swap(driver: Driver, before: Route | None, after: Route) -> Operation[bool]:
    """Write the next version; False: another process has changed the record since. A repeat after a lost
    answer finds its own text."""
    record = KvRecord(book=BOOK, key=ROUTE, body=after.text)
    there = yield driver.kv_swap(record, instead_of=None if before is None else before.begin)
    return there is None or there == after.text

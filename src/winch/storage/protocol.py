"""What a driver is: the verbs of storage/families.py, the runners that carry them out, its upkeep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Protocol, TypeVar, runtime_checkable

from winch.core.job import Claim
from winch.storage.capabilities import Capabilities
from winch.storage.families import (
    ClaimVerbs,
    EnqueueVerbs,
    FinishVerbs,
    GateVerbs,
    OperatorVerbs,
    ReadVerbs,
    ScheduleVerbs,
    SessionVerbs,
    UpkeepVerbs,
    WaitVerbs,
)
from winch.storage.kv_records import KvVerbs
from winch.storage.parcels import MoveVerbs
from winch.storage.verbs import Sending, Verb

T = TypeVar("T")


class Storage(
    EnqueueVerbs,
    ClaimVerbs,
    FinishVerbs,
    SessionVerbs,
    UpkeepVerbs,
    GateVerbs,
    WaitVerbs,
    ScheduleVerbs,
    OperatorVerbs,
    ReadVerbs,
    KvVerbs,
    MoveVerbs,
    Protocol,
):
    """The queue verbs; the families have the contracts."""


class Bell(Protocol):
    """How an idle worker is woken. A hint, never the truth: a waiting worker also polls."""

    async def arm(self) -> None:
        """Announce that a worker waits. Then look once more, then `wait`: a job stored in between
        rings."""
        ...

    async def wait(self, timeout: float) -> bool:
        """True when it rang, False after `timeout` seconds. Never raises for a broken connection."""
        ...

    async def aclose(self) -> None: ...


@runtime_checkable
class ClaimingBell(Bell, Protocol):
    """A bell of a store that waits for the ring itself and carries a claim out when it comes: the job is
    on its way before the worker knows that it rang."""

    stays_armed: bool
    """Whether it rings again and again once armed. Then arming costs nothing most of the time, and a
    worker that expects to find nothing arms it before it looks, and looks once."""

    async def claim_when_rung(
        self, verb: Verb[list[Claim]], timeout: float, *, is_idle: bool = False
    ) -> list[Claim]:
        """Carry the claim out once it rings, or after `timeout` seconds or fewer. Raises as the claim
        itself does. `is_idle`: nothing runs in this worker that could keep it from hearing, so that
        jobs may be handed over to it."""
        ...

    def rouse(self) -> None:
        """End the wait now: the claim is carried out, or given up where it has not been sent yet."""
        ...


@runtime_checkable
class DeliveringBell(ClaimingBell, Protocol):
    """One that hands jobs over the moment they are read, a turn of the event loop before the claim has
    returned to the caller that waits for it."""

    on_claims: Callable[[list[Claim]], None] | None
    """Called in the event loop with what a claim got, before `claim_when_rung` returns the same and
    maybe more; or not called at all."""


@runtime_checkable
class SnapshotStore(Protocol):
    """A store that keeps old rows while a transaction may still see them: claims walk over them."""

    def oldest_snapshot(self) -> Verb[timedelta]:
        """The age of the oldest transaction of which that is true; zero where there is none. Of other
        users' transactions only a role that may read them knows (`pg_read_all_stats`)."""
        ...


class SchemaStatus(Protocol):
    """Where a store's schema stands: `current` of `newest`; None is no schema at all."""

    @property
    def current(self) -> int | None: ...

    @property
    def newest(self) -> int: ...

    @property
    def is_ready(self) -> bool: ...


def advice(status: SchemaStatus, command: str = "winch") -> str:
    """What to do about a schema that is not ready; `command` is the name of the command line."""
    if status.current is not None and status.current > status.newest:
        return "a later release has migrated it; upgrade Winch here"
    return f"run `{command} migrate`"


class Driver(Storage, Protocol):
    """A store: its verbs, the runners that carry them out, and its upkeep."""

    @property
    def name(self) -> str:
        """The URL scheme's word: memory, sqlite, postgres."""
        ...

    @property
    def capabilities(self) -> Capabilities: ...

    def run(self, verb: Verb[T]) -> T:
        """Carry the verb out and return its result; blocks. Safe from any thread."""
        ...

    def sending(self, verb: Verb[T]) -> Sending[T]:
        """Write the verb now and carry it out in two halves. One thread may have one at a time."""
        ...

    async def arun(self, verb: Verb[T]) -> T:
        """The same without blocking the event loop. Cancelling the caller leaves the outcome open."""
        ...

    def run_on(self, conn: object, verb: Verb[T]) -> T:
        """Carry the verb out on the caller's own connection, inside its transaction; never commits.
        Raises ConfigError for a connection that cannot carry it, with a list of those that can."""
        ...

    async def arun_on(self, conn: object, verb: Verb[T]) -> T:
        """`run_on` for an async connection (a sync one is accepted too)."""
        ...

    def bell(self, queues: Sequence[str], *, due: bool = False) -> Bell:
        """A bell that rings for ready jobs of these queues and, with `due`, for jobs due soon."""
        ...

    def check_schema(self) -> SchemaStatus:
        """Where the schema stands; changes nothing. Raises StorageUnavailable when out of reach."""
        ...

    def migrate(self) -> list[str]:
        """Bring the schema up to date; returns the names of the steps taken. Two at once are safe."""
        ...

    def migration_sql(self) -> str:
        """The statements `migrate` would run now, as text to read."""
        ...

    def describe(self) -> str:
        """The store's address for people, without secrets."""
        ...

    def close(self) -> None:
        """Give back connections, threads and files. The driver opens them again when used again."""
        ...

    async def aclose(self) -> None:
        """`close`, and the async side of the running event loop."""
        ...

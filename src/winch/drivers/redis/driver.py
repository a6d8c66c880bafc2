"""The Redis driver: runners, bells and upkeep. The verbs are in working, operating and reading; what
each does is in lua/, one script per verb."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

from winch.core.errors import ConfigError, SchemaMismatch
from winch.drivers._shared.migrate import Status
from winch.drivers.redis.address import Place, parse_url
from winch.drivers.redis.connections.aio import AsyncSide
from winch.drivers.redis.connections.routing import Route
from winch.drivers.redis.connections.sync import Ahead, Pool, Sent
from winch.drivers.redis.facts import ServerFacts, parse_info, read_facts
from winch.drivers.redis.scripts import Batch, Call, Part, Pause, command
from winch.drivers.redis.verbs.base import Body, Step
from winch.drivers.redis.verbs.claim import WorkingVerbs
from winch.drivers.redis.verbs.kv import BookVerbs
from winch.drivers.redis.verbs.operators import OperatingVerbs
from winch.drivers.redis.verbs.reads import ReadingVerbs
from winch.drivers.redis.verbs.schedules import SchedulingVerbs
from winch.drivers.redis.verbs.waits import WaitingVerbs
from winch.drivers.redis.wakeups.listen import POP, WAITING, ClaimingRedisBell, Listener, RedisBell
from winch.storage.capabilities import Capabilities
from winch.storage.forks import ProcessLock
from winch.storage.verbs import Sending, Unhurried, Verb

T = TypeVar("T")
VERSION = 1
STEP = "0001_layout"
log: logging.Logger = logging.getLogger("winch.redis")


class RedisDriver(WorkingVerbs, OperatingVerbs, ReadingVerbs, BookVerbs, SchedulingVerbs, WaitingVerbs):
    """`redis://host:6379/0?schema=winch`: the lowest latency; what it promises is the server's."""

    capabilities: Capabilities = Capabilities(
        is_durable=True,
        shares_processes=True,
        joins_transactions=False,
        migrates_itself=True,
    )

    def __init__(self, place: Place, *, events: bool = False) -> None:
        self._place = place
        self._key = f"{place.prefix}meta".encode()
        self._keeps_events = events
        self._is_short = not place.is_cluster and not place.replicated
        self._route = self._make_route(place)
        self._pool = Pool(place, self._route)
        self._alike = {}
        self._is_ready = False
        self._is_warned = False
        self._guard = ProcessLock()
        self._sides: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Side] = (
            weakref.WeakKeyDictionary()
        )

    def _make_route(self, place: Place) -> Route:
        return Route(place)

    @classmethod
    def from_url(cls, url: str, *, schema: str | None = None, events: bool = False) -> Self:
        """The driver for a redis:// URL or one of its relatives; opens nothing yet.

        Options in the URL's query: `schema` (what its keys begin with), `timeout` (how long a verb may
        take, 10s), `pool` (connections that the sync side keeps, 8), `replicated` (replicas that must
        confirm an enqueue, 0), `ca_file` and `verify=off` for TLS.
        """
        place = parse_url(url, schema=schema)
        if place.is_remote and not place.is_encrypted:
            log.warning("%s is reached without encryption; use rediss://", place.describe())
        if place.is_remote and place.password is None:
            log.warning("%s is reached without a password", place.describe())
        return cls(place, events=events)

    @property
    def place(self) -> Place:
        return self._place

    @property
    def name(self) -> str:
        return "redis"

    # -- runners -----------------------------------------------------------------------------------

    def run(self, verb: Verb[T]) -> T:
        if not self._is_ready:
            self._run(self._preparing())
            self._is_ready = True
        if verb.lone is not None:
            return verb.lone()
        return self._run(verb.steps())

    def sending(self, verb: Verb[T]) -> Sending[T]:
        if not self._is_ready:
            return Unhurried(self.run, verb)
        steps = verb.steps()
        try:
            return _Halves(self, steps, self._sendable(next(steps)))
        except StopIteration:  # one that has nothing to say
            return Unhurried(self.run, verb)

    def ahead(self, what: Call | Batch | Pause) -> Ahead | None:
        return self._pool.ahead(what)

    def begin(self, what: Call | Batch | Pause, ahead: Ahead | None) -> Sent | None:
        if ahead is not None:
            return self._pool.complete(ahead)
        return None if isinstance(what, Pause) else self._pool.begin(what)

    def end(self, steps: Body[T], what: Call | Batch | Pause, sent: Sent | None) -> T:
        """Wait for the first answer and carry on."""
        reply = self._pool.run(what) if sent is None else self._pool.end(sent)
        try:
            following = steps.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result
        return self._run(steps, following)

    def _run(self, steps: Body[T], what: Step | None = None) -> T:
        """`what`: what the body has said last, if it was begun."""
        try:
            what = what or next(steps)
            while True:
                what = steps.send(self._pool.run(self._sendable(what)))
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _sendable(self, what: Step) -> Call | Batch | Pause:
        if isinstance(what, Part):
            raise TypeError("only the driver for a cluster has parts")
        return what

    async def arun(self, verb: Verb[T]) -> T:
        side = self._side()
        if not self._is_ready:
            await self._arun(self._preparing(), side.wires)
            self._is_ready = True
        return await self._arun(verb.steps(), side.wires)

    async def _arun(self, steps: Body[T], wires: AsyncSide) -> T:
        try:
            what = next(steps)
            while True:
                what = steps.send(await wires.run(self._sendable(what)))
        except StopIteration as stop:
            result: T = stop.value
            return result

    def run_on(self, conn: object, verb: Verb[T]) -> T:
        raise ConfigError(
            f"conn= needs a store that shares the caller's database; {self.describe()} has no "
            "transactions to join. Use a sqlite:/// or postgresql:// URL"
        )

    async def arun_on(self, conn: object, verb: Verb[T]) -> T:
        return self.run_on(conn, verb)

    def _side(self) -> _Side:
        loop = asyncio.get_running_loop()
        side = self._sides.get(loop)
        if side is None:
            with self._guard:
                for other in [other for other in self._sides if other.is_closed()]:
                    self._sides.pop(other)
                side = self._sides[loop] = _Side(self)
        return side

    # -- waking ------------------------------------------------------------------------------------

    def bell(self, queues: Sequence[str], *, due: bool = False) -> RedisBell:
        return RedisBell(self._side().listener, queues, due=due)

    def claiming_bell(self, queues: Sequence[str]) -> RedisBell:
        """The bell of a worker, which claims as soon as it rings; not in a cluster, where the claim may
        have to go to another server."""
        side = self._side()
        if self._place.is_cluster:
            return RedisBell(side.listener, queues, due=False)
        return ClaimingRedisBell(
            side.listener,
            queues,
            side=AsyncSide(self._place, self._route),  # a blocking pop keeps its connection to itself
            run=side.wires.run,
            prefix=self._place.prefix,
            announce=self._announce,
            longest=min(POP, self._place.timeout / 2),
        )

    def _bell_points(self) -> list[tuple[int, str]]:
        """Where wake-ups come to: a part of the store, and what its keys begin with."""
        return [(0, self._place.prefix)]

    async def _announce(self, waiter: str, names: Sequence[str]) -> None:
        def body() -> Body[None]:
            yield self._call("wait", waiter=waiter, names=names, seconds=WAITING)

        await self.arun(Verb("wait", body))

    # -- upkeep ------------------------------------------------------------------------------------

    def _preparing(self) -> Body[list[str]]:
        """What is looked at before the first verb: the layout, and whether the server drops keys."""
        for told in (yield from self._infos()):
            self._check(told)
        before, after, _ = yield from self._lay_out(version=VERSION, events=self._keeps_events)
        if int(after) > VERSION:
            raise SchemaMismatch(
                f"{self.describe()} has layout {int(after)}, this release knows {VERSION}: upgrade Winch"
            )
        return [] if before else [STEP]

    def _infos(self) -> Body[list[Mapping[str, str]]]:
        """What each server says of itself."""
        return [parse_info((yield command("INFO", "everything")))]

    def _lay_out(self, **args: Any) -> Body[Any]:
        return (yield self._call("migrate", **args))

    def _check(self, told: Mapping[str, str]) -> None:
        policy = told.get("maxmemory_policy", "")
        if policy.startswith("allkeys"):
            raise ConfigError(
                f"{self.describe()}: maxmemory-policy is {policy}, so the server "
                "drops jobs when memory is short; set it to noeviction, or give Winch its own server"
            )
        version = told.get("redis_version", "7.0")
        if int(version.partition(".")[0]) < 7:
            raise ConfigError(f"{self.describe()} is Redis {version}; Winch needs 7.0 or later")
        if told.get("aof_enabled") == "0" and not self._is_warned:
            self._is_warned = True
            log.warning(
                "%s writes nothing to disk as it happens (appendonly no): a restart of the server loses "
                "jobs. `winch doctor` says more",
                self.describe(),
            )

    def check_schema(self) -> Status:
        found: bytes | None = self._pool.run(command("HGET", self._key, "version"))
        current = None if found is None else int(found)
        return Status(current, VERSION, is_ready=current == VERSION)

    def migrate(self) -> list[str]:
        taken = self._run(self._preparing())
        self._is_ready = True
        return taken

    def migration_sql(self) -> str:
        if self.check_schema().is_ready:
            return ""
        return f"HSET {self._key.decode()} version {VERSION}"

    def erase(self) -> None:
        """Remove every key of this store: for tests."""
        self.check_schema()  # in a cluster: finds the node that has the slot
        cursor = b"0"
        while True:
            cursor, keys = self._pool.run(
                command("SCAN", cursor, "MATCH", f"{self._place.prefix}*", "COUNT", 1000)
            )
            if keys:
                self._pool.run(command("UNLINK", *keys))
            if cursor == b"0":
                break
        self._is_ready = False

    def forget_scripts(self) -> None:
        """Make the server forget its scripts, as a restart does: for tests."""
        self._pool.run(command("SCRIPT", "FLUSH"))

    def facts(self) -> dict[str, ServerFacts]:
        """What there is to know about each server that has a part of the store, for `winch doctor`."""
        self.check_schema()  # finds the primary, where there are sentinels
        return {self.describe(): read_facts(self._pool.run)}

    def describe(self) -> str:
        return self._place.describe()

    def close(self) -> None:
        """Give back the sync side's connections."""
        self._pool.close()
        self._is_ready = False

    async def aclose(self) -> None:
        side = self._sides.pop(asyncio.get_running_loop(), None)
        if side is not None:
            await side.close()
        self.close()


class _Side:
    """What a driver holds in one event loop."""

    def __init__(self, driver: RedisDriver) -> None:
        self.wires = AsyncSide(driver._place, driver._route)
        # A blocking pop keeps its connection to itself.
        self.listener = Listener(
            AsyncSide(driver._place, driver._route), driver._bell_points, driver._announce
        )

    async def close(self) -> None:
        await self.listener.close()
        await self.wires.aclose()


class _Halves(Generic[T]):
    """A verb whose first call is written ahead, and where it is long sent but for its last bytes: the
    server does nothing about it before it has those."""

    def __init__(self, driver: RedisDriver, steps: Body[T], what: Call | Batch | Pause) -> None:
        self._driver = driver
        self._steps = steps
        self._what = what
        self._sent: Sent | None = None
        self._ahead = driver.ahead(what)

    def send(self) -> None:
        ahead, self._ahead = self._ahead, None
        self._sent = self._driver.begin(self._what, ahead)

    def answer(self) -> T:
        return self._driver.end(self._steps, self._what, self._sent)

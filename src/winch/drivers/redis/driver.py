"""The Redis driver: what runs the verbs, bells and upkeep. The verbs are in verbs/; what each does in
the store is in lua/, one script per verb."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar

from winch.drivers._shared.callers import no_transactions
from winch.drivers._shared.composed import ComposedDriver, Families
from winch.drivers._shared.migrate import Status
from winch.drivers.redis.address import Address, parse_url
from winch.drivers.redis.connections.aio import LoopConnections
from winch.drivers.redis.connections.pool import Pool
from winch.drivers.redis.connections.routing import ServerRoute
from winch.drivers.redis.connections.sync import SyncConnection
from winch.drivers.redis.facts import ServerFacts, parse_info, read_facts
from winch.drivers.redis.fast.claiming_bell import ClaimingRedisBell
from winch.drivers.redis.fast.lone_enqueue import LoneEnqueue
from winch.drivers.redis.fast.sending import SentInHalves
from winch.drivers.redis.fast.spin_wait import SpinningConnection
from winch.drivers.redis.schema import STEP, VERSION, check_layout, check_server
from winch.drivers.redis.scripts import command
from winch.drivers.redis.verbs.base import Base, Body, run_body
from winch.drivers.redis.verbs.claim import ClaimVerbs
from winch.drivers.redis.verbs.enqueue import EnqueueVerbs
from winch.drivers.redis.verbs.finish import FinishVerbs
from winch.drivers.redis.verbs.gates import GateVerbs
from winch.drivers.redis.verbs.kv import KvVerbs
from winch.drivers.redis.verbs.moves import MoveVerbs
from winch.drivers.redis.verbs.operators import OperatorVerbs
from winch.drivers.redis.verbs.reads import ReadVerbs
from winch.drivers.redis.verbs.schedules import ScheduleVerbs
from winch.drivers.redis.verbs.sessions import SessionVerbs
from winch.drivers.redis.verbs.upkeep import UpkeepVerbs
from winch.drivers.redis.verbs.waits import WaitVerbs
from winch.drivers.redis.wakeups.listen import POP, WAITING, Listener, RedisBell
from winch.storage.capabilities import Capabilities
from winch.storage.fast import is_fast
from winch.storage.forks import ProcessLock
from winch.storage.verbs import Sending, Unhurried, Verb

T = TypeVar("T")
log: logging.Logger = logging.getLogger("winch.redis")


class RedisDriver(ComposedDriver):
    """`redis://host:6379/0?schema=winch`: the lowest latency; what it promises is the server's."""

    continues_limits: bool = True
    capabilities: Capabilities = Capabilities(joins_transactions=False)

    def __init__(self, address: Address, *, events: bool = False) -> None:
        self._address = address
        self._keeps_events = events
        self._is_fast = is_fast()
        self._route = self._make_route(address)
        self._pool = Pool(address, self._route, SpinningConnection if self._is_fast else SyncConnection)
        self._base = self._make_base(address)
        self._compose()
        self._is_ready = False
        self._is_warned = False
        self._guard = ProcessLock()
        self._in_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _InLoop] = (
            weakref.WeakKeyDictionary()
        )

    def _make_route(self, address: Address) -> ServerRoute:
        return ServerRoute(address)

    def _make_base(self, address: Address) -> Base:
        return Base(f"{address.prefix}meta".encode(), replicated=address.replicated)

    def _compose(self) -> None:
        """Put the families of verbs together."""
        base = self._base
        enqueue = EnqueueVerbs(base)
        gates = GateVerbs(base)
        has_lone = self._is_fast and not self._address.replicated
        self._adopt(
            Families(
                enqueue=LoneEnqueue(base, enqueue, self._pool) if has_lone else enqueue,
                claim=ClaimVerbs(base),
                finish=FinishVerbs(base),
                sessions=SessionVerbs(base),
                upkeep=UpkeepVerbs(base),
                gates=gates,
                waits=WaitVerbs(base, enqueue),
                schedules=ScheduleVerbs(base),
                operators=OperatorVerbs(base),
                reads=ReadVerbs(base, gates),
                kv=KvVerbs(base),
                moves=MoveVerbs(base, enqueue),
            )
        )

    @classmethod
    def from_url(cls, url: str, *, schema: str | None = None, events: bool = False) -> Self:
        """The driver for a redis:// URL or one of its relatives; opens nothing yet.

        Options in the URL's query: `schema` (what its keys begin with), `timeout` (how long a verb may
        take, 10s), `pool` (connections that the sync side keeps, 8), `replicated` (replicas that must
        confirm an enqueue, 0), `ca_file` and `verify=off` for TLS.
        """
        address = parse_url(url, schema=schema)
        if address.is_remote and not address.is_encrypted:
            log.warning("%s is used without encryption; use rediss://", address.describe())
        if address.is_remote and address.password is None:
            log.warning("%s is used without a password", address.describe())
        return cls(address, events=events)

    @property
    def address(self) -> Address:
        return self._address

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
        return run_body(self._pool, self._base, verb.steps())

    def sending(self, verb: Verb[T]) -> Sending[T]:
        if not self._is_fast or not self._is_ready:
            return Unhurried(self.run, verb)
        steps = verb.steps()
        try:
            first = self._base.sendable(next(steps))
        except StopIteration:  # a verb that sends nothing
            return Unhurried(self.run, verb)
        return SentInHalves(self._pool, self._base, steps, first)

    def _run(self, steps: Body[T]) -> T:
        return run_body(self._pool, self._base, steps)

    async def arun(self, verb: Verb[T]) -> T:
        held = self._in_loop()
        if not self._is_ready:
            await self._arun(self._preparing(), held.pool)
            self._is_ready = True
        return await self._arun(verb.steps(), held.pool)

    async def _arun(self, steps: Body[T], pool: LoopConnections) -> T:
        try:
            what = next(steps)
            while True:
                what = steps.send(await pool.run(self._base.sendable(what)))
        except StopIteration as stop:
            result: T = stop.value
            return result

    def run_on(self, conn: object, verb: Verb[T]) -> T:
        raise no_transactions(self.describe())

    async def arun_on(self, conn: object, verb: Verb[T]) -> T:
        return self.run_on(conn, verb)

    def _in_loop(self) -> _InLoop:
        loop = asyncio.get_running_loop()
        held = self._in_loops.get(loop)
        if held is None:
            with self._guard:
                for other in [other for other in self._in_loops if other.is_closed()]:
                    self._in_loops.pop(other)
                held = self._in_loops[loop] = _InLoop(self)
        return held

    # -- waking ------------------------------------------------------------------------------------

    def bell(self, queues: Sequence[str], *, due: bool = False) -> RedisBell:
        return RedisBell(self._in_loop().listener, queues, due=due)

    def claiming_bell(self, queues: Sequence[str]) -> RedisBell:
        """The bell of a worker: it claims as soon as it rings, where it can."""
        held = self._in_loop()
        if not self._is_fast or self._address.is_cluster:
            return RedisBell(held.listener, queues, due=False)
        return ClaimingRedisBell(
            held.listener,
            queues,
            pool=LoopConnections(
                self._address, self._route
            ),  # a blocking pop keeps its connection to itself
            run=held.pool.run,
            prefix=self._address.prefix,
            announce=self._announce,
            longest=min(POP, self._address.timeout / 2),
        )

    def _bell_points(self) -> list[tuple[int, str]]:
        """Where wake-ups come to: a part of the store, and what its keys begin with."""
        return [(0, self._address.prefix)]

    async def _announce(self, waiter: str, names: Sequence[str]) -> None:
        def body() -> Body[None]:
            yield self._base.call("wait", waiter=waiter, names=names, seconds=WAITING)

        await self.arun(Verb("wait", body))

    # -- upkeep ------------------------------------------------------------------------------------

    def _preparing(self) -> Body[list[str]]:
        """Before the first verb: check the servers, and write or check the layout."""
        for info in (yield from self._infos()):
            check_server(info, self.describe())
            self._warn_of(info)
        before, after, *_ = yield from self._lay_out(version=VERSION, events=self._keeps_events)
        check_layout(int(after), self.describe())
        return [] if before else [STEP]

    def _infos(self) -> Body[list[Mapping[str, str]]]:
        """INFO of each server."""
        return [parse_info((yield command("INFO", "everything")))]

    def _lay_out(self, **args: Any) -> Body[Any]:
        return (yield self._base.call("migrate", **args))

    def _warn_of(self, info: Mapping[str, str]) -> None:
        if info.get("aof_enabled") == "0" and not self._is_warned:
            self._is_warned = True
            log.warning(
                "%s does not write changes to disk (appendonly no): a restart of the server loses "
                "jobs. `winch doctor` has details",
                self.describe(),
            )

    def check_schema(self) -> Status:
        found: bytes | None = self._pool.run(command("HGET", self._base.key, "version"))
        current = None if found is None else int(found)
        return Status(current, VERSION, is_ready=current == VERSION)

    def migrate(self) -> list[str]:
        taken = self._run(self._preparing())
        self._is_ready = True
        return taken

    def migration_sql(self) -> str:
        if self.check_schema().is_ready:
            return ""
        return f"HSET {self._base.key.decode()} version {VERSION}"

    def erase(self) -> None:
        """Remove every key of this store: for tests."""
        self.check_schema()  # in a cluster: finds the node that has the slot
        cursor = b"0"
        while True:
            cursor, keys = self._pool.run(
                command("SCAN", cursor, "MATCH", f"{self._address.prefix}*", "COUNT", 1000)
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
        return self._address.describe()

    def close(self) -> None:
        """Give back the sync side's connections."""
        self._pool.close()
        self._is_ready = False

    async def aclose(self) -> None:
        held = self._in_loops.pop(asyncio.get_running_loop(), None)
        if held is not None:
            await held.close()
        self.close()


class _InLoop:
    """What a driver holds in one event loop."""

    def __init__(self, driver: RedisDriver) -> None:
        self.pool = LoopConnections(driver._address, driver._route)
        # A blocking pop keeps its connection to itself.
        self.listener = Listener(
            LoopConnections(driver._address, driver._route), driver._bell_points, driver._announce
        )

    async def close(self) -> None:
        await self.listener.close()
        await self.pool.aclose()

"""The driver for a cluster: the verbs of one server, each carried out in the parts of the store that it
concerns.

A job that stands alone lives in one of 64 shards, found by its id. One whose only tie is a keyed gate
lives in the shard of the key, which its id names too (homes.py). One that has to do with others in more
ways (a unique key, several gates, a tenant, something that waits for it) lives at home, where one script
sees all of them; so does everything that is no job. `docs/protocol.md` describes what holds across
parts. How they are reached is in fan_out.py, the way home in handover.py, the verbs are in verbs/.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from winch.drivers._shared.composed import Families
from winch.drivers.redis.address import Address
from winch.drivers.redis.cluster.fan_out import ClusterBase, FanOut, whole
from winch.drivers.redis.cluster.handover import Handover
from winch.drivers.redis.cluster.homes import GateHomes
from winch.drivers.redis.cluster.shards import EVERYWHERE, HOME, ClusterRoute, meta_keys, tags
from winch.drivers.redis.cluster.verbs.claim import ClusterClaimVerbs
from winch.drivers.redis.cluster.verbs.enqueue import ClusterEnqueueVerbs
from winch.drivers.redis.cluster.verbs.finish import ClusterFinishVerbs
from winch.drivers.redis.cluster.verbs.gates import ClusterGateVerbs
from winch.drivers.redis.cluster.verbs.moves import ClusterMoveVerbs
from winch.drivers.redis.cluster.verbs.operators import ClusterOperatorVerbs
from winch.drivers.redis.cluster.verbs.reads import ClusterReadVerbs
from winch.drivers.redis.cluster.verbs.schedules import ClusterScheduleVerbs
from winch.drivers.redis.cluster.verbs.sessions import ClusterSessionVerbs
from winch.drivers.redis.cluster.verbs.upkeep import ClusterUpkeepVerbs
from winch.drivers.redis.cluster.verbs.waits import ClusterWaitVerbs
from winch.drivers.redis.connections.routing import ServerRoute
from winch.drivers.redis.driver import RedisDriver
from winch.drivers.redis.facts import ServerFacts, parse_info, read_facts
from winch.drivers.redis.scripts import ScriptBatch, ScriptCall, command
from winch.drivers.redis.verbs.base import Body
from winch.drivers.redis.verbs.enqueue import EnqueueVerbs
from winch.drivers.redis.verbs.finish import FinishVerbs
from winch.drivers.redis.verbs.kv import KvVerbs
from winch.drivers.redis.verbs.moves import MoveVerbs
from winch.drivers.redis.verbs.operators import OperatorVerbs
from winch.drivers.redis.verbs.reads import ReadVerbs
from winch.drivers.redis.verbs.sessions import SessionVerbs
from winch.drivers.redis.verbs.upkeep import UpkeepVerbs
from winch.drivers.redis.wakeups.listen import WAITING
from winch.storage.verbs import Verb

_REMOVE = "#!lua flags=allow-cross-slot-keys\nfor i = 1, #ARGV do redis.call('UNLINK', ARGV[i]) end"


class RedisClusterDriver(RedisDriver):
    """`redis+cluster://host1,host2,host3?schema=winch`: one store over many machines."""

    # A look at all parts would come before each end, and most limits are at home.
    continues_limits: bool = False
    _base: ClusterBase
    _route: ClusterRoute

    @property
    def name(self) -> str:
        return "redis+cluster"

    def _make_route(self, address: Address) -> ServerRoute:
        return ClusterRoute(address)

    def _make_base(self, address: Address) -> ClusterBase:
        return ClusterBase(f"{address.prefix}meta".encode(), replicated=address.replicated)

    def _compose(self) -> None:
        """Put the families together: those of one server, in the parts that they concern. Schedules and
        books are at home, where a call goes that nothing has sent elsewhere."""
        base, route = self._base, self._route
        fan_out = self._fan_out = FanOut(route)
        homes = self._homes = GateHomes(base, fan_out)
        handover = self._handover = Handover(base, fan_out, route, homes)
        enqueue = EnqueueVerbs(base)
        claim = ClusterClaimVerbs(base, fan_out, handover)
        gates = ClusterGateVerbs(base, fan_out, handover)
        plain_reads = ReadVerbs(base, gates)
        reads = ClusterReadVerbs(plain_reads, base, fan_out, handover, route, gates)
        spread = ClusterEnqueueVerbs(enqueue, fan_out, plain_reads, reads, route, base.replicated, homes)
        self._adopt(
            Families(
                enqueue=spread,
                claim=claim,
                finish=ClusterFinishVerbs(FinishVerbs(base), claim, fan_out, handover),
                sessions=ClusterSessionVerbs(SessionVerbs(base), base, fan_out),
                upkeep=ClusterUpkeepVerbs(UpkeepVerbs(base), base, fan_out, handover, gates),
                gates=gates,
                waits=ClusterWaitVerbs(base, enqueue, handover, homes),
                schedules=ClusterScheduleVerbs(base, homes),
                operators=ClusterOperatorVerbs(OperatorVerbs(base), fan_out, handover, homes),
                reads=reads,
                kv=KvVerbs(base),
                moves=ClusterMoveVerbs(MoveVerbs(base, enqueue), fan_out, homes, spread),
            )
        )

    # -- upkeep ------------------------------------------------------------------------------------

    def _infos(self) -> Body[list[Mapping[str, str]]]:
        yield from self._fan_out.learn()
        calls: list[ScriptCall] = [
            command("INFO", "everything", where=number) for number in self._route.bells()
        ]
        return [parse_info(reply) for reply in whole((yield ScriptBatch(calls)))]

    def _lay_out(self, **args: Any) -> Body[Any]:
        asked = [(number, self._base.call("migrate", **args)) for number in EVERYWHERE]
        home = whole((yield from self._fan_out.ask(asked)))[HOME]
        self._homes.are_spread = home[3] == b"spread"
        return home

    def erase(self) -> None:
        """Remove every key of this store: for tests."""
        self._run(self._fan_out.learn())
        home, *_ = tags(self._address.schema)
        for number in self._route.bells():
            cursor = b"0"
            while True:
                cursor, keys = self._pool.run(
                    command("SCAN", cursor, "MATCH", f"{{{home}[.}}]*", "COUNT", 1000, where=number)
                )
                if keys:
                    self._pool.run(command("EVAL", _REMOVE, 1, keys[0], *keys, where=number))
                if cursor == b"0":
                    break
        self._is_ready = False
        self._handover.claimed_at_home.clear()
        self._homes.forget()

    def facts(self) -> dict[str, ServerFacts]:
        self._run(self._fan_out.learn())
        found = {}
        for number in self._route.bells():
            host, port = self._route.owners[number]
            found[f"{host}:{port}"] = read_facts(
                lambda what, where=number: self._pool.run(replace(what, where=where))  # type: ignore[misc]
            )
        return found

    def forget_scripts(self) -> None:
        self._run(self._fan_out.learn())
        for number in self._route.bells():
            self._pool.run(command("SCRIPT", "FLUSH", where=number))

    def _bell_points(self) -> list[tuple[int, str]]:
        return [
            (number, meta_keys(self._address.schema)[number].removesuffix("meta"))
            for number in self._route.bells()
        ]

    async def _announce(self, waiter: str, names: Sequence[str]) -> None:
        def body() -> Body[None]:
            if self._route.is_stale:
                yield from self._fan_out.learn()
            what = self._base.call("wait", waiter=waiter, names=names, seconds=WAITING)
            whole((yield from self._fan_out.ask([(number, what) for number in self._route.bells()])))

        await self.arun(Verb("wait", body))

"""Which part of a store in a cluster a job with gates lives in: see docs/adr/0017.

A job whose only gate has a key lives in the shard of that key, and its gate does too. A family of gates
(one name, keys of one shard) goes home for good when the first job needs one of them together with
something else: `gather` shuts it at home and in its shard, moves all its jobs home, and opens it there.
So each gate has one home for all jobs that use it. Searched by tests/model/gate_homes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from winch.core.gates.places import families_of, lone_place
from winch.drivers.redis.cluster.fan_out import ClusterBase, FanOut, whole
from winch.drivers.redis.cluster.shards import HOME, shard_of
from winch.drivers.redis.scripts import PartCall
from winch.drivers.redis.verbs.base import Body
from winch.storage.decide.waits import AWAITED_HEADER
from winch.storage.params import NewJob

T = TypeVar("T")
# How many jobs of a shard are looked at in one call.
SCANNED = 1000


class GateHomes:
    """Knows which families of gates are at home, and brings more of them there."""

    def __init__(self, base: ClusterBase, fan_out: FanOut) -> None:
        self._call = base.call
        self._replicated = base.replicated
        self._fan_out = fan_out
        self._at_home: set[str] = set()
        self.are_spread: bool = True
        """False in a store that an earlier release has laid out: all gates are at home there."""
        self.move: Callable[[Sequence[str]], Body[None]]
        """Moves jobs of any state home; of the hand-over."""
        self.confirmed: Callable[[Any, int], Any]
        """The reply of a call, where enough replicas have confirmed it; of the hand-over."""

    def forget(self) -> None:
        """The store was erased."""
        self._at_home.clear()

    def of(self, job: NewJob) -> int:
        """The part that a new job is stored in."""
        if (
            job.unique_key is not None
            or job.tenant is not None
            or (bool(job.headers) and AWAITED_HEADER in job.headers)
        ):
            return HOME
        place = lone_place(job.options)
        if place is not None:
            is_there = self.are_spread and not job.is_given_id and shard_of(job.id) == 1 + place
            (family,) = families_of(job.options)
            return 1 + place if is_there and family not in self._at_home else HOME
        is_gated = job.fifo is not None or (
            job.options is not None and job.options.startswith('{"gates":')
        )
        return HOME if is_gated else shard_of(job.id)

    def gather_for(self, jobs: Iterable[NewJob]) -> Body[None]:
        """Before these jobs are stored at home: bring the families of their gates there."""
        for family in sorted({one for job in jobs for one in families_of(job.options)}):
            yield from self.gather(family)

    def gather(self, family: str, *, is_doubted: bool = False) -> Body[None]:
        """Bring a family of gates home, with all its jobs. Any driver may continue what another began:
        each step changes nothing that is done. `is_doubted`: its shard may not know that it has."""
        if not self.are_spread or (family in self._at_home and not is_doubted):
            return
        name, shard = family.rpartition("@")[0], _shard_of(family)
        is_done, _ = yield from self._ask(HOME, "shut", family=family)
        if not is_done or is_doubted:
            _, remembered = yield from self._ask(shard, "shut", family=family, name=name)
            queues = yield from self._empty(shard, family)
            gates = list(zip(remembered[::3], remembered[1::3], remembered[2::3], strict=True))
            yield from self._ask(
                HOME,
                "open_home",
                blobs=[state for _, state, _ in gates],
                family=family,
                gates=[(key.decode(), until.decode()) for key, _, until in gates],
                queues=queues,
            )
        self._at_home.add(family)

    def _empty(self, shard: int, family: str) -> Body[list[str]]:
        """Move all jobs of the family out of the shard, which takes no new ones; their queues."""
        queues: set[str] = set()
        while True:
            cursor, is_clean = "0", True
            while True:
                what = self._call("users", family=family, cursor=cursor, count=SCANNED)
                ((after, ids, names),) = whole((yield from self._fan_out.ask([(shard, what)])))
                queues |= {one.decode() for one in names}
                if ids:
                    is_clean = False
                    yield from self.move([one.decode() for one in ids])
                cursor = after.decode()
                if cursor == "0":
                    break
            if is_clean:
                return sorted(queues)

    def _ask(self, number: int, script: str, **args: Any) -> Body[Any]:
        """Call a script in one part; where the store replicates, replicas have what it wrote."""
        wanted = self._replicated
        what = self._call(script, confirmations=wanted, confirm=wanted > 0, **args)
        (reply,) = whole((yield from self._fan_out.ask([(number, what)])))
        return self.confirmed(reply, wanted)

    def settle(self) -> Body[None]:
        """Go on with families whose way home was begun and not ended, and shut them again in shards that
        a failover has set back."""
        what = self._call("going_home")
        ((under_way, here),) = whole((yield from self._fan_out.ask([(HOME, what)])))
        for family in under_way:
            yield from self.gather(family.decode(), is_doubted=True)
        by_shard: dict[int, list[str]] = {}
        for family in here:
            by_shard.setdefault(_shard_of(family.decode()), []).append(family.decode())
        asked = [(shard, self._call("unshut", families=some)) for shard, some in by_shard.items()]
        for some in whole((yield from self._fan_out.ask(asked))) if asked else ():
            for family in some:
                yield from self.gather(family.decode(), is_doubted=True)

    def at_home(self, body: Body[T]) -> Body[T]:
        """A body whose calls go home and may store jobs: the families of their gates go before."""
        what: Any = next(body)
        while True:
            for family in what.args.pop("families", ()) if isinstance(what, PartCall) else ():
                yield from self.gather(family)
            try:
                what = body.send((yield what))
            except StopIteration as stop:
                result: T = stop.value
                return result


def _shard_of(family: str) -> int:
    return int(family.rpartition("@")[2])

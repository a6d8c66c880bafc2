"""Gates here: a script is alone on the server, so a look at a gate is its lock.

Lua decides, by the rules of `core.gates`: see gates, rates, scopes, draw and admit in
lua/parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from winch.core.gates.uses import LIMIT, GateSpec, Look, gates_of
from winch.core.job import JobRecord, from_micros
from winch.core.lifecycle import JobState
from winch.core.policy.queue_settings import QueueRule
from winch.drivers.redis.records import micros
from winch.drivers.redis.verbs.base import Base, Body
from winch.storage.decide.gates import AHEAD, CODE, Setting, gate_info, named_limits, queue_info
from winch.storage.gate_records import GateInfo, LimitInfo
from winch.storage.params import ClaimRef, Promoted
from winch.storage.verbs import Now, Verb

# How many gates a sweep looks at; where more are waited at, it is another choice each time.
SWEPT = 1000


class _StoredSetting(msgspec.Struct):
    spec: GateSpec
    is_live: bool
    by: str
    at: int


_set = msgspec.msgpack.Decoder(_StoredSetting)
_decode = msgspec.msgpack.Decoder().decode


class GateVerbs:
    """Limits, rates, FIFO keys, tenants and scopes; see storage/families.py for the contracts."""

    def __init__(self, base: Base) -> None:
        self._call = base.call

    def admit(self, *, limit: int = 1000, is_sweep: bool = False, now: Now = None) -> Verb[Promoted]:
        def body() -> Body[Promoted]:
            at, count, next_at = yield self._call(
                "admit", now=micros(now), limit=limit, is_sweep=is_sweep, many=SWEPT
            )
            return Promoted(count, None if next_at < 0 else from_micros(next_at), from_micros(at))

        return Verb("admit", body)

    def set_limits(
        self, specs: Mapping[str, GateSpec | None], *, by: str | None, now: Now = None
    ) -> Verb[None]:
        def body() -> Body[None]:
            yield self._call(
                "set_limits",
                now=micros(now),
                specs={name: False if spec is None else spec for name, spec in specs.items()},
                by=by or CODE,
                is_live=by is not None,
            )

        return Verb("set_limits", body)

    def set_queue(self, queue: str, rule: QueueRule, *, now: Now = None) -> Verb[None]:
        def body() -> Body[None]:
            yield from self.set_here(queue, rule, now)

        return Verb("set_queue", body)

    def set_here(
        self,
        queue: str,
        rule: QueueRule,
        now: datetime | None,
        *,
        is_shard: bool = False,
        number: int | None = None,
    ) -> Body[list[ClaimRef]]:
        """Set the rule, then give ready jobs the places that the order gives them, some at a time. Jobs
        that are stored meanwhile have theirs. In a shard of a cluster: the claims to be counted at
        home. `number`: of the rule, in a cluster."""
        is_changed, running = yield self._call(
            "set_queue",
            now=micros(now),
            queue=queue,
            concurrency=rule.concurrency or False,
            is_strict=rule.is_strict,
            is_shard=is_shard,
            number=number,
        )
        # A job that is held or let in meanwhile is met in the next set, or has its place already.
        for name in ("ready", "gated", "tenanted", "blocked") if is_changed else ():
            cursor = "0"
            while True:
                cursor = (yield self._call("rescore", queue=queue, set=name, cursor=cursor)).decode()
                if cursor == "0":
                    break
        return [ClaimRef(job.decode(), token.decode()) for job, token in _pairs(running)]

    def limits(self) -> Verb[list[LimitInfo]]:
        def body() -> Body[list[LimitInfo]]:
            rows, used, waiting, caps = yield self._call("limits")
            return read_limits(rows, used, waiting, caps)

        return Verb("limits", body, is_read=True)

    def has_gated(self, queues: Sequence[str]) -> Verb[bool]:
        def body() -> Body[bool]:
            return bool((yield self._call("has_gated", queues=queues)))

        return Verb("has_gated", body, is_read=True)

    def gate_of(self, job: JobRecord) -> Body[GateInfo | None]:
        """The gate a blocked job waits at; or that of its queue, where a ready job waits for that."""
        if job.state is JobState.READY:
            n, used, names = yield self._call("explain_queue", queue=job.queue, holders=AHEAD)
            return queue_info(job.queue, int(n) if n else None, used, [one.decode() for one in names])
        use = next((use for use in gates_of(job.options) if use.key == job.gate), None)
        if use is None or job.state is not JobState.BLOCKED:
            return None
        used, state, setting, turn, head, open_at, holders, ahead = yield self._call(
            "explain_gate",
            id=job.id,
            key=use.key,
            is_limit=use.kind == LIMIT,
            limit=use.name,
            holders=AHEAD,
        )
        look = Look(
            use.key,
            used=int(used or 0),
            state=None if state is None else msgspec.json.encode(_decode(state)).decode(),
            spec=None if setting is None else read_setting(setting).spec,
            turn=None if turn is None else turn.decode(),
            head=head.decode() if head else None,
            open_at=None if open_at is None else int(float(open_at)),
        )
        return gate_info(look, use, sorted(one.decode() for one in holders), max(ahead, 0))


def read_limits(
    rows: Sequence[Any], used: Sequence[Any], waiting: Sequence[Any], caps: Sequence[Any]
) -> list[LimitInfo]:
    """The limits from a reply of lua/limits.lua."""
    settings = {name.decode(): read_setting(data) for name, data in _pairs(rows)}
    return named_limits(
        settings,
        [(key.decode(), int(count)) for key, count in _pairs(used)],
        [(key.decode(), count) for key, count in _pairs(waiting)],
        [(queue.decode(), int(n)) for queue, n in _pairs(caps)],
    )


def read_setting(data: bytes) -> Setting:
    found = _set.decode(data)
    return Setting(found.spec, found.is_live, found.by, from_micros(found.at))


def _pairs(reply: Sequence[Any]) -> list[tuple[Any, Any]]:
    return list(zip(reply[::2], reply[1::2], strict=True))

"""Limits, rates, FIFO keys and tenants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from winch.core.gates.uses import GateSpec, name_of_key
from winch.core.job import from_micros
from winch.core.policy.queue_settings import QueueRule
from winch.core.values.codec import to_json
from winch.drivers.sqlite.connections.writer import store_time
from winch.drivers.sqlite.statements import Ring
from winch.drivers.sqlite.verbs import permits
from winch.drivers.sqlite.verbs.base import Body, query, verb
from winch.storage.decide.gates import CODE, Setting, named_limits
from winch.storage.gate_records import LimitInfo
from winch.storage.params import Promoted
from winch.storage.verbs import Now, Verb


class GateVerbs:
    """See GateVerbs in storage/families.py for the contracts."""

    def admit(self, *, limit: int = 1000, is_sweep: bool = False, now: Now = None) -> Verb[Promoted]:
        def body() -> Body[Promoted]:
            at = store_time(now)
            if is_sweep:
                yield from query("admit.forget")
                rows = yield from query("admit.all")
            else:
                rows = yield from query("admit.due", now=at, limit=limit)
            count = yield from permits.open_gates([row[0] for row in rows], at)
            ((next_at,),) = yield from query("admit.next")
            return Promoted(count, None if next_at is None else from_micros(next_at), from_micros(at))

        return verb("admit", body)

    def set_limits(
        self, specs: Mapping[str, GateSpec | None], *, by: str | None, now: Now = None
    ) -> Verb[None]:
        def body() -> Body[None]:
            at = store_time(now)
            for name, spec in specs.items():
                values = {"limit": name, "is_live": int(by is not None), "by": by or CODE, "now": at}
                if spec is None:
                    yield from query("set_limits.remove", **values)
                else:
                    yield from query("set_limits", spec=msgspec.json.encode(spec).decode(), **values)
            keys = [row[0] for row in (yield from query("admit.all"))]
            yield from permits.open_gates([key for key in keys if name_of_key(key) in specs], at)

        return verb("set_limits", body)

    def set_queue(self, queue: str, rule: QueueRule, *, now: Now = None) -> Verb[None]:
        def body() -> Body[None]:
            values = {"queue": queue, "concurrency": rule.concurrency, "is_strict": int(rule.is_strict)}
            yield from query("set_queue", **values)
            if rule.concurrency is not None:
                yield from query("set_queue.count", queue=queue)
                yield from query("set_queue.mark", queue=queue)
            ring = Ring()
            ring.ready[queue] += 1
            yield ring

        return verb("set_queue", body)

    def limits(self) -> Verb[list[LimitInfo]]:
        return verb("limits", _limits, is_read=True)

    def has_gated(self, queues: Sequence[str]) -> Verb[bool]:
        def body() -> Body[bool]:
            ((found,),) = yield from query("has_gated", queues=to_json(list(queues)))
            return bool(found)

        return verb("has_gated", body, is_read=True)


def _limits() -> Body[list[LimitInfo]]:
    settings = {
        name: Setting(permits.read_spec(spec), bool(is_live), by, from_micros(set_at))
        for name, spec, is_live, by, set_at in (yield from query("limits"))
    }
    used = yield from query("limits.used")
    waiting = yield from query("limits.waiting")
    queues = yield from query("limits.queues")
    return named_limits(settings, used, waiting, queues)

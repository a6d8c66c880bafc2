"""Opening gates, and their settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from winch.core.gates.uses import GateSpec, name_of_key, queue_key
from winch.core.policy.queue_settings import QueueRule
from winch.drivers.postgres.records import read_moment
from winch.drivers.postgres.statements import Body
from winch.drivers.postgres.verbs.base import Base
from winch.drivers.postgres.verbs.permits import open_gates, read_spec, to_json
from winch.storage.decide.gates import CODE, Setting, named_limits
from winch.storage.gate_records import LimitInfo
from winch.storage.params import Promoted
from winch.storage.verbs import Now, Verb

# How many gates one transaction opens.
GATES_AT_ONCE = 100
# Every so many calls of `admit` remove gates that nothing needs, among the next so many.
TIDY_EVERY, TIDY_AMONG = 5, 10_000


class GateVerbs:
    """See storage/families.py for the contracts."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self._calls = 0
        self._tidy_after = ""  # the key of the gate that was looked at last

    def admit(self, *, limit: int = 1000, is_sweep: bool = False, now: Now = None) -> Verb[Promoted]:
        def body() -> Body[Promoted]:
            count = 0
            # Looked for outside of a transaction: mostly there is nothing, and nothing is locked.
            if is_sweep:
                yield self._base.statement("admit.forget", is_alone=True)
            self._calls += 1
            if is_sweep or self._calls % TIDY_EVERY == 0:
                rows = yield self._base.statement(
                    "admit.tidy", is_alone=True, after=self._tidy_after, limit=TIDY_AMONG
                )
                self._tidy_after = rows[0][0] if rows else ""
            if is_sweep:
                rows = yield self._base.statement("admit.all", is_alone=True, limit=limit)
            else:
                most = min(limit, GATES_AT_ONCE)
                rows = yield self._base.statement("admit.due", is_alone=True, limit=most, now=now)
            if keys := [row[0] for row in rows]:
                yield self._base.statement("admit.lock_keys", keys=keys)
                count = yield from open_gates(self._base, keys, now)
            ((next_at, at),) = yield self._base.statement("admit.next", is_alone=True, now=now)
            return Promoted(count, None if next_at is None else read_moment(next_at), read_moment(at))

        return Verb("admit", body)

    def set_limits(
        self, specs: Mapping[str, GateSpec | None], *, by: str | None, now: Now = None
    ) -> Verb[None]:
        def body() -> Body[None]:
            removed = sorted(name for name, spec in specs.items() if spec is None)
            kept = {name: spec for name, spec in sorted(specs.items()) if spec is not None}
            if removed:
                yield self._base.statement("set_limits.remove", names=removed, is_live=by is not None)
            if kept:
                yield self._base.statement(
                    "set_limits",
                    names=list(kept),
                    specs=[to_json(spec) for spec in kept.values()],
                    is_live=by is not None,
                    by=by or CODE,
                    now=now,
                )
            rows = yield self._base.statement("admit.all", limit=10_000)
            keys = [row[0] for row in rows if name_of_key(row[0]) in specs]
            if keys:
                yield self._base.statement("admit.lock_keys", keys=keys)
                yield from open_gates(self._base, keys, now)

        return Verb("set_limits", body)

    def set_queue(self, queue: str, rule: QueueRule, *, now: Now = None) -> Verb[None]:
        def body() -> Body[None]:
            yield self._base.statement("set_queue.wait")
            yield self._base.statement("set_queue.begin")
            yield self._base.statement("admit.lock_keys", keys=[queue_key(queue)])
            yield self._base.statement(
                "set_queue", queue=queue, concurrency=rule.concurrency, is_strict=rule.is_strict
            )
            if rule.concurrency is not None:
                yield self._base.statement("set_queue.count", queue=queue)
            yield self._base.statement("set_queue.ring", queue=queue)

        return Verb("set_queue", body)

    def limits(self) -> Verb[list[LimitInfo]]:
        def body() -> Body[list[LimitInfo]]:
            settings = {
                row[0]: Setting(read_spec(row[1]), row[2], row[3], read_moment(row[4]))
                for row in (yield self._base.statement("limits", is_alone=True))
            }
            used = yield self._base.statement("limits.used", is_alone=True)
            waiting = yield self._base.statement("limits.waiting", is_alone=True)
            queues = yield self._base.statement("limits.queues", is_alone=True)
            return named_limits(settings, used, waiting, queues)

        return self._base.read("limits", body)

    def has_gated(self, queues: Sequence[str]) -> Verb[bool]:
        def body() -> Body[bool]:
            ((found,),) = yield self._base.statement("has_gated", is_alone=True, queues=list(queues))
            return bool(found)

        return self._base.read("has_gated", body)

"""Operators' verbs in a cluster: each job where it is, a queue everywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

from winch.core.gates.places import families_of
from winch.core.gates.uses import is_gated
from winch.core.job import NO_CHANGES, RetryChanges
from winch.drivers.redis.cluster.fan_out import FanOut
from winch.drivers.redis.cluster.handover import Handover
from winch.drivers.redis.cluster.homes import GateHomes
from winch.drivers.redis.verbs.base import Body
from winch.drivers.redis.verbs.operators import OperatorVerbs
from winch.storage.params import Acted
from winch.storage.verbs import Now, Verb


class ClusterOperatorVerbs:
    """Cancel, retry and delete jobs wherever they are; pause and resume a queue in every part."""

    def __init__(
        self, plain: OperatorVerbs, fan_out: FanOut, handover: Handover, homes: GateHomes
    ) -> None:
        self._plain = plain
        self._fan_out = fan_out
        self._handover = handover
        self._homes = homes

    def cancel(
        self, ids: Sequence[str], *, by: str, reason: str | None = None, now: Now = None
    ) -> Verb[list[Acted]]:
        return self._by_id(
            "cancel",
            ids,
            lambda some: self._plain.cancel(some, by=by, reason=reason, now=now),
        )

    def retry(
        self, ids: Sequence[str], *, by: str, changes: RetryChanges = NO_CHANGES, now: Now = None
    ) -> Verb[list[Acted]]:
        def body() -> Body[list[Acted]]:
            if changes.options is not None and is_gated(changes.options):
                for family in families_of(changes.options):
                    yield from self._homes.gather(family)
                yield from self._handover.let_rest_at_home(ids)  # where the gates are
            yield from self._handover.let_follow_gates(ids)
            acting = self._by_id(
                "retry",
                ids,
                lambda some: self._plain.retry(some, by=by, changes=changes, now=now),
            )
            acted = yield from acting.steps()
            yield from self._handover.let_follow_gates(ids)
            return acted

        return Verb("retry", body)

    def delete(self, ids: Sequence[str], *, by: str, now: Now = None) -> Verb[list[Acted]]:
        return self._by_id("delete", ids, lambda some: self._plain.delete(some, by=by, now=now))

    def _by_id(
        self, name: str, ids: Sequence[str], verb: Callable[[Sequence[str]], Verb[list[Acted]]]
    ) -> Verb[list[Acted]]:
        return Verb(
            name,
            lambda: self._handover.by_id(
                ids, str, lambda some: verb(some).steps(), lambda acted: acted.state is None
            ),
        )

    def pause(self, queue: str, *, by: str, reason: str | None = None, now: Now = None) -> Verb[None]:
        def body() -> Body[None]:
            yield from self._fan_out.everywhere(
                lambda: self._plain.pause(queue, by=by, reason=reason, now=now).steps()
            )

        return Verb("pause", body)

    def resume(self, queue: str, *, by: str, now: Now = None) -> Verb[None]:
        def body() -> Body[None]:
            yield from self._fan_out.everywhere(
                lambda: self._plain.resume(queue, by=by, now=now).steps()
            )

        return Verb("resume", body)

    def move(self, ids: Sequence[str], queue: str, *, by: str, now: Now = None) -> Verb[list[Acted]]:
        return self._by_id("move", ids, lambda some: self._plain.move(some, queue, by=by, now=now))

    def hold_scope(
        self, name: str, hold: timedelta | None, *, reason: str = "", now: Now = None
    ) -> Verb[bool]:
        def body() -> Body[bool]:
            took = yield from self._fan_out.everywhere(
                lambda: self._plain.hold_scope(name, hold, reason=reason, now=now).steps()
            )
            return any(took)

        return Verb("hold_scope", body)

    def release_key(self, key: str, *, by: str, now: Now = None) -> Verb[str | None]:
        """Jobs with unique keys are at home."""
        return self._plain.release_key(key, by=by, now=now)

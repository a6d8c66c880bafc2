"""What the bodies of all verbs share: making steps and verbs, and asking for repeated ids in turn."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from datetime import datetime
from typing import Any, TypeVar

from winch.drivers.postgres.steps import Body, Statements, Step
from winch.storage.verbs import Verb

T = TypeVar("T")


class Verbs:
    """The base of the families of verbs; the driver is all of them together."""

    _sql: Statements
    _keeps_events: bool

    def _step(self, name: str, *, is_alone: bool = False, **values: Any) -> Step:
        return Step(self._sql[name], values, is_alone)

    def _read(self, name: str, body: Callable[[], Body[T]]) -> Verb[T]:
        return Verb(name, body, is_read=True)

    def _write(self, name: str, body: Callable[[], Body[T]], now: datetime | None = None) -> Verb[T]:
        if not self._keeps_events:
            return Verb(name, body)

        def witnessed() -> Body[T]:
            at = None if now is None else now.isoformat()
            yield self._step("events.hint", verb=name, at=at)
            return (yield from body())

        return Verb(name, witnessed)


def rounds(keys: Sequence[Hashable]) -> list[list[int]]:
    """The places of the keys, split so that no round has a key twice: first ones first.

    A statement sees a job once. Whoever names it twice in one call is answered as if the calls came one
    after the other.
    """
    seen: dict[Hashable, int] = {}
    found: list[list[int]] = []
    for place, key in enumerate(keys):
        turn = seen.get(key, 0)
        seen[key] = turn + 1
        if turn == len(found):
            found.append([])
        found[turn].append(place)
    return found

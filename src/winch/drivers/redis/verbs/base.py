"""What the families of verbs share. The body of a verb yields calls and receives the replies."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Any, TypeVar

from winch.core.job import SuspectRule
from winch.drivers.redis.connections.pool import Pool
from winch.drivers.redis.records import MICROSECOND
from winch.drivers.redis.scripts import PartCall, RetryPause, ScriptBatch, ScriptCall, call
from winch.storage.params import Wait

T = TypeVar("T")
Step = ScriptCall | PartCall | ScriptBatch | RetryPause
Body = Generator[Step, Any, T]


class Base:
    """How a verb calls a script of its store. `replicated`: how many replicas confirm an enqueue."""

    def __init__(self, key: bytes, *, replicated: int = 0) -> None:
        self.key = key
        self.replicated = replicated

    def call(
        self, name: str, /, *, blobs: Sequence[bytes] = (), confirmations: int = 0, **args: Any
    ) -> ScriptCall | PartCall:
        return call(self.key, name, args, blobs, confirmations=confirmations)

    def sendable(self, what: Step) -> ScriptCall | ScriptBatch | RetryPause:
        """What a runner sends for a step of a body."""
        if isinstance(what, PartCall):
            raise TypeError("only a cluster has parts")
        return what


def run_body(pool: Pool, base: Base, steps: Body[T], what: Step | None = None) -> T:
    """Run a body for a synchronous caller; `what`: its last step, where it has begun."""
    try:
        what = what or next(steps)
        while True:
            what = steps.send(pool.run(base.sendable(what)))
    except StopIteration as stop:
        result: T = stop.value
        return result


def wait_rows(waits: Iterable[Wait]) -> list[tuple[str, bool]]:
    return [(wait.key, wait.is_enough) for wait in waits]


def suspect_rule(rule: SuspectRule) -> dict[str, int]:
    return {"most": rule.most, "within": rule.within // MICROSECOND}


def read_rows(reply: Sequence[bytes], width: int) -> list[tuple[str, ...]]:
    """Rows from a flat reply of texts."""
    words = [word.decode() for word in reply]
    return [tuple(words[at : at + width]) for at in range(0, len(words), width)]

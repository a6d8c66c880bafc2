"""A verb is a value: what to send to the store, and how to read the answers.

A driver writes each verb once, as a generator that yields the driver's own steps (a statement, a
script call) and is sent their answers; what it returns is the verb's result. The caller that drives the
generator decides the rest: a sync runner, an async runner, or the caller's own connection inside
the caller's own transaction. The body never knows.

All steps of a verb run in one transaction. `steps` may be called more than once: a runner starts
over when the store asks for it (a deadlock), so bodies hold no state of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from datetime import datetime
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# The moment at which a verb takes place. None is the store's own clock; only tests pass another.
Now: TypeAlias = datetime | None


class Verb(msgspec.Struct, Generic[T], frozen=True):
    """One call of one verb. `is_read` verbs change nothing and may run on a reading connection.

    `lone`: a driver's own short way to the same end, for a verb that has its transaction to itself.
    `is_alone`: the body is one statement, which needs no transaction around it.
    """

    name: str
    steps: Callable[[], Generator[Any, Any, T]]
    is_read: bool = False
    lone: Callable[..., T] | None = None
    is_alone: bool = False


class Sending(Protocol[T_co]):
    """A verb that is written and not yet sent, carried out in two halves: while the store works on it,
    its caller writes the next one."""

    def send(self) -> None:
        """Send it, once. `answer` must follow; it raises what went wrong."""
        ...

    def answer(self) -> T_co:
        """Wait for the answer; raises what running the verb would have raised."""
        ...


class Unhurried(Generic[T]):
    """Both halves in one, for a store that works in this process, and for verbs of several steps."""

    def __init__(self, run: Callable[[Verb[T]], T], verb: Verb[T]) -> None:
        self._run = run
        self._verb = verb

    def send(self) -> None:
        pass

    def answer(self) -> T:
        return self._run(self._verb)

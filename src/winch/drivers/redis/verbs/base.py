"""What the verbs are made of: a verb's body yields calls of scripts and is sent their replies."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from winch.drivers.redis.address import Place
from winch.drivers.redis.connections.sync import Pool
from winch.drivers.redis.scripts import Batch, Call, Part, Pause, call
from winch.storage.verbs import Verb

T = TypeVar("T")
Step = Call | Part | Batch | Pause
Body = Generator[Step, Any, T]


class Verbs:
    """The base of the three families of verbs."""

    _place: Place
    _key: bytes
    # One server, and nobody to confirm: a lone job takes the short way.
    _is_short: bool
    _pool: Pool

    def _run(self, steps: Body[T]) -> T:
        """Carry the steps out, for a synchronous caller."""
        raise NotImplementedError  # the driver does

    def _call(
        self, name: str, /, *, blobs: Sequence[bytes] = (), confirmations: int = 0, **args: Any
    ) -> Call | Part:
        return call(self._key, name, args, blobs, confirmations=confirmations)

    def _write(self, name: str, body: Callable[[], Body[T]]) -> Verb[T]:
        return Verb(name, body)

    def _read(self, name: str, body: Callable[[], Body[T]]) -> Verb[T]:
        return Verb(name, body, is_read=True)

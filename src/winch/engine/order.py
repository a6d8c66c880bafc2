"""Which queue to look at first: in strict order, or by weight so that no queue starves."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from winch.core.errors import ConfigError
from winch.engine.options import check_queue


class QueueOrder:
    """The queues a worker serves. Without weights the first always goes first; with weights every
    claim looks at them in a random order in which a queue of weight 5 leads five times as often as
    one of weight 1."""

    def __init__(self, weights: Mapping[str, int | None], rng: random.Random) -> None:
        if not weights:
            raise ConfigError("a worker needs at least one queue")
        weighted = [weight is not None for weight in weights.values()]
        if any(weighted) and not all(weighted):
            raise ConfigError(
                "give every queue a weight, or none: -Q critical:5,default:3 or -Q critical,default"
            )
        for name, weight in weights.items():
            check_queue(name)
            if weight is not None and weight < 1:
                raise ConfigError(f"the weight of queue {name!r} must be at least 1, got {weight}")
        self.names: tuple[str, ...] = tuple(weights)
        self._weights = {name: weight or 1 for name, weight in weights.items()}
        self._is_strict = not any(weighted)
        self._rng = rng

    @classmethod
    def of(cls, queues: Sequence[str] | Mapping[str, int], rng: random.Random) -> QueueOrder:
        """From a list (strict order) or a mapping of weights."""
        if isinstance(queues, str):
            raise ConfigError(f"queues must be a list of names, got the text {queues!r}")
        if isinstance(queues, Mapping):
            return cls(dict(queues), rng)
        return cls(dict.fromkeys(queues), rng)

    @classmethod
    def parse(cls, text: str, rng: random.Random) -> QueueOrder:
        """From the command line's form, `critical:5,default:3` or `critical,default`."""
        weights: dict[str, int | None] = {}
        for part in text.split(","):
            name, colon, weight = part.strip().partition(":")
            if colon and not weight.isdecimal():
                raise ConfigError(f"a queue's weight must be a whole number, got {part.strip()!r}")
            if name in weights:
                raise ConfigError(f"queue {name!r} is named twice")
            weights[name] = int(weight) if colon else None
        return cls(weights, rng)

    def __str__(self) -> str:
        if self._is_strict:
            return ",".join(self.names)
        return ",".join(f"{name}:{weight}" for name, weight in self._weights.items())

    def next(self) -> tuple[str, ...]:
        """The order for one claim."""
        if self._is_strict or len(self.names) == 1:
            return self.names
        # Efraimidis and Spirakis: sorting by u^(1/w) draws without replacement by weight.
        drawn = {name: self._rng.random() ** (1 / weight) for name, weight in self._weights.items()}
        return tuple(sorted(self.names, key=drawn.__getitem__, reverse=True))

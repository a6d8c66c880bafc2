"""Which queues a worker serves, and which of them it looks at first: in strict order, or by weight so
that no queue starves."""

from __future__ import annotations

import random
from collections.abc import Container, Iterable, Mapping, Sequence

from winch.core.errors import ConfigError
from winch.core.values.bounds import check_length, parse_int
from winch.engine.tasks.options import check_queue

EVERY = "*"
MAX_CHARS = 20_000


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
        self.strict: tuple[str, ...] | None = self.names if self._is_strict else None
        """The order of every claim, where it is always the same."""

    @property
    def named(self) -> tuple[str, ...]:
        """The queues that are named."""
        return self.names

    def serves(self, queue: str) -> bool:
        return queue in self._weights

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


class AllQueues:
    """`*`: every queue that a task uses or the store knows, but for those that are excluded (`-slow`).
    A queue has the weight that is given for it, or else that of `*`."""

    def __init__(self, weights: Mapping[str, int | None], excluded: Iterable[str]) -> None:
        self._weights = {name: 1 if weight is None else weight for name, weight in weights.items()}
        self._excluded = frozenset(excluded)
        if len(weights) > 1 and None in weights.values():
            raise ConfigError(
                "with '*', give every queue a weight, '*' included: -Q 'critical:5,*:1'; without "
                "weights '*' would have no place in the order"
            )
        both = sorted(self._excluded & set(weights))
        if both:
            raise ConfigError(f"queue {both[0]!r} is both named and excluded")
        for name in {*weights, *self._excluded} - {EVERY}:
            check_queue(name)
        for name, weight in self._weights.items():
            if weight < 1:
                raise ConfigError(f"the weight of queue {name!r} must be at least 1, got {weight}")

    @property
    def named(self) -> tuple[str, ...]:
        """The queues that are named, `*` among them."""
        return tuple(self._weights)

    def among(self, known: Iterable[str], rng: random.Random) -> QueueOrder:
        """The order over these queues and the named ones. No queue comes before another: only weights
        decide."""
        names = ({*known, *self._weights} - {EVERY}) - self._excluded
        if not names:
            raise ConfigError(f"-Q {self} leaves no queue to serve; name one, or exclude fewer")
        every = self._weights[EVERY]
        return QueueOrder({name: self._weights.get(name, every) for name in sorted(names)}, rng)

    def serves(self, queue: str) -> bool:
        return queue not in self._excluded

    def __str__(self) -> str:
        named = [name if weight == 1 else f"{name}:{weight}" for name, weight in self._weights.items()]
        return ",".join([*named, *(f"-{name}" for name in sorted(self._excluded))])


Queues = QueueOrder | AllQueues


def pushes_only(named: Sequence[str], pushed: Container[str]) -> bool:
    """Whether a worker of these queues pushes all its jobs to URLs. It takes jobs of every task, so it
    serves no other queue."""
    mine = [name for name in named if name in pushed]
    others = [name for name in named if name not in pushed]
    if mine and others:
        raise ConfigError(
            f"queue {mine[0]!r} is pushed to a URL, and queue {others[0]!r} is not; start a worker "
            f"for each: -Q '{','.join(mine)}' and -Q '{','.join(others)}'"
        )
    return bool(mine)


def queues_of(queues: Sequence[str] | Mapping[str, int], rng: random.Random) -> Queues:
    """From a list (strict order) or a mapping of weights; `*` and `-name` as on the command line."""
    if isinstance(queues, str):
        raise ConfigError(f"queues must be a list of names, got the text {queues!r}")
    if isinstance(queues, Mapping):
        return _chosen(dict(queues), rng)
    return _chosen(dict.fromkeys(queues), rng)


def parse_queues(text: str, rng: random.Random) -> Queues:
    """From the command line's form: `critical:5,default:3`, `critical,default`, `*` or `*,-slow`."""
    weights: dict[str, int | None] = {}
    for part in check_length(text, MAX_CHARS, "queues").split(","):
        name, colon, weight = part.strip().partition(":")
        if name in weights:
            raise ConfigError(f"queue {name!r} is named twice")
        weights[name] = parse_int(weight, f"the weight of queue {name!r}", least=1) if colon else None
    return _chosen(weights, rng)


def _chosen(weights: dict[str, int | None], rng: random.Random) -> Queues:
    excluded = [name for name in weights if name.startswith("-")]
    if EVERY not in weights and not excluded:
        return QueueOrder(weights, rng)
    if EVERY not in weights:
        raise ConfigError(f"{excluded[0]!r} excludes a queue from '*': -Q '*,{excluded[0]}'; got no '*'")
    for name in excluded:
        if weights.pop(name) is not None:
            raise ConfigError(f"an excluded queue has no weight, got {name!r} with one")
    return AllQueues(weights, (name[1:] for name in excluded))

"""How many jobs a second one producer can store: one by one, by the thousand, from many coroutines."""

from __future__ import annotations

import functools

from bench.catalog import Contender, on_store
from bench.measure import Bench, enqueue_rate
from bench.scenario import Scenario, Values

CALLERS = 100

# The best two of each store; a quick run has only these.
BEST: dict[str, dict[str, tuple[str, ...]]] = {
    "pg": {"single": ("pgqueuer", "graphile-worker"), "bulk": ("graphile-worker", "pgqueuer")},
    "redis": {"single": ("huey", "flexiq"), "bulk": ("flexiq", "bullmq")},
    "sqlite": {"single": ("huey", "flexiq"), "bulk": ("flexiq",)},
    "sqlite-normal": {"single": ("flexiq",), "bulk": ("flexiq",)},
}


def _run(verb: str, bench: Bench, contender: Contender) -> Values:
    return enqueue_rate(bench, contender, verb)


def _concurrent(bench: Bench, contender: Contender) -> Values:
    return enqueue_rate(bench, contender, "concurrent", callers=CALLERS)


def _peers(store: str) -> tuple[str, ...]:
    return tuple(peer.name for peer in on_store(store.partition("-")[0]))


SCENARIOS = [
    *(
        Scenario(f"{store} {verb}", store, functools.partial(_run, verb), _peers(store), best)
        for store, verbs in BEST.items()
        for verb, best in verbs.items()
    ),
    *(
        Scenario(f"{store} concurrent", store, _concurrent, _peers(store))
        for store in ("pg", "redis", "sqlite")
    ),
]

"""How many jobs a second workers run to their end."""

from __future__ import annotations

import functools

from bench.catalog import PEERS, Contender, on_store
from bench.measure import Bench, Drain, drain_rate
from bench.scenario import Scenario, Values

BEST = {
    "pg": ("graphile-worker", "pgqueuer"),
    "redis": ("bullmq", "huey"),
    "sqlite": ("huey", "flexiq"),
}


def _run(drain: Drain, bench: Bench, contender: Contender) -> Values:
    kinds = contender.system.kinds
    if drain.kind == "async" and drain.kind not in kinds:
        # Their only mode; a no-op is a no-op.
        drain = Drain(**{**vars(drain), "kind": kinds[0]})
    return drain_rate(bench, contender, drain)


def _names(store: str) -> tuple[str, ...]:
    return tuple(peer.name for peer in on_store(store))


def _of_kind(kind: str, *only: str) -> tuple[str, ...]:
    return tuple(peer.name for peer in PEERS if kind in peer.kinds and peer.name in only)


def _scenario(name: str, store: str, drain: Drain, peers: tuple[str, ...], **more: object) -> Scenario:
    return Scenario(name, store, functools.partial(_run, drain), peers, **more)  # type: ignore[arg-type]


SCENARIOS = [
    *(_scenario(f"{store} drain", store, Drain(), _names(store), quick=BEST[store]) for store in BEST),
    *(
        _scenario(f"{store} drain, 2 processes", store, Drain(processes=2), _names(store))
        for store in BEST
    ),
    # "Any store": the line names one peer, on Redis; Winch is measured on each.
    *(_scenario(f"{store} drain, sync", store, Drain(kind="sync"), ()) for store in ("pg", "sqlite")),
    _scenario("redis drain, sync", "redis", Drain(kind="sync"), _of_kind("sync", "dramatiq")),
    *(
        _scenario(f"{store} drain, isolated", store, Drain(kind="isolated"), ())
        for store in ("pg", "sqlite")
    ),
    _scenario("redis drain, isolated", "redis", Drain(kind="isolated"), _of_kind("isolated", "rq")),
    _scenario("pg drain, 10 kB payloads", "pg", Drain(pad=10_000), BEST["pg"]),
    _scenario("pg drain, 1 ms jobs", "pg", Drain(job_ms=1, slots=100), BEST["pg"]),
    _scenario("pg drain, 50 ms jobs", "pg", Drain(job_ms=50, slots=100), BEST["pg"]),
    _scenario("pg drain, 1 % fail once", "pg", Drain(fails=True), ()),
]

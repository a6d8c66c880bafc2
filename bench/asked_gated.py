"""The lines of docs/benchmarks.md as code: flow control, the other features, and another commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.catalog import BEFORE
from bench.scenarios.gated import PLAIN, RIVALS, STORES, name_of
from bench.specs import STORE_NAMES, Bound, NeverBehind, Own, Spec, Versus

LIMITED = "`Limit(50)`, `Limit(2, key)` over 500 keys, `Rate` not reached, beside plain jobs"
FIFO = "FIFO over 500 keys beside plain jobs"
ONE_KEY = "one FIFO key, SQLite and Redis / PG"
TENANTS = "100 tenants beside plain jobs"
STEPS = "workflows of five steps, SQLite and PG"
RIVAL = "flow control that a peer has"
FEATURES = "retries, unique, priorities, delays, batches, chords: stored and run, beside plain jobs"
LATENCY = "latency of a gated job p50 / p99, beside a plain one"
HOT = "one hot limit, 2 and 4 workers beside 1"
COLD = "1 million cold keys with one job each"
LEFT = "gates of keys that are done"
PAYLOADS = "growth of a worker that claims payloads of 100 kB ahead"
CLUSTER = "Redis Cluster: CPU of the busiest primary for a gated job, 3 primaries divided by 6"
COMMIT = "plain jobs beside another commit (`--beside`)"


def _beside_plain(line: str, store: str, kind: str, must: float, aim: float, key: str = "rate") -> Own:
    metric = f"{STORE_NAMES[store]} {kind}, beside plain"
    return Own(line, metric, name_of(store, kind), name_of(store, PLAIN), must, aim, key)


def _rate_of_one_key(store: str) -> Bound:
    must, aim = (500, 1500) if store == "pg" else (1000, 3000)
    scenario, metric = name_of(store, "one fifo key"), f"{STORE_NAMES[store]} one FIFO key"
    return Bound(ONE_KEY, metric, scenario, "rate", must, aim, "jobs/s", is_least=True)


def _latency(store: str, kind: str, percentile: str) -> Own:
    return Own(
        LATENCY,
        f"{STORE_NAMES[store]} latency {percentile}, {kind}, beside plain",
        name_of(store, f"latency, {kind}"),
        name_of(store, f"latency, {PLAIN}"),
        1.5,
        1,
        f"{percentile}_ms",
        "ms",
        less_is_better=True,
    )


def _hot(store: str, workers: int) -> Own:
    return Own(
        HOT,
        f"{STORE_NAMES[store]} hot limit, {workers} workers beside 1",
        name_of(store, f"hot limit, workers: {workers}"),
        name_of(store, "hot limit, workers: 1"),
        1,
        1,
    )


def _cold(store: str, kind: str) -> Bound:
    scenario = name_of(store, f"cold keys, {kind}")
    metric = f"{STORE_NAMES[store]}: claim with 1 million cold keys, {kind}"
    return Bound(COLD, metric, scenario, "growth", 1.3, 1.1, "times with 2,000")


def _left(store: str, kind: str) -> Bound:
    scenario, metric = name_of(store, f"keys left, {kind}"), f"{STORE_NAMES[store]}: keys left, {kind}"
    return Bound(LEFT, metric, scenario, "left", 0.05, 0.01, "of the keys")


def _payloads(store: str) -> Bound:
    metric = f"{STORE_NAMES[store]}: growth by payloads claimed ahead, of 190 MiB that are stored"
    return Bound(PAYLOADS, metric, name_of(store, "large payloads"), "grown_mib", 96, 32, "MiB")


def _cluster(kind: str) -> Own:
    return Own(
        CLUSTER,
        f"Redis Cluster, {kind}: busiest of 3 primaries by that of 6",
        name_of("cluster-3", kind),
        name_of("cluster-6", kind),
        1.6,
        1.9,
        "busiest_us",
        "µs/job",
    )


def _beside_commit(store: str, what: str) -> Versus:
    metric = f"{STORE_NAMES[store]} {what}, beside another commit"
    return Versus(COMMIT, metric, f"{store} {what}", BEFORE.name, 0.95, 1)


SPECS: Sequence[Spec] = (
    *(
        _beside_plain(LIMITED, store, kind, 0.33, 0.6)
        for store in STORES
        for kind in ("limit", "keyed limit", "rate")
    ),
    *(_beside_plain(FIFO, store, "fifo", 0.2, 0.5) for store in STORES),
    *map(_rate_of_one_key, STORES),
    *(_beside_plain(TENANTS, store, "tenants", 0.5, 0.8) for store in STORES),
    *(
        Versus(
            STEPS,
            f"{STORE_NAMES[store]} workflows of five steps",
            name_of(store, "five steps"),
            "dbos",
            5,
            15,
            unit="workflows/s",
        )
        for store in ("sqlite", "pg")
    ),
    *(NeverBehind(name_of(store, kind), RIVAL, 3) for store, kind in RIVALS if kind != "five steps"),
    *(
        _beside_plain(FEATURES, store, kind, 0.5, 1, "whole_rate")
        for store in STORES
        for kind in ("retries", "unique", "priorities", "delays", "batches", "chords")
    ),
    *(
        _latency(store, kind, percentile)
        for store in STORES
        for kind in ("limit", "fifo")
        for percentile in ("p50", "p99")
    ),
    *(_hot(store, workers) for store in STORES for workers in (2, 4)),
    *(_cold(store, kind) for store in STORES for kind in ("keyed limit", "fifo")),
    *(_left(store, kind) for store in STORES for kind in ("keyed limit", "fifo")),
    *map(_payloads, STORES),
    *map(_cluster, ("fifo", "keyed limit")),
    *(
        _beside_commit(store, what)
        for store in ("pg", "redis", "sqlite")
        for what in ("drain", "bulk", "single")
    ),
)

# What would bring a line to its aim.
CLOSING: Mapping[str, str] = {
    LIMITED: "Gates that a batch of jobs passes in one statement, as plain jobs are claimed.",
    FIFO: "The end of a member and the claim of the next one of its key, for all keys in one statement.",
    ONE_KEY: "One round trip for a job: its end claims the next one of the key.",
    TENANTS: "Turns that a claim draws by the hundred.",
    STEPS: "One round trip for a step at most, and one for small steps that follow each other.",
    FEATURES: "Batches and chords count their members one by one.",
    LATENCY: "A gate that is free costs no round trip of its own.",
    HOT: "Workers that wait for one gate take its permits in bulk.",
    COLD: "Deeper indexes: one more page for each search.",
    LEFT: "The end of the last job of a key removes what the store keeps about it.",
    PAYLOADS: "Claims bounded in bytes: the first large payloads come by the hundred.",
    CLUSTER: "A gate lives on the node that its key hashes to.",
    COMMIT: "What the newer commit adds to a plain job.",
}

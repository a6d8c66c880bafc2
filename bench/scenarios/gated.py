"""Jobs under flow control and with the other features, beside plain jobs in the same run.

The scenarios of one store take turns: a round measures plain jobs and every kind once, so that a ratio
to plain compares two figures of the same minutes.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from bench.catalog import Contender
from bench.measure import Bench, Drain, drain_rate, latency
from bench.scenario import Scenario, Values

STORES = ("sqlite", "pg", "redis")
PLAIN = "plain"


@dataclass(frozen=True)
class Kind:
    """One kind of job: how it is drained, and a rough rate that sizes the first run."""

    name: str
    drain: Drain
    guess: int
    rounds: int | None = None


# Of the features that no gate holds: all of the family is to end within 40 minutes.
FEW = 2

KINDS = (
    Kind(PLAIN, Drain(gate="plain"), 25_000),
    Kind("limit", Drain(gate="limit"), 5000),
    Kind("keyed limit", Drain(gate="keyed"), 5000),
    Kind("rate", Drain(gate="rate"), 5000),
    Kind("fifo", Drain(gate="fifo"), 4000),
    Kind("one fifo key", Drain(gate="fifo", keys=1), 800),
    Kind("tenants", Drain(gate="tenants", keys=100), 8000),
    Kind("five steps", Drain(gate="steps"), 400),
    Kind("retries", Drain(gate="retries"), 4000, FEW),
    Kind("unique", Drain(gate="unique"), 10_000, FEW),
    Kind("priorities", Drain(gate="priorities"), 20_000, FEW),
    Kind("delays", Drain(gate="delays"), 10_000, FEW),
    Kind("batches", Drain(gate="batches"), 4000, FEW),
    Kind("chords", Drain(gate="chords"), 2000, FEW),
)

# The peers that have the feature on that store, with a rough rate.
RIVALS: dict[tuple[str, str], dict[str, int]] = {
    ("pg", "limit"): {"pgqueuer": 5000, "dbos": 200},
    ("pg", "keyed limit"): {"dbos": 60},
    ("pg", "rate"): {"dbos": 200},
    ("pg", "fifo"): {"graphile-worker": 1000, "procrastinate": 200, "dbos": 60},
    ("pg", "one fifo key"): {"graphile-worker": 200, "procrastinate": 100, "pgqueuer": 500},
    ("pg", "five steps"): {"dbos": 40},
    ("redis", "limit"): {"bullmq": 8000},
    ("redis", "rate"): {"bullmq": 8000},
    ("sqlite", "limit"): {"dbos": 300},
    ("sqlite", "rate"): {"dbos": 300},
    ("sqlite", "five steps"): {"dbos": 50},
}

LATENCIES = {PLAIN: Drain(gate="plain"), "limit": Drain(gate="limit"), "fifo": Drain(gate="fifo")}
GAP = 0.01


def _run(kind: Kind, bench: Bench, contender: Contender) -> Values:
    rivals = RIVALS.get((contender.store, kind.name), {})
    guess = rivals.get(contender.name, kind.guess)
    return drain_rate(bench, contender, kind.drain, wanted=bench.lengths.gated, guess=guess)


def _latency(drain: Drain, bench: Bench, contender: Contender) -> Values:
    """With an idle worker: one job every 10 ms."""
    samples = max(50, bench.lengths.samples // 3)
    return latency(bench, contender, gap=GAP, samples=samples, BENCH_GATE=drain.gate)


def name_of(store: str, kind: str) -> str:
    return f"gated {store} {kind}"


def _drains(store: str) -> list[Scenario]:
    return [
        Scenario(
            name_of(store, kind.name),
            store,
            functools.partial(_run, kind),
            tuple(RIVALS.get((store, kind.name), ())),
            rounds=kind.rounds,
            family=f"gated {store}",
        )
        for kind in KINDS
    ]


def _latencies(store: str) -> list[Scenario]:
    return [
        Scenario(
            name_of(store, f"latency, {name}"),
            store,
            functools.partial(_latency, drain),
            family=f"gated {store} latency",
        )
        for name, drain in LATENCIES.items()
    ]


SCENARIOS = [one for store in STORES for make in (_drains, _latencies) for one in make(store)]

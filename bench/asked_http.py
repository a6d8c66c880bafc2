"""The lines of docs/benchmarks.md about HTTP, as code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.specs import STORE_NAMES, Bound, Spec

LINE = "HTTP: one by one / 8 connections / bulk / batches of 50 beside single jobs"
# Jobs a second: one connection with one request after another, and what it aims at.
SINGLE = {"sqlite": (2000, 3000), "redis": (2000, 3000), "pg": (1200, 2000)}


def _of(store: str) -> tuple[Spec, ...]:
    name, scenario = f"{STORE_NAMES[store]} over HTTP", f"{store} http"
    must, aim = SINGLE[store]
    return (
        Bound(LINE, f"{name}, one by one", scenario, "rate", must, aim, "jobs/s", is_least=True),
        Bound(
            LINE, f"{name}, 8 connections", scenario, "eight_rate", 3000, 5000, "jobs/s", is_least=True
        ),
        Bound(LINE, f"{name}, bulk", scenario, "bulk_rate", 20_000, 50_000, "jobs/s", is_least=True),
        Bound(
            LINE,
            f"{name}, batches of 50 against single jobs",
            scenario,
            "batch_ratio",
            5,
            10,
            "times",
            is_least=True,
        ),
    )


SPECS: Sequence[Spec] = tuple(spec for store in SINGLE for spec in _of(store))
CLOSING: Mapping[str, str] = {LINE: "A parser of requests in C."}

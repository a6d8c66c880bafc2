"""Whether limits, rates and FIFO keys hold while workers compete, and what competition costs.

Every job notes when it began and ended. A run in which more jobs ran than the gate allows has failed:
it has no figure, and its reason is in the report.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.catalog import WINCH, Contender
from bench.contender import Failed, Workers
from bench.measure import Bench, Drain, drain_once, drain_rate
from bench.scenario import Scenario, Values
from bench.scenarios.gated import RIVALS, STORES, name_of
from bench.spans import Span, late_rate, most_at_once, most_begun, most_of_a_key, overtaken

HOT, HOT_GUESS = 8, 3000
NOTE_SECONDS = 5.0
JOBS, KEYS, RATE = 200, 20, 50
WINDOW = 0.9  # of a second: a start follows its admission, now faster and now slower


@dataclass(frozen=True)
class Gate:
    """A gate that two workers compete for, and the most that it allows."""

    name: str
    drain: Drain
    most: Callable[[list[Span], Drain], int]
    allowed: int
    allowed_of_peers: int
    counts: str = "at once"


def _key(drain: Drain) -> Callable[[int], str]:
    return lambda n: f"k{n % drain.keys}"


def _of_a_key(spans: list[Span], drain: Drain) -> int:
    return most_of_a_key(spans, _key(drain))


GATES = (
    Gate(
        "limit",
        Drain(gate="limit", limit=4, job_ms=5, processes=2, spans=True),
        lambda spans, _: most_at_once(spans),
        4,
        4,
    ),
    Gate(
        "keyed limit",
        Drain(gate="keyed", keys=KEYS, job_ms=5, processes=2, spans=True),
        _of_a_key,
        2,
        2,
    ),
    # The limiters of peers count by fixed windows: around the edge of two, twice as many may begin.
    Gate(
        "rate",
        Drain(gate="rate", rate=RATE, processes=2, spans=True),
        lambda spans, _: most_begun(spans, WINDOW),
        RATE,
        2 * RATE,
        f"began within {WINDOW:g} s",
    ),
    Gate("fifo", Drain(gate="fifo", keys=KEYS, job_ms=2, processes=2, spans=True), _of_a_key, 1, 1),
    Gate("one fifo key", Drain(gate="fifo", keys=1, processes=2, spans=True), _of_a_key, 1, 1),
)


def all_spans(workers: Workers, jobs: int) -> list[Span]:
    """What every job noted; raises Failed if one noted nothing."""
    deadline = time.monotonic() + NOTE_SECONDS
    while len(spans := workers.spans()) < jobs and time.monotonic() < deadline:
        time.sleep(0.05)
    missing = jobs - len({number for number, _, _ in spans})
    if missing:
        raise Failed(f"{missing} of {jobs} jobs noted no end")
    return spans


def _kept(gate: Gate, bench: Bench, contender: Contender) -> Values:
    """Two workers, few jobs: the most that ran or began at once, beside what is allowed."""
    allowed = gate.allowed if contender.name == WINCH.name else gate.allowed_of_peers
    found: dict[str, float] = {}

    def look(workers: Workers) -> None:
        spans = all_spans(workers, JOBS)
        found["most"] = gate.most(spans, gate.drain)
        if gate.drain.gate == "fifo":
            found["overtaken"] = overtaken(spans, _key(gate.drain))

    found["rate"] = drain_once(bench, contender, gate.drain, JOBS, look)["rate"]
    if found["most"] > allowed:
        raise Failed(f"{found['most']:g} {gate.counts}, and {allowed} are allowed")
    # Peers promise that the jobs of a key do not overlap; not all promise their order.
    if contender.name == WINCH.name and found.get("overtaken"):
        raise Failed(f"{found['overtaken']:g} jobs were overtaken by a later one of their key")
    return {**found, "allowed": allowed}


def _hot(processes: int, bench: Bench, contender: Contender) -> Values:
    """1 ms jobs under one limit that is smaller than the slots of a single worker."""
    drain = Drain(gate="limit", limit=HOT, job_ms=1, processes=processes, spans=True)
    most, late = 0, 0.0

    def look(workers: Workers) -> None:
        nonlocal most, late
        spans = all_spans(workers, workers.tally().count)
        most, late = most_at_once(spans), late_rate(spans)

    wanted = bench.lengths.gated
    found = drain_rate(bench, contender, drain, wanted=wanted, guess=HOT_GUESS, look=look)
    if most > HOT:
        raise Failed(f"{most} at once, and {HOT} are allowed")
    # The second half without the start of the other processes, which takes cores from the first.
    return {"rate": found["rate"], "late_rate": late, "most": most}


def _rivals(store: str, kind: str) -> tuple[str, ...]:
    return tuple(RIVALS.get((store, kind), ()))


SCENARIOS = [
    *(
        Scenario(
            name_of(store, f"kept: {gate.name}"),
            store,
            functools.partial(_kept, gate),
            _rivals(store, gate.name),
            rounds=1,
        )
        for store in STORES
        for gate in GATES
    ),
    *(
        Scenario(
            name_of(store, f"hot limit, workers: {processes}"),
            store,
            functools.partial(_hot, processes),
            family=f"gated {store} hot limit",
        )
        for store in STORES
        for processes in (1, 2, 4)
    ),
]

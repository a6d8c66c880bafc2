"""Deterministic simulation: seed after seed of `lab.world`, thousands in a minute.

python -m lab.simulate 20000            seeds 0 … 19,999
python -m lab.simulate 1 --seed 4711
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import msgspec

from lab.results import RESULTS
from lab.world import Simulation

KEPT = RESULTS / "simulation.json"


class Tally(msgspec.Struct, kw_only=True):
    """The results of some seeds."""

    first: int
    seeds: int = 0
    failed: list[int] = []
    verdicts: list[str] = []
    seconds: float = 0.0
    counts: dict[str, int] = {}


def simulate(first: int, seeds: int, *, seconds: float | None = None) -> Tally:
    """Run seeds one after another, until they or the seconds are over."""
    logger = logging.getLogger("winch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        return _simulate(first, seeds, seconds)
    finally:
        logger.setLevel(level)


def _simulate(first: int, seeds: int, seconds: float | None) -> Tally:
    tally = Tally(first=first)
    counts: Counter[str] = Counter()
    began = time.monotonic()
    for seed in range(first, first + seeds):
        world = Simulation(seed)
        verdict = world.run()
        tally.seeds += 1
        counts.update(world.count)
        counts["jobs"] += verdict.counters["acked"]
        counts["rescued"] += verdict.counters["rescued"]
        counts["calls of the store"] += world.places // 2
        if not verdict.is_ok:
            tally.failed.append(seed)
            tally.verdicts.append(f"seed {seed}: {verdict}")
        if seconds is not None and time.monotonic() - began > seconds:
            break
    tally.counts, tally.seconds = dict(counts), time.monotonic() - began
    return tally


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.simulate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("seeds", type=int, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", action="store_true", help=f"write what it came to to {KEPT.name}")
    args = parser.parse_args(argv)
    began = time.monotonic()
    size = max(1, min(200, args.seeds // args.processes))
    starts = range(args.seed, args.seed + args.seeds, size)
    last = args.seed + args.seeds
    total = Tally(first=args.seed)
    counts: Counter[str] = Counter()
    with ProcessPoolExecutor(args.processes) as pool:
        parts = [pool.submit(simulate, start, min(size, last - start)) for start in starts]
        for part in parts:
            tally = part.result()
            total.seeds += tally.seeds
            total.failed += tally.failed
            counts.update(tally.counts)
            for words in tally.verdicts:
                print(words, flush=True)
            if total.seeds % 2000 == 0:
                print(f"{total.seeds} seeds, {len(total.failed)} with a violation so far", flush=True)
    total.seconds, total.counts = round(time.monotonic() - began, 1), dict(sorted(counts.items()))
    words = ", ".join(f"{count} {name}" for name, count in total.counts.items())
    rate = total.seeds / total.seconds * 60
    print(
        f"{total.seeds} seeds, {len(total.failed)} with a violation, "
        f"{total.seconds:.0f} s, {rate:.0f} a minute"
    )
    print(words)
    if args.keep:
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_bytes(msgspec.json.format(msgspec.json.encode(total), indent=1) + b"\n")
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

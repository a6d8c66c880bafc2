"""Run faults and print a verdict for each.

python -m lab                                           every fault on every store that has it
python -m lab --quick                                   nine of them, once each
python -m lab --store postgres --fault F8 --seed 7      one run
python -m lab --fault F1,F3 --load gated                two faults, under the load of gates
python -m lab --pairs 6 --store sqlite                  two faults at once, six times
python -m lab --list
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from lab import lanes
from lab.faults import FAULTS, QUICK, Fault
from lab.lanes import Planned
from lab.load import SECONDS
from lab.once import once
from lab.results import RESULTS, Result, keep, load
from lab.stores import STORES

Job = tuple[list[type[Fault]], str]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--store", action="append", choices=list(STORES), help="only on this store")
    parser.add_argument(
        "--fault",
        action="append",
        help="only this fault: F1 … F33, several as F1,F3, or F1+F8 for both at once",
    )
    parser.add_argument(
        "--load",
        choices=["standard", "gated"],
        default=os.environ.get("LAB_LOAD", "standard"),
        help="jobs of every kind, or mostly short ones under limits, rates, FIFO keys and tenants",
    )
    parser.add_argument("--seed", type=int, help="of the first run; the next run has the next seed")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of load, 15 by default")
    parser.add_argument("--times", type=int, default=1, help="how often each run is made")
    parser.add_argument("--quick", action="store_true", help=f"{', '.join(QUICK)}, once each")
    parser.add_argument("--pairs", type=int, metavar="N", help="N pairs of faults, drawn from the seed")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="so many runs side by side")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="leave the logs of failed runs here")
    parser.add_argument(
        "--journal", type=Path, metavar="FILE", help="note each verdict of this series as it falls"
    )
    parser.add_argument(
        "--resume", action="store_true", help="leave out what has passed according to the journal"
    )
    parser.add_argument("--list", action="store_true", help="list the faults and the stores, and exit")
    parser.add_argument(
        "--keep",
        type=Path,
        nargs="?",
        const=RESULTS / "chaos.jsonl",
        help="add the results to this file",
    )
    args = parser.parse_args(argv)
    if args.list:
        for fault in FAULTS.values():
            print(f"{fault.name:<5} {', '.join(fault.stores):<46} {fault.title}")
        return 0
    os.environ["LAB_LOAD"] = args.load  # producers read it, in processes of their own
    seed = random.randrange(10**6) if args.seed is None else args.seed
    try:
        jobs = pairs(args.pairs, args.store, seed) if args.pairs else choose(args)
    except ValueError as error:
        parser.error(str(error))
    results: list[Result] = []
    began = time.monotonic()
    jobs *= args.times
    plan = [Planned.of(*job, seed + number) for number, job in enumerate(jobs)]
    for result in play(plan, jobs, args):
        results.append(result)
        print(result.line, flush=True)
        for violation in result.violations:
            print("    " + violation.replace("\n", "\n    "), flush=True)
    failed = [result for result in results if not result.is_ok]
    print(f"{len(results)} runs, {len(failed)} failed, {time.monotonic() - began:.0f} s")
    for result in failed:
        how = f"--store {result.store} --fault {result.fault} --seed {result.seed}"
        print(f"again: python -m lab {how}")
    return 1 if failed or not results else 0


def play(plan: Sequence[Planned], jobs: Sequence[Job], args: argparse.Namespace) -> Iterator[Result]:
    """Each run's result, as they end: one run here, several each in a process of its own."""
    if len(plan) == 1:
        (faults, store), run = jobs[0], plan[0]
        result = once(faults, store, run.seed, seconds=args.seconds, logs=args.logs)
        if args.keep:
            keep([result], args.keep)
        yield result
        return
    journal = load(args.journal) if args.journal and args.resume else []
    if args.journal and not args.resume:
        args.journal.unlink(missing_ok=True)
    left: list[Planned] = []
    for run in plan:
        before = [result for result in journal if run.is_run_of(result) and result.is_ok]
        if before:
            yield before[-1]
        else:
            left.append(run)
    if len(left) < len(plan):
        print(f"these {len(plan) - len(left)} had passed before; {len(left)} are left", flush=True)
    for result in lanes.play(left, seconds=args.seconds, at_once=args.at_once, logs=args.logs):
        if args.journal:
            keep([result], args.journal)
        if args.keep:
            keep([result], args.keep)
        yield result


def choose(args: argparse.Namespace) -> list[Job]:
    """The runs that were asked for."""
    given = [name.strip() for names in args.fault or () for name in names.split(",") if name.strip()]
    named = given or (QUICK if args.quick else list(FAULTS))
    found: list[Job] = []
    for name in named:
        unknown = [one for one in name.split("+") if one not in FAULTS]
        if unknown:
            raise ValueError(f"no fault named {', '.join(unknown)}; there are: {', '.join(FAULTS)}")
        kinds = [FAULTS[one] for one in name.split("+")]
        stores = [store for store in STORES if all(store in kind.stores for kind in kinds)]
        if args.store:
            stores = [store for store in stores if store in args.store]
        elif args.quick:
            stores = stores[:1]
        found += [(kinds, store) for store in stores]
    if not found:
        raise ValueError("no such fault on such a store; --list shows the faults and the stores")
    return found


def pairs(count: int, stores: Sequence[str] | None, seed: int) -> list[Job]:
    """Pairs of faults on stores that have both, drawn from the seed. Faults with a store of their own
    making do not mix."""
    rng = random.Random(seed)
    mixed = [
        fault
        for fault in FAULTS.values()
        if not fault.is_virtual and (fault.shares_own_store or not fault.own_stores)
    ]
    able: list[Job] = [
        ([one, other], store)
        for one, other in itertools.combinations(mixed, 2)
        for store in STORES
        if store in one.stores and store in other.stores and (not stores or store in stores)
    ]
    return rng.sample(able, min(count, len(able)))


if __name__ == "__main__":
    # A lane ends its run by SIGTERM: a process started in the background of a shell ignores SIGINT.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))

"""Run the bench.

python -m bench                        everything; takes an hour or two
python -m bench --quick                the main rows against the best two peers of each store
python -m bench --only 'pg drain'      this scenario, or those whose name begins so; also with --quick
python -m bench --seconds 1 --rounds 1 a look while developing, not a result
python -m bench --only 'pg drain' --beside HEAD~5   this commit and another one, in turn
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import report, table
from bench.catalog import BEFORE, PEERS, RAW, WINCH
from bench.environments import CannotInstall, Environment, at_commit, environment
from bench.measure import Bench, Lengths
from bench.scenario import Results, Scenario, run_all
from bench.scenarios import (
    drain,
    enqueue,
    gated,
    gates_growth,
    gates_kept,
    growth,
    http,
    latency,
    limits,
    worker,
)
from bench.stores import PG_SETTINGS, REDIS_SETTINGS, Stores

SCENARIOS: list[Scenario] = [
    *drain.SCENARIOS,
    *enqueue.SCENARIOS,
    *latency.SCENARIOS,
    *limits.SCENARIOS,
    *worker.SCENARIOS,
    *growth.SCENARIOS,
    *gated.SCENARIOS,
    *gates_kept.SCENARIOS,
    *gates_growth.SCENARIOS,
    *http.SCENARIOS,
]

# What `--beside` compares.
PLAIN = [*drain.SCENARIOS, *enqueue.SCENARIOS, *latency.SCENARIOS]

# A run's length: the whole bench, and the quick one.
WHOLE = Lengths(enqueue=5.0, drain=5.0, samples=600)
QUICK = Lengths(enqueue=1.0, drain=2.5, samples=150, gated=1.5, cold_keys=100_000)


def main(argv: Sequence[str]) -> int:
    options = parse(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that every finally runs
    chosen = choose(options)
    if not chosen:
        print(f"no scenario's name begins with {options.only}; see --list", file=sys.stderr)
        return 2
    for name in {*options.peer} - {"none", *(peer.name for peer in PEERS)}:
        print(
            f"no peer is named {name!r}; there are {', '.join(p.name for p in PEERS)}", file=sys.stderr
        )
        return 2
    if options.list:
        for scenario in chosen:
            print(f"{scenario.name}: {', '.join(c.name for c in scenario.contenders(options.quick))}")
        return 0
    started = time.monotonic()
    environments, absent = install(chosen, options.quick, options.beside)
    lengths = QUICK if options.quick else WHOLE
    if options.seconds:
        seconds = options.seconds
        lengths = Lengths(seconds, seconds, int(100 * seconds), min(1.0, seconds / 5), seconds)
    date = datetime.now(UTC).date().isoformat()
    is_written = not options.dry and not options.seconds

    def gather(found: Results) -> report.Run:
        about = describe(bench, chosen, options, time.monotonic() - started)
        missing: Mapping[str, str] = absent
        if is_written:
            found, missing = report.with_earlier(date, options.quick, found, absent)
            about = report.about_all(date, options.quick, about)
        return report.Run(date, options.quick, about, table.rows(found), found, missing)

    def keep(found: Results) -> None:
        if is_written:
            report.write(gather(found))

    try:
        with Stores() as stores:
            bench = Bench(stores, environments, lengths)
            results = run_all(
                chosen,
                bench,
                rounds=options.rounds,
                is_quick=options.quick,
                absent=absent,
                log=log,
                keep=keep,
            )
            run = gather(results)
    except KeyboardInterrupt:
        print("\nstopped; servers, workers and temporary folders are gone", file=sys.stderr)
        return 130
    rows = report.taken_part(run.rows)
    print(f"\n{report.table_text(rows)}\n")
    for row in rows:
        if row.reason:
            print(f"not measured: {row.metric}: {row.reason}")
    print(f"{len(run.rows) - len(rows)} of {len(run.rows)} rows are not part of this run")
    for name, reason in absent.items():
        print(f"not installed: {name}: {reason}")
    print(f"written: {report.write(run)}" if is_written else "nothing was written: this was a look")
    return 0


def log(text: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", flush=True)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", default=os.environ.get("QUICK") == "1")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--peer", action="append", default=[], help="only these beside Winch, or none")
    parser.add_argument("--beside", metavar="COMMIT", help="Winch at this commit as one more contender")
    parser.add_argument(
        "--seconds", type=float, help="length of a run, for a look: sizes shrink with it"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--list", action="store_true", help="name the scenarios and stop")
    parser.add_argument("--dry", action="store_true", help="print the table and write no file")
    return parser.parse_args(argv)


def choose(options: argparse.Namespace) -> list[Scenario]:
    if options.only:
        names = {one.name for one in SCENARIOS}
        found = [
            one
            for one in SCENARIOS
            if one.name in options.only
            or any(one.name.startswith(name) for name in options.only if name not in names)
        ]
        found += [one for one in growth.ON_REQUEST if one.name in options.only]
    else:
        found = [one for one in SCENARIOS if not options.quick or one.quick is not None]
    if options.beside:
        # Only where the adapter of that commit surely knows how: plain jobs.
        found = [_with_before(one) if one in PLAIN else one for one in found]
    if options.peer:
        wanted = {*options.peer, BEFORE.name, RAW.name}
        found = [
            replace(
                one,
                peers=_kept(one.peers, wanted),
                quick=None if one.quick is None else _kept(one.quick, wanted),
            )
            for one in found
        ]
    return found


def _with_before(one: Scenario) -> Scenario:
    quick = None if one.quick is None else (BEFORE.name, *one.quick)
    return replace(one, peers=(BEFORE.name, *one.peers), quick=quick)


def _kept(names: tuple[str, ...], wanted: set[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name in wanted)


def install(
    chosen: Sequence[Scenario], is_quick: bool, before: str | None = None
) -> tuple[dict[str, Environment], dict[str, str]]:
    """An environment for each system that takes part, and the reason for each that cannot."""
    wanted = {c.name for scenario in chosen for c in scenario.contenders(is_quick)}
    environments: dict[str, Environment] = {}
    absent: dict[str, str] = {}
    for one in (WINCH, BEFORE, *PEERS, RAW):
        if one.name in wanted:
            try:
                environments[one.name] = (
                    at_commit(before) if one is BEFORE and before else environment(one)
                )
            except CannotInstall as error:
                absent[one.name] = str(error)
                log(f"{one.name} cannot be installed: {error}")
    return environments, absent


def describe(
    bench: Bench, chosen: Sequence[Scenario], options: argparse.Namespace, seconds: float
) -> dict[str, object]:
    kinds = {scenario.store.partition("-")[0] for scenario in chosen} & {
        "pg",
        "redis",
        "sqlite",
        "cluster",
    }
    return {
        "machine": f"{psutil.cpu_count()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "stores": ", ".join(bench.stores.version(kind) for kind in sorted(kinds)),
        "run": f"{bench.lengths.drain:g} s a drain, {bench.lengths.enqueue:g} s an enqueue, "
        f"{bench.lengths.samples} latencies, medians of {options.rounds}",
        "took": f"{seconds / 60:.0f} min",
        "server settings": {"postgres": PG_SETTINGS, "redis": REDIS_SETTINGS},
        "versions": {name: env.versions for name, env in bench.environments.items()},
        "settings": {
            one.name: one.settings for one in (WINCH, *PEERS, RAW) if one.name in bench.environments
        },
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

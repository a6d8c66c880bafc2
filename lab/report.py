"""Write docs/reliability.md from what was kept of the runs.

python -m lab.report            writes it
python -m lab.report --check    says whether it is up to date
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from lab.faults import FAULTS
from lab.load import JOBS, PRODUCERS, SECONDS, SLOTS, WORKERS
from lab.results import RESULTS, Result, load
from lab.stores import STORES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reliability.md"
HEAD = f"""# What was put through, and what came of it

This page is written by `python -m lab.report` from kept results; nothing in it is typed by hand but these first lines. Each run is a real
store, real producers and real worker processes: {PRODUCERS} producers enqueue {JOBS} jobs each within {SECONDS:g} s (plain with ids that are given and drawn, delayed, unique, FIFO,
limited, batches with a callback, jobs that fail once, jobs in a transaction, a schedule of one a second; what a store does not
have is left out), {WORKERS} workers run {SLOTS} at a time with a lease of 3 s, and one that knows only the HTTP API takes what is meant for it. A fault strikes at times drawn from the seed. Then all is healed,
everything must become final and stay so for two leases, and the recorded history is judged by the rules of `lab.history`. A run in
which the fault was not seen to happen counts as failed.

    make chaos                                                       every fault on every store that has it
    make chaos QUICK=1                                               nine of them, once each
    python -m lab --store postgres --fault F8 --seed 7               one run
    make chaos-pairs                                                 two at once
"""


def page() -> str:
    return "\n".join([HEAD, *_faults(), *_simulation(), *_mutations(), *_soak(), *_found()]) + "\n"


def _faults() -> Iterator[str]:
    results = load(RESULTS / "chaos.jsonl")
    yield "## Faults"
    yield ""
    yield "| | fault | store | runs | failed | seen in the last run | measured |"
    yield "|---|---|---|---|---|---|---|"
    for name, fault in FAULTS.items():
        for store in STORES:
            if store in fault.stores:
                yield _row(
                    name, fault.title, store, [r for r in results if (r.fault, r.store) == (name, store)]
                )
    paired = [result for result in results if "+" in result.fault]
    if paired:
        yield ""
        yield f"Two faults at once: {len(paired)} runs, {sum(not r.is_ok for r in paired)} failed."
    failed = [result for result in results if not result.is_ok]
    yield ""
    yield f"{len(results)} runs are recorded here, {len(failed)} of them failed. Each failed one, oldest first, with the first of its reasons; why, and what was done, is under *What the lab has found*:"
    yield ""
    for result in failed:
        reason = (result.violations or [result.observed])[0].partition("\n")[0].replace("|", "/")
        yield f"- {result.fault}, {result.store}, seed {result.seed}: {reason}"
    weak = {(r.fault, r.waived) for r in results if r.waived}
    yield ""
    for fault_name, names in sorted(weak):
        yield f"- {fault_name}: {', '.join(names)} are not promised under this fault, and not judged."
    yield ""


def _row(name: str, title: str, store: str, runs: Sequence[Result]) -> str:
    if not runs:
        return f"| {name} | {title} | {store} | 0 | | not run | |"
    last = runs[-1]
    measured = ", ".join(f"{what} {value:g}" for what, value in last.measures.items())
    failed = sum(not run.is_ok for run in runs)
    seen = last.observed if last.is_ok else f"**failed**: {last.observed}"
    return f"| {name} | {title} | {store} | {len(runs)} | {failed or ''} | {seen} | {measured} |"


def _simulation() -> Iterator[str]:
    file = RESULTS / "simulation.json"
    if not file.exists():
        return
    kept = msgspec.json.decode(file.read_bytes())
    words = ", ".join(f"{count:,} {name}" for name, count in kept["counts"].items())
    yield "## Simulation"
    yield ""
    yield "Whole fleets on the memory store in virtual time; order of calls, lost answers, cuts and deaths follow from the seed."
    yield ""
    yield f"{kept['seeds']:,} seeds from {kept['first']}, {len(kept['failed'])} with a violation, {kept['seconds']:.0f} s: {words}."
    yield ""


def _mutations() -> Iterator[str]:
    file = RESULTS / "mutations.json"
    if not file.exists():
        return
    kept = msgspec.json.decode(file.read_bytes())
    caught = sum(1 for one in kept if one["caught_by"])
    yield "## Safeguards taken out"
    yield ""
    yield f"{caught} of {len(kept)} were noticed."
    yield ""
    yield "| safeguard | store | noticed by |"
    yield "|---|---|---|"
    for one in kept:
        yield f"| {one['title']} | {one['store']} | {one['caught_by'] or '**nothing**'} |"
    yield ""


def _soak() -> Iterator[str]:
    file = RESULTS / "soak.jsonl"
    if not file.exists():
        return
    yield "## Soak"
    yield ""
    yield "| store | seed | minutes | jobs | strikes | memory MB | descriptors | connections | store MB | violations |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for line in file.read_bytes().splitlines():
        one = msgspec.json.decode(line)
        cells = [one["store"], one["seed"], f"{one['minutes']:g}", one["jobs"], one["strikes"], *(
            f"{one['first'][name]:g} → {one['last'][name]:g}" for name in ("memory", "descriptors", "connections", "size")
        ), one["violations"]]  # fmt: skip
        yield "| " + " | ".join(map(str, cells)) + " |"
    yield ""


def _found() -> Iterator[str]:
    file = RESULTS / "found.md"
    if file.exists():
        yield file.read_text().rstrip()


def main(argv: Sequence[str]) -> int:
    text = page()
    if "--check" in argv:
        is_same = PAGE.exists() and PAGE.read_text() == text
        print("up to date" if is_same else "docs/reliability.md is old: run python -m lab.report")
        return 0 if is_same else 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

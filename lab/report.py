"""Write docs/reliability.md from the recorded results of the runs.

python -m lab.report            writes it
python -m lab.report --check    checks whether it is up to date
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
HEAD = f"""# Reliability

Winch has a laboratory that runs real stores and real worker processes, breaks them on purpose, and checks the recorded history against the
[guarantees](guarantees.md). This page lists every fault, how often it was run, and what failed. `python -m lab.report` writes it from the
recorded results.

## How a run works

1. {PRODUCERS} producers enqueue {JOBS} jobs each within {SECONDS:g} seconds. The jobs are of every kind that the store supports: plain, delayed,
   unique, FIFO, limited, failing once, enqueued in a transaction, in batches with a callback, and from a schedule.
2. {WORKERS} workers run {SLOTS} jobs at a time with a lease of 3 seconds. One more worker uses only the HTTP API.
3. The fault strikes at random times that follow from the seed.
4. The fault ends. Every job must become final, and stay final for two leases.
5. The checker (`lab/history`) compares the history with each guarantee. A run in which the fault did not take effect counts as failed.

To repeat the runs in a clone of the repository:

```text
make chaos                                            # every fault on every store
make chaos QUICK=1                                    # nine faults, once each
make chaos FAULTS=F1,F3                               # these, with jobs under limits, rates, FIFO keys and tenants
python -m lab --store postgres --fault F8 --seed 7    # one run
make chaos-pairs                                      # two faults at once
```

"""
# What the checker verifies. Each code is that of a Violation.
INVARIANTS = {
    "I1": "Every acknowledged job exists at the end, and is final.",
    "I1b": "A repeated enqueue with the same id stores one job.",
    "I2": "No job stays behind. A job whose lease has ended is rescued within one lease and two sweeps.",
    "I3": "A job has one live claim at most.",
    "I4": "A write with an old token has no effect. A live token is never refused, and no token is used twice.",
    "I5": "A job reaches one final state and stays in it, except after an operator's retry.",
    "I6": "A job is completed only if a handler returned under that claim.",
    "I7": "At most one live job has a unique key.",
    "I8": "Each time of a schedule has exactly one job.",
    "I9": "A member of a FIFO key starts after all earlier members are final.",
    "I10": "Never more permits are held than the limit allows, and each permit is returned once.",
    "I11": "No window of a rate has more claims than the rate allows.",
    "I12": "A batch callback runs once, after all members are final.",
    "I13": "A crash or a fault of the store counts against no job that did not cause it.",
    "I14": "The writes of a transaction and the completion of its job commit together.",
    "I15": "A stopped worker claims nothing more, and a stop costs no attempt.",
    "I16": "A bad row, a large result or a crash does not hold up other jobs.",
    "I17": "A job whose task no worker knows stays ready.",
    "I18": "Every action of an operator is recorded with its actor.",
    "I19": "Workers of two neighbouring releases run side by side.",
    "I20": "A wrong clock on a worker or producer changes nothing.",
    "alive": "No job runs again while its first process is alive and well.",
    "order": "The recorded events of a job are in a possible order.",
}


def page() -> str:
    return "\n".join([HEAD, *_invariants(), *_faults(), *_simulation(), *_mutations(), *_soak()]) + "\n"


def _invariants() -> Iterator[str]:
    yield "## What the checker verifies"
    yield ""
    yield "| | invariant |"
    yield "|---|---|"
    for code, words in INVARIANTS.items():
        yield f"| {code} | {words} |"
    yield ""
    yield "In the results, `nemesis` means that a fault had no effect."
    yield ""


def _faults() -> Iterator[str]:
    results = load(RESULTS / "chaos.jsonl")
    yield "## Faults"
    yield ""
    yield "| | fault | store | runs | observed in the last run | measured |"
    yield "|---|---|---|---|---|---|"
    for name, fault in FAULTS.items():
        title = fault.title  # in the first row of the fault only
        for store in STORES:
            if store in fault.stores:
                yield _row(
                    name, title, store, [r for r in results if (r.fault, r.store) == (name, store)]
                )
                title = ""
    paired = [result for result in results if "+" in result.fault]
    if paired:
        yield ""
        yield f"Two faults at once: {len(paired)} runs, {sum(not r.is_ok for r in paired)} failed."
    failed = [result for result in results if not result.is_ok]
    yield ""
    yield f"{len(results)} runs are recorded, and {len(failed)} of them failed. The failed runs, oldest first, with the first reason of each:"
    yield ""
    for result in failed:
        reason = (result.violations or [result.observed])[0].partition("\n")[0].replace("|", "/")
        yield f"- {result.fault}, {result.store}, seed {result.seed}: {reason}"
    yield ""
    yield "The file `lab/results/found.md` in the repository explains each failure: the defect in Winch or in the lab, and the repair."
    weak = {(r.fault, r.waived) for r in results if r.waived}
    yield ""
    for fault_name, names in sorted(weak):
        yield f"- {fault_name}: {', '.join(names)} are not guaranteed under this fault, and not checked."
    yield ""


def _row(name: str, title: str, store: str, runs: Sequence[Result]) -> str:
    if not runs:
        return f"| {name} | {title} | {store} | 0 | not run | |"
    last = runs[-1]
    measured = ", ".join(_measure(what, value) for what, value in last.measures.items())
    failed = sum(not run.is_ok for run in runs)
    count = f"{len(runs)}, {failed} failed" if failed else f"{len(runs)}"
    seen = last.observed if last.is_ok else f"**failed**: {last.observed}"
    return f"| {name} | {title} | {store} | {count} | {seen} | {measured} |"


# The recorded name of each measure, and how the page writes it.
MEASURES = {
    "slowest takeover s": "slowest takeover {:g} s",
    "work went on after s": "work resumed after {:g} s",
    "handed over": "{:g} handed over",
    "dead rows": "{:g} dead rows",
    "server connections": "{:g} server connections",
}


def _measure(what: str, value: float) -> str:
    return MEASURES.get(what, what + " {:g}").format(value)


def _simulation() -> Iterator[str]:
    file = RESULTS / "simulation.json"
    if not file.exists():
        return
    kept = msgspec.json.decode(file.read_bytes())
    words = ", ".join(f"{count:,} {name}" for name, count in kept["counts"].items())
    yield "## Simulation"
    yield ""
    yield "The simulation runs whole fleets on the memory store in virtual time. The order of calls, lost replies, cut connections and crashes follow from the seed."
    yield ""
    yield f"{kept['seeds']:,} seeds from {kept['first']}, {len(kept['failed'])} with a violation, {kept['seconds']:.0f} s: {words}."
    yield ""


def _mutations() -> Iterator[str]:
    file = RESULTS / "mutations.json"
    if not file.exists():
        return
    kept = msgspec.json.decode(file.read_bytes())
    caught = sum(1 for one in kept if one["caught_by"])
    yield "## Mutations"
    yield ""
    yield f"`make mutations` removes one safeguard at a time and checks that a test or a run fails. {caught} of {len(kept)} removals were detected."
    yield ""
    yield "| mutation | store | detected by |"
    yield "|---|---|---|"
    for one in kept:
        by = one["caught_by"] or "**nothing**"
        shown = f"`{by}`" if by.startswith("test_") else by  # long names may break in code only
        yield f"| {one['title']} | {one['store']} | {shown} |"
    yield ""


def _soak() -> Iterator[str]:
    file = RESULTS / "soak.jsonl"
    if not file.exists():
        return
    yield "## Soak"
    yield ""
    yield "Each soak runs for ten minutes under random faults. The table has every soak that ran to its end, failed ones included; the last row of each store is the current state."
    yield ""
    yield "| store, seed | jobs | faults | memory MB | descriptors | connections | store MB | violations |"
    yield "|---|---|---|---|---|---|---|---|"
    for line in file.read_bytes().splitlines():
        one = msgspec.json.decode(line)
        cells = [f"{one['store']}, {one['seed']}", one["jobs"], one["strikes"], *(
            f"{one['first'][name]:g} → {one['last'][name]:g}" for name in ("memory", "descriptors", "connections", "size")
        ), one["violations"]]  # fmt: skip
        yield "| " + " | ".join(map(str, cells)) + " |"
    yield ""


def main(argv: Sequence[str]) -> int:
    text = page()
    if "--check" in argv:
        is_same = PAGE.exists() and PAGE.read_text() == text
        print(
            "up to date" if is_same else "docs/reliability.md is out of date: run python -m lab.report"
        )
        return 0 if is_same else 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

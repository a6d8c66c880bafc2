"""What a run came to: its history is judged, and what the load itself explains is set apart."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from lab.history import History, Verdict, Violation, check, read
from lab.history.lines import Ended, Replied
from lab.results import Result
from lab.stores import REWOUND
from tests.faults.fleet import until

if TYPE_CHECKING:
    from lab.faults.base import Fault
from lab.run import STEP, TAKEOVER, Run

# Processes that want to run, for each core. With more a live worker may not get to beat in its lease.
BUSY = 8.0


def judge(
    run: Run, faults: Sequence[Fault], windows: dict[str, tuple[datetime, ...]], words: dict[str, object]
) -> Result:
    takeover = None if any(fault.takeover is None for fault in faults) else TAKEOVER
    history = run.history(windows, takeover)
    verdict = check(history)
    waived = {name for fault in faults for name in fault.waives(run.store.name)}
    disturbed = [] if waived else run.store.disturbances()
    if disturbed:
        waived |= set(REWOUND)
    broken = [found for found in verdict.violations if found.invariant not in waived]
    broken += [found for fault in faults for found in fault.judge(history, verdict)]
    observed: list[str] = []
    for fault in faults:
        seen = fault.observed(history, verdict)
        observed.append(seen or "nothing")
        if not seen:
            broken.append(
                Violation("nemesis", None, f"{fault.name} did nothing: the run proves nothing")
            )
    broken += _load_was_there(run, history)
    broken = _as_far_as_it_can_be_judged(broken, run.busiest)
    broken += [Violation("lab", None, f"could not be judged: {words}") for words in disturbed]
    measures = dict(run.measures)
    if verdict.takeovers:
        measures["slowest takeover s"] = round(verdict.takeovers[-1].total_seconds(), 2)
    # Claimed in the moment they were stored: by the producer (docs/protocol/claim.md, hand-over).
    if handed := sum(job.claimed_at == job.created_at for job in history.jobs):
        measures["handed over"] = handed
    return Result(
        **words,  # type: ignore[arg-type]
        is_ok=not broken,
        observed=", ".join(observed),
        seconds=0,
        counters={name: count for name, count in verdict.counters.items() if count},
        measures=measures,
        violations=tuple(str(found) for found in shortest(broken)),
        waived=tuple(sorted(waived)),
    )


def _as_far_as_it_can_be_judged(found: list[Violation], load: float) -> list[Violation]:
    """On an overloaded machine a live worker may lose its lease: rules that depend on it are reported
    as not judged, and are no violation. The run has still not passed."""
    if load <= BUSY:
        return found
    late = [one for one in found if one.invariant == "alive" or _is_late_rescue(one)]
    if not late:
        return found
    words = (
        f"could not be judged with {load:.0f} processes for each core: {len(late)} times {late[0].words}"
    )
    return [*(one for one in found if one not in late), Violation("lab", late[0].job, words)]


def _is_late_rescue(found: Violation) -> bool:
    return found.invariant == "I2" and "after the end of the lease" in found.words


def _load_was_there(run: Run, history: History) -> list[Violation]:
    acked = sum(
        len(line.ids) for line in history.lines if isinstance(line, Replied) and line.outcome == "acked"
    )
    if acked < run.jobs // 2:
        return [Violation("load", None, f"only {acked} jobs were acknowledged: the run proves little")]
    return []


def shortest(found: Sequence[Violation], most: int = 12) -> list[Violation]:
    """The violations with the least evidence, one of each invariant first."""
    seen: set[str] = set()
    first: list[Violation] = []
    rest: list[Violation] = []
    for violation in sorted(found, key=lambda one: len(one.evidence)):
        (rest if violation.invariant in seen else first).append(violation)
        seen.add(violation.invariant)
    return [*first, *rest][:most]


def work_goes_on(run: Run, since: float, seconds: float = 30) -> float:
    """Wait until a handler has ended after that moment; returns how long after."""

    def ended() -> bool:
        lines = read(run.recorder.folder)
        return any(isinstance(line, Ended) and line.mono > since for line in lines)

    with contextlib.suppress(AssertionError):
        until(ended, seconds, "work to go on", step=STEP)
    return time.monotonic() - since


def named(verdict: Verdict, name: str) -> int:
    return verdict.counters.get(name, 0)

"""Decides from a recorded history whether the promises were kept. Pure: no store, no clock.

Each rule is one small function over one `Facts`, named after the invariant it decides (docs of the
invariants: I1 to I20 in the reliability page). Order within a job is that of the store's own counter
`v`, never that of times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from lab.history import crashes, flows, gates, processes, store
from lab.history.facts import Facts
from lab.history.records import History, Verdict, Violation
from winch.storage.decide.schedules import SCHEDULE_HEADER

FAULTS = ("cut", "rescued", "lost", "killed", "stopped", "term", "outage", "hold", "skew", "flake")
ACTIONS = {"kill": "killed", "stop": "stopped"}
Rule = Callable[[Facts], Iterator[Violation]]


RULES: tuple[Rule, ...] = (
    store.order,
    store.i1_nothing_acked_is_lost,
    store.i1b_repeats_store_once,
    store.i2_nothing_stays_behind,
    store.i3_one_live_claim,
    store.i4_fence,
    store.i5_final_is_final,
    processes.i6_done_means_done,
    gates.i7_unique_key,
    flows.i8_one_job_for_a_window,
    gates.i9_fifo_order,
    gates.i10_limit,
    gates.i11_rate,
    flows.i12_after_all_before,
    crashes.i13_a_crash_charges_only_its_own_jobs,
    crashes.i14_together_or_not_at_all,
    crashes.i17_only_workers_that_know_the_task,
    processes.i15_graceful_stop,
    gates.i18_operators_are_noted,
    processes.i20_one_clock,
    processes.alive,
)


def check(history: History) -> Verdict:
    """Judge a run. A run that was meant to have a fault and shows none has proved nothing: it fails."""
    facts = Facts(history)
    found = [violation for rule in RULES for violation in rule(facts)]
    counters = _count(facts)
    if history.expects_fault and not any(counters[name] for name in FAULTS):
        words = "a fault was asked for and none was observed: " + ", ".join(FAULTS[:4]) + " are all 0"
        found.append(Violation("nemesis", None, words))
    takeovers = tuple(sorted(taken for _, _, taken in store.takeovers(facts)))
    return Verdict(violations=tuple(found), counters=counters, takeovers=takeovers)


def _count(facts: Facts) -> Counter[str]:
    counters: Counter[str] = Counter()
    for act in facts.nemesis:
        counters[ACTIONS.get(act.action, act.action)] += act.count
    acked = {job for job, _ in facts.acked()}
    counters["rescued"] = sum(1 for event in facts.history.events if event.kind == "rescued")
    counters["lost"] = sum(1 for answer in facts.answers if answer.answer == "lost")
    counters["already"] = sum(1 for answer in facts.answers if answer.answer == "already")
    counters["acked"] = len(acked)
    # No caller got an answer about these: they may be stored or not.
    unanswered = [
        job
        for job, records in facts.jobs.items()
        if job not in acked and SCHEDULE_HEADER not in records[0].headers
    ]
    counters["recovered"] = len(unanswered) if facts.replied else 0
    counters["runs"] = sum(len(runs) for runs in facts.runs.values())
    counters["events"] = len(facts.history.events)
    return counters

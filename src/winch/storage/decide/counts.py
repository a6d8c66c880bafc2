"""Which numbers of a capped count are not exact: decided once for the stores that count row by row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from winch.core.lifecycle import JobState

# Jobs that wait for their time are counted together: they are in one index.
_TOGETHER = (
    frozenset({JobState.RUNNING}),
    frozenset({JobState.BLOCKED}),
    frozenset({JobState.SCHEDULED, JobState.RETRYING}),
)


def cut_short(queues: Iterable[Mapping[JobState, int]], cap: int | None) -> frozenset[JobState]:
    """The states, but for ready, that the count left before it had met all their jobs: their numbers are
    too low in any of the queues."""
    if cap is None:
        return frozenset()
    totals = dict.fromkeys(JobState, 0)
    for counts in queues:
        for state, number in counts.items():
            totals[state] += number
    found: frozenset[JobState] = frozenset()
    for states in _TOGETHER:
        if sum(totals[state] for state in states) >= cap:
            found |= states
    return found


def inexact(
    counts: Mapping[JobState, int], cap: int | None, cut: frozenset[JobState]
) -> frozenset[JobState]:
    """The states of one queue whose number is not exact."""
    is_full = cap is not None and counts.get(JobState.READY, 0) >= cap
    return cut | {JobState.READY} if is_full else cut

"""What a job may do: the one table of states and verbs. Nothing else decides a state.

SQL, Lua, tests, docs and buttons are checked against TRANSITIONS. A verb that the table does not
allow in a state changes nothing in any driver and answers so.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class JobState(StrEnum):
    """The states of a job. The last three, completed, cancelled and dead, are final."""

    SCHEDULED = "scheduled"
    BLOCKED = "blocked"
    READY = "ready"
    RUNNING = "running"
    RETRYING = "retrying"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    DEAD = "dead"

    @property
    def is_final(self) -> bool:
        return self in FINAL


S = JobState
FINAL = frozenset({S.COMPLETED, S.CANCELLED, S.DEAD})
LIVE = frozenset(S) - FINAL
WAITING = LIVE - {S.RUNNING}

# verb -> state it may be applied in -> states it may lead to. An empty set means the job is removed.
# `cancel` of a running job only leaves a request: the claim's own end carries it out. A waiting job
# that has something to undo is made ready with such a request. `replace` is what an enqueue with a
# unique key does to the waiting job that holds it.
TRANSITIONS: Mapping[str, Mapping[JobState, frozenset[JobState]]] = {
    "claim": {S.READY: frozenset({S.RUNNING})},
    "finish": {
        S.RUNNING: frozenset(
            {S.COMPLETED, S.RETRYING, S.SCHEDULED, S.BLOCKED, S.READY, S.CANCELLED, S.DEAD}
        )
    },
    "release": {S.RUNNING: frozenset({S.READY, S.CANCELLED})},
    "crash": {S.RUNNING: frozenset({S.READY, S.CANCELLED, S.DEAD})},
    "rescue": {S.RUNNING: frozenset({S.READY, S.CANCELLED, S.DEAD})},
    "promote": {
        S.SCHEDULED: frozenset({S.READY, S.BLOCKED}),
        S.RETRYING: frozenset({S.READY, S.BLOCKED}),
    },
    "admit": {S.BLOCKED: frozenset({S.READY})},
    "hold": {S.READY: frozenset({S.BLOCKED})},
    "cancel": {
        **{state: frozenset({S.CANCELLED, S.READY}) for state in WAITING},
        S.RUNNING: frozenset({S.RUNNING}),
    },
    "retry": {
        state: frozenset({S.READY, S.BLOCKED})
        for state in (S.SCHEDULED, S.RETRYING, S.COMPLETED, S.CANCELLED, S.DEAD)
    },
    "replace": {
        state: frozenset({S.READY, S.SCHEDULED})
        for state in (S.SCHEDULED, S.BLOCKED, S.READY, S.RETRYING)
    },
    "delete": {state: frozenset[JobState]() for state in S if state is not S.RUNNING},
    "prune": {state: frozenset[JobState]() for state in FINAL},
}
ENQUEUED = frozenset({S.READY, S.SCHEDULED, S.BLOCKED})


def sources(verb: str) -> tuple[JobState, ...]:
    """The states in which `verb` may be applied, in the order of JobState."""
    return tuple(state for state in JobState if state in TRANSITIONS[verb])


def allowed(state: JobState) -> tuple[str, ...]:
    """The verbs that may be applied to a job in `state`."""
    return tuple(verb for verb, table in TRANSITIONS.items() if state in table)


def after_claim(wanted: JobState, *, cancel_requested: bool, has_undo: bool = False) -> JobState:
    """The state a claim's end leads to: a requested cancel beats every state that would run again, but
    for a job that has something to undo: it runs again, now, to do that."""
    if cancel_requested and not wanted.is_final:
        return JobState.READY if has_undo else JobState.CANCELLED
    return wanted

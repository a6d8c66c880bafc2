"""The rules about jobs that share something: unique keys, FIFO keys, limits, rates; and operators.

Events of different jobs are compared by the store's sequence. A claim holds the gate's lock
while it writes the event; the return of a permit is written no later than that. So no alarm is false.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta

from lab.history.facts import ENDS, Facts
from lab.history.records import Violation
from winch.core.flow import INPUTS_HEADER
from winch.core.gates.uses import FIFO, LIMIT, RATE, SLIDING, GateUse, gates_of
from winch.core.job import HISTORY_LIMIT, JobRecord, fifo_order
from winch.core.lifecycle import FINAL, JobState
from winch.storage.params import Event

# A store writes an event a moment after it read the clock for the claim.
TOLERANCE = timedelta(milliseconds=250)
# A job stored so shortly before may not have been committed yet.
VISIBLE = timedelta(seconds=1)


def i7_unique_key(facts: Facts) -> Iterator[Violation]:
    """At most one job that is not final has a key, at any moment."""
    holders: dict[str, list[JobRecord]] = {}
    for records in facts.jobs.values():
        if records[0].unique_key is not None:
            holders.setdefault(records[0].unique_key, []).append(records[0])
    for key, jobs in holders.items():
        live: dict[str, Event] = {}
        for event in _merged(facts.events, [job.id for job in jobs]):
            is_over = event.state is None or event.state in FINAL
            if is_over:
                live.pop(event.job, None)
            elif event.job not in live:
                for other in live.values():
                    words = f"it has the unique key {key!r} while another has it"
                    yield Violation("I7", event.job, words, (other, event))
                live[event.job] = event


def i9_fifo_order(facts: Facts) -> Iterator[Violation]:
    """A member of a FIFO key starts only when all before it, and all that have started, are final."""
    for key, members in _sharing(facts, FIFO).items():
        ranks = {job.id: rank for rank, job in enumerate(sorted(members, key=fifo_order))}
        is_flow = {job.id: INPUTS_HEADER in job.headers for job in members}
        last: dict[str, Event] = {}
        started: set[str] = set()
        begun: dict[str, Event] = {}  # when a member became live, the last time
        for event in _merged(facts.events, ranks):
            if event.kind == "claimed":
                for other, seen in last.items():
                    is_live = seen.state is not None and seen.state not in FINAL
                    if other == event.job or not is_live:
                        continue
                    is_known = event.at - begun[other].at > VISIBLE
                    is_before = ranks[other] < ranks[event.job] and event.job not in started
                    # A job that waits for predecessors in a flow yields its turn to one that is retried.
                    is_left = is_flow[other] and seen.state is JobState.BLOCKED
                    is_left = is_left and ranks[other] > ranks[event.job]
                    if (other in started and not is_left) or (is_before and is_known):
                        words = f"it starts out of the order of its FIFO key {key.partition(':')[2]!r}"
                        yield Violation("I9", event.job, words, (seen, event))
                started.add(event.job)
            if event.kind in ("enqueued", "retried"):
                begun[event.job] = event
            last[event.job] = event
            if event.state is None or event.state in FINAL:
                started.discard(event.job)


def i10_limit(facts: Facts) -> Iterator[Violation]:
    """No more than a limit allows hold a claim at once, counting a dead holder until it is rescued."""
    for key, members in _sharing(facts, LIMIT).items():
        uses = {job.id: _use(job, key) for job in members}
        most = max(use.n for use in uses.values())
        out: dict[str, Event] = {}
        for event in _merged(facts.events, uses):
            if event.kind == "claimed":
                out[event.job] = event
                used = sum(uses[job].weight for job in out)
                if used > most:
                    words = f"{used} permits of {key!r} are out, and {most} are allowed"
                    yield Violation("I10", event.job, words, tuple(out.values())[-3:])
            elif event.kind in ENDS:
                out.pop(event.job, None)


def i11_rate(facts: Facts) -> Iterator[Violation]:
    """No stretch as long as a sliding rate's has more claims than it allows."""
    for key, members in _sharing(facts, RATE).items():
        uses = {job.id: _use(job, key) for job in members}
        n = max(use.n for use in uses.values())
        per = timedelta(microseconds=max(use.per for use in uses.values()))
        if any(use.how != SLIDING or use.is_for_retries for use in uses.values()):
            continue
        claims = [event for event in _merged(facts.events, uses) if event.kind == "claimed"]
        claims.sort(key=lambda event: event.at)
        takes = [event for event in claims for _ in range(uses[event.job].weight)]
        for early, late in zip(takes, takes[n:], strict=False):
            if late.at - early.at < per - TOLERANCE:
                within = late.at - early.at
                words = f"{n + 1} claims of {key!r} within {within}, and {n} in {per} are allowed"
                yield Violation("I11", late.job, words, (early, late))


def i18_operators_are_noted(facts: Facts) -> Iterator[Violation]:
    """The history of a job names the operator that cancelled or retried it."""
    for job, records in facts.jobs.items():
        history = records[0].history
        if len(history) >= HISTORY_LIMIT:
            continue
        events = facts.events.get(job, [])
        retried = [event for event in events if event.kind == "retried"]
        noted = [entry for entry in history if entry.what == "retried" and entry.by]
        if len(noted) < len(retried):
            yield Violation("I18", job, "it was retried without an actor", tuple(retried[-3:]))
        cancelled = [event for event in events if event.kind == "cancelled"]
        if cancelled and not any(e.what == "cancelled" and e.by for e in history):
            yield Violation("I18", job, "it was cancelled without an actor", tuple(cancelled[-3:]))


def _sharing(facts: Facts, kind: str) -> dict[str, list[JobRecord]]:
    """The jobs that have a gate of this kind, by its key."""
    found: dict[str, list[JobRecord]] = {}
    for records in facts.jobs.values():
        for use in gates_of(records[0].options):
            if use.kind == kind:
                found.setdefault(use.key, []).append(records[0])
    return found


def _use(job: JobRecord, key: str) -> GateUse:
    return next(use for use in gates_of(job.options) if use.key == key)


def _merged(events: Mapping[str, Sequence[Event]], jobs: Iterable[str]) -> list[Event]:
    """The events of these jobs in the order in which the store wrote them."""
    return sorted(
        (event for job in jobs for event in events.get(job, ())),
        key=lambda event: event.seq,
    )

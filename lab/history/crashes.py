"""The rules about the cost of a crash, the unity of a transaction, and which worker may run a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from lab.history.facts import Facts
from lab.history.lines import Ended
from lab.history.records import Violation
from winch.core.job import HISTORY_LIMIT, UNDO_LIVES
from winch.core.lifecycle import JobState

# A handler that does not end is charged although no exception was recorded.
UNSEEN = ("JobTimeout",)


def i13_a_crash_charges_only_its_own_jobs(facts: Facts) -> Iterator[Violation]:
    """A process's death costs no attempt, and no job takes more processes with it than it may."""
    raised = Counter((end.job, end.token) for end in _ends(facts) if not end.is_ok)
    recorded = {end.job for end in _ends(facts)}
    for job, records in facts.jobs.items():
        record = records[0]
        if len(record.history) >= HISTORY_LIMIT:
            continue
        deaths = [entry for entry in record.history if entry.what == "crashed"]
        # Only a job with a history of steps may have had something to undo.
        most = facts.history.crash_limit * (1 if record.checkpoint is None else UNDO_LIVES)
        if record.crashes > most or len(deaths) > most:
            words = f"it has died with {max(record.crashes, len(deaths))} processes, and was run again"
            yield Violation("I13", job, words, tuple(facts.events.get(job, [])[-2:]))
        for entry in record.history:
            is_seen = entry.error is None or not entry.error.type.endswith(UNSEEN)
            is_charged = entry.what == "failed" and entry.token is not None and job in recorded
            if is_charged and is_seen and not raised[job, entry.token or ""]:
                kind = "" if entry.error is None else f" {entry.error.type}"
                words = (
                    f"attempt {entry.attempt} is charged as failed, and its handler did not raise{kind}"
                )
                yield Violation("I13", job, words, tuple(facts.events.get(job, [])[-2:]))


def i14_together_or_not_at_all(facts: Facts) -> Iterator[Violation]:
    """A transactional job is completed and has its effect once, or neither."""
    if facts.history.effects is None:
        return
    effects = Counter(facts.history.effects)
    for job, records in facts.jobs.items():
        if records[0].task not in facts.history.transactional:
            continue
        is_done = records[0].state is JobState.COMPLETED
        number = effects.pop(job, 0)
        if number != int(is_done):
            words = f"it is {records[0].state}, and its effect is there {number} times"
            yield Violation("I14", job, words, tuple(facts.events.get(job, [])[-2:]))
    for job in effects:
        if job not in facts.jobs:
            yield Violation("I14", job, "its effect is there, and the job is not")


def i17_only_workers_that_know_the_task(facts: Facts) -> Iterator[Violation]:
    """No worker takes a job of a task that it did not declare."""
    known: Mapping[str, Sequence[str]] = {s.id: s.tasks for s in facts.sessions.values()}
    for job, events in facts.events.items():
        if job not in facts.jobs:
            continue
        task = facts.jobs[job][0].task
        for event in events:
            tasks = known.get(event.session or "")
            if event.kind == "claimed" and tasks and task not in tasks:
                words = f"claimed by a worker that has no task {task!r}"
                yield Violation("I17", job, words, (event,))


def _ends(facts: Facts) -> Iterator[Ended]:
    for line in facts.history.lines:
        if isinstance(line, Ended):
            yield line

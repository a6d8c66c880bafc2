"""Every (state, verb) pair of the one table of transitions.

An allowed pair leads to a state that the table names. A forbidden one changes nothing and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial

from winch.core.job import JobRecord
from winch.core.lifecycle import TRANSITIONS, JobState, sources
from winch.core.policy.unique import Duplicate
from winch.storage.crash_report import CrashReport
from winch.storage.params import Acted, Answer, ClaimRef
from winch.testing.conformance.bench import HOUR, LEASE, Bench
from winch.testing.conformance.case import Case

# Nothing leads to `blocked` before there are gates, and the verbs that only gates use do not exist yet.
# The same for every driver.
UNREACHABLE_STATES = frozenset({JobState.BLOCKED})
UNREACHABLE_VERBS = frozenset({"admit", "hold"})
REACHABLE_STATES = tuple(state for state in JobState if state not in UNREACHABLE_STATES)

# Applies a verb to one job; returns whether it took, by the driver's answer.
Apply = Callable[[Bench, JobRecord], bool]


def ref_of(bench: Bench, job: JobRecord) -> ClaimRef:
    """The claim of a running job; of any other, one that does not exist."""
    return ClaimRef(job.id, job.token or bench.new_token())


def took(answers: list[Answer]) -> bool:
    assert answers in ([Answer.TOOK], [Answer.LOST])
    return answers == [Answer.TOOK]


def acted(job: JobRecord, answers: list[Acted]) -> bool:
    (answer,) = answers
    assert (answer.id, answer.state) == (job.id, job.state)
    return answer.took


def claim(bench: Bench, job: JobRecord) -> bool:
    taken = bench.claim(job.queue, session=bench.start_session())
    assert [claim.id for claim in taken] in ([], [job.id])
    return bool(taken)


def finish(to: JobState, bench: Bench, job: JobRecord) -> bool:
    return took(bench.finish(bench.outcome(ref_of(bench, job), to)))


def release(bench: Bench, job: JobRecord) -> bool:
    return took(bench.release(ref_of(bench, job)))


def crash(bench: Bench, job: JobRecord) -> bool:
    return took(
        bench.call(bench.driver.crash(CrashReport([ref_of(bench, job)], "SIGSEGV"), now=bench.now))
    )


def rescue(bench: Bench, job: JobRecord) -> bool:
    bench.advance(2 * LEASE)
    return job.id in [rescued.id for rescued in bench.rescue()]


def promote(bench: Bench, job: JobRecord) -> bool:
    bench.advance(2 * HOUR)
    return bench.promote().count == 1


def cancel(bench: Bench, job: JobRecord) -> bool:
    return acted(job, bench.cancel(job.id))


def retry(bench: Bench, job: JobRecord) -> bool:
    return acted(job, bench.retry(job.id))


def replace(bench: Bench, job: JobRecord) -> bool:
    new = bench.new_job(unique_key=job.unique_key, on_duplicate=Duplicate.REPLACE, queue=job.queue)
    (answer,) = bench.enqueue(new)
    return answer.is_replaced


def delete(bench: Bench, job: JobRecord) -> bool:
    return acted(job, bench.delete(job.id))


def prune(bench: Bench, job: JobRecord) -> bool:
    bench.advance(timedelta(days=1000))
    return bench.prune() == 1


APPLY: dict[str, Apply] = {
    "claim": claim,
    "release": release,
    "crash": crash,
    "rescue": rescue,
    "promote": promote,
    "cancel": cancel,
    "retry": retry,
    "replace": replace,
    "delete": delete,
    "prune": prune,
}


def check(verb: str, state: JobState, apply: Apply, to: JobState | None, bench: Bench) -> None:
    """Apply `verb` in `state`; `to` is the state asked for, where the verb lets the caller choose."""
    job = bench.make_job(state, unique_key="the one" if verb == "replace" else None)
    is_taken = apply(bench, job)
    assert is_taken is (state in TRANSITIONS[verb])
    (after,) = bench.find(job.id)
    if not is_taken:
        assert after == job
    elif after is None:
        assert not TRANSITIONS[verb][state]
    else:
        assert after.state in TRANSITIONS[verb][state]
        assert to is None or after.state is to
        assert (after.finished_at is not None) is after.state.is_final
        assert (after.token is not None) is (after.state is JobState.RUNNING)


def generated() -> Iterator[Case]:
    for verb in TRANSITIONS:
        if verb in UNREACHABLE_VERBS:
            continue
        targets: list[JobState | None] = [None]
        if verb == "finish":
            targets = [to for to in REACHABLE_STATES if to in TRANSITIONS["finish"][JobState.RUNNING]]
        for state in REACHABLE_STATES:
            for to in targets:
                apply = partial(finish, to) if to is not None else APPLY[verb]
                outcome = "takes" if state in sources(verb) else "changes_nothing"
                name = f"{verb}{f'_as_{to}' if to else ''}_of_a_{state}_job_{outcome}"
                yield Case("transitions", name, partial(check, verb, state, apply, to))


GENERATED = tuple(generated())

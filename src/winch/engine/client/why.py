"""Why is this job not running? The reason in words, from the facts the store gives."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import msgspec

from winch.core.lifecycle import JobState
from winch.core.values.duration import format_duration, rounded
from winch.core.values.redact import mask_text
from winch.engine.base.operation import Operation
from winch.engine.client.needs import NOTHING, START, Needs, needs_of, unmet
from winch.engine.client.quiet import all_quiet
from winch.storage.gate_records import GateInfo
from winch.storage.params import MOST_AHEAD, Facts
from winch.storage.protocol import Driver

OTHERS = "other jobs"
# A job that was claimed so lately may wait in its worker. Then it starts, or the worker gives it back:
# HOARD_LIMIT and WATCH_EVERY of the worker.
STARTS_WITHIN = timedelta(milliseconds=150)


def why(
    driver: Driver, job_id: str, *, names_others: bool = True, start: str = START
) -> Operation[str | None]:
    """Why the job is where it is; None where the store does not have it.

    Without `names_others` the text holds neither the id nor the number of other jobs. `start`: how
    people start a worker of this app."""
    facts = yield driver.explain(job_id)
    if facts is None:
        return None
    missing, needs = None, NOTHING
    quiet = None
    if facts.job.state is JobState.READY and facts.serving:
        needs = yield from needs_of(driver, facts.job.task)
        if not facts.knowing:
            missing = yield from unmet(driver, facts, needs, start)
        elif not facts.is_paused and names_others:
            quiet = yield from all_quiet(driver, facts)
    if not names_others:
        return explain(_without_others(facts), missing=missing, needs=needs, start=start)
    workers = yield from _workers(driver, facts.gate)
    return explain(facts, workers, missing=missing or quiet, needs=needs, start=start)


def _workers(driver: Driver, gate: GateInfo | None) -> Operation[Mapping[str, str]]:
    """The jobs that hold permits of the gate, and the workers that run them."""
    if gate is None or not gate.holders:
        return {}
    jobs = [job for job in (yield driver.get(gate.holders)) if job is not None and job.session]
    if not jobs:
        return {}
    names = {session.id: session.worker for session in (yield driver.sessions())}
    return {job.id: names[job.session] for job in jobs if job.session in names}


def explain(
    facts: Facts,
    workers: Mapping[str, str] | None = None,
    *,
    missing: str | None = None,
    needs: Needs = NOTHING,
    start: str = START,
) -> str:
    """One or two sentences with names and numbers; secrets in errors and reasons are masked. `workers`
    are the names of those that run the holders of the gate, by job. `missing` names what its task
    `needs` and no worker has, or that all workers are quiet."""
    if missing is not None and not facts.is_paused:
        text = f"{missing}{_suspicion(facts)}"
    else:
        text = _explain(facts, workers or {}, needs.slots, start)
    if facts.key_holder is not None:
        text += (
            f" Its unique key {facts.job.unique_key!r} is held by {_job(facts.key_holder)} now, so it "
            "cannot be retried before that one is final."
        )
    return mask_text(text)


def _without_others(facts: Facts) -> Facts:
    """The facts with the ids of other jobs taken out, and their numbers unknown."""
    gate = facts.gate
    if gate is not None:
        holders = (OTHERS,) if gate.holders else ()
        gate = msgspec.structs.replace(gate, holders=holders, ahead=-1 if gate.ahead else 0, used=-1)
    return msgspec.structs.replace(
        facts,
        gate=gate,
        ahead=-1 if facts.ahead else 0,
        key_holder=None if facts.key_holder is None else OTHERS,
    )


def _job(holder: str) -> str:
    return "another job" if holder == OTHERS else f"job {holder}"


def _holders(gate: GateInfo, workers: Mapping[str, str]) -> str:
    """The jobs that hold permits of a limit, each with its worker; at most so many are named."""
    more = " and others" if gate.used > len(gate.holders) else ""
    return ", ".join(_held_by(holder, workers) for holder in gate.holders) + more


def _held_by(holder: str, workers: Mapping[str, str]) -> str:
    return f"{holder} on worker {workers[holder]}" if holder in workers else holder


def _explain(facts: Facts, workers: Mapping[str, str], slots: int, start: str) -> str:
    job = facts.job
    match job.state:
        case JobState.SCHEDULED:
            # A job that was put off has a reason: a newer version, a missing key, the handler's own
            # words.
            why = f" It was put off: {job.reason.rstrip('.')}." if job.reason else ""
            return f"It is scheduled for {_moment(facts)}.{why}{_obstacles(facts)}"
        case JobState.RETRYING:
            cause = f" with {_error(facts)}" if job.error else ""
            due = f"the next one is due {_moment(facts)}"
            return f"Attempt {job.attempt} failed{cause}; {due}.{_obstacles(facts)}"
        case JobState.READY:
            return f"{_ready(facts, workers, slots, start)}{_suspicion(facts)}"
        case JobState.RUNNING:
            return _running(facts)
        case JobState.BLOCKED:
            return f"{_blocked(facts, workers)}{_obstacles(facts)}"
        case JobState.COMPLETED:
            return _completed(facts)
        case JobState.CANCELLED:
            return f"It was cancelled: {job.reason or 'no reason was given'}."
        case JobState.DEAD:
            cause = f" Last error: {_error(facts)}." if job.error else ""
            return f"It is dead: {job.reason or 'no reason was kept'}.{cause}"


def _completed(facts: Facts) -> str:
    finished, claimed = facts.job.finished_at, facts.job.claimed_at
    took = f", {rounded(finished - claimed)} after it was claimed" if finished and claimed else ""
    return f"It completed at {finished:%Y-%m-%d %H:%M:%S} UTC{took}."


def _error(facts: Facts) -> str:
    error = facts.job.error
    return f"{error.name}: {_short(error.message)}" if error else "no error"


def _ready(facts: Facts, workers: Mapping[str, str], slots: int, start: str) -> str:
    free = "a free slot" if slots == 1 else f"{slots} free slots of one worker"
    if facts.is_paused:
        return f"Its queue {facts.job.queue!r} is paused{_because(facts.pause_reason)}."
    if not facts.serving:
        queue = facts.job.queue
        return f"No worker serves its queue {queue!r}. Start one: {start} -Q {queue}"
    if not facts.knowing:
        return (
            f"No worker has its task {facts.job.task!r}: {facts.serving} "
            f"serve{'s' if facts.serving == 1 else ''} the queue, but none has imported it. "
            "Deploy workers that know the task; the job waits and loses nothing."
        )
    if facts.gate is not None:
        return _full(facts, facts.gate, workers)
    if facts.ahead < 0:
        return f"It is ready and waits for {free}; other jobs of queue {facts.job.queue!r} go first."
    if facts.ahead and facts.job.tenant is not None:
        return (
            f"It is ready and waits for the turn of its tenant {facts.job.tenant!r}: tenants of queue "
            f"{facts.job.queue!r} take turns; {_ahead(facts)} of its jobs were there before."
        )
    if facts.ahead:
        return (
            f"It is ready and waits for {free}; {_ahead(facts)} "
            f"{'job' if facts.ahead == 1 else 'jobs'} of queue {facts.job.queue!r} go first."
        )
    when = "a slot is free" if slots == 1 else f"{slots} of its slots are free"
    return f"It is ready and next in its queue; a worker takes it as soon as {when}."


def _full(facts: Facts, gate: GateInfo, workers: Mapping[str, str]) -> str:
    queue = facts.job.queue
    if gate.used < 0:
        return f"It is ready; its queue {queue!r} runs {gate.n:,} at once, and so many run."
    first = f" {_ahead(facts)} of its jobs go first." if facts.ahead > 0 else ""
    return (
        f"It is ready and waits for its queue {queue!r} (limit {gate.key!r}): {gate.used:,} of "
        f"{gate.n:,} run, held by {_holders(gate, workers)}.{first}"
    )


def _blocked(facts: Facts, workers: Mapping[str, str]) -> str:
    gate = facts.gate
    if gate is None:
        return f"It is blocked: {facts.job.reason or 'its gate is closed'}."
    ahead = ""
    if gate.ahead < 0:
        ahead = " Others wait before it."
    elif gate.ahead:
        ahead = f" {gate.ahead:,} {'waits' if gate.ahead == 1 else 'wait'} before it."
    match gate.kind:
        case "limit":
            if gate.used < 0:
                return f"It is blocked by the limit {gate.key!r} of {gate.n:,}.{ahead}"
            return (
                f"It is blocked by the limit {gate.key!r}: {gate.used:,} of {gate.n:,} run, held by "
                f"{_holders(gate, workers) or 'no live job'}.{ahead}"
            )
        case "rate":
            per = f" per {format_duration(gate.per)}" if gate.per else ""
            return (
                f"It is blocked by the rate {gate.key!r}: {gate.n:,}{per} have started; it opens "
                f"{_opens(facts)}.{ahead}"
            )
        case "fifo":
            return (
                f"It is blocked by its FIFO key {gate.key.removeprefix('fifo:')!r}: "
                f"{_goes_first(gate, workers)}{ahead}"
            )
        case _:
            because = f": {gate.reason}" if gate.reason else ""
            return (
                f"It is held with its scope {gate.key.removeprefix('scope:')!r}, which opens "
                f"{_opens(facts)}{because}.{_trips(gate)} It loses no attempt.{ahead}"
            )


def _goes_first(gate: GateInfo, workers: Mapping[str, str]) -> str:
    if not gate.holders:
        return "another job goes first and is not final."
    (holder,) = gate.holders
    where = f"; it runs on worker {workers[holder]}" if holder in workers else ""
    return f"{_job(holder)} goes first and is not final{where}."


def _trips(gate: GateInfo) -> str:
    if not gate.trips:
        return ""
    times = "once" if gate.trips == 1 else f"{gate.trips:,} times in a row"
    return f" The breaker has tripped {times}."


def _ahead(facts: Facts) -> str:
    return f"{facts.ahead:,}{' or more' if facts.ahead >= MOST_AHEAD else ''}"


def _opens(facts: Facts) -> str:
    at = None if facts.gate is None else facts.gate.open_at
    if at is None:
        return "soon"
    if at <= facts.now:
        return "step by step, one probe first"
    return f"at {at:%Y-%m-%d %H:%M:%S} UTC (in {rounded(at - facts.now)})"


def _running(facts: Facts) -> str:
    job, session = facts.job, facts.session
    if session is None:
        return "Its worker is not known to the store; the job is rescued at the next sweep."
    since = facts.now - (job.claimed_at or facts.now)
    asked = " A cancel was requested." if job.cancel_requested_at else ""
    left = session.lease_until - facts.now
    if session.ended_at is not None or left < timedelta(0):
        return f"Its worker {session.worker} is gone; the job is rescued at the next sweep.{asked}"
    if since < STARTS_WITHIN:
        return (
            f"It was claimed {rounded(since)} ago by worker {session.worker} and may not have started: "
            f"it starts, or goes back to its queue, within {rounded(STARTS_WITHIN)} of the claim.{asked}"
        )
    return (
        f"It is running: attempt {job.attempt} on worker {session.worker} for {rounded(since)}; "
        f"the lease lasts {rounded(left)} more.{asked}"
    )


def _obstacles(facts: Facts) -> str:
    """What would still hold the job once it is due."""
    if facts.is_paused:
        return f" Its queue {facts.job.queue!r} is paused{_because(facts.pause_reason)}."
    if not facts.serving:
        return f" No worker serves its queue {facts.job.queue!r} now."
    return ""


def _suspicion(facts: Facts) -> str:
    job = facts.job
    if job.crashes:
        return f" Its process died {job.crashes} time{'s' if job.crashes > 1 else ''} while it ran."
    if job.rescues:
        return f" It was rescued {job.rescues} time{'s' if job.rescues > 1 else ''} from lost workers."
    return ""


def _because(reason: str | None) -> str:
    return f": {reason}" if reason else ""


def _moment(facts: Facts) -> str:
    wait = facts.job.run_at - facts.now
    at = f"{facts.job.run_at:%Y-%m-%d %H:%M:%S} UTC"
    return f"{at} (in {rounded(wait)})" if wait > timedelta(0) else f"{at} (now due)"


def _short(message: str) -> str:
    line = message.strip().splitlines()[0] if message.strip() else ""
    return line if len(line) <= 200 else line[:199] + "…"

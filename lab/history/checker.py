"""Decides from a recorded history whether the promises were kept. Pure: no store, no clock.

Each rule is one small function over one `_Facts`, named after the invariant it decides (docs of the
invariants: I1 to I20 in the reliability page). Order within a job is that of the store's own counter
`v`, never that of times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from lab.history import crashes, gates
from lab.history.lines import Answered, Ended, Exited, Line, Nemesis, Replied, Sent, Started
from lab.history.records import History, Verdict, Violation, by_job
from winch.core.errors import InvalidPayload
from winch.core.flow import FLOW_HEADER, INPUTS_HEADER, TAG, Inputs, read_inputs
from winch.core.job import JobRecord
from winch.core.lifecycle import ENQUEUED, FINAL, TRANSITIONS, JobState
from winch.storage.decide.schedules import SCHEDULE_HEADER, WINDOW_HEADER, RunKind
from winch.storage.params import Event, SessionInfo

# What an event's kind says was done, in the words of the table of transitions.
VERBS = {
    "promoted": "promote",
    "claimed": "claim",
    "finished": "finish",
    "released": "release",
    "rescued": "rescue",
    "cancelled": "cancel",
    "retried": "retry",
    "replaced": "replace",
    "deleted": "delete",
    "held": "hold",
    "admitted": "admit",
}
ENDS = frozenset({"finished", "released", "rescued"})
VIOLENCE = frozenset({"kill", "stop"})
HARM = VIOLENCE | {"term"}
FAULTS = ("cut", "rescued", "lost", "killed", "stopped", "term", "outage", "hold", "skew", "flake")
ACTIONS = {"kill": "killed", "stop": "stopped"}
# What a handler sees that is told to end.
INTERRUPTS = frozenset({"CancelledError", "JobCancelled"})
# A handler writes down its end just before it returns; an interrupt may still fall between the two.
RETURNING = 0.5
# Two statements of the store may read its clock in another order than they take effect.
BACKWARDS = timedelta(seconds=1)


@dataclass(frozen=True)
class _Claim:
    """One claim's life: the event that began it, and the one that ended it if any did."""

    began: Event
    ended: Event | None


@dataclass(frozen=True)
class _Run:
    """One handler's run: when it started, and how it ended if it did."""

    start: Started
    end: Ended | None


class _Facts:
    """The history, sorted into what the rules ask for."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.events: dict[str, list[Event]] = by_job(history.events)
        self.jobs: dict[str, list[JobRecord]] = {}
        for job in history.jobs:
            self.jobs.setdefault(job.id, []).append(job)
        self.sessions: dict[str, SessionInfo] = {session.id: session for session in history.sessions}
        lines = sorted(history.lines, key=lambda line: line.mono)
        self.sent: list[Sent] = [line for line in lines if isinstance(line, Sent)]
        self.replied: list[Replied] = [line for line in lines if isinstance(line, Replied)]
        self.answers: list[Answered] = [line for line in lines if isinstance(line, Answered)]
        self.nemesis: list[Nemesis] = [line for line in lines if isinstance(line, Nemesis)]
        self.exits: list[Exited] = [line for line in lines if isinstance(line, Exited)]
        ends = {line.run: line for line in lines if isinstance(line, Ended)}
        # Of one whose transaction was then refused or cut, this is not the last line.
        self.returned: dict[str, Ended] = {
            line.run: line for line in lines if isinstance(line, Ended) and line.is_ok
        }
        self.runs: dict[str, list[_Run]] = {}
        for line in lines:
            if isinstance(line, Started):
                self.runs.setdefault(line.job, []).append(_Run(line, ends.get(line.run)))
        self.claims: dict[str, list[_Claim]] = {
            job: list(_claims(events)) for job, events in self.events.items()
        }

    def when(self, line: Line) -> datetime:
        """When the line was written, on a clock nobody moved."""
        return datetime.fromtimestamp(line.mono + self.history.offset, UTC)

    def pid(self, session: str | None) -> int | None:
        found = self.sessions.get(session or "")
        return None if found is None else found.pid

    def acked(self) -> Iterator[tuple[str, Replied]]:
        for replied in self.replied:
            if replied.outcome == "acked":
                for job in replied.ids:
                    yield job, replied

    def is_harmed(self, pid: int, before: float, *, by: Collection[str] = HARM) -> bool:
        """Whether something was done to this process before that moment, or it left claims behind."""
        harmed = any(act.action in by and pid in act.pids and act.mono <= before for act in self.nemesis)
        left = any(
            pid in (end.who, *end.children) and end.mono <= before and end.code != 0
            for end in self.exits
        )
        return harmed or left


def _claims(events: Sequence[Event]) -> Iterator[_Claim]:
    began: Event | None = None
    for event in events:
        if event.kind == "claimed":
            if began is not None:
                yield _Claim(began, None)
            began = event
        elif event.kind in ENDS and began is not None:
            yield _Claim(began, event)
            began = None
    if began is not None:
        yield _Claim(began, None)


Rule = Callable[[_Facts], Iterator[Violation]]


# --- the store's own record ---------------------------------------------------------------------------


def order(facts: _Facts) -> Iterator[Violation]:
    """A job's events count 1, 2, 3, …, and each is a move that the table of transitions allows."""
    for job, events in facts.events.items():
        for expected, event in enumerate(events, 1):
            if event.v != expected:
                words = f"its events go {expected - 1}, {event.v}: one is missing or there twice"
                yield Violation("order", job, words, tuple(events[max(expected - 2, 0) : expected]))
                break
        yield from _moves(job, events)


def _moves(job: str, events: Sequence[Event]) -> Iterator[Violation]:
    before: Event | None = None
    for event in events:
        if before is None:
            if event.kind == "enqueued" and event.state not in ENQUEUED:
                yield Violation("order", job, f"it was enqueued as {event.state}", (event,))
        elif event.kind in VERBS and before.state is not None:
            reachable = TRANSITIONS[VERBS[event.kind]].get(before.state)
            target = event.state
            allowed = reachable is not None and (target in reachable if target else not reachable)
            # What the rules about claims and final states name better is left to them.
            is_theirs = before.state in FINAL or JobState.RUNNING in (before.state, event.state)
            if not allowed and not is_theirs:
                words = f"no move goes from {before.state} to {target} by {event.kind}"
                yield Violation("order", job, words, (before, event))
        before = event


def i1_nothing_acked_is_lost(facts: _Facts) -> Iterator[Violation]:
    deleted = {job for job, events in facts.events.items() if events[-1].kind == "deleted"}
    acked: set[str] = set()
    for job, replied in facts.acked():
        acked.add(job)
        if job not in facts.jobs and job not in deleted:
            last = facts.events.get(job, [])[-1:]
            yield Violation("I1", job, "acknowledged, and the store does not have it", (replied, *last))
    attempted = acked.union(*(line.ids for line in facts.sent), *(line.ids for line in facts.replied))
    if not facts.sent and not facts.replied:
        return
    for job, records in facts.jobs.items():
        if job not in attempted and SCHEDULE_HEADER not in records[0].headers:
            words = "a ghost: nobody ever asked for it"
            yield Violation("I1", job, words, tuple(facts.events.get(job, [])[:1]))


def i1b_repeats_store_once(facts: _Facts) -> Iterator[Violation]:
    for job, records in facts.jobs.items():
        if len(records) > 1:
            states = " and ".join(str(record.state) for record in records)
            yield Violation("I1b", job, f"the store has it {len(records)} times, as {states}")
    for job, events in facts.events.items():
        stored = [event for event in events if event.kind == "enqueued"]
        if len(stored) > 1:
            yield Violation("I1b", job, "it was stored more than once", tuple(stored[:2]))
    sent = {line.call: line for line in facts.sent}
    new: dict[str, Replied] = {}
    for replied in facts.replied:
        asked = sent.get(replied.call)
        if replied.outcome == "acked" and asked is not None and asked.ids != replied.ids:
            words = f"asked for {asked.ids[0]}, and another id was returned"
            yield Violation("I1b", replied.ids[0], words, (asked, replied))
        for job, is_new in zip(replied.ids, replied.new, strict=False):
            if is_new and job in new:
                yield Violation("I1b", job, "two calls were told that it is new", (new[job], replied))
            elif is_new:
                new[job] = replied


def i2_nothing_stays_behind(facts: _Facts) -> Iterator[Violation]:
    if facts.history.is_quiet:
        for job, records in facts.jobs.items():
            if records[0].state not in FINAL:
                words = f"all is quiet, and it is still {records[0].state}"
                yield Violation("I2", job, words, tuple(facts.events.get(job, [])[-2:]))
    limit = facts.history.takeover_limit
    for event, session, taken in _takeovers(facts):
        if taken < timedelta(0):
            words = f"rescued {-taken} before its session's lease was over"
            yield Violation("I2", event.job, words, (event, session))
        elif limit is not None and taken > limit:
            words = f"rescued {taken} after the end of the lease; the limit is {limit}"
            yield Violation("I2", event.job, words, (event, session))


def _takeovers(facts: _Facts) -> Iterator[tuple[Event, SessionInfo, timedelta]]:
    """The rescues that waited for a lease: a session ended by its supervisor is taken at once, and who
    presents the claim's own token tells of its process's death while the session lives on."""
    for event in facts.history.events:
        session = facts.sessions.get(event.session or "")
        if event.kind != "rescued" or event.by_token is not None or session is None:
            continue
        if session.end_reason == "lease over":
            yield event, session, event.at - session.lease_until


def i3_one_live_claim(facts: _Facts) -> Iterator[Violation]:
    for job, events in facts.events.items():
        live: Event | None = None
        for event in events:
            if event.kind == "claimed":
                if live is not None:
                    yield Violation("I3", job, "claimed while a claim of it was live", (live, event))
                live = event
            elif event.kind in ENDS:
                if live is None:
                    yield Violation("I3", job, f"{event.kind} while no claim was live", (event,))
                live = None


def i4_fence(facts: _Facts) -> Iterator[Violation]:
    yield from _accepted_writes(facts)
    yield from _tokens_never_repeat(facts)
    for answer in facts.answers:
        found = _claim_of(facts, answer.job, answer.token)
        if answer.answer == "lost":
            yield from _refused(found, answer)
        elif found is None:
            words = f"{answer.verb} was answered {answer.answer}, and no claim had that token"
            yield Violation("I4", answer.job, words, (answer,))
        elif found.ended is None or found.ended.by_token != answer.token:
            words = f"{answer.verb} was answered {answer.answer}, and the store shows another end"
            yield Violation("I4", answer.job, words, (*_life(found), answer))


def _accepted_writes(facts: _Facts) -> Iterator[Violation]:
    for job, events in facts.events.items():
        live: Event | None = None
        for event in events:
            if event.kind == "claimed":
                live = event
            if event.kind not in ENDS:
                continue
            token = None if live is None else live.token
            needs_token = event.kind == "finished"
            if event.by_token != token and (needs_token or event.by_token is not None):
                words = "a write with a token that is not the live one took effect"
                yield Violation("I4", job, words, tuple(e for e in (live, event) if e))
            elif event.token != token:
                words = "the event names another live token than the claim before it"
                yield Violation("I4", job, words, tuple(e for e in (live, event) if e))
            live = None


def _tokens_never_repeat(facts: _Facts) -> Iterator[Violation]:
    """One claim call may take many jobs; each of them once, and all for one session at one moment
    (or, where it asks several servers, within the time that a call may take)."""
    first: dict[str, Event] = {}
    taken: dict[tuple[str, str], Event] = {}
    for event in facts.history.events:
        if event.kind != "claimed" or event.token is None:
            continue
        call = first.setdefault(event.token, event)
        earlier = taken.setdefault((event.job, event.token), event)
        if earlier is not event:
            yield Violation("I4", event.job, "a token was used for two of its claims", (earlier, event))
        elif call.session != event.session or abs(call.at - event.at) > facts.history.claim_call:
            yield Violation("I4", event.job, "a token was used by two claim calls", (call, event))


def _life(claim: _Claim) -> tuple[Event, ...]:
    return (claim.began,) if claim.ended is None else (claim.began, claim.ended)


def _claim_of(facts: _Facts, job: str, token: str) -> _Claim | None:
    for claim in facts.claims.get(job, []):
        if claim.began.token == token:
            return claim
    return None


def _refused(claim: _Claim | None, answer: Answered) -> Iterator[Violation]:
    if claim is None:
        return  # whoever holds no claim is rightly refused
    if claim.ended is None:
        words = f"a live token was refused: {answer.verb} was answered lost"
        yield Violation("I4", answer.job, words, (claim.began, answer))
    elif claim.ended.by_token == answer.token and claim.ended.kind == "finished":
        words = f"{answer.verb} was answered lost, and this very token had ended the claim"
        yield Violation("I4", answer.job, words, (claim.began, claim.ended, answer))


def i5_final_is_final(facts: _Facts) -> Iterator[Violation]:
    for job, events in facts.events.items():
        final: Event | None = None
        for event in events:
            if event.kind in ("retried", "deleted"):
                final = None
            elif final is not None:
                words = f"it was {final.state}, and {event.kind} made it {event.state}"
                yield Violation("I5", job, words, (final, event))
                final = event if event.state in FINAL else None
            elif event.state in FINAL:
                final = event
        last = events[-1]
        records = facts.jobs.get(job, [])
        for record in records:
            if last.state is not record.state:
                words = f"its last event made it {last.state or 'gone'}, its row says {record.state}"
                yield Violation("I5", job, words, (last,))


def _may_have_committed(facts: _Facts, run: _Run) -> bool:
    """Whether its body had returned, and it was interrupted while its worker ended, perhaps in its
    COMMIT: whether that took, only the store knows."""
    end = run.end
    return (
        end is not None
        and end.error in INTERRUPTS
        and run.start.run in facts.returned
        and facts.is_harmed(end.pid, end.mono)
    )


def i6_done_means_done(facts: _Facts) -> Iterator[Violation]:
    ok = {
        (run.start.job, run.start.token): facts.returned[run.start.run]
        for runs in facts.runs.values()
        for run in runs
        if run.end is not None and (run.end.is_ok or _may_have_committed(facts, run))
    }
    for event in facts.history.events:
        if event.kind == "finished" and event.state is JobState.COMPLETED:
            # What the writer presented, not what was live: that is the one that says it is done.
            end = ok.get((event.job, event.by_token or ""))
            if end is None:
                words = "completed, and no handler returned under that token"
                yield Violation("I6", event.job, words, (event,))
            elif facts.when(end) > event.at + BACKWARDS:
                words = "completed before its handler returned"
                yield Violation("I6", event.job, words, (event, end))


# --- what was seen outside -----------------------------------------------------------------------------


def i15_graceful_stop(facts: _Facts) -> Iterator[Violation]:
    settle = facts.history.stop_settle
    for stop in facts.nemesis:
        if stop.action != "term":
            continue
        since = facts.when(stop)
        for event in facts.history.events:
            is_theirs = event.kind == "claimed" and facts.pid(event.session) in stop.pids
            if is_theirs and event.at > since + settle:
                words = f"claimed {event.at - since} after its worker was told to stop"
                yield Violation("I15", event.job, words, (stop, event))
    for job, claims in facts.claims.items():
        for claim in claims:
            end = claim.ended
            if end is not None and end.kind == "released" and end.attempt != claim.began.attempt - 1:
                words = "released, and the attempt was spent"
                yield Violation("I15", job, words, (claim.began, end))
    for exit_ in facts.exits:
        if exit_.code == 0:
            yield from _left_leased(facts, exit_)


def _left_leased(facts: _Facts, exit_: Exited) -> Iterator[Violation]:
    pids = (exit_.who, *exit_.children)
    at = facts.when(exit_)
    for job, claims in facts.claims.items():
        for claim in claims:
            is_theirs = facts.pid(claim.began.session) in pids and claim.began.at <= at
            if is_theirs and (claim.ended is None or claim.ended.at > at):
                words = "its worker exited with 0 and left it leased"
                yield Violation("I15", job, words, (*_life(claim), exit_))


def i20_one_clock(facts: _Facts) -> Iterator[Violation]:
    """The store's times agree with what we saw on a clock nobody moved, and never run backwards."""
    tolerance = facts.history.clock_tolerance
    for job, events in facts.events.items():
        for before, event in pairwise(events):
            if event.at < before.at - BACKWARDS:
                words = f"the store's time went back by {before.at - event.at}"
                yield Violation("I20", job, words, (before, event))
        seen = [
            (replied, events[0])
            for replied in facts.replied
            if replied.outcome == "acked" and job in replied.ids
        ]
        for line, event in (*seen[:1], *_seen(facts, job)):
            apart = abs(facts.when(line) - event.at)
            if apart > tolerance:
                words = f"{event.kind} at a moment {apart} away from when it was seen: not one clock"
                yield Violation("I20", job, words, (event, line))


def _seen(facts: _Facts, job: str) -> Iterator[tuple[Line, Event]]:
    for run in facts.runs.get(job, []):
        claim = _claim_of(facts, job, run.start.token)
        if claim is None:
            continue
        yield run.start, claim.began
        is_own = claim.ended is not None and claim.ended.by_token == run.start.token
        if claim.ended is not None and is_own and run.end is not None:
            yield run.end, claim.ended


def alive(facts: _Facts) -> Iterator[Violation]:
    """No job is run again while its first run goes on, or after it returned, in a process unharmed."""
    for job, runs in facts.runs.items():
        retried = [facts.when(run.start) for run in runs]
        operator = [event.at for event in facts.events.get(job, []) if event.kind == "retried"]
        for index, run in enumerate(runs[1:], 1):
            for earlier in runs[:index]:
                end, start = earlier.end, run.start.mono
                is_over = end is not None and end.mono <= start
                if is_over and end is not None and not end.is_ok:
                    continue
                # A worker told to stop may give a job back, but not one whose handler has returned.
                excuses = VIOLENCE if is_over else HARM
                if facts.is_harmed(earlier.start.pid, start, by=excuses):
                    continue
                if is_over and end is not None and _was_hurried(facts, end):
                    continue
                if _is_of_older_claim(facts, run, earlier) and facts.is_harmed(run.start.pid, start):
                    continue  # its claim was taken from it while it stood still, and it begins late
                if any(retried[0] < moment < retried[index] for moment in operator):
                    continue
                if _nobody_beat_for(facts, job, earlier.start.token):
                    continue
                words = (
                    "run again although its first run had returned, in a process that was never harmed"
                    if is_over
                    else "run again while its first run went on in a process that was never harmed"
                )
                yield Violation("alive", job, words, (earlier.start, run.start))


def _is_of_older_claim(facts: _Facts, run: _Run, other: _Run) -> bool:
    mine = _claim_of(facts, run.start.job, run.start.token)
    theirs = _claim_of(facts, other.start.job, other.start.token)
    return mine is not None and theirs is not None and mine.began.v < theirs.began.v


def _was_hurried(facts: _Facts, end: Ended) -> bool:
    """Whether its worker was told to stop at once, while this handler was about to return at the
    latest: the interrupt may have come between the line that says so and the return."""
    return any(
        act.action == "hurry" and end.pid in act.pids and act.mono - RETURNING <= end.mono
        for act in facts.nemesis
    )


def _nobody_beat_for(facts: _Facts, job: str, token: str) -> bool:
    """Whether this was a claim over HTTP whose lease ran out. Only the caller's own beats extend that
    one, so a store that cannot be reached for as long takes it, whatever the caller's process does."""
    claim = _claim_of(facts, job, token)
    session = None if claim is None else facts.sessions.get(claim.began.session or "")
    return session is not None and session.pid == 0 and session.end_reason == "lease over"


def i8_one_job_for_a_window(facts: _Facts) -> Iterator[Violation]:
    """Each window has one job, and a row that says so; and those that must have one do."""
    deleted = {job for job, events in facts.events.items() if events[-1].kind == "deleted"}
    triggered = {run.job for run in facts.history.runs if run.kind is RunKind.TRIGGERED}
    found: dict[tuple[str, datetime], list[str]] = {}
    for job, records in facts.jobs.items():
        headers = records[0].headers
        if SCHEDULE_HEADER in headers and job not in triggered:
            window = datetime.fromisoformat(headers[WINDOW_HEADER])
            found.setdefault((headers[SCHEDULE_HEADER], window), []).append(job)
    for (schedule, window), jobs in found.items():
        if len(jobs) > 1:
            words = f"{len(jobs)} jobs for the window {window} of {schedule}"
            yield Violation("I8", jobs[-1], words, tuple(facts.events.get(jobs[-1], [])[:1]))
    rows = {(run.schedule, run.window): run for run in facts.history.runs}
    oldest: dict[str, datetime] = {}
    for run in facts.history.runs:
        oldest[run.schedule] = min(run.window, oldest.get(run.schedule, run.window))
        if run.kind is RunKind.ENQUEUED and run.job not in facts.jobs and run.job not in deleted:
            words = f"the window {run.window} of {run.schedule} says it has this job, and there is none"
            yield Violation("I8", run.job, words)
    for (schedule, window), jobs in found.items():
        # Older rows are forgotten after a while, and all of them when a schedule is removed.
        if (schedule, window) not in rows and schedule in oldest and window >= oldest[schedule]:
            yield Violation("I8", jobs[0], f"no row says that the window {window} of {schedule} has it")
    for schedule, windows in facts.history.windows.items():
        there = {window for name, window in found if name == schedule}
        for window in sorted(set(windows) - there):
            yield Violation("I8", None, f"the window {window} of {schedule} has no job")
        for window in sorted(there - set(windows)):
            job = found[schedule, window][0]
            yield Violation("I8", job, f"{window} is no window of {schedule}, and has a job")


def i12_after_all_before(facts: _Facts) -> Iterator[Violation]:
    """Who waits for others runs after all of them are final, and each callback is there once."""
    callbacks: dict[tuple[str, str], str] = {}
    members: dict[str, list[str]] = {}
    for job, records in facts.jobs.items():
        for flow in _batches_of(records[0]):
            members.setdefault(flow, []).append(job)
    for job, records in facts.jobs.items():
        inputs = _inputs_of(records[0])
        if inputs is None:
            continue
        if inputs.wants != "edges":
            other = callbacks.setdefault((inputs.flow, inputs.wants), job)
            if other != job:
                words = f"{other} is the {inputs.wants} callback of flow {inputs.flow} already"
                yield Violation("I12", job, words)
        before = (
            [one for one, _ in inputs.ids()] if inputs.wants == "edges" else members.get(inputs.flow, [])
        )
        yield from _too_early(facts, job, inputs.wants, before)


def _inputs_of(job: JobRecord) -> Inputs | None:
    """What a member waits for; None where it waits for nothing, or no client wrote the row."""
    try:
        return read_inputs(job.headers[INPUTS_HEADER])
    except (KeyError, InvalidPayload):
        return None


def _batches_of(job: JobRecord) -> set[str]:
    """The batches that the job is a member of: one inside another has its members in both. A flow that
    is no batch is named too; nothing waits for all of its members."""
    inputs = _inputs_of(job)
    if inputs is not None and inputs.wants != "edges":
        return set()  # a callback
    own = {job.headers[FLOW_HEADER]} if FLOW_HEADER in job.headers else set()
    return own | {tag.removeprefix(TAG) for tag in job.tags if tag.startswith(TAG)}


def _too_early(facts: _Facts, job: str, wants: str, before: Sequence[str]) -> Iterator[Violation]:
    for claim in facts.claims.get(job, []):
        if claim.ended is None or claim.ended.state is not JobState.COMPLETED:
            continue  # it looked and waited again, or was told that it is not needed
        states = {one: _state_at(facts, one, claim.began.seq) for one in before}
        if wants == "death":
            if JobState.DEAD not in states.values():
                yield Violation("I12", job, "it ran for a death, and nobody had died", (claim.began,))
            continue
        for one, state in states.items():
            if state is not None and not state.is_final:
                words = f"it ran while {one}, which comes before it, was {state}"
                yield Violation("I12", job, words, (claim.began,))


def _state_at(facts: _Facts, job: str, seq: int) -> JobState | None:
    """Where the job was just before; None: it was not there."""
    earlier = [event for event in facts.events.get(job, []) if event.seq < seq]
    return earlier[-1].state if earlier else None


RULES: tuple[Rule, ...] = (
    order,
    i1_nothing_acked_is_lost,
    i1b_repeats_store_once,
    i2_nothing_stays_behind,
    i3_one_live_claim,
    i4_fence,
    i5_final_is_final,
    i6_done_means_done,
    gates.i7_unique_key,
    i8_one_job_for_a_window,
    gates.i9_fifo_order,
    gates.i10_limit,
    gates.i11_rate,
    i12_after_all_before,
    crashes.i13_a_crash_is_nobody_elses_fault,
    crashes.i14_together_or_not_at_all,
    crashes.i17_only_who_knows_the_task,
    i15_graceful_stop,
    gates.i18_operators_are_noted,
    i20_one_clock,
    alive,
)


def check(history: History) -> Verdict:
    """Judge a run. A run that was meant to have a fault and shows none has proved nothing: it fails."""
    facts = _Facts(history)
    found = [violation for rule in RULES for violation in rule(facts)]
    counters = _count(facts)
    if history.expects_fault and not any(counters[name] for name in FAULTS):
        words = "a fault was asked for and none was observed: " + ", ".join(FAULTS[:4]) + " are all 0"
        found.append(Violation("nemesis", None, words))
    takeovers = tuple(sorted(taken for _, _, taken in _takeovers(facts)))
    return Verdict(violations=tuple(found), counters=counters, takeovers=takeovers)


def _count(facts: _Facts) -> Counter[str]:
    counters: Counter[str] = Counter()
    for act in facts.nemesis:
        counters[ACTIONS.get(act.action, act.action)] += act.count
    acked = {job for job, _ in facts.acked()}
    counters["rescued"] = sum(1 for event in facts.history.events if event.kind == "rescued")
    counters["lost"] = sum(1 for answer in facts.answers if answer.answer == "lost")
    counters["already"] = sum(1 for answer in facts.answers if answer.answer == "already")
    counters["acked"] = len(acked)
    # Nobody was told about these; that they are there is as right as if they were not.
    untold = [
        job
        for job, records in facts.jobs.items()
        if job not in acked and SCHEDULE_HEADER not in records[0].headers
    ]
    counters["recovered"] = len(untold) if facts.replied else 0
    counters["runs"] = sum(len(runs) for runs in facts.runs.values())
    counters["events"] = len(facts.history.events)
    return counters

"""The rules that compare the store's record with what was seen outside: handlers, exits, clocks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from lab.history.facts import BACKWARDS, HARM, VIOLENCE, Facts, HandlerRun, claim_of, life_of
from lab.history.lines import Ended, Exited, Line
from lab.history.records import Violation
from winch.core.lifecycle import JobState
from winch.storage.params import Event

# What a handler sees when it must end.
INTERRUPTS = frozenset({"CancelledError", "JobCancelled"})
# A handler writes down its end just before it returns; an interrupt may still fall between the two.
RETURNING = 0.5


def _may_have_committed(facts: Facts, run: HandlerRun) -> bool:
    """Whether its body had returned, and it was interrupted while its worker ended, perhaps in its
    COMMIT: whether that took, only the store knows."""
    end = run.end
    return (
        end is not None
        and end.error in INTERRUPTS
        and run.start.run in facts.returned
        and facts.is_harmed(end.pid, end.mono)
    )


def i6_done_means_done(facts: Facts) -> Iterator[Violation]:
    ok = {
        (run.start.job, run.start.token): facts.returned[run.start.run]
        for runs in facts.runs.values()
        for run in runs
        if run.end is not None and (run.end.is_ok or _may_have_committed(facts, run))
    }
    for event in facts.history.events:
        if event.kind == "finished" and event.state is JobState.COMPLETED:
            # What the writer presented, not what was live: that one claims to be done.
            end = ok.get((event.job, event.by_token or ""))
            if end is None:
                words = "completed, and no handler returned under that token"
                yield Violation("I6", event.job, words, (event,))
            elif facts.when(end) > event.at + BACKWARDS:
                words = "completed before its handler returned"
                yield Violation("I6", event.job, words, (event, end))


def i15_graceful_stop(facts: Facts) -> Iterator[Violation]:
    settle = facts.history.stop_settle
    for stop in facts.nemesis:
        if stop.action != "term":
            continue
        since = facts.when(stop)
        for event in facts.history.events:
            is_theirs = event.kind == "claimed" and facts.pid(event.session) in stop.pids
            if is_theirs and event.at > since + settle:
                words = f"claimed {event.at - since} after its worker's stop signal"
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


def _left_leased(facts: Facts, exit_: Exited) -> Iterator[Violation]:
    pids = (exit_.worker, *exit_.children)
    at = facts.when(exit_)
    for job, claims in facts.claims.items():
        for claim in claims:
            is_theirs = facts.pid(claim.began.session) in pids and claim.began.at <= at
            if is_theirs and (claim.ended is None or claim.ended.at > at):
                words = "its worker exited with 0 and left it leased"
                yield Violation("I15", job, words, (*life_of(claim), exit_))


def i20_one_clock(facts: Facts) -> Iterator[Violation]:
    """The store's times agree with a clock that was never set, and never run backwards."""
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


def _seen(facts: Facts, job: str) -> Iterator[tuple[Line, Event]]:
    for run in facts.runs.get(job, []):
        claim = claim_of(facts, job, run.start.token)
        if claim is None:
            continue
        yield run.start, claim.began
        is_own = claim.ended is not None and claim.ended.by_token == run.start.token
        if claim.ended is not None and is_own and run.end is not None:
            yield run.end, claim.ended


def alive(facts: Facts) -> Iterator[Violation]:
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
                # A worker that stops may give a job back, but not one whose handler has returned.
                excuses = VIOLENCE if is_over else HARM
                if facts.is_harmed(earlier.start.pid, start, by=excuses):
                    continue
                if is_over and end is not None and _was_hurried(facts, end):
                    continue
                if _is_of_older_claim(facts, run, earlier) and facts.is_harmed(run.start.pid, start):
                    continue  # its claim was taken from it while it stood still, and it begins late
                if any(retried[0] < moment < retried[index] for moment in operator):
                    continue
                if _http_lease_ran_out(facts, job, earlier.start.token):
                    continue
                words = (
                    "run again although its first run had returned, in a process that was never harmed"
                    if is_over
                    else "run again while its first run went on in a process that was never harmed"
                )
                yield Violation("alive", job, words, (earlier.start, run.start))


def _is_of_older_claim(facts: Facts, run: HandlerRun, other: HandlerRun) -> bool:
    mine = claim_of(facts, run.start.job, run.start.token)
    theirs = claim_of(facts, other.start.job, other.start.token)
    return mine is not None and theirs is not None and mine.began.v < theirs.began.v


def _was_hurried(facts: Facts, end: Ended) -> bool:
    """Whether its worker was stopped at once while this handler was about to return: the interrupt may
    have come between the line that notes the return and the return itself."""
    return any(
        act.action == "hurry" and end.pid in act.pids and act.mono - RETURNING <= end.mono
        for act in facts.nemesis
    )


def _http_lease_ran_out(facts: Facts, job: str, token: str) -> bool:
    """Whether this was a claim over HTTP whose lease ran out. Only the caller's own beats extend that
    one, so a store that cannot be reached for as long takes it, whatever the caller's process does."""
    claim = claim_of(facts, job, token)
    session = None if claim is None else facts.sessions.get(claim.began.session or "")
    return session is not None and session.pid == 0 and session.end_reason == "lease over"

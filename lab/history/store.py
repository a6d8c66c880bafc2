"""The rules about the store's own record: order of events, nothing lost, one live claim, the fence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

from lab.history.facts import ENDS, ClaimLife, Facts, claim_of, life_of
from lab.history.lines import Answered, Replied
from lab.history.records import Violation
from winch.core.lifecycle import ENQUEUED, FINAL, TRANSITIONS, JobState
from winch.storage.decide.schedules import SCHEDULE_HEADER
from winch.storage.params import Event, SessionInfo

# The transition of each kind of event, in the words of the table of transitions.
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


def order(facts: Facts) -> Iterator[Violation]:
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


def i1_nothing_acked_is_lost(facts: Facts) -> Iterator[Violation]:
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
            words = "a ghost: no producer ever enqueued it"
            yield Violation("I1", job, words, tuple(facts.events.get(job, [])[:1]))


def i1b_repeats_store_once(facts: Facts) -> Iterator[Violation]:
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
                yield Violation("I1b", job, "two calls reported it as new", (new[job], replied))
            elif is_new:
                new[job] = replied


def i2_nothing_stays_behind(facts: Facts) -> Iterator[Violation]:
    if facts.history.is_quiet:
        for job, records in facts.jobs.items():
            if records[0].state not in FINAL:
                words = f"all is quiet, and it is still {records[0].state}"
                yield Violation("I2", job, words, tuple(facts.events.get(job, [])[-2:]))
    limit = facts.history.takeover_limit
    for event, session, taken in takeovers(facts):
        if taken < timedelta(0):
            words = f"rescued {-taken} before its session's lease was over"
            yield Violation("I2", event.job, words, (event, session))
        elif limit is not None and taken > limit:
            words = f"rescued {taken} after the end of the lease; the limit is {limit}"
            yield Violation("I2", event.job, words, (event, session))


def takeovers(facts: Facts) -> Iterator[tuple[Event, SessionInfo, timedelta]]:
    """The rescues that waited for a lease: a session ended by its supervisor is taken at once, and a
    report with the claim's own token names the death of its process while the session lives on."""
    for event in facts.history.events:
        session = facts.sessions.get(event.session or "")
        if event.kind != "rescued" or event.by_token is not None or session is None:
            continue
        if session.end_reason == "lease over":
            yield event, session, event.at - session.lease_until


def i3_one_live_claim(facts: Facts) -> Iterator[Violation]:
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


def i4_fence(facts: Facts) -> Iterator[Violation]:
    yield from _accepted_writes(facts)
    yield from _tokens_never_repeat(facts)
    for answer in facts.answers:
        found = claim_of(facts, answer.job, answer.token)
        if answer.answer == "lost":
            yield from _refused(found, answer)
        elif found is None:
            words = f"{answer.verb} was answered {answer.answer}, and no claim had that token"
            yield Violation("I4", answer.job, words, (answer,))
        elif found.ended is None or found.ended.by_token != answer.token:
            words = f"{answer.verb} was answered {answer.answer}, and the store shows another end"
            yield Violation("I4", answer.job, words, (*life_of(found), answer))


def _accepted_writes(facts: Facts) -> Iterator[Violation]:
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


def _tokens_never_repeat(facts: Facts) -> Iterator[Violation]:
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


def _refused(claim: ClaimLife | None, answer: Answered) -> Iterator[Violation]:
    if claim is None:
        return  # a refusal is right where there is no claim
    if claim.ended is None:
        words = f"a live token was refused: {answer.verb} was answered lost"
        yield Violation("I4", answer.job, words, (claim.began, answer))
        return
    # Only a repeat of the same end is answered "already". A worker that stops while the answer to a
    # commit is lost releases a job that the commit has completed, and the store rightly refuses that.
    is_repeat = claim.ended.kind == "finished" and answer.verb == "finish"
    if is_repeat and claim.ended.by_token == answer.token:
        words = f"{answer.verb} was answered lost, and this very token had ended the claim"
        yield Violation("I4", answer.job, words, (claim.began, claim.ended, answer))


def i5_final_is_final(facts: Facts) -> Iterator[Violation]:
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
                words = f"its last event made it {last.state or 'gone'}, its row has {record.state}"
                yield Violation("I5", job, words, (last,))

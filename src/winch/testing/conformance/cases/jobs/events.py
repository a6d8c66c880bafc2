"""events="full": each change of a job, written with the change, numbered without gaps."""

from __future__ import annotations

from collections import defaultdict

from winch.core.lifecycle import JobState
from winch.storage.crash_report import CrashReport
from winch.storage.params import ClaimRef, Event
from winch.testing.conformance.bench import HOUR, LEASE, SECOND, Bench
from winch.testing.conformance.case import case


def changes_of(bench: Bench, job_id: str) -> list[tuple[str, JobState | None]]:
    return [(event.kind, event.state) for event in bench.events() if event.job == job_id]


def last(bench: Bench, job_id: str) -> Event:
    return [event for event in bench.events() if event.job == job_id][-1]


@case(events=True)
def a_plain_life_is_three_events(bench: Bench) -> None:
    job_id = bench.add()
    created = bench.at
    bench.advance(SECOND)
    claim = bench.take()
    bench.advance(SECOND)
    bench.complete(claim)
    events = bench.events()
    seqs = [event.seq for event in events]
    session = bench.session
    assert events == [
        Event(seqs[0], job_id, 1, "enqueued", JobState.READY, None, None, None, 0, created),
        Event(
            seqs[1],
            job_id,
            2,
            "claimed",
            JobState.RUNNING,
            claim.token,
            None,
            session,
            1,
            created + SECOND,
        ),
        Event(
            seqs[2],
            job_id,
            3,
            "finished",
            JobState.COMPLETED,
            claim.token,
            claim.token,
            session,
            1,
            bench.at,
        ),
    ]


@case(events=True)
def every_kind_of_change_is_told(bench: Bench) -> None:
    job_id = bench.add(delay=HOUR)
    bench.advance(HOUR)
    bench.promote()
    bench.release(bench.take())
    claim = bench.take(session=bench.start_session())
    bench.advance(LEASE)
    bench.rescue()
    bench.cancel(job_id)
    bench.retry(job_id)
    claim = bench.take(session=bench.start_session())
    bench.finish(bench.outcome(claim, JobState.RETRYING, delay=HOUR))
    bench.delete(job_id)
    assert changes_of(bench, job_id) == [
        ("enqueued", JobState.SCHEDULED),
        ("promoted", JobState.READY),
        ("claimed", JobState.RUNNING),
        ("released", JobState.READY),
        ("claimed", JobState.RUNNING),
        ("rescued", JobState.READY),
        ("cancelled", JobState.CANCELLED),
        ("retried", JobState.READY),
        ("claimed", JobState.RUNNING),
        ("finished", JobState.RETRYING),
        ("deleted", None),
    ]


@case(events=True)
def each_jobs_changes_are_numbered_without_gaps(bench: Bench) -> None:
    ids = bench.add_many(20)
    for n in range(3):
        claims = bench.claim()
        bench.finish(
            *[bench.outcome(c, JobState.READY if n < 2 else JobState.COMPLETED) for c in claims]
        )
    events = bench.events()
    assert [event.seq for event in events] == sorted({event.seq for event in events})
    numbers = defaultdict(list)
    for event in events:
        numbers[event.job].append(event.v)
    assert dict(numbers) == {job_id: [1, 2, 3, 4, 5, 6, 7] for job_id in ids}


@case(events=True)
def an_accepted_write_names_the_live_token_and_the_one_presented(bench: Bench) -> None:
    bench.add()
    claim = bench.take()
    assert (last(bench, claim.id).token, last(bench, claim.id).by_token) == (claim.token, None)
    bench.release(claim)
    assert (last(bench, claim.id).token, last(bench, claim.id).by_token) == (claim.token, claim.token)
    begun = bench.take()
    bench.release(begun, has_started=True)
    event = last(bench, claim.id)
    assert (event.kind, event.token, event.by_token) == ("released", begun.token, begun.token)
    second = bench.take()
    bench.give_up(bench.session, second.token)
    event = last(bench, claim.id)
    assert (event.kind, event.token, event.by_token) == ("released", second.token, second.token)
    third = bench.take()
    bench.finish(bench.outcome(third, JobState.DEAD))
    event = last(bench, claim.id)
    assert (event.kind, event.token, event.by_token) == ("finished", third.token, third.token)


@case(events=True)
def a_rescue_names_the_token_it_ended_and_presents_none(bench: Bench) -> None:
    session = bench.start_session()
    bench.add()
    claim = bench.take(session=session)
    bench.advance(LEASE)
    bench.rescue()
    event = last(bench, claim.id)
    assert (event.kind, event.token, event.by_token) == ("rescued", claim.token, None)
    assert (event.session, event.attempt, event.at) == (session, 0, bench.now)


@case(events=True)
def the_end_of_a_session_tells_started_jobs_from_others(bench: Bench) -> None:
    session = bench.start_session()
    bench.add_many(2)
    started, other = bench.claim(session=session)
    bench.end_session(session, started, cause="signal 9")
    assert (last(bench, started.id).kind, last(bench, started.id).token) == ("rescued", started.token)
    assert (last(bench, other.id).kind, last(bench, other.id).by_token) == ("released", None)


@case(events=True)
def a_crash_is_told_as_a_rescue_by_the_claims_own_token(bench: Bench) -> None:
    job_id = bench.add()
    for state in (JobState.READY, JobState.READY, JobState.DEAD):
        claim = bench.take()
        refs = [ClaimRef(claim.id, claim.token)]
        bench.call(bench.driver.crash(CrashReport(refs, "signal 11"), now=bench.now))
        event = last(bench, job_id)
        assert (event.kind, event.state) == ("rescued", state)
        assert (event.token, event.by_token) == (claim.token, claim.token)


@case(events=True)
def a_write_that_did_not_take_is_no_event(bench: Bench) -> None:
    bench.add()
    claim = bench.take()
    bench.complete(claim)
    before = bench.events()
    bench.complete(claim)
    bench.release(claim)
    bench.finish(bench.outcome(claim, JobState.DEAD))
    bench.cancel(claim.id)
    bench.rescue()
    bench.promote()
    assert bench.events() == before


@case(events=True)
def a_repeated_enqueue_is_no_event(bench: Bench) -> None:
    new = bench.new_job(is_given_id=True)
    bench.enqueue(new)
    before = bench.events()
    bench.enqueue(new)
    bench.enqueue(new, is_repeat=True)
    assert bench.events() == before


@case(events=True)
def events_are_read_in_pieces(bench: Bench) -> None:
    bench.add_many(10)
    everything = bench.events()
    assert len(everything) == 10
    assert bench.events(limit=4) == everything[:4]
    assert bench.events(after=everything[3].seq, limit=4) == everything[4:8]
    assert bench.events(after=everything[-1].seq) == []


@case()
def nothing_is_written_unless_it_is_asked_for(bench: Bench) -> None:
    bench.add()
    bench.complete(bench.take())
    assert bench.events() == []

"""start_session, beat, end_session: claims, and what becomes of them when a process ends."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from winch.core.job import MAX_CRASHES, POISON_WINDOW, Claim, Failure
from winch.core.lifecycle import JobState
from winch.core.policy.queue_limits import QueueLimit
from winch.storage.kv_records import KvRecord
from winch.storage.params import COMMANDS, MOST_COMMANDS, ClaimRef, Pulse, Rescued, SessionInfo
from winch.testing.conformance.bench import HOUR, LEASE, MINUTE, SECOND, Bench
from winch.testing.conformance.case import case


def crash(bench: Bench, *queues: str) -> Claim:
    """Claim a job and let the process that runs it die."""
    session = bench.start_session()
    claim = bench.take(*queues, session=session)
    bench.end_session(session, claim, cause="signal 9")
    return claim


@case()
def a_session_comes_back_as_it_was_started(bench: Bench) -> None:
    session = bench.new_session(
        worker="wörker",
        queues=("b", "a"),
        tasks=("x.y", "z"),
        lease=timedelta(seconds=45),
        pid=99_999,
        supervisor="5ab",
        labels={"gpu": "h100", "zone": "ü"},
        queue_limits={"mail": QueueLimit(2, "10/s"), "ü": QueueLimit(limit=1)},
    )
    assert bench.call(bench.driver.start_session(session, now=bench.now)) == bench.now
    assert bench.sessions() == [
        SessionInfo(
            id=session.id,
            worker="wörker",
            host="host-1",
            pid=99_999,
            release="1.2.3",
            queues=("b", "a"),
            tasks=("x.y", "z"),
            slots=8,
            started_at=bench.at,
            lease_until=bench.at + timedelta(seconds=45),
            beats=0,
            running=0,
            supervisor="5ab",
            labels={"gpu": "h100", "zone": "ü"},
            queue_limits={"mail": QueueLimit(2, "10/s"), "ü": QueueLimit(limit=1)},
        )
    ]


@case()
def starting_a_session_tells_the_stores_time(bench: Bench) -> None:
    bench.now = None
    started_at = bench.call(bench.driver.start_session(bench.new_session()))
    assert abs(started_at - datetime.now(UTC)) < 5 * MINUTE
    (pulse,) = bench.beat(bench.sessions()[0].id)
    assert pulse.now >= started_at


@case()
def starting_a_session_again_changes_nothing(bench: Bench) -> None:
    session = bench.new_session()
    bench.call(bench.driver.start_session(session, now=bench.now))
    bench.beat(session.id)
    before = bench.sessions()
    bench.advance(SECOND)
    assert bench.call(bench.driver.start_session(session, now=bench.now)) == bench.now
    assert bench.sessions() == before


@case()
def an_ended_session_stays_ended_when_started_again(bench: Bench) -> None:
    session = bench.new_session()
    bench.call(bench.driver.start_session(session, now=bench.now))
    bench.end_session(session.id)
    bench.advance(SECOND)
    bench.call(bench.driver.start_session(session, now=bench.now))
    assert bench.sessions() == []
    bench.add()
    assert bench.claim(session=session.id) == []


@case()
def a_beat_extends_the_lease_by_its_whole_length(bench: Bench) -> None:
    session = bench.start_session()
    bench.advance(5 * SECOND)
    assert bench.beat(session) == [Pulse(session, is_live=True, beats=1, now=bench.at)]
    assert bench.session_info(session).lease_until == bench.at + LEASE
    bench.advance(5 * SECOND)
    assert bench.beat(session) == [Pulse(session, is_live=True, beats=2, now=bench.at)]
    info = bench.session_info(session)
    assert (info.lease_until, info.beats) == (bench.at + LEASE, 2)


@case()
def pulses_come_in_the_order_of_the_sessions(bench: Bench) -> None:
    live = [bench.start_session() for _ in range(4)]
    ended = bench.start_session()
    bench.end_session(ended)
    unknown = bench.new_token()
    asked = [live[2], unknown, live[0], ended, live[3], live[1]]
    assert bench.beat(*asked) == [
        Pulse(session, is_live=session in live, beats=int(session in live), now=bench.at)
        for session in asked
    ]
    assert bench.beat() == []


def send(bench: Bench, session: str, *names: str, keep: timedelta | None = None) -> None:
    lines = [
        KvRecord(book=COMMANDS, key=f"{session}/{name}", body=f'{{"do": "{name}"}}', keep=keep)
        for name in names
    ]
    bench.call(bench.driver.kv_put(lines, now=bench.now))


def brought(bench: Bench, *sessions: str) -> list[list[str]]:
    pulses = bench.beat(*sessions)
    for pulse in pulses:
        for key, body in pulse.commands:
            assert body == f'{{"do": "{key.partition("/")[2]}"}}'
    return [[key.partition("/")[2] for key, _ in pulse.commands] for pulse in pulses]


@case()
def a_beat_brings_the_commands_of_its_sessions_by_key(bench: Bench) -> None:
    one, other, third = (bench.start_session() for _ in range(3))
    assert brought(bench, one, other) == [[], []]
    send(bench, one, "0002-b", "0001-ü", "0010-a")
    send(bench, other, "0001-x")
    bench.call(bench.driver.kv_put([KvRecord(book="other", key=f"{one}/0000-z", body="{}")]))
    assert brought(bench, third, other, one) == [[], ["0001-x"], ["0001-ü", "0002-b", "0010-a"]]
    assert brought(bench, one) == [["0001-ü", "0002-b", "0010-a"]]


@case()
def a_command_comes_until_it_is_deleted_or_its_time_is_over(bench: Bench) -> None:
    session = bench.start_session()
    send(bench, session, "0001-a", "0003-c")
    send(bench, session, "0002-b", keep=5 * SECOND)
    assert brought(bench, session) == [["0001-a", "0002-b", "0003-c"]]
    bench.call(bench.driver.kv_delete(COMMANDS, [f"{session}/0001-a"]))
    assert brought(bench, session) == [["0002-b", "0003-c"]]
    bench.advance(6 * SECOND)
    assert brought(bench, session) == [["0003-c"]]


@case()
def a_session_that_is_not_live_gets_no_command(bench: Bench) -> None:
    ended, unknown = bench.start_session(), bench.new_token()
    send(bench, ended, "0001-a")
    send(bench, unknown, "0001-a")
    bench.end_session(ended)
    assert brought(bench, ended, unknown) == [[], []]


@case()
def one_beat_brings_a_bounded_number_of_commands(bench: Bench) -> None:
    session = bench.start_session()
    names = [f"{number:04}-a" for number in range(MOST_COMMANDS + 5)]
    send(bench, session, *names)
    assert brought(bench, session) == [names[:MOST_COMMANDS]]


@case()
def each_session_has_the_lease_it_was_started_with(bench: Bench) -> None:
    short = bench.start_session(lease=timedelta(seconds=3))
    long = bench.start_session(lease=timedelta(minutes=3))
    bench.advance(SECOND)
    bench.beat(short, long)
    assert bench.session_info(short).lease_until == bench.at + timedelta(seconds=3)
    assert bench.session_info(long).lease_until == bench.at + timedelta(minutes=3)


@case()
def a_beat_touches_no_job(bench: Bench) -> None:
    ids = bench.add_many(3)
    bench.claim(limit=2)
    before = bench.jobs(ids)
    bench.advance(SECOND)
    bench.beat(bench.session)
    assert bench.jobs(ids) == before


@case()
def a_late_beat_that_nobody_swept_keeps_the_session(bench: Bench) -> None:
    session = bench.start_session()
    bench.advance(2 * LEASE)
    assert bench.beat(session)[0].is_live
    assert bench.rescue() == []
    assert bench.session_info(session).ended_at is None


@case()
def a_beat_does_not_revive_an_ended_session(bench: Bench) -> None:
    session = bench.start_session()
    bench.end_session(session)
    before = bench.session_info(session)
    bench.advance(SECOND)
    assert not bench.beat(session)[0].is_live
    assert bench.session_info(session) == before
    unknown = bench.new_token()
    bench.beat(unknown)
    assert unknown not in [info.id for info in bench.sessions(is_ended_too=True)]


@case()
def a_session_that_stops_gives_everything_back_uncounted(bench: Bench) -> None:
    session = bench.start_session()
    bench.add_many(2)
    claims = bench.claim(session=session)
    back = bench.end_session(session, *claims)  # started, but no process died
    assert back == sorted(
        (Rescued(claim.id, claim.token, session, JobState.READY) for claim in claims),
        key=lambda rescued: rescued.id,
    )
    for job in bench.jobs([claim.id for claim in claims]):
        assert (job.state, job.attempt, job.token) == (JobState.READY, 0, None)
        assert (job.crashes, job.rescues, job.is_suspect, job.history) == (0, 0, False, ())


@case()
def an_ended_session_tells_when_and_why(bench: Bench) -> None:
    stopped, killed = bench.start_session(), bench.start_session()
    bench.advance(SECOND)
    bench.end_session(stopped)
    bench.end_session(killed, cause="signal 9")
    assert bench.session_info(stopped).ended_at == bench.now
    info = bench.session_info(killed)
    assert (info.ended_at, info.end_reason) == (bench.now, "signal 9")
    assert bench.sessions() == []


@case()
def a_started_job_counts_the_crash_of_its_process(bench: Bench) -> None:
    bench.add()
    session = bench.start_session()
    claim = bench.take(session=session)
    started = bench.at
    bench.advance(SECOND)
    assert bench.end_session(session, claim, cause="signal 9") == [
        Rescued(claim.id, claim.token, session, JobState.READY)
    ]
    job = bench.get(claim.id)
    assert (job.state, job.attempt, job.token) == (JobState.READY, 0, None)
    assert (job.crashes, job.rescues, job.is_suspect) == (1, 0, True)
    (entry,) = job.history
    assert (entry.what, entry.at, entry.attempt) == ("crashed", bench.now, 1)
    assert (entry.session, entry.claimed_at) == (session, started)
    assert entry.error == Failure("winch.JobCrashed", "signal 9")


@case()
def a_job_that_had_not_started_is_not_blamed(bench: Bench) -> None:
    session = bench.start_session()
    bench.add_many(3)
    started, *prefetched = bench.claim(session=session)
    bench.end_session(session, started, cause="out of memory")
    assert bench.get(started.id).is_suspect
    for job in bench.jobs([claim.id for claim in prefetched]):
        assert (job.state, job.attempt, job.crashes) == (JobState.READY, 0, 0)
        assert (job.is_suspect, job.history) == (False, ())


@case()
def a_started_job_named_with_another_token_is_not_blamed(bench: Bench) -> None:
    bench.add()
    session = bench.start_session()
    claim = bench.take(session=session)
    stale = ClaimRef(claim.id, bench.new_token())
    assert len(bench.end_session(session, stale, cause="signal 9")) == 1
    job = bench.get(claim.id)
    assert (job.state, job.crashes, job.is_suspect) == (JobState.READY, 0, False)


@case()
def what_others_claimed_since_is_left_alone(bench: Bench) -> None:
    bench.add()
    dying = bench.start_session()
    claim = bench.take(session=dying)
    bench.release(claim)
    second = bench.take(session=bench.start_session())
    assert bench.end_session(dying, claim, cause="signal 9") == []
    job = bench.get(claim.id)
    assert (job.token, job.crashes) == (second.token, 0)


@case()
def a_job_taken_back_keeps_its_place(bench: Bench) -> None:
    session = bench.start_session()
    ids = []
    for _ in range(2):
        ids.append(bench.add())
        bench.advance(SECOND)
    started, other = bench.claim(session=session)
    later = bench.add()
    bench.end_session(session, started, cause="signal 9")
    assert [claim.id for claim in bench.claim()] == [started.id, other.id, later]


@case()
def the_third_crash_is_the_last(bench: Bench) -> None:
    job_id = bench.add()
    for crashes in range(1, MAX_CRASHES):
        crash(bench)
        job = bench.get(job_id)
        assert (job.state, job.crashes) == (JobState.READY, crashes)
        bench.advance(HOUR)
    session = bench.start_session()
    claim = bench.take(session=session)
    assert bench.end_session(session, claim, cause="exit code 139") == [
        Rescued(job_id, claim.token, session, JobState.DEAD)
    ]
    job = bench.get(job_id)
    assert (job.state, job.finished_at) == (JobState.DEAD, bench.now)
    assert (job.crashes, job.attempt) == (MAX_CRASHES, 0)
    assert "crashed 3 times" in (job.reason or "")
    assert "exit code 139" in (job.reason or "")
    assert [entry.what for entry in job.history] == ["crashed"] * MAX_CRASHES


@case()
def crashes_of_long_ago_do_not_count(bench: Bench) -> None:
    job_id = bench.add()
    for _ in range(MAX_CRASHES + 2):
        crash(bench)
        bench.advance(POISON_WINDOW / 2 + MINUTE)
    job = bench.get(job_id)
    assert (job.state, job.crashes) == (JobState.READY, 2)


@case()
def crashes_just_inside_the_window_count(bench: Bench) -> None:
    job_id = bench.add()
    crash(bench)
    crash(bench)
    bench.advance(POISON_WINDOW - MINUTE)
    crash(bench)
    assert bench.get(job_id).state is JobState.DEAD


@case()
def an_operators_retry_starts_the_count_of_crashes_over(bench: Bench) -> None:
    job_id = bench.add()
    for _ in range(MAX_CRASHES):
        crash(bench)
    bench.retry(job_id)
    assert bench.get(job_id).crashes == 0
    for _ in range(MAX_CRASHES - 1):
        crash(bench)
    job = bench.get(job_id)
    assert (job.state, job.crashes) == (JobState.READY, MAX_CRASHES - 1)
    crash(bench)
    assert bench.get(job_id).state is JobState.DEAD


@case()
def an_operators_retry_of_a_waiting_job_starts_the_count_over_too(bench: Bench) -> None:
    job_id = bench.add()
    for _ in range(MAX_CRASHES - 1):
        crash(bench)
    bench.finish(bench.outcome(bench.take(), JobState.RETRYING, delay=HOUR))
    assert bench.get(job_id).crashes == MAX_CRASHES - 1
    bench.retry(job_id)
    assert bench.get(job_id).crashes == 0
    crash(bench)
    job = bench.get(job_id)
    assert (job.state, job.crashes) == (JobState.READY, 1)


@case()
def failures_between_crashes_do_not_hide_them(bench: Bench) -> None:
    job_id = bench.add()
    for _ in range(MAX_CRASHES):
        bench.finish(bench.outcome(bench.take(), JobState.READY))
        crash(bench)
    job = bench.get(job_id)
    assert (job.state, job.attempt) == (JobState.DEAD, MAX_CRASHES)


@case()
def a_requested_cancel_is_carried_out_at_the_end_of_the_session(bench: Bench) -> None:
    session = bench.start_session()
    bench.add_many(2)
    started, other = bench.claim(session=session)
    bench.cancel(started.id, other.id, reason="wrong customer")
    back = bench.end_session(session, started, cause="signal 9")
    assert [rescued.to for rescued in back] == [JobState.CANCELLED] * 2
    for job in bench.jobs([started.id, other.id]):
        assert (job.state, job.reason) == (JobState.CANCELLED, "wrong customer")
        assert job.finished_at == bench.now


@case()
def ending_a_session_again_takes_nothing(bench: Bench) -> None:
    session = bench.start_session()
    bench.add()
    claim = bench.take(session=session)
    assert len(bench.end_session(session, claim, cause="signal 9")) == 1
    before = bench.get(claim.id), bench.session_info(session)
    bench.advance(SECOND)
    assert bench.end_session(session, claim, cause="signal 9") == []
    assert (bench.get(claim.id), bench.session_info(session)) == before


@case()
def ending_an_unknown_session_takes_nothing(bench: Bench) -> None:
    bench.add()
    claim = bench.take()
    assert bench.end_session(bench.new_token(), claim, cause="signal 9") == []
    assert bench.get(claim.id).token == claim.token


@case()
def ending_one_session_leaves_the_others_alone(bench: Bench) -> None:
    first, second = bench.start_session(), bench.start_session()
    bench.add_many(2)
    bench.take(session=first)
    kept = bench.take(session=second)
    assert len(bench.end_session(first)) == 1
    assert bench.get(kept.id).token == kept.token
    assert [info.id for info in bench.sessions()] == [second]


@case()
def sessions_are_listed_latest_start_first(bench: Bench) -> None:
    ids = []
    for _ in range(4):
        ids.append(bench.start_session())
        bench.advance(SECOND)
    bench.end_session(ids[1])
    assert [info.id for info in bench.sessions()] == [ids[3], ids[2], ids[0]]
    assert [info.id for info in bench.sessions(is_ended_too=True)] == ids[::-1]


@case()
def a_session_tells_how_many_jobs_it_runs(bench: Bench) -> None:
    session, other = bench.start_session(), bench.start_session()
    bench.add_many(4)
    claims = bench.claim(session=session, limit=3)
    bench.take(session=other)
    bench.complete(claims[0])
    assert bench.session_info(session).running == 2
    assert bench.session_info(other).running == 1

"""enqueue: jobs are stored, all or none, once each."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from winch.core.errors import WinchError
from winch.core.job import JobRecord
from winch.core.lifecycle import FINAL, JobState
from winch.storage.params import Enqueued
from winch.storage.verbs import Sending
from winch.testing.conformance.bench import DAY, HOUR, MINUTE, SECOND, Bench
from winch.testing.conformance.case import case


@case()
def a_job_without_a_run_time_is_ready_now(bench: Bench) -> None:
    job = bench.get(bench.add())
    assert job.state is JobState.READY
    assert job.created_at == job.run_at == bench.now
    assert job.attempt == 0
    assert job.token is None


@case()
def a_delay_counts_from_the_stores_now(bench: Bench) -> None:
    job = bench.get(bench.add(delay=HOUR))
    assert job.state is JobState.SCHEDULED
    assert job.created_at == bench.now
    assert job.run_at == bench.at + HOUR


@case()
def a_later_run_time_makes_the_job_scheduled(bench: Bench) -> None:
    moment = bench.at + timedelta(days=400, microseconds=1)
    job = bench.get(bench.add(run_at=moment))
    assert job.state is JobState.SCHEDULED
    assert job.run_at == moment


@case()
def a_job_may_be_due_at_the_last_moment_there_is(bench: Bench) -> None:
    last = datetime.max.replace(tzinfo=UTC)
    never, soon = bench.add(run_at=last), bench.add(delay=SECOND)
    job = bench.get(never)
    assert (job.state, job.run_at) == (JobState.SCHEDULED, last)
    bench.advance(2 * SECOND)
    promoted = bench.promote()  # the job that is due is not kept waiting by the other one
    assert (promoted.count, promoted.next_at) == (1, last)
    assert bench.get(soon).state is JobState.READY


@case()
def a_run_time_in_the_past_arrives_now(bench: Bench) -> None:
    job = bench.get(bench.add(run_at=bench.at - DAY))
    assert job.state is JobState.READY
    assert job.run_at == bench.now


@case()
def a_run_time_of_exactly_now_is_ready(bench: Bench) -> None:
    assert bench.get(bench.add(run_at=bench.at)).state is JobState.READY


@case()
def a_delay_of_nothing_is_ready(bench: Bench) -> None:
    assert bench.get(bench.add(delay=timedelta(0))).state is JobState.READY


@case()
def an_expiry_counts_from_the_stores_now(bench: Bench) -> None:
    job = bench.get(bench.add(expires=5 * MINUTE))
    assert job.expires_at == bench.at + 5 * MINUTE
    assert bench.take().expires_at == job.expires_at


@case()
def without_now_the_stores_own_clock_is_used(bench: Bench) -> None:
    bench.now = None
    job = bench.get(bench.add(delay=HOUR))
    off = abs(job.created_at - datetime.now(UTC))
    assert off < 5 * MINUTE, f"the store's clock is off by {off}"
    assert job.run_at == job.created_at + HOUR
    assert job.created_at.utcoffset() == timedelta(0)


@case()
def every_field_comes_back_as_it_was_given(bench: Bench) -> None:
    new = bench.new_job(
        task="report.build",
        version=3,
        args='{"b":[1,2.50,-0.0],"a":null}',
        queue="reports",
        priority=-7,
        tenant="acme",
        fifo="account:7",
        unique_key="report:7",
        tags=("b", "a", "c"),
        headers={"traceparent": "00-abc-def-01", "x": ""},
        options='{"timeout":3.5}',
        expires=timedelta(seconds=90, microseconds=1),
        max_attempts=5,
        keep=timedelta(days=3, microseconds=7),
    )
    bench.enqueue(new)
    stored = bench.get(new.id)
    assert stored == JobRecord(
        id=new.id,
        task="report.build",
        version=3,
        args='{"b":[1,2.50,-0.0],"a":null}',
        queue="reports",
        priority=-7,
        created_at=bench.at,
        run_at=bench.at,
        state=JobState.READY,
        tenant="acme",
        fifo="account:7",
        unique_key="report:7",
        tags=("b", "a", "c"),
        headers={"traceparent": "00-abc-def-01", "x": ""},
        options='{"timeout":3.5}',
        expires_at=bench.at + timedelta(seconds=90, microseconds=1),
        max_attempts=5,
        keep=timedelta(days=3, microseconds=7),
        seq=stored.seq,
    )


@case()
def what_was_not_given_stays_empty(bench: Bench) -> None:
    new = bench.new_job()
    bench.enqueue(new)
    assert bench.get(new.id) == JobRecord(
        id=new.id,
        task=new.task,
        version=1,
        args=new.args,
        queue="default",
        priority=0,
        created_at=bench.at,
        run_at=bench.at,
        state=JobState.READY,
    )


@case()
def text_of_any_script_comes_back(bench: Bench) -> None:
    text = (
        "Grüße 日本語 🚀 \u200f\u05e9\u05dc\u05d5\u05dd\u200e \\u0041 \"'%s{}$1? \t\n\x01\x7f \U0010ffff"
    )
    new = bench.new_job(
        task="täsk",
        queue="шлюз",
        args='{"text":"Grüße 日本語 🚀 \\\\ \\n %s $1 ?"}',
        tenant=text,
        fifo=text,
        unique_key=text,
        tags=(text, "", "a,b", "{c}", '"d"', "NULL"),
        headers={text: text},
    )
    bench.enqueue(new)
    job = bench.get(new.id)
    assert (job.task, job.queue, job.args) == (new.task, new.queue, new.args)
    assert (job.tenant, job.fifo, job.unique_key) == (text, text, text)
    assert job.tags == new.tags
    assert job.headers == new.headers
    claim = bench.take("шлюз")
    assert (claim.args, claim.headers) == (new.args, new.headers)


@case()
def arguments_of_256_kilobytes_come_back(bench: Bench) -> None:
    args = '{"blob":"' + "xé" * 85_000 + '"}'
    assert len(args.encode()) > 250_000
    job_id = bench.add(args=args)
    assert bench.get(job_id).args == args
    assert bench.take().args == args


@case()
def moments_keep_their_microseconds(bench: Bench) -> None:
    moments = [bench.at + DAY + timedelta(microseconds=n) for n in (0, 1, 999_999)]
    ids = [bench.add(run_at=moment) for moment in moments]
    assert [job.run_at for job in bench.jobs(ids)] == moments


@case()
def priorities_reach_from_minus_1000_to_1000(bench: Bench) -> None:
    low, high = bench.add(priority=-1000), bench.add(priority=1000)
    assert [job.priority for job in bench.jobs([low, high])] == [-1000, 1000]
    assert [claim.id for claim in bench.claim()] == [high, low]


@case()
def answers_come_in_the_order_of_the_jobs(bench: Bench) -> None:
    known = bench.new_job(is_given_id=True)
    bench.enqueue(known)
    jobs = [*bench.new_jobs(3), known, *bench.new_jobs(3, is_given_id=True)]
    jobs.reverse()
    assert bench.enqueue(*jobs) == [Enqueued(job.id, is_new=job.id != known.id) for job in jobs]


@case()
def an_answer_has_the_state_and_the_time_of_a_new_job(bench: Bench) -> None:
    known = bench.new_job(is_given_id=True)
    bench.enqueue(known)
    jobs = [
        bench.new_job(),
        bench.new_job(delay=HOUR),
        bench.new_job(run_at=bench.at + HOUR),
        bench.new_job(run_at=bench.at - HOUR),
        bench.new_job(is_given_id=True, delay=HOUR),
        bench.new_job(unique_key="a"),
        bench.new_job(tags=("a",), headers={"b": "c"}),
    ]
    for answers in (bench.enqueue(jobs[0]), bench.enqueue(*jobs[1:])):
        for answer in answers:
            job = bench.get(answer.id)
            assert (answer.created_at, answer.state) == (job.created_at, job.state)
    for again in (known, bench.new_job(unique_key="a")):
        [answer] = bench.enqueue(again)
        assert (answer.is_new, answer.created_at, answer.state) == (False, None, None)


@case()
def no_jobs_are_no_change(bench: Bench) -> None:
    assert bench.enqueue() == []
    assert not any(bench.counts().values())


@case()
def two_thousand_jobs_go_in_one_call(bench: Bench) -> None:
    jobs = bench.new_jobs(2000)
    assert bench.enqueue(*jobs) == [Enqueued(job.id, is_new=True) for job in jobs]
    assert bench.counts()[JobState.READY] == 2000


@case()
def an_enqueue_that_fails_stores_none_of_its_jobs(bench: Bench) -> None:
    known = bench.new_job()
    bench.enqueue(known)
    others = bench.new_jobs(2)
    try:
        # An id that Winch drew is never drawn again, so a driver may refuse this, but only as a whole.
        bench.enqueue(others[0], known, others[1])
    except WinchError:
        assert bench.find(*[job.id for job in others]) == [None, None]
    else:
        bench.jobs([job.id for job in others])
    assert bench.get(known.id).state is JobState.READY


@case()
def a_given_id_twice_in_one_call_is_one_job(bench: Bench) -> None:
    first = bench.new_job(is_given_id=True, args='{"n":1}')
    second = bench.new_job(id=first.id, is_given_id=True, args='{"n":2}')
    assert bench.enqueue(first, second) == [
        Enqueued(first.id, is_new=True),
        Enqueued(first.id, is_new=False),
    ]
    assert bench.counts()[JobState.READY] == 1
    assert bench.get(first.id).args == '{"n":1}'


@case()
def a_given_id_again_leaves_the_job_as_it_is(bench: Bench) -> None:
    new = bench.new_job(is_given_id=True)
    bench.enqueue(new)
    before = bench.get(new.id)
    bench.advance(SECOND)
    again = bench.new_job(id=new.id, is_given_id=True, args="{}", queue="other", delay=HOUR)
    assert bench.enqueue(again) == [Enqueued(new.id, is_new=False)]
    assert bench.get(new.id) == before


@case()
def a_given_id_of_a_running_job_leaves_it_running(bench: Bench) -> None:
    new = bench.new_job(is_given_id=True)
    bench.enqueue(new)
    claim = bench.take()
    assert bench.enqueue(new) == [Enqueued(new.id, is_new=False)]
    assert bench.get(new.id).token == claim.token
    assert bench.claim() == []


@case()
def a_given_id_of_a_final_job_does_not_run_again(bench: Bench) -> None:
    for state in sorted(FINAL):
        job = bench.make_job(state, is_given_id=True)
        again = bench.new_job(id=job.id, is_given_id=True)
        assert bench.enqueue(again) == [Enqueued(job.id, is_new=False)]
        assert bench.get(job.id) == job
    assert bench.claim() == []


@case()
def an_id_that_winch_drew_is_known_when_a_caller_gives_it(bench: Bench) -> None:
    for state in (JobState.READY, JobState.RUNNING, JobState.COMPLETED):
        job = bench.make_job(state)
        again = bench.new_job(id=job.id, is_given_id=True)
        assert bench.enqueue(again) == [Enqueued(job.id, is_new=False)]
        assert bench.get(job.id) == job
        assert bench.enqueue(again) == [Enqueued(job.id, is_new=False)]


@case()
def an_id_that_winch_drew_and_a_caller_gave_is_free_after_delete(bench: Bench) -> None:
    for state in (JobState.READY, JobState.COMPLETED):
        job = bench.make_job(state)
        again = bench.new_job(id=job.id, is_given_id=True)
        bench.enqueue(again)
        bench.delete(job.id)
        assert bench.enqueue(again) == [Enqueued(job.id, is_new=True)]
        assert bench.get(job.id).state is JobState.READY


@case()
def a_given_id_is_one_job_when_two_callers_race(bench: Bench) -> None:
    new = bench.new_job(is_given_id=True)
    verbs = [bench.driver.enqueue([new], now=bench.now) for _ in range(8)]
    answers = [answer for (answer,) in bench.together(verbs)]
    assert sorted(answer.is_new for answer in answers) == [False] * 7 + [True]
    assert bench.counts()[JobState.READY] == 1


@case()
def a_given_id_is_free_again_after_delete(bench: Bench) -> None:
    for state in (JobState.READY, JobState.COMPLETED):
        job = bench.make_job(state, is_given_id=True)
        bench.delete(job.id)
        assert bench.enqueue(bench.new_job(id=job.id, is_given_id=True)) == [
            Enqueued(job.id, is_new=True)
        ]
        assert bench.get(job.id).state is JobState.READY


@case()
def a_repeat_finds_ids_that_winch_drew(bench: Bench) -> None:
    stored = bench.new_jobs(2)
    bench.enqueue(*stored)
    missing = bench.new_jobs(2)
    jobs = [missing[0], stored[0], stored[1], missing[1]]
    assert bench.enqueue(*jobs, is_repeat=True) == [
        Enqueued(missing[0].id, is_new=True),
        Enqueued(stored[0].id, is_new=False),
        Enqueued(stored[1].id, is_new=False),
        Enqueued(missing[1].id, is_new=True),
    ]
    assert bench.counts()[JobState.READY] == 4


@case()
def a_repeat_leaves_jobs_alone_that_have_moved_on(bench: Bench) -> None:
    states = (JobState.SCHEDULED, JobState.RUNNING, JobState.RETRYING, *sorted(FINAL))
    made = [bench.make_job(state) for state in states]
    again = [bench.new_job(id=job.id, queue=job.queue) for job in made]
    assert bench.enqueue(*again, is_repeat=True) == [Enqueued(job.id, is_new=False) for job in made]
    assert bench.jobs([job.id for job in made]) == made


@case()
def a_repeat_of_given_ids_is_answered_the_same(bench: Bench) -> None:
    live = bench.new_job(is_given_id=True)
    bench.enqueue(live)
    done = bench.make_job(JobState.COMPLETED, is_given_id=True)
    again = [live, bench.new_job(id=done.id, is_given_id=True), bench.new_job(is_given_id=True)]
    assert [stored.is_new for stored in bench.enqueue(*again, is_repeat=True)] == [False, False, True]


@case()
def one_written_ahead_is_stored_as_any_other(bench: Bench) -> None:
    long = f'"{"x" * 9000}"'  # in all more than what a driver may hold for short
    chunks = [bench.new_jobs(3), [bench.new_job(args=long) for _ in range(20)], bench.new_jobs(1)]
    answers: list[list[Enqueued]] = []
    under_way: Sending[list[Enqueued]] | None = None
    for jobs in chunks:
        written = bench.driver.sending(bench.driver.enqueue(jobs, now=bench.now))
        assert bench.find(*(job.id for job in jobs)) == [None] * len(jobs)  # nothing has left yet
        if under_way is not None:
            answers.append(under_way.answer())
        written.send()
        under_way = written
    assert under_way is not None
    answers.append(under_way.answer())
    assert answers == [[Enqueued(job.id, True) for job in jobs] for jobs in chunks]
    assert all(bench.get(job.id).state is JobState.READY for jobs in chunks for job in jobs)


@case()
def between_sending_and_answer_the_store_does_other_things(bench: Bench) -> None:
    before, [new] = bench.add(), bench.new_jobs(1)
    sending = bench.driver.sending(bench.driver.enqueue([new], now=bench.now))
    sending.send()
    after = bench.add()
    assert bench.get(before).state is bench.get(after).state is JobState.READY
    assert sending.answer() == [Enqueued(new.id, True)]
    assert bench.get(new.id).state is JobState.READY

"""Dead jobs: their fingerprints, their groups, and what is replayed and thrown away of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from winch.core.job import MAX_CRASHES, MAX_RESCUES, Entry, Failure
from winch.core.lifecycle import JobState
from winch.core.values.fingerprint import fingerprint
from winch.storage.params import Acted, DeadGroup, Enqueued
from winch.testing.conformance.bench import HOUR, LEASE, MINUTE, SECOND, Bench
from winch.testing.conformance.case import case
from winch.testing.conformance.cases.jobs.finish import claimed

TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/mail.py", line 7, in send
    deliver(user)
  File "/srv/shop/smtp.py", line 70, in deliver
    raise ValueError(f"no user {user}")
ValueError: no user 7
"""


# -- fingerprints -------------------------------------------------------------------------------------


@case()
def a_dead_job_carries_the_fingerprint_it_was_finished_with(bench: Bench) -> None:
    (claim,) = claimed(bench)
    bench.finish(bench.outcome(claim, JobState.DEAD, fingerprint="0123456789abcdef"))
    assert bench.get(claim.id).fingerprint == "0123456789abcdef"
    assert bench.list_jobs(states=(JobState.DEAD,)).jobs[0].fingerprint == "0123456789abcdef"


@case()
def a_dead_job_without_one_gets_that_of_its_task_and_error(bench: Bench) -> None:
    for error in (
        Failure("ValueError", "no user 7", TRACEBACK),
        Failure("shop.Ünusual", "pas d'été « 7 » \N{SNOWMAN} 'x'"),
        Failure("E", ""),
    ):
        job = bench.kill(error, task="mail.sënd")
        assert job.fingerprint == fingerprint("mail.sënd", error)


@case()
def a_death_without_an_error_has_a_fingerprint_of_its_reason(bench: Bench) -> None:
    (claim,) = claimed(bench)
    bench.finish(bench.outcome(claim, JobState.DEAD, error=None, reason="no way"))
    job = bench.get(claim.id)
    assert job.fingerprint == fingerprint(job.task, Failure("discarded", "no way"))


@case()
def only_dead_jobs_have_a_fingerprint(bench: Bench) -> None:
    for to in (JobState.COMPLETED, JobState.CANCELLED, JobState.RETRYING, JobState.SCHEDULED):
        (claim,) = claimed(bench)
        bench.finish(bench.outcome(claim, to, delay=HOUR, fingerprint="0123456789abcdef"))
        assert bench.get(claim.id).fingerprint is None


@case()
def a_retry_takes_the_fingerprint_away(bench: Bench) -> None:
    job = bench.kill()
    bench.retry(job.id)
    assert bench.get(job.id).fingerprint is None
    assert bench.groups() == []
    bench.complete(bench.take(job.queue))
    assert bench.get(job.id).fingerprint is None


@case()
def jobs_that_crash_to_death_have_the_fingerprint_of_the_cause(bench: Bench) -> None:
    job_id = bench.add()
    for _ in range(MAX_CRASHES):
        session = bench.start_session()
        claim = bench.take(session=session)
        bench.end_session(session, claim, cause="killed by SIGKILL after 3 s")
    job = bench.get(job_id)
    assert job.state is JobState.DEAD
    assert job.fingerprint == fingerprint(job.task, Failure("crashed", "killed by SIGKILL after 7 s"))


@case()
def jobs_that_are_rescued_to_death_have_the_fingerprint_of_the_cause(bench: Bench) -> None:
    job_id = bench.add()
    for _ in range(MAX_RESCUES):
        bench.take(session=bench.start_session())
        bench.advance(LEASE + SECOND)
        bench.rescue()
    job = bench.get(job_id)
    assert job.state is JobState.DEAD
    assert job.fingerprint == fingerprint(job.task, Failure("rescued", "lease over"))


# -- groups -------------------------------------------------------------------------------------------


@case()
def there_are_no_groups_without_dead_jobs(bench: Bench) -> None:
    for state in (JobState.READY, JobState.RUNNING, JobState.COMPLETED, JobState.CANCELLED):
        bench.make_job(state)
    assert bench.groups() == []


@case()
def jobs_that_died_alike_are_one_group(bench: Bench) -> None:
    first = bench.kill(Failure("KeyError", "no user 7", TRACEBACK))
    bench.advance(MINUTE)
    bench.kill(Failure("KeyError", "no user 1200"))  # another way to the same message
    bench.advance(MINUTE)
    last = bench.kill(Failure("KeyError", "no user 8", TRACEBACK.replace("line 7,", "line 9,")))
    group, other = bench.groups()
    assert group == DeadGroup(
        fingerprint=fingerprint("mail.send", Failure("KeyError", "no user 7", TRACEBACK)),
        task="mail.send",
        error_type="KeyError",
        message="no user 8",
        count=2,
        first_at=first.finished_at or bench.at,
        last_at=bench.at,
        sample_id=last.id,
    )
    assert (other.count, other.fingerprint != group.fingerprint) == (1, True)


@case()
def the_biggest_group_comes_first_and_then_the_latest(bench: Bench) -> None:
    for name, times in (("A", 1), ("B", 3), ("C", 1), ("D", 2)):
        for _ in range(times):
            bench.kill(Failure(name, "m"))
            bench.advance(SECOND)
    assert [group.error_type for group in bench.groups()] == ["B", "D", "C", "A"]
    assert [group.error_type for group in bench.groups(limit=2)] == ["B", "D"]


@case()
def groups_are_asked_for_by_task_and_queue(bench: Bench) -> None:
    bench.kill(task="a.run", queue="q1")
    bench.kill(task="a.run", queue="q2")
    bench.kill(task="b.run", queue="q1")

    def found(**fields: object) -> list[tuple[str, int]]:
        return sorted((group.task, group.count) for group in bench.groups(**fields))

    assert found() == [("a.run", 2), ("b.run", 1)]
    assert found(task="a.run") == [("a.run", 2)]
    assert found(queue="q1") == [("a.run", 1), ("b.run", 1)]
    assert found(task="b.run", queue="q2") == []


@case()
def the_jobs_of_a_group_are_listed_page_by_page(bench: Bench) -> None:
    mine = [bench.kill(Failure("A", f"number {n}"), queue="q") for n in range(5)]
    bench.kill(Failure("B", "m"), queue="q")
    bench.add(queue="q")
    wanted = mine[0].fingerprint
    page = bench.list_jobs(fingerprint=wanted, limit=3)
    rest = bench.list_jobs(fingerprint=wanted, limit=3, after=page.next)
    assert [*page.jobs, *rest.jobs] == mine[::-1]
    assert rest.next is None
    assert bench.list_jobs(fingerprint=wanted, queue="other").jobs == ()
    assert bench.list_jobs(fingerprint=wanted, states=(JobState.COMPLETED,)).jobs == ()
    assert bench.list_jobs(fingerprint="f" * 16).jobs == ()


@case()
def deleted_and_pruned_jobs_leave_their_group(bench: Bench) -> None:
    gone, short, stays = bench.kill(), bench.kill(keep=HOUR), bench.kill()
    bench.delete(gone.id)
    bench.advance(2 * HOUR)
    bench.prune()
    (group,) = bench.groups()
    assert (group.count, group.sample_id) == (1, stays.id)
    assert bench.find(short.id) == [None]


# -- retrying with changes ------------------------------------------------------------------------------


CHANGES: dict[str, Any] = {
    "args": '{"to":"änother"}',
    "version": 3,
    "queue": "slow",
    "options": '{"attempts":2}',
    "max_attempts": 2,
}


@case()
def a_retry_may_change_what_the_job_is_to_do(bench: Bench) -> None:
    for state in (JobState.DEAD, JobState.COMPLETED, JobState.SCHEDULED, JobState.RETRYING):
        job = bench.make_job(state, priority=3, tags=("t",), max_attempts=5)
        bench.advance(SECOND)
        assert bench.retry(job.id, **CHANGES) == [Acted(job.id, state, took=True)]
        again = bench.get(job.id)
        assert {name: getattr(again, name) for name in CHANGES} == CHANGES
        assert (again.task, again.priority, again.tags) == (job.task, 3, ("t",))
        note = "with new args, queue slow, 2 attempts"
        assert again.history[-1] == Entry(what="retried", at=bench.at, by="ada", note=note)
        assert bench.claim(job.queue) == []
        claim = bench.take("slow")
        assert (claim.id, claim.args, claim.version) == (job.id, CHANGES["args"], 3)
        assert claim.options == CHANGES["options"]
        bench.complete(claim)


@case()
def what_a_retry_does_not_change_stays(bench: Bench) -> None:
    job = bench.kill(args='{"a":1}', version=2, options='{"timeout":"none"}', max_attempts=4)
    bench.retry(job.id, queue="other")
    again = bench.get(job.id)
    assert (again.args, again.version, again.options) == ('{"a":1}', 2, '{"timeout":"none"}')
    assert (again.queue, again.max_attempts) == ("other", 4)
    assert again.history[-1].note == "with queue other"


@case()
def a_retry_that_does_not_take_changes_nothing(bench: Bench) -> None:
    (claim,) = claimed(bench)
    before = bench.get(claim.id)
    assert bench.retry(claim.id, **CHANGES) == [Acted(claim.id, JobState.RUNNING, took=False)]
    assert bench.get(claim.id) == before


# -- trimming -----------------------------------------------------------------------------------------


def left(bench: Bench) -> list[str]:
    """The ids of the dead jobs there are, oldest first."""
    return [job.id for job in bench.list_jobs(states=(JobState.DEAD,), limit=1000).jobs[::-1]]


def kill_some(bench: Bench, count: int, **fields: Any) -> list[str]:
    ids = []
    for _ in range(count):
        ids.append(bench.kill(**fields).id)
        bench.advance(SECOND)
    return ids


@case()
def nothing_is_trimmed_without_a_rule(bench: Bench) -> None:
    ids = kill_some(bench, 3)
    assert bench.trim() == 0
    assert bench.trim(count=3) == 0
    assert left(bench) == ids


@case()
def only_the_newest_dead_jobs_of_each_task_are_kept(bench: Bench) -> None:
    many = kill_some(bench, 5, task="a.run")
    few = kill_some(bench, 2, task="b.run")
    assert bench.trim(count=2) == 3
    assert left(bench) == [*many[3:], *few]
    assert bench.trim(count=2) == 0
    assert bench.trim(count=0) == 4
    assert left(bench) == []


@case()
def newest_is_the_one_that_died_last(bench: Bench) -> None:
    older, newer = bench.add(queue="q"), bench.add(queue="q")
    first, second = bench.claim("q")
    bench.finish(bench.outcome(second, JobState.DEAD))
    bench.advance(SECOND)
    bench.finish(bench.outcome(first, JobState.DEAD))
    assert bench.trim(count=1) == 1
    assert bench.find(newer) == [None]
    assert bench.get(older).state is JobState.DEAD


@case()
def only_dead_jobs_are_trimmed(bench: Bench) -> None:
    made = [
        bench.make_job(state)
        for state in (JobState.READY, JobState.RUNNING, JobState.RETRYING, JobState.COMPLETED)
    ]
    cancelled = bench.make_job(JobState.CANCELLED)
    bench.advance(HOUR)
    assert bench.trim(count=0, bytes=0, older_than=SECOND) == 0
    assert bench.jobs([job.id for job in made]) == made
    assert bench.get(cancelled.id) == cancelled


@case()
def dead_jobs_are_trimmed_by_age(bench: Bench) -> None:
    kill_some(bench, 2)
    bench.advance(HOUR)
    (young,) = kill_some(bench, 1)
    assert bench.trim(older_than=HOUR) == 2
    assert left(bench) == [young]
    assert bench.trim(older_than=2 * SECOND) == 0
    assert bench.trim(older_than=timedelta(0)) == 1


@case()
def dead_jobs_are_trimmed_by_size(bench: Bench) -> None:
    big = '{"x":"' + "y" * 10_000 + '"}'
    ids = kill_some(bench, 4, args=big)
    small = kill_some(bench, 3, task="small.run")
    assert bench.trim(bytes=25_000) == 2
    assert left(bench) == [*ids[2:], *small]
    assert bench.trim(bytes=25_000) == 0
    assert bench.trim(bytes=0) == 5


@case()
def trimming_is_asked_for_by_task_and_queue(bench: Bench) -> None:
    kill_some(bench, 2, task="a.run", queue="q1")
    b = kill_some(bench, 2, task="b.run", queue="q1")
    other = kill_some(bench, 2, task="a.run", queue="q2")
    assert bench.trim(task="a.run", queue="q1", count=0) == 2
    assert bench.trim(task="a.run", count=1) == 1
    assert bench.trim(queue="q2", older_than=timedelta(0)) == 1
    assert left(bench) == b
    assert bench.find(*other) == [None, None]


@case()
def a_tasks_own_limits_beat_the_given_ones_unless_forced(bench: Bench) -> None:
    kill_some(bench, 3, task="a.run", options='{"dead_count":9}')
    own = kill_some(bench, 1, task="a.run", options='{"dead_count":2}')  # by the newest one
    plain = kill_some(bench, 3, task="b.run", options='{"timeout":"none"}')
    broken = kill_some(bench, 1, task="c.run", options="{")
    assert bench.trim(count=3) == 2
    assert left(bench)[1:] == [*own, *plain, *broken]
    assert bench.trim(count=1, is_forced=True) == 3
    assert left(bench) == [*own, plain[-1], *broken]
    kill_some(bench, 2, task="d.run", args='{"x":"' + "y" * 5000 + '"}', options='{"dead_bytes":9000}')
    assert bench.trim(count=10) == 1


@case()
def trimming_goes_on_until_less_than_the_limit(bench: Bench) -> None:
    kill_some(bench, 4, task="a.run")
    kill_some(bench, 4, task="b.run")
    assert [bench.trim(count=1, limit=4) for _ in range(3)] == [4, 2, 0]
    kill_some(bench, 5, task="a.run")
    assert [bench.trim(older_than=timedelta(0), limit=4) for _ in range(3)] == [4, 3, 0]


@case()
def a_dry_run_counts_what_would_be_trimmed(bench: Bench) -> None:
    ids = kill_some(bench, 5)
    assert bench.trim(count=2, limit=1, is_dry_run=True) == 3
    assert bench.trim(older_than=timedelta(0), is_dry_run=True) == 5
    assert bench.trim(count=2, older_than=timedelta(0), is_dry_run=True) == 5
    assert left(bench) == ids


@case()
def a_trimmed_given_id_may_be_used_again(bench: Bench) -> None:
    job = bench.kill(is_given_id=True)
    assert bench.trim(count=0) == 1
    again = bench.new_job(id=job.id, is_given_id=True)
    assert bench.enqueue(again) == [Enqueued(job.id, is_new=True)]


# -- deaths over time ---------------------------------------------------------------------------------


@case()
def deaths_are_counted_by_group_and_step_of_time(bench: Bench) -> None:
    since = bench.at
    bench.advance(10 * SECOND)
    first, *_ = [bench.kill(Failure("A", "a")) for _ in range(3)]
    bench.advance(HOUR)
    other = bench.kill(Failure("B", "b"))
    again = bench.kill(Failure("A", "a"))
    bench.advance(HOUR)
    late = bench.kill(Failure("A", "a"))
    assert first.fingerprint == again.fingerprint == late.fingerprint != other.fingerprint
    groups = [first.fingerprint or "", other.fingerprint or "", "0000000000000000"]
    counted = bench.call(bench.driver.death_counts(groups, since=since, step=HOUR, count=2))
    assert counted == {groups[0]: [3, 1], groups[1]: [0, 1], groups[2]: [0, 0]}
    assert bench.call(bench.driver.death_counts([], since=since, step=HOUR, count=2)) == {}
    bench.retry(first.id)
    counted = bench.call(bench.driver.death_counts(groups[:1], since=since, step=3 * HOUR, count=1))
    assert counted == {groups[0]: [4]}

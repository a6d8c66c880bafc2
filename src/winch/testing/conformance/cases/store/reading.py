"""get, list_jobs, counts, queues, explain: reading changes nothing and sees live and kept jobs alike."""

from __future__ import annotations

from winch.core.gates.uses import with_gates
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.storage.params import QueueInfo
from winch.testing.conformance.bench import HOUR, MINUTE, SECOND, Bench
from winch.testing.conformance.case import case
from winch.testing.conformance.cases.jobs.finish import claimed
from winch.testing.conformance.cases.jobs.transitions import REACHABLE_STATES


def all_pages(bench: Bench, limit: int, **fields: object) -> list[list[JobRecord]]:
    pages: list[list[JobRecord]] = []
    after = None
    while True:
        page = bench.list_jobs(limit=limit, after=after, **fields)
        pages.append(list(page.jobs))
        assert len(pages) < 100, "the list does not come to an end"
        if page.next is None:
            return pages
        after = page.next


@case()
def jobs_come_in_the_order_of_the_ids(bench: Bench) -> None:
    made = [bench.make_job(state) for state in REACHABLE_STATES]
    missing = bench.new_id()
    ids = [job.id for job in made]
    assert bench.find(*ids[::-1], missing, ids[0]) == [*made[::-1], None, made[0]]
    assert bench.find() == []


@case()
def a_list_ends_at_the_first_id_that_is_asked_for(bench: Bench) -> None:
    made = sorted(bench.make_job(state).id for state in REACHABLE_STATES)
    ids = sorted([*made, *bench.add_many(30)])
    for which in ({}, {"queue": "default"}, {"states": (JobState.READY,)}):
        everything = [job.id for page in all_pages(bench, 7, **which) for job in page]
        found = [job.id for page in all_pages(bench, 7, first=ids[10], **which) for job in page]
        assert found == [job_id for job_id in everything if job_id >= ids[10]]


@case()
def five_hundred_jobs_are_read_in_one_call(bench: Bench) -> None:
    ids = bench.add_many(500)
    assert [job.id for job in bench.jobs(ids[::-1])] == ids[::-1]


@case()
def a_list_has_the_newest_first_live_and_kept(bench: Bench) -> None:
    made = []
    for state in REACHABLE_STATES:
        made.append(bench.make_job(state))
        bench.advance(SECOND)
    page = bench.list_jobs()
    assert list(page.jobs) == made[::-1]
    assert page.next is None


@case()
def a_list_of_nothing_is_empty(bench: Bench) -> None:
    page = bench.list_jobs()
    assert (page.jobs, page.next) == ((), None)


@case()
def a_list_is_filtered_by_states(bench: Bench) -> None:
    made = {state: bench.make_job(state) for state in REACHABLE_STATES}
    for state, job in made.items():
        assert bench.list_jobs(states=(state,)).jobs == (job,)
    mixed = (JobState.DEAD, JobState.READY, JobState.RUNNING)
    expected = sorted((made[state] for state in mixed), key=lambda job: job.id, reverse=True)
    assert list(bench.list_jobs(states=mixed).jobs) == expected


@case()
def a_list_is_filtered_by_task_queue_and_tag(bench: Bench) -> None:
    a = bench.add(task="a.run", queue="q1", tags=("red", "blue"))
    b = bench.add(task="b.run", queue="q1", tags=("red",))
    c = bench.add(task="a.run", queue="q2", tags=("redder",))
    bench.complete(bench.take("q2"))

    def ids(**fields: object) -> set[str]:
        return {job.id for job in bench.list_jobs(**fields).jobs}

    assert ids(task="a.run") == {a, c}
    assert ids(queue="q1") == {a, b}
    assert ids(tag="red") == {a, b}
    assert ids(tag="redder") == {c}
    assert ids(tag="re") == set()
    assert ids(task="a.run", queue="q1", tag="red") == {a}
    assert ids(task="a.run", states=(JobState.COMPLETED,)) == {c}
    assert ids(task="a.run", queue="q1", states=(JobState.COMPLETED,)) == set()


def one_of_each(bench: Bench) -> list[JobRecord]:
    """Jobs of two tasks, queues and tags in every state, newest first."""
    ids: list[str] = []
    for state in (*(s for s in REACHABLE_STATES if s is not JobState.READY), JobState.READY):
        jobs = [
            bench.new_job(
                task=task, queue=queue, tags=tags, delay=HOUR if state is JobState.SCHEDULED else None
            )
            for task in ("a.run", "b.run")
            for queue in ("p", "q")
            for tags in (("red", "blue"), ("blue",))
        ]
        bench.enqueue(*jobs)
        ids += [job.id for job in jobs]
        if state not in (JobState.SCHEDULED, JobState.READY):
            claims = bench.claim("p", "q")
            if state is not JobState.RUNNING:
                bench.finish(*[bench.outcome(claim, state, delay=HOUR) for claim in claims])
    made = bench.jobs(ids)
    assert {job.state for job in made} == set(REACHABLE_STATES)
    return sorted(made, key=lambda job: job.id, reverse=True)


@case()
def every_filter_finds_what_it_names_in_pages_of_any_size(bench: Bench) -> None:
    made = one_of_each(bench)
    choices: list[tuple[JobState, ...]] = [(), *((state,) for state in REACHABLE_STATES)]
    choices += [
        (JobState.READY, JobState.RUNNING),
        (JobState.SCHEDULED, JobState.RETRYING, JobState.DEAD),
        (JobState.COMPLETED, JobState.CANCELLED, JobState.DEAD),
    ]
    filters: list[dict[str, str]] = [
        {},
        {"task": "a.run"},
        {"queue": "q"},
        {"tag": "red"},
        {"task": "b.run", "queue": "p", "tag": "red"},
    ]
    for states in choices:
        for fields in filters:
            expected = [
                job
                for job in made
                if (not states or job.state in states)
                and fields.get("task", job.task) == job.task
                and fields.get("queue", job.queue) == job.queue
                and ("tag" not in fields or fields["tag"] in job.tags)
            ]
            pages = all_pages(bench, 3, states=states, **fields)
            assert [job for page in pages for job in page] == expected
            assert all(len(page) == 3 for page in pages[:-1])


@case()
def filters_take_their_words_literally(bench: Bench) -> None:
    odd = bench.add(task="a%", queue="b_", tags=("c'\"\\%",))
    bench.add(task="ab", queue="bx", tags=("cd",))
    assert [job.id for job in bench.list_jobs(task="a%").jobs] == [odd]
    assert [job.id for job in bench.list_jobs(queue="b_").jobs] == [odd]
    assert [job.id for job in bench.list_jobs(tag="c'\"\\%").jobs] == [odd]
    assert bench.list_jobs(tag="%").jobs == ()


@case()
def pages_follow_each_other_over_live_and_kept_jobs(bench: Bench) -> None:
    for n in range(25):
        bench.add(queue=f"q{n % 2}")
        bench.advance(SECOND)
    bench.finish(*map(bench.outcome, bench.claim("q0")))
    pages = all_pages(bench, 10)
    assert [len(page) for page in pages] == [10, 10, 5]
    ids = [job.id for page in pages for job in page]
    assert ids == sorted(set(ids), reverse=True)
    assert len(ids) == 25
    states = {job.state for job in pages[0]}
    assert states == {JobState.READY, JobState.COMPLETED}


@case()
def a_full_last_page_is_the_last(bench: Bench) -> None:
    bench.add_many(20)
    assert [len(page) for page in all_pages(bench, 10)] == [10, 10]
    assert [len(page) for page in all_pages(bench, 20)] == [20]
    assert [len(page) for page in all_pages(bench, 1)] == [1] * 20


@case()
def pages_of_a_filtered_list_are_full(bench: Bench) -> None:
    for n in range(30):
        bench.add(task="a.run" if n % 3 else "b.run")
    assert [len(page) for page in all_pages(bench, 8, task="a.run")] == [8, 8, 4]


@case()
def jobs_that_come_later_do_not_shift_the_pages(bench: Bench) -> None:
    bench.add_many(10)
    first = bench.list_jobs(limit=5)
    bench.advance(SECOND)
    bench.add_many(5)
    rest = bench.list_jobs(limit=100, after=first.next)
    ids = {job.id for job in (*first.jobs, *rest.jobs)}
    assert (len(first.jobs), len(rest.jobs), len(ids)) == (5, 5, 10)


@case()
def every_state_is_counted(bench: Bench) -> None:
    assert bench.counts() == dict.fromkeys(JobState, 0)
    for n, state in enumerate(REACHABLE_STATES, 1):
        for _ in range(n):
            bench.make_job(state)
    expected = dict.fromkeys(JobState, 0)
    expected |= {state: n for n, state in enumerate(REACHABLE_STATES, 1)}
    assert bench.counts() == expected


@case()
def counts_stop_at_the_cap(bench: Bench) -> None:
    bench.add_many(30)
    bench.finish(*map(bench.outcome, bench.claim(limit=20)))
    counts = bench.counts(cap=15)
    assert (counts[JobState.READY], counts[JobState.COMPLETED]) == (10, 15)


@case()
def a_queue_tells_its_live_jobs_by_state(bench: Bench) -> None:
    start = bench.at
    bench.add(queue="mail")
    bench.advance(SECOND)
    bench.add(queue="mail")
    bench.add(queue="mail", delay=HOUR)
    bench.take("mail")
    bench.complete(bench.take("mail"))
    bench.advance(SECOND)
    bench.add(queue="mail")
    bench.advance(SECOND)
    bench.add(queue="mail")
    (info,) = [info for info in bench.queues() if info.name == "mail"]
    assert {state: n for state, n in info.counts.items() if n} == {
        JobState.READY: 2,
        JobState.RUNNING: 1,
        JobState.SCHEDULED: 1,
    }
    assert info.oldest_ready_at == start + 2 * SECOND
    assert (info.paused_at, info.pause_reason, info.sessions) == (None, None, 0)


@case()
def a_capped_count_of_queues_is_exact_or_names_what_is_not(bench: Bench) -> None:
    bench.add_many(12, queue="long")
    bench.add_many(7, queue="short")
    bench.add_many(2, queue="short", delay=HOUR)
    for tenant in ("acme", "globex"):
        bench.add_many(6, queue="tenants", tenant=tenant, options=with_gates(None, ()))
    bench.claim("short", limit=3)
    exact = {info.name: info for info in bench.queues()}
    assert all(not info.inexact for info in exact.values())
    capped = {info.name: info for info in bench.queues(cap=9)}
    assert list(capped) == list(exact)
    for name, info in capped.items():
        assert info.oldest_ready_at == exact[name].oldest_ready_at
        for state, number in exact[name].counts.items():
            if state in info.inexact:
                assert 9 <= info.counts[state] <= number
            else:
                assert info.counts.get(state, 0) == number
    assert not capped["short"].inexact


@case()
def a_count_up_to_one_still_finds_every_queue_with_ready_jobs(bench: Bench) -> None:
    for n in range(5):
        bench.add_many(3, queue=f"queue-{n}")
        bench.add_many(2, queue=f"tenants-{n}", tenant="acme", options=with_gates(None, ()))
    assert {info.name for info in bench.queues(cap=1)} == {info.name for info in bench.queues()}


@case()
def queues_are_listed_by_name_with_jobs_settings_or_workers(bench: Bench) -> None:
    bench.add(queue="c-jobs")
    bench.pause("a-paused", reason="moving house")
    bench.start_session(queues=("b-served", "c-jobs"))
    bench.start_session(queues=("b-served",))
    ended = bench.start_session(queues=("e-left",))
    bench.end_session(ended)
    bench.add(queue="d-final")
    done = bench.call(
        bench.driver.claim(
            bench.claiming("d-final", session=bench.start_session(queues=())), now=bench.now
        )
    )
    bench.complete(done[0])
    found = {info.name: info for info in bench.queues()}
    assert list(found) == ["a-paused", "b-served", "c-jobs"]
    assert (found["a-paused"].paused_at, found["a-paused"].pause_reason) == (bench.now, "moving house")
    assert found["b-served"] == QueueInfo(name="b-served", counts=found["b-served"].counts, sessions=2)
    assert found["c-jobs"].sessions == 1
    assert found["c-jobs"].oldest_ready_at == bench.now


@case()
def a_resumed_queue_is_no_longer_paused(bench: Bench) -> None:
    bench.add()
    bench.pause("default", reason="moving house")
    bench.resume("default")
    (info,) = bench.queues()
    assert (info.paused_at, info.pause_reason) == (None, None)


@case()
def there_is_nothing_to_explain_about_an_unknown_job(bench: Bench) -> None:
    assert bench.call(bench.driver.explain(bench.new_id(), now=bench.now)) is None


@case()
def a_ready_job_is_told_how_many_are_ahead(bench: Bench) -> None:
    bench.add(queue="other")
    ids = []
    for _ in range(4):
        ids.append(bench.add())
        bench.advance(SECOND)
    bench.take()
    facts = bench.explain(ids[3])
    assert (facts.ahead, facts.now) == (2, bench.now)
    assert facts.job == bench.get(ids[3])
    assert (facts.is_paused, facts.pause_reason) == (False, None)
    urgent = bench.add(priority=10)
    assert bench.explain(urgent).ahead == 0
    assert bench.explain(ids[3]).ahead == 3


@case()
def a_job_of_a_paused_queue_is_told_so(bench: Bench) -> None:
    job_id = bench.add()
    bench.pause("default", reason="moving house")
    facts = bench.explain(job_id)
    assert (facts.is_paused, facts.pause_reason) == (True, "moving house")
    bench.resume("default")
    assert not bench.explain(job_id).is_paused


@case()
def a_running_job_is_told_its_session(bench: Bench) -> None:
    (claim,) = claimed(bench)
    bench.add()
    bench.take(session=bench.start_session())
    facts = bench.explain(claim.id)
    assert facts.session == bench.session_info(bench.session)
    assert facts.session is not None
    assert (facts.session.running, facts.ahead) == (1, 0)


@case()
def a_job_is_told_who_serves_its_queue_and_knows_its_task(bench: Bench) -> None:
    job_id = bench.add(queue="q", task="a.run")
    assert (bench.explain(job_id).serving, bench.explain(job_id).knowing) == (0, 0)
    bench.start_session(queues=("q",), tasks=("b.run",))
    bench.start_session(queues=("p", "q"), tasks=("b.run", "a.run"))
    bench.start_session(queues=("p",), tasks=("a.run",))
    bench.end_session(bench.start_session(queues=("q",), tasks=("a.run",)))
    facts = bench.explain(job_id)
    assert (facts.serving, facts.knowing) == (2, 1)


@case()
def jobs_in_every_state_can_be_explained(bench: Bench) -> None:
    for state in REACHABLE_STATES:
        job = bench.make_job(state)
        bench.advance(-HOUR)
        bench.add(queue=job.queue)
        bench.advance(HOUR)
        facts = bench.explain(job.id)
        assert facts.job == job
        assert facts.ahead == int(state is JobState.READY)  # others stand in no line


@case()
def reading_changes_nothing(bench: Bench) -> None:
    made = [bench.make_job(state) for state in REACHABLE_STATES]
    sessions = bench.sessions(is_ended_too=True)
    for job in made:
        bench.explain(job.id)
    bench.list_jobs()
    bench.counts()
    bench.queues()
    bench.cancels(bench.session)
    bench.events()
    assert bench.jobs([job.id for job in made]) == made
    assert bench.sessions(is_ended_too=True) == sessions


@case()
def depth_counts_ready_jobs_of_one_queue_up_to_a_cap(bench: Bench) -> None:
    assert bench.call(bench.driver.depth("mail", cap=10, now=bench.now)).ready == 0
    bench.add_many(5, queue="mail")
    bench.add(queue="mail", delay=HOUR)
    bench.add(queue="other")
    bench.take("mail")
    bench.advance(MINUTE)
    depth = bench.call(bench.driver.depth("mail", cap=10, now=bench.now))
    assert depth.ready == 4
    assert depth.oldest == MINUTE
    assert bench.call(bench.driver.depth("mail", cap=3, now=bench.now)).ready == 3


@case()
def tenants_are_listed_by_queue_with_the_longest_line_first(bench: Bench) -> None:
    gated: dict[str, object] = {"options": with_gates(None, ())}
    assert bench.call(bench.driver.tenants()) == []
    bench.add(tenant="b", queue="mail", **gated)
    at = bench.at
    bench.advance(MINUTE)
    bench.add_many(3, tenant="a", queue="mail", **gated)
    bench.add(tenant="a", queue="other", **gated)
    bench.add(tenant="c", queue="other", delay=HOUR, **gated)
    bench.add()
    found = bench.call(bench.driver.tenants())
    assert [(one.queue, one.tenant, one.ready) for one in found] == [
        ("mail", "a", 3),
        ("mail", "b", 1),
        ("other", "a", 1),
    ]
    assert (found[0].oldest_ready_at, found[1].oldest_ready_at) == (bench.at, at)
    assert len(bench.call(bench.driver.tenants(limit=2))) == 2
    bench.claim("mail", limit=10)
    assert [one.queue for one in bench.call(bench.driver.tenants())] == ["other"]

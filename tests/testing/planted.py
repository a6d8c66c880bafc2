"""Violations for the checker to find: each takes a correct history and makes one thing wrong in it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from lab.history.lines import Exited, Replied, Sent
from tests.testing.stories import LEASE, NOW, S, Story, replace
from winch.core.flow import Edge, Inputs
from winch.core.job import Entry
from winch.core.values.ids import job_id, random_id

Plant = Callable[[Story, str], None]
PLANTED: list[tuple[str, Plant]] = []


def plant(invariant: str) -> Callable[[Plant], Plant]:
    def add(function: Plant) -> Plant:
        PLANTED.append((invariant, function))
        return function

    return add


def edit(story: Story, job: str, kind: str, **changes: object) -> None:
    """Change the job's last event of this kind."""
    index = max(i for i, e in enumerate(story.events) if e.job == job and e.kind == kind)
    story.events[index] = replace(story.events[index], **changes)


@plant("I1")
def acked_job_is_gone(story: Story, session: str) -> None:
    job = story.plain(session)
    del story.jobs[job]
    story.events = [event for event in story.events if event.job != job]


@plant("I1")
def job_is_gone_after_it_ran(story: Story, session: str) -> None:
    del story.jobs[story.plain(session)]


@plant("I1")
def job_that_was_never_enqueued(story: Story, session: str) -> None:
    job = story.plain(session)
    story.lines = [
        line for line in story.lines if not (isinstance(line, Sent | Replied) and job in line.ids)
    ]


@plant("I1b")
def repeat_is_stored_twice(story: Story, session: str) -> None:
    job = story.enqueue()
    story.put(story.jobs[job], "enqueued")
    story.run(job, session)


@plant("I1b")
def repeat_is_reported_new_twice(story: Story, session: str) -> None:
    job = story.plain(session)
    replied = Replied(**story.line(), call="x", outcome="acked", ids=(job,), new=(True,))
    story.lines.append(replied)


@plant("I1b")
def repeat_returns_another_id(story: Story, session: str) -> None:
    job = story.plain(session)
    other = story.plain(session)
    sent = Sent(**story.line(), call="x", ids=(other,))
    replied = Replied(**story.line(), call="x", outcome="acked", ids=(job,))
    story.lines += [sent, replied]


@plant("I2")
def job_is_left_ready(story: Story, session: str) -> None:
    story.enqueue()


@plant("I2")
def job_is_left_running(story: Story, session: str) -> None:
    job = story.enqueue()
    story.claim(job, session)
    story.start(job)


@plant("I2")
def takeover_takes_too_long(story: Story, session: str) -> None:
    job = story.sleeps_past_its_lease(session)
    holder = next(e.session for e in story.events if e.job == job and e.kind == "rescued")
    held = story.sessions[holder or ""]
    story.sessions[held.id] = replace(held, lease_until=held.lease_until - timedelta(seconds=1))


@plant("I2")
def rescue_before_the_lease_is_over(story: Story, session: str) -> None:
    job = story.sleeps_past_its_lease(session)
    holder = next(e.session for e in story.events if e.job == job and e.kind == "rescued")
    held = story.sessions[holder or ""]
    story.sessions[held.id] = replace(held, lease_until=held.lease_until + LEASE)


@plant("I3")
def second_claim_while_one_is_live(story: Story, session: str) -> None:
    job = story.enqueue()
    story.claim(job, session)
    story.run(job, story.session())


@plant("I3")
def rescue_of_an_unclaimed_job(story: Story, session: str) -> None:
    job = story.enqueue()
    story.wait()
    story.put(story.jobs[job], "rescued")
    story.run(job, session)


@plant("I4")
def stale_finish_takes_effect(story: Story, session: str) -> None:
    job = story.enqueue()
    stopped = story.session()
    stale = story.claim(job, stopped)
    run = story.start(job)
    story.nemesis("stop", stopped)
    story.end_session(stopped, "crashed")
    story.give_back(job, "rescued")
    story.claim(job, session)
    story.end(run)
    story.finish(job, stale)


@plant("I4")
def stale_release_takes_effect(story: Story, session: str) -> None:
    job = story.is_drained(session)
    edit(story, job, "released", by_token=random_id(bytes(16)))


@plant("I4")
def finish_without_a_token(story: Story, session: str) -> None:
    edit(story, story.plain(session), "finished", by_token=None)


@plant("I4")
def token_is_used_for_two_claims_of_a_job(story: Story, session: str) -> None:
    job = story.enqueue()
    token = story.claim(job, session)
    story.end(story.start(job), is_ok=False)
    story.give_back(job, "released", by_token=token)
    story.claim(job, session, token)
    story.end(story.start(job))
    story.finish(job, token)


@plant("I4")
def token_is_used_by_two_sessions(story: Story, session: str) -> None:
    token = story.run(story.enqueue(), session)
    other = story.enqueue()
    story.claim(other, story.session(), token)
    story.end(story.start(other))
    story.finish(other, token)


@plant("I4")
def live_token_is_refused(story: Story, session: str) -> None:
    job = story.enqueue()
    token = story.claim(job, session)
    story.end(story.start(job))
    story.answer(job, token, "lost")


@plant("I4")
def repeated_finish_is_answered_lost(story: Story, session: str) -> None:
    job = story.enqueue()
    story.answer(job, story.run(job, session), "lost")


@plant("I4")
def took_is_answered_and_nothing_took(story: Story, session: str) -> None:
    job = story.sleeps_past_its_lease(session)
    token = next(e.token for e in story.events if e.job == job and e.kind == "claimed")
    story.answer(job, token or "", "took")


@plant("I5")
def final_job_is_claimed_again(story: Story, session: str) -> None:
    job = story.plain(session)
    story.nemesis("kill", session)  # so that only the store is to blame
    story.run(job, story.session())


@plant("I5")
def completed_job_becomes_dead(story: Story, session: str) -> None:
    job = story.plain(session)
    story.wait()
    story.put(replace(story.jobs[job], state=S.DEAD), "cancelled")


@plant("I5")
def row_differs_from_the_events(story: Story, session: str) -> None:
    job = story.plain(session)
    story.jobs[job] = replace(story.jobs[job], state=S.DEAD)


@plant("I6")
def completed_without_a_run(story: Story, session: str) -> None:
    job = story.enqueue()
    story.finish(job, story.claim(job, session))


@plant("I6")
def completed_after_an_error(story: Story, session: str) -> None:
    job = story.enqueue()
    token = story.claim(job, session)
    story.end(story.start(job), is_ok=False)
    story.finish(job, token)


@plant("I6")
def completed_before_the_handler_returned(story: Story, session: str) -> None:
    job = story.enqueue()
    token = story.claim(job, session)
    run = story.start(job)
    story.finish(job, token)
    story.wait(5)
    story.end(run)


@plant("I15")
def claim_after_the_stop(story: Story, session: str) -> None:
    stopping = story.session()
    story.nemesis("term", stopping)
    story.wait(1)
    story.plain(stopping)


@plant("I15")
def release_costs_an_attempt(story: Story, session: str) -> None:
    edit(story, story.is_drained(session), "released", attempt=1)


@plant("I15")
def job_is_left_leased_at_exit(story: Story, session: str) -> None:
    job = story.enqueue()
    stopping = story.session()
    story.claim(job, stopping)
    story.start(job)
    story.nemesis("term", stopping)
    story.lines.append(Exited(**story.line(), worker=story.pid_of(stopping), code=0))
    story.end_session(stopping, "crashed")
    story.give_back(job, "rescued")
    story.run(job, session)


@plant("I20")
def claim_is_timed_by_the_workers_clock(story: Story, session: str) -> None:
    job = story.plain(session)
    for kind in ("enqueued", "claimed", "finished"):
        event = next(e for e in story.events if e.job == job and e.kind == kind)
        if kind != "enqueued":
            edit(story, job, kind, at=event.at + timedelta(hours=2))


@plant("I20")
def enqueue_is_timed_by_the_producers_clock(story: Story, session: str) -> None:
    job = story.plain(session)
    edit(story, job, "enqueued", at=NOW - timedelta(hours=2))


@plant("I20")
def time_goes_backwards(story: Story, session: str) -> None:
    job = story.plain(session)
    edit(story, job, "enqueued", at=story.now + timedelta(seconds=5))


@plant("alive")
def second_run_while_the_first_goes_on(story: Story, session: str) -> None:
    job = story.enqueue()
    busy = story.session()
    story.claim(job, busy)
    run = story.start(job)
    story.end_session(busy, "crashed")
    story.give_back(job, "rescued")
    story.run(job, session)
    story.end(run)


@plant("alive")
def second_run_after_the_first_returned(story: Story, session: str) -> None:
    job = story.enqueue()
    busy = story.session()
    story.claim(job, busy)
    story.end(story.start(job))
    story.end_session(busy, "crashed")
    story.give_back(job, "rescued")
    story.run(job, session)


@plant("alive")
def finished_work_is_lost_in_a_drain(story: Story, session: str) -> None:
    job = story.enqueue()
    stopping = story.session()
    token = story.claim(job, stopping)
    run = story.start(job)
    story.nemesis("term", stopping)
    story.end(run)
    story.give_back(job, "released", by_token=token)
    story.lines.append(Exited(**story.line(), worker=story.pid_of(stopping), code=0))
    story.run(job, session)


@plant("I8")
def two_schedulers_fire_one_window(story: Story, session: str) -> None:
    story.scheduled(session)
    story.run(story.of_window(story.windows[-1]), session)


@plant("I8")
def window_is_left_out(story: Story, session: str) -> None:
    story.windows.append(story.windows[-1] + timedelta(minutes=1))
    story.scheduled(session)


@plant("I8")
def window_is_marked_and_its_job_is_not_stored(story: Story, session: str) -> None:
    job = story.scheduled(session)
    del story.jobs[job]
    story.windows.pop()


@plant("I8")
def job_is_stored_without_the_row_of_its_window(story: Story, session: str) -> None:
    story.windows.append(story.windows[-1] + timedelta(minutes=1))
    story.run(story.of_window(story.windows[-1], has_row=False), session)


@plant("I8")
def scheduler_with_a_wrong_clock_makes_a_window_of_its_own(story: Story, session: str) -> None:
    story.run(story.of_window(story.windows[-1] + timedelta(seconds=7)), session)


@plant("I12")
def callback_runs_while_a_member_waits(story: Story, session: str) -> None:
    flow = job_id(1, story.rng.randbytes(10))
    first, second = story.member(flow), story.member(flow, 1)
    callback = story.held(Inputs(flow, (Edge("m", 2),)))
    story.run(first, session)
    story.woken(callback, session)
    story.run(second, session)


@plant("I12")
def batch_calls_back_while_a_member_runs(story: Story, session: str) -> None:
    flow = job_id(1, story.rng.randbytes(10))
    member = story.member(flow)
    done = story.held(Inputs(flow, wants="complete"))
    token = story.claim(member, session)
    run = story.start(member)
    story.woken(done, session)
    story.end(run)
    story.finish(member, token)


@plant("I12")
def batch_calls_back_twice(story: Story, session: str) -> None:
    flow = job_id(1, story.rng.randbytes(10))
    member = story.member(flow)
    both = [story.held(Inputs(flow, wants="complete")) for _ in range(2)]
    story.run(member, session)
    for done in both:
        story.woken(done, session)


@plant("I12")
def batch_reports_a_death_that_did_not_happen(story: Story, session: str) -> None:
    flow = job_id(1, story.rng.randbytes(10))
    member = story.member(flow)
    replied = story.held(Inputs(flow, wants="death"))
    story.run(member, session)
    story.woken(replied, session)


@plant("order")
def event_is_missing(story: Story, session: str) -> None:
    story.fails_once(session)
    last = story.events[-1]
    story.events = [e for e in story.events if not (e.job == last.job and e.v == 3)]


@plant("order")
def event_is_there_twice(story: Story, session: str) -> None:
    story.plain(session)
    story.events.append(replace(story.events[-1], seq=len(story.events) + 1))


@plant("order")
def ready_job_is_promoted(story: Story, session: str) -> None:
    job = story.enqueue()
    story.wait()
    story.put(story.jobs[job], "promoted")
    story.run(job, session)


@plant("I7")
def two_live_jobs_have_one_key(story: Story, session: str) -> None:
    jobs = [story.enqueue() for _ in range(2)]
    for job in jobs:
        story.jobs[job] = replace(story.jobs[job], unique_key="k")
    for job in jobs:
        story.run(job, session)


@plant("I9")
def fifo_member_overtakes(story: Story, session: str) -> None:
    first = story.gated("fifo")
    story.wait(5)
    second = story.gated("fifo")
    story.wait(5)
    story.run(second, session)
    story.run(first, session)


@plant("I9")
def fifo_members_run_together(story: Story, session: str) -> None:
    first, second = story.gated("fifo"), story.gated("fifo")
    token = story.claim(first, session)
    run = story.start(first)
    story.run(second, session)
    story.end(run)
    story.finish(first, token)


@plant("I9")
def fifo_member_starts_between_attempts(story: Story, session: str) -> None:
    first = story.gated("fifo")
    story.wait(5)
    second = story.gated("fifo")
    token = story.claim(first, session)
    story.end(story.start(first), is_ok=False)
    story.finish(first, token, S.RETRYING)
    story.run(second, session)
    story.put(replace(story.jobs[first], state=S.READY), "promoted")
    story.run(first, session)


@plant("I10")
def one_permit_too_many(story: Story, session: str) -> None:
    first, second = story.gated("limit"), story.gated("limit")
    token = story.claim(first, session)
    run = story.start(first)
    story.run(second, session)
    story.end(run)
    story.finish(first, token)


@plant("I10")
def dead_holder_is_not_counted(story: Story, session: str) -> None:
    first, second = story.gated("limit"), story.gated("limit")
    dying = story.session()
    story.claim(first, dying)
    story.start(first)
    story.nemesis("kill", dying)
    story.run(second, session)
    story.end_session(dying, "killed by SIGKILL")
    story.give_back(first, "rescued")
    story.run(first, session)


@plant("I11")
def rate_is_exceeded(story: Story, session: str) -> None:
    story.run(story.gated("rate"), session)
    story.wait(30)
    story.run(story.gated("rate"), session)


@plant("I18")
def retry_without_an_actor(story: Story, session: str) -> None:
    job = story.plain(session)
    story.wait()
    story.put(replace(story.jobs[job], state=S.READY, attempt=0), "retried")
    story.run(job, session)


@plant("I13")
def crash_is_charged_as_a_failure(story: Story, session: str) -> None:
    job = story.enqueue()
    token = story.claim(job, session)
    run = story.start(job)
    entry = Entry(what="failed", at=story.now, attempt=1, token=token)
    story.end(run)
    story.jobs[job] = replace(story.jobs[job], history=(entry,))
    story.finish(job, token)


@plant("I13")
def poison_pill_is_run_a_fourth_time(story: Story, session: str) -> None:
    job = story.plain(session)
    story.jobs[job] = replace(story.jobs[job], crashes=4)


@plant("I14")
def effect_is_there_twice(story: Story, session: str) -> None:
    job = story.transactional(session)
    story.effects.append(job)


@plant("I14")
def completed_without_its_effect(story: Story, session: str) -> None:
    job = story.transactional(session)
    story.effects.remove(job)


@plant("I14")
def effect_of_a_job_that_is_not_there(story: Story, session: str) -> None:
    story.effects.append(job_id(1, story.rng.randbytes(10)))


@plant("I17")
def worker_takes_a_task_it_does_not_have(story: Story, session: str) -> None:
    job = story.plain(session)
    story.jobs[job] = replace(story.jobs[job], task="unheard-of")

"""signal, take_signal, unblock: jobs that wait for signals and for other jobs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from winch.core.job import Claim
from winch.core.lifecycle import JobState
from winch.storage.decide.waits import (
    AWAITED_HEADER,
    KEEP_TAKEN,
    KEEP_UNTAKEN,
    Dependencies,
    Sent,
    Taken,
    death_key,
    job_key,
    signal_key,
)
from winch.storage.params import Answer, ClaimRef, NewJob, Promoted, Wait
from winch.storage.verbs import Verb
from winch.testing.conformance.bench import DAY, HOUR, LEASE, SECOND, Bench
from winch.testing.conformance.case import case
from winch.testing.conformance.cases.jobs.finish import claimed
from winch.testing.conformance.cases.store.reports import crash, note


def send(bench: Bench, name: str, payload: str = "1", id: str = "1") -> Sent:
    return bench.call(bench.driver.signal(name, payload, id=id, now=bench.now))


def take(bench: Bench, claim: Claim | ClaimRef, name: str, wanted_by: str = "step") -> Taken:
    ref = ClaimRef(claim.id, claim.token)
    return bench.call(bench.driver.take_signal(ref, name, wanted_by=wanted_by, now=bench.now))


def unblock(bench: Bench, limit: int = 1000) -> Promoted:
    return bench.call(bench.driver.unblock(limit=limit, now=bench.now))


def block(bench: Bench, claim: Claim, *waits: Wait, timeout: timedelta | None = None) -> None:
    outcome = bench.outcome(
        claim, JobState.BLOCKED, what="waited", counts=False, waits=waits, timeout=timeout
    )
    assert bench.finish(outcome) == [Answer.TOOK]
    assert bench.get(claim.id).state is JobState.BLOCKED


def for_signal(name: str) -> Wait:
    return Wait(signal_key(name), is_enough=True)


def for_job(job_id: str) -> Wait:
    return Wait(job_key(job_id))


def awaited(bench: Bench, **fields: object) -> str:
    """A job that others may wait for, in a queue of its own."""
    return bench.add(queue="children", headers={AWAITED_HEADER: "1"}, **fields)


def take_child(bench: Bench) -> Claim:
    session = bench.start_session(queues=("children",))
    (claim,) = bench.claim(session=session, queues=("children",), limit=1)
    return claim


@case()
def a_waiting_job_is_ready_after_its_signal(bench: Bench) -> None:
    (claim,) = claimed(bench)
    block(bench, claim, for_signal("go"))
    assert unblock(bench).count == 0
    assert bench.claim() == []
    bench.advance(SECOND)
    assert send(bench, "stop") == Sent("1", is_new=True)
    assert send(bench, "go", "7", id="a") == Sent("a", is_new=True)
    assert unblock(bench).count == 1
    job = bench.get(claim.id)
    assert (job.state, job.attempt, job.run_at) == (JobState.READY, 0, bench.now)
    again = bench.take()
    assert take(bench, again, "go") == Taken(Answer.TOOK, "7")


@case()
def a_signal_sent_early_is_kept(bench: Bench) -> None:
    send(bench, "go", "7")
    assert unblock(bench).count == 0
    (claim,) = claimed(bench)
    block(bench, claim, for_signal("go"))
    assert unblock(bench).count == 1
    assert take(bench, bench.take(), "go").payload == "7"


@case()
def a_signal_is_known_by_its_id_also_after_it_was_taken(bench: Bench) -> None:
    assert send(bench, "go", "1", id="a").is_new
    assert send(bench, "go", "2", id="a") == Sent("a", is_new=False)
    assert send(bench, "other", "3", id="a").is_new
    (claim,) = claimed(bench)
    assert take(bench, claim, "go").payload == "1"
    assert send(bench, "go", "4", id="a") == Sent("a", is_new=False)
    assert take(bench, claim, "go", "another step") == Taken(Answer.TOOK)


@case()
def each_signal_is_taken_once_the_oldest_first(bench: Bench) -> None:
    for number in ("2", "1", "3"):
        send(bench, "go", number, id=number)
        bench.advance(SECOND)
    a, b = claimed(bench, 2)
    assert take(bench, a, "go").payload == "2"
    assert take(bench, b, "go").payload == "1"
    assert take(bench, a, "go").payload == "2"  # asked again for the same
    assert take(bench, a, "go", "next").payload == "3"
    assert take(bench, b, "go", "next") == Taken(Answer.TOOK)


@case()
def what_a_job_has_taken_it_gets_again_in_a_later_claim(bench: Bench) -> None:
    send(bench, "go", "7")
    (claim,) = claimed(bench)
    assert take(bench, claim, "go").payload == "7"
    bench.release(claim)
    send(bench, "go", "8", id="2")
    assert take(bench, bench.take(), "go").payload == "7"


@case()
def a_lost_claim_takes_nothing(bench: Bench) -> None:
    send(bench, "go", "7")
    (claim,) = claimed(bench)
    stale = ClaimRef(claim.id, bench.new_token())
    assert take(bench, stale, "go") == Taken(Answer.LOST)
    assert take(bench, ClaimRef(bench.new_id(), claim.token), "go") == Taken(Answer.LOST)
    bench.advance(2 * LEASE)
    bench.rescue()
    assert take(bench, claim, "go") == Taken(Answer.LOST)
    (again,) = bench.claim(session=bench.start_session())
    assert take(bench, again, "go").payload == "7"


@case()
def signals_that_no_job_has_taken_are_listed_and_forgotten(bench: Bench) -> None:
    """Those of a move: one that was taken stays, so that its step gets it again."""
    untaken = bench.driver.untaken_signals
    assert bench.call(untaken()) == []
    for number in range(3):
        send(bench, f"door:{number}", f'{{"n":{number}}}', id=f"id {number}")
        bench.advance(SECOND)
    send(bench, "door:0", "2", id="id 3")
    kept = bench.call(untaken())
    assert [(one.name, one.id) for one in kept] == [
        ("door:0", "id 0"), ("door:1", "id 1"), ("door:2", "id 2"), ("door:0", "id 3")
    ]  # fmt: skip
    assert kept[1].payload == '{"n":1}'
    assert bench.call(untaken(limit=2)) == kept[:2]
    (claim,) = claimed(bench)
    assert take(bench, claim, "door:1").payload == '{"n":1}'
    assert bench.call(bench.driver.forget_signals(kept[:2])) == 1
    assert bench.call(bench.driver.forget_signals(kept[:2])) == 0
    assert bench.call(untaken()) == kept[2:]
    assert take(bench, claim, "door:1").payload == '{"n":1}'
    assert take(bench, claim, "door:0").payload == "2"
    assert not send(bench, "door:1", id="id 1").is_new
    assert send(bench, "door:0", id="id 0").is_new


@case()
def signals_taken_at_the_same_time_go_to_different_jobs(bench: Bench) -> None:
    claims = claimed(bench, 4)
    for number in range(3):
        send(bench, "go", str(number), id=str(number))
    verbs = [
        bench.driver.take_signal(ClaimRef(c.id, c.token), "go", wanted_by="x", now=bench.now)
        for c in claims
    ]
    found = [taken.payload for taken in bench.together(verbs)]
    got = [payload for payload in found if payload is not None]
    assert len(got) == len(set(got))
    rest = [take(bench, c, "go", "x").payload for c in claims]  # one that was locked is free now
    assert sorted(payload for payload in rest if payload) == ["0", "1", "2"]


@case()
def a_wait_ends_at_its_time(bench: Bench) -> None:
    (claim,) = claimed(bench)
    block(bench, claim, for_signal("go"), timeout=HOUR)
    until = bench.at + HOUR
    unblocked = unblock(bench)
    assert (unblocked.count, unblocked.next_at, unblocked.now) == (0, until, bench.now)
    bench.advance(HOUR - SECOND)
    assert unblock(bench).count == 0
    bench.advance(SECOND)
    assert unblock(bench).count == 1
    assert bench.get(claim.id).state is JobState.READY
    assert unblock(bench).next_at is None


@case()
def a_wait_for_nothing_but_the_time_ends_then(bench: Bench) -> None:
    (claim,) = claimed(bench)
    block(bench, claim, timeout=SECOND)
    assert unblock(bench).count == 0
    bench.advance(SECOND)
    assert unblock(bench).count == 1


@case()
def a_job_waits_for_all_others_it_names(bench: Bench) -> None:
    first, second = awaited(bench), awaited(bench)
    (parent,) = claimed(bench)
    block(bench, parent, for_job(first), for_job(second))
    unblock(bench)
    bench.finish(bench.outcome(take_child(bench), JobState.COMPLETED))
    assert unblock(bench).count == 0
    assert bench.get(parent.id).state is JobState.BLOCKED
    bench.finish(bench.outcome(take_child(bench), JobState.DEAD))
    assert unblock(bench).count == 1
    assert bench.get(parent.id).state is JobState.READY


@case()
def jobs_that_are_final_before_the_wait_count(bench: Bench) -> None:
    first, second = awaited(bench), awaited(bench)
    (parent,) = claimed(bench)
    bench.finish(bench.outcome(take_child(bench), JobState.COMPLETED))
    unblock(bench)
    block(bench, parent, for_job(first), for_job(second))
    assert unblock(bench).count == 0
    bench.cancel(second)
    assert unblock(bench).count == 1


@case()
def every_way_to_an_end_counts(bench: Bench) -> None:
    jobs = [awaited(bench) for _ in range(4)]
    (parent,) = claimed(bench)
    block(bench, parent, *map(for_job, jobs))
    bench.cancel(jobs[0])
    bench.delete(jobs[1])
    session = bench.start_session(queues=("children",))
    claims = bench.claim(session=session, queues=("children",))
    for claim in claims:
        bench.cancel(claim.id)
    bench.release(claims[0])
    crash(bench, claims[1])
    assert unblock(bench).count == 1


@case()
def one_that_is_enough_ends_the_wait(bench: Bench) -> None:
    child = awaited(bench)
    (parent,) = claimed(bench)
    block(bench, parent, for_job(child), for_signal("go"))
    send(bench, "go")
    assert unblock(bench).count == 1
    again = bench.take()
    block(bench, again, for_job(child))  # what it waited for before is forgotten
    send(bench, "go", id="2")
    assert unblock(bench).count == 0
    bench.cancel(child)
    assert unblock(bench).count == 1


@case()
def children_that_end_at_the_same_time_wake_their_parent_once(bench: Bench) -> None:
    for _ in range(5):
        jobs = [awaited(bench) for _ in range(4)]
        (parent,) = claimed(bench)
        block(bench, parent, *map(for_job, jobs))
        session = bench.start_session(queues=("children",))
        claims = bench.claim(session=session, queues=("children",))
        bench.together([bench.driver.finish([bench.outcome(c)], now=bench.now) for c in claims])
        counts = bench.together([bench.driver.unblock(now=bench.now) for _ in range(4)])
        total = sum(unblocked.count for unblocked in counts) + unblock(bench).count
        assert total == 1
        bench.finish(bench.outcome(bench.take()))


@case()
def a_wait_and_its_signal_at_the_same_time_find_each_other(bench: Bench) -> None:
    for number in range(10):
        (claim,) = claimed(bench)
        name = f"go {number}"
        outcome = bench.outcome(
            claim, JobState.BLOCKED, what="waited", waits=(for_signal(name),), counts=False
        )
        verbs: list[Verb[Any]] = [
            bench.driver.finish([outcome], now=bench.now),
            bench.driver.signal(name, "1", id="1", now=bench.now),
            bench.driver.unblock(now=bench.now),
        ]
        bench.together(verbs)
        unblock(bench)
        assert bench.get(claim.id).state is JobState.READY
        bench.finish(bench.outcome(bench.take()))


@case()
def a_cancelled_job_waits_no_more(bench: Bench) -> None:
    (claim,) = claimed(bench)
    block(bench, claim, for_signal("go"), timeout=HOUR)
    bench.cancel(claim.id)
    assert bench.get(claim.id).state is JobState.CANCELLED
    send(bench, "go")
    bench.advance(HOUR)
    assert unblock(bench).count == 0


@case()
def a_cancel_beats_a_wait(bench: Bench) -> None:
    (claim,) = claimed(bench)
    bench.cancel(claim.id)
    outcome = bench.outcome(claim, JobState.BLOCKED, what="waited", waits=(for_signal("go"),))
    assert bench.finish(outcome) == [Answer.TOOK]
    assert bench.get(claim.id).state is JobState.CANCELLED
    send(bench, "go")
    assert unblock(bench).count == 0


@case()
def a_blocked_job_with_something_to_undo_is_ready_when_it_is_cancelled(bench: Bench) -> None:
    (claim,) = claimed(bench)
    note(bench, claim, has_undo=True)
    block(bench, claim, for_signal("go"))
    bench.cancel(claim.id)
    assert bench.get(claim.id).state is JobState.READY
    again = bench.take()
    send(bench, "go")
    assert unblock(bench).count == 0
    assert bench.get(again.id).state is JobState.RUNNING


@case()
def unblock_takes_a_bounded_number_and_says_when_there_is_more(bench: Bench) -> None:
    claims = claimed(bench, 5)
    for number, claim in enumerate(claims):
        block(bench, claim, for_signal(f"go {number}"))
    while unblock(bench).count == 1000:
        pass
    for number in range(5):
        send(bench, f"go {number}")
    assert unblock(bench, limit=2).count == 2
    unblock(bench, limit=2)
    unblock(bench, limit=2)
    assert len(bench.claim()) == 5


@case()
def old_signals_are_pruned(bench: Bench) -> None:
    send(bench, "taken", "1")
    send(bench, "kept", "1")
    (claim,) = claimed(bench)
    take(bench, claim, "taken")
    bench.advance(KEEP_TAKEN + SECOND)
    bench.prune()
    assert send(bench, "taken", "2").is_new
    assert not send(bench, "kept", "2").is_new
    bench.advance(KEEP_UNTAKEN - KEEP_TAKEN + DAY)
    bench.prune()
    assert send(bench, "kept", "3").is_new


@case(events=True)
def waiting_is_witnessed(bench: Bench) -> None:
    (claim,) = claimed(bench)
    block(bench, claim, for_signal("go"))
    send(bench, "go")
    unblock(bench)
    kinds = [(event.kind, event.state) for event in bench.events() if event.job == claim.id]
    assert kinds[2:] == [("finished", JobState.BLOCKED), ("admitted", JobState.READY)]


# -- enqueue_after -----------------------------------------------------------------------------------


def after(
    bench: Bench,
    jobs: list[NewJob],
    *waits: tuple[str, list[Wait]],
    claim: ClaimRef | None = None,
    is_repeat: bool = False,
) -> Any:
    wanted = Dependencies(waits, claim)
    return bench.call(bench.driver.enqueue_after(jobs, wanted, is_repeat=is_repeat, now=bench.now))


@case()
def jobs_that_wait_from_their_beginning_are_blocked(bench: Bench) -> None:
    first = bench.new_job(headers={AWAITED_HEADER: "1"})
    second = bench.new_job()
    answers = after(bench, [first, second], (second.id, [for_job(first.id)]))
    assert [answer.is_new for answer in answers] == [True, True]
    assert bench.get(second.id).state is JobState.BLOCKED
    assert unblock(bench).count == 0
    (claim,) = bench.claim()
    assert claim.id == first.id
    bench.finish(bench.outcome(claim))
    assert unblock(bench).count == 1
    assert bench.take().id == second.id


@case()
def a_repeat_of_what_waits_changes_nothing(bench: Bench) -> None:
    first = bench.new_job(headers={AWAITED_HEADER: "1"}, is_given_id=True)
    second = bench.new_job(is_given_id=True)
    waits = (second.id, [for_job(first.id)])
    after(bench, [first, second], waits)
    claim = bench.take()
    bench.finish(bench.outcome(claim))
    unblock(bench)
    answers = after(bench, [first, second], waits, is_repeat=True)
    assert [answer.is_new for answer in answers] == [False, False]
    assert bench.get(second.id).state is JobState.READY


@case()
def what_waits_can_be_made_to_wait_for_more(bench: Bench) -> None:
    first = bench.new_job(headers={AWAITED_HEADER: "1"})
    callback = bench.new_job(queue="callbacks")
    after(bench, [first, callback], (callback.id, [for_job(first.id)]))
    claim = bench.take()
    more = bench.new_job(headers={AWAITED_HEADER: "1"})
    ref = ClaimRef(claim.id, claim.token)
    assert after(bench, [more], (callback.id, [for_job(more.id)]), claim=ref) is not None
    bench.finish(bench.outcome(claim))
    assert unblock(bench).count == 0
    bench.finish(bench.outcome(bench.take()))
    assert unblock(bench).count == 1
    late = bench.new_job()
    after(bench, [late], (callback.id, [for_job(late.id)]))  # too late: it waits no more
    assert bench.get(callback.id).state is JobState.READY


@case()
def a_lost_claim_adds_nothing(bench: Bench) -> None:
    (claim,) = claimed(bench)
    more = bench.new_job()
    stale = ClaimRef(claim.id, bench.new_token())
    assert after(bench, [more], claim=stale) is None
    assert bench.find(more.id) == [None]


@case()
def a_death_is_enough_where_it_is_waited_for(bench: Bench) -> None:
    jobs = [bench.new_job(headers={AWAITED_HEADER: "1"}) for _ in range(3)]
    callback = bench.new_job(queue="callbacks")
    waits = [w for j in jobs for w in (for_job(j.id), Wait(death_key(j.id), is_enough=True))]
    after(bench, [*jobs, callback], (callback.id, waits))
    good, bad, _ = bench.claim()
    bench.finish(bench.outcome(good))
    assert unblock(bench).count == 0
    bench.finish(bench.outcome(bad, JobState.DEAD))
    assert unblock(bench).count == 1
    assert bench.get(callback.id).state is JobState.READY


@case(events=True)
def being_held_from_the_beginning_is_witnessed(bench: Bench) -> None:
    first = bench.new_job(headers={AWAITED_HEADER: "1"})
    second = bench.new_job()
    after(bench, [first, second], (second.id, [for_job(first.id)]))
    kinds = [(event.kind, event.state) for event in bench.events() if event.job == second.id]
    assert kinds == [("enqueued", JobState.READY), ("held", JobState.BLOCKED)]

"""A move between two stores in one process: what producers see, what is carried, what is held back."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.moving_kit import Pair, made_pair, plain
from winch import App, Unique, batch, chain
from winch.core.errors import ConfigError, DuplicateJob
from winch.core.gates.uses import GateSpec
from winch.core.job import Note
from winch.core.lifecycle import JobState
from winch.engine.moving.carrying import Carrier
from winch.engine.moving.checks import refusals
from winch.engine.moving.mover import Mover
from winch.engine.moving.route import ALL, MoveStep, Scope
from winch.storage.decide.waits import AWAITED_HEADER
from winch.storage.params import ClaimRef, Finish, NewJob, Wait
from winch.storage.protocol import Driver

CHILD = "5e2cf14a-0000-4000-8000-39f6a64c8e3c"
MAIL = Scope(queues=("mail",))


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    with made_pair(tmp_path, monkeypatch) as made:
        yield made


def test_waiting_jobs_go_and_new_ones_follow(pair: Pair) -> None:
    before = pair.app.enqueue_many([pair.plain.bind(n) for n in range(600)])
    later = pair.plain.using(delay="1h").enqueue(1)
    route = pair.mover.drain(pair.opened())
    after = pair.plain.enqueue(2)
    assert pair.ids(pair.source) == set()
    assert pair.ids(pair.target) == {later.id, after.id, *(job.id for job in before)}
    assert later.refresh().state is JobState.SCHEDULED
    assert pair.mover.cut_over(route).step is MoveStep.DONE


def test_a_unique_key_is_one_key_in_both(pair: Pair) -> None:
    unique = pair.plain.using(unique="k")
    first = unique.enqueue(1)
    (claim,) = pair.claims(pair.source)
    route = pair.opened()
    again = unique.enqueue(2)
    assert (again.id, again.is_new) == (first.id, False), "its holder runs in the source"
    pair.complete(pair.source, [claim])
    fresh = unique.enqueue(3)
    assert fresh.is_new
    assert pair.ids(pair.target) == {fresh.id}
    pair.mover.drain(route)


def test_a_rejected_duplicate_is_rejected_in_both(pair: Pair) -> None:
    task = pair.app.task(name="rejecting", unique=Unique("n", mode="reject"))(plain)
    task.enqueue(1)
    pair.claims(pair.source)
    pair.opened()
    with pytest.raises(DuplicateJob):
        task.enqueue(1)


def test_a_given_id_is_one_job_in_both(pair: Pair) -> None:
    given = "5e2cf14a-0000-4000-8000-39f6a64c8e3b"
    using = pair.plain.using(id=given)
    using.enqueue(1)
    pair.complete(pair.source, pair.claims(pair.source))
    pair.opened()
    assert not using.enqueue(1).is_new
    assert pair.ids(pair.target) == set()


def test_a_key_is_held_until_its_member_in_the_source_has_ended(pair: Pair) -> None:
    member = pair.plain.using(fifo="acct:7")
    first, second = member.enqueue(1), member.enqueue(2)
    claims = pair.claims(pair.source)
    assert [claim.id for claim in claims] == [first.id]
    route = pair.opened()
    third = member.enqueue(3)
    assert pair.claim(pair.target, 9) == []
    route, left = pair.mover.sweep(route)
    assert left > 0
    assert pair.claim(pair.target, 9) == []
    pair.complete(pair.source, claims)
    route = pair.mover.drain(route)
    for expected in (second, third):
        got = pair.claims(pair.target, 9)
        assert [claim.id for claim in got] == [expected.id]
        pair.complete(pair.target, got)
    assert pair.mover.cut_over(route).step is MoveStep.DONE


def test_a_limit_is_shut_until_no_job_is_under_it_in_the_source(pair: Pair) -> None:
    pair.limited.enqueue(1)
    claims = pair.claims(pair.source)
    assert len(claims) == 1
    route = pair.opened()
    second = pair.limited.enqueue(2)
    pair.mover.sweep(route)
    route = pair.mover.route() or route
    assert pair.claim(pair.target, 9) == []
    pair.complete(pair.source, claims)
    pair.mover.drain(route)
    assert pair.claim(pair.target, 9) == [second.id]


def test_a_queue_paused_by_an_operator_stays_paused(pair: Pair) -> None:
    pair.app.queues.pause("default", reason="inventory")
    pair.plain.enqueue(1)
    pair.opened()
    (info,) = [q for q in pair.target.run(pair.target.queues()) if q.name == "default"]
    assert info.pause_reason == "inventory"


def test_one_store_ticks_a_schedule(pair: Pair) -> None:
    pair.app.schedules.add("report", task="plain", every="1h", args={"n": 1})
    last = pair.source.run(pair.source.schedules()).found[0].last_window
    pair.opened()
    [here] = pair.source.run(pair.source.schedules()).found
    [there] = pair.target.run(pair.target.schedules()).found
    assert here.paused_at is not None
    assert (there.paused_at, there.last_window) == (None, last)


def test_dead_letters_go_and_history_stays_unless_it_is_wanted(pair: Pair) -> None:
    done = pair.plain.enqueue(1)
    pair.complete(pair.source, pair.claims(pair.source))
    dead = pair.plain.enqueue(2)
    (claim,) = pair.claims(pair.source)
    end = Finish(id=claim.id, token=claim.token, to=JobState.DEAD, what="discarded", reason="no")
    pair.source.run(pair.source.finish([end]))
    pair.mover.drain(pair.opened())
    final = tuple(state for state in JobState if state.is_final)
    assert pair.ids(pair.target, final) == {dead.id}
    assert pair.ids(pair.source, final) == {done.id}
    assert done.refresh().state is JobState.COMPLETED


def test_an_alias_of_a_job_follows_it_into_the_parcel_and_out(pair: Pair) -> None:
    job = pair.plain.enqueue(1)
    pair.opened()
    assert pair.app.jobs.get(job.id).state is JobState.READY
    assert pair.app.jobs.cancel(job.id) is not None
    assert job.refresh().state is JobState.CANCELLED
    assert "cancelled" in job.why()


def test_it_goes_back(pair: Pair) -> None:
    member = pair.plain.using(fifo="acct:7")
    ids = [member.enqueue(n).id for n in range(3)]
    route = pair.mover.drain(pair.opened())
    ids.append(member.enqueue(3).id)
    route = pair.mover.turn_back(route)
    route = pair.mover.drain(pair.mover.advance(route))
    assert route.step is MoveStep.BACK_FREE
    pair.mover.end_back(route)
    assert pair.mover.route() is None
    assert pair.ids(pair.target) == set()
    ids.append(member.enqueue(4).id)
    for expected in ids:
        got = pair.claims(pair.source, 9)
        assert [claim.id for claim in got] == [expected]
        pair.complete(pair.source, got)


def test_a_member_that_is_slow_across_the_way_back_follows_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = pair.plain.using(fifo="acct:7")
    ids = [member.enqueue(1).id]
    route = pair.mover.drain(pair.opened())
    true_run: Callable[..., object] = pair.target.run
    reads, goes_on = threading.Event(), threading.Event()

    def slow(sent: object) -> object:
        if getattr(sent, "name", "").startswith("enqueue"):
            monkeypatch.setattr(pair.target, "run", true_run)
            reads.set()
            goes_on.wait(30)
        return true_run(sent)

    monkeypatch.setattr(pair.target, "run", slow)
    producer = threading.Thread(target=lambda: ids.append(member.enqueue(2).id))
    producer.start()
    assert reads.wait(30)
    route = pair.mover.advance(pair.mover.turn_back(route))
    goes_on.set()
    producer.join(30)
    assert ids[1] in pair.ids(pair.source), "where new jobs go by now"
    ids.append(member.enqueue(3).id)
    pair.mover.end_back(pair.mover.drain(route))
    for expected in ids:
        got = pair.claims(pair.source, 9)
        assert [claim.id for claim in got] == [expected]
        pair.complete(pair.source, got)


def test_members_are_renumbered_while_producers_are_held(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that is drawn before could be lower than that of a member stored meanwhile."""
    steps: list[MoveStep] = []
    true_prepare = Carrier.prepare

    def noted(carrier: Carrier) -> None:
        there = pair.mover.route()
        assert there is not None
        steps.append(there.step)
        true_prepare(carrier)

    monkeypatch.setattr(Carrier, "prepare", noted)
    route = pair.mover.drain(pair.opened())
    pair.mover.turn_back(route)
    assert steps == [MoveStep.HELD, MoveStep.BACK_HELD]


@pytest.mark.parametrize("verb", ["move_out", "move_in", "move_done"])
@pytest.mark.parametrize("is_applied", [True, False])
def test_another_mover_goes_on_where_one_died(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, verb: str, is_applied: bool
) -> None:
    jobs = pair.app.enqueue_many([pair.plain.bind(n) for n in range(300)])
    route = pair.opened()
    driver = pair.target if verb == "move_in" else pair.source
    true_run: Callable[..., object] = driver.run

    def dying(sent: object) -> object:
        if getattr(sent, "name", "") != verb:
            return true_run(sent)
        if is_applied:
            true_run(sent)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(driver, "run", dying)
        with pytest.raises(KeyboardInterrupt):
            pair.mover.sweep(route)
    pair.mover.release()
    other = Mover(pair.source, pair.target)
    there = other.route()
    assert there is not None
    other.drain(there)
    assert pair.ids(pair.source) == set()
    assert pair.ids(pair.target) == {job.id for job in jobs}


def test_two_movers_do_not_work_at_once(pair: Pair) -> None:
    route = pair.opened()
    with pytest.raises(ConfigError, match="another `winch move` is at work"):
        Mover(pair.source, pair.target).sweep(route)


def test_a_producer_takes_back_the_hold_of_a_mover_that_died(pair: Pair) -> None:
    route = pair.mover.begin()
    pair.mover._change(route, route.changed(step=MoveStep.HELD))
    stored: list[str] = []
    plain_one = pair.plain.enqueue(1).id
    there = pair.mover.route()
    assert there is not None
    assert there.step is MoveStep.HELD, "a plain job waits for nothing"
    keyed = pair.plain.using(unique="k")
    producer = threading.Thread(target=lambda: stored.append(keyed.enqueue(2).id))
    producer.start()
    producer.join(30)
    assert pair.ids(pair.source) == {plain_one, *stored}
    there = pair.mover.route()
    assert there is not None
    assert there.step is MoveStep.ANNOUNCED
    pair.mover.drain(pair.mover.advance(there))
    assert pair.ids(pair.target) == {plain_one, *stored}


def test_a_producer_that_names_another_target_stays(pair: Pair, tmp_path: Path) -> None:
    stranger = App(f"sqlite:///{tmp_path / 'source.db'}")
    stranger.configure({"move_to": f"sqlite:///{tmp_path / 'third.db'}"})
    stranger.driver.target.migrate()  # type: ignore[attr-defined]  # of the routed driver
    task = stranger.task(name="plain")(plain)
    pair.opened()
    job = task.enqueue(1)
    assert pair.ids(pair.source) == {job.id}
    stranger.close()


def test_the_first_call_opens_the_target_and_goes_on_without_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(f"sqlite:///{tmp_path / 'alone.db'}")
    app.configure({"move_to": "postgresql://127.0.0.1:1/nothing"})
    app.driver.source.migrate()  # type: ignore[attr-defined]  # of the routed driver
    task = app.task(name="plain")(plain)
    first = task.using(unique="k").enqueue(1)
    assert not task.using(unique="k").enqueue(2).is_new
    assert app.jobs.get(first.id).state is JobState.READY
    warned = [line for line in caplog.messages if "move_to is set, and its store cannot be used" in line]
    assert len(warned) == 1
    app.close()


def test_one_queue_moves_alone(pair: Pair) -> None:
    mail = pair.plain.using(queue="mail")
    moves, stays = mail.enqueue(1), pair.plain.enqueue(2)
    pair.mover.drain(pair.opened(MAIL))
    follows, stays_too = mail.enqueue(3), pair.plain.enqueue(4)
    assert pair.ids(pair.source) == {stays.id, stays_too.id}
    assert pair.ids(pair.target) == {moves.id, follows.id}


def test_a_move_that_is_impossible_is_refused_by_name(pair: Pair) -> None:
    pair.plain.using(queue="mail", fifo="acct:7").enqueue(1)
    pair.plain.using(fifo="acct:7").enqueue(2)
    [shared] = refusals(pair.source, pair.target, MAIL)
    assert "acct:7" in shared
    assert refusals(pair.source, pair.target) == []
    other = App(pair.target.describe())
    other.task(name="plain")(plain).enqueue(1)
    [full] = refusals(pair.source, pair.target)
    assert "already has live jobs" in full
    other.close()


def test_a_flow_moves_whole_once_none_of_its_members_runs(pair: Pair) -> None:
    handle = chain(pair.plain.bind(1), pair.plain.bind(2), pair.plain.bind(3)).enqueue()
    claims = pair.claims(pair.source, 9)
    assert len(claims) == 1
    route, left = pair.mover.sweep(pair.opened())
    assert left == 3, "its first member runs"
    with pytest.raises(ConfigError, match="3 live jobs are left"):
        pair.mover.cut_over(route)
    pair.complete(pair.source, claims)
    route = pair.mover.drain(route)
    assert len(pair.ids(pair.target)) == 2
    final = tuple(state for state in JobState if state.is_final)
    assert pair.ids(pair.target, final) == {claims[0].id}, "what the others take of it"
    assert pair.ids(pair.source, tuple(JobState)) == set()
    assert pair.mover.cut_over(route).step is MoveStep.DONE
    assert handle is not None


def test_a_flow_that_touches_another_queue_is_refused_with_the_remedy(pair: Pair) -> None:
    chain(pair.plain.using(queue="mail").bind(1), pair.plain.using(queue="bills").bind(2)).enqueue()
    [refused] = refusals(pair.source, pair.target, MAIL)
    assert "it has jobs in other queues: add --also bills" in refused
    both = Scope(queues=("mail", "bills"))
    assert refusals(pair.source, pair.target, both) == []
    other = pair.plain.enqueue(3)
    pair.mover.drain(pair.opened(both))
    assert pair.ids(pair.source) == {other.id}
    assert len(pair.ids(pair.target)) == 2


def test_a_flow_that_is_not_stored_whole_stays(pair: Pair) -> None:
    with batch("b", on_complete=pair.plain.bind(9)) as members:
        members.enqueue(pair.plain.bind(1))
        route, left = pair.mover.sweep(pair.opened())
        assert left == 2
        members.enqueue(pair.plain.bind(2))
        assert len(pair.ids(pair.source)) == 3, "it goes on where it began"
    assert pair.ids(pair.target) == set()
    pair.mover.drain(route)
    assert (len(pair.ids(pair.source)), len(pair.ids(pair.target))) == (0, 3)


def test_a_handler_that_waits_stays_and_so_do_its_children(pair: Pair) -> None:
    parent = pair.plain.enqueue(1)
    headers = {AWAITED_HEADER: parent.id}
    child = NewJob(id=CHILD, task="plain", args='{"n":2}', headers=headers, is_given_id=True)
    pair.source.run(pair.source.enqueue([child]))
    [claim] = [one for one in pair.claims(pair.source, 1) if one.id == parent.id]
    step = {"name": "c", "kind": "children", "at": "2026-01-01T00:00:00Z", "result": f'["{CHILD}"]'}
    head = json.dumps({"winch": "steps", "steps": [step]}, separators=(",", ":"))
    ref = ClaimRef(claim.id, claim.token)
    pair.source.run(pair.source.note(ref, Note(checkpoint=head)))
    end = Finish(
        id=claim.id,
        token=claim.token,
        to=JobState.BLOCKED,
        what="waited",
        counts=False,
        waits=(Wait(f"job:{CHILD}"),),
    )
    pair.source.run(pair.source.finish([end]))
    pair.mover.sweep(pair.opened())
    assert parent.id in pair.ids(pair.source), "it waits"
    pair.complete(pair.source, pair.claims(pair.source, 9))
    pair.source.run(pair.source.unblock())
    assert parent.refresh().state is JobState.READY
    route = pair.mover.route()
    assert route is not None
    pair.mover.sweep(route)
    assert pair.ids(pair.source) == {parent.id}, "it has to find its child"
    assert pair.app.jobs.get(CHILD).state is JobState.COMPLETED


def test_a_tenant_moves_alone(pair: Pair) -> None:
    ours = [pair.plain.using(tenant="acme", queue=name).enqueue(1).id for name in ("mail", "bills")]
    theirs = [pair.plain.using(tenant="other", queue="mail").enqueue(2).id, pair.plain.enqueue(3).id]
    route = pair.mover.drain(pair.opened(Scope(tenant="acme")))
    ours.append(pair.plain.using(tenant="acme").enqueue(4).id)
    theirs.append(pair.plain.using(tenant="other").enqueue(5).id)
    assert pair.ids(pair.target) == set(ours)
    assert pair.ids(pair.source) == set(theirs)
    paused = [q.name for q in pair.source.run(pair.source.queues()) if q.paused_at is not None]
    assert paused == [], "the other tenants go on"
    route = pair.mover.cut_over(route)
    assert [line for line in refusals(pair.source, pair.target, MAIL, route) if "has moved to" in line]
    assert not [line for line in refusals(pair.source, pair.target, ALL, route) if "has moved" in line]


def test_a_tenant_goes_back(pair: Pair) -> None:
    ours = {pair.plain.using(tenant="acme").enqueue(n).id for n in range(3)}
    route = pair.mover.drain(pair.opened(Scope(tenant="acme")))
    route = pair.mover.drain(pair.mover.advance(pair.mover.turn_back(route)))
    pair.mover.end_back(route)
    assert (pair.ids(pair.source), pair.ids(pair.target)) == (ours, set())
    assert [q for q in pair.source.run(pair.source.queues()) if q.paused_at is not None] == []


def test_a_gate_that_a_tenant_shares_is_refused(pair: Pair) -> None:
    pair.limited.using(tenant="acme").enqueue(1)
    pair.limited.using(tenant="other").enqueue(2)
    refused = refusals(pair.source, pair.target, Scope(tenant="acme"))
    assert any("holds for jobs of tenant 'acme' and for others" in line for line in refused)


@pytest.mark.parametrize("verb", ["get", "results", "explain", "cancel"])
@pytest.mark.parametrize("is_back", [False, True])
def test_a_job_that_moves_while_it_is_looked_for_is_found(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, verb: str, is_back: bool
) -> None:
    """The job leaves its store just before the lookup reads that store."""
    job = pair.plain.using(delay="1h").enqueue(1)
    route = pair.opened()
    if is_back:
        pair.mover.drain(route)
        route = pair.mover.turn_back(route)
    carrier = pair.mover.carrier(route)
    before = {"get": carrier.source.get, "results": carrier.source.results}
    asked = getattr(carrier.source, verb)

    def moved_first(*args: Any, **more: Any) -> Any:
        for name, real in before.items():  # the carrier itself asks
            setattr(carrier.source, name, real)
        carrier.carry(lambda job: True)
        return asked(*args, **more)

    monkeypatch.setattr(carrier.source, verb, moved_first)
    driver = pair.app.driver
    if verb == "cancel":
        [acted] = driver.run(driver.cancel([job.id], by="test"))
        assert acted.took
    elif verb == "explain":
        assert driver.run(driver.explain(job.id)) is not None
    else:
        assert driver.run(getattr(driver, verb)([job.id])) != [None]
    assert (pair.ids(carrier.source), carrier.moved) == (set(), 1)


def test_a_move_back_keeps_the_limit_set_by_an_operator(pair: Pair) -> None:
    spec = GateSpec(n=5)
    pair.source.run(pair.source.set_limits({"limit:limited": spec}, by="ann"))
    pair.limited.enqueue(1)
    route = pair.mover.drain(pair.opened(Scope(queues=("default",))))
    claims = pair.claims(pair.target)
    assert len(claims) == 1
    route = pair.mover.advance(pair.mover.turn_back(route))
    assert limit_of(pair.source, "limit:limited") == GateSpec(n=0), "one runs in the target"
    pair.complete(pair.target, claims)
    pair.mover.end_back(pair.mover.drain(route))
    assert limit_of(pair.source, "limit:limited") == spec


def limit_of(driver: Driver, name: str) -> GateSpec | None:
    return next((one.spec for one in driver.run(driver.limits()) if one.name == name), None)


def test_a_parcel_on_its_way_is_waited_for(pair: Pair) -> None:
    job = pair.plain.using(delay="1h").enqueue(1)
    carrier = pair.mover.carrier(pair.opened())
    pair.source.run(pair.source.move_out(carrier._name, carrier._next(), [job.id]))
    timer = threading.Timer(0.1, carrier.settle)
    timer.start()
    assert pair.app.driver.run(pair.app.driver.explain(job.id)) is not None
    timer.join()


def test_a_signal_goes_to_a_job_that_will_wait_for_it(pair: Pair) -> None:
    """The job runs in the source and has not reached its wait yet."""
    pair.plain.enqueue(1)
    [claim] = pair.claims(pair.source)
    pair.opened()
    assert pair.app.signal("approval:7", {"ok": True}, id="a")
    there = pair.source.run(
        pair.source.take_signal(ClaimRef(claim.id, claim.token), "approval:7", wanted_by="s")
    )
    assert there.payload == '{"ok":true}'


def test_a_signal_goes_where_a_job_may_wait_for_it(pair: Pair) -> None:
    pair.opened()
    assert pair.app.signal("approval:7", {"ok": True}, id="a")
    assert not pair.app.signal("approval:7", {"ok": True}, id="a")
    again = pair.target.run(pair.target.signal("approval:7", "{}", id="a"))
    assert not again.is_new, "it is in the target"
    there = pair.source.run(pair.source.signal("approval:7", "{}", id="a"))
    assert there.is_new, "no job waits in the source"

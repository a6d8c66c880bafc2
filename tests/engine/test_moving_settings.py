"""What people set, and what a store knows about schedules and searches, goes with a move and back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.engine.moving_kit import Pair, made_pair
from winch import App
from winch.core.errors import ConfigError
from winch.core.gates.uses import GateSpec
from winch.core.values import search
from winch.engine.base.operation import drive
from winch.engine.base.search_index import found_under
from winch.engine.moving.holding import live_limits
from winch.engine.moving.mover import Mover
from winch.engine.moving.route import MoveStep, Scope
from winch.engine.moving.schedules import TICKED_ELSEWHERE
from winch.storage.decide.schedules import ScheduleRow, Tick
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.params import ClaimRef
from winch.storage.protocol import Driver
from winch.web.tokens import Token, Tokens

MAIL = Scope(queues=("mail",))


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    with made_pair(tmp_path, monkeypatch) as made:
        yield made


def back(pair: Pair) -> None:
    route = pair.mover.route()
    assert route is not None
    pair.mover.end_back(pair.mover.drain(pair.mover.advance(pair.mover.turn_back(route))))


def over(pair: Pair) -> None:
    route = pair.mover.route()
    assert route is not None
    assert pair.mover.cut_over(pair.mover.drain(route)).step is MoveStep.DONE


# -- tokens, webhook endpoints, views, marks ---------------------------------------------------------


def token(app: App) -> tuple[str, Token]:
    made: tuple[str, Token] = app.client.run(Tokens(app.driver).create("ops", ("admin",)))
    return made


def is_live(driver: Driver, text: str) -> bool:
    """As a server that has just been started."""
    return drive(Tokens(driver).recognise(text), driver.run) is not None


def revoke(driver: Driver, token: Token) -> bool:
    return drive(Tokens(driver).revoke(token.id), driver.run)


def test_a_token_that_is_revoked_in_the_old_store_is_dead_in_both(pair: Pair) -> None:
    text, made = token(pair.app)
    pair.opened()
    assert is_live(pair.target, text)
    assert revoke(pair.app.driver, made)
    assert not is_live(pair.source, text)
    assert not is_live(pair.target, text)


def test_a_token_that_is_revoked_in_the_new_store_is_dead_in_both_and_stays_so(pair: Pair) -> None:
    text, made = token(pair.app)
    kept, _ = token(pair.app)
    route = pair.opened()
    with pair.app_of(pair.target) as there:
        revoke(there.driver, made)
        later, _ = token(there)
    assert not is_live(pair.app.driver, text)
    assert is_live(pair.app.driver, later)
    pair.mover.drain(route)
    back(pair)
    assert not is_live(pair.source, text)
    assert is_live(pair.source, kept)
    assert is_live(pair.source, later)


def test_a_token_that_is_revoked_between_two_moves_does_not_come_alive(pair: Pair) -> None:
    text, made = token(pair.app)
    pair.mover.drain(pair.opened())
    back(pair)
    revoke(pair.source, made)
    pair.opened()
    assert not is_live(pair.target, text)


def test_a_token_that_is_revoked_before_the_move_in_the_other_direction_stays_dead(pair: Pair) -> None:
    text, made = token(pair.app)
    pair.opened()
    over(pair)
    with pair.app_of(pair.target) as there:
        revoke(there.driver, made)
        mover = Mover(pair.target, pair.source)
        mover.advance(mover.begin())
    assert not is_live(pair.source, text)


def test_a_token_of_the_new_store_stays_there_after_a_way_back(pair: Pair) -> None:
    with pair.app_of(pair.target) as there:
        text, _ = token(there)
    pair.mover.drain(pair.opened())
    back(pair)
    assert is_live(pair.target, text)


def test_a_token_that_is_revoked_while_it_is_copied_is_not_copied(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, made = token(pair.app)
    true_run = pair.target.run

    def revoked_then(verb: Any) -> Any:
        route = pair.mover.route()
        if verb.name == "kv_swap" and route is not None and route.step is MoveStep.OPEN:
            pair.source.run(pair.source.kv_delete("token", [made.id]))
        return true_run(verb)

    monkeypatch.setattr(pair.target, "run", revoked_then)
    pair.opened()
    assert not is_live(pair.target, text)


def bodies(driver: Driver, book: str) -> dict[str, str]:
    return {one.key: one.body for one in driver.run(driver.kv_list(KvFilter(book=book)))}


def test_an_endpoint_has_one_truth_during_a_move(pair: Pair) -> None:
    """The secret that a person sets by the old URL signs the deliveries of the new workers, and a change
    there is not lost when a late delivery of the old workers is counted."""
    hooks = pair.app.webhooks
    hooks.setup()
    made = hooks.subscribe("https://example.com/a", ["*"]).endpoint
    pair.opened()
    new = hooks.rotate(made.id, overlap="0s")
    with pair.app_of(pair.target) as there:
        there.webhooks.setup()
        assert there.webhooks.get(made.id) == hooks.get(made.id)
        assert new in bodies(pair.target, "webhook")[made.id]
        there.webhooks.disable(made.id, reason="asked for")
    assert hooks.get(made.id).disabled_at is not None
    hooks.enable(made.id)
    assert bodies(pair.target, "webhook") == bodies(pair.source, "webhook")
    route = pair.mover.route()
    assert route is not None
    pair.mover.drain(route)
    back(pair)
    assert hooks.get(made.id).disabled_at is None
    assert bodies(pair.target, "webhook") == {}


def test_saved_searches_and_marks_of_groups_go_with_the_dead(pair: Pair) -> None:
    records = [
        KvRecord(book="view", key="ada\x1flate", body="{}"),
        KvRecord(book="dead group", key="f00d", body='{"state":"ignored"}'),
    ]
    pair.source.run(pair.source.kv_put(records))
    pair.opened()
    for record in records:
        assert bodies(pair.target, record.book) == {record.key: record.body}


def test_of_one_queue_no_token_goes(pair: Pair) -> None:
    text, made = token(pair.app)
    pair.opened(Scope(queues=("default",)))
    assert bodies(pair.target, "token") == {}
    revoke(pair.app.driver, made)
    assert not is_live(pair.source, text)


def test_a_queue_setting_of_the_new_store_comes_back(pair: Pair) -> None:
    pair.app.queues.configure("default", max_depth=5)
    pair.opened()
    with pair.app_of(pair.target) as there:
        there.queues.configure("default", max_depth=7)
    back(pair)
    assert pair.app.queues.settings()["default"].max_depth == 7


def test_a_limit_that_a_person_sets_by_the_old_url_holds_in_both(pair: Pair) -> None:
    pair.limited.enqueue(1)
    pair.opened()
    pair.app.limits.set("limit:limited", 3)
    assert live_limits(pair.source) == live_limits(pair.target) == {"limit:limited": GateSpec(n=3)}
    pair.app.limits.reset("limit:limited")
    assert live_limits(pair.target) == {}


def test_a_limit_that_the_mover_holds_shut_cannot_be_set(pair: Pair) -> None:
    pair.limited.enqueue(1)
    claims = pair.claims(pair.source)
    route = pair.opened()
    with pytest.raises(ConfigError, match="the move holds limit:limited until its last job"):
        pair.app.limits.set("limit:limited", 3)
    pair.complete(pair.source, claims)
    pair.mover.drain(route)
    pair.app.limits.set("limit:limited", 3)
    assert live_limits(pair.target) == {"limit:limited": GateSpec(n=3)}


# -- searches ----------------------------------------------------------------------------------------


def found(driver: Driver, term: str) -> list[str]:
    return drive(found_under(driver, [term], after=None, limit=10), driver.run)


def test_a_search_finds_the_jobs_that_have_moved_and_those_of_the_move(pair: Pair) -> None:
    task = pair.app.task(name="search", search=["n"])(pair.plain.fn)
    before = task.using(delay="1d").enqueue(7)
    route = pair.opened()
    during = task.using(delay="1d").enqueue(7)
    with pair.app_of(pair.source) as late:  # a process that knows of no move
        other = late.task(name="search", search=["n"])(pair.plain.fn)
        fetched = other.using(delay="1d").enqueue(7)
    assert found(pair.target, term_of(pair)) == sorted([before.id, during.id], reverse=True)
    pair.mover.drain(route)
    everything = sorted([before.id, during.id, fetched.id], reverse=True)
    assert found(pair.target, term_of(pair)) == everything
    back(pair)
    assert found(pair.source, term_of(pair)) == everything


def term_of(pair: Pair) -> str:
    [term] = {key[: key.index(search.job_of(key)) - 1] for key in bodies(pair.source, "search")}
    return term


# -- schedules ---------------------------------------------------------------------------------------


def row(driver: Driver, name: str = "s") -> ScheduleRow:
    [found] = driver.run(driver.schedules(name=name)).found
    return found


def tick(driver: Driver, *, at: datetime) -> list[str]:
    """The jobs that the schedule enqueues when it is ticked then."""
    [row] = driver.run(driver.schedules(name="s")).found
    verb = driver.change_schedule("s", Tick(definition=row.definition, since=row.last_window), now=at)
    runs = driver.run(verb).runs
    return [run.job for run in runs if run.kind == "enqueued" and run.job is not None]


def test_a_schedule_that_must_not_overlap_waits_for_its_job_in_the_old_store(pair: Pair) -> None:
    pair.app.schedules.add("s", task="plain", every="1m", args={"n": 1}, overlap="skip")
    now = datetime.now(UTC)
    [first] = tick(pair.source, at=now + timedelta(minutes=2))
    claims = pair.claims(pair.source)
    assert [claim.id for claim in claims] == [first]
    route = pair.opened()
    pair.mover.sweep(route)
    assert row(pair.target).pause_reason == TICKED_ELSEWHERE
    assert tick(pair.target, at=now + timedelta(minutes=4)) == []
    pair.complete(pair.source, claims)
    pair.mover.drain(route)
    assert row(pair.target).paused_at is None
    assert row(pair.source).pause_reason == TICKED_ELSEWHERE
    assert len(tick(pair.target, at=now + timedelta(minutes=6))) == 1


def test_a_schedule_that_must_not_overlap_knows_its_job_that_has_moved(pair: Pair) -> None:
    pair.app.schedules.add("s", task="plain", every="1m", args={"n": 1}, overlap="skip")
    now = datetime.now(UTC)
    [first] = tick(pair.source, at=now + timedelta(minutes=2))
    pair.mover.drain(pair.opened())
    assert pair.ids(pair.target) == {first}
    assert tick(pair.target, at=now + timedelta(minutes=4)) == []
    pair.complete(pair.target, pair.claims(pair.target))
    assert len(tick(pair.target, at=now + timedelta(minutes=6))) == 1


def test_one_that_may_overlap_does_not_wait(pair: Pair) -> None:
    pair.app.schedules.add("s", task="plain", every="1m", args={"n": 1}, overlap="allow")
    now = datetime.now(UTC)
    tick(pair.source, at=now + timedelta(minutes=2))
    assert pair.claims(pair.source)
    pair.opened()
    assert row(pair.target).paused_at is None


def test_a_backfill_is_not_repeated_in_the_new_store(pair: Pair) -> None:
    pair.app.schedules.add("s", task="plain", cron="0 * * * *", args={"n": 1})
    start = datetime(2026, 11, 1, tzinfo=UTC)
    end = start + timedelta(days=2)
    assert pair.app.schedules.backfill("s", start, end).enqueued == 48
    for _ in range(48):
        pair.complete(pair.source, pair.claims(pair.source))
    pair.opened()
    with pair.app_of(pair.target) as there:
        again = there.schedules.backfill("s", start, end + timedelta(hours=1))
    assert again.enqueued == 1
    assert len(pair.ids(pair.target)) == 1
    runs = pair.target.run(pair.target.schedule_runs("s", limit=100))
    assert len(runs) == 49


def test_what_people_do_to_a_schedule_by_the_old_url_is_for_the_store_that_ticks_it(pair: Pair) -> None:
    schedules = pair.app.schedules
    schedules.add("s", task="plain", every="1h", args={"n": 1})
    pair.opened()
    schedules.pause("s", reason="a holiday")
    assert row(pair.target).pause_reason == "a holiday"
    assert [one.pause_reason for one in schedules.list()] == ["a holiday"]
    schedules.resume("s")
    assert row(pair.target).paused_at is None
    assert row(pair.source).pause_reason == TICKED_ELSEWHERE
    assert [one.paused_at for one in schedules.list()] == [None]
    job = schedules.trigger("s")
    assert pair.ids(pair.target) == {job.id}
    assert [run.job for run in schedules.history("s")] == [job.id]
    schedules.remove("s")
    for store in (pair.source, pair.target):
        assert store.run(store.schedules()).found == ()


def test_a_schedule_that_is_added_during_a_move_reaches_the_new_store(pair: Pair) -> None:
    route = pair.opened()
    pair.app.schedules.add("s", task="plain", every="1h", args={"n": 1})
    assert row(pair.target).paused_at is None
    assert pair.source.run(pair.source.schedules()).found == ()
    with pair.app_of(pair.source) as late:  # a process that knows of no move
        late.task(name="plain")(pair.plain.fn)
        late.schedules.add("late", task="plain", every="1h", args={"n": 1})
    pair.mover.drain(route)
    assert row(pair.target, "late").paused_at is None
    assert row(pair.source, "late").pause_reason == TICKED_ELSEWHERE
    over(pair)


def test_a_schedule_that_a_person_removes_there_does_not_come_again(pair: Pair) -> None:
    pair.app.schedules.add("s", task="plain", every="1h", args={"n": 1})
    route = pair.opened()
    with pair.app_of(pair.target) as there:
        there.schedules.remove("s")
    pair.mover.drain(route)
    assert pair.target.run(pair.target.schedules()).found == ()
    back(pair)
    assert pair.source.run(pair.source.schedules()).found == ()


def test_schedules_are_as_they_were_after_a_way_back(pair: Pair) -> None:
    pair.app.schedules.add("s", task="plain", every="1h", args={"n": 1}, overlap="skip")
    pair.app.schedules.add("late", task="plain", every="1h", args={"n": 1})
    pair.app.schedules.pause("late", reason="by hand")
    pair.mover.drain(pair.opened())
    with pair.app_of(pair.target) as there:
        there.task(name="plain")(pair.plain.fn)
        there.schedules.add("new", task="plain", every="1h", args={"n": 1})
        there.schedules.resume("late")
    back(pair)
    paused_at = {one.name: one.paused_at for one in pair.app.schedules.list()}
    assert paused_at == {"late": None, "new": None, "s": None}
    assert pair.target.run(pair.target.schedules()).found == ()


def test_a_schedule_of_another_queue_stays(pair: Pair) -> None:
    pair.app.schedules.add("s", task="plain", every="1h", args={"n": 1})
    pair.app.schedules.add("mail", task="plain", every="1h", args={"n": 1}, queue="mail")
    pair.opened(Scope(queues=("mail",)))
    pair.app.schedules.pause("s", reason="here")
    assert row(pair.source).pause_reason == "here"
    names = [one.name for one in pair.app.schedules.list()]
    assert names == ["mail", "s"]
    assert row(pair.target, "mail").paused_at is None


def test_a_process_that_knows_one_store_resumes_nothing_that_a_move_keeps_paused(pair: Pair) -> None:
    pair.plain.enqueue(1)
    pair.app.schedules.add("s", task="plain", every="1h", args={"n": 1})
    pair.opened()
    with pair.app_of(pair.source) as late:
        for resume, name in ((late.queues.resume, "default"), (late.schedules.resume, "s")):
            with pytest.raises(ConfigError, match=f"keeps .* '{name}' paused while jobs move"):
                resume(name)
        over(pair)
        late.queues.resume("default")
        late.schedules.resume("s")
    assert row(pair.source).paused_at is None


# -- signals -----------------------------------------------------------------------------------------


def untaken(driver: Driver) -> list[str]:
    return [one.id for one in driver.run(driver.untaken_signals())]


def test_a_signal_that_no_job_has_taken_goes_and_comes_back(pair: Pair) -> None:
    pair.plain.enqueue(1)
    claims = pair.claims(pair.source)
    pair.app.signal("approval:7", {"ok": True}, id="a")
    route = pair.opened()
    assert untaken(pair.source) == untaken(pair.target) == ["a"]
    with pair.app_of(pair.source) as late:  # a process that knows of no move
        late.signal("approval:8", {"ok": True}, id="b")
    pair.complete(pair.source, claims)
    pair.mover.drain(route)
    assert (untaken(pair.source), untaken(pair.target)) == ([], ["a", "b"])
    pair.plain.enqueue(2)
    [claim] = pair.claims(pair.target)
    ref = ClaimRef(claim.id, claim.token)
    pair.target.run(pair.target.take_signal(ref, "approval:7", wanted_by="s"))
    pair.complete(pair.target, [claim])
    back(pair)
    assert (untaken(pair.source), untaken(pair.target)) == (["b"], [])


def test_with_one_queue_a_signal_stays_for_the_others(pair: Pair) -> None:
    pair.app.signal("approval:7", {"ok": True}, id="a")
    pair.mover.drain(pair.opened(MAIL))
    assert untaken(pair.source) == untaken(pair.target) == ["a"]

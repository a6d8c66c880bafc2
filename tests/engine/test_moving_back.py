"""Ways back of a move: taken back before it is open, cut short, and what they leave in both stores."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.engine.moving_kit import Pair, made_pair, plain
from winch import App, QueueFull, batch, chain
from winch.core.errors import ConfigError
from winch.core.gates.uses import GateSpec
from winch.core.lifecycle import JobState
from winch.engine.client.backpressure import BOOK as QUEUE_SETTINGS
from winch.engine.moving import holding
from winch.engine.moving import mover as mover_module
from winch.engine.moving.carrying import WAITING, Carrier
from winch.engine.moving.mover import TRIES, Mover
from winch.engine.moving.route import MoveStep, Scope
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.params import Finish, NewJob
from winch.storage.protocol import Driver

KEYED = NewJob(id="5e2cf14a-0000-4000-8000-39f6a64c8e3c", task="plain", args="{}", unique_key="k")


Limits = Mapping[str, GateSpec | None]
MAIL = Scope(queues=("mail",))


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    with made_pair(tmp_path, monkeypatch) as made:
        yield made


def paused(driver: Driver) -> dict[str, str | None]:
    return {q.name: q.pause_reason for q in driver.run(driver.queues()) if q.paused_at is not None}


def step(pair: Pair) -> MoveStep:
    route = pair.mover.route()
    assert route is not None
    return route.step


def back(pair: Pair) -> None:
    route = pair.mover.route()
    assert route is not None
    pair.mover.end_back(pair.mover.drain(pair.mover.advance(pair.mover.turn_back(route))))


def test_a_move_that_could_not_be_opened_leaves_no_queue_paused(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.plain.enqueue(1)
    pair.app.queues.pause("held", reason="inventory")
    route = pair.mover.begin()
    monkeypatch.setattr(mover_module, "TRIES", 1)
    monkeypatch.setattr(Mover, "_fenced", lambda mover, driver, epoch: False)
    with pytest.raises(ConfigError, match="could not be held"):
        pair.mover.advance(route)
    route = pair.mover.route() or route
    assert route.step is MoveStep.ANNOUNCED
    pair.mover.turn_back(route)
    assert pair.mover.route() is None
    assert paused(pair.source) == {"held": "inventory"}
    assert len(pair.claim(pair.source)) == 1, "its workers go on"


@pytest.mark.parametrize("is_open", [True, False])
def test_a_way_back_that_was_cut_short_can_be_resumed_forwards(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, is_open: bool
) -> None:
    """Keys and limits of jobs that still run in the source hold in the target all the time."""
    member = pair.plain.using(fifo="acct:7")
    first, second = member.enqueue(1), member.enqueue(2)
    limited = pair.limited.enqueue(3)
    claims = pair.claims(pair.source, 9)
    assert {claim.id for claim in claims} == {first.id, limited.id}
    if is_open:
        with monkeypatch.context() as patch:
            patch.setattr(Mover, "_carry_ordered", _dies)
            with pytest.raises(KeyboardInterrupt):
                pair.opened()
        assert step(pair) is MoveStep.OPEN
    else:
        pair.mover.sweep(pair.opened())
    waiting = pair.limited.enqueue(4)
    route = pair.mover.route()
    assert route is not None
    with monkeypatch.context() as patch:
        patch.setattr(Mover, "_fenced", _dies)
        with pytest.raises(KeyboardInterrupt):
            pair.mover.turn_back(route)
    assert step(pair) is MoveStep.BACK_HELD
    while step(pair) is MoveStep.BACK_HELD:  # a producer that waits takes the hold back
        pair.plain.using(unique="k").enqueue(5)
    route = pair.mover.route()
    assert route is not None
    pair.mover.sweep(pair.mover.advance(route))
    there = {claim.id for claim in pair.claims(pair.target, 9)}
    assert not there & {second.id, waiting.id}
    pair.complete(pair.source, claims)
    route = pair.mover.route()
    assert route is not None
    pair.mover.drain(route)
    there = {claim.id for claim in pair.claims(pair.target, 9)}
    assert there >= {second.id, waiting.id}


def _dies(*_: object) -> None:
    raise KeyboardInterrupt


def test_the_store_that_a_move_went_back_from_takes_fenced_jobs(pair: Pair) -> None:
    pair.plain.enqueue(1)
    pair.mover.drain(pair.opened())
    back(pair)
    epoch = pair.mover._records(pair.target).epoch
    assert pair.target.run(pair.target.enqueue_fenced([KEYED], epoch)) is not None
    assert pair.target.run(pair.target.enqueue_fenced([KEYED], 0)) is None, "of the time before"
    assert epoch <= 3 * TRIES
    pair.target.run(pair.target.delete([KEYED.id], by="test"))
    assert pair.opened().epoch > epoch


def test_a_limit_set_by_an_operator_survives_a_move_back(pair: Pair) -> None:
    """A scope of queues does not copy it: the store itself has it again."""
    pair.app.limits.set("limit:limited", 2)
    limited = pair.limited.using(queue="mail")
    limited.enqueue(1)
    route = pair.mover.drain(pair.opened(MAIL))
    session = "01a1f06a-0023-4750-94b3-39f6a64c8e3c"
    claims = pair.claims(pair.target, 1, queue="mail", session=session)
    assert len(claims) == 1
    route, _ = pair.mover.sweep(pair.mover.advance(pair.mover.turn_back(route)))
    assert route.limits, "held while a job of the target is under it"
    pair.complete(pair.target, claims)
    pair.mover.end_back(pair.mover.drain(route))
    [limit] = [one for one in pair.app.limits.list() if one.name == "limit:limited"]
    assert limit.is_live
    assert limit.spec is not None
    assert limit.spec.n == 2


def test_a_flow_that_has_moved_is_known_there_and_comes_back(pair: Pair) -> None:
    before = chain(pair.plain.bind(1), pair.plain.bind(2)).enqueue()
    pair.mover.drain(pair.opened())
    during = chain(pair.plain.bind(3), pair.plain.bind(4)).enqueue()
    with pair.app_of(pair.target) as there:
        assert {one.id for one in there.flows.list()} == {before.id, during.id}
        assert there.flows.get(before.id).members == 2
        assert there.flows.get(during.id).members == 2
    back(pair)
    assert len(pair.ids(pair.source)) == 4
    assert pair.ids(pair.target) == set()


def test_a_queue_paused_by_an_operator_during_a_move_stays_paused(pair: Pair) -> None:
    pair.plain.enqueue(1)
    pair.app.queues.pause("bills", reason="audit")
    route = pair.opened()
    pair.source.run(pair.source.pause("mail", by="ada", reason="inventory"))
    pair.mover.drain(route)
    back(pair)
    assert paused(pair.source) == {"bills": "audit", "mail": "inventory"}


@pytest.mark.parametrize("verb", ["raise_fence", "pause", "delete", "set_limits", "kv_swap"])
@pytest.mark.parametrize("is_applied", [True, False])
def test_a_way_back_goes_on_where_its_mover_died(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, verb: str, is_applied: bool
) -> None:
    member = pair.plain.using(fifo="acct:7")
    ids = [member.enqueue(n).id for n in range(3)]
    limited = pair.limited.enqueue(3)
    claims = pair.claims(pair.source, 9)
    route, _ = pair.mover.sweep(pair.opened())
    ids.append(member.enqueue(3).id)
    with monkeypatch.context() as patch:
        for driver in (pair.source, pair.target):
            patch.setattr(driver, "run", _dying(driver.run, verb, is_applied))
        with pytest.raises(KeyboardInterrupt):
            pair.mover.turn_back(route)
    pair.mover._renewed_at = 0.0
    pair.mover.release()
    other = Mover(pair.source, pair.target)
    there = other.route()
    assert there is not None
    if not there.step.is_back:
        there = other.turn_back(there)
    there, _ = other.sweep(other.advance(there))
    assert pair.claim(pair.source, 9) == [], "the first member and the limited job still run"
    pair.complete(pair.source, claims)
    other.end_back(other.drain(there))
    assert pair.ids(pair.target) == set()
    for expected in ids[1:]:
        got = pair.claims(pair.source, 9)
        assert [claim.id for claim in got] == [expected]
        pair.complete(pair.source, got)
    record = pair.source.run(pair.source.get([limited.id]))[0]
    assert record is not None
    assert record.state is JobState.COMPLETED


def _dying(true_run: Callable[..., object], verb: str, is_applied: bool) -> Callable[[object], object]:
    """Runs verbs up to the first one of this name."""

    def run(sent: object) -> object:
        if getattr(sent, "name", "") != verb:
            return true_run(sent)
        if is_applied:
            true_run(sent)
        raise KeyboardInterrupt

    return run


def test_members_are_renumbered_on_the_way_back_too(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    stores: list[Driver] = []
    true_prepare = Carrier.prepare

    def noted(carrier: Carrier) -> None:
        stores.append(carrier.target)
        true_prepare(carrier)

    monkeypatch.setattr(Carrier, "prepare", noted)
    route = pair.mover.drain(pair.opened())
    pair.mover.turn_back(route)
    assert stores == [pair.target, pair.source]


def test_a_queue_that_is_paused_just_after_the_announcement_stays_paused(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a process that has not read the route yet."""
    pair.plain.enqueue(1)

    def pauses(seconds: float) -> None:
        pair.source.run(pair.source.pause("default", by="ada", reason="inventory"))

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=pauses)
    route = pair.mover.begin()
    monkeypatch.setattr(mover_module, "time", clock)
    pair.mover.advance(route)
    assert paused(pair.target) == {"default": "inventory"}


def test_a_pause_with_an_end_ends_in_the_target_too(pair: Pair) -> None:
    pair.plain.enqueue(1)
    pair.app.queues.pause("default", reason="inventory", until="2h")
    pair.opened()
    later = datetime.now(UTC) + timedelta(hours=3)
    for driver in (pair.source, pair.target):
        which = KvFilter(book=QUEUE_SETTINGS)
        assert {one.key for one in driver.run(driver.kv_list(which))} == {
            ":until:default", ":paused:default"
        }  # fmt: skip
        left = [one.key for one in driver.run(driver.kv_list(which, now=later))]
        assert left == [":until:default"], "a worker takes the end of the other one for the end"


def test_operator_actions_on_a_queue_during_a_move_apply_to_both_stores(pair: Pair) -> None:
    pair.plain.enqueue(1)
    route = pair.mover.drain(pair.opened())
    ours = paused(pair.source)
    assert ours["default"] is not None
    pair.app.queues.pause("default", reason="inventory")
    pair.app.queues.configure("default", concurrency=3, max_depth=7)
    with pair.app_of(pair.target) as there:
        assert there.queues.settings() == pair.app.queues.settings() != {}
    assert paused(pair.target) == {"default": "inventory"}
    pair.app.queues.resume("default")
    assert paused(pair.target) == {}
    assert paused(pair.source) == ours, "its jobs are in the target"
    pair.mover.sweep(route)
    back(pair)
    assert paused(pair.source) == {}


def test_a_key_is_freed_and_a_job_is_moved_wherever_they_are(pair: Pair) -> None:
    first = pair.plain.using(unique="k").enqueue(1)
    route = pair.mover.drain(pair.opened())
    assert pair.app.jobs.release_key("k") == first.id
    assert pair.app.jobs.release_key("k") is None
    acted = pair.app.driver.run(pair.app.driver.move([first.id, first.id], "mail", by="ada"))
    assert [one.took for one in acted] == [True, True]
    assert first.refresh().record.queue == "mail"
    route = pair.mover.turn_back(route)
    assert pair.app.jobs.cancel(first.id)
    assert route.step is MoveStep.BACK_OPEN


def test_a_limit_is_open_again_when_its_last_job_ends_while_a_sweep_looks(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.limited.enqueue(1)
    pair.mover.drain(pair.opened())
    claims = pair.claims(pair.target)
    route = pair.mover.route()
    assert route is not None
    route, _ = pair.mover.sweep(pair.mover.advance(pair.mover.turn_back(route)))
    assert route.limits
    true_open = holding.open_limits

    def ends_then(
        carrier: Carrier, shut: Mapping[str, GateSpec | None]
    ) -> Mapping[str, GateSpec | None]:
        still = true_open(carrier, shut)
        if claims:
            pair.complete(pair.target, claims)
            claims.clear()
        return still

    monkeypatch.setattr(holding, "open_limits", ends_then)
    pair.mover.end_back(pair.mover.drain(route))
    assert pair.app.limits.list() == []
    pair.limited.enqueue(2)
    assert len(pair.claim(pair.source)) == 1


def test_a_job_that_dies_while_a_sweep_looks_is_not_left_behind(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = pair.plain.enqueue(1)
    claims = pair.claims(pair.source)
    route = pair.opened()
    true_carry = Carrier.carry

    def carry(carrier: Carrier, wanted: Any, states: Sequence[JobState] = WAITING) -> int:
        count = true_carry(carrier, wanted, states)
        if JobState.DEAD in states and claims:
            claim = claims.pop()
            end = Finish(id=claim.id, token=claim.token, to=JobState.DEAD, what="discarded", reason="no")
            pair.source.run(pair.source.finish([end]))
        return count

    monkeypatch.setattr(Carrier, "carry", carry)
    pair.mover.drain(route)
    assert pair.ids(pair.target, (JobState.DEAD,)) == {job.id}


def test_an_effect_that_is_done_is_known_there_before_its_job_comes(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mover copied the effect after its start; then the attempt failed, and the job waits again."""
    job = pair.plain.enqueue(1)
    [claim] = pair.claims(pair.source)
    route = pair.opened()
    with pair.app.idempotency.begin("charge:42") as once:
        assert once.new
        pair.mover.sweep(route)
        once.result = "receipt"
    again = Finish(id=claim.id, token=claim.token, to=JobState.READY, what="released", counts=False)
    pair.source.run(pair.source.finish([again]))
    true_run: Callable[..., Any] = pair.target.run
    seen: list[tuple[bool, Any]] = []

    def run(sent: Any) -> Any:
        if sent.name == "move_in":
            with pair.app_of(pair.target) as there, there.idempotency.begin("charge:42") as same:
                seen.append((same.done, same.result))
        return true_run(sent)

    with monkeypatch.context() as patch:
        patch.setattr(pair.target, "run", run)
        pair.mover.drain(route)
    assert seen == [(True, "receipt")]
    assert pair.ids(pair.target) == {job.id}


def test_a_job_is_found_though_the_route_has_changed_since_it_was_read(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is in a parcel, and arrives while the producer reads the other store."""
    job = pair.plain.enqueue(1)
    driver: Any = pair.app.driver
    announced = pair.mover.begin()
    driver._read_at = float("-inf")
    driver.run(driver.results([KEYED.id]))
    assert driver._route.step is MoveStep.ANNOUNCED
    read_at = driver._read_at
    monkeypatch.setattr(driver, "_monotonic", lambda: read_at)  # what it has read stays new
    opened = pair.mover.advance(announced)
    true_run: Callable[..., Any] = pair.target.run
    with monkeypatch.context() as patch:
        patch.setattr(pair.target, "run", _dying(true_run, "move_in", False))
        with pytest.raises(KeyboardInterrupt):
            pair.mover.drain(opened)
    assert pair.ids(pair.source) == pair.ids(pair.target) == set()
    comes = iter([None])

    def run(sent: Any) -> Any:
        answer = true_run(sent)
        for _ in comes if sent.name == "cancel" else ():
            route = pair.mover.route()
            assert route is not None
            pair.mover.drain(route)
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(pair.target, "run", run)
        assert pair.app.jobs.cancel(job.id)
    assert job.refresh().state is JobState.CANCELLED


def test_a_bound_counts_both_parts_of_a_queue(pair: Pair) -> None:
    """The flow is not stored whole, so it stays."""
    with batch("b", on_complete=pair.plain.bind(9)) as members:
        members.enqueue(*(pair.plain.bind(n) for n in range(3)))
        pair.opened()
        pair.plain.enqueue(4)
        pair.app.queues.configure("default", max_depth=4)
        fresh = App(pair.source.describe())
        fresh.configure({"move_to": pair.target.describe()})
        with pytest.raises(QueueFull, match="4 jobs are ready"):
            fresh.task(name="plain")(plain).enqueue(5)
        fresh.close()


def test_many_records_are_copied_under_the_lock(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes 50 ms here; the lock has a lease of 5 s."""
    records = [KvRecord(book="idempotency", key=f"charge:{n}", body="done\n1") for n in range(200)]
    records += [KvRecord(book="webhook", key=f"ep_{n}", body="{}") for n in range(200)]
    pair.source.run(pair.source.kv_put(records))
    now = [0.0]

    def passes(seconds: float) -> None:
        now[0] += seconds

    true_run: Callable[..., Any] = pair.target.run

    def slow(sent: Any) -> Any:
        if sent.name == "kv_swap":
            passes(0.05)
        return true_run(sent)

    monkeypatch.setattr(pair.target, "run", slow)
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=passes)
    monkeypatch.setattr(mover_module, "time", clock)
    assert pair.opened().step is MoveStep.FREE
    assert now[0] > 20

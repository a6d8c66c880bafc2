"""Batches: callbacks once, members that join from inside, compositions and batches as members."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.engine.flow_kit import ONCE, Tasks, callbacks, notices
from winch import (
    App,
    ConfigError,
    Context,
    InvalidPayload,
    JobState,
    Retry,
    batch,
    chain,
    chord,
    flow,
    group,
    map_,
)
from winch.core.flow import Edge, Inputs, member_id, read_inputs
from winch.testing import virtual


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'never.db'}")


@pytest.fixture
def tasks(app: App) -> Tasks:
    return Tasks(app)


@pytest.mark.parametrize(
    "numbers, expected",
    [
        ([], ["notified complete", "notified success"]),
        ([1, 2], ["notified complete", "notified success"]),
        ([1, -1, -2], ["notified complete", "notified death"]),
    ],
)
def test_callbacks_of_a_batch_come_once(
    app: App, tasks: Tasks, numbers: list[int], expected: list[str]
) -> None:
    with virtual(app) as world:
        with batch("import", **callbacks(tasks)) as made:
            for number in numbers:
                made.enqueue(tasks.score.bind(number))
            world.run_once()
            assert [
                line for line in notices(tasks) if line != "notified death"
            ] == []  # it is still open
        world.run_all()
        assert notices(tasks) == expected
        for dead in world.jobs(state="dead"):
            dead.retry()
        world.run_all()
        assert notices(tasks) == expected  # a retried member triggers no second callback


@pytest.mark.parametrize("times", [1, 1000])
def test_a_batch_whose_note_cannot_be_kept_calls_back_all_the_same(
    app: App, tasks: Tasks, times: int
) -> None:
    with virtual(app) as world:
        with batch("import", **callbacks(tasks)) as made:
            made.enqueue(tasks.score.bind(1))
            world.lose_reply("kv_put", times)
        world.run_all()
        assert notices(tasks) == ["notified complete", "notified success"]


@pytest.mark.parametrize("last", [3, -1])
def test_a_callback_that_is_retried_too_early_waits_again(app: App, tasks: Tasks, last: int) -> None:
    with virtual(app) as world:
        with batch("import", **callbacks(tasks)) as made:
            made.enqueue(tasks.score.bind(2), tasks.score.using(delay="1h").bind(last))
            made.enqueue(tasks.score.using(delay="2h").bind(4))
        for job in world.jobs(task="notify"):
            job.cancel()
            job.retry()
        world.advance("30m")
        assert notices(tasks) == []
        world.advance("1h")
        assert notices(tasks) == (
            [] if last > 0 else ["notified death"]
        )  # not before the first has died
        world.run_all()
        assert notices(tasks) == [
            "notified complete",
            "notified success" if last > 0 else "notified death",
        ]


def test_a_callback_with_a_fifo_key_runs_after_the_members_of_its_batch(app: App, tasks: Tasks) -> None:
    """The order holds while an earlier job of the key ends and a later one waits for its turn."""
    notify_in_turn = tasks.notify.using(fifo="orders")
    with virtual(app) as world:
        notify_in_turn.enqueue("before")
        with batch("import", on_success=notify_in_turn.bind("success")) as made:
            made.enqueue(tasks.score.using(delay="1h").bind(2))
        notify_in_turn.enqueue("behind")
        world.advance("30m")
        assert tasks.did == ["notified before"]
        world.advance("1h")
        assert tasks.did == ["notified before", "score 2", "notified success", "notified behind"]


def test_a_member_with_the_fifo_key_of_a_callback_is_refused(app: App, tasks: Tasks) -> None:
    """The member would wait for the callback, and the callback for the member."""

    @app.task(retry=ONCE)
    def load(*, ctx: Context) -> None:
        ctx.batch.enqueue(tasks.score.using(fifo="orders").bind(1))

    with virtual(app) as world:
        with batch("import", on_complete=tasks.notify.using(fifo="orders").bind("complete")) as made:
            with pytest.raises(ConfigError, match="'orders': a callback of its batch has that key"):
                made.enqueue(tasks.score.using(fifo="orders").bind(1))
            made.enqueue(tasks.score.using(fifo="others").bind(2))
            made.enqueue(load.bind())  # type: ignore[call-arg]
        world.run_all()
        [dead] = world.jobs(state="dead")
        assert "a callback of its batch has that key" in dead.why()
        assert notices(tasks) == ["notified complete"]


@pytest.mark.parametrize("shape", ["chain", "group", "chord", "map", "flow", "batch"])
def test_members_of_a_flow_share_a_fifo_key(app: App, tasks: Tasks, shape: str) -> None:
    """Members run one at a time, in the given order and after earlier jobs of the key."""
    score, total = tasks.score.using(fifo="orders"), tasks.total.using(fifo="orders")
    expected = [f"score {number}" for number in range(4)]
    for _ in range(20):
        tasks.did.clear()
        with virtual(app) as world:
            calls = [score.bind(number) for number in range(4)]
            if shape == "chain":
                chain(*calls).enqueue()
            elif shape == "group":
                group(calls).enqueue()
            elif shape == "chord":
                chord(calls, total.partial()).enqueue()
                assert world.jobs(task="total")[0].state is JobState.BLOCKED
            elif shape == "map":
                made = flow()
                made.add_many(calls, parallel=2)
                made.enqueue()
            elif shape == "flow":
                made = flow()
                first = made.add(calls[0])
                after = [made.add(calls[1], after=[first]), made.add(calls[2], after=[first])]
                made.add(calls[3], after=after)
                made.enqueue()
            else:
                with batch("import", on_success=tasks.notify.bind("success")) as b:
                    b.enqueue(*calls)
            world.run_all()
            assert all(job.state is JobState.COMPLETED for job in world.jobs())
        assert [line for line in tasks.did if line.startswith("score")] == expected


def test_a_member_is_retried_while_the_one_after_it_has_the_turn_of_their_key(app: App) -> None:
    """The later one waits for the earlier one again, which needs the turn."""
    did: list[str] = []

    @app.task(retry=ONCE)
    def first() -> None:
        did.append("first")
        if len(did) == 1:
            raise ValueError("no")

    @app.task(retry=Retry.fixed("1h", attempts=3))
    def second() -> None:
        did.append("second")
        if len(did) == 2:
            raise ValueError("no")

    @app.task
    def third() -> None:
        did.append("third")

    with virtual(app) as world:
        calls = [task.using(fifo="orders").bind() for task in (first, second, third)]
        chain(*calls, on_failure="continue").enqueue()
        world.advance("30m")
        assert did == ["first", "second"]
        [dead] = world.jobs(state="dead")
        dead.retry()
        world.advance("20m")
        assert did == ["first", "second"]  # it is the turn of the second, which is to be retried
        world.advance("2h")
        assert all(job.state is JobState.COMPLETED for job in world.jobs())
    assert did == ["first", "second", "first", "second", "third"]


def test_a_batch_grows_from_inside(app: App, tasks: Tasks) -> None:
    with virtual(app) as world:
        with batch("tree", **callbacks(tasks)) as made:
            made.enqueue(tasks.grow.bind(3))  # type: ignore[call-arg]
        world.run_all()
        assert notices(tasks) == ["notified complete", "notified success"]
    assert tasks.did[-2:] == ["notified success", "notified complete"] or tasks.did[-1].startswith(
        "notified"
    )
    assert sum(line.startswith("grown") for line in tasks.did) == 7


def test_a_member_adds_to_its_batch_only_while_it_is_unfinished(app: App, tasks: Tasks) -> None:
    with virtual(app) as world:
        with batch("tree", **callbacks(tasks)) as made:
            made.enqueue(tasks.grow.bind(2))  # type: ignore[call-arg]
        world.crash(at="before finish")
        world.run_all()
        assert notices(tasks) == ["notified complete", "notified success"]
        assert len(world.jobs(task="grow")) == 5  # a repeat adds the same ones


@pytest.mark.parametrize("is_async", [False, True])
def test_a_member_adds_to_its_batch_call_by_call(app: App, tasks: Tasks, is_async: bool) -> None:
    added: list[tuple[str, bool]] = []

    @app.task(name="load")
    def load(*, ctx: Context) -> None:
        for number in range(5):
            added.extend((job.id, job.is_new) for job in ctx.batch.enqueue(tasks.score.bind(number)))

    @app.task(name="aload")
    async def aload(*, ctx: Context) -> None:
        for number in range(5):
            jobs = await ctx.batch.aenqueue(tasks.score.bind(number))
            added.extend((job.id, job.is_new) for job in jobs)

    with virtual(app) as world:
        with batch("pages", **callbacks(tasks)) as made:
            made.enqueue((aload if is_async else load).bind())  # type: ignore[call-arg]
        world.crash(at="before finish")
        world.run_all()
        assert [is_new for _, is_new in added] == [True] * 5 + [False] * 5
        assert added[:5] == [(job_id, True) for job_id, _ in added[5:]]  # a repeat adds the same ones
        assert len({job_id for job_id, _ in added}) == 5
        assert sorted(line for line in tasks.did if line.startswith("score")) == [
            f"score {number}" for number in range(5)
        ]
        assert notices(tasks) == ["notified complete", "notified success"]


def test_threads_of_a_member_add_to_its_batch_at_once(app: App, tasks: Tasks) -> None:
    @app.task(name="load")
    def load(*, ctx: Context) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: ctx.batch.enqueue(tasks.score.bind(number)), range(100)))

    with virtual(app) as world:
        with batch("pages", **callbacks(tasks)) as made:
            made.enqueue(load.bind())  # type: ignore[call-arg]
        world.run_all()
        assert len(world.jobs(task="score")) == 100
        assert notices(tasks) == ["notified complete", "notified success"]


def test_a_job_outside_a_batch_has_no_batch(app: App) -> None:
    @app.task(retry=ONCE)
    def alone(*, ctx: Context) -> None:
        ctx.batch.enqueue()

    with virtual(app) as world:
        job = alone.enqueue()  # type: ignore[call-arg]
        world.run_all()
        assert "is not a member of a batch" in job.why()


def test_inputs_name_those_before_by_name_and_count() -> None:
    flow_id = "019b76da-a800-7000-89e7-a54d87bdc1f7"
    inputs = Inputs(flow_id, (Edge("a", 2), Edge("b", policy="fail")))
    assert inputs.ids() == [
        (member_id(flow_id, "a", 0), "skip"),
        (member_id(flow_id, "a", 1), "skip"),
        (member_id(flow_id, "b", 0), "fail"),
    ]
    with pytest.raises(InvalidPayload, match="malformed"):
        read_inputs("{")


# -- none, one, and compositions inside batches --------------------------------------------------------


def test_an_empty_group_or_map_has_the_empty_result(app: App, tasks: Tasks) -> None:
    with virtual(app) as world:
        for empty in (
            group([]),
            group(iter(())),
            map_(tasks.score, []),
            map_(tasks.score, (), parallel=2),
        ):
            made = empty.enqueue()
            assert made.result() == []
            assert made.last == ()
            with pytest.raises(ConfigError, match="is enqueued already"):
                empty.enqueue()
        assert asyncio.run(group([]).aenqueue()).result() == []
        assert not world.jobs()
        assert chord([], tasks.total.partial()).enqueue().result() == 0
        assert chain(group([]), tasks.total.partial()).enqueue().result() == 0
        assert chain(map_(tasks.score, []), tasks.total.partial()).enqueue().result() == 0


def test_the_result_of_a_group_or_map_is_a_list_also_with_one_member(app: App, tasks: Tasks) -> None:
    with virtual(app):
        assert group([tasks.score.bind(3)]).enqueue().result() == [9]
        assert map_(tasks.score, [3]).enqueue().result() == [9]
        assert group([chain(tasks.score.bind(2), tasks.score.partial())]).enqueue().result() == [16]
        assert chain(tasks.score.bind(2), tasks.score.partial()).enqueue().result() == 16


def test_a_composition_is_a_member_of_a_batch_as_a_whole(app: App, tasks: Tasks) -> None:
    with virtual(app) as world:
        with batch(
            "import",
            on_success=tasks.notify.bind("success"),
            on_complete=tasks.notify.bind("complete"),
            on_death=tasks.notify.bind("death"),
        ) as members:
            last = members.enqueue(
                tasks.score.bind(1),
                chain(tasks.fetch.bind("u"), tasks.upload.partial()),
                chord([tasks.score.bind(n) for n in (2, 3)], tasks.total.partial()),
                group([]),
            )
            assert members.enqueue(map_(tasks.score, [4, 5], parallel=1))
        world.run_all()
        assert [job.refresh().result() for job in last] == [1, "b/<u>", 13]
        assert sorted(tasks.did[-2:]) == ["notified complete", "notified success"]
        assert len(app.flows.members(members.id)) == 8 + 3
    assert "notified death" not in tasks.did


@pytest.mark.parametrize("is_in_chain", [True, False])
def test_a_death_inside_a_composition_calls_on_death_of_its_batch(
    app: App, tasks: Tasks, is_in_chain: bool
) -> None:
    bad = tasks.score.bind(-1)
    with virtual(app) as world:
        with batch(
            "import",
            on_success=tasks.notify.bind("success"),
            on_complete=tasks.notify.bind("complete"),
            on_death=tasks.notify.bind("death"),
        ) as members:
            members.enqueue(chain(bad, tasks.score.partial()) if is_in_chain else group([bad]))
        world.run_all()
    assert sorted(tasks.did) == ["notified complete", "notified death", "score -1"]


def test_a_member_adds_a_composition_once_however_often_it_runs(app: App, tasks: Tasks) -> None:
    attempts: list[int] = []

    @app.task(name="splits", retry=Retry.fixed("1s", attempts=2))
    async def splits(*, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        await ctx.batch.aenqueue(chain(tasks.fetch.bind("a"), tasks.upload.partial()))
        await ctx.batch.aenqueue(chain(tasks.fetch.bind("b"), tasks.upload.partial()))
        if ctx.attempt == 1:
            raise ConnectionError("once more")

    with virtual(app) as world:
        with batch("import", on_success=tasks.notify.bind("success")) as members:
            members.enqueue(splits.bind())  # type: ignore[call-arg]
        world.run_all()
        assert attempts == [1, 2]
        assert len(world.jobs(task="fetch")) == len(world.jobs(task="upload")) == 2
    assert tasks.did[-1] == "notified success"
    assert sorted(tasks.did[:-1]) == ["fetch a", "fetch b", "upload <a>", "upload <b>"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_batch_waits_for_the_members_and_callbacks_of_the_one_inside(
    app: App, tasks: Tasks, fails: bool
) -> None:
    @app.task(name="slow")
    async def slow() -> None:
        await asyncio.sleep(5)
        tasks.did.append("slow")

    with virtual(app) as world:
        with batch(
            "outer",
            on_success=tasks.notify.bind("outer success"),
            on_complete=tasks.notify.bind("outer complete"),
            on_death=tasks.notify.bind("outer death"),
        ) as outer:
            outer.enqueue(tasks.fetch.bind("u"))
            with outer.batch(
                "inner", on_success=tasks.notify.bind("inner success"), on_complete=slow.bind()
            ) as inner:
                inner.enqueue(tasks.grow.bind(1), tasks.score.bind(-1 if fails else 1))  # type: ignore[call-arg]
        world.run_all()
        assert not [job for job in world.jobs() if not job.record.state.is_final]
        assert len(app.flows.members(inner.id)) == 4 + 2
        assert len(app.flows.members(outer.id)) == 5 + 3
    complete, slowly = tasks.did.index("notified outer complete"), tasks.did.index("slow")
    assert slowly < complete
    found = {word for word in tasks.did if word.startswith("notified")}
    assert found == (
        {"notified outer complete", "notified outer death"}
        if fails
        else {"notified outer complete", "notified outer success", "notified inner success"}
    )


def test_batches_inside_batches_of_every_depth(app: App, tasks: Tasks) -> None:
    with virtual(app) as world:
        # The second has no callbacks, and no members of its own.
        with batch("1", on_complete=tasks.notify.bind("1")) as one, one.batch("2") as two:
            with two.batch("3", on_complete=tasks.notify.bind("3")) as three:
                three.enqueue(tasks.grow.bind(2))  # type: ignore[call-arg]
            with two.batch("empty", on_complete=tasks.notify.bind("empty")):
                pass
        world.run_all()
        assert one.id != two.id != three.id
    grown = [place for place, word in enumerate(tasks.did) if word.startswith("grown")]
    assert max(grown) < tasks.did.index("notified 3") < tasks.did.index("notified 1")
    assert tasks.did.index("notified empty") < tasks.did.index("notified 1")
    assert len(grown) == 5


def test_wrong_uses_of_batches_are_refused(app: App, tasks: Tasks) -> None:
    @app.task(name="nests", retry=ONCE)
    def nests(*, ctx: Context) -> None:
        ctx.batch.batch("inner")

    with virtual(app) as world:
        with batch("outer", on_complete=tasks.notify.bind("outer")) as outer:
            with pytest.raises(ConfigError, match=r"with outer\.batch\('inner', …\) as inner"):
                outer.enqueue(batch("inner"))  # type: ignore[arg-type]
            outer.enqueue(nests.bind())  # type: ignore[call-arg]
        with pytest.raises(ConfigError, match="batch 'outer' is closed"):
            outer.enqueue(tasks.fetch.bind("u"))
        with pytest.raises(ConfigError, match="batch 'outer' is closed"):
            outer.batch("late")
        world.run_all()
        assert "it opens no batch inside it" in world.jobs(task="nests")[0].why()
        outer = batch("outer").__enter__()
        outer.batch("inner").__enter__().enqueue(tasks.fetch.bind("u"))
        with pytest.raises(ConfigError, match="batch 'inner' is open, and batch 'outer' around it ends"):
            outer.__exit__(None)


def test_a_fifo_key_of_an_outer_callback_is_refused_inside(app: App, tasks: Tasks) -> None:
    last, words = tasks.notify.using(fifo="k"), "cannot be a member with the FIFO key 'k'"
    with virtual(app), batch("outer", on_complete=last.bind("outer")) as outer:
        with pytest.raises(ConfigError, match=words):
            outer.enqueue(group([tasks.notify.bind("free"), last.bind("inside")]))
        with pytest.raises(ConfigError, match=words):
            outer.batch("inner", on_complete=last.bind("inner")).__enter__()
        with outer.batch("inner") as inner, pytest.raises(ConfigError, match=words):
            inner.enqueue(last.bind("inside"))

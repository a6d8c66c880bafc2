"""Compositions: every member after those before it, every callback once, whatever happens."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from winch import (
    App,
    ConfigError,
    Context,
    InvalidPayload,
    JobState,
    Middleware,
    Retry,
    Unique,
    WinchError,
    batch,
    chain,
    chord,
    flow,
    group,
    map_,
)
from winch.core.flow import Edge, Inputs, member_id, read_inputs
from winch.engine.flows.render import mermaid, svg
from winch.storage.params import NewJob
from winch.testing import World, virtual

ONCE = Retry.fixed("1s", attempts=1)


class Tasks:
    """Tasks that note what they do."""

    def __init__(self, app: App) -> None:
        self.did: list[str] = []

        @app.task(name="fetch")
        def fetch(url: str) -> str:
            self.did.append(f"fetch {url}")
            return f"<{url}>"

        @app.task(name="resize", retry=ONCE)
        def resize(data: str, width: int = 1) -> str:
            self.did.append(f"resize {data}")
            if width == 0:
                raise ValueError("no width")
            return f"{data}@{width}"

        @app.task(name="upload")
        def upload(data: str | None, bucket: str = "b") -> str:
            self.did.append(f"upload {data}")
            return f"{bucket}/{data}"

        @app.task(name="score", retry=ONCE)
        async def score(number: int) -> int:
            self.did.append(f"score {number}")
            if number < 0:
                raise ValueError("negative")
            return number * number

        @app.task(name="total")
        def total(numbers: list[int | None]) -> int:
            self.did.append("total")
            return sum(number or 0 for number in numbers)

        @app.task(name="told")
        def told(what: str) -> None:
            self.did.append(f"told {what}")

        @app.task(name="grow")
        async def grow(number: int, *, ctx: Context) -> None:
            if number:
                await ctx.batch.aenqueue(grow.bind(number - 1), grow.bind(0))  # type: ignore[call-arg]
            self.did.append(f"grown {number}")

        self.fetch, self.resize, self.upload = fetch, resize, upload
        self.score, self.total, self.told, self.grow = score, total, told, grow


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'never.db'}")


@pytest.fixture
def tasks(app: App) -> Tasks:
    return Tasks(app)


def test_a_chain_hands_results_on(app: App, tasks: Tasks) -> None:
    with virtual(app) as world:
        made = chain(
            tasks.fetch.bind("u"),
            tasks.resize.partial(width=100),
            tasks.upload.using(queue="slow").partial(bucket="x"),
        ).enqueue()
        states = [job.state for job in world.jobs()]
        assert Counter(states) == {JobState.READY: 1, JobState.BLOCKED: 2}
        assert "it waits for the jobs before it" in made.last[0].why()
        world.run_all()
        assert made.result() == "x/<u>@100"
    assert tasks.did == ["fetch u", "resize <u>", "upload <u>@100"]


@pytest.mark.parametrize(
    "policy, state, did",
    [
        ("skip", JobState.CANCELLED, ["resize u"]),
        ("fail", JobState.DEAD, ["resize u"]),
        ("continue", JobState.COMPLETED, ["resize u", "upload None"]),
    ],
)
def test_what_follows_a_failure_is_the_edges_policy(
    app: App, tasks: Tasks, policy: Any, state: JobState, did: list[str]
) -> None:
    with virtual(app) as world:
        calls = (tasks.resize.bind("u", width=0), tasks.upload.partial())
        made = chain(*calls, on_failure=policy).enqueue()
        world.run_all()
        assert made.last[0].refresh().state is state
        if policy != "continue":
            assert "which comes before it, is dead" in made.last[0].why()
    assert tasks.did == did


@pytest.mark.parametrize("shape", ["chord", "children"])
def test_a_result_is_kept_for_those_who_wait_for_it(app: App, shape: str) -> None:
    """Where the task keeps its jobs for an hour and the slowest of them takes a month."""

    @app.task(retention="1h")
    def square(n: int) -> int:
        return n * n

    @app.task(retention="1h")
    def total(found: list[int]) -> int:
        return sum(found)

    @app.task
    async def parent(*, ctx: Context) -> int:
        return sum(await ctx.gather(square.bind(2), square.using(delay="30d").bind(3)))

    with virtual(app) as world:
        if shape == "chord":
            calls = [square.bind(2), square.using(delay="30d").bind(3)]
            last = chord(calls, total.partial()).enqueue().last[0]
        else:
            last = parent.enqueue()  # type: ignore[call-arg]
        alone = square.enqueue(4)
        world.advance("2d")
        assert alone.id not in [job.id for job in world.jobs()]  # nobody waits for it: it is gone
        world.advance("28d")
        assert last.refresh().result() == 13


def test_a_burst_ends_after_the_callback(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/burst.db")
    app.migrate()
    tasks = Tasks(app)
    made = chord([tasks.score.bind(n) for n in range(3)], tasks.total.partial()).enqueue()
    app.run_worker(burst=True)
    assert made.last[0].refresh().result() == 5
    app.close()


def test_a_group_and_a_map_give_results_in_order(app: App, tasks: Tasks) -> None:
    with virtual(app) as world:
        made = group(tasks.score.bind(n) for n in range(4)).enqueue()
        mapped = map_(tasks.score, range(10), parallel=3).enqueue()
        world.run_once()
        world.run_all()
        assert made.result() == [0, 1, 4, 9]
        assert mapped.result() == [n * n for n in range(10)]


@pytest.mark.parametrize("shape", ["group", "map", "iterator"])
def test_a_wide_flow_gives_every_result(app: App, tasks: Tasks, shape: str) -> None:
    numbers = range(2501)
    with virtual(app) as world:
        if shape == "map":
            made = map_(tasks.score, numbers).enqueue()
        elif shape == "group":
            made = group([tasks.score.bind(n) for n in numbers]).enqueue()
        else:
            made = group(tasks.score.bind(n) for n in numbers).enqueue()
        assert len(made.last) == len(numbers)
        world.run_all()
        assert made.result() == [n * n for n in numbers]


def test_the_timeout_of_a_flow_is_for_all_its_jobs_together(app: App, tasks: Tasks) -> None:
    with virtual(app):
        delays = ("40s", "80s", "120s")
        made = group(tasks.score.using(delay=delay).bind(2) for delay in delays).enqueue()
        with pytest.raises(TimeoutError, match="is still scheduled"):
            made.result(timeout="100s")
        assert made.result(timeout="30s") == [4, 4, 4]


def test_a_map_runs_no_more_than_its_bound_at_a_time(app: App) -> None:
    running: list[int] = []
    most: list[int] = []

    @app.task(retry=ONCE)
    async def slow(number: int) -> None:
        import asyncio

        running.append(number)
        most.append(len(running))
        await asyncio.sleep(1)
        running.remove(number)
        if number == 2:
            raise ValueError  # its lane goes on

    with virtual(app, concurrency=10) as world:
        map_(slow, range(12), parallel=3).enqueue()
        world.run_all()
        assert len(world.jobs(state="completed")) == 11
    assert max(most) == 3


@pytest.mark.parametrize("members", [0, 1, 2, 1203])
def test_a_chord_calls_back_once_with_all_results(app: App, tasks: Tasks, members: int) -> None:
    with virtual(app) as world:
        calls = [tasks.score.bind(n) for n in range(members)]
        made = chord(calls, tasks.total.partial()).enqueue()
        world.run_all()
        assert made.result() == sum(n * n for n in range(members))
    assert tasks.did.count("total") == 1
    assert tasks.did[-1] == "total"


def test_any_shape_runs_in_its_order(app: App, tasks: Tasks) -> None:
    with virtual(app) as world:
        made = flow("release")
        first = made.add(tasks.fetch.bind("u"))
        left = made.add(tasks.upload.partial(bucket="left"), after=[first])
        right = made.add(tasks.upload.partial(bucket="right"), after=[first])
        made.add(tasks.total.bind([1]), after=[left, right])
        stored = made.enqueue()
        world.run_all()
        assert stored.result() == 1
        assert tasks.did[0] == "fetch u"
        assert tasks.did[-1] == "total"
        with pytest.raises(ConfigError, match="already"):
            made.enqueue()


def test_compositions_stand_inside_others(app: App, tasks: Tasks) -> None:
    with virtual(app) as world:
        made = chain(
            tasks.fetch.bind("a"),
            chord(
                [chain(tasks.resize.partial(width=w), tasks.upload.partial()) for w in (1, 2)],
                tasks.told.bind("inner"),
            ),
            tasks.told.bind("outer"),
        ).enqueue()
        world.run_all()
        states = [job.state for job in app.flows.members(made.id)]
    assert states == [JobState.COMPLETED] * 7
    assert told(tasks) == ["told inner", "told outer"]


def test_a_chord_of_chains_takes_their_last_results_in_order(app: App, tasks: Tasks) -> None:
    with virtual(app) as world:
        parts = [chain(tasks.fetch.bind(name), tasks.resize.partial()) for name in "abc"]
        f = flow("outer")
        inner = f.add(group(parts))
        after = f.add(tasks.told.bind("after"), after=[inner])
        f.add_many((tasks.score.bind(n) for n in range(3)), after=[after])
        handle = f.enqueue()
        world.run_all()
        assert handle.result() == [0, 1, 4]
    assert told(tasks) == ["told after"]
    with pytest.raises(ConfigError, match="cannot have a flow that is stored as a part"):
        chain(f)
    with pytest.raises(ConfigError, match="cannot have nothing as a part"):
        chain(flow())


def test_members_come_from_an_iterator_in_chunks(app: App, tasks: Tasks) -> None:
    made: list[int] = []
    stored: list[int] = []

    def calls() -> Iterator[Any]:
        for number in range(1700):
            made.append(number)
            yield tasks.score.bind(number % 7)

    class Watch(Middleware):
        def enqueue_all(self, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
            stored.append(len(made))
            return jobs

    app.use(Watch())
    with virtual(app) as world:
        handle = chord(calls(), tasks.total.partial()).enqueue()
        assert stored == [500, 1000, 1500, 1700]
        assert app.flows.get(handle.id).note.members == 1701
        world.run_all()
        assert handle.result() == sum((number % 7) ** 2 for number in range(1700))


def test_wrong_compositions_are_refused(app: App, tasks: Tasks) -> None:
    other = flow()
    node = other.add(tasks.fetch.bind("u"))
    with virtual(app):
        for empty in (flow(), chain()):
            with pytest.raises(ConfigError, match="has no members; add one before"):
                empty.enqueue()
        with pytest.raises(ConfigError, match="has returned"):
            flow().add(tasks.fetch.bind("u"), after=[node])
        with pytest.raises(ConfigError, match="on_failure"):
            other.add(tasks.upload.partial(), after=[node], on_failure="x")  # type: ignore[call-overload]
        with pytest.raises(InvalidPayload, match="no result before it"):
            chain(tasks.upload.partial()).enqueue()
        with pytest.raises(InvalidPayload, match="leave it out"):
            tasks.upload.partial(data="x")
        with pytest.raises(InvalidPayload, match="no argument 'colour'"):
            tasks.upload.partial(colour="x")
        with pytest.raises(ConfigError, match="delay"):
            chain(tasks.fetch.bind("u"), tasks.upload.using(delay="1h").partial())
        with pytest.raises(ConfigError, match="parallel"):
            map_(tasks.score, [1], parallel=0)
        with pytest.raises(ConfigError, match=r"calls made with task\.bind"):
            chain("fetch")  # type: ignore[arg-type]


def test_a_result_that_does_not_fit_is_told_by_the_job_that_takes_it(app: App, tasks: Tasks) -> None:
    with virtual(app) as world:
        made = chain(tasks.fetch.bind("u"), tasks.score.partial()).enqueue()
        world.run_all()
        assert made.last[0].refresh().state is JobState.DEAD
        assert "argument 'number': expected int, got str" in made.last[0].why()


def test_a_failed_part_can_be_retried_and_what_follows_waits_for_it(app: App, tasks: Tasks) -> None:
    with virtual(app) as world:
        made = chain(tasks.resize.bind("u", width=0), tasks.upload.partial()).enqueue()
        world.run_all()
        [dead] = world.jobs(state="dead")
        [skipped] = world.jobs(state="cancelled")
        skipped.retry()  # too early: it waits again
        app.dead.replay(task="resize", args={"data": "u", "width": 5})
        world.run_all()
        assert dead.refresh().state is JobState.COMPLETED
        assert made.result() == "b/u@5"


# -- batches -------------------------------------------------------------------------------------------


def told(tasks: Tasks) -> list[str]:
    return sorted(line for line in tasks.did if line.startswith("told"))


def callbacks(tasks: Tasks) -> dict[str, Any]:
    return {f"on_{kind}": tasks.told.bind(kind) for kind in ("success", "complete", "death")}


@pytest.mark.parametrize(
    "numbers, expected",
    [
        ([], ["told complete", "told success"]),
        ([1, 2], ["told complete", "told success"]),
        ([1, -1, -2], ["told complete", "told death"]),
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
            assert [line for line in told(tasks) if line != "told death"] == []  # it is still open
        world.run_all()
        assert told(tasks) == expected
        for dead in world.jobs(state="dead"):
            dead.retry()
        world.run_all()
        assert told(tasks) == expected  # a member that is brought back calls nobody again


@pytest.mark.parametrize("last", [3, -1])
def test_a_callback_that_is_retried_too_early_waits_again(app: App, tasks: Tasks, last: int) -> None:
    with virtual(app) as world:
        with batch("import", **callbacks(tasks)) as made:
            made.enqueue(tasks.score.bind(2), tasks.score.using(delay="1h").bind(last))
            made.enqueue(tasks.score.using(delay="2h").bind(4))
        for job in world.jobs(task="told"):
            job.cancel()
            job.retry()
        world.advance("30m")
        assert told(tasks) == []
        world.advance("1h")
        assert told(tasks) == ([] if last > 0 else ["told death"])  # not before the first has died
        world.run_all()
        assert told(tasks) == ["told complete", "told success" if last > 0 else "told death"]


def test_a_callback_with_a_fifo_key_runs_after_the_members_of_its_batch(app: App, tasks: Tasks) -> None:
    """Also where a job behind it in its key waits for its turn, and one before it ends meanwhile."""
    told_in_turn = tasks.told.using(fifo="orders")
    with virtual(app) as world:
        told_in_turn.enqueue("before")
        with batch("import", on_success=told_in_turn.bind("success")) as made:
            made.enqueue(tasks.score.using(delay="1h").bind(2))
        told_in_turn.enqueue("behind")
        world.advance("30m")
        assert tasks.did == ["told before"]
        world.advance("1h")
        assert tasks.did == ["told before", "score 2", "told success", "told behind"]


def test_a_member_with_the_fifo_key_of_a_callback_is_refused(app: App, tasks: Tasks) -> None:
    """It would wait for the callback, which waits for it."""

    @app.task(retry=ONCE)
    def load(*, ctx: Context) -> None:
        ctx.batch.enqueue(tasks.score.using(fifo="orders").bind(1))

    with virtual(app) as world:
        with batch("import", on_complete=tasks.told.using(fifo="orders").bind("complete")) as made:
            with pytest.raises(ConfigError, match="'orders': a callback of its batch has that key"):
                made.enqueue(tasks.score.using(fifo="orders").bind(1))
            made.enqueue(tasks.score.using(fifo="others").bind(2))
            made.enqueue(load.bind())  # type: ignore[call-arg]
        world.run_all()
        [dead] = world.jobs(state="dead")
        assert "a callback of its batch has that key" in dead.why()
        assert told(tasks) == ["told complete"]


@pytest.mark.parametrize("shape", ["chain", "group", "chord", "map", "flow", "batch"])
def test_members_of_a_flow_share_a_fifo_key(app: App, tasks: Tasks, shape: str) -> None:
    """They run one at a time, in the order in which they are given and after those before them."""
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
                with batch("import", on_success=tasks.told.bind("success")) as b:
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
        assert told(tasks) == ["told complete", "told success"]
    assert tasks.did[-2:] == ["told success", "told complete"] or tasks.did[-1].startswith("told")
    assert sum(line.startswith("grown") for line in tasks.did) == 7


def test_a_member_adds_to_its_batch_only_while_it_is_unfinished(app: App, tasks: Tasks) -> None:
    with virtual(app) as world:
        with batch("tree", **callbacks(tasks)) as made:
            made.enqueue(tasks.grow.bind(2))  # type: ignore[call-arg]
        world.crash(at="before finish")
        world.run_all()
        assert told(tasks) == ["told complete", "told success"]
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
        assert told(tasks) == ["told complete", "told success"]


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
        assert told(tasks) == ["told complete", "told success"]


def test_who_is_no_member_has_no_batch(app: App) -> None:
    @app.task(retry=ONCE)
    def alone(*, ctx: Context) -> None:
        ctx.batch.enqueue()

    with virtual(app) as world:
        job = alone.enqueue()  # type: ignore[call-arg]
        world.run_all()
        assert "no member of a batch" in job.why()


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


# -- killed --------------------------------------------------------------------------------------------


def test_killed_at_any_place_a_chord_and_a_batch_call_back_once(app: App, tasks: Tasks) -> None:
    def run(world: World) -> None:
        tasks.did.clear()
        made = chord([tasks.score.bind(n) for n in range(2)], tasks.total.partial()).enqueue()
        with batch("b", on_complete=tasks.told.bind("all")) as members:
            members.enqueue(tasks.score.bind(5), tasks.score.bind(-1))
        world.run_all()
        assert made.result() == 1
        assert set(told(tasks)) == {"told all"}
        assert len(world.jobs(task="told")) == 1
        order = {line: place for place, line in enumerate(tasks.did)}
        assert order["total"] > max(order["score 0"], order["score 1"])

    with virtual(app) as world:
        world.crash_at(1_000_000)
        run(world)
        places = world.places
    for place in range(1, places + 1):
        with virtual(app) as world:
            world.crash_at(place)
            run(world)


@pytest.mark.parametrize("seed", range(8))
def test_random_shapes_under_kills_keep_their_order(app: App, seed: int) -> None:
    rng = random.Random(seed)
    ended: dict[int, int] = {}
    moments = itertools.count()
    edges: dict[int, list[int]] = {}
    began: dict[int, list[int]] = {}

    @app.task(name="node", retry=Retry.fixed("1s", attempts=2, jitter="none"))
    async def node(number: int, fails: int, *, ctx: Context) -> int:
        began.setdefault(number, []).append(next(moments))
        if ctx.attempt <= fails:
            raise ValueError
        ended[number] = next(moments)
        return number

    with virtual(app, seed=seed, concurrency=3) as world:
        made = flow("random")
        nodes: list[Any] = []
        policies: list[Any] = []
        fates = []
        for number in range(12):
            before = rng.sample(range(number), min(number, rng.randrange(3)))
            edges[number] = before
            policy: Any = rng.choice(["skip", "fail", "continue"])
            fails = rng.choice([0, 0, 0, 1, 2])
            policies.append(policy)
            fates.append(fails)
            call = node.bind(number, fails)  # type: ignore[call-arg]
            nodes.append(made.add(call, after=[nodes[n] for n in before], on_failure=policy))
        made.enqueue()
        for _ in range(3):
            world.crash(at=rng.choice(["claim", "handler", "before finish", "after finish"]))
            world.advance("45s")
        world.run_all()
        states: dict[int, JobState] = {}
        expected: dict[int, JobState] = {}
        for number in range(12):
            [job] = [j for j in world.jobs(task="node") if f'"number":{number},' in j.record.args]
            states[number] = job.state
            good = all(expected[n] is JobState.COMPLETED for n in edges[number])
            if not good and policies[number] == "skip":
                expected[number] = JobState.CANCELLED
            elif not good and policies[number] == "fail":
                expected[number] = JobState.DEAD
            else:
                expected[number] = JobState.DEAD if fates[number] == 2 else JobState.COMPLETED
        assert states == expected
        for number, before in edges.items():
            for n in before:
                if number in began and n in ended:
                    assert min(began[number]) > ended[n] or len(began.get(n, [])) > 1


# -- looking and acting --------------------------------------------------------------------------------


def test_a_flow_can_be_looked_at_cancelled_and_retried(app: App, tasks: Tasks) -> None:
    with virtual(app) as world:
        made = chain(tasks.fetch.bind("u"), tasks.upload.partial(), name="two").enqueue()
        [info] = app.flows.list()
        assert (info.id, info.note.name, info.note.kind) == (made.id, "two", "chain")
        assert app.flows.get(made.id).state == "running"
        assert app.flows.cancel(made.id, reason="enough") == 2
        assert app.flows.get(made.id).state == "cancelled"
        assert app.flows.retry(made.id) == 2
        world.run_all()
        assert app.flows.get(made.id).state == "completed"
        assert made.result() == "b/<u>"
        with pytest.raises(WinchError, match="no flow with id"):
            app.flows.get(member_id(made.id, "nothing"))


def test_a_flow_can_be_drawn(app: App, tasks: Tasks) -> None:
    with virtual(app):
        calls = [tasks.score.bind(n) for n in range(3)]
        made = chord(calls, tasks.total.partial()).enqueue()
        info = app.flows.get(made.id)
        assert mermaid(info.note) == (
            'flowchart TD\n    n0["score × 3"]\n    n1["total"]\n    n0 --> n1\n'
        )
        picture = svg(info.note)
        assert picture.startswith("<svg ")
        assert picture.count("<rect") == 2
        assert picture.count("<line") == 1


@pytest.mark.parametrize(
    "options, words",
    [
        ({"unique": "k"}, "takes no unique key"),
        ({"id": "01234567-89ab-7cde-8f01-23456789abcd"}, "takes no id=, got 01234567"),
        ({"conn": object()}, "takes no conn=; pass conn= where the whole is enqueued"),
    ],
)
def test_a_member_keeps_every_option_or_is_refused(
    app: App, tasks: Tasks, options: dict[str, Any], words: str
) -> None:
    call = tasks.score.using(**options).bind(1)
    with virtual(app) as world:
        for compose in (
            lambda: chain(call),
            lambda: group([call]),
            lambda: chord([tasks.score.bind(1)], call),
            lambda: map_(tasks.score.using(**options), [1]).enqueue(),
            lambda: flow().add(call),
            lambda: batch().enqueue(call),
            lambda: batch(on_complete=call).__enter__(),
        ):
            with pytest.raises(ConfigError, match=f"score: a job of a composition {words}"):
                compose()
        assert not world.jobs()


def test_a_task_with_a_unique_key_of_its_own_is_no_member(app: App) -> None:
    @app.task(name="once", unique=Unique("n"))
    def once(n: int) -> None: ...

    with pytest.raises(ConfigError, match="once: a job of a composition takes no unique key"):
        group([once.bind(1)])


def test_a_delay_is_refused_where_a_job_waits_for_others(app: App, tasks: Tasks) -> None:
    late = tasks.score.using(delay="1s")
    words = "score: a job that waits for others takes no delay= and no run_at="
    with virtual(app) as world:
        with pytest.raises(ConfigError, match=words):
            map_(late, [1, 2, 3], parallel=2)
        with pytest.raises(ConfigError, match=words):
            flow().add_many([late.bind(1)], parallel=1)
        with pytest.raises(ConfigError, match=words):
            batch(on_success=late.bind(1)).__enter__()
        assert not world.jobs()
        assert group([late.bind(1), late.bind(2)]).enqueue().result() == [1, 4]


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
            on_success=tasks.told.bind("success"),
            on_complete=tasks.told.bind("complete"),
            on_death=tasks.told.bind("death"),
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
        assert sorted(tasks.did[-2:]) == ["told complete", "told success"]
        assert len(app.flows.members(members.id)) == 8 + 3
    assert "told death" not in tasks.did


@pytest.mark.parametrize("is_in_chain", [True, False])
def test_a_batch_is_told_of_a_death_inside_a_composition(
    app: App, tasks: Tasks, is_in_chain: bool
) -> None:
    bad = tasks.score.bind(-1)
    with virtual(app) as world:
        with batch(
            "import",
            on_success=tasks.told.bind("success"),
            on_complete=tasks.told.bind("complete"),
            on_death=tasks.told.bind("death"),
        ) as members:
            members.enqueue(chain(bad, tasks.score.partial()) if is_in_chain else group([bad]))
        world.run_all()
    assert sorted(tasks.did) == ["score -1", "told complete", "told death"]


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
        with batch("import", on_success=tasks.told.bind("success")) as members:
            members.enqueue(splits.bind())  # type: ignore[call-arg]
        world.run_all()
        assert attempts == [1, 2]
        assert len(world.jobs(task="fetch")) == len(world.jobs(task="upload")) == 2
    assert tasks.did[-1] == "told success"
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
            on_success=tasks.told.bind("outer success"),
            on_complete=tasks.told.bind("outer complete"),
            on_death=tasks.told.bind("outer death"),
        ) as outer:
            outer.enqueue(tasks.fetch.bind("u"))
            with outer.batch(
                "inner", on_success=tasks.told.bind("inner success"), on_complete=slow.bind()
            ) as inner:
                inner.enqueue(tasks.grow.bind(1), tasks.score.bind(-1 if fails else 1))  # type: ignore[call-arg]
        world.run_all()
        assert not [job for job in world.jobs() if not job.record.state.is_final]
        assert len(app.flows.members(inner.id)) == 4 + 2
        assert len(app.flows.members(outer.id)) == 5 + 3
    complete, slowly = tasks.did.index("told outer complete"), tasks.did.index("slow")
    assert slowly < complete
    told = {word for word in tasks.did if word.startswith("told")}
    assert told == (
        {"told outer complete", "told outer death"}
        if fails
        else {"told outer complete", "told outer success", "told inner success"}
    )


def test_batches_inside_batches_of_every_depth(app: App, tasks: Tasks) -> None:
    with virtual(app) as world:
        # The second has no callbacks, and no members of its own.
        with batch("1", on_complete=tasks.told.bind("1")) as one, one.batch("2") as two:
            with two.batch("3", on_complete=tasks.told.bind("3")) as three:
                three.enqueue(tasks.grow.bind(2))  # type: ignore[call-arg]
            with two.batch("empty", on_complete=tasks.told.bind("empty")):
                pass
        world.run_all()
        assert one.id != two.id != three.id
    grown = [place for place, word in enumerate(tasks.did) if word.startswith("grown")]
    assert max(grown) < tasks.did.index("told 3") < tasks.did.index("told 1")
    assert tasks.did.index("told empty") < tasks.did.index("told 1")
    assert len(grown) == 5


def test_wrong_uses_of_batches_are_refused(app: App, tasks: Tasks) -> None:
    @app.task(name="nests", retry=ONCE)
    def nests(*, ctx: Context) -> None:
        ctx.batch.batch("inner")

    with virtual(app) as world:
        with batch("outer", on_complete=tasks.told.bind("outer")) as outer:
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
    last, words = tasks.told.using(fifo="k"), "cannot be a member with the FIFO key 'k'"
    with virtual(app), batch("outer", on_complete=last.bind("outer")) as outer:
        with pytest.raises(ConfigError, match=words):
            outer.enqueue(group([tasks.told.bind("free"), last.bind("inside")]))
        with pytest.raises(ConfigError, match=words):
            outer.batch("inner", on_complete=last.bind("inner")).__enter__()
        with outer.batch("inner") as inner, pytest.raises(ConfigError, match=words):
            inner.enqueue(last.bind("inside"))

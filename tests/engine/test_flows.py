"""Compositions: every member after those before it, every callback once, whatever happens."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.engine.flow_kit import ONCE, Tasks, notices
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
from winch.core.flow import member_id
from winch.engine.flows.render import mermaid, svg
from winch.storage.params import NewJob
from winch.testing import World, virtual


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
def test_the_policy_of_an_edge_decides_what_follows_a_failure(
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
def test_a_result_is_kept_until_its_dependents_have_read_it(app: App, shape: str) -> None:
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
        assert alone.id not in [job.id for job in world.jobs()]  # no job waits for it: it is gone
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
                tasks.notify.bind("inner"),
            ),
            tasks.notify.bind("outer"),
        ).enqueue()
        world.run_all()
        states = [job.state for job in app.flows.members(made.id)]
    assert states == [JobState.COMPLETED] * 7
    assert notices(tasks) == ["notified inner", "notified outer"]


def test_a_chord_of_chains_takes_their_last_results_in_order(app: App, tasks: Tasks) -> None:
    with virtual(app) as world:
        parts = [chain(tasks.fetch.bind(name), tasks.resize.partial()) for name in "abc"]
        f = flow("outer")
        inner = f.add(group(parts))
        after = f.add(tasks.notify.bind("after"), after=[inner])
        f.add_many((tasks.score.bind(n) for n in range(3)), after=[after])
        handle = f.enqueue()
        world.run_all()
        assert handle.result() == [0, 1, 4]
    assert notices(tasks) == ["notified after"]
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


def test_a_result_of_the_wrong_type_kills_the_job_that_receives_it(app: App, tasks: Tasks) -> None:
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


# -- killed --------------------------------------------------------------------------------------------


def test_killed_at_any_place_a_chord_and_a_batch_call_back_once(app: App, tasks: Tasks) -> None:
    def run(world: World) -> None:
        tasks.did.clear()
        made = chord([tasks.score.bind(n) for n in range(2)], tasks.total.partial()).enqueue()
        with batch("b", on_complete=tasks.notify.bind("all")) as members:
            members.enqueue(tasks.score.bind(5), tasks.score.bind(-1))
        world.run_all()
        assert made.result() == 1
        assert set(notices(tasks)) == {"notified all"}
        assert len(world.jobs(task="notify")) == 1
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

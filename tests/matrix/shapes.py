"""The columns of the matrix: the ways in which jobs are stored, and what each way promises."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.matrix.trial import CALLS, FAKTORY, PUSHED, Evidence, Mark, Trial
from winch import ChildFailed, Context, JobState, WinchError, batch, chain, chord, flow, group, map_

PARALLEL = 2
# A batch's members take so long that a callback which does not wait for them begins too early.
MEMBER = 1.5


@dataclass(frozen=True)
class Shape:
    """`store(trial, conn)` stores the calls; `judge` names each promise of the shape that was broken.

    `takes_conn`: the shape as a whole can be part of the caller's transaction. `before` names the
    calls that must have ended before a call begins.
    """

    name: str
    store: Callable[[Trial, object], None]
    judge: Callable[[Evidence], Iterator[str]]
    takes_conn: bool = True
    calls: int = CALLS
    before: Callable[[int], tuple[int, ...]] = lambda n: ()


# -- storing -------------------------------------------------------------------------------------------


def _alone(trial: Trial, conn: object) -> None:
    for n in range(CALLS):
        with_conn = {} if conn is None else {"conn": conn}
        trial.handles.append(trial.using(n, **with_conn).enqueue(n=n))


def _many(trial: Trial, conn: object) -> None:
    trial.handles += trial.app.enqueue_many(trial.calls(), conn=conn)


def _outside(queue: str) -> Callable[[Trial, object], None]:
    """Stored together, in a queue whose jobs run outside of Winch's workers."""

    def store(trial: Trial, conn: object) -> None:
        calls = []
        for n in range(CALLS):
            own = trial.pair.feature.options(trial, n).get("queue", queue)
            calls.append(trial.using(n, queue=own).bind(n=n))
        trial.handles += trial.app.enqueue_many(calls, conn=conn)

    return store


def _chain(trial: Trial, conn: object) -> None:
    calls = [trial.call(0), *(trial.partial(n) for n in range(1, CALLS))]
    trial.result_of = chain(*calls, name=trial.name).enqueue(conn=conn).result


def _group(trial: Trial, conn: object) -> None:
    trial.result_of = group(trial.calls(), name=trial.name).enqueue(conn=conn).result


def _chord(trial: Trial, conn: object) -> None:
    members = trial.calls()[:-1]
    trial.result_of = chord(members, trial.partial(CALLS - 1)).enqueue(conn=conn).result


def _map(trial: Trial, conn: object) -> None:
    made = map_(trial.using(trial.pair.feature.alike), range(CALLS), parallel=PARALLEL, name=trial.name)
    trial.result_of = made.enqueue(conn=conn).result


def _flow(trial: Trial, conn: object) -> None:
    made = flow(trial.name)
    first = made.add(trial.call(0))
    left = made.add(trial.partial(1), after=[first])
    right = made.add(trial.partial(2), after=[first])
    made.add(trial.partial(3), after=[left, right])
    trial.result_of = made.enqueue(conn=conn).result


async def _note(before: Any, n: int, ctx: Context) -> None:
    """A callback does nothing but leave its marks."""


def _batch_member(trial: Trial, conn: object) -> None:
    calls = trial.calls()
    with batch(
        trial.name,
        on_success=trial.add_task("success", _note).bind(),
        on_complete=trial.add_task("complete", _note).bind(),
        on_death=trial.add_task("death", _note).bind(),
        conn=conn,
    ) as members:
        trial.handles += members.enqueue(*calls[:2])
        for call in calls[2:]:
            trial.handles += members.enqueue(call)


def _batch_callback(trial: Trial, conn: object) -> None:
    """Two callbacks with the feature, and one more job with it that is stored behind them."""

    async def work(before: Any, n: int, ctx: Context) -> None:
        await asyncio.sleep(MEMBER)

    member = trial.add_task("member", work)
    success, complete, behind = trial.calls()[:3]
    with batch(trial.name, on_success=success, on_complete=complete, conn=conn) as members:
        members.enqueue(member.bind(n=0), member.bind(n=1))
        trial.handles += trial.app.enqueue_many([behind], conn=conn)


def _gather(trial: Trial, conn: object) -> None:
    async def parent(before: Any, n: int, ctx: Context) -> Any:
        try:
            return await ctx.gather(*trial.calls())
        except ChildFailed:
            return "a child failed"
        except WinchError as refusal:
            trial.refusal = refusal
            return None

    job = trial.add_task("parent", parent).enqueue()
    trial.result_of = job.result


def _ctx_batch(trial: Trial, conn: object) -> None:
    async def parent(before: Any, n: int, ctx: Context) -> None:
        try:
            for call in trial.calls():
                trial.handles += await ctx.batch.aenqueue(call)
        except WinchError as refusal:
            trial.refusal = refusal

    complete = trial.add_task("complete", _note)
    member = trial.add_task("parent", parent)
    with batch(trial.name, on_complete=complete.bind()) as members:
        members.enqueue(member.bind())


def _schedule(trial: Trial, conn: object) -> None:
    n = trial.pair.feature.alike
    options: dict[str, Any] = {} if conn is None else {"conn": conn}
    options |= trial.pair.feature.options(trial, n)
    trial.app.schedules.add(trial.name, task=trial.task, every="1s", args={"n": n}, **options)


# -- judging -------------------------------------------------------------------------------------------


def _each_once(evidence: Evidence) -> Iterator[str]:
    """Each call is one job, which ended as it should and returned once or never ran."""
    expected = evidence.pair.feature.ends(evidence.pair.shape.name)
    for n, state in expected.items():
        found = evidence.records.get(n, ())
        if len(found) != 1:
            yield f"call {n} has {len(found)} jobs"
            continue
        [record] = found
        if record.state is not state:
            yield f"call {n} is {record.state}, not {state}: {evidence.why(record)}"
            continue
        runs = [mark for mark in evidence.marks("end", "call") if mark.n == n]
        wanted = 1 if state is JobState.COMPLETED else 0
        if len(runs) != wanted:
            yield f"call {n} is {record.state}, and its handler returned {len(runs)} times"
        if not wanted and any(mark.n == n for mark in evidence.marks("start", "call")):
            yield f"call {n} is {record.state}, and its handler began"
    for n in set(evidence.records) - set(expected):
        yield f"a job of call {n} is there, and no such call was made"
    for n in expected:
        for earlier in evidence.pair.shape.before(n):
            if evidence.ended(n=earlier) > evidence.started(n=n):
                yield f"call {n} began before call {earlier}, which comes before it, had ended"


NOTHING = [None] * CALLS


def _has_result(result: Any, nothing: Any = None) -> Callable[[Evidence], Iterator[str]]:
    """`nothing`: the result where no handler returns anything."""

    def judge(evidence: Evidence) -> Iterator[str]:
        yield from _each_once(evidence)
        wanted = result if evidence.pair.feature.returns else nothing
        if evidence.is_as_planned() and evidence.result != wanted:
            yield f"the result is {evidence.result!r}, not {wanted!r}"

    return judge


def _map_ran(evidence: Evidence) -> Iterator[str]:
    yield from _has_result([[n, n] for n in range(CALLS)], NOTHING)(evidence)
    if (most := most_at_once(evidence.marks(role="call"))) > PARALLEL:
        yield f"{most} members ran at once, and parallel={PARALLEL}"


def most_at_once(marks: list[Mark]) -> int:
    """How many handlers ran at the same time, at most."""
    running = most = 0
    for mark in sorted(marks, key=lambda mark: mark.at):
        running += 1 if mark.kind == "start" else -1
        most = max(most, running)
    return most


def _called_back(evidence: Evidence, *roles: str) -> Iterator[str]:
    """These callbacks ran once, after every member had ended."""
    for role in roles:
        runs = evidence.marks("end", role)
        if len(runs) != 1:
            yield f"the {role} callback ran {len(runs)} times"
        elif evidence.started(role) < max(evidence.ended(), evidence.ended("parent")):
            yield f"the {role} callback began before all members had ended"
    for record in evidence.around:
        if not record.state.is_final:
            yield f"{record.task} is still {record.state}: {evidence.why(record)}"


def _members_ran(evidence: Evidence) -> Iterator[str]:
    yield from _each_once(evidence)
    yield from _called_back(evidence, "complete", *(["success"] if evidence.is_as_planned() else []))
    unwanted = ["death"] if evidence.is_as_planned() else ["death", "success"]
    for role in unwanted:
        if evidence.marks("start", role):
            yield f"the {role} callback ran"


def _callbacks_ran(evidence: Evidence) -> Iterator[str]:
    yield from _each_once(evidence)
    if len(evidence.marks("end", "member")) != 2:
        yield "not both members of the batch ran once"
    for n in (0, 1):
        if evidence.started(n=n) < evidence.ended("member"):
            yield f"callback {n} began before the members had ended"


def _children_ran(evidence: Evidence) -> Iterator[str]:
    yield from _each_once(evidence)
    wanted: Any = [[None, n] for n in range(CALLS)] if evidence.pair.feature.returns else NOTHING
    if not evidence.is_as_planned():
        wanted = "a child failed"
    if evidence.result != wanted:
        yield f"the parent's result is {evidence.result!r}, not {wanted!r}"


def _grown_ran(evidence: Evidence) -> Iterator[str]:
    yield from _each_once(evidence)
    yield from _called_back(evidence, "complete")


def _windows_ran(evidence: Evidence) -> Iterator[str]:
    [state] = evidence.pair.feature.ends(evidence.pair.shape.name).values()
    if len(evidence.jobs) < 2:
        yield f"{len(evidence.jobs)} jobs were enqueued in the time of two windows"
    for record in evidence.jobs:
        if record.state is not state:
            yield f"{record.id} is {record.state}, not {state}: {evidence.why(record)}"
    ran = len(evidence.marks("end", "call"))
    wanted = len(evidence.jobs) if state is JobState.COMPLETED else 0
    if ran != wanted:
        yield f"{len(evidence.jobs)} jobs are {state}, and their handlers returned {ran} times"


def _nested(calls: int) -> Any:
    result: Any = None
    for n in range(calls):
        result = [result, n]
    return result


def _diamond() -> Any:
    first = [None, 0]
    return [[[first, 1], [first, 2]], 3]


SHAPES = (
    Shape("alone", _alone, _each_once),
    Shape("enqueue_many", _many, _each_once),
    Shape("chain", _chain, _has_result(_nested(CALLS)), before=lambda n: tuple(range(n))),
    Shape("group", _group, _has_result([[None, n] for n in range(CALLS)], NOTHING)),
    Shape(
        "chord",
        _chord,
        _has_result([[[None, n] for n in range(CALLS - 1)], CALLS - 1]),
        before=lambda n: tuple(range(CALLS - 1)) if n == CALLS - 1 else (),
    ),
    Shape("map_", _map, _map_ran),
    Shape("batch member", _batch_member, _members_ran),
    Shape("batch callback", _batch_callback, _callbacks_ran, calls=3),
    Shape(
        "flow node",
        _flow,
        _has_result(_diamond()),
        before=lambda n: ((), (0,), (0,), (0, 1, 2))[n],
    ),
    Shape("gather child", _gather, _children_ran, takes_conn=False),
    Shape("ctx.batch", _ctx_batch, _grown_ran, takes_conn=False),
    Shape("pushed", _outside(PUSHED), _each_once),
    Shape("faktory", _outside(FAKTORY), _each_once),
    Shape("schedule", _schedule, _windows_ran, takes_conn=False, calls=1),
)

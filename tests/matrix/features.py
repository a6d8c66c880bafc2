"""The rows of the matrix: what one job may have, and what each of these promises."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any

from tests.matrix.shapes import most_at_once
from tests.matrix.trial import CALLS, FAKTORY, LABELS, LATE, NEEDED, PUSHED, Evidence, Trial
from winch import Breaker, Context, JobState, Limit, Rate
from winch.core.gates.uses import gates_of

DELAY = timedelta(milliseconds=500)
LIMIT = 2
# The slots of the one worker, and those that one job of the feature takes.
CONCURRENCY, SLOTS = 48, 20
RATE, PER = 2, timedelta(seconds=1)
HOLD = timedelta(milliseconds=600)
SHORT = "50ms"
# The shapes whose jobs run outside of Winch's workers.
OUTSIDE = (PUSHED, FAKTORY)
# The shapes whose calls may have an id of the caller's.
GIVEN = ("alone", "enqueue_many", "pushed", "faktory")
# A store reads its clock a moment before it writes an event.
TOLERANCE = timedelta(milliseconds=50)

COMPLETED, CANCELLED = JobState.COMPLETED, JobState.CANCELLED


def _nothing(*_: Any) -> Iterator[str]:
    yield from ()


def _plain_store(trial: Trial) -> None:
    trial.pair.shape.store(trial, None)


def _all_complete(shape: str) -> dict[int, JobState]:
    number = {"batch callback": 3, "schedule": 1}.get(shape, CALLS)
    return dict.fromkeys(range(number), COMPLETED)


@dataclass(frozen=True)
class Feature:
    """`options` are those of `using(…)` for one call, `task_options` those of the task. `store` stores
    the pair, `judge` names each promise of the feature that was broken, `ends` gives how each call ends,
    `misbehave` is what the handler does besides its work, `alike` is the call whose options all jobs of
    a map or a schedule have.
    """

    name: str
    options: Callable[[Trial, int], dict[str, Any]] = lambda trial, n: {}
    task_options: Callable[[Trial], dict[str, Any]] = lambda trial: {}
    store: Callable[[Trial], None] = _plain_store
    judge: Callable[[Evidence], Iterator[str]] = _nothing
    ends: Callable[[str], dict[int, JobState]] = _all_complete
    misbehave: Callable[[int, Context], None] = lambda n, ctx: None
    alike: int = 0
    # Whether a handler returns something: one outside of Winch's workers does not.
    returns: bool = True


# -- delay, priority, tenant ---------------------------------------------------------------------------


def _delayed(evidence: Evidence) -> Iterator[str]:
    for record in evidence.jobs:
        enqueued, claimed = evidence.first(record.id, "enqueued"), evidence.first(record.id, "claimed")
        if enqueued is None or claimed is None:
            yield f"{record.id} was never claimed"
        elif (waited := claimed.at - enqueued.at) < DELAY - TOLERANCE:
            yield f"{record.id} was claimed {waited} after it was stored, and its delay is {DELAY}"


def _kept(field: str, wanted: Callable[[Trial], Any]) -> Callable[[Evidence], Iterator[str]]:
    """Each job was stored with this option."""

    def judge(evidence: Evidence) -> Iterator[str]:
        for record in evidence.jobs:
            found = getattr(record, field)
            if found != wanted(evidence.trial):
                yield f"{record.id} was stored with {field}={found!r}"

    return judge


# -- unique, given id, conn= ---------------------------------------------------------------------------


def _unique_ends(shape: str) -> dict[int, JobState]:
    return {0: COMPLETED}


def _one_live(evidence: Evidence) -> Iterator[str]:
    """The calls after the first found its job. The checker decides whether two were ever live."""
    yield from _kept("unique_key", lambda trial: trial.name)(evidence)
    handles = evidence.trial.handles
    if handles and [handle.is_new for handle in handles] != [True] + [False] * (len(handles) - 1):
        yield f"{[handle.is_new for handle in handles]} of the calls made a new job"
    if len({handle.id for handle in handles}) > 1:
        yield "the calls returned different jobs"


def given_id(trial: Trial, n: int) -> uuid.UUID:
    """An id as an application draws it: in no order."""
    return uuid.uuid5(uuid.NAMESPACE_URL, f"{trial.name}/{n}")


def _store_twice(trial: Trial) -> None:
    """As a caller does whose first answer was lost."""
    _plain_store(trial)
    if trial.pair.shape.name in GIVEN:
        _plain_store(trial)


def _one_per_id(evidence: Evidence) -> Iterator[str]:
    for n, records in evidence.records.items():
        wanted = str(given_id(evidence.trial, n))
        for record in records:
            if record.id != wanted:
                yield f"call {n} is job {record.id}, and its id was given as {wanted}"
    news = [handle.is_new for handle in evidence.trial.handles]
    if news != [True] * CALLS + [False] * CALLS:
        yield f"the calls and their repeats were answered is_new={news}"


class _Undone(Exception):
    pass


def _store_in_transactions(trial: Trial) -> None:
    """Once in a transaction that commits, once in one that is rolled back."""
    shape = trial.pair.shape
    if not trial.app.driver.capabilities.joins_transactions or not shape.takes_conn:
        shape.store(trial, object())
        return
    twin = Trial(trial.app, trial.recorder, trial.pair, suffix="-undone")
    try:
        with trial.app.transaction() as conn:
            shape.store(twin, conn)
            raise _Undone
    except _Undone:
        pass
    with trial.app.transaction() as conn:
        shape.store(trial, conn)


def _undone(evidence: Evidence) -> Iterator[str]:
    for record in evidence.undone:
        yield f"{record.task} was stored by a transaction that was rolled back"


def _conn_of_call(trial: Trial, n: int) -> dict[str, Any]:
    """A shape that has no conn= of its own gets it with the call."""
    return {} if trial.pair.shape.takes_conn else {"conn": object()}


# -- order and gates -----------------------------------------------------------------------------------


def _fifo(trial: Trial, n: int) -> dict[str, Any]:
    """Where ids may be given, every other call has one: the order is that of the calls all the same."""
    options: dict[str, Any] = {"fifo": trial.name}
    if trial.pair.shape.name in GIVEN and n % 2:
        options["id"] = given_id(trial, n)
    return options


def _in_order(evidence: Evidence) -> Iterator[str]:
    yield from _kept("fifo", lambda trial: trial.name)(evidence)
    runs = [
        (evidence.started(n=n), evidence.ended(n=n), n)
        for n in evidence.pair.feature.ends(evidence.pair.shape.name)
    ]
    order = [n for *_, n in sorted(runs)]
    if order != sorted(order):
        yield f"the calls of one FIFO key ran in the order {order}"
    for (_, end, one), (start, _, other) in pairwise(sorted(runs)):
        if start < end:
            yield f"call {other} began while call {one} of its FIFO key ran"


def _has_gate(evidence: Evidence, kind: str) -> Iterator[str]:
    for record in evidence.jobs:
        if kind not in [use.kind for use in gates_of(record.options)]:
            yield f"{record.id} was stored without its {kind}"


def _limited(evidence: Evidence) -> Iterator[str]:
    yield from _has_gate(evidence, "limit")
    if (most := most_at_once(evidence.marks(role="call"))) > LIMIT:
        yield f"{most} handlers ran at once, and the limit is {LIMIT}"


def _rated(evidence: Evidence) -> Iterator[str]:
    yield from _has_gate(evidence, "rate")
    yield from _at_rate(evidence)


def _at_rate(evidence: Evidence) -> Iterator[str]:
    claims = sorted(
        event.at
        for record in evidence.jobs
        for event in evidence.events.get(record.id, ())
        if event.kind == "claimed"
    )
    for early, late in zip(claims, claims[RATE:], strict=False):
        if late - early < PER - TOLERANCE:
            yield f"{RATE + 1} claims within {late - early}, and {RATE} in {PER} are allowed"


def _slotted(evidence: Evidence) -> Iterator[str]:
    most = most_at_once(evidence.marks(role="call"))
    if most * SLOTS > CONCURRENCY:
        yield f"{most} handlers of {SLOTS} slots each ran at once, and the worker has {CONCURRENCY}"


def bounded_queue(shape: str) -> str:
    """The queue of a pair of which each worker runs so many jobs at once."""
    return f"bounded-{shape}".replace(" ", "-")


def rated_queue(shape: str) -> str:
    """The queue of a pair of which each worker starts so many jobs in a time."""
    return f"rated-{shape}".replace(" ", "-")


def _in_queue(of: Callable[[str], str]) -> Callable[[Evidence], Iterator[str]]:
    return _kept("queue", lambda trial: of(trial.pair.shape.name))


def _bounded(evidence: Evidence) -> Iterator[str]:
    yield from _in_queue(bounded_queue)(evidence)
    if (most := most_at_once(evidence.marks(role="call"))) > LIMIT:
        yield f"{most} handlers ran at once, and the worker's bound of their queue is {LIMIT}"


def _queue_rated(evidence: Evidence) -> Iterator[str]:
    yield from _in_queue(rated_queue)(evidence)
    yield from _at_rate(evidence)


def late_queue(shape: str) -> str:
    """The queue of jobs that are to expire."""
    return f"{LATE}-{shape}" if shape in OUTSIDE else LATE


# -- where a job runs ----------------------------------------------------------------------------------


def _ran_outside(queue: str) -> Callable[[Evidence], Iterator[str]]:
    def judge(evidence: Evidence) -> Iterator[str]:
        yield from _kept("queue", lambda trial: queue)(evidence)
        for record in evidence.jobs:
            if record.state is COMPLETED and record.id not in evidence.trial.outside:
                yield f"{record.id} has completed, and it never ran outside"

    return judge


def _ran_where_needed(evidence: Evidence) -> Iterator[str]:
    yield from _kept("queue", lambda trial: NEEDED)(evidence)
    for record in evidence.jobs:
        for event in evidence.events.get(record.id, ()):
            if event.kind == "claimed" and event.session not in evidence.trial.labelled:
                yield f"{record.id} was claimed by a worker without the label {LABELS}"


def _fail_first(n: int, ctx: Context) -> None:
    if n == 0 and ctx.attempt == 1:
        raise ConnectionError("the downstream system is away")


def _held(evidence: Evidence) -> Iterator[str]:
    """After the failure that trips the breaker nothing is claimed until the hold is over."""
    yield from _has_gate(evidence, "scope")
    own = {record.id for record in evidence.jobs}
    merged = sorted(
        (event for job in own for event in evidence.events.get(job, ())), key=lambda event: event.seq
    )
    trip = next((e for e in merged if e.kind == "finished" and e.state is JobState.RETRYING), None)
    if trip is None:
        yield "no attempt failed, so the breaker was never tried"
        return
    for event in merged:
        # PostgreSQL writes the failure before it locks the breaker: a claim may commit in between.
        is_beside = event.at < trip.at + TOLERANCE
        is_held = event.seq > trip.seq and event.at < trip.at + HOLD - TOLERANCE
        if event.kind == "claimed" and is_held and not is_beside:
            yield f"{event.job} was claimed {event.at - trip.at} after the trip; the hold is {HOLD}"
    for record in evidence.jobs:
        wanted = 2 if record.id == trip.job else 1
        if evidence.pair.shape.name != "schedule" and record.attempt != wanted:
            yield f"{record.id} took {record.attempt} attempts, not {wanted}: a hold cost one"


# -- expiry --------------------------------------------------------------------------------------------


def _expires(trial: Trial, n: int) -> dict[str, Any]:
    return {"expires": SHORT if n == 1 else "1h", "queue": late_queue(trial.pair.shape.name)}


def _expired_ends(shape: str) -> dict[int, JobState]:
    if shape == "schedule":
        return {1: CANCELLED}
    if shape == "map_":
        return dict.fromkeys(range(CALLS), CANCELLED)
    ends = _all_complete(shape) | {1: CANCELLED}
    # What comes after a member that did not complete is skipped.
    skipped = {"chain": (2, 3), "chord": (3,), "flow node": (3,)}.get(shape, ())
    return ends | dict.fromkeys(skipped, CANCELLED)


def _expired(evidence: Evidence) -> Iterator[str]:
    for record in evidence.records.get(1, ()):
        if not (record.reason or "").startswith("expired at "):
            yield f"{record.id} did not expire: {record.reason}"


FEATURES = (
    Feature("plain"),
    Feature("delay", lambda trial, n: {"delay": DELAY}, judge=_delayed),
    Feature("priority", lambda trial, n: {"priority": 7}, judge=_kept("priority", lambda trial: 7)),
    Feature(
        "unique",
        lambda trial, n: {"unique": trial.name},
        judge=_one_live,
        ends=_unique_ends,
    ),
    Feature("fifo", _fifo, judge=_in_order),
    Feature("limit", task_options=lambda trial: {"limit": Limit(LIMIT)}, judge=_limited),
    Feature("rate", task_options=lambda trial: {"limit": Rate(RATE, per=PER)}, judge=_rated),
    Feature("slots", task_options=lambda trial: {"slots": SLOTS}, judge=_slotted),
    Feature(
        "queue limit",
        lambda trial, n: {"queue": bounded_queue(trial.pair.shape.name)},
        judge=_bounded,
    ),
    Feature(
        "queue rate",
        lambda trial, n: {"queue": rated_queue(trial.pair.shape.name)},
        judge=_queue_rated,
    ),
    Feature(
        "tenant",
        lambda trial, n: {"tenant": trial.name},
        judge=_kept("tenant", lambda trial: trial.name),
    ),
    Feature(
        "breaker",
        task_options=lambda trial: {
            "breaker": Breaker(scope=trial.name, failures=0.2, of=1, hold=HOLD),
        },
        judge=_held,
        misbehave=_fail_first,
    ),
    Feature("expires", _expires, judge=_expired, ends=_expired_ends, alike=1),
    Feature(
        "given id",
        lambda trial, n: {"id": given_id(trial, n)},
        store=_store_twice,
        judge=_one_per_id,
    ),
    Feature(
        "needs",
        lambda trial, n: {"queue": NEEDED},
        task_options=lambda trial: {"needs": LABELS},
        judge=_ran_where_needed,
    ),
    Feature("pushed", lambda trial, n: {"queue": PUSHED}, judge=_ran_outside(PUSHED), returns=False),
    Feature("faktory", lambda trial, n: {"queue": FAKTORY}, judge=_ran_outside(FAKTORY), returns=False),
    Feature("conn=", _conn_of_call, store=_store_in_transactions, judge=_undone),
)

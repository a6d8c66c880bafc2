"""One pair of features on one store: its tasks, its calls, and what its handlers noted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from lab.history import Recorder, Violation
from winch import App, Context, Job, Retry, WinchError
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.storage.params import Event

if TYPE_CHECKING:
    from tests.matrix.features import Feature
    from tests.matrix.shapes import Shape

CALLS = 4
QUEUE = "matrix"
# Paused until every job that is to expire has expired.
LATE = "late"
# The queues whose jobs are posted to a URL, and those that clients of Faktory fetch from.
PUSHED, FAKTORY = "pushed", "faktory"
# Served by a worker with what its jobs need, and by one without.
NEEDED, LABELS = "needed", {"gpu": "h100"}
RETRY = Retry.fixed("100ms", attempts=3, jitter="none")
# Long enough that two handlers that may run at the same time do.
WORK = 0.03


@dataclass(frozen=True)
class Pair:
    """A feature of one job, and the shape in which jobs are stored."""

    feature: Feature
    shape: Shape

    def __str__(self) -> str:
        return f"{self.feature.name}/{self.shape.name}"


@dataclass(frozen=True)
class Mark:
    """A handler began or ended. `role` is "call" for the pair's own calls."""

    kind: Literal["start", "end", "error"]
    role: str
    n: int
    job: str
    attempt: int
    at: float


class Trial:
    """A pair on one store. `store` is the only thing that the caller of Winch does."""

    def __init__(self, app: App, recorder: Recorder, pair: Pair, *, suffix: str = "") -> None:
        self.app = app
        self.pair = pair
        self.name = f"{pair}{suffix}".replace(" ", "-").replace("=", "")
        self.marks: list[Mark] = []
        self.refusal: WinchError | None = None
        self.handles: list[Job[Any]] = []
        # The jobs that ran outside of Winch's workers.
        self.outside: set[str] = set()
        # The sessions of workers with the label that a job needs.
        self.labelled: set[str] = set()
        # What to ask for the result when everything has ended.
        self.result_of: Callable[..., Any] | None = None
        self.recorder = recorder
        self.task: Any = self.add_task("call", self._work, **pair.feature.task_options(self))

    def add_task(self, role: str, body: Callable[..., Any], **options: Any) -> Any:
        """A task of this trial whose runs are noted under `role`."""

        async def run(before: Any = None, n: int = 0, *, ctx: Context) -> Any:
            number = before if isinstance(before, int) else n
            with self.noted(role, number, ctx):
                return await body(before, number, ctx)

        options = {"queue": QUEUE, "retry": RETRY, **options}
        return self.app.task(name=f"{self.name}:{role}", **options)(run)

    @contextmanager
    def noted(self, role: str, n: int, ctx: Context) -> Iterator[None]:
        """Around a handler: when it began, and how it ended."""
        self._mark("start", role, n, ctx)
        try:
            with self.recorder.run(ctx):
                yield
        except BaseException:
            self._mark("error", role, n, ctx)
            raise
        self._mark("end", role, n, ctx)

    async def _work(self, before: Any, n: int, ctx: Context) -> Any:
        await asyncio.sleep(WORK)
        self.pair.feature.misbehave(n, ctx)
        return [before, n]

    def _mark(self, kind: Literal["start", "end", "error"], role: str, n: int, ctx: Context) -> None:
        self.marks.append(Mark(kind, role, n, ctx.job_id, ctx.attempt, time.monotonic()))

    # -- calls -------------------------------------------------------------------------------------

    def using(self, n: int = 0, **more: Any) -> Any:
        """The task with the feature's options for call number `n`."""
        options = {**self.pair.feature.options(self, n), **more}
        return self.task.using(**options) if options else self.task

    def call(self, n: int) -> Any:
        return self.using(n).bind(n=n)

    def calls(self) -> list[Any]:
        return [self.call(n) for n in range(CALLS)]

    def partial(self, n: int) -> Any:
        """A call that takes the result before it."""
        return self.using(n).partial(n=n)

    # -- storing -----------------------------------------------------------------------------------

    def store(self) -> None:
        """Store the pair's jobs, or keep the refusal."""
        try:
            self.pair.feature.store(self)
        except WinchError as refusal:
            self.refusal = refusal


@dataclass(frozen=True)
class Evidence:
    """What became of one trial: the pair's own jobs by number, the jobs around them, and every mark."""

    trial: Trial
    records: Mapping[int, Sequence[JobRecord]]
    around: Sequence[JobRecord]
    events: Mapping[str, Sequence[Event]]
    result: Any
    violations: Sequence[Violation] = ()
    undone: Sequence[JobRecord] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def pair(self) -> Pair:
        return self.trial.pair

    @property
    def jobs(self) -> list[JobRecord]:
        """The pair's own jobs, by number."""
        return [record for _, some in sorted(self.records.items()) for record in some]

    def why(self, record: JobRecord) -> str | None:
        """Why the job is where it is."""
        return self.reasons.get(record.id, record.reason)

    def marks(self, kind: str | None = None, role: str | None = None) -> list[Mark]:
        return [
            mark
            for mark in self.trial.marks
            if (kind is None or mark.kind == kind) and (role is None or mark.role == role)
        ]

    def first(self, job: str, kind: str) -> Event | None:
        return next((event for event in self.events.get(job, ()) if event.kind == kind), None)

    def ended(self, role: str = "call", n: int | None = None) -> float:
        """When the last of these handlers returned; the beginning of time where none did."""
        return max(
            (mark.at for mark in self.marks("end", role) if n is None or mark.n == n), default=0.0
        )

    def started(self, role: str = "call", n: int | None = None) -> float:
        """When the first of these handlers began; the end of time where none did."""
        some = (mark.at for mark in self.marks("start", role) if n is None or mark.n == n)
        return min(some, default=float("inf"))

    def is_as_planned(self) -> bool:
        """Whether every job of the pair is expected to complete."""
        expected = self.pair.feature.ends(self.pair.shape.name)
        return all(state is JobState.COMPLETED for state in expected.values())


def number_of(record: JobRecord) -> int:
    """Which call this job is: `n`, or the item of a map."""
    args: dict[str, Any] = msgspec.json.decode(record.args)
    before = args.get("before")
    number = before if isinstance(before, int) else args.get("n", 0)
    assert isinstance(number, int)
    return number

"""What a running handler is given by annotation (`ctx: Context`): facts about its attempt, and ways to
report on it."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol

from winch.core import steps
from winch.core.errors import ConfigError, LostClaim
from winch.core.gates.uses import holds_something
from winch.core.job import LOG_LIMIT, Note
from winch.core.outcome import Cancel, Discard, RetryAfter, Snooze
from winch.core.values import codec
from winch.core.values.duration import Duration, parse_duration
from winch.engine.base.encryption import seal
from winch.engine.tasks.transaction import Transaction
from winch.storage.params import Answer, ClaimRef, Standing

if TYPE_CHECKING:
    from winch.core.job import Claim, JobRecord
    from winch.core.policy.retry import Retry
    from winch.engine.durable.steps import Steps
    from winch.engine.flows.batch import Batch
    from winch.engine.tasks.runtime import Runtime
    from winch.engine.tasks.task import Bound, Task
    from winch.storage.protocol import Driver

RAISE: Any = ...
"""In place of a default: raise instead."""
MAX_CHECKPOINT_BYTES = 256 * 1024
MAX_LOG_LINE = 8 * 1024


class Reports:
    """What an attempt has reported and the store does not know yet."""

    __slots__ = ("_log", "_monotonic", "_numbers", "_progress", "signed_at")

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._progress: str | None = None
        self._log: list[str] = []
        self._numbers = itertools.count(1)
        self._monotonic = monotonic
        self.signed_at: float = monotonic()

    def sign(self) -> None:
        """The handler makes progress: what a task's heartbeat timeout waits for."""
        self.signed_at = self._monotonic()

    def next_number(self) -> int:
        """The number of the next note with a checkpoint or history: one series for the whole claim."""
        return next(self._numbers)

    def progress(self, text: str) -> None:
        self._progress = text  # only the latest matters

    def line(self, text: str) -> None:
        self._log.append(text)

    def take(self) -> Note | None:
        """What is to be reported now, if anything."""
        if self._progress is None and not self._log:
            return None
        note = Note(progress=self._progress, log=self.take_log())
        self._progress = None
        return note

    def take_log(self) -> str | None:
        lines, self._log = self._log, []
        return "".join(lines)[-LOG_LIMIT:] if lines else None


class RunningAttempt(Protocol):
    """What a context reads of the attempt that the worker runs."""

    steps: Steps | None
    """Once it makes durable steps."""

    @property
    def deadline(self) -> float | None: ...

    @property
    def reports(self) -> Reports: ...

    @property
    def is_stopping(self) -> bool: ...

    def finished(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ContextTools:
    """What a worker gives to the contexts of all its attempts."""

    runtime: Runtime
    store: Callable[[], Driver]
    monotonic: Callable[[], float]
    steps: Callable[[RunningAttempt, Claim, Task[Any, Any]], Steps]
    batch: Callable[[Context], Batch]


class Context:
    """One attempt of one job, as its handler sees it.

        @app.task
        def export(ctx: winch.Context, year: int) -> None:
            ctx.progress(10, "reading")

    Winch supplies it when the first parameter is `ctx: Context`; callers of `enqueue` leave it out.
    `worker` is the id of the session that runs the attempt.
    """

    def __init__(
        self,
        claim: Claim,
        attempt: RunningAttempt,
        task: Task[Any, Any],
        tools: ContextTools,
        *,
        retry: Retry,
        worker: str,
    ) -> None:
        """`claim` has its arguments and its checkpoint in plain text."""
        self._claim = claim
        self._attempt = attempt
        self._task = task
        self._tools = tools
        self._retry = retry
        self.worker: str = worker
        self.resources: Mapping[str, Any] = tools.runtime.resources
        self._reports = attempt.reports
        self._store = tools.store
        self._claims: int | None = None
        self._log: AttemptLog | None = None
        self._before_steps: str | None = None
        """The checkpoint that was stored in this attempt; the first step takes it into the history."""

    # -- facts -------------------------------------------------------------------------------------

    @property
    def job_id(self) -> str:
        """The id of the job."""
        return self._claim.id

    @property
    def task(self) -> str:
        """The name of the task."""
        return self._claim.task

    @property
    def queue(self) -> str:
        """The queue that the job came from."""
        return self._claim.queue

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._claim.attempt

    @property
    def fence(self) -> int:
        """A number that grows with every claim of the job. Other systems can refuse a lower one as too
        late.
        """
        return self._claim.fence

    @property
    def idempotency_key(self) -> str:
        """A key that is the same in every attempt of the job. Pass it to services that accept one."""
        return self._claim.id

    @property
    def created_at(self) -> datetime:
        """When the job was enqueued, in UTC."""
        return self._claim.created_at

    @property
    def claims(self) -> int:
        """How often the job was claimed, this time included: snoozes, releases and crashes count, which
        `attempt` leaves out. Reads the job's history from the store, once; use `aclaims` on a loop."""
        if self._claims is None:
            driver = self._store()
            [record] = driver.run(driver.get([self.job_id]))
            self._claims = _claims(record)
        return self._claims

    async def aclaims(self) -> int:
        """`claims` without blocking the event loop."""
        if self._claims is None:
            driver = self._store()
            [record] = await driver.arun(driver.get([self.job_id]))
            self._claims = _claims(record)
        return self._claims

    @property
    def queue_latency(self) -> timedelta:
        """How long the job was due before this attempt started."""
        return max(self._claim.claimed_at - self._claim.run_at, timedelta(0))

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the job, as they were when it was enqueued."""
        return dict(self._claim.headers)

    @property
    def time_left(self) -> timedelta | None:
        """How long this attempt may still run; None without a timeout."""
        deadline = self._attempt.deadline
        if deadline is None:
            return None
        return timedelta(seconds=max(0.0, deadline - self._tools.monotonic()))

    @property
    def cancelled(self) -> bool:
        """True after a cancel request, or after the worker lost the job. Stop when convenient."""
        return self._attempt.is_stopping

    def gives_up(self, error: BaseException) -> bool:
        """Whether the job has no attempt left if this one ends with `error`."""
        if isinstance(error, Snooze):
            return False
        if isinstance(error, Cancel | Discard):
            return True
        is_asked = isinstance(error, RetryAfter)
        policy = self._retry if is_asked else self._retry.for_error(error)
        age = datetime.now(UTC) - self._claim.created_at
        return policy is None or policy.gives_up(self._claim.attempt, age)

    @property
    def last_checkpoint(self) -> Any:
        """The state that an earlier attempt stored with `checkpoint`, or None."""
        text = self._claim.checkpoint
        history = steps.read(text)
        if history is not None:
            text = history.checkpoint
        return None if text is None else codec.loads(text, what="the checkpoint")

    # -- reports -----------------------------------------------------------------------------------

    def progress(self, percent: float, message: str | None = None) -> None:
        """Report how far the job is, from 0 to 100, for the dashboard and `winch jobs show`.

        Returns at once. The worker stores the latest value twice a second.
        """
        if not 0 <= percent <= 100:
            raise ConfigError(f"progress must be from 0 to 100, got {percent!r}")
        sent: dict[str, object] = {"percent": percent}
        if message is not None:
            sent["message"] = codec.clean_text(message, MAX_LOG_LINE // 2)
        self._reports.sign()
        self._reports.progress(codec.dumps(sent, what="progress", limit=MAX_LOG_LINE))
        self._task.client.publish_progress(self._claim, percent, message)

    def beat(self) -> None:
        """Report that the handler is alive, for a task with `heartbeat=`. Returns at once.

        `progress` and `checkpoint` report it too.
        """
        self._reports.sign()

    @property
    def log(self) -> AttemptLog:
        """A logger. Its lines are stored with this attempt and also go to the worker's log."""
        if self._log is None:
            self._log = AttemptLog(self._claim, self._reports)
        return self._log

    def checkpoint(self, state: object) -> None:
        """Store the state of the work. The next attempt reads it from `last_checkpoint`.

        Returns when the state is stored. Raises LostClaim when the job belongs to another worker by
        now.
        """
        if (durable := self._steps_so_far) is not None:
            durable.save_checkpoint(_checkpoint(state))
            return
        driver, text = self._store(), _checkpoint(state)
        self._saved(driver.run(driver.note(self._ref, self._note(text))), text)

    async def acheckpoint(self, state: object) -> None:
        """`checkpoint` without blocking the event loop."""
        if (durable := self._steps_so_far) is not None:
            await durable.save_checkpoint(_checkpoint(state))
            return
        driver, text = self._store(), _checkpoint(state)
        self._saved(await driver.arun(driver.note(self._ref, self._note(text))), text)

    def still_mine(self) -> bool:
        """Ask the store whether this attempt still owns the job. Use it before an act that cannot be
        undone.
        """
        driver = self._store()
        return driver.run(driver.standing([self._ref])) == [Standing.LIVE]

    async def astill_mine(self) -> bool:
        """`still_mine` without blocking the event loop."""
        driver = self._store()
        return await driver.arun(driver.standing([self._ref])) == [Standing.LIVE]

    def transaction(self, session: object = None) -> Transaction:
        """A transaction that commits your writes, the job's completion and its child jobs together.

            with ctx.transaction() as tx:
                tx.execute("UPDATE account SET balance = balance - 5 WHERE id = 7")

        Pass your own session or connection to use its outermost transaction; Winch commits it at the
        end of the block. Keep the block well within the lease.
        """
        return Transaction(
            self._store(),
            self._ref,
            self._attempt.finished,
            session,
            lambda text: self._sealed(text, "result"),
            self._tools.runtime.lease().total_seconds(),
            has_gates=self._claim.has_permit or holds_something(self._claim.options),
        )

    @property
    def batch(self) -> Batch:
        """The batch that this job belongs to. Add members to it with `ctx.batch.enqueue(…)`."""
        if (known := self.__dict__.get("_batch")) is None:
            # In one step: of two threads that make one, both get the same.
            known = self.__dict__.setdefault("_batch", self._tools.batch(self))
        made: Batch = known
        return made

    @property
    def claim_ref(self) -> ClaimRef:
        """The proof of this attempt's claim. The store refuses it after another worker has claimed the
        job.
        """
        return self._ref

    @property
    def _ref(self) -> ClaimRef:
        return ClaimRef(self._claim.id, self._claim.token)

    # -- durable steps -----------------------------------------------------------------------------

    def step(
        self,
        fn: Callable[..., Any],
        *args: Any,
        undo: Callable[..., Any] | None = None,
        retry: Retry | None = None,
        name: str | None = None,
        transaction: object = None,
    ) -> Any:
        """Call `fn(*args)` once in the life of this job. Later attempts get the stored result.

            charge = ctx.step(charge_card, order_id, undo=refund)

        - The result is stored as JSON and read back as the type that `fn` is annotated with.
        - An error fails the attempt. With `retry` the step alone is retried; StepFailed follows the last
          failure.
        - `undo` receives the result, or the arguments if there is none. It runs when the job fails for
          good or is cancelled, newest step first.
        - `name` is required for a lambda. It keeps a step recognisable when steps change their order.
        - With `transaction`, `fn` receives a transaction first; its writes commit with the step. Pass
          True or your own session.

        Await it in an async handler.
        """
        return self._steps.step(fn, args, undo=undo, retry=retry, name=name, transaction=transaction)

    def sleep(self, duration: Duration, *, name: str = "sleep") -> Any:
        """Wait this long, even for days, without holding a worker.

        The attempt ends here, and `finally` blocks run. A new attempt continues from here when the time
        is over. It repeats the handler from the top and takes the results of the steps before from the
        store. Await it in an async handler.
        """
        span = parse_duration(duration, "sleep")
        return self._steps.sleep(span, name)

    def wait_for(self, signal: str, *, timeout: Duration | None = None, default: Any = RAISE) -> Any:
        """Wait for a signal of this name and return its payload.

        The job holds no worker while it waits. A signal that was sent before counts too, and each
        signal is taken once. After `timeout` it returns `default`, or raises SignalTimeout without a
        default. Await it in an async handler.
        """
        span = None if timeout is None else parse_duration(timeout, "timeout")
        return self._steps.wait_for(signal, span, default)

    def spawn(self, call: Bound[Any], *, name: str = "spawn") -> Any:
        """Enqueue a child once in the life of this job, and return its Job without waiting for it.

        Await it in an async handler; that gives the Job, not its result.
        """
        return self._steps.spawn(call, name)

    def gather(self, *calls: Bound[Any], name: str = "gather") -> Any:
        """Enqueue children, wait for all of them, and return their results in order.

            totals = ctx.gather(*(count.bind(shard) for shard in shards))

        The job holds no worker while it waits. Each child is enqueued once in the life of the job.
        Raises ChildFailed, after all are final, when some are dead or cancelled. Await it in an async
        handler.
        """
        return self._steps.gather(calls, name)

    def restart(self, *args: Any, **kwargs: Any) -> Any:
        """End this run and begin the job anew with these arguments, as `enqueue` takes them.

            ctx.restart(cursor=page.next)

        Does not return. The job keeps its id, its unique key and its place in flows; its steps, its
        checkpoint and its count of attempts begin anew, and nothing that was done before is undone any
        more. Use it where a workflow would go on for ever. Await it in an async handler.
        """
        return self._steps.restart(args, kwargs)

    def version(self, change: str, newest: int = 2) -> int:
        """Choose the path of a workflow whose code has changed.

        Returns `newest` for a job that comes here for the first time. Returns 1 for a job that passed
        this place before the change. The answer is the same in every attempt.
        """
        if newest < 2:
            raise ConfigError(f"newest must be 2 or more: 1 is how it was before, got {newest}")
        return self._steps.version(change, newest)

    @property
    def _steps(self) -> Steps:
        made = self._tools.steps(self._attempt, self._claim, self._task)
        if self._before_steps is not None:
            made.history.checkpoint, self._before_steps = self._before_steps, None
        return made

    @property
    def _steps_so_far(self) -> Steps | None:
        """The history, where this job has one: its checkpoint is kept inside."""
        if not steps.is_history(self._claim.checkpoint):
            return self._attempt.steps
        return self._tools.steps(self._attempt, self._claim, self._task)

    def _note(self, text: str) -> Note:
        return Note(checkpoint=self._sealed(text, "checkpoint"), number=self._reports.next_number())

    def _sealed(self, text: str, field: Literal["checkpoint", "result"]) -> str:
        claim, keys = self._claim, self._tools.runtime.keys()
        return seal(keys, text, job=claim.id, task=claim.task, field=field)

    def _saved(self, answer: Answer, text: str) -> None:
        if answer is not Answer.TOOK:
            raise LostClaim(
                f"job {self._claim.id} no longer belongs to this attempt; the checkpoint is not stored"
            )
        self._before_steps = text
        self._reports.sign()


def _claims(record: JobRecord | None) -> int:
    """The claims that the history holds, and the one that runs now."""
    if record is None:
        return 1
    return 1 + sum(entry.claimed_at is not None for entry in record.history)


def _checkpoint(state: object) -> str:
    what = "the checkpoint"
    text = codec.dumps(state, what=what, limit=MAX_CHECKPOINT_BYTES)
    codec.check_kept(state, codec.loads(text, what=what), what, has_type=False)
    return text


class AttemptLog(logging.LoggerAdapter[logging.Logger]):
    """A logger. Its lines are stored with the attempt, where `winch jobs show` and the dashboard find
    them.
    """

    def __init__(self, claim: Claim, reports: Reports) -> None:
        super().__init__(logging.getLogger("winch.job"), {})
        self._claim = claim
        self._reports = reports

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Write one line at this level."""
        if level >= logging.INFO:
            text = str(msg) % args if args else str(msg)
            text = codec.clean_text(text.replace("\n", "\n    "), MAX_LOG_LINE)
            self._reports.line(f"{logging.getLevelName(level).lower()}: {text}\n")
        super().log(level, msg, *args, **kwargs)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, Any]:
        """The message with the id of the job, as the worker's log shows it."""
        return f"[{self._claim.id}] {msg}", kwargs

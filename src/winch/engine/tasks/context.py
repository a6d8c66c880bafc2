"""What a running handler is given by annotation (`ctx: Context`): facts about its attempt, and ways to
report on it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, MutableMapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from winch.core import steps
from winch.core.errors import ConfigError, LostClaim
from winch.core.gates.uses import holds_something
from winch.core.job import LOG_LIMIT, Note
from winch.core.values import codec
from winch.core.values.duration import Duration, parse_duration
from winch.engine.base.encryption import Keyring, seal
from winch.engine.tasks.transaction import Transaction
from winch.storage.params import Answer, ClaimRef, Standing

if TYPE_CHECKING:
    from winch.core.job import Claim
    from winch.core.policy.retry import Retry
    from winch.engine.client.client import Client
    from winch.engine.durable.steps import Steps
    from winch.engine.flows.batch import Batch
    from winch.engine.tasks.task import Bound
    from winch.storage.protocol import Driver

RAISE: Any = ...
"""In place of a default: raise instead."""
MAX_CHECKPOINT_BYTES = 256 * 1024
MAX_LOG_LINE = 8 * 1024


class Reports:
    """What an attempt has sent and the store has not been told yet."""

    __slots__ = ("_log", "_monotonic", "_progress", "signed_at")

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._progress: str | None = None
        self._log: list[str] = []
        self._monotonic = monotonic
        self.signed_at: float = monotonic()

    def sign(self) -> None:
        """The handler is alive and getting on: what a task's heartbeat timeout waits for."""
        self.signed_at = self._monotonic()

    def progress(self, text: str) -> None:
        self._progress = text  # only the latest matters

    def line(self, text: str) -> None:
        self._log.append(text)

    def take(self) -> Note | None:
        """What is to be told now, if anything."""
        if self._progress is None and not self._log:
            return None
        note = Note(progress=self._progress, log=self.take_log())
        self._progress = None
        return note

    def take_log(self) -> str | None:
        lines, self._log = self._log, []
        return "".join(lines)[-LOG_LIMIT:] if lines else None


class Context:
    """One attempt at one job, as seen by its handler.

    `fence` grows with every claim of the job and never repeats: hand it to other systems so that they
    can refuse a late writer. `idempotency_key` is the same in every attempt.
    """

    def __init__(
        self,
        claim: Claim,
        reports: Reports,
        *,
        deadline: float | None,
        monotonic: Callable[[], float],
        is_cancelled: Callable[[], bool],
        store: Callable[[], Driver],
        resources: Mapping[str, Any],
        finished: Callable[[], None],
        client: Client | None = None,
        keys: Keyring | None = None,
        lease: float | None = None,
        batch: Callable[[Context], Batch],
        durable: Callable[[bool], Steps | None] | None = None,
    ) -> None:
        self._claim = claim
        self._reports = reports
        self._deadline = deadline
        self._monotonic = monotonic
        self._is_cancelled = is_cancelled
        self._store = store
        self.resources = resources
        self._finished = finished
        self._client = client
        self._keys = keys
        self._lease = lease
        self._durable = durable
        self._make_batch = batch
        self._log: AttemptLog | None = None

    # -- facts -------------------------------------------------------------------------------------

    @property
    def job_id(self) -> str:
        return self._claim.id

    @property
    def task(self) -> str:
        return self._claim.task

    @property
    def queue(self) -> str:
        return self._claim.queue

    @property
    def attempt(self) -> int:
        """The number of this try, from 1."""
        return self._claim.attempt

    @property
    def fence(self) -> int:
        return self._claim.fence

    @property
    def idempotency_key(self) -> str:
        return self._claim.id

    @property
    def created_at(self) -> datetime:
        return self._claim.created_at

    @property
    def queue_latency(self) -> timedelta:
        """How long the job was due before this attempt took it."""
        return max(self._claim.claimed_at - self._claim.run_at, timedelta(0))

    @property
    def headers(self) -> dict[str, str]:
        return dict(self._claim.headers)

    @property
    def time_left(self) -> timedelta | None:
        """How long this attempt may still take; None without a timeout."""
        if self._deadline is None:
            return None
        return timedelta(seconds=max(0.0, self._deadline - self._monotonic()))

    @property
    def cancelled(self) -> bool:
        """True once a cancel was requested or the claim was lost: stop when convenient."""
        return self._is_cancelled()

    @property
    def last_checkpoint(self) -> Any:
        """What an earlier attempt saved with `checkpoint`, or None."""
        text = self._claim.checkpoint
        history = steps.read(text)
        if history is not None:
            text = history.checkpoint
        return None if text is None else codec.loads(text, what="the checkpoint")

    # -- reports -----------------------------------------------------------------------------------

    def progress(self, percent: float, message: str | None = None) -> None:
        """Say how far the job is, for people to see. Never waits; stored twice a second."""
        if not 0 <= percent <= 100:
            raise ConfigError(f"progress must be from 0 to 100, got {percent!r}")
        sent: dict[str, object] = {"percent": percent}
        if message is not None:
            sent["message"] = codec.clean_text(message, MAX_LOG_LINE // 2)
        self._reports.sign()
        self._reports.progress(codec.dumps(sent, what="progress", limit=MAX_LOG_LINE))
        if self._client is not None:
            self._client.tell_progress(self._claim, percent, message)

    def beat(self) -> None:
        """Say that the handler is getting on, for a task with a `heartbeat`; `progress` and a stored
        checkpoint say it too. Never waits."""
        self._reports.sign()

    @property
    def log(self) -> AttemptLog:
        """A logger whose lines are kept with this attempt, and go to the worker's log as well."""
        if self._log is None:
            self._log = AttemptLog(self._claim, self._reports)
        return self._log

    def checkpoint(self, state: object) -> None:
        """Save where the job is; the next attempt finds it as `last_checkpoint`. Returns when it is
        stored; raises LostClaim when the job is somebody else's by now."""
        if (durable := self._steps_so_far) is not None:
            durable.save_checkpoint(_checkpoint(state))
            return
        driver = self._store()
        self._saved(driver.run(driver.note(self._ref, self._checkpoint(state))))

    async def acheckpoint(self, state: object) -> None:
        """`checkpoint` without blocking the event loop."""
        if (durable := self._steps_so_far) is not None:
            await durable.save_checkpoint(_checkpoint(state))
            return
        driver = self._store()
        self._saved(await driver.arun(driver.note(self._ref, self._checkpoint(state))))

    def still_mine(self) -> bool:
        """Ask the store whether this attempt's claim is live: before an act that cannot be undone."""
        driver = self._store()
        return driver.run(driver.standing([self._ref])) == [Standing.LIVE]

    async def astill_mine(self) -> bool:
        """`still_mine` without blocking the event loop."""
        driver = self._store()
        return await driver.arun(driver.standing([self._ref])) == [Standing.LIVE]

    def transaction(self, session: object = None) -> Transaction:
        """The job's own transaction: its writes, its completion and child jobs in one commit. See
        winch.engine.tasks.transaction; keep it well within the lease.

        With the application's own session or connection it is that one's outermost transaction, which
        Winch commits at the end of the block."""

        def sealed(text: str) -> str:
            return seal(self._keys, text, job=self.job_id, task=self.task, field="result")

        return Transaction(
            self._store(),
            self._ref,
            self._finished,
            session,
            sealed,
            self._lease,
            has_gates=holds_something(self._claim.options),
        )

    @property
    def batch(self) -> Batch:
        """The batch that this job is a member of, to add more members: `ctx.batch.enqueue(…)`.

        The same object for the whole attempt: it numbers what the attempt adds."""
        if (known := self.__dict__.get("_batch")) is None:
            # In one step: of two threads that make one, both get the same.
            known = self.__dict__.setdefault("_batch", self._make_batch(self))
        made: Batch = known
        return made

    @property
    def claim_ref(self) -> ClaimRef:
        """The proof of this attempt's claim, for what must be refused to a later one."""
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
        """Call `fn(*args)` once in the life of this job, and return its result now and ever after. Await
        it in an async handler.

        The result is kept as JSON, and comes back as the function's annotation says. An error is the
        handler's, which fails and is retried as a whole; with `retry` the step is repeated by that
        policy while the job waits without a worker, and StepFailed is raised at its end. `undo` is
        called with the step's result (with its arguments where it returned nothing) when the job fails
        for good or is cancelled: the latest step's first. `name` is needed for a lambda, and tells
        steps apart that would change their order. With `transaction` (True, or the application's own
        session) `fn` is given a transaction before its arguments, and what it writes there is committed
        with the step.
        """
        return self._durable_steps("step").step(
            fn, args, undo=undo, retry=retry, name=name, transaction=transaction
        )

    def sleep(self, duration: Duration, *, name: str = "sleep") -> Any:
        """Wait this long, days too, without holding a worker. Await it in an async handler.

        The attempt ends here and a new one goes on from here, by the store's clock: `finally` blocks
        run, and local variables are made again from the steps before."""
        span = parse_duration(duration, "sleep")
        return self._durable_steps("sleep").sleep(span, name)

    def wait_for(self, signal: str, *, timeout: Duration | None = None, default: Any = RAISE) -> Any:
        """The payload of a signal that `app.signal` sends, now or later, or has sent before. The job is
        blocked meanwhile and holds no worker. Await it in an async handler.

        Each signal is taken once. When `timeout` is over without one, `default` is returned, and without
        a default SignalTimeout is raised."""
        span = None if timeout is None else parse_duration(timeout, "timeout")
        return self._durable_steps("wait_for").wait_for(signal, span, default)

    def spawn(self, call: Bound[Any], *, name: str = "spawn") -> Any:
        """Enqueue a child once in the life of this job, and go on. Returns its Job; await it in an async
        handler (the job, not its result)."""
        return self._durable_steps("spawn").spawn(call, name)

    def gather(self, *calls: Bound[Any], name: str = "gather") -> Any:
        """Enqueue children, each once in the life of this job, wait for all of them without holding a
        worker, and return their results in order. Await it in an async handler.

        Raises ChildFailed, when all are final, where some are dead or cancelled."""
        return self._durable_steps("gather").gather(calls, name)

    def version(self, change: str, newest: int = 2) -> int:
        """Which way a running workflow goes where its code has changed: `newest` for a job that comes
        here for the first time, 1 for one that had passed this place before. The same in every
        attempt."""
        if newest < 2:
            raise ConfigError(f"newest must be 2 or more: 1 is how it was before, got {newest}")
        return self._durable_steps("version").version(change, newest)

    def _durable_steps(self, what: str) -> Steps:
        made = None if self._durable is None else self._durable(True)
        if made is None:
            raise ConfigError(f"ctx.{what} needs a job that a worker runs; there is none here")
        return made

    @property
    def _steps_so_far(self) -> Steps | None:
        """The history, where this job has one: its checkpoint is kept inside."""
        if self._durable is None:
            return None
        return self._durable(steps.is_history(self._claim.checkpoint))

    def _checkpoint(self, state: object) -> Note:
        text = _checkpoint(state)
        claim = self._claim
        return Note(checkpoint=seal(self._keys, text, job=claim.id, task=claim.task, field="checkpoint"))

    def _saved(self, answer: Answer) -> None:
        if answer is not Answer.TOOK:
            raise LostClaim(
                f"job {self._claim.id} is no longer this attempt's; its checkpoint is not kept"
            )
        self._reports.sign()


def _checkpoint(state: object) -> str:
    return codec.dumps(state, what="the checkpoint", limit=MAX_CHECKPOINT_BYTES)


class AttemptLog(logging.LoggerAdapter[logging.Logger]):
    """Lines for people who look at the job."""

    def __init__(self, claim: Claim, reports: Reports) -> None:
        super().__init__(logging.getLogger("winch.job"), {})
        self._claim = claim
        self._reports = reports

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if level >= logging.INFO:
            text = str(msg) % args if args else str(msg)
            text = codec.clean_text(text.replace("\n", "\n    "), MAX_LOG_LINE)
            self._reports.line(f"{logging.getLevelName(level).lower()}: {text}\n")
        super().log(level, msg, *args, **kwargs)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, Any]:
        return f"[{self._claim.id}] {msg}", kwargs

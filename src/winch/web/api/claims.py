"""Claims over HTTP, singly or in batches: how a job is sent to a worker, and how its claim ends."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from winch.core.errors import InvalidPayload, MissingKey
from winch.core.flow import INPUTS_HEADER
from winch.core.job import Claim, Failure
from winch.core.lifecycle import JobState
from winch.core.outcome import Cancel, Discard, Done, Failed, Outcome, RetryAfter, Snooze, settle
from winch.core.policy.retry import DEFAULT_RETRY, Retry, from_stored
from winch.core.values import codec
from winch.core.values.duration import Duration, parse_duration
from winch.core.values.redact import read, stored_text
from winch.engine.base.encryption import seal, unseal
from winch.engine.base.failure import describe
from winch.engine.flows.inputs import with_inputs
from winch.engine.tasks.options import DEFAULT_TIMEOUT, StoredOptions, stored_timeout
from winch.engine.worker.settle import without_key
from winch.storage.decide.settled import as_finish
from winch.storage.params import Finish
from winch.storage.protocol import Bell
from winch.web.api.held import HeldClaim, held_claim
from winch.web.problems import Problem
from winch.web.routes import WebCall
from winch.web.schemas.jobs import ErrorOut
from winch.web.schemas.work import JobToRun

if TYPE_CHECKING:
    from winch.app import App

T = TypeVar("T")

LEASES = (timedelta(seconds=1), timedelta(hours=12))
LONGEST_WAIT = timedelta(seconds=60)
# A wake-up is a hint; no request waits longer than this between two looks.
LOOK_EVERY = 2.0
LOST = "the claim has ended: the job was finished, rescued or released; drop what you have"

_decode_options = msgspec.json.Decoder(StoredOptions).decode
_rng = random.Random()  # noqa: S311  # jitter, not a secret


def lease_of(text: str) -> timedelta:
    """The lease that a request asks for."""
    lease = parse_duration(text, "lease")
    if not LEASES[0] <= lease <= LEASES[1]:
        raise Problem("invalid", f"lease must be from 1s to 12h, got {text!r}")
    return lease


def tasks_of(call: WebCall, named: Sequence[str] | None) -> tuple[str, ...] | None:
    """The tasks that a claim may take: those named that are also the caller's. None: any."""
    mine = call.access.tasks
    if named is None:
        return mine
    return tuple(task for task in named if mine is None or task in mine)


# -- out: a job that a worker is to run --------------------------------------------------------------


class _Given:
    """Stands for the arguments of a task that this server does not know: keeps what a member of a flow
    takes from those before it."""

    def __init__(self) -> None:
        self.value: Any = None
        self.arguments: _Given = self

    def completed(self, text: str, value: Any) -> str:
        self.value = value
        return text


async def job_to_run(app: App, claim: Claim) -> dict[str, Any] | Outcome:
    """The fields of a `JobToRun`, or the outcome of a job that does not run now: a member of a flow, or
    one that is encrypted with a key that is not here. Raises InvalidPayload for a job whose data no
    worker could read."""
    try:
        return await _job_to_run(app, claim)
    except MissingKey as error:
        return without_key(claim, error)


async def _job_to_run(app: App, claim: Claim) -> dict[str, Any] | Outcome:
    keys = app.runtime.keys()
    args, saved = claim.args, claim.checkpoint
    args = unseal(keys, args, job=claim.id, task=claim.task, field="args")
    if saved is not None:
        saved = unseal(keys, saved, job=claim.id, task=claim.task, field="checkpoint")
    value: Any = None
    if INPUTS_HEADER in claim.headers:
        found = await with_input(app, claim, args)
        if not isinstance(found, tuple):
            return found
        args, value = found
    return {
        "id": claim.id,
        "task": claim.task,
        "version": claim.version,
        "args": _readable(args, "args"),
        "queue": claim.queue,
        "attempt": claim.attempt,
        "token": claim.token,
        "fence": claim.fence,
        "created_at": claim.created_at,
        "expires_at": claim.expires_at,
        "headers": claim.headers,
        "checkpoint": None if saved is None else _readable(saved, "checkpoint"),
        "input": value,
        "timeout_seconds": None if (limit := _timeout_of(app, claim)) is None else limit.total_seconds(),
    }


async def with_input(app: App, claim: Claim, args: str) -> tuple[str, Any] | Outcome:
    """The arguments of a member of a flow, and what it takes from those before it where this server does
    not know the task; or its outcome, where it does not run now."""
    given = _Given()
    task: Any = app.tasks.get(claim.task) if claim.task in app.tasks else given
    found = await with_inputs(lambda: app.driver, claim, task, args, app.runtime.keys())
    return (found, given.value) if isinstance(found, str) else found


async def long_poll(
    call: WebCall, queues: Sequence[str], wait: timedelta, look: Callable[[], Awaitable[list[T]]]
) -> list[T]:
    """What `look` finds, now or as soon as a job of these queues is there. Nothing when the time is
    over, the client is gone or the server stops."""
    deadline = time.monotonic() + min(wait, LONGEST_WAIT).total_seconds()
    bell: Bell | None = None
    try:
        while True:
            found = await look()
            left = deadline - time.monotonic()
            if found or left <= 0 or call.site.is_stopping:
                return found
            if bell is None:
                bell = call.site.driver.bell(queues)
                await bell.arm()  # and look once more: a job stored before does not ring
            else:
                await bell.wait(min(left, LOOK_EVERY))
                await bell.arm()
            if await call.request.is_disconnected():
                return []
            await call.check_current()
    finally:
        if bell is not None:
            await bell.aclose()


def _timeout_of(app: App, claim: Claim) -> timedelta | None:
    """The job's own time limit, else the task's where this server knows it, else the default."""
    if claim.options is not None:
        try:
            own = _decode_options(claim.options).timeout
            if own is not None:
                return stored_timeout(own)
        except (msgspec.DecodeError, UnicodeEncodeError):
            pass  # as for its retry policy
    return app.tasks.get(claim.task).options.timeout if claim.task in app.tasks else DEFAULT_TIMEOUT


def _readable(text: str, what: str) -> Any:
    found, reason = read(text)
    if reason is not None:
        raise InvalidPayload(f"{what} is unreadable: {reason}")
    return found


async def jobs_to_run(
    call: WebCall, claims: Sequence[Claim]
) -> tuple[list[tuple[Claim, JobToRun]], list[Finish]]:
    """The jobs that can be sent, and the ends of those that cannot: they have expired, no worker could
    read them, or they are members of a flow that do not run now."""
    found: list[tuple[Claim, JobToRun]] = []
    ends: list[Finish] = []
    for claim in claims:
        if (late := expired(claim)) is not None:
            ends.append(finish_of(call.site.app, held_claim(claim), late))
            continue
        try:
            one = await job_to_run(call.site.app, claim)
        except InvalidPayload as error:
            ends.append(unreadable(claim, error))
            continue
        if isinstance(one, dict):
            found.append((claim, JobToRun(**one)))
        else:
            ends.append(finish_of(call.site.app, held_claim(claim), one))
    return found, ends


def expired(claim: Claim) -> Cancel | None:
    """The outcome of a job that was claimed too late, as for a worker beside the store."""
    at = claim.expires_at
    if at is None or claim.claimed_at < at or claim.checkpoint is not None:
        return None
    return Cancel(f"expired at {at:%Y-%m-%d %H:%M:%S} UTC, before it ran")


def unreadable(claim: Claim, error: InvalidPayload) -> Finish:
    """The end of a job that no worker could run."""
    held = held_claim(claim)
    return Finish(
        id=claim.id,
        token=claim.token,
        to=JobState.DEAD,
        what="failed",
        error=describe(error),
        reason="its data is unreadable",
        is_gated=held.is_gated,
        is_awaited=held.is_awaited,
    )


# -- in: how a claim ends ----------------------------------------------------------------------------


def completed(app: App, held: HeldClaim, value: Any) -> Finish:
    """The end of a job that is done."""
    result = None
    if value is not None:
        text = codec.dumps_result(value)
        result = seal(app.runtime.keys(), text, job=held.id, task=held.task, field="result")
    return Finish(
        id=held.id,
        token=held.token,
        to=JobState.COMPLETED,
        what="completed",
        result=result,
        is_gated=held.is_gated,
        is_awaited=held.is_awaited,
    )


def failed(
    app: App,
    held: HeldClaim,
    error: str | ErrorOut,
    *,
    is_final: bool,
    retry_in: Duration | None = None,
) -> Finish:
    """The end of an attempt that failed."""
    policy = None if is_final else policy_of(app, held)
    end = finish_of(app, held, Failed(failure_of(error), policy))
    if retry_in is not None and end.to is JobState.RETRYING:
        end = msgspec.structs.replace(end, delay=parse_duration(retry_in, "retry_in"))
    return end


def retried(
    app: App, held: HeldClaim, delay: Duration, error: str | ErrorOut | None, reason: str | None
) -> Finish:
    """The end of an attempt that is to be repeated after this delay."""
    outcome = RetryAfter(delay, reason)
    outcome.error = None if error is None else failure_of(error)
    return finish_of(app, held, outcome)


def snoozed(app: App, held: HeldClaim, delay: Duration, reason: str | None) -> Finish:
    return finish_of(app, held, Snooze(delay, reason))


def cancelled(app: App, held: HeldClaim, reason: str | None) -> Finish:
    return finish_of(app, held, Cancel(reason or "cancelled by its worker"))


def discarded(app: App, held: HeldClaim, reason: str | None) -> Finish:
    return finish_of(app, held, Discard(reason))


def finish_of(app: App, held: HeldClaim, outcome: Outcome) -> Finish:
    """What an outcome comes to for this claim."""
    policy = DEFAULT_RETRY if isinstance(outcome, Done) else policy_of(app, held)
    settled = settle(
        outcome,
        attempt=held.attempt,
        age=datetime.now(UTC) - held.created_at,
        policy=policy,
        rng=_rng,
    )
    return as_finish(settled, held.id, held.token, is_gated=held.is_gated, is_awaited=held.is_awaited)


def failure_of(error: str | ErrorOut) -> Failure:
    """The error that a worker sends, without secrets and in a bounded size."""
    if isinstance(error, str):
        error = ErrorOut(type="Error", message=error)
    half = codec.MAX_ERROR_BYTES // 2
    return Failure(
        codec.clean_text(error.type, 256),
        stored_text(error.message, half),
        None if error.traceback is None else stored_text(error.traceback, half),
    )


def policy_of(app: App, held: HeldClaim) -> Retry:
    """The job's own policy, else the task's where this server knows it, else the default."""
    policy = app.tasks.get(held.task).options.retry if held.task in app.tasks else DEFAULT_RETRY
    if held.options is None:
        return policy
    try:
        options = _decode_options(held.options)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return policy
    if options.retry is not None:
        policy = from_stored(options.retry)
    if options.attempts is not None:
        policy = msgspec.structs.replace(policy, attempts=options.attempts)
    return policy


def checkpoint_of(app: App, job_id: str, task: str, value: Any) -> str | None:
    """A checkpoint as it is stored."""
    if value is None:
        return None
    text = codec.dumps(value, what="checkpoint")
    return seal(app.runtime.keys(), text, job=job_id, task=task, field="checkpoint")

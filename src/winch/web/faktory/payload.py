"""Faktory's jobs as jobs of Winch, and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from winch.core.errors import ConfigError, InvalidPayload, MissingKey
from winch.core.flow import INPUTS_HEADER
from winch.core.job import Claim
from winch.core.outcome import Outcome
from winch.core.policy.retry import Retry
from winch.core.values import codec
from winch.core.values.redact import read
from winch.engine.base.encryption import unseal
from winch.engine.tasks.options import EnqueueOptions, enqueue_options, stored_options
from winch.engine.worker.settle import without_key
from winch.storage.params import NewJob
from winch.web.api.claims import with_input
from winch.web.faktory.wire import FaktoryError

if TYPE_CHECKING:
    from winch.app import App

# The header of a job that keeps what Winch has no field for.
HEADER = "faktory"
DEFAULT_QUEUE = "default"
DEFAULT_PRIORITY = 5
DEFAULT_RETRIES = 25
RESERVE_FOR = timedelta(minutes=30)
# As Faktory bounds it.
RESERVES = (timedelta(minutes=1), timedelta(days=1))


class FaktoryJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job as a producer sends it. `at` is when it is due, `retry` how often it may fail."""

    jid: str
    jobtype: str
    args: list[Any]
    queue: str = DEFAULT_QUEUE
    priority: int | None = None
    reserve_for: int | None = None
    at: str | None = None
    retry: int | None = None
    backtrace: int | None = None
    custom: dict[str, Any] | None = None


class Kept(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the header keeps, for the worker that gets the job. No `jid`: Winch has drawn the id."""

    jid: str = ""
    reserve_for: int | None = None
    retry: int | None = None
    backtrace: int | None = None
    priority: int | None = None
    at: str | None = None
    custom: dict[str, Any] | None = None


def parse(text: str, type_: Any, what: str) -> Any:
    """JSON that a client sent, as this type."""
    try:
        codec.check_tree(codec.loads(text, what=what), what)
        return codec.loads(text, type_, what=what)
    except (InvalidPayload, ConfigError) as error:
        raise FaktoryError(str(error)) from None


def new_job(app: App, given: FaktoryJob, *, is_drawn: bool = False) -> NewJob:
    """The job to store; raises WinchError for one that cannot be stored as it is. `is_drawn`: it has no
    jid, and Winch draws its id."""
    if not (given.jid or is_drawn):
        raise ConfigError("a job needs a jid")
    kept = Kept(
        jid=given.jid,
        reserve_for=None if given.reserve_for is None else _reserve_seconds(given.reserve_for),
        retry=given.retry,
        backtrace=given.backtrace,
        priority=given.priority,
        at=given.at or None,
        custom=given.custom,
    )
    options: dict[str, Any] = {
        "queue": given.queue or DEFAULT_QUEUE,
        "headers": {HEADER: codec.to_json(kept)},
    }
    if given.jid:
        options["id"] = given.jid
    if given.priority:
        options["priority"] = given.priority - DEFAULT_PRIORITY
    if given.at:
        options["run_at"] = _moment(given.at)
    retries = DEFAULT_RETRIES if given.retry is None else given.retry
    options["retry"] = Retry.sidekiq(attempts=max(retries, 0) + 1)
    if given.jobtype in app.tasks.names:
        bound = app.tasks.get(given.jobtype).using(**options).bind(*given.args)
        new: NewJob = bound.new_job(app.client.draw_id())
        return new
    checked = enqueue_options(options, tuple(EnqueueOptions.__struct_fields__))
    return NewJob(
        id=checked.id or app.client.draw_id(),
        is_given_id=not is_drawn,
        task=_name(given.jobtype),
        args=codec.dumps({"args": given.args}, what="args"),
        queue=checked.queue or DEFAULT_QUEUE,
        priority=checked.priority or 0,
        run_at=checked.run_at,
        headers=checked.headers,
        options=stored_options(checked),
    )


def _name(jobtype: str) -> str:
    if not jobtype or len(jobtype) > codec.MAX_NAME_CHARS or not jobtype.isprintable():
        raise ConfigError(f"jobtype must be 1 to {codec.MAX_NAME_CHARS} printable characters")
    return jobtype


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text) if len(text) <= 64 else None
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ConfigError(f"at must be a time such as 2030-01-31T12:00:00Z, got {text[:64]!r}")
    return moment.astimezone(UTC)


def _reserve_seconds(seconds: int) -> int:
    least, most = (int(bound.total_seconds()) for bound in RESERVES)
    if not least <= seconds <= most:
        raise ConfigError(f"reserve_for must be from {least} to {most} seconds, got {seconds}")
    return seconds


def kept_of(headers: dict[str, str]) -> Kept | None:
    """What a client of Faktory sent beside the arguments; None for a job of another producer."""
    if HEADER not in headers:
        return None
    try:
        return msgspec.json.decode(headers[HEADER], type=Kept)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


def reserve_for(claim: Claim) -> timedelta:
    """How long a worker keeps this job."""
    kept = kept_of(dict(claim.headers))
    if kept is None or kept.reserve_for is None:
        return RESERVE_FOR
    return timedelta(seconds=kept.reserve_for)


async def faktory_job(app: App, claim: Claim) -> dict[str, Any] | Outcome:
    """The job as a worker gets it, or the outcome of one that does not run now: a member of a flow, or
    one that is encrypted with a key that is not here. Raises InvalidPayload for one that no worker can
    read."""
    try:
        return await _faktory_job(app, claim)
    except MissingKey as error:
        return without_key(claim, error)


async def _faktory_job(app: App, claim: Claim) -> dict[str, Any] | Outcome:
    kept = kept_of(dict(claim.headers))
    text = unseal(app.runtime.keys(), claim.args, job=claim.id, task=claim.task, field="args")
    value: Any = None
    if INPUTS_HEADER in claim.headers:
        found = await with_input(app, claim, text)
        if not isinstance(found, tuple):
            return found
        text, value = found
    return _sent(app, claim, kept, text, value)


def _sent(app: App, claim: Claim, kept: Kept | None, text: str, value: Any) -> dict[str, Any]:
    args, reason = read(text)
    if reason is not None:
        raise InvalidPayload(f"args is unreadable: {reason}")
    if kept is not None and isinstance(args, dict) and set(args) == {"args"}:
        args = args["args"]
    elif claim.task in app.tasks.names:
        # A call that Python stored: its arguments in the order of the signature.
        args = list(app.tasks.get(claim.task).arguments.values(text).values())
    else:
        args = [args]
    if value is not None:
        args = [value, *args]  # from those before it in its flow
    created_at = claim.created_at.isoformat().replace("+00:00", "Z")
    kept = kept or Kept(jid=claim.id)
    found: dict[str, Any] = {
        "jid": kept.jid or claim.id,
        "jobtype": claim.task,
        "args": args,
        "queue": claim.queue,
        "created_at": created_at,
        "enqueued_at": created_at,
        "reserve_for": int(reserve_for(claim).total_seconds()),
        "retry": DEFAULT_RETRIES if kept.retry is None else kept.retry,
        "priority": kept.priority or DEFAULT_PRIORITY,
        "backtrace": kept.backtrace or 0,
    }
    if kept.at is not None:
        found["at"] = kept.at
    if kept.custom is not None:
        found["custom"] = kept.custom
    if claim.attempt > 1:
        found["failure"] = {"retry_count": claim.attempt - 1}
    return found

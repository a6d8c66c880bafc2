"""Winch in AWS Lambda: an invocation runs jobs for a while, and messages of SQS become jobs.

    from winch.integrations import aws_lambda

    handler = aws_lambda.handler(app, queues=["mail"], seconds="50s")

Start it by a schedule or by SQS. The function needs `pip install winch-jobs` with the extra of its
store, and nothing of AWS.

An invocation ends when no job is ready, or when its time is over: then running handlers get `grace`, and
what has not ended by then goes back to its queue. Lambda freezes the process between two invocations, so
each one has a session of its own and closes its connections. A function that Lambda kills leaves its
jobs to its lease; the next invocation waits, within its time, until it may take them over.

A message of SQS is stored as a job whose id follows from the message, so a message that comes twice is
one job. The answer names the messages that could not be stored (`batchItemFailures`); SQS keeps only
those. From then on the store has the job, and its retries do not depend on SQS.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol

import msgspec

from winch import App, ConfigError, InvalidPayload, StorageError, Task, UnknownTask, WinchError
from winch.types import Bound, Duration

log: logging.Logger = logging.getLogger("winch")

SQS = "aws:sqs"
# How long before Lambda kills it an invocation is over, where `seconds` leaves that open.
MARGIN = timedelta(seconds=2)
_MESSAGES = uuid.UUID("1f0c6a0e-7c0b-5c64-8a53-77696e636824")


class Invocation(Protocol):
    """What Winch reads of Lambda's context."""

    def get_remaining_time_in_millis(self) -> int: ...


Handler = Callable[[Any, Invocation], dict[str, Any]]


class SqsJob(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a message of SQS: the job to enqueue."""

    task: str
    args: dict[str, Any] = {}
    queue: str | None = None
    delay: str | None = None
    priority: int | None = None
    tenant: str | None = None
    tags: tuple[str, ...] | None = None


class _Message(NamedTuple):
    """A message, and the job that it is."""

    id: str
    group: str | None
    call: Bound[Any]


def handler(
    app: App,
    *,
    queues: Sequence[str] = ("default",),
    seconds: Duration | None = None,
    grace: Duration = "1s",
    concurrency: int | None = None,
    task: Task[Any, Any] | None = None,
) -> Handler:
    """A Lambda function that stores messages of SQS as jobs and runs the jobs of these queues.

    - `seconds`: how long it runs jobs at most; without it, until shortly before Lambda would end it. It
      stops earlier when no job is ready.
    - `grace`: how long running handlers get then. What has not ended goes back to its queue and loses no
      attempt.
    - `queues=()`: store messages, and run nothing.
    - `task`: the task of every message, whose body holds the arguments alone.

    For an event of SQS it returns `{"batchItemFailures": […]}`; turn on *Report batch item failures*.
    For any other event it returns what it has done: `completed`, `failed`, `dead`, `left`, `is_empty`.
    """
    if isinstance(queues, str):
        raise ConfigError(f"queues must be a list of names, got the text {queues!r}")

    def run(event: Any, context: Invocation) -> dict[str, Any]:
        left = timedelta(milliseconds=context.get_remaining_time_in_millis())
        before = datetime.now(UTC) + left - MARGIN
        records = _records(event)
        if records is None and not queues:
            raise ConfigError("this function stores messages of SQS, and the event has none")

        async def work() -> dict[str, Any]:
            done = await app.adrain(
                queues=queues, seconds=seconds, before=before, grace=grace, concurrency=concurrency
            )
            return {name: getattr(done, name) for name in done.__struct_fields__}

        async def invoked() -> dict[str, Any]:
            try:
                if records is None:
                    return await work()
                failures = await _stored(app, records, task)
                if queues:
                    try:
                        await work()
                    except Exception:
                        # The jobs are stored: an error here would have SQS send all messages once more.
                        log.exception("this invocation has stored its messages and cannot run jobs")
                return {"batchItemFailures": [{"itemIdentifier": one} for one in failures]}
            finally:
                await app.aclose()  # Lambda may freeze this process for hours

        return asyncio.run(invoked())

    return run


# -- messages of SQS ---------------------------------------------------------------------------------


def _records(event: Any) -> list[Mapping[str, Any]] | None:
    """The messages of an event of SQS; None for any other event."""
    found = event.get("Records") if isinstance(event, Mapping) else None
    if not isinstance(found, list) or not found:
        return None
    if any(not isinstance(one, Mapping) or one.get("eventSource") != SQS for one in found):
        raise ConfigError("this function takes messages of SQS, and the event has other records")
    return found


async def _stored(
    app: App, records: Sequence[Mapping[str, Any]], task: Task[Any, Any] | None
) -> list[str]:
    """Store the messages as jobs; returns the ids of those that are not stored. Of a FIFO queue's group
    nothing is stored after one that could not be: the order of a group holds."""
    failures: list[str] = []
    broken: set[str] = set()
    good: list[_Message] = []
    for record in records:
        message, group = str(record["messageId"]), _group(record)
        if group is not None and group in broken:
            failures.append(message)
            continue
        try:
            good.append(_Message(message, group, _call(app, record, group, task)))
        except (WinchError, msgspec.MsgspecError, ValueError) as error:
            log.error("message %s of SQS is no job: %s", message, error)
            failures.append(message)
            if group is not None:
                broken.add(group)
    if good:
        try:
            await asyncio.to_thread(app.ready)
        except WinchError as error:
            log.error("%d messages of SQS are not stored: %s", len(good), error)
            return failures + [one.id for one in good]
        failures += await _enqueued(app, good)
    return failures


async def _enqueued(app: App, messages: Sequence[_Message]) -> list[str]:
    """Store these jobs in one call; where one of them is refused, such as a duplicate, each in its own.
    Returns the messages that are not stored."""
    try:
        await app.aenqueue_many([one.call for one in messages])
    except StorageError as error:
        # Whether some of them are stored is not known; a repeat stores none of them twice.
        log.error("%d messages of SQS are not stored: %s", len(messages), error)
        return [one.id for one in messages]
    except WinchError as error:
        if len(messages) == 1:
            log.error("message %s of SQS is not stored: %s", messages[0].id, error)
            return [messages[0].id]
    else:
        return []
    failures: list[str] = []
    broken: set[str] = set()
    for one in messages:
        found = [one.id] if one.group in broken else await _enqueued(app, [one])
        if found and one.group is not None:
            broken.add(one.group)
        failures += found
    return failures


def _group(record: Mapping[str, Any]) -> str | None:
    """The group of a message from a FIFO queue."""
    if not str(record.get("eventSourceARN", "")).endswith(".fifo"):
        return None
    return str(record.get("attributes", {}).get("MessageGroupId", ""))


def _call(
    app: App, record: Mapping[str, Any], group: str | None, task: Task[Any, Any] | None
) -> Bound[Any]:
    """The job of a message. Raises for one that is none."""
    source = str(record.get("eventSourceARN", ""))
    given: dict[str, Any] = {"id": str(uuid.uuid5(_MESSAGES, f"{source}\n{record['messageId']}"))}
    if task is None:
        job = msgspec.json.decode(record["body"], type=SqsJob)
        args = job.args
        for name in ("queue", "delay", "priority", "tenant", "tags"):
            if (value := getattr(job, name)) is not None:
                given[name] = value
        if job.task not in app.tasks:
            raise UnknownTask(job.task, app.tasks.names)
        known = app.tasks.get(job.task)
    else:
        args, known = msgspec.json.decode(record["body"], type=dict[str, Any]), task
    if group is not None:
        given["fifo"] = f"sqs:{source}:{group}"
    if headers := _trace(record):
        given["headers"] = headers
    try:
        return known.using(**given).bind(**args)
    except TypeError as error:
        raise InvalidPayload(f"{known.name}: {error}") from error


def _trace(record: Mapping[str, Any]) -> dict[str, str]:
    """The trace that the producer sent along."""
    attributes = record.get("messageAttributes") or {}
    found = {name: attributes.get(name, {}).get("stringValue") for name in ("traceparent", "tracestate")}
    return {name: value for name, value in found.items() if isinstance(value, str)}

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
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from winch import App, ConfigError
from winch.areas.import_name import name_of
from winch.core.errors import InvalidPayload, StorageError, UnknownTask, WinchError
from winch.core.values.duration import Duration, parse_duration
from winch.engine.base.log import log
from winch.engine.observe.throughput import Rates, TaskRate
from winch.engine.supervisor.embedded import EmbeddedWorker, process_command
from winch.engine.tasks.task import Bound, Task

SQS = "aws:sqs"
# How long before Lambda kills it an invocation is over, where `seconds` leaves that open.
MARGIN = 2.0
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
    limit = None if seconds is None else parse_duration(seconds, "seconds").total_seconds()
    ending = parse_duration(grace, "grace").total_seconds()
    if limit is not None and limit <= 0:
        raise ConfigError(f"seconds must be more than 0, got {seconds!r}")
    if isinstance(queues, str):
        raise ConfigError(f"queues must be a list of names, got the text {queues!r}")

    def run(event: Any, context: Invocation) -> dict[str, Any]:
        began = time.monotonic()
        until = began + context.get_remaining_time_in_millis() / 1000 - MARGIN - ending
        if limit is not None:
            until = min(until, began + limit)
        records = _records(event)
        if records is None and not queues:
            raise ConfigError("this function stores messages of SQS, and the event has none")

        async def invoked() -> dict[str, Any]:
            try:
                if records is None:
                    return await _run(app, queues, concurrency, until, ending)
                failures = await _stored(app, records, task)
                if queues:
                    try:
                        await _run(app, queues, concurrency, until, ending)
                    except Exception:
                        # The jobs are stored: an error here would have SQS send all messages once more.
                        log.exception("this invocation has stored its messages and cannot run jobs")
                return {"batchItemFailures": [{"itemIdentifier": one} for one in failures]}
            finally:
                await app.aclose()  # Lambda may freeze this process for hours

        return asyncio.run(invoked())

    return run


# -- running jobs ------------------------------------------------------------------------------------


async def _run(
    app: App, queues: Sequence[str], concurrency: int | None, until: float, grace: float
) -> dict[str, Any]:
    """Run jobs until none is ready, or until this moment of the monotonic clock."""
    await asyncio.to_thread(app.ready)
    total = TaskRate()

    def count(rates: Rates) -> None:
        for tasks in rates.values():
            for rate in tasks.values():
                total.add(rate)

    embedded = EmbeddedWorker(
        app,
        queues=queues,
        concurrency=concurrency,
        burst=True,
        process_command=process_command(app.import_path or name_of(app)),
        grace=grace,
    )
    is_empty = False
    worker = await embedded.__aenter__()
    worker.tally.on_rates = count
    try:
        has_waited = False
        while (left := until - time.monotonic()) > 0 and worker.broken is None:
            try:
                await asyncio.wait_for(worker.drained.wait(), left)
            except TimeoutError:
                break
            is_waiting = await _is_abandoned(app)
            if not is_waiting and not has_waited:
                is_empty = True
                break
            # What it waited for is ready as soon as it is free: the worker claims it before it is over.
            has_waited = is_waiting
            await asyncio.sleep(min(2 * app.settings.poll.total_seconds(), left))
            worker.drained.clear()
    finally:
        given_up = await embedded.stop(grace)
    return {
        "completed": total.completed,
        "failed": total.failed,
        "dead": total.deaths,
        "left": given_up,
        "is_empty": is_empty,
    }


async def _is_abandoned(app: App) -> bool:
    """Whether a session that has ended without a word still has jobs: they can be taken over as soon as
    its lease was over for a while, and no other worker may come for that."""
    now = datetime.now(UTC)
    sessions = await app.driver.arun(app.driver.sessions())
    return any(one.running and one.ended_at is None and one.lease_until < now for one in sessions)


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
    good: list[tuple[str, Bound[Any]]] = []
    for record in records:
        message, group = str(record["messageId"]), _group(record)
        if group is not None and group in broken:
            failures.append(message)
            continue
        try:
            good.append((message, _call(app, record, group, task)))
        except (WinchError, msgspec.MsgspecError, ValueError) as error:
            log.error("message %s of SQS is no job: %s", message, error)
            failures.append(message)
            if group is not None:
                broken.add(group)
    if good:
        try:
            await asyncio.to_thread(app.ready)
            await app.aenqueue_many([call for _, call in good])
        except (StorageError, WinchError) as error:
            # Whether some of them are stored is not known; a repeat stores none of them twice.
            log.error("%d messages of SQS are not stored: %s", len(good), error)
            failures += [message for message, _ in good]
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

"""Replay: events of a range, or with given ids, go to an endpoint once more.

The events themselves are the source, not the deliveries: what an endpoint missed while it was disabled
has none. Each key keeps the order in which its events were stored.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from winch.areas.outbox import PREFIX
from winch.areas.sinks import Message
from winch.areas.webhooks.delivery import (
    ALL_TENANTS,
    EVENTS_BOOK,
    EVENTS_TOPIC,
    bound,
    delivery_of,
)
from winch.areas.webhooks.endpoints import StoredEndpoint, hash_of
from winch.core.errors import ConfigError, JobNotFound
from winch.core.job import JobRecord, to_micros
from winch.core.values import codec
from winch.core.values.ids import known_as
from winch.engine.base.encryption import unseal
from winch.engine.base.operation import Operation
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.protocol import Driver

if TYPE_CHECKING:
    from winch.areas.outbox import Outbox
    from winch.engine.client.client import Client
    from winch.engine.tasks.runtime import Runtime

MOST_EVENTS = 10_000
PAGE = 500
BATCH = 100


class Redelivered(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a replay: `matched` events, of which `enqueued` are on their way again."""

    matched: int
    enqueued: int
    is_dry_run: bool = False


def redeliver(
    client: Client,
    runtime: Runtime,
    outbox: Outbox,
    endpoint_id: str,
    stored: StoredEndpoint,
    *,
    start: datetime | None,
    end: datetime | None,
    events: Sequence[str] | None,
    dry_run: bool,
) -> Operation[Redelivered]:
    """Enqueue a delivery of each of these events, or with `dry_run` only count."""
    driver = client.driver()
    if (events is None) == (start is None):
        raise ConfigError("a replay takes start=, with or without end=, or events=, and not both")
    if events is not None:
        ids = [known_as(one, "event id") for one in dict.fromkeys(events)]
        if len(ids) > MOST_EVENTS:
            raise ConfigError(f"a replay takes up to {MOST_EVENTS:,} events, got {len(ids):,}")
    else:
        upto = end if end is not None else client.surroundings.clock.now() + timedelta(seconds=1)
        ids = yield from _between(driver, stored, _moment(start, "start"), _moment(upto, "end"))
    found = yield from _events(driver, runtime, stored, ids, is_strict=events is not None)
    if dry_run:
        return Redelivered(matched=len(found), enqueued=0, is_dry_run=True)
    mark = secrets.token_hex(8)
    for place in range(0, len(found), BATCH):
        calls = [
            bound(outbox, delivery_of(endpoint_id, message), mark)
            for message in found[place : place + BATCH]
        ]
        yield from client._enqueue_many(calls, None)
    return Redelivered(matched=len(found), enqueued=len(found))


def _moment(value: object, name: str) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ConfigError(f"{name} must be a datetime with a time zone, got {value!r}")
    return value.astimezone(UTC)


def _between(
    driver: Driver, stored: StoredEndpoint, start: datetime, end: datetime
) -> Operation[list[str]]:
    """The ids of the events of this range that the endpoint may see, oldest first."""
    prefix = ALL_TENANTS if stored.tenant is None else hash_of(stored.tenant)
    after, before = f"{prefix}-{to_micros(start):020}", f"{prefix}-{to_micros(end):020}"
    ids: list[str] = []
    while True:
        which = KvFilter(book=EVENTS_BOOK, after=after, before=before, limit=PAGE)
        lines: Sequence[KvRecord] = yield driver.kv_list(which)
        ids += [line.key[len(prefix) + 22 :] for line in lines]
        if len(ids) > MOST_EVENTS:
            raise ConfigError(
                f"there are more than {MOST_EVENTS:,} events in this range; replay a shorter one"
            )
        if len(lines) < PAGE:
            return ids
        after = lines[-1].key


def _events(
    driver: Driver, runtime: Runtime, stored: StoredEndpoint, ids: list[str], *, is_strict: bool
) -> Operation[list[Message]]:
    """The events that this endpoint gets, in the order of each key."""
    found: list[tuple[JobRecord, Message]] = []
    for place in range(0, len(ids), BATCH):
        batch = ids[place : place + BATCH]
        records: Sequence[JobRecord | None] = yield driver.get(batch)
        for event_id, record in zip(batch, records, strict=True):
            message = None if record is None else _message(runtime, record)
            if record is None or message is None or not _is_seen(stored, message):
                if is_strict:
                    raise JobNotFound(event_id)
                continue
            found.append((record, message))
    return [message for _, message in in_order(found)]


def in_order(found: list[tuple[JobRecord, Message]]) -> list[tuple[JobRecord, Message]]:
    """By time, and the events of one key by their numbers."""
    found = sorted(found, key=lambda pair: (pair[0].created_at, pair[0].id))
    places: dict[str, list[int]] = {}
    for place, (record, _) in enumerate(found):
        if record.fifo is not None and record.seq is not None:
            places.setdefault(record.fifo, []).append(place)
    ordered = list(found)
    for of_key in places.values():
        members = sorted((found[place] for place in of_key), key=lambda pair: pair[0].seq or 0)
        for place, member in zip(of_key, members, strict=True):
            ordered[place] = member
    return ordered


def _is_seen(stored: StoredEndpoint, message: Message) -> bool:
    return stored.matches(message.payload["event"], message.payload["tenant"])


def _message(runtime: Runtime, record: JobRecord) -> Message | None:
    """The event that a job of the outbox carries; None for any other job."""
    if record.task != f"{PREFIX}{EVENTS_TOPIC}":
        return None
    text = unseal(runtime.keys(), record.args, job=record.id, task=record.task, field="args")
    args: dict[str, Any] = codec.loads(text, what="args")
    return Message(
        id=record.id,
        topic=EVENTS_TOPIC,
        key=args.get("key"),
        payload=args["payload"],
        created_at=record.created_at,
        attempt=1,
        headers=record.headers,
    )

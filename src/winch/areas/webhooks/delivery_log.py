"""The delivery log: one line for each attempt, the newest of each endpoint."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from winch.core.job import to_micros
from winch.engine.base.operation import Operation
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.protocol import Driver

BOOK = "webhook-log"
KEPT = 200
KEPT_FOR = timedelta(days=30)
# How many lines over the bound there may be until they are removed.
SLACK = 50


class DeliveryAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to deliver an event. `event` is the id that the receiver gets as `webhook-id`;
    `delivery` is the id of the job. `status` is None when there was no answer.
    """

    delivery: str
    event: str
    type: str
    at: datetime
    attempt: int
    status: int | None
    error: str | None
    seconds: float


_decoder = msgspec.json.Decoder(DeliveryAttempt)


def write(driver: Driver, endpoint_id: str, line: DeliveryAttempt) -> Operation[None]:
    """Add a line; from time to time, remove what is over the bound."""
    random = os.urandom(4)
    key = f"{endpoint_id}-{to_micros(line.at):020}-{random.hex()}"
    body = msgspec.json.encode(line).decode()
    yield driver.kv_put([KvRecord(book=BOOK, key=key, body=body, keep=KEPT_FOR)])
    if random[0] % 16 == 0:
        yield from trim(driver, endpoint_id)


def trim(driver: Driver, endpoint_id: str) -> Operation[None]:
    """Remove all but the newest lines of an endpoint."""
    while True:
        lines = yield from _lines(driver, endpoint_id, KEPT + SLACK)
        over = [line.key for line in lines[KEPT:]]
        if over:
            yield driver.kv_delete(BOOK, over)
        if len(lines) < KEPT + SLACK:
            return


def read(driver: Driver, endpoint_id: str, limit: int) -> Operation[list[DeliveryAttempt]]:
    """The newest lines, newest first."""
    lines = yield from _lines(driver, endpoint_id, min(limit, KEPT))
    return [_decoder.decode(line.body) for line in lines]


def forget(driver: Driver, endpoint_id: str) -> Operation[None]:
    """Remove all lines of an endpoint."""
    while lines := (yield from _lines(driver, endpoint_id, KEPT)):
        yield driver.kv_delete(BOOK, [line.key for line in lines])


def _lines(driver: Driver, endpoint_id: str, limit: int) -> Operation[Sequence[KvRecord]]:
    which = KvFilter(
        book=BOOK,
        after=f"{endpoint_id}-",
        before=f"{endpoint_id}-~",
        limit=limit,
        is_newest_first=True,
    )
    lines: Sequence[KvRecord] = yield driver.kv_list(which)
    return lines

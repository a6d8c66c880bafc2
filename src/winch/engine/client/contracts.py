"""Contracts: what workers in other languages declare of their tasks, kept in the store, so that every
producer can enqueue such a task and is refused arguments that do not fit."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec

from winch.engine.base.operation import Operation
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.protocol import Driver

BOOK = "contract"
# Renewed by each worker that starts.
KEPT_FOR = timedelta(days=90)


class Contract(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task without code: the JSON Schema of its arguments, its queue, and what its jobs get unless a
    producer says otherwise."""

    schema: dict[str, Any]
    queue: str | None = None
    timeout: str | None = None
    attempts: int | None = None


def publish_contracts(driver: Driver, contracts: Mapping[str, Contract]) -> Operation[None]:
    """Store these contracts by the names of their tasks; the last worker to start wins."""
    if contracts:
        yield driver.kv_put(
            [
                KvRecord(book=BOOK, key=task, body=msgspec.json.encode(one).decode(), keep=KEPT_FOR)
                for task, one in contracts.items()
            ]
        )


def stored_contract(driver: Driver, task: str) -> Operation[Contract | None]:
    """The contract of the task of this name; one of another release that cannot be read is none."""
    for line in (
        yield driver.kv_list(KvFilter(book=BOOK, before=f"{task}\x01", is_newest_first=True, limit=1))
    ):
        if line.key == task:
            try:
                return msgspec.json.decode(line.body, type=Contract)
            except msgspec.DecodeError:
                return None
    return None

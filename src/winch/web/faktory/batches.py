"""BATCH, and the jobs that are pushed into one: Faktory's batches as open batches of Winch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from winch.core.errors import ConfigError
from winch.core.flow import Wants
from winch.core.lifecycle import JobState
from winch.engine.base.operation import Operation
from winch.engine.flows import open_batch
from winch.engine.flows.open_batch import OpenBatch
from winch.storage.params import NewJob
from winch.web.faktory.payload import FaktoryJob, new_job, parse
from winch.web.faktory.wire import OK, FaktoryError, bulk, text

if TYPE_CHECKING:
    from winch.app import App

MAX_NAME_CHARS = 200
# The states of a callback in the answer to STATUS.
PENDING, ENQUEUED, FINISHED = "", "1", "2"


class Callback(msgspec.Struct, frozen=True, kw_only=True):
    """The job that follows a batch. Its id is drawn by Winch, so a `jid` is not used."""

    jobtype: str
    args: list[Any] = []
    queue: str = "default"
    priority: int | None = None
    reserve_for: int | None = None
    retry: int | None = None
    backtrace: int | None = None
    custom: dict[str, Any] | None = None


class NewBatch(msgspec.Struct, frozen=True, kw_only=True):
    success: Callback | None = None
    complete: Callback | None = None
    description: str | None = None
    parent_bid: str | None = None


class FaktoryBatches:
    """The batches of one gateway. Nothing of them is in its memory."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._known: dict[str, Callable[[str], Operation[bytes]]] = {
            "NEW": self._new,
            "OPEN": self._open,
            "COMMIT": self._commit,
            "STATUS": self._status,
        }

    async def run(self, rest: str) -> bytes:
        """The reply to BATCH and what follows it."""
        word, _, rest = rest.partition(" ")
        command = self._known.get(word.upper())
        if command is None:
            raise FaktoryError(f"BATCH is followed by {', '.join(self._known)}")
        return await self._app.client.arun(command(rest.strip()))

    async def store(self, jobs: Sequence[tuple[FaktoryJob, NewJob]]) -> None:
        """Store pushed jobs; those with a `bid` as members of that batch."""
        apart: dict[str | None, list[NewJob]] = {}
        for given, new in jobs:
            apart.setdefault(_batch_of(given), []).append(new)
        client = self._app.client
        for bid, some in apart.items():
            await client.arun(client.store(some, None) if bid is None else self._add(bid, some))

    def _add(self, bid: str, jobs: Sequence[NewJob]) -> Operation[None]:
        batch = yield from self._found(bid)
        if (yield from self._are_new(jobs)):
            yield from open_batch.check_not_over(self._app.client, batch)
        yield from open_batch.add(self._app.client, batch, jobs)

    def _are_new(self, jobs: Sequence[NewJob]) -> Operation[bool]:
        """Whether one of them is not stored yet. A repeated push is answered as the first one was."""
        found = yield self._app.driver.get([new.id for new in jobs])
        return None in found

    # -- the commands ----------------------------------------------------------------------------------

    def _new(self, rest: str) -> Operation[bytes]:
        given = parse(rest, NewBatch, "the batch")
        callbacks: dict[Wants, NewJob] = {}
        if given.success is not None:
            callbacks["success"] = self._callback(given.success)
        if given.complete is not None:
            callbacks["complete"] = self._callback(given.complete)
        if not callbacks:
            raise ConfigError("a batch needs a callback: success, complete, or both")
        outer = None
        if given.parent_bid:
            outer = yield from self._found(given.parent_bid)
            yield from open_batch.check_not_over(self._app.client, outer)
        name = (given.description or "batch")[:MAX_NAME_CHARS]
        made = yield from open_batch.start(self._app.client, name, callbacks, outer)
        return text(made.id)

    def _callback(self, given: Callback) -> NewJob:
        fields = FaktoryJob(jid="", **msgspec.structs.asdict(given))
        return new_job(self._app, fields, is_drawn=True)

    def _open(self, rest: str) -> Operation[bytes]:
        batch = yield from self._found(rest)
        yield from open_batch.check_not_over(self._app.client, batch)
        return text(batch.id)

    def _commit(self, rest: str) -> Operation[bytes]:
        batch = yield from self._found(rest)
        yield from open_batch.commit(self._app.client, batch)
        return OK

    def _status(self, rest: str) -> Operation[bytes]:
        batch = yield from self._found(rest)
        counts = yield from open_batch.counts(self._app.client, batch)
        return bulk(
            {
                "bid": batch.id,
                "parent_bid": batch.outers[0].batch if batch.outers else "",
                "description": batch.name,
                "created_at": batch.created_at.isoformat().replace("+00:00", "Z"),
                "total": counts.total,
                "pending": counts.pending,
                "failed": counts.failed,
                "complete_st": _state(counts.callbacks.get("complete")),
                "success_st": _state(counts.callbacks.get("success")),
            }
        )

    def _found(self, bid: str) -> Operation[OpenBatch]:
        found = yield from open_batch.find(self._app.client, bid)
        if found is None:
            raise ConfigError(f"no batch {bid[:80]!r}; BATCH NEW makes one and answers with its bid")
        return found


def _batch_of(given: FaktoryJob) -> str | None:
    bid = None if given.custom is None else given.custom.get("bid")
    if bid is not None and not isinstance(bid, str):
        raise ConfigError("custom.bid must be the text that BATCH NEW has answered")
    return bid or None


def _state(state: JobState | None) -> str:
    match state:
        case None | JobState.BLOCKED | JobState.CANCELLED:
            return PENDING
        case JobState.COMPLETED:
            return FINISHED
        case _:
            return ENQUEUED

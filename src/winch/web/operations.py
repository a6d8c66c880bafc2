"""Bulk actions: started by one request, carried out beside it, their progress kept in the books.

An operation walks the jobs newest id first and acts in batches. A job keeps its id whatever becomes of
it, so none is met twice. A server that stops leaves the rest as it was; the operation then records it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from winch.core.errors import WinchError
from winch.core.values.redact import mask_text
from winch.engine.base import operation
from winch.engine.base.log import log
from winch.engine.base.operation import Operation
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.params import Acted
from winch.storage.protocol import Driver
from winch.web.access import Access
from winch.web.finding import Finder
from winch.web.schemas.jobs import OperationOut
from winch.web.search import Search

BOOK = "operation"
KEPT_FOR = timedelta(days=7)
BATCH = 500
WAIT = 0.3
STALE = timedelta(minutes=2)
MOST_READ = 10_000


class StoredOperation(OperationOut, frozen=True, kw_only=True):
    """An operation as it is kept: with the credential that started it, which no answer shows."""

    credential: str = ""

    def shown(self) -> OperationOut:
        return OperationOut(**{name: getattr(self, name) for name in OperationOut.__struct_fields__})


class Operations:
    """The bulk actions of this server, and what the books know of others'."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._own: dict[str, StoredOperation] = {}
        self._runners: set[asyncio.Task[None]] = set()

    async def start(
        self,
        action: str,
        by: str,
        work: Callable[[Callable[..., None]], Operation[Any]],
        *,
        wait: float = WAIT,
        **fields: Any,
    ) -> OperationOut:
        """Begin; `work` gets a function that notes progress. Waits so many seconds for the end."""
        began = StoredOperation(
            id=f"{time.time_ns() // 1000:020}-{secrets.token_hex(4)}",
            action=action,
            by=by,
            state="running",
            started_at=datetime.now(UTC),
            **fields,
        )
        await self._keep(began)
        runner = asyncio.create_task(self._run(began, work), name=f"winch operation {began.id}")
        self._runners.add(runner)
        runner.add_done_callback(self._runners.discard)
        # Most are done at once; then the answer has the result.
        await asyncio.wait([runner], timeout=wait)
        return self._own[began.id].shown()

    async def _run(
        self, began: StoredOperation, work: Callable[[Callable[..., None]], Operation[Any]]
    ) -> None:
        def note(**fields: Any) -> None:
            self._own[began.id] = msgspec.structs.replace(self._own[began.id], **fields)

        beat = asyncio.create_task(self._beat(began.id))
        try:
            await operation.arun(self._driver, work(note))
            note(state="done")
        except asyncio.CancelledError:
            note(state="stopped", note="the server stopped; what was not reached is as it was")
        except WinchError as error:
            note(state="failed", note=mask_text(str(error)))
        except Exception:
            log.exception("operation %s failed", began.id)
            note(state="failed", note="the server failed; see its log")
        finally:
            beat.cancel()
            note(finished_at=datetime.now(UTC))
            await self._keep(self._own[began.id])

    async def _beat(self, identity: str) -> None:
        while True:
            await asyncio.sleep(1.0)
            await self._keep(self._own[identity])

    async def _keep(self, now: StoredOperation) -> None:
        self._own[now.id] = now
        while len(self._own) > 1000:
            self._own.pop(next(iter(self._own)))
        line = KvRecord(book=BOOK, key=now.id, body=msgspec.json.encode(now).decode(), keep=KEPT_FOR)
        await self._driver.arun(self._driver.kv_put([line]))

    async def get(self, identity: str, access: Access) -> OperationOut | None:
        """The operation of this id, if the caller may see it."""
        found = self._own.get(identity)
        if found is None:
            latest = await self._read(before=identity + "\x01", limit=1)
            found = latest[0] if latest and latest[0].id == identity else None
        return found.shown() if found is not None and _sees(access, found) else None

    async def list(self, access: Access, *, limit: int = 20) -> list[OperationOut]:
        """The latest operations that the caller may see, newest first."""
        found = await self._read(limit=limit if not access.is_narrow else MOST_READ)
        return [one.shown() for one in found if _sees(access, one)][:limit]

    async def _read(self, *, limit: int, before: str | None = None) -> Sequence[StoredOperation]:
        which = KvFilter(book=BOOK, before=before, limit=limit, is_newest_first=True)
        lines = await self._driver.arun(self._driver.kv_list(which))
        return [msgspec.json.decode(line.body, type=StoredOperation) for line in lines]

    async def close(self) -> None:
        for runner in list(self._runners):
            runner.cancel()
        await asyncio.gather(*self._runners, return_exceptions=True)


def _sees(access: Access, operation: StoredOperation) -> bool:
    """A narrowed caller sees what it started; it may share its name with others."""
    return not access.is_narrow or access.is_own(operation.by, operation.credential)


def walk(
    finder: Finder,
    wanted: Search,
    act: Callable[[Sequence[str]], Operation[list[Acted]]] | None,
    note: Callable[..., None],
) -> Operation[None]:
    """Act on all that match, batch by batch; without `act` only count."""
    matched = acted = refused = 0
    after: str | None = None
    while True:
        found = yield from finder.find(wanted, after=after, limit=BATCH)
        ids = [job.id for job in found.jobs]
        matched += len(ids)
        if ids and act is not None:
            answers = yield from act(ids)
            acted += sum(answer.took for answer in answers)
            refused += sum(not answer.took for answer in answers)
        note(matched=matched, acted=acted, refused=refused)
        after = found.next
        if after is None:
            return

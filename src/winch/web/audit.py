"""Who did what, when and from where: one line for each action of people and programs on jobs, queues
and tokens. Lines are only ever added; no role can change or remove one through the server."""

from __future__ import annotations

import secrets
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from winch.core.redact import mask
from winch.engine.log import log
from winch.engine.operation import Operation
from winch.storage.params import Line, Lines

if TYPE_CHECKING:
    from winch.storage.protocol import Driver
    from winch.web.access import Access

BOOK = "audit"
KEPT_FOR = timedelta(days=365)
CHUNK = 1000


class AuditLine(msgspec.Struct, frozen=True, kw_only=True):
    """One action. `via` is api, dashboard or cli; `origin` is the caller's address; `credential` is the
    id of the caller's token, where it has one."""

    id: str
    at: datetime
    who: str
    via: str
    origin: str
    action: str
    target: str
    detail: dict[str, Any] = {}
    credential: str = ""


class Audit:
    """Write and read the audit."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def write(
        self,
        *,
        who: str,
        via: str,
        origin: str,
        action: str,
        target: str,
        detail: dict[str, Any],
        credential: str = "",
    ) -> Operation[None]:
        # Microseconds in a fixed width: the key sorts by time.
        line = AuditLine(
            id=f"{time.time_ns() // 1000:020}-{secrets.token_hex(4)}",
            at=datetime.now(UTC),
            who=who,
            via=via,
            origin=origin,
            action=action,
            target=target,
            detail=mask(detail),
            credential=credential,
        )
        log.info("audit: %s %s %s via %s from %s", who, action, target, via, origin)
        if self._driver.capabilities.keeps_books:
            body = msgspec.json.encode(line).decode()
            yield self._driver.write_lines([Line(book=BOOK, key=line.id, body=body, keep=KEPT_FOR)])

    def read(
        self, *, before: str | None = None, limit: int = 50, of: Access | None = None
    ) -> Operation[list[AuditLine]]:
        """The latest lines, newest first; with `of` only those of this caller."""
        if not self._driver.capabilities.keeps_books:
            return []
        found: list[AuditLine] = []
        while len(found) < limit:
            size = limit if of is None else CHUNK
            which = Lines(book=BOOK, before=before, limit=size, is_newest_first=True)
            lines = yield self._driver.read_lines(which)
            for line in lines:
                one = msgspec.json.decode(line.body, type=AuditLine)
                if of is None or of.is_own(one.who, one.credential):
                    found.append(one)
            if len(lines) < size:
                break
            before = lines[-1].key
        return found[:limit]

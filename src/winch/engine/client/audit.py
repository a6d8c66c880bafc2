"""The audit: actor, action, time and origin of each action of people and programs on jobs, queues,
schedules, limits, flows and tokens. Lines are only ever added; no role can change or remove one through
the server.

An action writes its line itself, with `noted`, so that the library, the command line and `Job` handles
leave the same lines. The HTTP server writes the line of a request, which knows the caller's address;
inside a request `noted` writes nothing.
"""

from __future__ import annotations

import builtins
import getpass
import os
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from winch.core.errors import ConfigError, StorageError
from winch.core.job import to_micros
from winch.core.values.duration import Duration, parse_duration
from winch.core.values.redact import mask, mask_text
from winch.engine.base.log import log
from winch.engine.base.operation import Operation
from winch.engine.client.twins import blocking, twin
from winch.storage.kv_records import KvFilter, KvRecord

if TYPE_CHECKING:
    from winch.engine.client.client import Client
    from winch.storage.protocol import Driver

BOOK = "audit"
KEPT_FOR = timedelta(days=365)
CHUNK = 1000


class AuditLine(msgspec.Struct, frozen=True, kw_only=True):
    """One action in the audit log.

    `via` is library, cli, api or dashboard. `origin` is the caller's address, or its host and process
    id. `credential` is the id of the caller's token, if it used one.
    """

    id: str
    at: datetime
    who: str
    via: str
    origin: str
    action: str
    target: str
    detail: dict[str, Any] = {}
    credential: str = ""


# -- the actor ---------------------------------------------------------------------------------------

_who: ContextVar[str | None] = ContextVar("winch_actor", default=None)
_via: ContextVar[str] = ContextVar("winch_via", default="library")
_is_noted_outside: ContextVar[bool] = ContextVar("winch_noted_outside", default=False)


def actor() -> str:
    """The actor, for the audit and the job's history: the one that `acting` names, else user@host."""
    if (named := _who.get()) is not None:
        return named
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


@contextmanager
def acting(who: str | None = None, *, via: str | None = None) -> Iterator[None]:
    """Write the actions inside this block into the audit under this name.

    `via` names the way, such as "django".
    """
    reset_who = _who.set(_who.get() if who is None else who)
    reset_via = _via.set(_via.get() if via is None else via)
    try:
        yield
    finally:
        _who.reset(reset_who)
        _via.reset(reset_via)


@contextmanager
def noted_outside() -> Iterator[None]:
    """Inside this block actions write no lines: the caller writes one about all of it."""
    reset = _is_noted_outside.set(True)
    try:
        yield
    finally:
        _is_noted_outside.reset(reset)


def noted(driver: Driver, action: str, target: str, **detail: Any) -> Operation[None]:
    """Add a line about what was just done. It is done whether or not the line can be written."""
    if _is_noted_outside.get():
        return
    line = Audit(driver).write(
        who=actor(),
        via=_via.get(),
        origin=f"{socket.gethostname()}:{os.getpid()}",
        action=action,
        target=target,
        detail={key: value for key, value in detail.items() if value is not None},
    )
    try:
        yield from line
    except StorageError as error:
        cause = mask_text(str(error))
        log.warning("%s %s is done, but the audit has no line about it: %s", action, target, cause)


# -- writing and reading -----------------------------------------------------------------------------


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
        at = datetime.now(UTC)
        line = AuditLine(
            id=f"{to_micros(at):020}-{secrets.token_hex(4)}",  # of a fixed width: it sorts by time
            at=at,
            who=who,
            via=via,
            origin=origin,
            action=action,
            target=target,
            detail=mask(detail),
            credential=credential,
        )
        log.info("audit: %s %s %s via %s from %s", who, action, target, via, origin)
        body = msgspec.json.encode(line).decode()
        yield self._driver.kv_put([KvRecord(book=BOOK, key=line.id, body=body, keep=KEPT_FOR)])

    def read(
        self,
        *,
        before: str | None = None,
        limit: int = 50,
        since: datetime | None = None,
        wanted: Callable[[AuditLine], bool] | None = None,
    ) -> Operation[list[AuditLine]]:
        """The latest lines, newest first; with `wanted` only those it accepts."""
        # A key begins with its microsecond: those of `since` and later come after this text.
        after = None if since is None else f"{to_micros(since) - 1:020}~"
        found: list[AuditLine] = []
        while len(found) < limit:
            size = limit if wanted is None else CHUNK
            which = KvFilter(book=BOOK, after=after, before=before, limit=size, is_newest_first=True)
            lines = yield self._driver.kv_list(which)
            for line in lines:
                one = msgspec.json.decode(line.body, type=AuditLine)
                if wanted is None or wanted(one):
                    found.append(one)
            if len(lines) < size:
                break
            before = lines[-1].key
        return found[:limit]


class AuditLog:
    """`app.audit`: the log of all actions, with their actors."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def acting(self, who: str, *, via: str = "library") -> AbstractContextManager[None]:
        """Write the actions inside this block into the audit under this name.

        `via` names the way, such as "django".
        """
        return acting(who, via=via)

    @blocking
    def list(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        target: str | None = None,
        since: Duration | datetime | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> Operation[builtins.list[AuditLine]]:
        """The latest lines, newest first, filtered by `actor`, `action` ("pause queue"), `target` and
        `since`.

        `before` is the id of the last line of the page before.
        """
        if limit < 1:
            raise ConfigError(f"limit must be 1 or more, got {limit}")

        def wanted(line: AuditLine) -> bool:
            return (
                actor in (None, line.who)
                and action in (None, line.action)
                and target in (None, line.target)
            )

        return (
            yield from Audit(self._client.driver()).read(
                before=before,
                limit=limit,
                since=None if since is None else _moment(since),
                wanted=None if actor is None and action is None and target is None else wanted,
            )
        )

    @twin(list)
    def alist(self) -> None:
        """`list` without blocking the event loop."""

    @staticmethod
    def actor(who: str) -> AbstractContextManager[None]:
        """Name the actor of the actions inside the block: `with app.audit.actor("ada"): …`.

        The audit log and the history of the jobs show the name. Without it they show the user and host
        of the process.
        """
        return acting(who)


def _moment(since: Duration | datetime) -> datetime:
    if not isinstance(since, datetime):
        return datetime.now(UTC) - parse_duration(since, "since")
    if since.tzinfo is None:
        raise ConfigError(f"since must have a time zone, got {since!r}")
    return since

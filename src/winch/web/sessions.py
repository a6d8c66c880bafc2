"""Browser sessions: begun with a token, kept in the books under a digest, over when the token is.

The cookie holds 256 random bits. A session ends 12 hours after its last use, 7 days after it began,
at logout, or when the token it was begun with is revoked.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from winch.engine.base.operation import Operation
from winch.storage.kv_records import KvFilter, KvRecord
from winch.web.access import Access
from winch.web.tokens import Tokens

if TYPE_CHECKING:
    from winch.storage.protocol import Driver

BOOK = "session"
IDLE = timedelta(hours=12)
LONGEST = timedelta(days=7)
TOUCH_EVERY = timedelta(minutes=10)
CACHE_SECONDS = 0.5
# The first wants https, and then no other host or path can set it; the second is for plain http.
COOKIES = ("__Host-winch-session", "winch-session")


class BrowserSession(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`is_ended`: the record stays after the end, so that a request under way does not bring it back."""

    token: str
    began_at: datetime
    used_at: datetime
    is_ended: bool = False


class BrowserSessions:
    """Begin, recognise and end browser sessions."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._seen: dict[str, tuple[float, BrowserSession | None]] = {}

    def begin(self, token: str) -> Operation[str]:
        """A new session; returns the cookie's value. Always a fresh one: no attacker can plant it."""
        value = secrets.token_urlsafe(32)
        now = datetime.now(UTC)
        yield from self._keep(_key(value), BrowserSession(token=token, began_at=now, used_at=now))
        return value

    def access_of(self, cookies: Mapping[str, str], tokens: Tokens) -> Operation[Access | None]:
        value = next((cookies[name] for name in COOKIES if name in cookies), None)
        if value is None or len(value) > 200:
            return None
        key = _key(value)
        session = yield from self._find(key)
        if session is None or session.is_ended:
            return None
        now = datetime.now(UTC)
        if now - session.began_at > LONGEST or now - session.used_at > IDLE:
            yield from self._strike(key)
            return None
        token = yield from tokens.by_id(session.token)
        if token is None:
            yield from self._strike(key)
            return None
        if now - session.used_at > TOUCH_EVERY:
            yield from self._touch(key, session, now)
        return token.access

    def end(self, cookies: Mapping[str, str]) -> Operation[None]:
        for name in COOKIES:
            if name in cookies:
                yield from self._strike(_key(cookies[name]))

    def _find(self, key: str) -> Operation[BrowserSession | None]:
        at, session = self._seen.get(key, (0.0, None))
        if time.monotonic() - at < CACHE_SECONDS:
            return session
        which = KvFilter(book=BOOK, after=key[:-1], before=key + "\x01", limit=50)
        lines = yield self._driver.kv_list(which)
        session = next(
            (msgspec.json.decode(x.body, type=BrowserSession) for x in lines if x.key == key), None
        )
        if len(self._seen) > 10_000:
            self._seen.clear()
        self._seen[key] = (time.monotonic(), session)
        return session

    def _keep(self, key: str, session: BrowserSession) -> Operation[None]:
        yield self._driver.kv_put([KvRecord(book=BOOK, key=key, body=_body(session), keep=LONGEST)])
        self._seen[key] = (time.monotonic(), session)

    def _touch(self, key: str, session: BrowserSession, now: datetime) -> Operation[None]:
        """Note a use, unless another request has ended or noted the session meanwhile."""
        used = msgspec.structs.replace(session, used_at=now)
        record = KvRecord(book=BOOK, key=key, body=_body(used), keep=LONGEST)
        there: str | None = yield self._driver.kv_swap(record, instead_of=_body(session))
        if there is None:
            self._seen[key] = (time.monotonic(), used)

    def _strike(self, key: str) -> Operation[None]:
        session = yield from self._find(key)
        if session is not None:
            yield from self._keep(key, msgspec.structs.replace(session, is_ended=True))


def _body(session: BrowserSession) -> str:
    return msgspec.json.encode(session).decode()


def _key(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()

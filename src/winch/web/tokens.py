"""Access tokens: shown once, kept as a digest in the store's books, so that every server knows them
and a dump of the store gives no access.

In the store and not in a file: servers on several machines share them, a revocation holds everywhere
at once, and the command line on any machine can list them.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from winch.core.errors import ConfigError
from winch.engine.base.operation import Operation
from winch.storage.kv_records import KvFilter, KvRecord
from winch.web.access import Access

if TYPE_CHECKING:
    from winch.storage.protocol import Driver

BOOK = "token"
# When tokens were used last. Records of their own: a note of a use that comes late must neither bring
# back a token that was revoked meanwhile nor widen one that was narrowed.
USES = "token_use"
USES_KEPT = timedelta(days=400)
PREFIX = "winch_"
# A revoked token is refused within this time by every server.
CACHE_SECONDS = 0.5
MOST_TOKENS = 10_000
USED_EVERY = timedelta(minutes=1)


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token as it is kept: everything but the token itself."""

    id: str
    name: str
    digest: str
    roles: tuple[str, ...]
    created_at: datetime
    queues: tuple[str, ...] | None = None
    tenant: str | None = None
    tasks: tuple[str, ...] | None = None
    expires_at: datetime | None = None
    used_at: datetime | None = None
    """Filled in by `Tokens.list`."""

    @property
    def access(self) -> Access:
        return Access(
            self.name,
            roles=self.roles,
            queues=self.queues,
            tenant=self.tenant,
            tasks=self.tasks,
            credential=self.id,
            expires_at=self.expires_at,
        )

    def is_live(self, now: datetime) -> bool:
        return self.expires_at is None or now < self.expires_at


def digest_of(text: str) -> str:
    """Tokens hold 256 random bits, so a plain digest is as good as a slow one."""
    return hashlib.sha256(text.encode()).hexdigest()


_UNKNOWN = digest_of("no client has this token")


class Tokens:
    """Make, list, revoke and recognise tokens."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._seen: dict[str, tuple[float, Token | None]] = {}
        self._revoked: set[str] = set()  # here: an answer that was read before brings none back
        self._noted: dict[str, datetime] = {}

    def create(
        self,
        name: str,
        roles: tuple[str, ...],
        *,
        queues: tuple[str, ...] | None = None,
        tenant: str | None = None,
        tasks: tuple[str, ...] | None = None,
        expires: timedelta | None = None,
        until: datetime | None = None,
    ) -> Operation[tuple[str, Token]]:
        """A new token: its text, which is shown once, and what is kept of it.

        It ends after `expires` and at `until`, whichever is earlier.
        """
        if not name or not name.isprintable() or len(name) > 100:
            raise ConfigError(f"a token's name must be 1 to 100 printable characters, got {name!r}")
        if not roles:
            raise ConfigError("a token needs a role: read, enqueue, work, operate or admin")
        identity = secrets.token_hex(6)
        text = f"{PREFIX}{identity}_{secrets.token_urlsafe(32)}"
        now = datetime.now(UTC)
        ends = [end for end in (until, None if expires is None else now + expires) if end is not None]
        token = Token(
            id=identity,
            name=name,
            digest=digest_of(text),
            roles=roles,
            created_at=now,
            queues=queues,
            tenant=tenant,
            tasks=tasks,
            expires_at=min(ends, default=None),
        )
        token.access  # noqa: B018  # checks the roles before anything is stored
        yield self._driver.kv_put([_line(token)])
        return text, token

    def list(self) -> Operation[list[Token]]:
        lines = yield self._driver.kv_list(KvFilter(book=BOOK, limit=MOST_TOKENS))
        uses = yield self._driver.kv_list(KvFilter(book=USES, limit=MOST_TOKENS))
        used = {line.key: datetime.fromisoformat(line.body) for line in uses}
        tokens = [msgspec.json.decode(line.body, type=Token) for line in lines]
        found = [msgspec.structs.replace(one, used_at=used.get(one.id)) for one in tokens]
        return sorted(found, key=lambda token: token.created_at)

    def revoke(self, identity: str) -> Operation[bool]:
        self._revoked.add(identity)
        gone: int = yield self._driver.kv_delete(BOOK, [identity])
        self._seen.pop(identity, None)
        yield self._driver.kv_delete(USES, [identity])
        return gone > 0

    def recognise(self, text: str) -> Operation[Token | None]:
        """The live token of this text. The same work is done whether there is one or not."""
        identity = text.removeprefix(PREFIX).partition("_")[0]
        token = (yield from self._find(identity)) if len(identity) == 12 else None
        digest = _UNKNOWN if token is None else token.digest
        is_same = hmac.compare_digest(digest, digest_of(text))
        if token is None or not is_same or not token.is_live(datetime.now(UTC)):
            return None
        yield from self._note_use(token.id)
        return None if token.id in self._revoked else token

    def get(self, identity: str) -> Operation[Token | None]:
        """The token of this id, live or expired."""
        return (yield from self._find(identity))

    def by_id(self, identity: str) -> Operation[Token | None]:
        """The live token of this id, for a session that was opened with it."""
        token = yield from self._find(identity)
        return token if token is not None and token.is_live(datetime.now(UTC)) else None

    def _find(self, identity: str) -> Operation[Token | None]:
        if identity in self._revoked:
            return None
        at, token = self._seen.get(identity, (0.0, None))
        if time.monotonic() - at < CACHE_SECONDS:
            return token
        which = KvFilter(book=BOOK, after=identity[:-1], before=identity + "\x01", limit=50)
        lines = yield self._driver.kv_list(which)
        token = next((msgspec.json.decode(x.body, type=Token) for x in lines if x.key == identity), None)
        if len(self._seen) > MOST_TOKENS:
            self._seen.clear()
        if identity in self._revoked:  # while it was read
            return None
        self._seen[identity] = (time.monotonic(), token)
        return token

    def _note_use(self, identity: str) -> Operation[None]:
        now = datetime.now(UTC)
        last = self._noted.get(identity)
        if last is not None and now - last < USED_EVERY:
            return
        if len(self._noted) > MOST_TOKENS:
            self._noted.clear()
        use = KvRecord(book=USES, key=identity, body=now.isoformat(), keep=USES_KEPT)
        yield self._driver.kv_put([use])
        self._noted[identity] = now


def _line(token: Token) -> KvRecord:
    return KvRecord(book=BOOK, key=token.id, body=msgspec.json.encode(token).decode())

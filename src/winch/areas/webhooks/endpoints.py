"""Endpoints as the store keeps them: one record each, changed by compare and swap.

The id begins with a hash of the tenant, so that one range of the book holds the endpoints of a tenant. A
removed endpoint leaves a record for a while: a change that was on its way must not bring it back.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta

import msgspec

from winch.areas.sinks import secret_bytes
from winch.core.errors import ConfigError, EndpointNotFound, StorageUnavailable
from winch.core.values.bounds import check_length
from winch.engine.base.encryption import Keyring, seal, unseal
from winch.engine.base.operation import Operation
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.protocol import Driver

BOOK = "webhook"
PAGE = 500
TRIES = 50
# No change is on its way for longer.
REMOVED_FOR = timedelta(days=30)
MOST_ENDPOINTS = 1000
MOST_EVENTS = 100
MOST_SECRETS = 4
SECRET_BYTES = 32
OWN_PREFIX = "winch."
DISABLED_EVENT = "winch.endpoint.disabled"
NO_TENANT = "0" * 12
_ID = re.compile(r"ep_[0-9a-f]{12}[0-9a-f]{20}")
_EVENT = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
MAX_EVENT = 100


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A URL that gets the events of a tenant. Its secrets are not part of it.

    `reason` is why it is disabled. `failures` counts the attempts that failed in a row, since
    `failing_since`. `secrets` is how many secrets sign at the moment: two while one is replaced.
    """

    id: str
    url: str
    events: tuple[str, ...]
    tenant: str | None
    created_at: datetime
    is_disabled: bool
    disabled_at: datetime | None
    disabled_by: str | None
    reason: str | None
    failures: int
    failing_since: datetime | None
    secrets: int
    rotated_at: datetime | None


class StoredSecret(msgspec.Struct, frozen=True, omit_defaults=True):
    """A secret, sealed where there are keys; it signs until then."""

    text: str
    until: datetime | None = None


class StoredEndpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An endpoint with its secrets. `v` is drawn for each change and is the first field: a swap names
    it, and of two changes that are alike each knows whether it was its own."""

    v: str
    url: str
    events: tuple[str, ...]
    tenant: str | None
    created_at: datetime
    secrets: tuple[StoredSecret, ...]
    rotated_at: datetime | None = None
    disabled_at: datetime | None = None
    disabled_by: str | None = None
    reason: str | None = None
    failures: int = 0
    failing_since: datetime | None = None
    # An endpoint that Winch has disabled, and whose audit line and event are still to be written.
    is_unannounced: bool = False
    is_removed: bool = False

    @property
    def body(self) -> str:
        return msgspec.json.encode(self).decode()

    def matches(self, event: str, tenant: str | None) -> bool:
        """Whether this endpoint gets this event of this tenant."""
        if self.tenant is not None and self.tenant != tenant:
            return False
        return any(_covers(pattern, event) for pattern in self.events)

    def signing(self, endpoint_id: str, keys: Keyring | None, now: datetime) -> list[bytes]:
        """The secrets that sign now, the newest first."""
        return [
            secret_bytes(unseal(keys, one.text, job=endpoint_id, task=BOOK, field="secret"))
            for one in self.secrets
            if one.until is None or one.until > now
        ]


Change = Callable[[StoredEndpoint], StoredEndpoint | None]
_decoder = msgspec.json.Decoder(StoredEndpoint)


def shown(endpoint_id: str, stored: StoredEndpoint, now: datetime) -> Endpoint:
    """The endpoint as users see it."""
    return Endpoint(
        id=endpoint_id,
        url=stored.url,
        events=stored.events,
        tenant=stored.tenant,
        created_at=stored.created_at,
        is_disabled=stored.disabled_at is not None,
        disabled_at=stored.disabled_at,
        disabled_by=stored.disabled_by,
        reason=stored.reason,
        failures=stored.failures,
        failing_since=stored.failing_since,
        secrets=sum(one.until is None or one.until > now for one in stored.secrets),
        rotated_at=stored.rotated_at,
    )


def _covers(pattern: str, event: str) -> bool:
    if pattern == "*":
        return not event.startswith(OWN_PREFIX)
    return pattern == event or (pattern.endswith(".*") and event.startswith(pattern[:-1]))


# -- what users give ---------------------------------------------------------------------------------


def check_event(name: object) -> str:
    """The name of an event, such as invoice.paid."""
    if not isinstance(name, str) or len(name) > MAX_EVENT or not _EVENT.fullmatch(name):
        raise ConfigError(
            "the name of an event is words of letters, digits, _ and -, joined by dots, such as "
            f"'invoice.paid'; got {name!r:.60}"
        )
    return name


def check_patterns(events: Iterable[str]) -> tuple[str, ...]:
    """Names of events, 'invoice.*' or '*'."""
    if isinstance(events, str):
        raise ConfigError("events is a list of names, such as ['invoice.paid', 'order.*']")
    found = tuple(dict.fromkeys(events))
    if not 1 <= len(found) <= MOST_EVENTS:
        raise ConfigError(f"an endpoint has 1 to {MOST_EVENTS} events, got {len(found)}")
    for pattern in found:
        if pattern != "*":
            check_event(pattern.removesuffix(".*") if isinstance(pattern, str) else pattern)
    return found


def secret_text(given: str | bytes | None) -> str:
    """A secret as text: the one that was given, or a new one."""
    found = os.urandom(SECRET_BYTES) if given is None else secret_bytes(given)
    return f"whsec_{base64.b64encode(found).decode()}"


def sealed(keys: Keyring | None, endpoint_id: str, secret: str) -> StoredSecret:
    return StoredSecret(seal(keys, secret, job=endpoint_id, task=BOOK, field="secret"))


# -- the store ---------------------------------------------------------------------------------------


def hash_of(tenant: str | None) -> str:
    """The part of a key that all records of a tenant share."""
    return NO_TENANT if tenant is None else hashlib.sha256(tenant.encode()).hexdigest()[:12]


def new_id(tenant: str | None) -> str:
    return f"ep_{hash_of(tenant)}{os.urandom(10).hex()}"


def new_version() -> str:
    return os.urandom(8).hex()


def read(driver: Driver, endpoint_id: str) -> Operation[StoredEndpoint]:
    """The endpoint with this id. Raises EndpointNotFound."""
    if not isinstance(endpoint_id, str) or not _ID.fullmatch(check_length(endpoint_id, 100, "id")):
        raise EndpointNotFound(endpoint_id)
    which = KvFilter(book=BOOK, after=endpoint_id[:-1], before=endpoint_id + "\x01", limit=50)
    lines: Sequence[KvRecord] = yield driver.kv_list(which)
    for line in lines:
        if line.key == endpoint_id:
            stored = _decoder.decode(line.body)
            if not stored.is_removed:
                return stored
    raise EndpointNotFound(endpoint_id)


def read_all(
    driver: Driver, *, tenant: str | None = None, is_any: bool = False
) -> Operation[list[tuple[str, StoredEndpoint]]]:
    """The endpoints of a tenant (None: those without one), or all."""
    prefix = "ep_" if is_any else f"ep_{hash_of(tenant)}"
    after, before = prefix, f"{prefix}g"  # ids are hexadecimal
    found: list[tuple[str, StoredEndpoint]] = []
    while True:
        which = KvFilter(book=BOOK, after=after, before=before, limit=PAGE)
        lines: Sequence[KvRecord] = yield driver.kv_list(which)
        for line in lines:
            stored = _decoder.decode(line.body)
            if not stored.is_removed and (is_any or stored.tenant == tenant):
                found.append((line.key, stored))
        if len(lines) < PAGE:
            return found
        after = lines[-1].key


def add(driver: Driver, endpoint_id: str, stored: StoredEndpoint) -> Operation[None]:
    record = KvRecord(book=BOOK, key=endpoint_id, body=stored.body)
    there: str | None = yield driver.kv_swap(record)
    if there not in (None, stored.body):
        raise StorageUnavailable(f"an endpoint {endpoint_id} is there already; try again")


def change(
    driver: Driver, endpoint_id: str, changed: Change, *, tries: int = TRIES
) -> Operation[StoredEndpoint]:
    """Change an endpoint by what `changed` makes of it (None: as it is). Another change that is first
    makes it look again."""
    for _ in range(tries):
        before = yield from read(driver, endpoint_id)
        after = changed(before)
        if after is None:
            return before
        after = msgspec.structs.replace(after, v=new_version())
        keep = REMOVED_FOR if after.is_removed else None
        record = KvRecord(book=BOOK, key=endpoint_id, body=after.body, keep=keep)
        there: str | None = yield driver.kv_swap(record, instead_of=f'{{"v":"{before.v}",')
        if there in (None, after.body):
            return after
    raise StorageUnavailable(f"webhook endpoint {endpoint_id} changes faster than it can be changed")

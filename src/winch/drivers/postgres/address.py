"""Where the store is: a postgresql:// URL taken apart into what libpq needs and what Winch needs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from winch.core.errors import ConfigError
from winch.drivers._shared import url_values
from winch.drivers._shared.url_values import DEFAULT_POOL, DEFAULT_SCHEMA, DEFAULT_TIMEOUT

_LOOPBACK = ("", "localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Address:
    """One schema of one database, and how to talk to it."""

    params: dict[str, Any]
    """What libpq is given to connect; holds the password."""
    schema: str
    timeout: float = DEFAULT_TIMEOUT
    """Seconds that one verb may take before its connection is cut."""
    pool: int = DEFAULT_POOL
    """How many connections the sync side opens at most."""
    prepares: bool = True
    """Whether inserts may be prepared; `prepare=off` is for poolers that cannot carry that."""

    @property
    def quoted(self) -> str:
        """The schema as it stands in a statement. The name was checked, so no quote is in it."""
        return f'"{self.schema}"'

    @property
    def channel(self) -> str:
        """The channel of the wake-ups, as the function `ring` in the schema names it. Hashed, because a
        channel's name has at most 63 characters and a schema's may have as many."""
        digest = hashlib.md5(self.quoted.encode(), usedforsecurity=False)
        return f"winch_{digest.hexdigest()}"

    @property
    def due_channel(self) -> str:
        """The channel for jobs that are due soon."""
        return f"{self.channel}_due"

    @property
    def is_remote(self) -> bool:
        host = str(self.params.get("host") or "")
        return any(part not in _LOOPBACK and not part.startswith(("/", "@")) for part in host.split(","))

    def describe(self) -> str:
        """The address for people: no password, nor any other option that could hold one."""
        params = self.params
        user = f"{quote(str(params['user']), safe='')}@" if params.get("user") else ""
        port = f":{params['port']}" if params.get("port") else ""
        name = quote(str(params.get("dbname") or ""), safe="")
        host = str(params.get("host") or "localhost")
        if host.startswith("/"):
            return f"postgresql://{user}/{name}?host={host}&schema={self.schema}"
        return f"postgresql://{user}{host}{port}/{name}?schema={self.schema}"


def parse_url(url: str, *, schema: str | None = None) -> Address:
    """Take a URL apart; raises ConfigError that names what is wrong with it.

    `schema`, `timeout`, `pool` and `prepare` in the query are Winch's; the rest goes to libpq.
    """
    parts = urlsplit(url)
    ours = {"schema": schema or "", "timeout": "", "pool": "", "prepare": ""}
    theirs = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in ours:
            theirs.append((name, value))
        elif name != "schema" or not schema:  # a setting of the app beats the URL's
            ours[name] = value
    bare = urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(theirs), ""))
    return Address(
        params=connection_params(bare, timeout := url_values.seconds(ours["timeout"])),
        schema=url_values.schema_name(ours["schema"] or DEFAULT_SCHEMA),
        timeout=timeout,
        pool=url_values.whole("pool", ours["pool"], DEFAULT_POOL, range(1, 1001)),
        prepares=url_values.switch("prepare", ours["prepare"]),
    )


def connection_params(url: str, timeout: float) -> dict[str, Any]:
    """What libpq is given: the URL's own options, and limits on silence where the URL sets none.

    Without them a connection whose other end has vanished stays half open for hours.
    """
    try:
        params = {k: v for k, v in conninfo_to_dict(url).items() if v is not None}
    except psycopg.Error as error:
        raise ConfigError(f"libpq cannot read the PostgreSQL URL: {error}") from error
    limits = {
        "connect_timeout": max(2, round(timeout / 2)),
        "keepalives": 1,
        "keepalives_idle": 10,
        "keepalives_interval": 3,
        "keepalives_count": 3,
        "tcp_user_timeout": round(timeout * 1000),
        "application_name": "winch",
    }
    return {**limits, **params}

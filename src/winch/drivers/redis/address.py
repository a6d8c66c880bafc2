"""Where the store is: a redis:// URL and its relatives, taken apart."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from winch.core.errors import ConfigError, did_you_mean
from winch.drivers._shared import url_values
from winch.drivers._shared.url_values import DEFAULT_POOL, DEFAULT_SCHEMA, DEFAULT_TIMEOUT

DEFAULT_PORT = 6379
SENTINEL_PORT = 26379
SCHEMES = ("redis", "rediss", "redis+sentinel", "redis+cluster", "rediss+cluster", "rediss+sentinel")
OPTIONS = ("schema", "timeout", "pool", "replicated", "ca_file", "verify")

_LOOPBACK = ("localhost", "127.0.0.1", "::1")

HostPort = tuple[str, int]


@dataclass(frozen=True)
class Address:
    """One store on one server, behind sentinels, or in one slot of a cluster."""

    scheme: str
    servers: tuple[HostPort, ...]
    """The server; the sentinels; or some nodes of the cluster."""
    schema: str = DEFAULT_SCHEMA
    user: str | None = None
    password: str | None = None
    database: int = 0
    service: str | None = None
    """What the sentinels call the server."""
    timeout: float = DEFAULT_TIMEOUT
    """Seconds that one verb may take before its connection is cut."""
    pool: int = DEFAULT_POOL
    """How many connections the sync side keeps."""
    replicated: int = 0
    """How many replicas must have confirmed an enqueue."""
    ca_file: str | None = None
    verifies: bool = True

    @property
    def is_cluster(self) -> bool:
        return self.scheme.endswith("+cluster")

    @property
    def is_sentinel(self) -> bool:
        return self.scheme.endswith("+sentinel")

    @property
    def is_encrypted(self) -> bool:
        return self.scheme.startswith("rediss")

    @property
    def is_remote(self) -> bool:
        return any(host not in _LOOPBACK for host, _ in self.servers)

    @property
    def prefix(self) -> str:
        """What every key begins with: its braces make all of them live in one slot."""
        return f"{{{self.schema}}}:"

    def describe(self) -> str:
        """The address for people: no password."""
        user = f"{self.user}@" if self.user else ""
        hosts = ",".join(f"[{h}]:{p}" if ":" in h else f"{h}:{p}" for h, p in self.servers)
        path = f"/{self.service}" if self.service else f"/{self.database}" if self.database else ""
        return f"{self.scheme}://{user}{hosts}{path}?schema={self.schema}"


def parse_url(url: str, *, schema: str | None = None) -> Address:
    """Take a URL apart; raises ConfigError that names what is wrong with it. valkey:// is redis://."""
    parts = urlsplit(url)
    scheme = parts.scheme.replace("valkey", "redis", 1)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        if name not in OPTIONS:
            raise ConfigError(
                f"a Redis URL takes the options {', '.join(OPTIONS)}, got {name!r}"
                f"{did_you_mean(name, OPTIONS)}"
            )
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    path = unquote(parts.path.strip("/"))
    is_sentinel, is_cluster = scheme.endswith("+sentinel"), scheme.endswith("+cluster")
    if is_sentinel and not path:
        raise ConfigError(
            "a redis+sentinel:// URL names what the sentinels watch over: "
            "redis+sentinel://host1,host2/mymaster"
        )
    if path and not is_sentinel and not path.isdecimal():
        raise ConfigError(f"the path of a Redis URL is a number of a database, got {path!r}")
    if is_cluster and path not in ("", "0"):
        raise ConfigError(f"a Redis Cluster has database 0 only, got {path!r}")
    return Address(
        scheme=scheme,
        servers=_servers(hosts, SENTINEL_PORT if is_sentinel else DEFAULT_PORT),
        schema=url_values.schema_name(schema or options.get("schema") or DEFAULT_SCHEMA),
        user=unquote(user) or None,
        password=unquote(password) or None,
        database=int(path) if path and not is_sentinel else 0,
        service=path if is_sentinel else None,
        timeout=url_values.seconds(options.get("timeout", "")),
        pool=url_values.whole("pool", options.get("pool", ""), DEFAULT_POOL, range(1, 1001)),
        replicated=url_values.whole("replicated", options.get("replicated", ""), 0, range(6)),
        ca_file=options.get("ca_file"),
        verifies=url_values.switch("verify", options.get("verify", "")),
    )


def _servers(hosts: str, port: int) -> tuple[HostPort, ...]:
    found = []
    for text in (hosts or "localhost").split(","):
        parts = urlsplit(f"//{text}")
        try:
            found.append((parts.hostname or "localhost", parts.port or port))
        except ValueError as error:
            raise ConfigError(f"the Redis URL has an invalid address: {text!r}") from error
    return tuple(found)

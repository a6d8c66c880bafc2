"""From a URL to a driver. Each driver is imported only when its scheme is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from winch.core.errors import ConfigError, did_you_mean
from winch.core.values.clock import Clock
from winch.storage.protocol import Driver

if TYPE_CHECKING:
    from winch.drivers.redis.driver import RedisDriver

SCHEMES = (
    "memory",
    "sqlite",
    "postgresql",
    "postgres",
    "redis",
    "rediss",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
    "valkey",
    "valkeys",
    "valkey+sentinel",
    "valkeys+sentinel",
    "valkey+cluster",
    "valkeys+cluster",
)


def connect(url: str, *, clock: Clock, schema: str | None = None, events: bool = False) -> Driver:
    """The driver for this URL; opens nothing yet. Raises ConfigError with an example of a URL."""
    scheme = urlsplit(url).scheme
    if scheme == "memory":
        from winch.drivers.memory import MemoryDriver

        return MemoryDriver(clock, events=events)
    if scheme == "sqlite":
        from winch.drivers.sqlite.driver import SqliteDriver

        return SqliteDriver.from_url(url, events=events)
    if scheme in ("postgresql", "postgres"):
        try:
            from winch.drivers.postgres.driver import PostgresDriver
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith("psycopg"):
                raise
            raise ConfigError(
                "a postgresql:// URL needs psycopg: pip install 'winch-jobs[postgres]'"
            ) from error
        return PostgresDriver.from_url(url, schema=schema, events=events)
    if scheme in SCHEMES:
        try:
            redis_driver = redis_class(url)
        except ModuleNotFoundError as error:
            if error.name != "hiredis":
                raise
            raise ConfigError(
                f"a {scheme}:// URL needs hiredis: pip install 'winch-jobs[redis]'"
            ) from error
        return redis_driver.from_url(url, schema=schema, events=events)
    raise ConfigError(
        "url must begin with sqlite:///, postgresql://, redis://, valkey:// or memory://, got scheme "
        f"{scheme!r}{did_you_mean(scheme, SCHEMES)}"
    )


def redis_class(url: str) -> type[RedisDriver]:
    """The driver for one server, or the one for a cluster."""
    if urlsplit(url).scheme.endswith("+cluster"):
        from winch.drivers.redis.cluster.driver import RedisClusterDriver

        return RedisClusterDriver
    from winch.drivers.redis.driver import RedisDriver

    return RedisDriver

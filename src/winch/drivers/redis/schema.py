"""The layout of the store, and the servers that Winch accepts."""

from __future__ import annotations

from collections.abc import Mapping

from winch.core.errors import ConfigError, SchemaMismatch

VERSION = 1
STEP = "0001_layout"


def check_server(info: Mapping[str, str], store: str) -> None:
    """Refuse a server that drops jobs or is too old; `info` is its INFO."""
    policy = info.get("maxmemory_policy", "")
    if policy.startswith("allkeys"):
        raise ConfigError(
            f"{store}: maxmemory-policy is {policy}, so the server "
            "drops jobs when memory is short; set it to noeviction, or give Winch its own server"
        )
    version = info.get("redis_version", "7.0")
    if int(version.partition(".")[0]) < 7:
        raise ConfigError(f"{store} is Redis {version}; Winch needs 7.0 or later")


def check_layout(version: int, store: str) -> None:
    """Refuse a store that a later release has written."""
    if version > VERSION:
        raise SchemaMismatch(
            f"{store} has layout {version}, this release knows {VERSION}: upgrade Winch"
        )

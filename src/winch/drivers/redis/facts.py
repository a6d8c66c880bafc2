"""What a Redis server can promise: read from its settings, printed by `winch doctor`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from winch.core.errors import StorageError
from winch.drivers.redis.scripts import ScriptCall, command


@dataclass(frozen=True)
class ServerFacts:
    """One server's settings; None where the server does not reveal it."""

    software: str
    version: str
    appendonly: bool
    appendfsync: str | None
    snapshots: str | None
    policy: str
    max_memory: int
    used_memory: int
    role: str
    replicas: int
    now: float
    """Seconds since the epoch by the server's clock."""

    @property
    def is_evicting(self) -> bool:
        """Whether jobs may be dropped when memory is short. The volatile policies touch only keys that
        expire, and those of Winch are nothing but wake-ups."""
        return self.policy.startswith("allkeys")

    @property
    def promise(self) -> str:
        """What holds for an acknowledged job when the server dies."""
        if not self.appendonly:
            return "nothing is written to disk as it happens: a restart of the server loses jobs"
        if self.appendfsync == "always":
            return "every change is on disk before it is acknowledged"
        if self.appendfsync == "everysec":
            return "a power cut or crash may take back about the last second of what was acknowledged"
        return "what a crash takes back depends on when the system writes to its disk"


def read_facts(ask: Callable[[ScriptCall], Any]) -> ServerFacts:
    info = parse_info(ask(command("INFO", "everything")))
    settings: dict[str, str] = {}
    for name in ("appendfsync", "save"):
        with suppress(StorageError):  # managed servers keep CONFIG to themselves
            settings |= _pairs(ask(command("CONFIG", "GET", name)))
    seconds, micros = ask(command("TIME"))
    return ServerFacts(
        software="valkey" if "valkey_version" in info else "redis",
        version=info.get("valkey_version") or info.get("redis_version", "0"),
        appendonly=info.get("aof_enabled") == "1",
        appendfsync=settings.get("appendfsync"),
        snapshots=settings.get("save"),
        policy=info.get("maxmemory_policy", "noeviction"),
        max_memory=int(info.get("maxmemory", 0)),
        used_memory=int(info.get("used_memory", 0)),
        role=info.get("role", "master"),
        replicas=int(info.get("connected_slaves", 0)),
        now=int(seconds) + int(micros) / 1e6,
    )


def _pairs(reply: list[bytes]) -> dict[str, str]:
    words = [word.decode() for word in reply]
    return dict(zip(words[::2], words[1::2], strict=True))


def parse_info(reply: bytes) -> Mapping[str, str]:
    """The lines of INFO."""
    lines = reply.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)

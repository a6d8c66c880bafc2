"""Checks of a Redis server: what it promises with the settings it has."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from winch.app import App
from winch.cli.admin.checks import Finding, Findings, Level
from winch.cli.shared.text import span
from winch.core.values.duration import parse_duration
from winch.drivers.connect import redis_class
from winch.drivers.redis.address import Address
from winch.drivers.redis.facts import ServerFacts

SKEW = 1.0
_SEVERITY = (Level.OK, Level.NOTE, Level.WARNING, Level.PROBLEM)
NEARLY_FULL = 0.8


def check_redis(app: App) -> Findings:
    driver = redis_class(app.settings.url).from_url(app.settings.url, schema=app.settings.schema)
    try:
        nodes = driver.facts()
        first, *others = nodes.values()
        versions = ", ".join(sorted({facts.version for facts in nodes.values()}))
        role = f"{len(nodes)} primaries" if others else first.role
        yield Finding(Level.OK, first.software, f"version {versions}, {role}")
        yield _worst(nodes, _eviction)
        yield _worst(nodes, _durability)
        yield _worst(nodes, lambda facts: _replication(facts, driver.address))
        yield _worst(nodes, _memory)
        yield _transport(driver.address)
        yield _worst(nodes, _clock)
    finally:
        driver.close()


def _worst(nodes: Mapping[str, ServerFacts], check: Callable[[ServerFacts], Finding]) -> Finding:
    """What the check finds of the weakest server; its name, where others do better."""
    found = {name: check(facts) for name, facts in nodes.items()}
    name, worst = max(found.items(), key=lambda one: _SEVERITY.index(one[1].level))
    if all(finding == worst for finding in found.values()):
        return worst
    return replace(worst, text=f"{name}: {worst.text}")


def _eviction(facts: ServerFacts) -> Finding:
    if facts.is_evicting:
        return Finding(
            Level.PROBLEM,
            "eviction",
            f"maxmemory-policy is {facts.policy}: the server drops jobs when memory is short, so Winch "
            "refuses to use it",
            "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf",
        )
    return Finding(Level.OK, "eviction", f"maxmemory-policy is {facts.policy}: no job is ever dropped")


def _durability(facts: ServerFacts) -> Finding:
    if facts.appendonly and facts.appendfsync == "always":
        return Finding(Level.OK, "durability", facts.promise)
    return Finding(
        Level.WARNING if facts.appendonly else Level.PROBLEM,
        "durability",
        facts.promise,
        "appendonly yes and appendfsync always lose nothing; appendfsync everysec is the usual bargain",
    )


def _replication(facts: ServerFacts, address: Address) -> Finding:
    wanted = address.replicated
    if wanted > facts.replicas:
        return Finding(
            Level.PROBLEM,
            "replication",
            f"replicated={wanted} in the URL, but {facts.replicas} replicas are connected: each enqueue "
            "ends in EnqueueUncertain",
            "connect replicas, or take replicated out of the URL",
        )
    if wanted:
        return Finding(
            Level.OK,
            "replication",
            f"an enqueue is acknowledged when {wanted} replicas have it: a failover keeps it. The end "
            "of a job is not waited for, so a finished job may run once more after a failover",
        )
    if facts.replicas or address.is_cluster or address.is_sentinel:
        return Finding(
            Level.WARNING,
            "replication",
            "a failover may take back the last moments of what was acknowledged",
            "add replicated=1 to the URL, and an enqueue waits until a replica has it",
        )
    return Finding(Level.NOTE, "replication", "no replica: when this server is gone, so are its jobs")


def _memory(facts: ServerFacts) -> Finding:
    used = f"{facts.used_memory / 2**20:.0f} MiB used"
    if not facts.max_memory:
        return Finding(
            Level.NOTE,
            "memory",
            f"{used}, no limit: a backlog may grow until the system kills the server",
            "set maxmemory; a full server refuses new jobs and lets workers finish",
        )
    share = facts.used_memory / facts.max_memory
    text = f"{used}, {share:.0%} of maxmemory"
    if share > NEARLY_FULL:
        return Finding(
            Level.WARNING,
            "memory",
            f"{text}: when it is full, new jobs are refused with StorageFull",
            "run more workers, keep final jobs for less time (retention=), or raise maxmemory",
        )
    return Finding(Level.OK, "memory", text)


def _transport(address: Address) -> Finding:
    if address.is_encrypted:
        return Finding(Level.OK, "transport", "encrypted (TLS)")
    if not address.is_remote:
        return Finding(Level.OK, "transport", "the server is on this machine")
    return Finding(
        Level.PROBLEM,
        "transport",
        "the connection is not encrypted; arguments and password can be read on the way",
        "use rediss:// (and a server that speaks TLS)",
    )


def _clock(facts: ServerFacts) -> Finding:
    difference = facts.now - time.time()
    if abs(difference) <= SKEW:
        return Finding(Level.OK, "clock", "this machine and the server agree")
    which = "behind" if difference > 0 else "ahead of"
    return Finding(
        Level.WARNING,
        "clock",
        f"this machine's clock is {span(parse_duration(f'{abs(difference):.0f}s', 'skew'))} {which} the "
        "server's. Leases and delays follow the server, but run_at and the times shown here do not",
        "let both follow NTP",
    )

"""Run the conformance suite for every driver of this repository, on real servers.

    python scripts/conformance.py                     every driver
    python scripts/conformance.py sqlite -k rescue    one driver, cases whose name holds "rescue"

Prints one line for each driver. No driver is ever left out: one that cannot be tested is a failure.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# Run as a script, so the tests' own server harness is not on the path yet.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.redis_servers import RedisCluster, RedisServer
from tests.servers import PostgresServer
from winch.testing.conformance import (
    MemoryTarget,
    PostgresTarget,
    RedisTarget,
    SqliteTarget,
    Target,
    run,
)
from winch.testing.conformance.__main__ import selected, show

DRIVERS = ("memory", "sqlite", "postgres", "redis", "redis+cluster")


@contextmanager
def target_of(driver: str) -> Iterator[Target]:
    """The driver's target, with the server that it needs."""
    match driver:
        case "memory":
            yield MemoryTarget()
        case "sqlite":
            yield SqliteTarget()
        case "postgres":
            if url := os.environ.get("WINCH_TEST_PG"):
                yield PostgresTarget(url)
            else:
                # Whether commits reach the disk is no part of this suite.
                with PostgresServer(fsync=False) as server:
                    yield PostgresTarget(server.url)
        case "redis":
            if url := os.environ.get("WINCH_TEST_REDIS"):
                yield RedisTarget(url)
            else:
                with RedisServer() as redis:
                    yield RedisTarget(redis.url)
        case "redis+cluster":
            with RedisCluster() as cluster:
                yield RedisTarget(cluster.url)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("drivers", nargs="*", metavar="driver", help=f"any of: {', '.join(DRIVERS)}")
    parser.add_argument("-k", metavar="TEXT", help="only cases whose family.name holds this text")
    options = parser.parse_args(argv)
    for driver in options.drivers:
        if driver not in DRIVERS:
            parser.error(f"no driver named {driver!r}; expected any of: {', '.join(DRIVERS)}")
    reports = []
    for driver in options.drivers or DRIVERS:
        with target_of(driver) as target:
            reports.append(run(target, selected(options.k)))
    return 0 if show(reports) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

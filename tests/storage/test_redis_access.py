"""Redis over TLS, and as a user with just the rights that the documents name."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.redis_servers import RedisCluster, RedisServer
from tests.redis_tls import Authority
from tests.servers import free_port
from winch.core.errors import ConfigError, StorageError, StorageUnavailable
from winch.core.lifecycle import JobState
from winch.core.values.ids import job_id, random_id
from winch.drivers.connect import redis_class
from winch.drivers.redis.driver import RedisDriver
from winch.drivers.redis.scripts import command
from winch.storage.params import Answer, ClaimParams, Finish, NewJob, NewSession

pytestmark = pytest.mark.servers

ROOT = Path(__file__).parents[2]
SECRET = "s3cret, of course"  # of a server that lives for seconds
LOGIN = "winch:s3cret%2C%20of%20course"

# The server of the wheel has no TLS; that of the system, which `make test-all` installs, has.
needs_tls = pytest.mark.slow


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        admit(server)
        yield server


@pytest.fixture(scope="module")
def secured(authority: Authority) -> Iterator[RedisServer]:
    with RedisServer(authority=authority) as server:
        admit(server)
        yield server


@pytest.fixture(scope="module")
def cluster(authority: Authority) -> Iterator[RedisCluster]:
    with RedisCluster(replicas=0, authority=authority) as cluster:
        for node in cluster.nodes:
            admit(node)
        yield cluster


def rights() -> list[str]:
    """The rights that docs/howto/redis.md lists for the user."""
    text = (ROOT / "docs/howto/redis.md").read_text()
    found = re.search(r"^ACL SETUSER winch on '>PASSWORD' (.*)$", text, re.MULTILINE)
    assert found is not None
    return [word.strip("'") for word in found[1].split()]


def admit(server: RedisServer) -> None:
    server.ask("ACL", "SETUSER", "winch", "reset", "on", f">{SECRET}", *rights())
    server.ask("ACL", "SETUSER", "guest", "reset", "on", ">guest", "~*", "+@connection", "+info")


def rediss(server: RedisServer, login: str = "", **options: str) -> str:
    """The URL of its TLS port; by default with its authority."""
    options = {"ca_file": str(server.ca_file), **options}
    query = "&".join(f"{name}={value}" for name, value in options.items() if value)
    return f"rediss://{login}{'@' if login else ''}127.0.0.1:{server.tls_port}?{query}"


def use(url: str) -> None:
    """A job's whole life, by a synchronous producer and an asynchronous worker that is woken for it."""
    driver = redis_class(url).from_url(url)
    moment = iter(range(1, 100))

    def new() -> NewJob:
        return NewJob(id=job_id(next(moment), os.urandom(8)), task="mail.send", args="{}")

    async def work() -> None:
        session = NewSession(
            id=random_id(os.urandom(16)),
            worker="w",
            host="h",
            pid=1,
            release="1",
            queues=("default",),
            tasks=("mail.send",),
            slots=1,
            lease=timedelta(minutes=1),
        )
        await driver.arun(driver.start_session(session))
        bell = driver.bell(["default"])
        await bell.arm()
        await asyncio.to_thread(driver.run, driver.enqueue([new()]))
        assert await bell.wait(10)
        await bell.aclose()
        params = ClaimParams(
            session=session.id, token=random_id(os.urandom(16)), queues=("default",), limit=1
        )
        (claim,) = await driver.arun(driver.claim(params))
        outcome = Finish(id=claim.id, token=claim.token, to=JobState.COMPLETED, what="completed")
        assert await driver.arun(driver.finish([outcome])) == [Answer.TOOK]
        await driver.arun(driver.signal("go", "1", id="1"))
        await driver.aclose()

    try:
        asyncio.run(work())
        assert driver.run(driver.counts())[JobState.COMPLETED] >= 1
        driver.facts()
    finally:
        driver.close()


def refused(url: str, error: type[Exception], words: str) -> None:
    """The errors of both sides name it, without the password."""
    for ask in (lambda driver: driver.run(driver.counts()), arun):
        driver = redis_class(url).from_url(url)
        with pytest.raises(error, match=words) as raised:
            ask(driver)
        driver.close()
        assert "s3cret" not in str(raised.value)


def arun(driver: RedisDriver) -> None:
    async def ask() -> None:
        try:
            await driver.arun(driver.counts())
        finally:
            await driver.aclose()

    asyncio.run(ask())


# -- TLS -----------------------------------------------------------------------------------------------


@needs_tls
def test_a_server_is_used_over_tls(secured: RedisServer) -> None:
    use(rediss(secured))
    use(rediss(secured, LOGIN))
    use(rediss(secured, ca_file="", verify="off"))
    use(rediss(secured).replace("127.0.0.1", "localhost"))


@needs_tls
def test_a_server_without_a_trusted_certificate_is_refused(secured: RedisServer, tmp_path: Path) -> None:
    refused(rediss(secured, ca_file=""), StorageUnavailable, "certificate verify failed.*ca_file=FILE")
    other = Authority("another authority").write(tmp_path)[0]
    refused(rediss(secured, ca_file=str(other)), StorageUnavailable, "certificate verify failed")
    refused(rediss(secured, ca_file=str(tmp_path / "none")), ConfigError, "ca_file=.*none in the URL")


def test_a_port_without_tls_has_its_own_error(server: RedisServer) -> None:
    refused(
        f"rediss://127.0.0.1:{server.port}?timeout=0.5s",
        StorageUnavailable,
        "redis:// for one that does not",
    )


def test_a_server_that_is_not_there() -> None:
    refused(
        f"redis://127.0.0.1:{free_port()}", StorageUnavailable, "is the server running, and are host"
    )


# -- users ---------------------------------------------------------------------------------------------


def test_a_user_with_the_documented_rights_is_enough(server: RedisServer) -> None:
    use(f"redis://{LOGIN}@127.0.0.1:{server.port}")


def test_a_user_may_not_touch_what_is_not_winchs(server: RedisServer) -> None:
    refused(f"redis://{LOGIN}@127.0.0.1:{server.port}?schema=other", StorageError, "docs/howto/redis.md")


def test_the_error_of_a_wrong_login_names_its_setting(server: RedisServer) -> None:
    refused(f"redis://winch:wrong@127.0.0.1:{server.port}", ConfigError, "redis://user:password@host")
    refused(f"redis://guest:guest@127.0.0.1:{server.port}", StorageError, "lacks a right")
    server.ask("CONFIG", "SET", "requirepass", "needed")
    try:
        refused(f"redis://127.0.0.1:{server.port}", ConfigError, "put user and password into the URL")
        use(f"redis://:needed@127.0.0.1:{server.port}")
    finally:
        driver = RedisDriver.from_url(f"redis://:needed@127.0.0.1:{server.port}")
        driver._pool.run(command("CONFIG", "SET", "requirepass", ""))
        driver.close()


# -- a cluster -----------------------------------------------------------------------------------------


@needs_tls
def test_a_cluster_is_used_over_tls_by_a_user(cluster: RedisCluster) -> None:
    hosts = ",".join(f"127.0.0.1:{node.tls_port}" for node in cluster.nodes)
    ca_file = cluster.nodes[0].ca_file
    use(f"rediss+cluster://{hosts}?ca_file={ca_file}")
    for node in cluster.nodes:  # each of them names the node of the slot
        use(f"rediss+cluster://{LOGIN}@127.0.0.1:{node.tls_port}?ca_file={ca_file}")
    refused(f"rediss+cluster://winch:wrong@{hosts}?ca_file={ca_file}", ConfigError, "WRONGPASS")
    refused(f"rediss+cluster://{hosts}", StorageUnavailable, "ca_file=FILE")

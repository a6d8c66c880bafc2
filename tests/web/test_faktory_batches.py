"""Batches of Faktory's clients, on each store: their callbacks run once, after all members, and never
before the commit."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from tests.redis_servers import RedisCluster
from tests.web.conftest import STORES
from tests.web.faktory_kit import Client, Refused, gateway
from winch import App
from winch.core.lifecycle import JobState
from winch.web.faktory import commands


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A FETCH that finds nothing ends soon."""
    monkeypatch.setattr(commands, "FETCH_SECONDS", 0.3)


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    with RedisCluster(replicas=0) as servers:
        yield servers.url


@pytest.fixture(params=[*STORES, "redis+cluster"])
def app(request: pytest.FixtureRequest, url_of: Callable[[str], str]) -> App:
    if request.param == "redis+cluster":
        url = f"{request.getfixturevalue('cluster')}?schema=web{secrets.token_hex(6)}"
    else:
        url = url_of(request.param)
    app = App(url)
    app.migrate()
    return app


def run(app: App, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        try:
            await main()
        finally:
            await app.aclose()

    asyncio.run(whole())


async def new_batch(client: Client, **given: object) -> str:
    given.setdefault("success", {"jobtype": "report", "args": ["s"], "queue": "after"})
    client.reads_text = True
    bid = await client.say("BATCH NEW", given)
    client.reads_text = False
    assert isinstance(bid, str)
    return bid


async def work(client: Client, *queues: str, fails: bool = False) -> list[str]:
    """Run what is ready, as the kinds of jobs that came."""
    done: list[str] = []
    while (job := await client.fetch(*queues)) is not None:
        if fails:
            await client.say("FAIL", {"jid": job["jid"], "errtype": "E", "message": "no"})
        else:
            await client.say("ACK", {"jid": job["jid"]})
        done.append(job["jobtype"])
    return done


async def unblock(app: App) -> None:
    """What a worker's upkeep does."""
    while (await app.driver.arun(app.driver.unblock())).count:
        pass


def test_callbacks_follow_the_commit_and_the_last_member(app: App) -> None:
    async def main() -> None:
        async with gateway(app) as port, Client(port, wid="w1") as client:
            complete = {"jobtype": "tidy", "args": [], "queue": "after"}
            bid = await new_batch(client, complete=complete, description="import")
            jids = [await client.push("load", n, custom={"bid": bid}) for n in range(3)]
            many = [
                {"jid": f"m-{n}", "jobtype": "load", "args": [n], "custom": {"bid": bid}} for n in (1, 2)
            ]
            assert await client.say("PUSHB", many) == {}
            assert await work(client, "default") == ["load"] * 5
            await unblock(app)
            assert await work(client, "after") == [], "the batch is not committed"
            again = await client.push("load", 9, custom={"bid": bid})
            assert await client.say("BATCH COMMIT", bid) == "OK"
            assert await client.say("BATCH COMMIT", bid) == "OK"
            await unblock(app)
            assert await work(client, "after") == [], "a member has not ended"
            found = await client.say("BATCH STATUS", bid)
            assert (found["bid"], found["description"]) == (bid, "import")
            assert (found["total"], found["pending"], found["failed"]) == (6, 1, 0)
            assert (found["success_st"], found["complete_st"]) == ("", "")
            assert await work(client, "default") == ["load"]
            await unblock(app)
            assert sorted(await work(client, "after")) == ["report", "tidy"]
            found = await client.say("BATCH STATUS", bid)
            assert (found["pending"], found["success_st"], found["complete_st"]) == (0, "2", "2")
            await client.push("load", 0, jid=jids[0], custom={"bid": bid})  # a lost reply
            with pytest.raises(Refused, match="is over"):
                await client.push("load", 1, custom={"bid": bid})
            assert await work(client, "default", "after") == []
            assert (await app.jobs.aget(again)).record.state is JobState.COMPLETED

    run(app, main)


def test_a_member_that_runs_adds_members(app: App) -> None:
    async def main() -> None:
        async with gateway(app) as port, Client(port, wid="w1") as client:
            bid = await new_batch(client)
            await client.push("first", custom={"bid": bid})
            await client.say("BATCH COMMIT", bid)
            job = await client.fetch()
            client.reads_text = True
            assert await client.say("BATCH OPEN", job["custom"]["bid"]) == bid
            client.reads_text = False
            await client.push("second", custom={"bid": bid})
            await client.say("BATCH COMMIT", bid)
            await client.say("ACK", {"jid": job["jid"]})
            await unblock(app)
            assert await work(client, "after") == []
            assert await work(client, "default") == ["second"]
            await unblock(app)
            assert await work(client, "after") == ["report"]
            with pytest.raises(Refused, match="is over"):
                await client.say("BATCH OPEN", bid)

    run(app, main)


def test_a_dead_member_means_complete_and_no_success(app: App) -> None:
    async def main() -> None:
        async with gateway(app) as port, Client(port, wid="w1") as client:
            complete = {"jobtype": "tidy", "args": [], "queue": "after"}
            bid = await new_batch(client, complete=complete)
            await client.push("breaks", custom={"bid": bid}, retry=0)
            await client.push("other", queue="late", custom={"bid": bid})
            await client.say("BATCH COMMIT", bid)
            assert await work(client, "default", fails=True) == ["breaks"]
            assert await work(client, "late") == ["other"]
            await unblock(app)
            assert await work(client, "after") == ["tidy"]
            found = await client.say("BATCH STATUS", bid)
            assert (found["total"], found["pending"], found["failed"]) == (2, 0, 1)
            assert (found["success_st"], found["complete_st"]) == ("", "2")

    run(app, main)


def test_an_outer_batch_waits_for_the_inner_one_and_its_callback(app: App) -> None:
    async def main() -> None:
        async with gateway(app) as port, Client(port, wid="w1") as client:
            outer = await new_batch(client, success={"jobtype": "all", "args": [], "queue": "after"})
            inner = await new_batch(
                client, parent_bid=outer, success={"jobtype": "part", "args": [], "queue": "after"}
            )
            await client.say("BATCH COMMIT", outer)
            await client.push("load", custom={"bid": inner})
            assert await work(client, "default") == ["load"]
            await unblock(app)
            assert await work(client, "after") == [], "the inner batch is not committed"
            await client.say("BATCH COMMIT", inner)
            await unblock(app)
            assert await work(client, "after") == ["part"]
            await unblock(app)
            assert await work(client, "after") == ["all"]
            assert (await client.say("BATCH STATUS", inner))["parent_bid"] == outer

    run(app, main)


def test_an_empty_batch_runs_its_callback(app: App) -> None:
    async def main() -> None:
        async with gateway(app) as port, Client(port, wid="w1") as client:
            bid = await new_batch(client)
            await unblock(app)
            assert await work(client, "after") == []
            await client.say("BATCH COMMIT", bid)
            await unblock(app)
            assert await work(client, "after") == ["report"]

    run(app, main)


def test_a_batch_goes_on_through_another_gateway(app: App) -> None:
    async def main() -> None:
        async with gateway(app) as one, gateway(app) as two:
            async with Client(one, wid="w1") as client:
                bid = await new_batch(client)
                await client.push("load", custom={"bid": bid})
            async with Client(two, wid="w2") as client:
                await client.push("load", custom={"bid": bid})
                await client.say("BATCH COMMIT", bid)
                assert await work(client, "default") == ["load", "load"]
                await unblock(app)
                assert await work(client, "after") == ["report"]

    run(app, main)


def test_a_refusal_has_a_reason(app: App) -> None:
    async def main() -> None:
        async with gateway(app) as port, Client(port, wid="w1") as client:
            for line, why in (
                ("BATCH NEW {}", "needs a callback"),
                ('BATCH NEW {"success":{"args":[]}}', "jobtype"),
                ('BATCH NEW {"success":{"jobtype":"a","args":[]},"parent_bid":"b-1"}', "no batch 'b-1'"),
                ("BATCH COMMIT b-1", "no batch 'b-1'"),
                ("BATCH STATUS", "no batch ''"),
                ("BATCH CLOSE b-1", "NEW, OPEN, COMMIT, STATUS"),
            ):
                with pytest.raises(Refused, match=why):
                    await client.say(line)
            with pytest.raises(Refused, match="no batch 'b-1'"):
                await client.push("load", custom={"bid": "b-1"})
            with pytest.raises(Refused, match=r"custom\.bid"):
                await client.push("load", custom={"bid": 7})
            jid = await client.push("load")
            bid = await new_batch(client)
            with pytest.raises(Refused, match="stored before, and not as a member"):
                await client.push("load", jid=jid, custom={"bid": bid})

    run(app, main)

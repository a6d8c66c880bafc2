"""The gateway for clients of Faktory, spoken to as they speak, on each store."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.redis_tls import Authority
from tests.web.conftest import STORES
from tests.web.faktory_kit import Client, Refused, gateway
from winch import App, Keyring
from winch.core.errors import ConfigError
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.web.faktory import commands, mutations, reservations
from winch.web.faktory import gateway as gateways
from winch.web.faktory.gateway import FaktoryConfig, checked
from winch.web.faktory.wire import MAX_HELLO_BYTES

MakeApp = Callable[[], App]
Run = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A FETCH that finds nothing ends soon."""
    monkeypatch.setattr(commands, "FETCH_SECONDS", 0.4)


@pytest.fixture
def made() -> list[App]:
    """The apps of a test."""
    return []


@pytest.fixture
def run(made: list[App]) -> Run:
    """Run a coroutine and close the apps in the same loop."""

    async def whole(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await main()
        finally:
            for app in made:
                await app.aclose()

    return lambda main: asyncio.run(whole(main))


@pytest.fixture(params=STORES)
def make_app(request: pytest.FixtureRequest, url_of: Callable[[str], str], made: list[App]) -> MakeApp:
    """Apps on one store of each kind; in memory each call gives the same app."""
    url = url_of(request.param)

    def make() -> App:
        if not made or request.param != "memory":
            made.append(App(url))
            made[0].migrate()
        return made[-1]

    return make


@pytest.fixture
def app(make_app: MakeApp) -> App:
    return make_app()


async def state_of(app: App, jid: str) -> JobState:
    return (await app.jobs.aget(jid)).record.state


def test_a_job_goes_from_a_producer_to_a_worker_and_ends(app: App, run: Run) -> None:
    async def main() -> None:
        async with gateway(app) as port, Client(port) as producer, Client(port, wid="w1") as worker:
            jid = await producer.push("resize", "a.png", {"w": 100}, custom={"locale": "en"}, retry=3)
            assert await state_of(app, jid) is JobState.READY
            job = await worker.fetch("other", "default")
            assert (job["jid"], job["jobtype"], job["args"]) == (jid, "resize", ["a.png", {"w": 100}])
            assert (job["custom"], job["retry"], job["reserve_for"]) == ({"locale": "en"}, 3, 1800)
            assert "failure" not in job
            assert await state_of(app, jid) is JobState.RUNNING
            assert await worker.say("ACK", {"jid": jid}) == "OK"
            assert await worker.say("ACK", {"jid": jid}) == "OK", "a lost reply is asked for again"
            assert await state_of(app, jid) is JobState.COMPLETED
            assert await worker.fetch() is None

    run(main)


def test_a_failed_job_is_retried_and_then_dead(app: App, run: Run) -> None:
    async def main() -> None:
        async with gateway(app) as port, Client(port, wid="w1") as worker:
            jid = await worker.push("breaks", retry=1)
            for attempt in (1, 2):
                job = await worker.fetch()
                assert job.get("failure", {}).get("retry_count", 0) == attempt - 1
                error = {
                    "jid": jid,
                    "errtype": "E42",
                    "message": "no",
                    "backtrace": ["a.js:1", "b.js:2"],
                }
                assert await worker.say("FAIL", error) == "OK"
                if attempt == 1:
                    assert await state_of(app, jid) is JobState.RETRYING
                    await app.jobs.aretry(jid)
            record = (await app.jobs.aget(jid)).record
            assert record.state is JobState.DEAD
            assert record.error is not None
            assert (record.error.type, record.error.message) == ("E42", "no")
            assert record.error.traceback == "a.js:1\nb.js:2"

    run(main)


def test_the_same_push_twice_is_one_job(app: App, run: Run) -> None:
    async def main() -> None:
        async with gateway(app) as port, Client(port, wid="w1") as client:
            for jid in (str(uuid.uuid4()), "order-7-of-a-client"):
                await client.push("pay", 7, jid=jid)
                await client.push("pay", 7, jid=jid)
                assert (await client.fetch())["jid"] == jid
                assert await client.say("ACK", {"jid": jid}) == "OK"
                await client.push("pay", 7, jid=jid)
            assert await client.fetch() is None

    run(main)


def test_many_at_once_and_what_is_wrong_with_some(app: App, run: Run) -> None:
    async def main() -> None:
        async with gateway(app) as port, Client(port, wid="w1") as client:
            good = [{"jid": uuid.uuid4().hex, "jobtype": "t", "args": [n]} for n in range(50)]
            bad = [
                {"jid": "no-type", "args": []},
                {"jid": "early", "jobtype": "t", "args": [], "at": "tomorrow"},
                {"jid": "short", "jobtype": "t", "args": [], "reserve_for": 5},
            ]
            refused = await client.say("PUSHB", [*good, *bad])
            assert set(refused) == {"no-type", "early", "short"}
            assert "jobtype" in refused["no-type"]
            assert "2030-01-31T12:00:00Z" in refused["early"]
            assert "60" in refused["short"]
            found = set()
            for _ in good:
                job = await client.fetch()
                found.add(job["args"][0])
                assert await client.say("ACK", {"jid": job["jid"]}) == "OK"
            assert found == set(range(50))

    run(main)


def test_time_priority_and_the_order_of_queues(app: App, run: Run) -> None:
    async def main() -> None:
        async with gateway(app) as port, Client(port, wid="w1") as client:
            later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
            due = await client.push("later", at=later)
            assert await state_of(app, due) is JobState.SCHEDULED
            low = await client.push("low", queue="low")
            slow = await client.push("normal", queue="high")
            first = await client.push("urgent", queue="high", priority=9)
            taken = [(await client.fetch("high", "low"))["jid"] for _ in range(3)]
            assert taken == [first, slow, low]

    run(main)


def test_a_worker_that_waits_gets_a_job_at_once(
    app: App, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "FETCH_SECONDS", 60.0)

    async def main() -> None:
        async with gateway(app) as port, Client(port) as producer, Client(port, wid="w1") as worker:
            waiting = asyncio.create_task(worker.fetch())
            await asyncio.sleep(0.1)
            jid = await producer.push("quick")
            async with asyncio.timeout(20):
                assert (await waiting)["jid"] == jid

    run(main)


def test_a_job_ends_through_another_gateway(make_app: MakeApp, run: Run) -> None:
    async def main() -> None:
        app, other = make_app(), make_app()
        async with gateway(app) as port, gateway(other) as second:
            async with Client(port, wid="w1") as here, Client(second, wid="w1") as there:
                jid = await here.push("moves")
                assert (await here.fetch())["jid"] == jid
                assert await there.say("TRACK", f"SET {json.dumps({'jid': jid, 'percent': 40})}") == "OK"
                assert (await here.say("TRACK", f"GET {jid}"))["percent"] == 40
                assert await there.say("ACK", {"jid": jid}) == "OK"
            assert await state_of(app, jid) is JobState.COMPLETED

    run(main)


def test_only_the_worker_that_has_a_job_ends_it(app: App, run: Run) -> None:
    async def main() -> None:
        async with (
            gateway(app) as port,
            Client(port, wid="w1") as mine,
            Client(port, wid="w2") as other,
            Client(port) as producer,
        ):
            jid = await mine.push("mine")
            await mine.fetch()
            for word in ("ACK", "FAIL"):
                with pytest.raises(Refused, match="another worker"):
                    await other.say(word, {"jid": jid})
            with pytest.raises(Refused, match="wid"):
                await producer.say("ACK", {"jid": jid})
            with pytest.raises(Refused, match="wid"):
                await producer.fetch()
            with pytest.raises(Refused, match="no job"):
                await mine.say("ACK", {"jid": str(uuid.uuid4())})
            with pytest.raises(Refused, match="ready"):
                await mine.say("ACK", {"jid": await mine.push("not taken", queue="far")})
            assert await mine.say("ACK", {"jid": jid}) == "OK"

    run(main)


def test_a_reservation_that_is_over_is_a_failed_attempt(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """The worker that took it is gone, and so is the gateway that gave it."""
    monkeypatch.setattr(reservations, "EXTEND_EVERY", 0.1)
    monkeypatch.setattr(reservations, "reserve_for", lambda claim: timedelta(seconds=1))

    async def main() -> None:
        async with gateway(make_app()) as port, Client(port, wid="w1") as worker:
            jid = await worker.push("hangs", retry=5)
            await worker.fetch()
        app = make_app()
        async with gateway(app) as port, Client(port, wid="w1") as worker:
            for _ in range(100):
                if await state_of(app, jid) is JobState.RETRYING:
                    break
                await asyncio.sleep(0.1)
            record = (await app.jobs.aget(jid)).record
            assert record.state is JobState.RETRYING
            assert record.error is not None
            assert record.error.type == "ReservationExpired"
            with pytest.raises(Refused, match="its reservation has ended"):
                await worker.say("ACK", {"jid": jid})

    run(main)


def test_a_reservation_is_kept_by_any_gateway_past_its_lease(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setattr(reservations, "LEASE", timedelta(seconds=1))
    monkeypatch.setattr(reservations, "EXTEND_EVERY", 0.2)

    async def main() -> None:
        app = make_app()
        async with gateway(app) as second:
            async with gateway(make_app()) as port, Client(port, wid="w1") as worker:
                jid = await worker.push("long")
                await worker.fetch()
            await asyncio.sleep(2.0)  # the gateway that gave it is gone
            assert await app.driver.arun(app.driver.rescue()) == []
            assert await state_of(app, jid) is JobState.RUNNING
            async with Client(second, wid="w1") as worker:
                assert await worker.say("ACK", {"jid": jid}) == "OK"

    run(main)


def test_a_client_that_leaves_while_it_waits_takes_nothing(app: App, run: Run) -> None:
    async def main() -> None:
        async with gateway(app) as port, Client(port) as producer:
            async with Client(port, wid="w1") as worker:
                worker.writer.write(b"FETCH default\r\n")
                await worker.writer.drain()
                await asyncio.sleep(0.2)
            await asyncio.sleep(0.1)
            jid = await producer.push("waits")
            async with Client(port, wid="w2") as other:
                assert (await other.fetch())["jid"] == jid

    run(main)


def test_an_operator_quiets_and_stops_a_worker(app: App, run: Run) -> None:
    async def main() -> None:
        async with gateway(app) as port, Client(port, wid="w1") as worker:
            assert await worker.say("BEAT", {"wid": "w1"}) == "OK"
            assert await worker.fetch() is None
            assert "w1" in {one.worker for one in await app.workers.alist()}
            sent = asyncio.create_task(app.workers.aquiet("w1", wait="5s"))
            replies: list[Any] = []
            while not sent.done():
                replies.append(await worker.say("BEAT", {"wid": "w1"}))
                await asyncio.sleep(0.1)
            [answer] = await sent
            assert answer.state == "done"
            assert {"state": "quiet"} in [*replies, await worker.say("BEAT", {"wid": "w1"})]
            stopped = asyncio.create_task(app.workers.astop("w1", wait="5s"))
            while not stopped.done():
                await worker.say("BEAT", {"wid": "w1"})
                await asyncio.sleep(0.1)
            assert await worker.say("BEAT", {"wid": "w1"}) == {"state": "terminate"}

    run(main)


def test_queues_are_paused_resumed_and_emptied(app: App, run: Run) -> None:
    async def main() -> None:
        async with gateway(app) as port, Client(port, wid="w1") as client:
            jid = await client.push("waits", queue="mail")
            assert await client.say("QUEUE", "PAUSE mail") == "OK"
            assert await client.fetch("mail") is None
            assert await client.say("QUEUE", "RESUME *") == "OK"
            assert (await client.fetch("mail"))["jid"] == jid
            assert await client.say("FAIL", {"jid": jid, "message": "x"}) == "OK"
            gone = await client.push("goes", queue="mail")
            assert await client.say("QUEUE", "REMOVE mail") == "OK"
            with pytest.raises(Exception, match="no job"):
                await app.jobs.aget(gone)
            with pytest.raises(Refused, match="PAUSE, RESUME or REMOVE"):
                await client.say("QUEUE", "EMPTY mail")
            lines = await app.audit.alist()
            assert {line.action for line in lines if line.via == "faktory"} >= {
                "pause queue",
                "resume queue",
                "purge queue",
            }

    run(main)


def test_a_job_that_has_expired_is_not_fetched(app: App, run: Run) -> None:
    """A producer of Winch has stored it; Faktory's own jobs never expire."""
    task = app.task(name="late")(lambda: None)

    async def main() -> None:
        async with gateway(app) as port, Client(port, wid="w1") as client:
            late = await task.using(expires="50ms").aenqueue()
            await asyncio.sleep(0.1)
            good = await task.using(expires="1h").aenqueue()
            assert (await client.fetch())["jid"] == good.id
            record = (await app.jobs.aget(late.id)).record
            assert (record.state, str(record.reason)[:11]) == (JobState.CANCELLED, "expired at ")

    run(main)


def test_a_job_whose_key_is_not_here_holds_no_other_back(app: App, run: Run) -> None:
    task = app.task(name="hidden")(lambda n: None)

    async def main() -> None:
        async with gateway(app) as port, Client(port, wid="w1") as client:
            keys, app.runtime.keys = app.runtime.keys, lambda: Keyring({"k": b"k" * 32})
            hidden = await task.aenqueue(1)
            app.runtime.keys = keys
            good = await task.aenqueue(2)
            assert (await client.fetch())["jid"] == good.id
            assert await state_of(app, hidden.id) is JobState.SCHEDULED

    run(main)


def test_a_mutation_goes_on_when_a_job_is_gone(
    app: App, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job was deleted between the search and the change."""
    look = mutations._all

    async def deleted_first(app: App, state: JobState) -> list[JobRecord]:
        found = await look(app, state)
        await app.jobs.adelete(found[0].id)
        return found

    monkeypatch.setattr(mutations, "_all", deleted_first)

    async def main() -> None:
        async with gateway(app) as port, Client(port, wid="w1") as client:
            later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
            for n in range(3):
                await client.push("type", n, at=later)
            assert await client.say("MUTATE", {"cmd": "requeue", "target": "scheduled"}) == "OK"
            info = await client.say("INFO")
            assert info["faktory"]["tasks"]["Scheduled"]["size"] == 0

    run(main)


def test_mutations_choose_by_state_and_filter(app: App, run: Run) -> None:
    async def main() -> None:
        async with gateway(app) as port, Client(port, wid="w1") as client:
            later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
            jids = [await client.push(f"type{n % 2}", n, at=later) for n in range(4)]
            some = {"cmd": "discard", "target": "scheduled", "filter": {"jobtype": "type1"}}
            assert await client.say("MUTATE", some) == "OK"
            info = await client.say("INFO")
            assert info["faktory"]["tasks"]["Scheduled"]["size"] == 2
            one = {"cmd": "requeue", "target": "scheduled", "filter": {"jids": [jids[0]]}}
            assert await client.say("MUTATE", one) == "OK"
            assert (await client.fetch())["jid"] == jids[0]
            assert await client.say("MUTATE", {"cmd": "clear", "target": "scheduled"}) == "OK"
            info = await client.say("INFO")
            assert info["faktory"]["tasks"]["Scheduled"]["size"] == 0
            with pytest.raises(Refused, match="no kill"):
                await client.say("MUTATE", {"cmd": "kill", "target": "retries"})

    run(main)


def test_flush_needs_the_server_s_consent(app: App, run: Run) -> None:
    async def main() -> None:
        async with gateway(app) as port, Client(port, wid="w1") as client:
            jid = await client.push("stays")
            with pytest.raises(Refused, match="--faktory-flush"):
                await client.say("FLUSH")
            assert await state_of(app, jid) is JobState.READY
        async with gateway(app, allows_flush=True) as port, Client(port, wid="w1") as client:
            assert await client.say("FLUSH") == "OK"
            with pytest.raises(Exception, match="no job"):
                await app.jobs.aget(jid)

    run(main)


# -- what does not depend on the store ---------------------------------------------------------------


@pytest.fixture
def memory(made: list[App]) -> App:
    made.append(App("memory://"))
    made[0].migrate()
    return made[0]


def test_a_call_of_a_python_task_is_checked_and_stored_by_name(memory: App, run: Run) -> None:
    @memory.task(name="shop.add")
    def add(a: int, b: int = 2) -> int:
        return a + b

    async def main() -> None:
        async with gateway(memory) as port, Client(port, wid="w1") as client:
            jid = await client.push("shop.add", 1)
            assert json.loads((await memory.jobs.aget(jid)).record.args) == {"a": 1}
            with pytest.raises(Refused, match=r"shop\.add"):
                await client.push("shop.add", "one")
            assert (await client.fetch())["args"] == [1, 2]
            await add.aenqueue(5, b=6)
            assert (await client.fetch())["args"] == [5, 6]

    run(main)


def test_the_password_is_required_and_guesses_are_counted(memory: App, run: Run) -> None:
    async def main() -> None:
        async with gateway(memory, password="s3cret") as port:
            async with Client(port, password="s3cret") as client:
                assert client.greeting["i"] == 1
                await client.push("in")
            for _ in range(20):
                with pytest.raises(Refused, match=r"ERR Invalid password$"):
                    await Client(port, password="wrong").__aenter__()
            with pytest.raises(Refused, match="Invalid password; too many"):
                await Client(port, password="wrong").__aenter__()
            async with Client(port, password="s3cret") as client:
                await client.push("still in: guesses of others do not close the door")

    run(main)


@pytest.mark.parametrize(
    "line, reply",
    [
        (b"PUSH {}\r\n", b"-ERR a client begins with HELLO"),
        (b"HELLO no json\r\n", b"-ERR HELLO is malformed"),
        (b"HELLO " + b"x" * 2 * MAX_HELLO_BYTES + b"\r\n", b"-ERR a line has at most 4,096 bytes"),
        (b"HELLO \xff\r\n", b"-ERR a line must be UTF-8"),
        (b'HELLO {"wid": "a\\u0000b"}\r\n', b"-ERR "),
    ],
)
def test_a_greeting_that_is_none_ends_the_connection(
    memory: App, line: bytes, reply: bytes, run: Run
) -> None:
    async def main() -> None:
        async with gateway(memory) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(line)
            greeting = await reader.read()
            assert greeting.startswith(b'+HI {"v":2}\r\n')
            assert greeting.partition(b"\r\n")[2].startswith(reply)
            writer.close()

    run(main)


def test_lines_that_make_no_sense_get_an_error_and_the_connection_stays(memory: App, run: Run) -> None:
    async def main() -> None:
        deep = "[" * 100_000
        async with gateway(memory) as port, Client(port, wid="w1") as client:
            for line, reason in (
                ("DANCE {}", "unknown command 'DANCE'"),
                ("PUSH", "malformed"),
                (f"PUSH {deep}", "malformed"),
                ('PUSH {"jid": "x", "jobtype": "t", "args": [], "queue": "a,b"}', "queue"),
                ('PUSH {"jid": "", "jobtype": "t", "args": []}', "jid"),
                ('PUSH {"jid": "long-enough", "jobtype": "t", "args": [1e999]}', "malformed|holds"),
                (
                    'PUSH {"jid": "long-enough", "jobtype": "t", "args": ["\\ud800"]}',
                    "malformed|surrogate|text",
                ),
                ('PUSH {"jid": "long-enough", "jobtype": "", "args": []}', "jobtype"),
                ("TRACK DROP x", "GET or SET"),
                ('BEAT {"wid": "another"}', "not that of HELLO"),
            ):
                with pytest.raises(Refused, match=reason):
                    await client.say(line)
            await client.push("well")

    run(main)


def test_a_silent_client_is_dropped(memory: App, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr(gateways, "HELLO_SECONDS", 0.2)
    monkeypatch.setattr(gateways, "MOST_CONNECTIONS", 6)

    async def main() -> None:
        async with gateway(memory) as port:
            idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            await asyncio.sleep(0.05)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.read() == b"-ERR too many connections\r\n"
            writer.close()
            for reader, writer in idle:
                assert (await reader.read()).startswith(b"+HI")
                writer.close()
            async with Client(port) as client:
                await client.push("served again")

    run(main)


def test_tls(memory: App, tmp_path: Path, run: Run) -> None:
    _, cert, key = (str(path) for path in Authority().write(tmp_path))

    async def main() -> None:
        async with gateway(memory, cert=cert, key=key) as port, Client(port, tls=True) as client:
            await client.push("in private")

    run(main)


def test_a_gateway_that_would_stand_open_does_not_start() -> None:
    with pytest.raises(ConfigError, match=r"WINCH_FAKTORY_PASSWORD"):
        checked(FaktoryConfig(host="0.0.0.0", port=7419))
    checked(FaktoryConfig(host="0.0.0.0", port=7419, password="x"))
    with pytest.raises(ConfigError, match="go together"):
        checked(FaktoryConfig(host="127.0.0.1", port=7419, cert="a.pem"))

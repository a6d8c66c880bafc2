"""What is particular to the Redis driver: its scripts, calls sent ahead, claims that wait."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import hiredis
import msgspec
import pytest

import winch.drivers.redis
from tests.redis_servers import RedisServer
from winch.core.errors import ConfigError, StorageUnavailable
from winch.core.lifecycle import JobState
from winch.core.values.fingerprint import fingerprint_of_trace
from winch.core.values.ids import job_id, random_id
from winch.drivers.redis.address import parse_url
from winch.drivers.redis.connections.routing import TRIES, SendRequest, ServerRoute, carried
from winch.drivers.redis.driver import RedisDriver
from winch.drivers.redis.keys import KEYS, KEYS_OF, KEYS_OF_TWO
from winch.drivers.redis.scripts import RetryPause, call, command, names, script
from winch.storage.params import (
    ClaimParams,
    Enqueued,
    JobFilter,
    NewJob,
    NewSession,
)
from winch.storage.protocol import ClaimingBell

LUA = Path(winch.drivers.redis.__file__).parent / "lua"
SQL = LUA.parents[1] / "postgres" / "sql"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def driver(server: RedisServer) -> Iterator[RedisDriver]:
    driver = RedisDriver.from_url(server.url)
    driver.erase()
    yield driver
    driver.close()


def new_job(tick: int, **fields: object) -> NewJob:
    job = {"id": job_id(tick, bytes(8)), "task": "mail.send", "args": "{}", **fields}
    return NewJob(**job)  # type: ignore[arg-type]


# -- sending ahead -----------------------------------------------------------------------------------


def long_jobs(first: int) -> list[NewJob]:
    return [new_job(first + place, args=f'"{"x" * 1000}"') for place in range(100)]


def enqueued(jobs: list[NewJob]) -> list[Enqueued]:
    return [Enqueued(job.id, True) for job in jobs]


def test_a_long_call_is_sent_before_its_turn_but_for_its_end(driver: RedisDriver) -> None:
    jobs = long_jobs(0)
    driver.run(driver.enqueue([new_job(5000), new_job(5001)]))  # now the server has the script
    # Two at once, each on a connection of its own.
    written = [driver.sending(driver.enqueue(half)) for half in (jobs[:50], jobs[50:])]
    ahead = [one._begun for one in written]  # type: ignore[attr-defined]  # what this is about
    assert all(one.sent > len(one.what.request) // 4 for one in ahead)
    assert driver.run(driver.get([job.id for job in jobs])) == [None] * 100
    for one in reversed(written):
        one.send()
    assert [one.answer() for one in written] == [enqueued(jobs[:50]), enqueued(jobs[50:])]
    assert None not in driver.run(driver.get([job.id for job in jobs]))


def test_a_call_that_is_never_sent_to_its_end_leaves_nothing(driver: RedisDriver) -> None:
    given_up, jobs = long_jobs(0), long_jobs(1000)
    driver.run(driver.enqueue([new_job(5000), new_job(5001)]))
    written = driver.sending(driver.enqueue(given_up))
    assert written._begun is not None  # type: ignore[attr-defined]
    del written
    assert driver.run(driver.enqueue(jobs)) == enqueued(jobs)  # its connection is not used again
    assert driver.run(driver.get([job.id for job in given_up])) == [None] * 100


def test_a_call_sent_ahead_is_sent_again_where_its_connection_is_lost(
    driver: RedisDriver, server: RedisServer
) -> None:
    jobs = long_jobs(0)
    driver.run(driver.enqueue([new_job(5000)]))
    written = driver.sending(driver.enqueue(jobs))
    assert written._begun is not None  # type: ignore[attr-defined]
    other = RedisDriver.from_url(server.url)
    other._pool.run(command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"))
    other.close()
    written.send()
    try:
        answers = written.answer()
    except StorageUnavailable:  # the outcome is unknown: the caller repeats with the same ids, as always
        answers = driver.run(driver.enqueue(jobs, is_repeat=True))
    assert answers == enqueued(jobs)


# -- scripts -----------------------------------------------------------------------------------------


def test_scripts_are_sent_again_however_long_the_server_was_loading() -> None:
    """Found by a soak (seed 12): a restarted server was loading through all tries, then answered
    NOSCRIPT. The driver took that for a refusal of the call, and a completed job became dead."""
    route = ServerRoute(parse_url("redis://localhost:6379"))
    what = call(b"{winch}:meta", "finish", {})
    assert what.full is not None
    loading = hiredis.ReplyError("LOADING Redis is loading the dataset in memory")
    steps = carried(what, route, loading)
    for tries in range(TRIES):
        assert isinstance(next(steps) if tries == 0 else steps.send(loading), RetryPause)
        assert steps.send(None) == SendRequest(what.request, 0)
    assert steps.send(hiredis.ReplyError("NOSCRIPT No matching script.")) == SendRequest(what.full(), 0)
    with pytest.raises(StopIteration) as stop:
        steps.send([b"took"])
    assert stop.value.value == [b"took"]


def test_every_verb_has_a_file_as_in_postgres() -> None:
    # `deaths` is what `trim` reads, `enqueue_one` stores a lone job, `enqueue_special` what is not
    # plain, `explain_gate` and `explain_queue` read the gate a job waits at, `rescore` follows
    # `set_queue`, `migrate` writes the layout's version, what `hold_scope` does is `admit`'s in SQL. The
    # others are for a cluster: what is looked at before a claim, a promote and an explain, and the way
    # of a job or of a family of gates home, or of a queue's rule into every part.
    assert set(names()) - {file.stem for file in SQL.glob("*.sql")} == {
        "arrive",
        "before",
        "begin_rule",
        "deaths",
        "depart",
        "due",
        "end_rule",
        "enqueue_one",
        "enqueue_special",
        "explain_gate",
        "explain_queue",
        "forget",
        "going_home",
        "heads",
        "hold_scope",
        "migrate",
        "open_home",
        "rescore",
        "rules_begun",
        "settle",
        "shut",
        "strays",
        "unshut",
        "users",
        "waited_at",
        "whereabouts",
    }
    # `depth` is answered by what `queues` reads; `oldest_snapshot` is of PostgreSQL's own upkeep;
    # `enqueue_special` looks at the fence itself.
    elsewhere = {"depth", "oldest_snapshot", "enqueue_fenced"}
    assert {file.stem for file in SQL.glob("*.sql")} - set(names()) - elsewhere == set()


@pytest.mark.parametrize("name", names())
def test_a_header_declares_how_a_script_is_called(name: str) -> None:
    text = (LUA / f"{name}.lua").read_text()
    assert text.startswith(f"-- {name}: ")
    for line in ("-- A: ", "-- Return: ", "-- Keys: ", "-- flags:", "-- parts:"):
        assert line in text, f"{name}.lua has no {line!r}"


def test_scripts_use_only_keys_that_are_listed() -> None:
    used = set()
    for file in LUA.rglob("*.lua"):
        used |= set(re.findall(r"\bK\.(\w+)", file.read_text()))
        assert "'KEYS'" not in file.read_text(), "a walk over all keys stops the server"
    listed = set(KEYS) | set(KEYS_OF) | set(KEYS_OF_TWO)
    assert used <= listed
    # `scheduled` and `retrying` are reached by the name of the state.
    assert listed == used | {"scheduled", "retrying", "cancelled", "dead"}


@pytest.mark.servers
def test_lua_makes_the_same_fingerprints(driver: RedisDriver) -> None:
    source = (LUA / "parts" / "fingerprint.lua").read_text() + "\nreturn fingerprint(ARGV[1], ARGV[2])"
    for length in (0, 1, 54, 55, 56, 63, 64, 65, 118, 119, 120, 1000):
        text = "ü" + "x" * length
        made = driver._pool.run(command("EVAL", source, 0, "mail.send", text))
        assert made.decode() == fingerprint_of_trace("mail.send", text)


@pytest.mark.servers
def test_scripts_are_loaded_again_after_a_script_flush(driver: RedisDriver) -> None:
    for tick in range(3):
        driver.forget_scripts()
        assert driver.run(driver.enqueue([new_job(tick)]))[0].is_new


@pytest.mark.servers
def test_a_lone_job_goes_the_same_way_through_both_doors(driver: RedisDriver) -> None:
    """The sync runner has a way of its own for it, which must come to the same."""
    job = new_job(1, queue="mails", priority=2)
    verb = driver.enqueue([job])
    assert verb.lone is not None
    driver.run(verb)
    with pytest.raises(ConfigError, match="drawn twice"):
        driver.run(verb)

    async def main() -> None:
        with pytest.raises(ConfigError, match="drawn twice"):
            await driver.arun(verb)
        await driver.arun(driver.enqueue([msgspec.structs.replace(job, id=new_job(2).id)]))
        await driver.aclose()

    asyncio.run(main())
    one, other = driver.run(driver.get([job.id, new_job(2).id]))
    assert one is not None
    assert other is not None
    assert (one.queue, one.task, one.priority, one.state) == ("mails", "mail.send", 2, JobState.READY)
    assert msgspec.structs.replace(other, id=one.id, created_at=one.created_at, run_at=one.run_at) == one
    assert driver.enqueue([job], is_repeat=True).lone is None
    assert driver.enqueue([job, new_job(3)]).lone is None
    assert driver.enqueue([new_job(4, unique_key="a")]).lone is None


@pytest.mark.servers
def test_a_lone_enqueue_records_its_event(server: RedisServer) -> None:
    driver = RedisDriver.from_url(f"{server.url}?schema=events", events=True)
    driver.erase()
    job = new_job(1)
    assert driver.run(driver.enqueue([job])) == [Enqueued(job.id, True)]
    events = driver.run(driver.events())
    assert [(event.job, event.kind) for event in events] == [(job.id, "enqueued")]
    driver.close()


@pytest.mark.servers
def test_replies_may_be_longer_than_what_is_received_at_once(driver: RedisDriver) -> None:
    jobs = [new_job(tick, args=f'{{"text":"{chr(97 + tick) * 250_000}"}}') for tick in range(4)]
    driver.run(driver.enqueue(jobs))
    ids = [job.id for job in jobs]
    read = driver.run(driver.get(ids))
    assert [job and job.args for job in read] == [job.args for job in jobs]

    async def main() -> None:
        assert await driver.arun(driver.get(ids)) == read
        await driver.aclose()

    asyncio.run(main())


@pytest.mark.servers
def test_pages_of_ids_go_with_their_jobs(driver: RedisDriver) -> None:
    """Jobs stored together are listed in the order of their ids, also where calls overlap in time, and
    prune rewrites pages of which less than half is left."""
    tick = 4096 * 1_763_230_000_000
    ids = [job_id(tick + 70 * at, at.to_bytes(8)) for at in range(2400)]
    chunks = [ids[at::24] for at in range(24)]  # each over all 41 ms, so on three or four pages
    for chunk in chunks:
        driver.run(driver.enqueue([new_job(1, id=one) for one in chunk]))
    alone = new_job(1)
    driver.run(driver.enqueue([alone]))
    pages = f"{driver.address.prefix}pages"
    count = driver._pool.run(command("ZCARD", pages))
    assert 24 < count <= 24 * 4
    listed, after = [], None
    for limit in (1, 70, 700, 3000):
        page = driver.run(driver.list_jobs(JobFilter(limit=limit, after=after)))
        listed += [job.id for job in page.jobs]
        after = page.next
    assert listed == [*sorted(ids, reverse=True), alone.id]
    assert driver.run(driver.counts(cap=10**6))[JobState.READY] == 2401
    kept = set(ids[-300:])
    driver.run(driver.delete(ids[:-300], by="me"))
    for _ in range(2 * count):
        driver.run(driver.prune())
    assert driver._pool.run(command("ZCARD", pages)) <= 24 * 2
    page = driver.run(driver.list_jobs(JobFilter(limit=1000)))
    assert [job.id for job in page.jobs] == [*sorted(kept, reverse=True), alone.id]
    driver.run(driver.enqueue([new_job(1, id=ids[-1], is_given_id=True)]))
    anew = new_job(1, id=ids[0], is_given_id=True)
    driver.run(driver.enqueue([anew]))
    page = driver.run(driver.list_jobs(JobFilter(limit=1000)))
    assert [job.id for job in page.jobs] == [*sorted({*kept, anew.id}, reverse=True), alone.id]


def test_a_read_only_script_is_declared_as_such() -> None:
    assert script("get").is_read
    assert not script("claim").is_read


# -- a claim that waits in the server ----------------------------------------------------------------


def waiting_claim(driver: RedisDriver) -> tuple[str, ClaimParams]:
    session = random_id(bytes(range(16)))
    driver.run(
        driver.start_session(
            NewSession(
                id=session,
                worker="w",
                host="h",
                pid=1,
                release="r",
                queues=("default",),
                tasks=("mail.send",),
                slots=2,
                lease=timedelta(seconds=30),
            )
        )
    )
    params = ClaimParams(
        session=session, token=random_id(bytes(16)), queues=("default",), limit=2, tasks=("mail.send",)
    )
    return session, params


@pytest.mark.parametrize("is_forgotten", [False, True], ids=["known script", "forgotten script"])
def test_a_claim_that_waits_is_carried_out_when_it_rings(
    driver: RedisDriver, is_forgotten: bool
) -> None:
    session, params = waiting_claim(driver)

    async def main() -> None:
        bell = driver.claiming_bell(["default"])
        assert isinstance(bell, ClaimingBell)
        await bell.arm()
        waits = asyncio.ensure_future(bell.claim_when_rung(driver.claim(params), 5.0))
        await asyncio.sleep(0.05)
        assert not waits.done()
        if is_forgotten:
            await asyncio.to_thread(driver.forget_scripts)
        job = new_job(1)
        await asyncio.to_thread(driver.run, driver.enqueue([job]))
        async with asyncio.timeout(10):
            [claim] = await waits
        assert (claim.id, claim.token) == (job.id, params.token)
        assert [ref.id for ref in await driver.arun(driver.held(session))] == [job.id]
        await bell.aclose()
        await driver.aclose()

    asyncio.run(main())


def test_a_claim_that_waits_looks_when_it_is_roused_and_when_its_time_is_over(
    driver: RedisDriver,
) -> None:
    _, params = waiting_claim(driver)

    async def main() -> None:
        bell = driver.claiming_bell(["default"])
        assert isinstance(bell, ClaimingBell)
        await bell.arm()
        waits = asyncio.ensure_future(bell.claim_when_rung(driver.claim(params), 5.0))
        await asyncio.sleep(0.02)
        bell.rouse()
        async with asyncio.timeout(10):
            assert await waits == []
            assert await bell.claim_when_rung(driver.claim(params), 0.05) == []
        await bell.aclose()
        await driver.aclose()

    asyncio.run(main())


def test_a_waiting_claim_reports_a_lost_reply(driver: RedisDriver) -> None:
    _, params = waiting_claim(driver)

    async def main() -> None:
        bell = driver.claiming_bell(["default"])
        assert isinstance(bell, ClaimingBell)
        await bell.arm()
        waits = asyncio.ensure_future(bell.claim_when_rung(driver.claim(params), 5.0))
        await asyncio.sleep(0.05)
        blocked = b"cmd=blpop"
        clients = await asyncio.to_thread(driver._pool.run, command("CLIENT", "LIST"))
        [line] = [line for line in clients.splitlines() if blocked in line]
        number = line.split()[0].removeprefix(b"id=")
        await asyncio.to_thread(driver._pool.run, command("CLIENT", "KILL", "ID", number))
        async with asyncio.timeout(10):
            with pytest.raises(StorageUnavailable) as caught:
                await waits
        assert caught.value.maybe_applied
        await bell.aclose()
        await driver.aclose()

    asyncio.run(main())

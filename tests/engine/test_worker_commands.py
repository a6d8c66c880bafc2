"""Commands to a worker in another process, through the store, on every store that processes share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from tests.engine.test_worker import until as until_state
from tests.engine.worker_kit import Shop, until, worker_process
from winch import App, ConfigError, JobState
from winch.engine.base import operation
from winch.engine.base.loops import Loops
from winch.engine.client.worker_commands import (
    ANSWERS,
    CommandAnswer,
    WorkerCommand,
    answer_of,
    look,
    send,
)
from winch.engine.supervisor.commands import Brought, WorkerCommands
from winch.engine.supervisor.heartbeat import Heart
from winch.storage.kv_records import KvFilter
from winch.storage.params import COMMANDS, NewSession, SessionInfo
from winch.testing.flaky import FlakyStorage


@pytest.fixture
def shop(store_url: str) -> Iterator[Shop]:
    shop = Shop(store_url)
    yield shop
    shop.app.close()


@pytest.fixture
def app(shop: Shop) -> App:
    return shop.app


def only(app: App) -> SessionInfo:
    [session] = app.workers.list()
    return session


def actions(app: App) -> list[str]:
    return [line.action for line in app.audit.list()]


def test_a_worker_elsewhere_is_quieted_resumed_read_and_stopped(
    shop: Shop, app: App, store_url: str, tmp_path: Path
) -> None:
    with worker_process(store_url, tmp_path) as worker:
        until(app.workers.list, "a session")
        name = only(app).worker

        [answer] = app.workers.quiet(name)
        assert (answer.state, answer.workers) == ("done", (name,))
        job = shop.pid.enqueue()
        held = shop.hold.enqueue("go")
        until(lambda: f"winch workers resume {name}" in str(job.why()), "the reason")
        assert str(job.why()).startswith("The only worker of its queue 'default' that has its task")
        [answer] = app.workers.stacks(only(app).id)
        assert answer.state == "done"
        assert "most recent call last" in answer.text
        assert job.refresh().state is JobState.READY

        [answer] = app.workers.resume(name)
        assert answer.state == "done"
        assert job.result(timeout="20s") == only(app).pid
        until(lambda: held.refresh().state is JobState.RUNNING, "the held job")
        [answer] = app.workers.stacks(name)
        assert f"running: job {held.id} (shop.hold)" in answer.text
        assert "in hold" in answer.text

        [answer] = app.workers.drain(name)
        assert answer.state == "done"
        assert worker.process.poll() is None
        late = shop.pid.enqueue()
        with pytest.raises(TimeoutError):
            late.result(timeout="700ms")
        (tmp_path / "go").touch()
        assert worker.process.wait(20) == 0
        assert held.result(timeout="5s") == "go"
        assert held.refresh().record.attempt == 1
    assert actions(app) == [
        "drain worker", "worker stacks", "resume worker", "worker stacks", "quiet worker"
    ]  # fmt: skip
    assert app.driver.run(app.driver.kv_list(KvFilter(book=COMMANDS))) == []
    with pytest.raises(ConfigError, match="no live worker named"):
        app.workers.stop(name)


def test_concurrency_and_queues_change_while_jobs_run(
    shop: Shop, app: App, store_url: str, tmp_path: Path
) -> None:
    with worker_process(store_url, tmp_path, "-c", "1", "-p", "2"):
        until(lambda: len(app.workers.list()) == 2, "two sessions")
        before = {session.id for session in app.workers.list()}
        held = shop.hold.enqueue("go")
        until(lambda: held.refresh().state is JobState.RUNNING, "the held job")
        mail = shop.mail.enqueue()

        names = [session.worker for session in app.workers.list()]
        [answer] = app.workers.configure(*names, concurrency=3, queues={"default": 2, "mail": 1})
        assert (answer.state, set(answer.workers)) == ("done", set(names))
        assert answer.text.startswith("replaces its 2 processes by some with --concurrency 3 --queues")
        assert mail.result(timeout="20s") > 0
        until(lambda: len(new_ones(app, before)) == 2, "two new sessions")
        for session in new_ones(app, before):
            assert (session.slots, session.queues) == (3, ("default", "mail"))
        assert held.refresh().state is JobState.RUNNING  # in its old process
        (tmp_path / "go").touch()
        assert held.result(timeout="20s") == "go"
        assert held.refresh().record.attempt == 1
        until(lambda: len(app.workers.list()) == 2, "the end of the old processes")

        [answer] = app.workers.stop(new_ones(app, before)[0].worker, grace="1s")
        assert answer.state in ("done", "ended")
        until(lambda: not app.workers.list(), "the end")


def new_ones(app: App, before: set[str]) -> list[SessionInfo]:
    return [session for session in app.workers.list() if session.id not in before]


def test_a_command_is_carried_out_once_and_in_order(
    shop: Shop, app: App, store_url: str, tmp_path: Path
) -> None:
    with worker_process(store_url, tmp_path) as worker:
        until(app.workers.list, "a session")
        session = only(app)
        ids = [
            operation.run(app.driver, send(app.driver, session.id, WorkerCommand(do=do, by="ada")))
            for do in ("quiet", "resume", "quiet", "resume", "fly")
        ]
        assert ids == sorted(ids)
        last = ids[-1]

        def answer(command: str) -> CommandAnswer | None:
            return operation.run(app.driver, answer_of(app.driver, session.id, command))

        until(lambda: answer(last) is not None, "the answers")
        assert [answer(one).state for one in ids[:-1]] == ["done"] * 4  # type: ignore[union-attr]
        failed = answer(last)
        assert failed is not None
        assert failed.state == "failed"
        assert "does not know 'fly'" in failed.text
        assert shop.pid.enqueue().result(timeout="20s") == session.pid
        lines = [line for line in worker.text.splitlines() if "command from ada" in line]
        assert [line.rpartition(": ")[2] for line in lines] == [
            "quiet", "resume", "quiet", "resume", "fly"
        ]  # fmt: skip


def test_a_command_without_a_worker_is_pending_and_then_ended(app: App) -> None:
    driver = app.driver
    gone = NewSession(
        id="0198c000-0000-4000-8000-00000000dead", worker="box-1", host="box", pid=1, release="1",
        queues=("default",), tasks=(), slots=1, lease=timedelta(minutes=5), supervisor="s",
    )  # fmt: skip
    over_http = msgspec.structs.replace(
        gone, id="0198c000-0000-4000-8000-00000000beef", worker="http-1", supervisor=""
    )
    for session in (gone, over_http):
        driver.run(driver.start_session(session))
    with pytest.raises(ConfigError, match="over HTTP"):
        app.workers.quiet("http-1")
    with pytest.raises(ConfigError, match="did you mean"):
        app.workers.quiet("box-2")
    with pytest.raises(ConfigError, match="name the workers"):
        app.workers.quiet()
    with pytest.raises(ConfigError, match="concurrency must be from 1"):
        app.workers.configure("box-1", concurrency=0)
    [answer] = app.workers.quiet("box-1", wait="100ms")
    assert answer.state == "pending"
    driver.run(driver.end_session(gone.id))
    driver.run(driver.start_session(msgspec.structs.replace(gone, id=over_http.id[:-4] + "cafe")))
    assert driver.run(driver.kv_list(KvFilter(book=ANSWERS))) == []

    async def stopped() -> str:
        [answer] = await app.workers.aquiet("box-1", wait="5s")
        return answer.state

    async def both() -> str:
        waiting = asyncio.create_task(stopped())
        await asyncio.sleep(0.5)
        await driver.arun(driver.end_session(over_http.id[:-4] + "cafe"))
        state = await waiting
        await driver.aclose()
        return state

    assert asyncio.run(both()) == "ended"


# -- a worker inside an application, and lost replies ---------------------------------------------------


class FakeControl:
    """Notes what it has to do."""

    grace = 30.0

    def __init__(self) -> None:
        self.done: list[str] = []

    def stop(self, grace: float) -> None:
        self.done.append(f"stop {grace:g}")

    def quiet(self, is_quiet: bool) -> None:
        self.done.append("quiet" if is_quiet else "resume")

    async def stacks(self, session: str) -> str:
        self.done.append("stacks")
        return f"stacks of {session}"

    def configure(self, changed: Sequence[str]) -> str:
        raise ConfigError("not this one")


SESSION = NewSession(
    id="0198c000-0000-4000-8000-00000000dead", worker="box-1", host="box", pid=1, release="1",
    queues=("default",), tasks=(), slots=1, lease=timedelta(minutes=5), supervisor="s",
)  # fmt: skip


@pytest.mark.parametrize("verb", ["kv_put", "kv_delete"])
@pytest.mark.parametrize("way", ["before", "after"])
def test_a_lost_reply_repeats_the_answer_and_not_the_command(verb: str, way: str) -> None:
    asyncio.run(_lost_reply(verb, way))


async def _lost_reply(verb: str, way: str) -> None:
    app = App("memory://")
    inner = app.ready()
    await inner.arun(inner.start_session(SESSION))
    flaky = FlakyStorage(inner)
    control, loops = FakeControl(), Loops(lambda ended: None)
    commands = WorkerCommands(flaky.driver, loops, control)
    heart = Heart(inner, 300.0, time.monotonic)
    heart.add(SESSION.id)

    async def beat() -> list[Brought]:
        assert await operation.arun(inner, heart.beat()) == []
        return heart.commands

    sent = [
        await operation.arun(
            inner, send(inner, SESSION.id, WorkerCommand(do=do, by="ada", concurrency=2))
        )
        for do in ("quiet", "stacks", "configure")
    ]
    stale = await beat()
    assert [one.key.partition("/")[2] for one in stale] == sent
    (flaky.fail_before if way == "before" else flaky.fail_after)(verb)
    commands.received(stale)
    await commands.flush()
    assert control.done == ["quiet", "stacks"]
    left = await beat()
    is_gone = (verb, way) == ("kv_delete", "after")  # the delete took effect; its reply was lost
    assert [one.key.partition("/")[2] for one in left] == ([] if is_gone else sent[:1])
    commands.received(left)
    await commands.flush()
    assert await beat() == []
    commands.received(stale)  # an answer of a beat that is read late
    await commands.flush()
    assert control.done == ["quiet", "stacks"]
    found = await operation.arun(inner, look(inner, {one: [SESSION_INFO] for one in sent}))
    assert [(one.state, one.text) for one in found] == [
        ("done", "claims nothing; running jobs continue"),
        ("done", f"stacks of {SESSION.id}"),
        ("failed", "not this one"),
    ]
    await loops.stop()
    await app.aclose()


SESSION_INFO = SessionInfo(
    id=SESSION.id, worker="box-1", host="box", pid=1, release="1", queues=("default",), tasks=(),
    slots=1, started_at=datetime.now(UTC), lease_until=datetime.now(UTC), beats=0, running=0,
)  # fmt: skip


def test_a_worker_inside_an_application_takes_commands() -> None:
    asyncio.run(_embedded())


async def _embedded() -> None:
    app = App("memory://", heartbeat="50ms", lease="3s", poll="50ms")
    gate = asyncio.Event()

    @app.task
    async def hold() -> str:
        await gate.wait()
        return "held"

    async with app.worker(concurrency=2):
        [session] = await app.workers.alist()
        running = await hold.aenqueue()
        await until_state(running, JobState.RUNNING)
        [answer] = await app.workers.astacks(session.worker)
        assert f"running: job {running.id}" in answer.text
        [answer] = await app.workers.aquiet(session.worker)
        waiting = await hold.aenqueue()
        await asyncio.sleep(0.3)
        assert (await waiting.arefresh()).state is JobState.READY
        [answer] = await app.workers.aconfigure(session.worker, concurrency=4)
        assert (answer.state, "inside an application" in answer.text) == ("failed", True)
        [answer] = await app.workers.aresume(session.worker)
        await until_state(waiting, JobState.RUNNING)
        [answer] = await app.workers.adrain(session.worker)
        assert answer.state == "done"
        late = await hold.aenqueue()
        gate.set()
        for _ in range(500):
            if not await app.workers.alist():
                break
            await asyncio.sleep(0.01)
        assert [(await job.arefresh()).state for job in (running, waiting, late)] == [
            JobState.COMPLETED, JobState.COMPLETED, JobState.READY
        ]  # fmt: skip
    await app.aclose()

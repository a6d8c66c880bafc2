"""Every method of an area has an async twin: the same body, the same signature, and no blocked loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.redis_servers import RedisServer
from winch import App, Context, Job, JobNotFound, group
from winch.engine.client.twins import blocking, twin
from winch.storage.params import NewSession

AREAS = (
    "jobs",
    "dead",
    "queues",
    "schedules",
    "workers",
    "limits",
    "flows",
    "outbox",
    "webhooks",
    "idempotency",
    "audit",
)
# Some register code, as a decorator does, the others name the actor: they ask the store for nothing.
WITHOUT_TWIN = {"outbox.sink", "schedules.calendar", "webhooks.setup", "audit.actor", "audit.acting"}


# Not memory://, where nothing waits.
@pytest.fixture(params=["sqlite", "postgres", "redis"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    with ExitStack() as stack:
        if request.param == "redis":
            url = stack.enter_context(RedisServer()).url
        elif request.param == "postgres":
            url = request.getfixturevalue("postgres_url")
        else:
            url = f"sqlite:///{tmp_path}/winch.db"
        app = App(url)
        yield app
        app.close()


def methods(app: App) -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {}
    for area in AREAS:
        one = getattr(app, area)
        for name, value in inspect.getmembers(type(one), inspect.isfunction):
            if not name.startswith("_"):
                found[f"{area}.{name}"] = value
    return found


def test_every_method_has_a_twin_of_the_same_signature() -> None:
    found = methods(App("memory://"))
    plain = {name for name, method in found.items() if not is_twin(name, found)} - WITHOUT_TWIN
    assert len(plain) > 35
    missing = {name for name in plain if twin_of(name) not in found}
    assert not missing, f"no async twin: {', '.join(sorted(missing))}"
    for name in plain:
        method, other = found[name], found[twin_of(name)]
        assert inspect.signature(method) == inspect.signature(other), name
        assert (method.__doc__, other.__doc__) != (None, None)
        assert other.__name__ == twin_of(name).partition(".")[2]


def is_twin(name: str, found: dict[str, Any]) -> bool:
    area, _, method = name.partition(".")
    return method.startswith("a") and f"{area}.{method[1:]}" in found


def twin_of(name: str) -> str:
    area, _, method = name.partition(".")
    return f"{area}.a{method}"


def test_a_twin_runs_the_body_of_its_method() -> None:
    class Area:
        _client = App("memory://").client

        @blocking
        def double(self, n: int, *, plus: int = 0) -> Any:
            """Twice n."""
            yield self._client.driver().queues()
            return 2 * n + plus

        @twin(double)
        def adouble(self) -> None:
            """`double`, awaited."""

    area = Area()
    assert area.double(4, plus=1) == asyncio.run(area.adouble(4, plus=1)) == 9
    assert (Area.double.__doc__, Area.adouble.__doc__) == ("Twice n.", "`double`, awaited.")


async def every_webhook(app: App) -> None:
    hooks = app.webhooks
    hooks.setup()
    made = await hooks.asubscribe("https://example.com", ["e"], tenant="acme")
    endpoint = made.endpoint.id
    assert await hooks.alist(tenant="acme") == [await hooks.aget(endpoint)]
    assert (await hooks.aedit(endpoint, events=["f"])).events == ("f",)
    assert (await hooks.arotate(endpoint)).startswith("whsec_")
    assert (await hooks.adisable(endpoint)).is_disabled
    assert not (await hooks.aenable(endpoint)).is_disabled
    await hooks.apublish("e", 1)
    assert await hooks.adeliveries(endpoint) == []
    assert (await hooks.areplay(endpoint, start=datetime(2026, 3, 1, tzinfo=UTC))).matched == 0
    await hooks.aremove(endpoint)


async def every_call(app: App, job: Job[Any], flow: str) -> None:
    """Call each twin once, in an order in which all of them have something to do."""
    task = app.tasks.get("work")
    assert (await app.jobs.aget(job.id)).id == job.id
    assert job.id in [one.id for one in await app.jobs.alist()]
    await app.jobs.acancel(job.id, reason="x")
    await app.jobs.aretry(job.id)
    await app.jobs.acancel(job.id)
    await app.jobs.adelete(job.id)
    assert not await app.dead.alist()
    assert not await app.dead.agroups()
    assert (await app.dead.areplay(task="work")).matched == 0
    assert await app.dead.apurge(older_than="1d") == 0
    await app.queues.apause("default", reason="x", until="1h")
    [queue] = [one for one in await app.queues.alist() if one.name == "default"]
    assert queue.paused_at is not None
    await app.queues.aresume("default")
    await app.queues.aconfigure("default", max_depth=10)
    assert (await app.queues.asettings())["default"].max_depth == 10
    assert (await app.queues.apurge("none")).matched == 0
    assert (await app.queues.amove("none", "default")).matched == 0
    await app.queues.adrain("none")
    assert (await app.dead.amark("0123456789abcdef", state="ignored")).state == "ignored"
    assert list(await app.dead.amarks()) == ["0123456789abcdef"]
    assert await app.dead.atrend(["0123456789abcdef"], hours=2) == {"0123456789abcdef": [0, 0]}
    assert await app.dead.adiscard(task="work") == 0
    assert await app.jobs.aunique_keys() == []
    assert await app.jobs.arelease_key("no such") is None
    assert await app.limits.atenants() == []
    await app.limits.atrip("bank", "1m")
    assert [scope.name for scope in await app.limits.abreakers()] == ["bank"]
    assert await app.limits.auntrip("bank")
    assert await app.flows.arerun(flow, (await app.flows.aget(flow)).note.nodes[0][0]) == 0
    await app.schedules.aadd("s", task, every="1h")
    await app.schedules.aedit("s", every="2h")
    assert [one.name for one in await app.schedules.alist()] == ["s"]
    assert len(await app.schedules.anext("s", 3)) == 3
    await app.schedules.apause("s")
    await app.schedules.aresume("s")
    await app.schedules.askip("s")
    triggered = await app.schedules.atrigger("s")
    assert triggered.id in [run.job for run in await app.schedules.ahistory("s")]
    assert (await app.schedules.aget("s")).name == "s"
    day = datetime(2026, 3, 1, tzinfo=UTC)
    assert (await app.schedules.abackfill("s", day, day + timedelta(hours=4))).enqueued == 2
    await app.schedules.aremove("s")
    assert await app.workers.alist() == []
    driver = app.ready()
    session = NewSession(
        id="0198c000-0000-4000-8000-00000000dead", worker="box-1", host="box", pid=1, release="1",
        queues=("default",), tasks=(), slots=1, lease=timedelta(minutes=5), supervisor="s",
    )  # fmt: skip
    await driver.arun(driver.start_session(session))
    for command in (app.workers.aquiet, app.workers.aresume, app.workers.astop, app.workers.adrain):
        assert [one.state for one in await command("box-1", wait="0s")] == ["pending"]
    assert (await app.workers.astacks("box-1", wait="0s"))[0].workers == ("box-1",)
    assert len(await app.workers.aconfigure("box-1", concurrency=2, wait="0s")) == 1
    await driver.arun(driver.end_session(session.id))
    await app.limits.aset("limit:work", 5)
    assert "limit:work" in [one.name for one in await app.limits.alist()]
    await app.limits.areset("limit:work")
    assert flow in [one.id for one in await app.flows.alist()]
    assert (await app.flows.aget(flow)).id == flow
    assert len(await app.flows.amembers(flow)) == 1
    assert await app.flows.acancel(flow) == 1
    assert await app.flows.aretry(flow) == 1
    await app.outbox.aadd("orders", payload=1)
    [message], _ = await app.outbox.alist("orders")
    assert (await app.outbox.areplay("orders")).matched == 0
    assert await app.outbox.apurge("orders", older_than="1d") == 0
    await every_webhook(app)
    async with app.idempotency.abegin("k") as once:
        assert once.new
    await message.adelete()
    assert (await app.audit.alist(limit=1))[0].action == "delete"
    await app.aclose()


def test_no_twin_uses_the_driver_in_the_way_that_blocks(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(name="work")
    def work(*, ctx: Context | None = None) -> None: ...

    app.migrate()
    job = work.using(delay="1h").enqueue()
    made = group([work.using(delay="1h").bind()]).enqueue()
    called: set[str] = set()
    for area in AREAS:
        watch(getattr(app, area), called, area, monkeypatch)
    driver, loop_thread = app.ready(), threading.get_ident()
    plain = type(driver).run

    def run(self: Any, verb: Any) -> Any:
        assert threading.get_ident() != loop_thread, f"{verb.name} blocks the event loop"
        return plain(self, verb)

    monkeypatch.setattr(type(driver), "run", run)
    asyncio.run(every_call(app, job, made.id))
    found = methods(app)
    twins = {name for name in found if is_twin(name, found)}
    assert called == twins, f"not called: {sorted(twins - called)}"


def watch(area: Any, called: set[str], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Note which twins of the area are called."""
    kind = type(area)
    for method, value in inspect.getmembers(kind, inspect.isfunction):
        if method.startswith("a") and hasattr(kind, method[1:]):
            monkeypatch.setattr(kind, method, noting(f"{name}.{method}", value, called))


def noting(name: str, method: Callable[..., Any], called: set[str]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        called.add(name)
        return method(*args, **kwargs)

    return call


def test_the_first_look_at_a_store_does_not_block_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(f"sqlite:///{tmp_path}/winch.db")
    app.migrate()
    looked: list[int] = []
    look = type(app.driver).check_schema

    def check_schema(self: Any) -> Any:
        looked.append(threading.get_ident())
        return look(self)

    monkeypatch.setattr(type(app.driver), "check_schema", check_schema)

    async def ask() -> None:
        with pytest.raises(JobNotFound):
            await app.jobs.aget("01980000-0000-7000-8000-000000000000")

    asyncio.run(ask())
    app.close()
    assert looked
    assert threading.get_ident() not in looked

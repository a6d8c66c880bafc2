"""What the modules for web frameworks do beyond the example shops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from fastapi import FastAPI, Request, Response
from flask import Flask, current_app, g
from litestar import Litestar, get
from litestar.di import NamedDependency
from starlette.applications import Starlette

from winch import App, ConfigError, Context, Discard, JobNotFound
from winch.integrations import fastapi as for_fastapi
from winch.integrations import flask as for_flask
from winch.integrations import starlette as for_starlette
from winch.integrations.litestar import AnyRequest, WinchPlugin, jobs_of
from winch.integrations.status import status_of
from winch.web import Access


@pytest.fixture
def jobs(tmp_path: Path) -> App:
    app = App(f"sqlite:///{tmp_path / 'winch.db'}")

    @app.task(name="add", queue="sums")
    def add(a: int, b: int) -> int:
        return a + b

    return app


async def within(site: Any, ask: Any, root_path: str = "") -> Any:
    """Run the lifespan of an ASGI application, and ask it meanwhile."""
    events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    living = asyncio.create_task(site(scope, events.get, sent.put))
    await events.put({"type": "lifespan.startup"})
    assert (await sent.get())["type"] == "lifespan.startup.complete"
    transport = httpx.ASGITransport(site, root_path=root_path)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop.test") as client:
        result = await ask(client)
    await events.put({"type": "lifespan.shutdown"})
    assert (await sent.get())["type"] == "lifespan.shutdown.complete"
    await living
    return result


def test_a_worker_inside_the_web_process_runs_jobs(jobs: App) -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def own(_: Any) -> AsyncIterator[dict[str, Any]]:
        seen.append("start")
        yield {"shop": 7}
        seen.append("end")

    api = FastAPI(lifespan=for_fastapi.lifespan(jobs, queues=["sums"], concurrency=2, inner=own))
    api.include_router(for_fastapi.job_router(jobs, may_read=lambda *_: True, with_result=True))

    @api.post("/sums", status_code=202)
    async def create(request: Request, found: for_fastapi.Jobs) -> Response:
        assert found is jobs
        return for_fastapi.accepted(request, await jobs.tasks.get("add").aenqueue(1, 2), {"a": 1})

    globals().update(for_fastapi=for_fastapi)  # FastAPI reads the annotations of a function here

    async def ask(client: httpx.AsyncClient) -> Any:
        answer = await client.post("/sums")
        assert (answer.status_code, answer.json()["a"]) == (202, 1)
        location = answer.headers["location"]
        assert location == f"/shop/jobs/{answer.json()['id']}"
        state: dict[str, Any] = {}
        for _ in range(200):
            state = (await client.get(location.removeprefix("/shop"))).json()
            if state["state"] == "completed":
                return state
            await asyncio.sleep(0.05)
        raise AssertionError(state)

    state = asyncio.run(within(api, ask, root_path="/shop"))
    assert (state["result"], state["attempt"], seen) == (3, 1, ["start", "end"])
    described = api.openapi()["paths"]["/jobs/{job_id}"]["get"]
    assert described["responses"]["200"]["content"]["application/json"]["schema"]


def test_starlette_has_the_same_route_and_checks_access(jobs: App) -> None:
    async def may_read(request: Any, record: Any) -> bool:
        return bool(request.headers.get("x-user") == "ada" and record.queue == "sums")

    site = Starlette(
        routes=[for_starlette.job_route(jobs, may_read=may_read)],
        lifespan=for_starlette.lifespan(jobs),
    )
    for_starlette.mount_dashboard(site, "/ops", jobs, authenticate=lambda _: Access("ada"))

    async def ask(client: httpx.AsyncClient) -> list[int]:
        job = await jobs.tasks.get("add").aenqueue(1, 2)
        found = await client.get(f"/jobs/{job.id}", headers={"x-user": "ada"})
        assert (found.json()["state"], found.json()["result"]) == ("ready", None)
        assert found.headers["cache-control"] == "no-store"
        paths = (f"/jobs/{job.id}", "/jobs/none", "/ops/")
        return [(await client.get(path)).status_code for path in paths]

    assert asyncio.run(within(site, ask)) == [404, 404, 200]


def test_a_missing_lifespan_is_named(jobs: App) -> None:
    api = FastAPI()

    @api.get("/")
    async def home(request: Request) -> Response:
        with pytest.raises(ConfigError, match="lifespan"):
            for_fastapi.jobs_of(request)
        job = await jobs.tasks.get("add").aenqueue(1, 2)
        with pytest.raises(ConfigError, match="job_route"):
            for_fastapi.accepted(request, job)
        return Response("ok")

    async def ask(client: httpx.AsyncClient) -> str:
        return (await client.get("/")).text

    assert asyncio.run(within(api, ask)) == "ok"
    jobs.close()
    with pytest.raises(ConfigError, match="authenticate"):
        WinchPlugin(jobs, dashboard="/ops")
    site = Flask("shop")
    with site.test_request_context():
        with pytest.raises(ConfigError, match="init_app"):
            for_flask.jobs_of()
        with pytest.raises(ConfigError, match="job_blueprint"):
            for_flask.accepted(jobs.tasks.get("add").enqueue(1, 2))
    with pytest.raises(ConfigError, match="init_app"):
        _ = for_flask.Winch(jobs).site
    jobs.close()


def test_litestar_gives_the_app_and_mounts_below_a_root_path(jobs: App) -> None:
    @get("/first", sync_to_thread=False)
    def first(winch_jobs: NamedDependency[App]) -> str:
        return str(winch_jobs is jobs)

    @get("/again", sync_to_thread=False)
    def again(request: AnyRequest) -> str:
        return str(jobs_of(request) is jobs)

    site = Litestar(
        [first, again],
        plugins=[
            WinchPlugin(
                jobs,
                dependency="winch_jobs",
                queues=["sums"],
                dashboard="/ops/jobs",
                authenticate=lambda request: Access(request.headers["x-user"], roles=("operate",)),
            )
        ],
        openapi_config=None,
    )

    async def ask(client: httpx.AsyncClient) -> None:
        user = {"x-user": "ada", "accept": "text/html"}
        assert [(await client.get(path)).text for path in ("/first", "/again")] == ["True", "True"]
        job = await jobs.tasks.get("add").aenqueue(1, 2)
        assert await job.aresult(timeout="20s") == 3
        home = await client.get("/ops/jobs", headers=user)
        assert home.status_code == 200
        assert 'href="/ops/jobs/jobs"' in home.text
        page = await client.get(f"/ops/jobs/jobs/{job.id}", headers=user)
        assert page.status_code == 200
        token = page.text.split('name="form_token" value="')[1].split('"')[0]
        done = await client.post(
            f"/ops/jobs/jobs/{job.id}/retry",
            data={"form_token": token},
            headers={**user, "sec-fetch-site": "same-origin"},
        )
        assert done.status_code == 303
        assert done.headers["location"].startswith(f"/ops/jobs/jobs/{job.id}")

    asyncio.run(within(site, ask))


def test_flask_contexts_are_those_of_the_handlers_thread(jobs: App) -> None:
    site = Flask("shop")
    site.config["NAME"] = "shop"
    for_flask.Winch(jobs).init_app(site)
    ended: list[int] = []
    site.teardown_appcontext(lambda _: ended.append(threading.get_ident()))
    ran: list[int] = []

    @jobs.task(name="plain", queue="sums")
    def plain(a: int) -> str:
        g.a = a
        ran.append(threading.get_ident())
        return f"{current_app.config['NAME']} {g.a}"

    @jobs.task(name="coroutine", queue="sums")
    async def coroutine(a: int) -> str:
        assert "a" not in g  # of the other job
        g.a = a
        await asyncio.sleep(0)
        return f"{current_app.config['NAME']} {g.a}"

    found = [plain.enqueue(1), coroutine.enqueue(2)]
    for _ in range(2):  # a second worker in this process does not enter the context twice
        jobs.run_worker(queues=["sums"], burst=True)
    assert [job.result() for job in found] == ["shop 1", "shop 2"]
    assert ran[0] in ended
    assert ran[0] != threading.get_ident()
    assert len(ended) == 2
    jobs.close()


def test_a_status_shows_progress_and_the_type_of_an_error_only(jobs: App) -> None:
    @jobs.task(name="fail", queue="sums")
    def fail(ctx: Context) -> None:
        raise Discard("CANARY")

    job = fail.enqueue()
    jobs.run_worker(queues=["sums"], burst=True)
    shown = '{"percent":40,"message":"halfway"}'
    job._record = msgspec.structs.replace(job.refresh().record, progress=shown)
    status = status_of(job, with_result=True)
    assert (status.state, status.progress, status.message) == ("dead", 40, "halfway")
    assert status.is_final
    assert "CANARY" not in str(status)
    with pytest.raises(JobNotFound):
        status_of(jobs.tasks.get("fail").handle("none"))
    jobs.close()

"""The same commands from the command line and over HTTP, against a worker in another process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx

from tests.cli.command import Command
from tests.engine.worker_kit import Shop, until, worker_process
from winch import JobState
from winch.storage.params import SessionInfo
from winch.web.mount import build
from winch.web.site import SiteConfig
from winch.web.tokens import Tokens


def test_the_command_line_reaches_a_worker_and_leaves_audit_lines(
    store_url: str, tmp_path: Path
) -> None:
    shop = Shop(store_url)
    app = shop.app
    winch = Command(tmp_path)
    winch.url = store_url
    with (
        worker_process(store_url, tmp_path) as busy,
        worker_process(store_url, tmp_path, number=1) as idle,
    ):
        until(lambda: len(app.workers.list()) == 2, "two workers")
        names = [session.worker for session in app.workers.list()]
        quiet = winch("workers", "quiet", *names, "--json")
        assert quiet.code == 0, quiet.err
        assert [answer["state"] for answer in quiet.json["answers"]] == ["done", "done"]
        until(lambda: winch("workers", "list").out.count("left, quiet") == 2, "quiet workers")
        listed = winch("workers", "list", "--json").json["workers"]
        assert [one["is_quiet"] for one in listed] == [True, True]
        assert "2 quiet workers, claiming nothing" in " ".join(winch("doctor").out.split())
        assert winch("workers", "resume", "--all").code == 0
        stacks = winch("workers", "stacks", names[0])
        assert "most recent call last" in stacks.out

        held = shop.hold.enqueue("go")
        until(lambda: held.refresh().state is JobState.RUNNING, "the held job")
        drained = winch("workers", "drain", "--idlest", "1", "--until-ended", "20s")
        assert drained.code == 0, drained.err
        [left] = app.workers.list()
        assert left.running == 1
        until(lambda: {busy.process.poll(), idle.process.poll()} == {None, 0}, "one end")

        configured = winch("workers", "configure", left.worker, "-c", "2", "-Q", "default,mail")
        assert configured.code == 0, configured.err
        assert "replaces its process by one with --concurrency 2" in configured.out
        assert shop.mail.enqueue().result(timeout="20s") > 0
        (tmp_path / "go").touch()
        assert held.result(timeout="20s") == "go"
        until(lambda: len(app.workers.list()) == 1, "the end of the old process")
        stopped = winch("workers", "stop", app.workers.list()[0].worker, "--grace", "1s")
        assert stopped.code == 0, stopped.err
        until(lambda: not app.workers.list(), "the end")
    lines = [(line.action, line.via) for line in app.audit.list()]
    assert lines == [
        ("stop worker", "cli"),
        ("configure worker", "cli"),
        ("drain worker", "cli"),
        ("worker stacks", "cli"),
        ("resume worker", "cli"),
        ("quiet worker", "cli"),
    ]
    app.close()


def test_http_reaches_a_worker_leaves_audit_lines_and_refuses_narrowed_tokens(
    store_url: str, tmp_path: Path
) -> None:
    shop = Shop(store_url)
    with worker_process(store_url, tmp_path):
        until(shop.app.workers.list, "a worker")
        asyncio.run(_over_http(shop, shop.app.workers.list()[0]))
    shop.app.close()


async def _over_http(shop: Shop, session: SessionInfo) -> None:
    app = shop.app
    tokens = Tokens(app.driver)
    whole, _ = await app.client.arun(tokens.create("ops", ("operate",)))
    narrow, _ = await app.client.arun(tokens.create("part", ("operate",), queues=("default",)))
    reader, _ = await app.client.arun(tokens.create("reader", ("read",)))
    transport = httpx.ASGITransport(build(app, SiteConfig(auth="tokens")))
    base = f"/api/v1/workers/{session.id}"
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=30) as client:

        async def ask(method: str, path: str, token: str = whole, **body: Any) -> httpx.Response:
            headers = {"authorization": f"Bearer {token}"}
            if method == "GET":
                return await client.get(base + path, headers=headers)
            return await client.request(method, base + path, json=body, headers=headers)

        for token in (narrow, reader):
            for path in ("/quiet", "/resume", "/stop", "/drain", "/stacks"):
                assert (await ask("POST", path, token)).status_code == 403
            assert (await ask("PATCH", "", token, concurrency=2)).status_code == 403

        quiet = await ask("POST", "/quiet", wait="20s")
        assert (quiet.status_code, quiet.json()["state"]) == (200, "done"), quiet.text
        job = await shop.pid.aenqueue()
        stacks = await ask("POST", "/stacks")
        assert (stacks.status_code, stacks.json()["state"]) == (202, "pending")
        found = stacks.json()
        for _ in range(200):
            if found["state"] != "pending":
                break
            await asyncio.sleep(0.05)
            found = (await ask("GET", f"/commands/{found['id']}")).json()
        assert found["state"] == "done"
        assert "most recent call last" in found["text"]
        assert (await job.arefresh()).state is JobState.READY
        assert (await ask("POST", "/resume", wait="20s")).status_code == 200
        assert await job.aresult(timeout="20s") == session.pid
        assert (await ask("PATCH", "", queues="a,")).status_code == 422
        changed = await ask("PATCH", "", concurrency=2, wait="20s")
        assert changed.json()["state"] == "done", changed.text
        sessions = await app.workers.alist()
        for _ in range(400):
            if [one.slots for one in sessions] == [2]:
                break
            await asyncio.sleep(0.05)
            sessions = await app.workers.alist()
        [session] = sessions
        assert session.slots == 2
        base = f"/api/v1/workers/{session.id}"
        stop = await ask("POST", "/stop", grace="1s", wait="20s")
        assert stop.json()["state"] in ("done", "ended"), stop.text
    lines = [(line.action, line.via, line.who) for line in await app.audit.alist()]
    assert [line for line in lines if "worker" in line[0]] == [
        (action, "api", "ops")
        for action in (
            "stop worker", "configure worker", "resume worker", "worker stacks", "quiet worker"
        )
    ]  # fmt: skip
    await app.driver.aclose()

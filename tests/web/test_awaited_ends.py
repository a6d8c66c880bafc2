"""The end of a job over HTTP wakes the worker that checks its waiters before the next poll."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import winch
from tests.web.conftest import STORES
from tests.web.kit import LoopThread, Web
from winch.engine.maintenance.promoter import Promoter
from winch.web.mount import build
from winch.web.site import SiteConfig

# Far longer than the test has patience: only a wake-up is in time.
POLL = 60.0


@contextmanager
def promoting(web: Web, runner: LoopThread) -> Iterator[None]:
    """The promoter of a server, which sleeps until it is woken."""
    made: list[tuple[Promoter, asyncio.Task[None]]] = []

    async def start() -> None:
        promoter = Promoter(web.app.ready(), POLL)
        made.append((promoter, asyncio.create_task(promoter.run())))
        await asyncio.sleep(1)  # its first pass is over, and it waits

    async def stop() -> None:
        [(promoter, task)] = made
        promoter.stop()
        await task

    runner.run(start())
    try:
        yield
    finally:
        runner.run(stop())


def next_member(web: Web, session: str) -> tuple[Any, float]:
    """The next job of the session, and how long it took to come."""
    began = time.monotonic()
    answer = web.api("POST", f"/sessions/{session}/claim", {"wait": "20s"})
    [job] = answer.json()["jobs"]
    return job, time.monotonic() - began


@pytest.mark.parametrize("memory", ["this server", "another server"])
@pytest.mark.parametrize("store", STORES)
def test_the_next_member_of_a_flow_comes_at_once(
    make_web: Callable[..., Web], runner: LoopThread, store: str, memory: str
) -> None:
    """Whether the server that gets the end made the claim, or reads the job from the store."""
    web = make_web(store)
    about = {"worker": "w", "queues": ["default"]}
    session = web.api("POST", "/sessions", about).json()["key"]
    winch.chain(web.add.bind(1, 2), web.add.partial(b=5)).enqueue()
    [first] = web.api("POST", f"/sessions/{session}/claim", {}).json()["jobs"]
    if memory == "another server":
        web.asgi = build(web.app, SiteConfig(auth="open", hosts=frozenset({"localhost"})))
    end = {"id": first["id"], "token": first["token"], "outcome": "complete", "result": 3}
    with promoting(web, runner):
        ended = web.api("POST", f"/sessions/{session}/finish", {"outcomes": [end]})
        assert [one["answer"] for one in ended.json()["answers"]] == ["took"]
        later, took = next_member(web, session)
    assert later["args"] == {"a": 3, "b": 5}
    assert took < 10


@pytest.mark.parametrize("store", STORES)
def test_the_end_of_a_job_with_a_session_of_its_own(
    make_web: Callable[..., Web], runner: LoopThread, store: str
) -> None:
    web = make_web(store)
    session = web.api("POST", "/sessions", {"worker": "w", "queues": ["default"]}).json()["key"]
    winch.chain(web.add.bind(1, 2), web.add.partial(b=5)).enqueue()
    [first] = web.claim()
    with promoting(web, runner):
        body = {"token": first["token"], "result": 3}
        ended = web.api("POST", f"/jobs/{first['id']}/complete", body)
        assert ended.json()["state"] == "completed"
        later, took = next_member(web, session)
    assert later["args"] == {"a": 3, "b": 5}
    assert took < 10

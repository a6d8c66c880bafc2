"""Streams and waiting requests end with the access that they began with."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.web.server import serving
from winch import App
from winch.storage.kv_records import KvRecord
from winch.web.tokens import BOOK, Token, Tokens

SOON = 8.0  # a loaded machine; the promise is about two seconds


@pytest.fixture
def app(tmp_path: Path) -> App:
    app = App(f"sqlite:///{tmp_path / 'winch.db'}", events="full")

    @app.task(name="add")
    def add(a: int) -> int:
        return a

    app.migrate()
    return app


def revoke(app: App, token: Token) -> None:
    app.client.run(Tokens(app.driver).revoke(token.id))


def narrow(app: App, token: Token) -> None:
    less = msgspec.structs.replace(token, queues=("mail",))
    line = KvRecord(book=BOOK, key=token.id, body=msgspec.json.encode(less).decode())
    app.driver.run(app.driver.kv_put([line]))


def nothing(app: App, token: Token) -> None:
    """The token expires by itself."""


def after(seconds: float, act: Callable[[], Any]) -> threading.Timer:
    timer = threading.Timer(seconds, act)
    timer.start()
    return timer


@pytest.mark.parametrize("path", ["events", "jobs/{id}/events"])
@pytest.mark.parametrize("end", [revoke, narrow, nothing])
def test_a_stream_ends_with_its_token(app: App, path: str, end: Callable[[App, Token], None]) -> None:
    job = app.tasks.get("add").using(queue="mail").enqueue(1)
    lifetime = timedelta(seconds=3) if end is nothing else None
    text, token = app.client.run(Tokens(app.ready()).create("t", ("read",), expires=lifetime))
    with serving(app, auth="tokens") as address:
        url = f"{address}/api/v1/{path.format(id=job.id)}"
        headers = {"authorization": f"Bearer {text}"}
        timer = after(1.0, lambda: end(app, token))
        began = time.monotonic()
        with httpx.stream("GET", url, headers=headers, timeout=SOON) as answer:
            assert answer.status_code == 200
            lines = list(answer.iter_lines())
        timer.join()
        assert time.monotonic() - began < SOON
        assert "event: end" in lines
        again = httpx.get(url, headers=headers, timeout=SOON) if end is not narrow else None
        assert again is None or again.status_code == 401


@pytest.mark.parametrize("end", [revoke, narrow])
def test_a_claim_that_waits_ends_with_its_token(app: App, end: Callable[[App, Token], None]) -> None:
    text, token = app.client.run(Tokens(app.ready()).create("w", ("work",)))
    with serving(app, auth="tokens") as address:
        timer = after(1.0, lambda: end(app, token))
        began = time.monotonic()
        answer = httpx.post(
            f"{address}/api/v1/queues/default/claim",
            json={"wait": "50s"},
            headers={"authorization": f"Bearer {text}"},
            timeout=30,
        )
        timer.join()
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
        assert time.monotonic() - began < SOON
        job = app.tasks.get("add").enqueue(1)
        time.sleep(0.5)
        assert str(job.state) == "ready", "the ended claim takes no job"


def test_an_enqueue_that_waits_ends_with_its_token(app: App) -> None:
    text, token = app.client.run(Tokens(app.ready()).create("e", ("enqueue",)))
    with serving(app, auth="tokens") as address:
        timer = after(1.0, lambda: revoke(app, token))
        began = time.monotonic()
        answer = httpx.post(
            f"{address}/api/v1/jobs",
            json={"task": "add", "args": {"a": 1}},
            headers={"authorization": f"Bearer {text}", "prefer": "wait=50"},
            timeout=30,
        )
        timer.join()
        assert answer.status_code == 401
        assert time.monotonic() - began < SOON


def test_the_note_of_a_use_widens_no_token(app: App) -> None:
    """A server knows a token for half a second; it may be narrowed just before its use is noted."""
    tokens = Tokens(app.ready())
    text, token = app.client.run(tokens.create("t", ("read",)))
    app.client.run(tokens.by_id(token.id))
    narrow(app, token)
    app.client.run(tokens.recognise(text))
    [kept] = app.client.run(tokens.list())
    assert kept.queues == ("mail",)
    assert kept.used_at is not None

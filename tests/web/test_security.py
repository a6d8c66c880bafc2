"""What docs/security.md promises and no other test shows; and that every test it names is there."""

from __future__ import annotations

import ast
import base64
import inspect
import json
import os
import pickle
import re
import socket
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.web.kit import Web
from tests.web.server import serving
from winch import App, JobFailed, JobState, Retry
from winch.engine.base.failure import describe
from winch.web.tokens import Tokens

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src/winch").rglob("*.py"))


def test_every_property_names_a_test_that_is_there() -> None:
    properties, _, tests = (ROOT / "docs/security.md").read_text().partition("## Tests")
    numbers = [int(number) for number in re.findall(r"^\| S(\d+) \| \w", properties, flags=re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    rows = re.findall(r"^\| S(\d+) \| (.*) \|$", tests, flags=re.MULTILINE)
    assert [int(number) for number, _ in rows] == numbers
    for number, named_tests in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", named_tests)
        assert named, f"S{number} names no test"
        for file, name in named:
            assert f"def {name}(" in (ROOT / file).read_text(), f"S{number}: {file} has no {name}"


class _Bomb:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self._path),)


def test_nothing_stored_is_executed(tmp_path: Path) -> None:
    """A pickle and look-alikes of classes in every field that a writer of the store could fill."""
    mark, file = tmp_path / "executed", tmp_path / "winch.db"
    bomb = base64.b64encode(pickle.dumps(_Bomb(mark))).decode()
    hostile = [
        bomb,
        {"__type__": "os:mkdir", "args": [str(mark)]},
        {"py/reduce": [{"py/function": "os.mkdir"}, {"py/tuple": [str(mark)]}]},
        {"exc_module": "os", "exc_type": "mkdir", "exc_message": [str(mark)]},
    ]
    app = App(f"sqlite:///{file}")
    app.migrate()
    seen: list[Any] = []

    @app.task(name="look", retry=Retry.fixed("1ms", attempts=1))
    def look(value: Any = None) -> Any:
        seen.append(value)
        return value

    jobs = [look.enqueue(value) for value in hostile]
    odd = look.enqueue(1)
    app.close()
    conn = sqlite3.connect(file)
    columns = {row[1] for row in conn.execute("PRAGMA table_info(winch_job)")}
    for field in ("progress", "checkpoint", "log"):
        if field in columns:
            conn.execute(
                f"UPDATE winch_job SET {field} = ? WHERE id = ?", (json.dumps(hostile[1]), odd.id)
            )
    conn.commit()
    conn.close()
    app.run_worker(burst=True)
    assert all(value in seen for value in hostile), "data stays data"
    for job, value in zip(jobs, hostile, strict=True):
        assert job.result(timeout="5s") == value
    assert not mark.exists()
    app.close()


def test_the_code_has_no_way_from_data_to_code() -> None:
    for file in SOURCES:
        text = file.read_text()
        if not re.search(r"\b(?:eval|exec|compile|pickle|marshal|shelve|dill|cloudpickle|yaml)\b", text):
            continue  # reading every file as a tree takes seconds
        for node in ast.walk(ast.parse(text)):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile"), file
            assert not {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml"} & set(names), file


@pytest.mark.parametrize("task", ["os.system", "subprocess:run", "builtins.eval", "winch.app.App"])
def test_a_task_is_a_name_in_the_registry_and_nothing_else(
    make_web: Callable[..., Web], task: str
) -> None:
    web = make_web("memory")
    answer = web.api("POST", "/jobs", {"task": task, "args": {"command": "true"}})
    assert (answer.status_code, answer.json()["code"]) == (422, "unknown-task")


def test_an_error_is_text_and_no_class_is_made_of_it(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite")
    job = web.add.enqueue(1)
    [claim] = web.claim()
    error = {"type": "os.system", "message": "touch /tmp/x", "traceback": "exc_module: os"}
    body = {"token": claim["token"], "error": error, "is_final": True}
    assert web.api("POST", f"/jobs/{job.id}/fail", body).status_code == 200
    with pytest.raises(JobFailed, match=r"os\.system: touch /tmp/x"):
        job.result(timeout="1s")
    assert job.refresh().state is JobState.DEAD


def test_a_traceback_holds_no_local_variables() -> None:
    def fails() -> None:
        password = "CANARY-LOCAL"  # noqa: F841  # what must not be seen
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        fails()
    description = describe(caught.value)
    assert description.traceback
    assert "in fails" in description.traceback
    assert "CANARY-LOCAL" not in description.traceback


NASTY = [
    'x"; DROP TABLE winch_job; --',
    "'; SELECT 1; --",
    "{}",
    "*",
    "a\r\nb",
    "%",
    "_",
    "\\",
    "x" * 10_000,
]


def test_names_never_become_statements(web: Web) -> None:
    kept = web.add.enqueue(1)
    for text in NASTY:
        for name in ("queue", "task", "tag", "group", "state", "cursor"):
            answer = web.api("GET", "/jobs", params={name: text})
            assert answer.status_code in (200, 400, 422), (name, text, answer.text)
        for name in ("task", "queue"):
            assert web.api("GET", "/dead/groups", params={name: text}).status_code in (200, 422)
        word = json.dumps(text)
        assert web.api("GET", "/jobs", params={"q": f"tag:{word} args.x:{word}"}).status_code in (
            200,
            414,
            422,
        )
    assert kept.refresh().state is JobState.READY
    assert len(web.api("GET", "/jobs").json()["jobs"]) == 1


def test_every_requested_amount_is_bounded(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite")
    for query in ("limit=1000000000", "limit=0", "limit=-1", "limit=x", "cursor=x", "nothing=1"):
        assert web.api("GET", f"/jobs?{query}").status_code in (400, 422), query
    deep = "[" * 500 + "]" * 500
    answer = web.api(
        "POST",
        "/jobs",
        content=f'{{"task": "shop.add", "args": {{"a": {deep}}}}}',
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 400


def test_many_idle_connections_do_not_stop_it(make_web: Callable[..., Web]) -> None:
    web = make_web("sqlite")
    with serving(web.app) as address:
        port = int(address.rpartition(":")[2])
        idle = []
        for _ in range(200):
            one = socket.create_connection(("127.0.0.1", port), timeout=10)
            one.sendall(b"POST /api/v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-le")
            idle.append(one)
        began = time.monotonic()
        assert httpx.get(f"{address}/livez", timeout=20).status_code == 200
        assert time.monotonic() - began < 10, "it answers while they send nothing"
        for one in idle:
            one.close()


def test_digests_are_compared_in_constant_time_for_unknown_ids_too(make_web: Callable[..., Web]) -> None:
    source = inspect.getsource(Tokens.recognise)
    assert "hmac.compare_digest" in source
    assert "_UNKNOWN" in source, "an unknown id costs the same comparison"
    web = make_web("sqlite", auth="tokens")
    token = web.token("read")
    head, _, secret = token.rpartition("_")
    for wrong in (f"{head}_{secret[:-1]}x", f"winch_{'0' * 12}_{secret}"):
        assert web.api("GET", "/jobs", token=wrong).status_code == 401


def test_a_login_makes_a_new_session(make_web: Callable[..., Web]) -> None:
    """Fixation: what a browser had before it logged in is worth nothing after."""
    web = make_web("sqlite", auth="tokens")
    token = web.token("read")
    html = {"accept": "text/html", "sec-fetch-site": "same-origin"}
    planted = "planted-by-another"
    web.cookies.set("winch-session", planted)
    page = web.ask("GET", "/login", headers=html)
    [form_token] = re.findall(r'name="form_token" value="([0-9a-f]+)"', page.text)
    done = web.ask("POST", "/login", data={"form_token": form_token, "token": token}, headers=html)
    assert done.status_code == 303
    assert planted not in done.headers["set-cookie"]
    web.cookies = httpx.Cookies()
    web.cookies.set("winch-session", planted)
    assert web.ask("GET", "/jobs", headers=html).status_code == 303, "back to the login"

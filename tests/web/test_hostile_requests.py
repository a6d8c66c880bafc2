"""No request makes the server fail or hang: each hostile one gets a problem document or a page."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import httpx
import msgspec
import pytest

from tests.web.kit import API, Web
from tests.web.server import serving
from winch import App
from winch.web.mount import ROUTES
from winch.web.pages.system import own_path

HTML = {"accept": "text/html"}
LONG_NUMBER = "9" * 5000
VALUES = (
    "attempt:--5",
    f"attempt:{'9' * 400}",
    f"enqueued:<{'9' * 20_000}",
    LONG_NUMBER,
    "²",
    "-1",
    "\x00",
    "a\nb",
    "\t",
    "'",
    '"',
    "[",
    "%",
    "é" * 300,
    "../../etc/passwd",
    "state:nothing",
)


def check(answer: httpx.Response) -> None:
    """An answer, or a refusal in words."""
    assert answer.status_code < 500, answer.text
    if answer.status_code < 400:
        return
    kind = answer.headers["content-type"]
    if kind.startswith("text/html"):
        assert "<html" in answer.text
        return
    assert kind == "application/problem+json", (answer.request.url, kind)
    assert answer.json()["status"] == answer.status_code
    assert len(answer.text) < 12_000, "a refusal repeats the input"


def fields(query: type | None) -> tuple[str, ...]:
    return () if query is None else tuple(field.name for field in msgspec.structs.fields(query))


def test_hostile_queries(web: Web) -> None:
    """Every value for every field in memory; with a store, a third of them in turn."""
    web.add.enqueue(1)
    every = 1 if web.app.driver.name == "memory" else 3
    count = 0
    for place, route in enumerate(ROUTES):
        if route.method != "GET" or route.media == "text/event-stream":
            continue
        path = route.path.replace("{", "").replace("}", "")
        for value in VALUES[place % every :: every]:
            for name in fields(route.query):
                check(web.ask("GET", path, params={name: value}, headers=HTML if route.is_page else {}))
                count += 1
    assert count > 300 / every


def test_hostile_paths(web: Web) -> None:
    from urllib.parse import quote

    for route in ROUTES:
        if "{" not in route.path or route.method != "GET" or route.media == "text/event-stream":
            continue
        before, _, rest = route.path.partition("{")
        after = rest.partition("}")[2]
        for value in VALUES:
            path = f"{before}{quote(value[:2500], safe='')}{after}"
            check(web.ask("GET", path, headers=HTML if route.is_page else {}))


@pytest.mark.parametrize("name", ["last-event-id", "if-none-match", "prefer", "idempotency-key",
                                  "traceparent", "cookie", "authorization", "host", "accept", "origin",
                                  "content-length", "x-winch-form"])  # fmt: skip
def test_hostile_headers(make_web: Callable[..., Web], name: str) -> None:
    web = make_web("memory", hosts=None)
    job = web.add.enqueue(1)
    odd = ["[", "]", "[::1", "a b", ",", "=", ";", "\\", 'winch-form="' + "\\101" * 2000 + '"', "\xff"]
    for value in [LONG_NUMBER, *odd]:
        for method, path in (("GET", f"/jobs/{job.id}"), ("GET", "/jobs"), ("POST", "/jobs")):
            body = b'{"task":"shop.add","args":{"a":1}}' if method == "POST" else b""
            headers = {"content-type": "application/json", name: value.encode("latin-1")}
            check(web.ask(method, API + path, headers=headers, content=body))
            check(web.ask("GET", path, headers={**HTML, name: value.encode("latin-1")}))


@pytest.mark.parametrize(
    "host, status",
    [("[", 400), ("]", 400), ("[::1", 400), ("a b", 400), ("a/b", 400), ("u@a", 400), ("[::1]:x", 400),
     ("shop.example", 200), ("shop.example:8090", 200), ("[::1]:8090", 200), ("[fe80::1%25en0]", 200)],
)  # fmt: skip
def test_a_host_is_a_name_with_a_port(make_web: Callable[..., Web], host: str, status: int) -> None:
    web = make_web("memory", hosts=None)
    answer = web.ask("GET", API + "/jobs", headers={"host": host})
    assert answer.status_code == status
    assert status == 200 or "Host" in answer.json()["detail"]


def test_an_unknown_position_restarts_the_stream(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'winch.db'}", events="full")
    app.migrate()
    with serving(app) as address:
        for last in (LONG_NUMBER, "9" * 19, "-5", "x"):
            headers = {"last-event-id": last}
            with httpx.stream("GET", f"{address}{API}/events", headers=headers, timeout=20) as answer:
                assert answer.status_code == 200
                assert "event: queues" in list(islice(answer.iter_lines(), 5)), last


def test_a_long_search_is_refused_at_once(web: Web) -> None:
    began = time.thread_time()
    for q in (f"enqueued:<{'9' * 20_000}", "9" * 20_000, "'" * 10_000, "a " * 5_000):
        for answer in (
            web.api("GET", "/jobs", params={"q": q}),
            web.api("POST", "/jobs:cancel", {"q": q}),
        ):
            check(answer)
            assert answer.status_code in (414, 422)
    assert time.thread_time() - began < 5.0


@pytest.mark.parametrize(
    "target, expected",
    [
        ("/jobs?q=a%20b&state=dead", "/jobs?q=a%20b&state=dead"),
        ("/queues/日本", "/queues/%E6%97%A5%E6%9C%AC"),
        ("", None),
        ("jobs", None),
        ("//evil.test", None),
        ("/\t/evil.test", None),
        ("/\n/x", None),
        ("/\r\nset-cookie: a=b", None),
        ("/\\evil.test", None),
        ("https://evil.test", None),
        ("/" + "a" * 5000, None),
    ],
)
def test_a_login_leads_only_to_this_site(target: str, expected: str | None) -> None:
    assert own_path(target) == expected


def test_a_login_with_a_hostile_target_answers(make_web: Callable[..., Web]) -> None:
    import re

    web = make_web("sqlite", auth="tokens")
    secret = web.token("admin")
    page = web.ask("GET", "/login", headers=HTML).text
    [form_token] = re.findall(r'name="form_token" value="([^"]+)"', page)
    for target in ("/\n/x", "/\t/evil.test", "//evil.test", "/jobs\r\nx: y"):
        form = {"form_token": form_token, "token": secret, "next": target}
        answer = web.ask("POST", "/login", data=form, headers={**HTML, "sec-fetch-site": "same-origin"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/"), target

"""The site under WSGI: checked by the standard library's validator, below a prefix, and forked."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest

from winch import App
from winch.web import Access, wsgi

HTML: dict[str, Any] = {"HTTP_ACCEPT": "text/html", "HTTP_SEC_FETCH_SITE": "same-origin"}
FORM = "application/x-www-form-urlencoded"


class Reply:
    """An answer of a WSGI application."""

    def __init__(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status = status
        self.headers = {name.lower(): value for name, value in headers}
        self.text = body.decode()


def ask(site: Any, method: str, path: str, body: bytes | None = None, **environ: Any) -> Reply:
    """Ask as a web server does that conforms to PEP 3333, and that checks that the site does too."""
    root = environ.pop("SCRIPT_NAME", "/ops/jobs")
    path, _, query = path.partition("?")
    given: dict[str, Any] = {"REQUEST_METHOD": method, "SCRIPT_NAME": root, "PATH_INFO": path}
    given |= {"QUERY_STRING": query, "wsgi.input": io.BytesIO(body or b""), **environ}
    if body:
        given["CONTENT_LENGTH"] = str(len(body))
    setup_testing_defaults(given)
    started: list[Any] = []

    def start_response(status: str, headers: list[tuple[str, str]], error: Any = None) -> Any:
        started.append((int(status.partition(" ")[0]), headers))
        return lambda _: None

    answer = validator(site)(given, start_response)
    try:
        parts = b"".join(answer)
    finally:
        answer.close()  # type: ignore[attr-defined]  # the validator's own
    [(status, headers)] = started
    return Reply(status, headers, parts)


@pytest.fixture
def app(tmp_path: Path) -> App:
    app = App(f"sqlite:///{tmp_path / 'winch.db'}")

    @app.task(name="shop.add")
    def add(a: int) -> int:
        return a

    return app


def ada(_: dict[str, Any]) -> Access:
    return Access("ada", roles=("admin",))


def test_pages_link_below_script_name_and_forms_work(app: App) -> None:
    job = app.tasks.get("shop.add").enqueue(1)
    site = wsgi(app, authenticate=ada)
    home = ask(site, "GET", "/", **HTML)
    assert home.status == 200
    assert 'href="/ops/jobs/jobs"' in home.text
    assert 'src="/ops/jobs/static/winch.js?v=' in home.text
    assert home.headers["content-security-policy"].startswith("default-src 'none'")
    assert ask(site, "GET", "/static/winch.js").status == 200
    root = ask(site, "GET", "", SCRIPT_NAME="/a b\u00c3\u00a9", **HTML)  # the bytes of é
    assert 'href="/a bé/jobs"' in root.text
    shown = ask(site, "GET", f"/jobs/{job.id}", **HTML)
    token = shown.text.split('name="form_token" value="')[1].split('"')[0]
    cookie = shown.headers["set-cookie"].partition(";")[0]
    form: dict[str, Any] = {**HTML, "HTTP_COOKIE": cookie, "CONTENT_TYPE": FORM}
    done = ask(site, "POST", f"/jobs/{job.id}/cancel", f"form_token={token}".encode(), **form)
    assert done.status == 303, done.text
    assert done.headers["location"].startswith(f"/ops/jobs/jobs/{job.id}")
    assert job.refresh().state == "cancelled"
    evil = ask(site, "POST", f"/jobs/{job.id}/retry", f"form_token={token}".encode(),
               **{**form, "HTTP_SEC_FETCH_SITE": "cross-site"})  # fmt: skip
    assert evil.status == 403
    app.close()


def test_access_is_determined_in_the_thread_of_the_request(app: App) -> None:
    seen: list[tuple[int, str]] = []

    def access_of(environ: dict[str, Any]) -> Access | None:
        seen.append((threading.get_ident(), environ["HTTP_X_USER"]))
        return Access("ada") if environ["HTTP_X_USER"] == "ada" else None

    site = wsgi(app, authenticate=access_of)
    assert ask(site, "GET", "/api/v1/jobs", HTTP_X_USER="ada").status == 200
    assert ask(site, "GET", "/api/v1/jobs", HTTP_X_USER="bob").status == 401
    assert seen == [(threading.get_ident(), "ada"), (threading.get_ident(), "bob")]
    closed = wsgi(app)
    assert ask(closed, "GET", "/api/v1/jobs").status == 403
    assert ask(closed, "GET", "/livez").status == 200
    app.close()


def test_streams_and_large_bodies_are_refused(app: App) -> None:
    job = app.tasks.get("shop.add").enqueue(1)
    site = wsgi(app, authenticate=ada)
    for path in ("/api/v1/events", f"/api/v1/jobs/{job.id}/events"):
        assert ask(site, "GET", path).status == 501
    kind = {"CONTENT_TYPE": "application/json"}
    large = ask(site, "POST", "/api/v1/jobs", b"{" + b" " * 8 * 1024 * 1024 + b"}", **kind)
    assert large.status == 413
    assert "connection" not in large.headers  # it is the server's to send
    chunked: dict[str, Any] = {**kind, "wsgi.input_terminated": "1"}
    unsized: dict[str, Any] = {"wsgi.input": io.BytesIO(b" " * (8 * 1024 * 1024 + 2)), **chunked}
    assert ask(site, "POST", "/api/v1/jobs", **unsized).status == 413
    assert ask(site, "HEAD", "/livez").text == ""
    app.close()


def test_a_read_only_site_shows_and_changes_nothing(app: App) -> None:
    job = app.tasks.get("shop.add").enqueue(1)
    site = wsgi(app, authenticate=ada, read_only=True)
    body = {"CONTENT_TYPE": "application/json"}
    assert ask(site, "GET", f"/api/v1/jobs/{job.id}").status == 200
    assert ask(site, "POST", f"/api/v1/jobs/{job.id}/cancel", b"{}", **body).status == 403
    assert job.refresh().state == "ready"
    app.close()


def test_a_forked_process_serves_requests_too(app: App) -> None:
    """As under `gunicorn --preload`, when a request was answered before the fork."""
    job = app.tasks.get("shop.add").enqueue(1)
    site = wsgi(app, authenticate=ada)
    assert ask(site, "GET", f"/api/v1/jobs/{job.id}").status == 200

    def status_in_child() -> int:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if ask(site, "GET", f"/api/v1/jobs/{job.id}").status == 200 else 2
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert status_in_child() == 0
    app.close()


def test_many_threads_share_one_loop(app: App) -> None:
    site = wsgi(app, authenticate=ada)
    statuses: list[int] = []

    def look() -> None:
        statuses.append(ask(site, "GET", "/api/v1/queues").status)

    def threads(work: Callable[[], None]) -> list[threading.Thread]:
        return [threading.Thread(target=work) for _ in range(8)]

    started = threads(look)
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert statuses == [200] * 8
    assert [one.name for one in threading.enumerate()].count("winch dashboard") >= 1
    app.close()

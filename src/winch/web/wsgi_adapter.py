"""The dashboard and the HTTP API as a WSGI application, for Flask, Django and other WSGI programs.

    application = winch.web.wsgi(app, authenticate=access_of)

The site itself is an ASGI application. One event loop in a thread of its own runs it for all threads of
the process, and each request waits there for its answer. A stream (server-sent events) would hold a
thread of the web server for as long as a page is open, so streams are refused and the pages poll.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request

from winch.storage.forks import ProcessLock
from winch.web.access import Access
from winch.web.mount import build
from winch.web.problems import Problem
from winch.web.routes import PREFIX
from winch.web.site import SiteConfig

if TYPE_CHECKING:
    from winch.app import App

T = TypeVar("T")
Environ = dict[str, Any]
StartResponse = Callable[..., object]
WSGIApplication = Callable[[Environ, StartResponse], Iterable[bytes]]
WSGIAuthenticate = Callable[[Environ], Access | None]

# Where the site finds the access that the caller's thread has determined.
_ACCESS = "winch.access"
# WSGI leaves these to the server.
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"})
_HEADERS = {"CONTENT_TYPE": b"content-type", "CONTENT_LENGTH": b"content-length"}
_CHUNK = 64 * 1024


def wsgi(
    app: App, *, authenticate: WSGIAuthenticate | None = None, read_only: bool = False
) -> WSGIApplication:
    """The dashboard and the HTTP API as a WSGI application.

        site = winch.web.wsgi(app, authenticate=access_of)
        flask_app.wsgi_app = DispatcherMiddleware(flask_app.wsgi_app, {"/jobs": site})

    `authenticate(environ)` returns an `Access`, or None for no access. It runs in the thread of the
    request. Without it everything but the health probes is refused. `SCRIPT_NAME` is the address that
    the links begin with. Streams are not served; the pages poll.
    """
    auth = "closed" if authenticate is None else "host"
    config = SiteConfig(auth=auth, is_read_only=read_only, authenticate=_determined)
    site, loop = build(app, config), ThreadLoop()

    def serve(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        scope = _scope(environ)
        if is_stream(environ.get("PATH_INFO", "")):
            detail = "streams are not served under WSGI; ask again every second or two"
            answer = _problem(Problem("not-available", detail), scope["path"])
        else:
            # In this thread: it is where the host's login, its database and its context are.
            scope[_ACCESS] = None if authenticate is None else authenticate(environ)
            answer = loop.run(_answer(site, scope, _body(environ, config.max_body)))
        status, headers, body = answer
        start_response(f"{status} {_phrase(status)}", headers)
        return [] if environ.get("REQUEST_METHOD") == "HEAD" else [body]

    return serve


def is_stream(path: str) -> bool:
    """Whether the path below the mount is one of the streams of the HTTP API."""
    return path.startswith(f"{PREFIX}/") and path.endswith("/events")


def _determined(request: Request) -> Access | None:
    access: Access | None = request.scope[_ACCESS]
    return access


class ThreadLoop:
    """One event loop in a thread, for all requests: what the store keeps open belongs to a loop.

    It starts with the first request, and again in a process that was forked after that.
    """

    def __init__(self) -> None:
        self._lock = ProcessLock()  # a fork may come while another thread holds it
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait in this thread for the coroutine's result."""
        return asyncio.run_coroutine_threadsafe(work, self._started()).result()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._process != os.getpid():
            with self._lock:
                if self._process != os.getpid():
                    self._loop = asyncio.new_event_loop()
                    threading.Thread(
                        target=self._loop.run_forever, name="winch dashboard", daemon=True
                    ).start()
                    self._process = os.getpid()
        if self._loop is None:
            raise RuntimeError("the loop of the dashboard has not started")
        return self._loop


Served = tuple[int, list[tuple[str, str]], bytes]


async def _answer(site: Any, scope: dict[str, Any], body: bytes) -> Served:
    started: dict[str, Any] = {}
    parts: list[bytes] = []
    sent = False

    async def receive() -> Mapping[str, Any]:
        nonlocal sent
        if sent:
            return {"type": "http.disconnect"}
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            started.update(message)
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    await site(scope, receive, send)
    headers = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in started["headers"]
        if name.decode("latin-1").lower() not in _HOP_BY_HOP
    ]
    # PEP 3333's own validator wants it of every answer that may have a body.
    if started["status"] not in (204, 304) and b"content-type" not in {
        one[0] for one in started["headers"]
    }:
        headers.append(("content-type", "text/plain; charset=utf-8"))
    return started["status"], headers, b"".join(parts)


def _problem(problem: Problem, path: str) -> Served:
    response = problem.response(path, "")
    return response.status_code, list(response.headers.items()), bytes(response.body)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def _body(environ: Environ, most: int) -> bytes:
    """The body of the request, and at most one byte more than the site accepts."""
    stream = environ.get("wsgi.input")
    length = str(environ.get("CONTENT_LENGTH") or "")
    if stream is None or (length.isdigit() and int(length) > most):
        return b""  # the site refuses it by its header
    if not length.isdigit() and not environ.get("wsgi.input_terminated"):
        return b""
    left = int(length) if length.isdigit() else most + 1
    parts: list[bytes] = []
    while left > 0 and (part := stream.read(min(left, _CHUNK))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _scope(environ: Environ) -> dict[str, Any]:
    root = _decoded(environ.get("SCRIPT_NAME", "")).rstrip("/")
    path = root + (_decoded(environ.get("PATH_INFO", "")) or "/")
    headers = [
        (key[5:].replace("_", "-").lower().encode("latin-1"), str(value).encode("latin-1"))
        for key, value in environ.items()
        if key.startswith("HTTP_") and key not in ("HTTP_CONTENT_TYPE", "HTTP_CONTENT_LENGTH")
    ]
    headers += [
        (name, str(environ[key]).encode("latin-1")) for key, name in _HEADERS.items() if environ.get(key)
    ]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": environ.get("REQUEST_METHOD", "GET"),
        "scheme": environ.get("wsgi.url_scheme", "http"),
        "path": path,
        "raw_path": path.encode(),
        "root_path": root,
        "query_string": environ.get("QUERY_STRING", "").encode("latin-1"),
        "headers": headers,
        "client": (environ.get("REMOTE_ADDR") or "unknown", 0),
        "server": (environ.get("SERVER_NAME") or "localhost", _port(environ)),
        "state": {},
    }


def _port(environ: Environ) -> int:
    port = str(environ.get("SERVER_PORT") or "")
    return int(port) if port.isdigit() else 80


def _decoded(text: str) -> str:
    """WSGI carries the bytes of a path as Latin-1."""
    return text.encode("latin-1", "replace").decode("utf-8", "replace")


__all__ = ["Environ", "StartResponse", "WSGIApplication", "WSGIAuthenticate", "wsgi"]

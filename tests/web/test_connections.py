"""A server with many connections: it reads each new one, drops what sends nothing, answers at once."""

from __future__ import annotations

import http.client
import resource
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.web.server import serving
from winch import App
from winch.core.values.ip_address import parse_networks
from winch.web.server import connections
from winch.web.server.connections import Crowd


def connected(port: int, sent: bytes = b"") -> socket.socket:
    one = socket.create_connection(("127.0.0.1", port), timeout=20)
    if sent:
        one.sendall(sent)
    return one


def answered(port: int, path: str = "/livez") -> tuple[int, float]:
    """The status of a request on a connection of its own, and how long it took."""
    began = time.monotonic()
    conn = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        conn.request("GET", path)
        response = conn.getresponse()
        response.read()
        return response.status, time.monotonic() - began
    finally:
        conn.close()


@contextmanager
def server_process(tmp_path: Path, *, files: int | None = None) -> Iterator[int]:
    """A `winch serve` of its own; `files` limits how many it may open. Gives the port."""
    url = f"sqlite:///{tmp_path / 'winch.db'}"
    limit = "" if files is None else f"ulimit -n {files}; "
    command = f"{limit}exec {sys.executable} -m winch serve --url {shlex.quote(url)} --port 0"
    process = subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline().strip().rstrip("/").rpartition(":")[2])
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
        process.stdout.close()  # type: ignore[union-attr]


@pytest.fixture
def many_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("files", [None, 1024])
def test_idle_sockets_and_half_requests_keep_no_probe_waiting(
    tmp_path: Path, many_files: None, files: int | None
) -> None:
    with server_process(tmp_path, files=files) as port, ExitStack() as open_sockets:
        for _ in range(1100):
            open_sockets.enter_context(connected(port))
        half = b"POST /api/v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-le"
        for number in range(200):
            # Some stop in the head, some before the body.
            body = b"ngth: 50\r\ncontent-type: application/json\r\n\r\n{" if number % 2 else b""
            open_sockets.enter_context(connected(port, half + body))
        for path in ("/livez", "/readyz", "/startupz", "/api/v1/queues"):
            status, took = answered(port, path)
            assert status == 200, path
            assert took < 5.0, path


def test_a_kept_connection_is_answered_at_once(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'winch.db'}")
    app.migrate()
    with serving(app) as address:
        conn = http.client.HTTPConnection("localhost", int(address.rpartition(":")[2]), timeout=20)
        times = []
        for _ in range(40):
            began = time.perf_counter()
            conn.request("GET", "/livez")
            assert conn.getresponse().read()
            times.append(time.perf_counter() - began)
        conn.close()
    # 0.4 ms on an idle machine; an answer that waits for an acknowledgement takes 40 ms every time.
    assert statistics.median(times) < 0.030


def read_all(one: socket.socket) -> bytes:
    found = b""
    while part := one.recv(65536):
        found += part
    return found


def test_half_a_request_gets_408_and_silence_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.5)
    app = App(f"sqlite:///{tmp_path / 'winch.db'}")
    app.migrate()
    with serving(app) as address:
        port = int(address.rpartition(":")[2])
        with connected(port) as silent, connected(port, b"GET /livez HTT") as half:
            drip = connected(port, b"GET /livez HTTP/1.1\r\n")
            began = time.monotonic()
            assert b" 408 " in (answer := read_all(half))
            assert b"urn:winch:problem:timeout" in answer
            assert read_all(silent) == b""
            with drip:
                # More bytes do not buy more time.
                assert b" 408 " in read_all(drip)
            assert time.monotonic() - began < 10
        kept = connected(port, b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        with kept:
            assert b" 200 " in kept.recv(65536)
            kept.sendall(b"GET /li")
            assert b" 408 " in read_all(kept), "the second request has its own time"


def test_a_malformed_request_gets_a_problem_document(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'winch.db'}")
    app.migrate()
    with serving(app) as address:
        port = int(address.rpartition(":")[2])
        for odd in (b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET / HTTP/1.1\r\nhost: a\r\n b\x00:\r\n\r\n"):
            with connected(port, odd) as one:
                answer = read_all(one)
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert b"urn:winch:problem:bad-request" in answer
            assert b"content-security-policy" in answer


def test_a_body_that_does_not_arrive_gets_408(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("winch.web.site.BODY_SECONDS", 0.5)
    app = App(f"sqlite:///{tmp_path / 'winch.db'}")
    app.migrate()
    head = b"POST /api/v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n"
    with serving(app) as address, connected(int(address.rpartition(":")[2]), head) as one:
        one.sendall(b"content-type: application/json\r\n\r\n{")
        assert b" 408 " in (answer := read_all(one))
        assert b"urn:winch:problem:timeout" in answer


# -- the count by itself -----------------------------------------------------------------------------


class Peer:
    """What the crowd sees of a connection."""

    def __init__(self, source: str) -> None:
        self.source, self.state, self.is_aborted = source, connections.GONE, False
        self.transport = self

    def abort(self) -> None:
        self.is_aborted = True


def come(crowd: Crowd, source: str, count: int = 1) -> list[Any]:
    made: list[Any] = [Peer(source) for _ in range(count)]
    for one in made:
        crowd.opened(one)
    return made


def test_the_oldest_waiting_connection_of_a_source_makes_room() -> None:
    crowd = Crowd(most=10)
    first, second, *_ = come(crowd, "a", 5)
    crowd.works(first)
    other = come(crowd, "b", 1)
    come(crowd, "a", 1)
    assert (first.is_aborted, second.is_aborted) == (False, True), "work goes on; the oldest waiter goes"
    assert not other[0].is_aborted
    crowd.closed(second)  # the event loop reports it later; it is not counted twice
    come(crowd, "a", 3)
    assert crowd._open["a"] == 5


def test_the_greediest_source_makes_room_for_a_new_one() -> None:
    crowd = Crowd(most=10)
    greedy = come(crowd, "a", 5)
    come(crowd, "b", 3)
    come(crowd, "c", 2)
    come(crowd, "d", 1)
    assert [one.is_aborted for one in greedy] == [True, False, False, False, False]


@pytest.mark.parametrize("source, limit", [("192.0.2.1", 5), ("10.1.1.1", 10)])
def test_a_source_is_full_by_its_requests_and_a_trusted_proxy_by_all(source: str, limit: int) -> None:
    crowd = Crowd(most=10, trusted=parse_networks("10.0.0.0/8"))
    for one in come(crowd, source, limit):
        crowd.works(one)
        assert not crowd.is_full(source)
    [more] = come(crowd, source)
    crowd.works(more)
    assert crowd.is_full(source)
    crowd.closed(more)
    assert not crowd.is_full(source)


def test_a_full_server_answers_probes_only(make_web: Any) -> None:
    from winch.web.mount import build
    from winch.web.site import SiteConfig

    web = make_web("memory")
    web.asgi = build(web.app, SiteConfig(auth="open"), is_full=lambda source: True)
    assert web.ask("GET", "/livez").status_code == 200
    answer = web.api("GET", "/queues")
    assert (answer.status_code, answer.json()["code"]) == (503, "busy")
    assert answer.headers["retry-after"] == "1"

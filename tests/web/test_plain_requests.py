"""The fast path of a connection answers as h11 does, whatever comes and however it is cut."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.web.server import serving
from winch import App
from winch.web.fast import plain_requests
from winch.web.fast.plain_requests import PlainConnection, parsed

BODY = b'{"task": "add", "args": {"a": 1}, "tags": ["x"]}'
HOST = b"Host: localhost\r\n"
JSON = b"Content-Type: application/json\r\n"


def post(body: bytes = BODY, more: bytes = b"", path: bytes = b"/api/v1/jobs") -> bytes:
    length = b"Content-Length: %d\r\n" % len(body)
    return b"POST %b HTTP/1.1\r\n%b%b%b%b\r\n%b" % (path, HOST, JSON, length, more, body)


GET = b"GET /livez HTTP/1.1\r\n" + HOST + b"\r\n"
CHUNKED = (
    b"POST /api/v1/jobs HTTP/1.1\r\n" + HOST + JSON + b"Transfer-Encoding: chunked\r\n\r\n"
    b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
)
# Name: what is sent, and how many of its requests take the fast path.
CASES: dict[str, tuple[bytes, int]] = {
    "one": (post(), 1),
    "keep-alive": (post(more=b"Connection: keep-alive\r\n"), 1),
    "names in any case": (post().replace(b"Content-Length", b"CONTENT-length"), 1),
    "two at once": (post() + post(), 2),
    "a hundred at once": (post() * 100, 100),
    "GET and POST in turn": (post() + GET + post() + GET, 1),
    "a query and an escaped path": (post(path=b"/api/v1/%6aobs?x=1"), 1),
    "a session": (post(b'{"worker": "w", "queues": ["q"]}', path=b"/api/v1/sessions"), 1),
    "an unknown path": (post(path=b"/api/v1/nothing"), 1),
    "an absent job": (post(b'{"token": "1"}', path=b"/api/v1/jobs/1/complete"), 1),
    "not JSON": (post(b"{"), 1),
    "no content-type": (post().replace(JSON, b""), 1),
    "an empty body": (post(b""), 1),
    "close": (post(more=b"Connection: close\r\n"), 0),
    "chunked": (CHUNKED, 0),
    "chunked with a length": (post(more=b"Transfer-Encoding: chunked\r\n"), 0),
    "two lengths": (post(more=b"Content-Length: 3\r\n"), 0),
    "a bad length": (post().replace(b"Length: ", b"Length: +"), 0),
    "no host": (post().replace(HOST, b""), 0),
    "two hosts": (post(more=b"Host: evil.test\r\n"), 0),
    "another host": (post().replace(b"localhost", b"evil.test"), 1),
    "HTTP/1.0": (post().replace(b"HTTP/1.1", b"HTTP/1.0"), 0),
    "a space before the colon": (post(more=b"X-A : 1\r\n"), 0),
    "a folded header": (post(more=b"X-A: 1\r\n 2\r\n"), 0),
    "a line break in a header": (post(more=b"X-A: 1\n2\r\n"), 0),
    "a NUL in a header": (post(more=b"X-A: 1\x002\r\n"), 0),
    "other bytes in a header": (post(more=b"X-A: \xff\r\n"), 0),
    "an upgrade": (post(more=b"Connection: upgrade\r\nUpgrade: x\r\n"), 0),
    "an expectation": (post(more=b"Expect: 100-continue\r\n"), 0),
    "rubbish after it": (post() + b"\x00\x01rubbish\r\n\r\n", 1),
    "rubbish before it": (b"\r\n\r\n" + post(), 0),
    "another method": (post().replace(b"POST", b"PUT"), 0),
    "no path": (post(path=b"jobs"), 0),
    "a long path": (post(path=b"/" + b"x" * 3000), 1),
}


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """The ports of two servers of the same store: with the fast path, and without."""
    path: Path = tmp_path_factory.mktemp("plain") / "winch.db"
    ports: dict[str, int] = {}
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as servers:
        for name in ("on", "off"):
            patch.setenv("WINCH_FAST", name)
            app = App(f"sqlite:///{path}")
            app.migrate()

            @app.task(name="add")
            def add(a: int) -> int:
                return a

            address = servers.enter_context(serving(app))
            ports[name] = int(address.rpartition(":")[2])
        yield ports


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The targets of the requests that took the fast path."""
    found: list[bytes] = []
    real = PlainConnection._answer

    def answer(self: PlainConnection, request: Any, body: bytes) -> None:
        found.append(request.target)
        real(self, request, body)

    monkeypatch.setattr(PlainConnection, "_answer", answer)
    return found


def answers(port: int, *parts: bytes, silence: float = 0.3) -> list[tuple[int, dict[str, str], Any]]:
    """What the server answers to these pieces, until it or the client has nothing more to send."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        for part in parts:
            connection.sendall(part)
            if len(parts) > 1:
                connection.settimeout(0.02)
                with contextlib.suppress(TimeoutError):
                    connection.recv(1, socket.MSG_PEEK)
                connection.settimeout(20)
        data = b""
        connection.settimeout(silence)
        try:
            while more := connection.recv(65536):
                data += more
        except (TimeoutError, ConnectionResetError):
            pass
    return read_answers(data)


def read_answers(data: bytes) -> list[tuple[int, dict[str, str], Any]]:
    found = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        length = int(headers.get("content-length", 0))
        body, data = data[:length], data[length:]
        found.append((int(first.split()[1]), headers, json.loads(body) if body[:1] == b"{" else body))
    return found


def same(found: list[tuple[int, dict[str, str], Any]]) -> Any:
    """Answers without the parts that differ for each request."""
    text = json.dumps([(status, sorted(headers.items()), str(body)) for status, headers, body in found])
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{16,}", "ID", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT[0-9:.]+Z|\w{3}, \d\d \w{3} \d{4} [0-9:]+ gmt", "TIME", text)
    return re.sub(r'"content-length", "\d+"', "", text)


@pytest.mark.parametrize("name", CASES)
def test_both_paths_answer_alike(name: str, addresses: dict[str, int], taken: list[bytes]) -> None:
    sent, fast = CASES[name]
    with_it = without = None
    for silence in (0.3, 3.0):  # a busy machine may answer late
        taken.clear()
        with_it = answers(addresses["on"], sent, silence=silence)
        assert len(taken) == fast
        without = answers(addresses["off"], sent, silence=silence)
        assert len(taken) == fast
        if with_it and same(with_it) == same(without):
            return
    assert without is not None
    assert same(with_it or []) == same(without)


@pytest.mark.parametrize("size", [1, 7, 64, 200])
def test_a_request_in_pieces(size: int, addresses: dict[str, int]) -> None:
    sent = post()
    pieces = [sent[at : at + size] for at in range(0, len(sent), size)]
    if size == 1:
        pieces = [sent[:1], sent[1:-1], sent[-1:]]
    [(status, _, job)] = answers(addresses["on"], *pieces, silence=2)
    assert (status, job["args"]) == (202, {"a": 1})


def test_a_body_after_its_head_takes_the_fast_path(
    addresses: dict[str, int], taken: list[bytes]
) -> None:
    head, body = post()[: -len(BODY)], post()[-len(BODY) :]
    [(status, _, _)] = answers(addresses["on"], head, body[:10], body[10:], silence=2)
    assert (status, len(taken)) == (202, 1)


def test_a_body_in_many_pieces_is_parsed_once(
    addresses: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a client that sends a long head byte by byte makes the server parse it each time."""
    heads: list[int] = []

    def counting(data: bytes) -> plain_requests.PlainRequest | None:
        heads.append(len(data))
        return parsed(data)

    monkeypatch.setattr(plain_requests, "parsed", counting)
    head, body = post()[: -len(BODY)], post()[-len(BODY) :]
    pieces = [bytes([byte]) for byte in body]
    [(status, _, job)] = answers(addresses["on"], head, *pieces, silence=2)
    assert (status, job["args"], len(heads)) == (202, {"a": 1}, 1)


def test_the_next_request_while_one_is_answered_waits_for_it(addresses: dict[str, int]) -> None:
    claim = post(b'{"wait": "1s"}', path=b"/api/v1/queues/nothing/claim")
    found = answers_after(addresses["on"], 4, claim, post(), GET)
    assert [status for status, _, _ in found] == [200, 202, 200]


def answers_after(port: int, seconds: float, *parts: bytes) -> list[tuple[int, dict[str, str], Any]]:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        for part in parts:
            connection.sendall(part)
        data = b""
        connection.settimeout(seconds)
        try:
            while more := connection.recv(65536):
                data += more
        except TimeoutError:
            pass
    return read_answers(data)


def test_a_claim_whose_client_is_gone_takes_no_job(addresses: dict[str, int]) -> None:
    claim = post(b'{"wait": "20s"}', path=b"/api/v1/queues/gone/claim")
    with socket.create_connection(("127.0.0.1", addresses["on"]), timeout=20) as connection:
        connection.sendall(claim)
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(1)
    body = b'{"task": "add", "args": {"a": 1}, "queue": "gone"}'
    [(status, _, job)] = answers(addresses["on"], post(body), silence=2)
    assert status == 202
    [(_, _, claimed)] = answers(
        addresses["on"], post(b"{}", path=b"/api/v1/queues/gone/claim"), silence=2
    )
    assert [one["id"] for one in claimed["jobs"]] == [job["id"]]


@pytest.mark.parametrize("data", [b"", b"POST", b"POST / HTTP/1.1", b"\r\n\r\n"])
def test_malformed_requests_are_left_to_h11(data: bytes) -> None:
    assert parsed(data) is None

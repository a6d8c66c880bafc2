"""`winch.remote` through TLS of a private authority, and through proxies that want a password."""

from __future__ import annotations

import base64
import select
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.redis_tls import Authority
from tests.web.server import serving
from winch import App
from winch.remote import RemoteClient, RemoteError

USER, PASSWORD = "shop", "p@ss:word"
WANTED = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


def relay(one: socket.socket, other: socket.socket) -> None:
    """Copy both ways until one side ends."""
    ways = {one: other, other: one}
    while True:
        waiting = isinstance(one, ssl.SSLSocket) and one.pending()
        ready = [one] if waiting else select.select(list(ways), [], [], 20)[0]
        for source in ready:
            data = source.recv(65536)
            if not data:
                return
            ways[source].sendall(data)
        if not ready:
            return


class _Relays(socketserver.ThreadingTCPServer):
    """Takes connections and hands each to `serve`, in a thread of its own."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, serve: Any) -> None:
        self._serve = serve
        super().__init__(("127.0.0.1", 0), socketserver.BaseRequestHandler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        try:
            self._serve(request)
        except OSError:  # a client that trusts us not, or is gone
            return


@contextmanager
def running(server: _Relays) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def terminator(port: int, context: ssl.SSLContext) -> _Relays:
    """TLS in front of the server."""

    def serve(request: socket.socket) -> None:
        with (
            context.wrap_socket(request, server_side=True) as inner,
            socket.create_connection(("127.0.0.1", port)) as there,
        ):
            relay(inner, there)

    return _Relays(serve)


class Proxy:
    """A proxy for CONNECT and for plain requests, which wants a password."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.server = _Relays(self._serve)

    def _serve(self, request: socket.socket) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            more = request.recv(65536)
            if not more:
                return
            data += more
        head, _, rest = data.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        method, target, _ = first.split(" ")
        self.asked.append(f"{method} {target}")
        headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
        if headers.get("proxy-authorization") != WANTED:
            request.sendall(b"HTTP/1.1 407 -\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            return
        parts = urlsplit(f"//{target}" if method == "CONNECT" else target)
        with socket.create_connection((parts.hostname or "", parts.port or 80)) as there:
            if method == "CONNECT":
                request.sendall(b"HTTP/1.1 200 -\r\n\r\n")
            else:
                # One request for each connection: the next has another whole address in its first line.
                dropped = ("proxy-", "connection:")
                kept = [line for line in lines if not line.lower().startswith(dropped)]
                kept.append("connection: close")
                path = f"{parts.path}?{parts.query}" if parts.query else parts.path
                text = "\r\n".join([f"{method} {path} HTTP/1.1", *kept, "", ""])
                there.sendall(text.encode() + rest)
            relay(request, there)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    app = App(f"sqlite:///{tmp_path / 'winch.db'}")
    app.migrate()

    @app.task(name="shop.add", queue="default")
    def add(a: int) -> int:
        return a

    with serving(app) as found:
        yield found


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    proxy = Proxy()
    with running(proxy.server) as port:
        url = f"http://{USER}:p%40ss%3Aword@127.0.0.1:{port}"
        monkeypatch.setenv("http_proxy", url)
        monkeypatch.setenv("https_proxy", url)
        yield proxy


@contextmanager
def with_tls(address: str, tmp_path: Path) -> Iterator[tuple[str, ssl.SSLContext]]:
    """The address of the server behind TLS, and a context that trusts its authority."""
    trusted, certificate, key = Authority().write(tmp_path)
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there.load_cert_chain(certificate, key)
    mine = ssl.create_default_context(cafile=str(trusted))
    with running(terminator(urlsplit(address).port or 0, there)) as port:
        yield f"https://localhost:{port}", mine


def works(client: RemoteClient) -> None:
    jobs = [client.enqueue("shop.add", {"a": n}) for n in range(3)]
    assert [client.get(job)["args"] for job in jobs] == [{"a": n} for n in range(3)]
    client.close()


def test_tls_of_a_private_authority(address: str, tmp_path: Path) -> None:
    with with_tls(address, tmp_path) as (url, context):
        works(RemoteClient(url, context=context))
        with pytest.raises(RemoteError, match="CERTIFICATE_VERIFY_FAILED"):
            RemoteClient(url).ask("GET", "/queues", patience=0)


def test_tls_through_a_proxy_that_wants_a_password(address: str, tmp_path: Path, proxied: Proxy) -> None:
    with with_tls(address, tmp_path) as (url, context):
        works(RemoteClient(url, context=context))
        assert proxied.asked == [f"CONNECT {urlsplit(url).netloc}"]


def test_plain_http_through_a_proxy_that_wants_a_password(address: str, proxied: Proxy) -> None:
    works(RemoteClient(address))
    assert [one.partition(" ")[0] for one in proxied.asked] == ["POST"] * 3 + ["GET"] * 3
    assert proxied.asked[0] == f"POST {address}/api/v1/jobs"


def test_no_proxy_bypasses_the_proxy(
    address: str, proxied: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "localhost")
    works(RemoteClient(address))
    assert proxied.asked == []


def test_a_wrong_password_is_in_no_text(
    address: str, proxied: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://{USER}:guessed-secret@127.0.0.1:{proxied.server.server_address[1]}"
    monkeypatch.setenv("http_proxy", url)
    client = RemoteClient(address, "winch_token-secret")
    with pytest.raises(RemoteError) as refused:
        client.ask("GET", "/queues", patience=0)
    client.close()
    assert refused.value.status == 407
    assert "secret" not in f"{refused.value!r} {refused.value}"

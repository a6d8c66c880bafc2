"""Where a request comes from: throttling, trusted proxy headers, and the address in the audit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.web.kit import API, LoopThread, Web
from tests.web.server import serving
from winch import App
from winch.core.errors import ConfigError
from winch.core.values.ip_address import parse_networks
from winch.engine.base.settings import load
from winch.web.proxies import resolved
from winch.web.throttle import MOST

WRONG = "winch_000000000000_" + "x" * 43


@pytest.fixture
def ask_from(runner: LoopThread) -> Callable[..., httpx.Response]:
    """Requests from a chosen peer address."""

    def ask(web: Web, peer: str, method: str, path: str, **more: object) -> httpx.Response:
        async def go() -> httpx.Response:
            transport = httpx.ASGITransport(web.asgi, raise_app_exceptions=False, client=(peer, 1234))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.request(method, API + path, **more)  # type: ignore[arg-type]

        return runner.run(go())

    return ask


def bearer(token: str, **headers: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}", **headers}


@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis"])
def test_wrong_tokens_do_not_lock_out_a_right_one(
    make_web: Callable[..., Web], ask_from: Callable[..., httpx.Response], store: str
) -> None:
    web = make_web(store, auth="tokens")
    right = web.token("read")
    codes = [
        ask_from(web, "192.0.2.9", "GET", "/queues", headers=bearer(WRONG)).status_code
        for _ in range(MOST + 5)
    ]
    assert codes == [401] * MOST + [429] * 5
    assert ask_from(web, "192.0.2.9", "GET", "/queues", headers=bearer(right)).status_code == 200
    refused = ask_from(web, "192.0.2.9", "GET", "/queues", headers=bearer(WRONG))
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0
    assert ask_from(web, "192.0.2.10", "GET", "/queues", headers=bearer(WRONG)).status_code == 401


def test_a_forged_address_neither_escapes_the_throttle_nor_enters_the_audit(
    make_web: Callable[..., Web], ask_from: Callable[..., httpx.Response]
) -> None:
    web = make_web("sqlite", auth="tokens")
    admin = web.token("admin")
    codes = [
        ask_from(
            web,
            "127.0.0.1",
            "GET",
            "/queues",
            headers=bearer(WRONG, **{"x-forwarded-for": f"10.9.9.{n}"}),
        ).status_code
        for n in range(MOST + 1)
    ]
    assert codes[-1] == 429
    forged = {"x-forwarded-for": "203.0.113.66", "content-type": "application/json"}
    done = ask_from(
        web, "127.0.0.1", "POST", "/queues/mail/pause", json={}, headers=bearer(admin, **forged)
    )
    assert done.status_code < 300, done.text
    [line] = ask_from(web, "127.0.0.1", "GET", "/audit", headers=bearer(admin)).json()["lines"]
    assert line["origin"] == "127.0.0.1"


def test_a_trusted_proxy_names_the_client(
    make_web: Callable[..., Web], ask_from: Callable[..., httpx.Response]
) -> None:
    web = make_web("sqlite", auth="tokens", proxies=parse_networks("10.0.0.0/8,127.0.0.1/32"))
    admin = web.token("admin")
    through = {"x-forwarded-for": "198.51.100.7, 10.2.3.4", "content-type": "application/json"}
    done = ask_from(
        web, "127.0.0.1", "POST", "/queues/mail/pause", json={}, headers=bearer(admin, **through)
    )
    assert done.status_code < 300, done.text
    [line] = ask_from(web, "127.0.0.1", "GET", "/audit", headers=bearer(admin)).json()["lines"]
    assert line["origin"] == "198.51.100.7"
    for _ in range(MOST):
        ask_from(web, "127.0.0.1", "GET", "/queues", headers=bearer(WRONG, **through))
    throttled = ask_from(web, "127.0.0.1", "GET", "/queues", headers=bearer(WRONG, **through))
    assert throttled.status_code == 429
    other = bearer(WRONG, **{"x-forwarded-for": "198.51.100.8"})
    assert ask_from(web, "127.0.0.1", "GET", "/queues", headers=other).status_code == 401


def scope_of(peer: str, **headers: str) -> dict[str, object]:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"client": (peer, 1), "scheme": "http", "headers": [(b"host", b"inner"), *pairs]}


@pytest.mark.parametrize(
    "peer, forwarded, client",
    [
        ("10.0.0.1", "192.0.2.1", "192.0.2.1"),
        ("10.0.0.1", "6.6.6.6, 192.0.2.1", "192.0.2.1"),  # the client wrote the first one itself
        ("10.0.0.1", "192.0.2.1, 10.0.0.2", "192.0.2.1"),
        ("10.0.0.1", "192.0.2.1:4711", "192.0.2.1"),
        ("10.0.0.1", "[2001:db8::1]:4711", "2001:db8::1"),
        ("::ffff:10.0.0.1", "192.0.2.1", "192.0.2.1"),
        ("10.0.0.1", "nonsense", "10.0.0.1"),
        ("10.0.0.1", "192.0.2.1, nonsense, 10.0.0.2", "10.0.0.2"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("192.0.2.5", "6.6.6.6", "192.0.2.5"),
        ("not an address", "6.6.6.6", "not an address"),
    ],
)
def test_only_what_trusted_proxies_add_counts(peer: str, forwarded: str, client: str) -> None:
    found = resolved(scope_of(peer, x_forwarded_for=forwarded), parse_networks("10.0.0.0/8"))
    assert found["client"][0] == client


def test_scheme_and_host_count_from_a_trusted_proxy_only() -> None:
    trusted = parse_networks("10.0.0.0/8")
    headers = {"x_forwarded_proto": "https", "x_forwarded_host": "jobs.example.com"}
    inside = resolved(scope_of("10.0.0.1", **headers), trusted)
    assert (inside["scheme"], dict(inside["headers"])[b"host"]) == ("https", b"jobs.example.com")
    outside = resolved(scope_of("192.0.2.1", **headers), trusted)
    assert (outside["scheme"], dict(outside["headers"])[b"host"]) == ("http", b"inner")
    odd = resolved(scope_of("10.0.0.1", x_forwarded_proto="javascript"), trusted)
    assert odd["scheme"] == "http"


def test_trusted_proxies_are_a_setting() -> None:
    assert load(env={}).settings.trusted_proxies is None, "no proxy is trusted by default"
    set_ = load(env={"WINCH_TRUSTED_PROXIES": "10.0.0.0/8"})
    assert set_.settings.trusted_proxies == "10.0.0.0/8"
    with pytest.raises(ConfigError, match=r"trusted_proxies must be like 10\.0\.0\.0/8"):
        load(env={}, cli={"trusted_proxies": "10.0.0.1/8"})


def test_a_server_ignores_forged_addresses(tmp_path: Path) -> None:
    """The same over a real socket: the HTTP server beneath the site believes no header either."""
    app = App(f"sqlite:///{tmp_path / 'winch.db'}")
    app.migrate()
    with serving(app) as address:
        forged = {"x-forwarded-for": "203.0.113.66", "x-forwarded-proto": "https"}
        done = httpx.post(f"{address}{API}/queues/mail/pause", json={}, headers=forged, timeout=20)
        assert done.status_code < 300, done.text
        [line] = httpx.get(f"{address}{API}/audit", timeout=20).json()["lines"]
    assert line["origin"] in ("127.0.0.1", "::1")

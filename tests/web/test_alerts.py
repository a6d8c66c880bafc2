"""Alerts: each fires by its numbers and is sent once; a webhook cannot reach the internal network."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.web.kit import Web
from winch.core.errors import ConfigError, DeliveryRefused
from winch.core.lifecycle import JobState
from winch.core.policy.alerting import AlertRules, parse_rules
from winch.core.values.ip_address import is_public, parse_networks
from winch.engine.base.settings import load
from winch.engine.observe import webhook
from winch.engine.observe.alerts import Alerts, Hook, firing, kept_alerts
from winch.engine.observe.throughput import MINUTE, Series, TaskRate
from winch.storage.params import QueueInfo

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def queue(name: str = "q", ready: int = 0, age: float | None = None, **more: Any) -> QueueInfo:
    return QueueInfo(
        name=name,
        counts={JobState.READY: ready},
        oldest_ready_at=None if age is None else NOW - timedelta(seconds=age),
        **more,
    )


def rules_of(queues: list[QueueInfo], rate: TaskRate | None = None) -> list[str]:
    series = Series(MINUTE, 0, [] if rate is None else [{"q": {"t": rate}}])
    return [alert.rule for alert in firing(AlertRules(), queues, series, [], NOW)]


def test_the_defaults_are_those_of_the_specification() -> None:
    assert rules_of([queue(ready=9_999, sessions=1)]) == []
    assert rules_of([queue(ready=10_000, sessions=1)]) == ["depth"]
    assert rules_of([queue(ready=1, age=59, sessions=1)]) == []
    assert rules_of([queue(ready=1, age=61, sessions=1)]) == ["oldest"]
    assert rules_of([queue(ready=1, age=61, sessions=1, paused_at=NOW)]) == []
    assert rules_of([queue(ready=1, age=61)]) == ["workers"]
    assert rules_of([], TaskRate(completed=10, failed=9)) == []
    assert rules_of([], TaskRate(completed=10, failed=10)) == ["failures"]
    assert rules_of([], TaskRate(completed=100, dead=10)) == ["dead"]


def test_rules_are_read_from_text_and_tables() -> None:
    rules = parse_rules("depth=5, oldest=5m dead=off")
    assert (rules.depth, rules.oldest, rules.dead) == (5, timedelta(minutes=5), None)
    assert rules == parse_rules({"depth": 5, "oldest": "5m", "dead": False})
    assert rules == parse_rules(str(rules))
    assert parse_rules("off").are_off
    assert load(env={"WINCH_ALERTS": "off"}).settings.alerts.are_off
    for wrong, reason in (
        ("depht=5", "did you mean 'depth'"),
        ("depth=0", "at least 1"),
        ("failures=2", "at most 1"),
        ("depth=x", "a whole number of at least 1"),
        ("loud", "must be off, or like"),
    ):
        with pytest.raises(ConfigError, match=reason):
            parse_rules(wrong)


class Receiver(BaseHTTPRequestHandler):
    """A webhook's other end."""

    got: list[tuple[dict[str, str], bytes]]
    status = 204

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        kind = type(self)
        kind.got.append(({key.lower(): value for key, value in self.headers.items()}, body))
        self.send_response(kind.status)
        if kind.status == 302:
            self.send_header("location", "http://169.254.169.254/")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing to the terminal."""


@contextmanager
def receiving() -> Iterator[tuple[str, type[Receiver]]]:
    kind = type("Own", (Receiver,), {"got": [], "status": 204})
    server = HTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook?x=1", kind
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_an_alert_is_sent_when_it_begins_and_when_it_ends(
    make_web: Callable[..., Web], store: str
) -> None:
    web = make_web(store)
    driver = web.app.ready()
    secret = "whsec_" + base64.b64encode(b"0123456789abcdef").decode()
    with receiving() as (url, receiver):

        async def looks() -> None:
            hook = Hook(url=url, secret=secret, networks="127.0.0.1/32")
            first, second = (Alerts(driver, AlertRules(depth=2), hook) for _ in range(2))
            web.add.enqueue(1)
            await first.run_once()
            assert receiver.got == []
            web.add.enqueue(2)
            receiver.status = 500
            await first.run_once()
            await second.run_once()  # another one has just looked: it leaves it to that
            assert len(receiver.got) == 1
            receiver.status = 204
            await first.run_once()
            await first.run_once()
            assert len(receiver.got) == 2, "again after a failure, and then no more"
            [kept] = web.app.client.run(kept_alerts(driver))
            assert kept.is_sent
            web.claim(max=2)
            await first.run_once()
            await first.run_once()
            await driver.aclose()

        asyncio.run(looks())
    bodies = [json.loads(body) for _, body in receiver.got]
    assert [body["type"].rpartition(".")[2] for body in bodies] == ["firing", "firing", "resolved"]
    assert bodies[0]["id"] == bodies[1]["id"] != bodies[2]["id"]
    assert bodies[0]["data"]["text"] == "queue default has 2 ready jobs"
    assert (bodies[0]["subject"], bodies[0]["specversion"]) == ("default", "1.0")
    headers, body = receiver.got[0]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = hmac.new(b"0123456789abcdef", signed, hashlib.sha256).digest()
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
    assert headers["content-type"] == "application/cloudevents+json"
    assert web.app.client.run(kept_alerts(driver)) == []


def send(url: str, **more: Any) -> int:
    more.setdefault("timeout", 2.0)
    return webhook.send(url, b"{}", message_id="1", content_type="text/plain", **more)


HIDDEN = [
    "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "localhost", "0.0.0.0",
    "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:169.254.169.254]", "[64:ff9b::7f00:1]",
    "[64:ff9b::a9fe:a9fe]", "[2002:7f00:1::]", "[2002:a9fe:a9fe::]", "[::127.0.0.1]", "169.254.169.254",
    "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "224.0.0.1", "[fd00::1]", "[fe80::1]",
    "[ff02::1]", "255.255.255.255", "240.0.0.1", "[2001:0:0:0:0:0:80ff:fffe]",
]  # fmt: skip


@pytest.mark.parametrize("host", HIDDEN)
def test_no_spelling_reaches_what_is_not_on_the_internet(host: str) -> None:
    with receiving() as (url, receiver):
        port = url.split(":")[2].partition("/")[0]
        for target in (f"https://{host}/", f"http://{host}:{port}/", f"https://{host}:{port}/"):
            # Because of its network, not because no server listens there or the port differs.
            with pytest.raises(DeliveryRefused, match=r"open internet|cannot be resolved"):
                send(target)
    assert receiver.got == []


def test_one_hidden_address_among_others_is_enough() -> None:
    calls: list[str] = []

    def flips(host: str, _: int) -> list[Any]:
        calls.append(host)
        public, hidden = (ipaddress.ip_address(text) for text in ("93.184.216.34", "127.0.0.1"))
        return [public, hidden]

    with pytest.raises(DeliveryRefused, match="not on the open internet"):
        send("https://flips.test/", resolver=flips)
    assert calls == ["flips.test"], "resolved once: what was checked is what is called"


def test_a_redirect_is_not_followed_and_plain_http_is_not_spoken() -> None:
    with receiving() as (url, receiver):
        receiver.status = 302
        with pytest.raises(DeliveryRefused, match="answered 302"):
            send(url, allowed=parse_networks("127.0.0.0/8"))
        assert len(receiver.got) == 1
    public = [ipaddress.ip_address("93.184.216.34")]
    for url in ("http://example.com/", "https://example.com:22/"):
        with pytest.raises(DeliveryRefused, match="only https on port 443 or 8443"):
            send(url, resolver=lambda *_: public)
    for wrong in (
        "ftp://x/",
        "https://",
        "https://u:p@x/",
        "https://x:0/",
        "https://x/\r\na",
        "https://x:y/",
    ):
        with pytest.raises(ConfigError, match="webhook's URL"):
            send(wrong)
    with pytest.raises(ConfigError, match="networks must be like"):
        parse_networks("10.0.0.1/8")


def test_the_name_is_checked_against_the_certificate(tmp_path: Path) -> None:
    import ssl

    def certificate(name: str) -> Path:
        made = tmp_path / f"{name}.pem"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout",
                   str(made), "-out", f"{made}.crt", "-subj", f"/CN={name}", "-addext",
                   f"subjectAltName=DNS:{name}"]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
        with made.open("a") as file:
            file.write(Path(f"{made}.crt").read_text())
        return made

    pem = certificate("hook.test")
    here = [ipaddress.ip_address("127.0.0.1")]
    with receiving() as (_, receiver):
        server = HTTPServer(("127.0.0.1", 0), receiver)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        trust = ssl.create_default_context(cafile=f"{pem}.crt")
        options = {"allowed": parse_networks("127.0.0.1/32"), "resolver": lambda *_: here}
        try:
            at = server.server_port
            assert send(f"https://hook.test:{at}/", tls=trust, **options) == 204
            with pytest.raises(DeliveryRefused):
                send(f"https://other.test:{at}/", tls=trust, **options)
            with pytest.raises(DeliveryRefused):
                send(f"https://hook.test:{at}/", **options)
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
    assert [headers["host"] for headers, _ in receiver.got] == [f"hook.test:{at}"]


@pytest.mark.parametrize("text", ["93.184.216.34", "2606:2800:220:1::1"])
def test_internet_addresses_are_public(text: str) -> None:
    assert is_public(text)

"""The outbox: messages go out with the caller's writes, in order, signed, never to internal hosts."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from tests.redis_servers import RedisServer
from winch import App, ConfigError, HttpSink, JobState, Message, RedisSink, Retry, RetryAfter
from winch.core.errors import DeliveryRefused
from winch.core.values.ip_address import is_public
from winch.engine.base import http_post
from winch.testing import virtual

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'outbox.db'}")


# -- messages ----------------------------------------------------------------------------------------


def test_messages_of_one_key_go_out_one_by_one_in_order(app: App) -> None:
    got: list[Any] = []

    @app.outbox.sink("orders", retry=Retry.fixed("1s", attempts=5))
    def keep(message: Message) -> None:
        if message.payload == 0 and message.attempt < 3:
            raise ConnectionError("not yet")
        got.append((message.key, message.payload))

    with virtual(app) as world:
        for n in range(3):
            for key in ("a", "b"):
                app.outbox.add("orders", key=key, payload=n if key == "a" else n + 10)
        world.run_all()
    assert [n for key, n in got if key == "a"] == [0, 1, 2]
    assert [n for key, n in got if key == "b"] == [10, 11, 12]
    assert [key for key, _ in got[:3]] == ["b", "b", "b"], "another key does not wait for a retry"


def test_a_message_comes_and_goes_with_the_callers_transaction(app: App) -> None:
    got: list[Message] = []
    app.outbox.sink("orders", got.append)
    with contextlib.suppress(ZeroDivisionError), app.transaction() as conn:
        app.outbox.add("orders", key="1", payload="never", conn=conn)
        raise ZeroDivisionError
    with app.transaction() as conn:
        job = app.outbox.add("orders", key="1", payload={"total": 9}, conn=conn, headers={"h": "v"})
    app.run_worker(burst=True)
    [message] = got
    assert (message.id, message.topic, message.key) == (job.id, "orders", "1")
    assert (message.payload, message.attempt, message.headers) == ({"total": 9}, 1, {"h": "v"})


@pytest.mark.parametrize("on_death", ["block", "skip"])
def test_a_dead_message_keeps_its_key_back_or_lets_it_go_on(app: App, on_death: str) -> None:
    got: list[Any] = []
    is_up = False

    def deliver(message: Message) -> None:
        if message.payload == "bad" and not is_up:
            raise ConnectionError("refused")
        got.append(message.payload)

    app.outbox.sink("t", deliver, on_death=on_death, retry=Retry.fixed("1s", attempts=2))
    with virtual(app) as world:
        bad = app.outbox.add("t", key="k", payload="bad")
        app.outbox.add("t", key="k", payload="next")
        app.outbox.add("t", key="other", payload="other")
        world.run_all()
        assert bad.refresh().state is JobState.DEAD
        assert sorted(got) == (["other"] if on_death == "block" else ["next", "other"])
        assert [job.id for job in app.outbox.list("t", state=JobState.DEAD)[0]] == [bad.id]
        is_up = True
        assert app.outbox.replay("t", dry_run=True).matched == 1
        assert app.outbox.replay("t").replayed == 1
        world.run_all()
        assert got == ["other", "bad", "next"] if on_death == "block" else [*got[:2], "bad"]


@pytest.mark.parametrize("store", ["memory", "redis"])
def test_messages_are_listed_by_the_name_of_a_state(store: str) -> None:
    def refuse(message: Message) -> None:
        raise ConnectionError("refused")

    with contextlib.ExitStack() as stack:
        url = "memory://" if store == "memory" else stack.enter_context(RedisServer()).url
        app = App(url)
        app.outbox.sink("t", refuse, retry=Retry.fixed("1s", attempts=1))
        sent = app.outbox.add("t", payload=1)
        app.run_worker(burst=True)
        assert [job.id for job in app.outbox.list(state="dead")[0]] == [sent.id]
        assert app.outbox.list("t", state=["ready", "completed"])[0] == []
        with pytest.raises(ConfigError, match=r"state must be one of .*, got 'daed'"):
            app.outbox.list(state="daed")
        app.close()


def test_a_producer_need_not_deliver(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'two.db'}"
    producer, relay = App(url), App(url)
    got: list[Any] = []

    class Pigeon:
        async def deliver(self, message: Message) -> None:
            got.append(message.payload)

    relay.outbox.sink("news", Pigeon())
    assert relay.outbox.topics == ("news",)
    assert producer.outbox.topics == ()
    asyncio.run(producer.outbox.aadd("news", payload=1))
    producer.run_worker(burst=True)
    assert got == []
    relay.run_worker(burst=True)
    assert got == [1]
    producer.outbox.sink("late", got.append)
    assert producer.outbox.list(state=JobState.COMPLETED)[0][0].record.task == "outbox:news"


@pytest.mark.parametrize(
    "say, says",
    [
        (lambda o: o.sink("t", print, redis="redis://x"), "takes one sink"),
        (lambda o: o.sink("t", http="https://example.com"), "signed"),
        (lambda o: o.sink("t", print, secret="s"), "goes with http"),
        (lambda o: o.sink("t", 7), "must be a function"),
        (lambda o: o.sink("t", print, on_death="wait"), "on_death"),
        (lambda o: o.sink("a:b", print), "without ':'"),
        (lambda o: (o.sink("t", print), o.sink("t", print)), "has a sink already"),
        (lambda o: o.sink("t", http="http://example.com", secret=SECRET), "https://"),
        (lambda o: o.sink("t", http="https://example.com:22", secret=SECRET), "ports 443, 8443"),
        (lambda o: o.sink("t", http="https://u:p@example.com", secret=SECRET), "no user"),
        (lambda o: o.sink("t", http="https://exa mple.com", secret=SECRET), "without spaces"),
        (lambda o: o.sink("t", http="https:///x", secret=SECRET), "names no host"),
        (lambda o: o.sink("t", http="https://example.com", secret="plain"), "whsec_"),
        (lambda o: o.sink("t", http="https://example.com", secret="whsec_?"), "not base64"),
        (lambda o: o.sink("t", http="https://example.com", secret=b"short"), "24 to 64 bytes"),
        (lambda o: o.sink("t", redis="amqp://x"), "redis://"),
        (lambda o: o.replay("t", ids=["x"]), "not both"),
    ],
)
def test_wrong_arguments_raise_with_a_reason(app: App, say: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        say(app.outbox)


# -- HTTP --------------------------------------------------------------------------------------------


class Receiver(ThreadingHTTPServer):
    """An HTTP server that gives the answers a test sets, and keeps its requests."""

    daemon_threads = True

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.connections = 0
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/hook?a=1"

    def process_request(self, *args: Any) -> None:
        self.connections += 1
        super().process_request(*args)


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append(({k.lower(): v for k, v in self.headers.items()}, body))
        status, headers = self.server.answers.pop(0) if self.server.answers else (204, {})
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def message(**fields: Any) -> Message:
    from datetime import UTC, datetime

    known = {"id": "m-1", "topic": "orders", "key": "42", "payload": {"total": 9}, "attempt": 1}
    moment = datetime(2026, 5, 1, 12, tzinfo=UTC)
    return Message(**{**known, "created_at": moment, "headers": {}, **fields})


def deliver(sink: HttpSink, one: Message | None = None) -> None:
    asyncio.run(sink.deliver(one or message()))


def test_a_message_is_a_signed_cloud_event(receiver: Receiver) -> None:
    sink = HttpSink(receiver.url, secret=SECRET, allow_private=True, source="/shop", type="order.paid")
    deliver(sink, message(headers={"traceparent": "00-1-2-01"}))
    [(headers, body)] = receiver.got
    assert json.loads(body) == {
        "specversion": "1.0",
        "id": "m-1",
        "source": "/shop",
        "type": "order.paid",
        "subject": "42",
        "partitionkey": "42",
        "time": "2026-05-01T12:00:00Z",
        "datacontenttype": "application/json",
        "traceparent": "00-1-2-01",
        "data": {"total": 9},
    }
    assert headers["content-type"].startswith("application/cloudevents+json")
    signed = f"m-1.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.digest(b"k" * 32, signed, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert headers["webhook-id"] == "m-1"


def test_answers_decide_what_becomes_of_a_message(app: App, receiver: Receiver) -> None:
    receiver.answers = [(500, {}), (429, {"Retry-After": "7"}), (302, {"Location": "/x"}), (204, {})]
    app.outbox.sink(
        "t",
        http=HttpSink(receiver.url, secret=SECRET, allow_private=True),
        retry=Retry.fixed("1s", attempts=5, jitter="none"),
    )
    with virtual(app) as world:
        job = app.outbox.add("t", payload=1)
        world.run_all()
        record = job.refresh().record
        assert record.state is JobState.COMPLETED
        assert [entry.error.message for entry in record.history if entry.error] == [
            "127.0.0.1 answered 500",
            "127.0.0.1 answered 429",
            "127.0.0.1 answered 302",
        ]
        receiver.answers = [(410, {})]
        gone = app.outbox.add("t", payload=2)
        world.run_all()
        assert gone.refresh().state is JobState.DEAD
    assert len(receiver.got) == 5
    assert len({headers["webhook-id"] for headers, _ in receiver.got[:4]}) == 1


def test_a_wait_that_the_other_side_asks_for_is_kept(receiver: Receiver) -> None:
    receiver.answers = [(503, {"Retry-After": "999999"})]
    with pytest.raises(RetryAfter) as caught:
        deliver(HttpSink(receiver.url, secret=SECRET, allow_private=True))
    assert caught.value.delay.days == 1


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0\r\n\r\n", b"HTTP/1.1 200 OK\r\nA: " + b"x" * 40_000])
def test_a_malformed_http_answer_is_a_failure(answer: bytes) -> None:
    async def run() -> None:
        async def answering(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(answer)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answering, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        sink = HttpSink(f"http://127.0.0.1:{port}", secret=SECRET, allow_private=True)
        try:
            with pytest.raises((ConnectionError, ValueError)):
                await sink.deliver(message())
        finally:
            server.close()

    asyncio.run(run())


def test_a_silent_receiver_costs_its_time_limit_and_no_more() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TimeoutError):
            deliver(HttpSink(url, secret=SECRET, allow_private=True, timeout="100ms"))


# -- never to internal hosts -------------------------------------------------------------------------

INSIDE = [
    "127.0.0.1",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "0.0.0.0",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::127.0.0.1]",
    "169.254.169.254",
    "[::ffff:169.254.169.254]",
    "[2002:a9fe:a9fe::]",
    "[64:ff9b::a9fe:a9fe]",
    "[fe80::1]",
    "[fd00::1]",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "localhost",
    "[2001::1]",
    "[ff02::1]",
]


@pytest.mark.parametrize("host", INSIDE)
def test_nothing_is_sent_to_internal_addresses(
    host: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_post, "PORTS", (receiver.server_port,))
    sink = HttpSink(f"https://{host}:{receiver.server_port}/", secret=SECRET)
    # Forms that this machine's resolver does not know do not get anywhere either.
    with pytest.raises((DeliveryRefused, ConnectionError)):
        deliver(sink)
    assert receiver.connections == 0


def test_public_addresses_are_recognised() -> None:
    for address in ("93.184.216.34", "1.1.1.1", "2606:4700::1111", "2a00:1450:4001::200e"):
        assert is_public(address)
    for text in ("example.com", "127.1", "fe80::1%eth0", "2606:4700::1%x", "", "2001:db8::1"):
        assert not is_public(text)


def test_one_internal_address_among_others_is_enough_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [["93.184.216.34", "127.0.0.1"]]
    connected = _fake_network(monkeypatch, answers)
    with pytest.raises(DeliveryRefused, match=r"example\.com is at 127\.0\.0\.1"):
        deliver(HttpSink("https://example.com/", secret=SECRET))
    assert connected == []


def test_dns_rebinding_cannot_reach_an_internal_address(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [["93.184.216.34"], ["127.0.0.1"]]
    connected = _fake_network(monkeypatch, answers)
    with pytest.raises(ConnectionError, match="as far as this test goes"):
        deliver(HttpSink("https://example.com/", secret=SECRET))
    assert connected == ["93.184.216.34"], "to the address that was looked at, not to the name"
    with pytest.raises(DeliveryRefused):
        deliver(HttpSink("https://example.com/", secret=SECRET))
    assert len(connected) == 1


def _fake_network(monkeypatch: pytest.MonkeyPatch, answers: list[list[str]]) -> list[str]:
    connected: list[str] = []

    async def getaddrinfo(_: Any, host: str, port: int, **__: Any) -> list[Any]:
        return [(0, 0, 0, "", (address, port)) for address in answers.pop(0)]

    async def connect(address: str, *_: Any, server_hostname: str, **__: Any) -> Any:
        assert server_hostname == "example.com"
        connected.append(address)
        raise ConnectionError("as far as this test goes")

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(asyncio, "open_connection", connect)
    return connected


@pytest.mark.servers
def test_a_redis_sink_adds_to_a_stream(app: App) -> None:
    with RedisServer() as server:
        app.outbox.sink("orders", redis=server.url)
        app.outbox.sink("audit", redis=RedisSink(server.url, stream="log", max_length=100))
        added = [app.outbox.add("orders", key="42", payload={"n": n}).id for n in range(3)]
        app.outbox.add("audit", payload="seen")
        app.run_worker(burst=True)
        with Redis.from_url(server.url, decode_responses=True) as client:
            entries = [fields for _, fields in client.xrange("orders")]
            assert client.xlen("log") == 1
    assert [fields["id"] for fields in entries] == added
    assert [json.loads(fields["data"])["data"] for fields in entries] == [{"n": n} for n in range(3)]
    assert {fields["key"] for fields in entries} == {"42"}


def test_a_redis_sink_names_what_it_cannot_be() -> None:
    with pytest.raises(ConfigError, match="max_length"):
        RedisSink("redis://localhost", max_length=0)

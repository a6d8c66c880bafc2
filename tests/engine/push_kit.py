"""A receiver of pushed jobs: a real HTTP server that checks signatures and gives a test's answers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

SECRET = "whsec_" + base64.b64encode(b"push" * 8).decode()
OTHER = "whsec_" + base64.b64encode(b"same" * 8).decode()
TOLERANCE = 300


class Delivery(NamedTuple):
    """One request whose signature was right."""

    at: float
    headers: Mapping[str, str]
    body: dict[str, Any]

    @property
    def job(self) -> str:
        return self.headers["winch-job"]

    @property
    def token(self) -> str:
        return self.headers["winch-token"]

    @property
    def attempt(self) -> int:
        return int(self.headers["winch-attempt"])


class Answer(NamedTuple):
    status: int = 204
    headers: Mapping[str, str] = {}
    after: float = 0.0
    is_cut: bool = False
    """The connection is reset in place of an answer."""


class Receiver(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, secret: str = SECRET) -> None:
        self.secret = secret
        self.answer: Callable[[Delivery], Answer] = lambda _: Answer()
        self.got: list[Delivery] = []
        self.unsigned = 0
        self.guard = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/run?team=7"

    def is_signed(self, headers: Mapping[str, str], body: bytes) -> bool:
        """As any library for Standard Webhooks checks it."""
        if abs(time.time() - int(headers.get("webhook-timestamp", "0"))) > TOLERANCE:
            return False
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        key = base64.b64decode(self.secret.removeprefix("whsec_"))
        expected = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
        return f"v1,{expected}" in headers.get("webhook-signature", "").split(" ")

    def of(self, job: str) -> list[Delivery]:
        return [one for one in self.got if one.job == job]

    def handle_error(self, *_: object) -> None:
        """A sender that is killed breaks its connections."""


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        receiver = self.server
        if not receiver.is_signed(headers, body):
            receiver.unsigned += 1
            self.send_response(401)
            self.end_headers()
            return
        delivery = Delivery(time.monotonic(), headers, json.loads(body))
        with receiver.guard:
            receiver.got.append(delivery)
        answer = receiver.answer(delivery)
        time.sleep(answer.after)
        if answer.is_cut:
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def receiving(secret: str = SECRET) -> Iterator[Receiver]:
    receiver = Receiver(secret)
    thread = threading.Thread(target=receiver.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield receiver
    finally:
        receiver.shutdown()
        thread.join()
        receiver.server_close()

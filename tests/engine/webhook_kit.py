"""A receiver of webhooks that checks signatures as a customer would."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Customer(ThreadingHTTPServer):
    """Accepts what one of its secrets has signed; answers `status` where that is set."""

    daemon_threads = True

    def __init__(self) -> None:
        self.secrets: list[str] = []
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.accepted: list[dict[str, Any]] = []
        self.rejected: list[dict[str, Any]] = []
        self.requests = 0
        super().__init__(("127.0.0.1", 0), _Handler)
        self.host = f"127.0.0.1:{self.server_port}"
        self.url = f"http://{self.host}/hook"

    def is_signed(self, headers: dict[str, str], body: bytes) -> bool:
        """Any one signature by any one secret is enough, as Standard Webhooks demand."""
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        given = headers["webhook-signature"].split(" ")
        for secret in self.secrets:
            key = base64.b64decode(secret.removeprefix("whsec_"))
            expected = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
            if f"v1,{expected}" in given:
                return True
        return False

    @property
    def data(self) -> list[Any]:
        return [event["data"] for event in self.accepted]


class _Handler(BaseHTTPRequestHandler):
    server: Customer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        customer = self.server
        customer.requests += 1
        status = customer.status
        if status is None:
            event = json.loads(body)
            assert event["id"] == headers["webhook-id"]
            is_signed = customer.is_signed(headers, body)
            (customer.accepted if is_signed else customer.rejected).append(event)
            status = 204 if is_signed else 401
        self.send_response(status)
        for name, value in customer.headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def customer() -> Iterator[Customer]:
    server = Customer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

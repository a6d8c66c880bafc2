"""The payment provider: another company's system, with a ledger of its own.

It charges once for each idempotency key, however often it is called; that is all Winch needs of it.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import Request, urlopen


def serve(ledger: str, port: int) -> None:
    """Take charges over HTTP until killed."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with sqlite3.connect(ledger, timeout=30) as book:
                book.execute(
                    "INSERT OR IGNORE INTO charge (key, order_id, amount) VALUES (?, ?, ?)",
                    (asked["key"], asked["order_id"], asked["amount"]),
                )
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with sqlite3.connect(ledger) as book:
        book.execute(
            "CREATE TABLE IF NOT EXISTS charge (key TEXT PRIMARY KEY, order_id TEXT, amount INTEGER)"
        )
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


def charge(url: str, key: str, order_id: str, amount: int) -> None:
    """Have an order charged; repeating it with the same key changes nothing."""
    body = json.dumps({"key": key, "order_id": order_id, "amount": amount}).encode()
    with urlopen(Request(url, data=body, method="POST"), timeout=10) as answer:  # noqa: S310  # our own
        answer.read()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))

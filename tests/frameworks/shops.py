"""The example shops under their own web servers: customers order, the server is killed, the books are
audited. `tests/frameworks` runs it briefly, and `make frameworks` on every server, store and version."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.server_process import free_port
from winch import App

ROOT = Path(__file__).parents[2]
KEY = "CANARY"
START_SECONDS = 60.0
CUSTOMERS = 4

# What follows `python -m`; PORT is replaced.
SERVERS: dict[tuple[str, str], tuple[str, ...]] = {
    ("fastapi", "uvicorn"): (
        "uvicorn", "examples.fastapi_shop.web:api", "--port", "PORT", "--log-level", "warning",
    ),
    ("flask", "flask"): ("flask", "--app", "examples.flask_shop.web", "run", "--port", "PORT"),
    ("flask", "gunicorn"): (
        "gunicorn", "-w", "2", "-b", "127.0.0.1:PORT", "examples.flask_shop.web:create_app()",
    ),
    ("litestar", "litestar"): (
        "litestar", "--app", "examples.litestar_shop.web:site", "run", "--port", "PORT",
    ),
    ("litestar", "uvicorn"): (
        "uvicorn", "examples.litestar_shop.web:site", "--port", "PORT", "--log-level", "warning",
    ),
}  # fmt: skip
WORKERS: dict[str, tuple[str, ...]] = {
    "fastapi": ("winch", "worker", "-A", "examples.fastapi_shop.tasks:jobs"),
    "flask": ("flask", "--app", "examples.flask_shop.web", "winch", "worker"),
    "litestar": ("litestar", "--app", "examples.litestar_shop.web:site", "winch", "worker"),
}


@dataclass
class Books:
    """What the customers saw, and what the database holds in the end."""

    accepted: set[str] = field(default_factory=set)
    declined: set[str] = field(default_factory=set)
    unanswered: set[str] = field(default_factory=set)
    kills: int = 0
    other: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    orders: int = 0
    unanswered_stored: int = 0

    def __str__(self) -> str:
        return (
            f"{self.kills} kills; {len(self.accepted)} accepted, {len(self.declined)} declined, "
            f"{len(self.unanswered)} without an answer ({self.unanswered_stored} stored); "
            f"{self.orders} orders = jobs = receipts"
        )


@dataclass
class Shop:
    """One shop on one store: `python` has its framework installed."""

    framework: str
    server: str
    url: str
    folder: Path
    python: str = sys.executable

    def run(self, *words: str) -> str:
        """Run `python -m WORDS` to its end; returns what it prints."""
        done = subprocess.run(
            [self.python, "-m", *words],
            cwd=ROOT,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        if done.returncode:
            raise AssertionError(f"{' '.join(words)} failed:\n{done.stdout}\n{done.stderr}")
        return done.stdout + done.stderr

    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("WINCH_")}
        return kept | {"SHOP_URL": self.url, "SHOP_OPERATOR_KEY": KEY}

    @contextmanager
    def served(self) -> Iterator[Customer]:
        """The shop under its server, which is killed with -9 at the end of the block."""
        port = free_port()
        words = [word.replace("PORT", str(port)) for word in SERVERS[self.framework, self.server]]
        with (self.folder / "server.log").open("ab") as log:
            process = subprocess.Popen(
                [self.python, "-m", *words],
                cwd=ROOT,
                env=self.environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                customer = Customer(port)
                self._wait_for(customer, process)
                yield customer
            finally:
                with suppress(ProcessLookupError):  # it did not start
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _wait_for(self, customer: Customer, process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            if process.poll() is not None:
                break
            if customer.get("/receipts/none")[0] == 404:
                return
            time.sleep(0.1)
        raise AssertionError(f"no answer from the server:\n{(self.folder / 'server.log').read_text()}")


class Customer:
    """Sends requests to the shop."""

    def __init__(self, port: int) -> None:
        self._port = port

    def order(self, number: str, card: str = "") -> tuple[int | None, dict[str, str], Any]:
        body = json.dumps({"number": number, "card": card})
        return self._ask("POST", "/orders", body)

    def get(self, path: str, **headers: str) -> tuple[int | None, dict[str, str], Any]:
        return self._ask("GET", path, None, headers)

    def _ask(
        self, method: str, path: str, body: str | None, more: dict[str, str] | None = None
    ) -> tuple[int | None, dict[str, str], Any]:
        """Status, headers and body of the answer; the status is None where no whole answer came."""
        conn = http.client.HTTPConnection("127.0.0.1", self._port, timeout=20)
        headers = {"content-type": "application/json", "x-customer": "ada", **(more or {})}
        try:
            conn.request(method, path, body, headers)
            answer = conn.getresponse()
            text = answer.read().decode()
        except (OSError, http.client.HTTPException):
            return None, {}, None
        finally:
            conn.close()
        found = {key.lower(): value for key, value in answer.getheaders()}
        is_json = found.get("content-type", "").startswith("application/json")
        return answer.status, found, json.loads(text) if is_json else text


def play(shop: Shop, *, kills: int, orders: int) -> Books:
    """Let customers order while the server is killed again and again, then audit the books.

    Each kill comes at a random moment after so many more answers, some of them about declined cards.
    """
    books = Books()
    shop.run(f"examples.{shop.framework}_shop.store")
    for number in range(kills):
        with shop.served() as customer:
            if number == 0:
                check_site(customer, books)
            ordering = _ordering(customer, books, f"r{number}")
            _wait_for_answers(books, len(books.accepted) + orders, len(books.declined) + 1)
            time.sleep(random.uniform(0.0, 0.2))
        books.kills += 1
        for thread in ordering:
            thread.join()
    shop.run(*WORKERS[shop.framework], "-Q", "mail", "--burst")
    audit(shop, books)
    return books


def _wait_for_answers(books: Books, accepted: int, declined: int) -> None:
    until = time.monotonic() + START_SECONDS
    while len(books.accepted) < accepted or len(books.declined) < declined:
        if time.monotonic() > until:
            raise AssertionError(f"the shop answers too slowly: {books}; {dict(books.other)}")
        time.sleep(0.01)


def _ordering(customer: Customer, books: Books, name: str) -> list[threading.Thread]:
    """Customers that order until the server is gone. Every fourth card is declined."""
    lock = threading.Lock()

    def order(customer_number: int) -> None:
        count = 0
        while True:
            count += 1
            number = f"{name}-{customer_number}-{count}"
            status, _, _ = customer.order(number, "declined" if count % 4 == 0 else "")
            with lock:
                if status == 202:
                    books.accepted.add(number)
                elif status == 402:
                    books.declined.add(number)
                elif status is None:
                    books.unanswered.add(number)
                    return
                else:
                    books.other[status] += 1

    threads = [
        threading.Thread(target=order, args=(customer_number,)) for customer_number in range(CUSTOMERS)
    ]
    for thread in threads:
        thread.start()
    return threads


def check_site(customer: Customer, books: Books) -> None:
    """What a customer and an operator see, through the real server."""
    status, headers, body = customer.order("first")
    if status != 202:
        raise AssertionError(f"the first order got {status}: {body}")
    books.accepted.add("first")
    location = headers["location"]
    expected: Sequence[tuple[str, dict[str, str], int]] = (
        (location, {}, 200),
        (location, {"x-customer": "eve"}, 404),
        ("/ops/", {}, 401),
        ("/ops/", {"x-operator-key": KEY, "accept": "text/html"}, 200),
        (f"/ops/jobs/{body['id']}", {"x-operator-key": KEY, "accept": "text/html"}, 200),
        ("/ops/static/winch.css", {"x-operator-key": KEY}, 200),
    )
    for path, given, wanted in expected:
        got, _, text = customer.get(path, **given)
        if got != wanted:
            books.wrong.append(f"GET {path} with {sorted(given)}: {got}, expected {wanted}")
        if path == "/ops/" and got == 200 and 'href="/ops/jobs"' not in text:
            books.wrong.append("the links of the dashboard do not begin with its address")


def audit(shop: Shop, books: Books) -> None:
    """Compare what the customers saw with the orders, jobs and receipts in the store."""
    app = App(shop.url)
    try:
        with app.transaction() as conn:
            orders = dict(conn.execute("SELECT number, job FROM shop_order").fetchall())
            receipts = {row[0] for row in conn.execute("SELECT number FROM shop_receipt").fetchall()}
        jobs = {}
        after: str | None = None
        while True:
            page = app.jobs.list(queue="mail", limit=500, after=after)
            for job in page:
                jobs[job.id] = (json.loads(job.record.args)["number"], str(job.record.state))
            after = page.next
            if after is None:
                break
    finally:
        app.close()
    books.orders = len(orders)
    books.unanswered_stored = len(books.unanswered & orders.keys())
    numbers = Counter(number for number, _ in jobs.values())
    facts = {
        "accepted, but there is no order": books.accepted - orders.keys(),
        "declined, but there is an order": books.declined & orders.keys(),
        "order without a job": orders.keys() - numbers.keys(),
        "job without an order": numbers.keys() - orders.keys(),
        "more than one job": {number for number, count in numbers.items() if count > 1},
        "order that names another job": {
            number for number, job in orders.items() if jobs.get(job, ("",))[0] != number
        },
        "order without a receipt": orders.keys() - receipts,
        "receipt without an order": receipts - orders.keys(),
        "job that is not completed": {one for one, state in jobs.values() if state != "completed"},
        "order that no customer made": orders.keys() - books.accepted - books.unanswered,
    }
    books.wrong += [f"{what}: {', '.join(sorted(found)[:5])}" for what, found in facts.items() if found]
    books.wrong += [f"{count} answers with status {status}" for status, count in books.other.items()]

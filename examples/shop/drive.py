"""Drive the shop while things are killed, then check its books.

    python -m examples.shop.drive --store sqlite --seconds 60

Customers order over HTTP and ask again when they get no answer. Meanwhile the web server, workers and
their supervisors are killed with -9 at random, and on PostgreSQL connections are cut. At the end
everything is healed, the queues run dry, and the books must balance to the last piece.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import psutil
import sqlalchemy as sa

from winch import JobState
from winch.types import FINAL

ROOT = Path(__file__).resolve().parents[2]
CUSTOMERS = 4
IMPORT_LINES = 200
REPORT_EVERY = timedelta(seconds=2)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Town:
    """All the processes of the shop, and the code that kills them."""

    def __init__(self, folder: Path, url: str, seed: int) -> None:
        self.folder = folder
        self.ledger = folder / "ledger.db"
        self.web_port, provider_port = free_port(), free_port()
        self.dice = random.Random(seed)
        self.env = {
            **os.environ,
            "WINCH_URL": url,
            "SHOP_PROVIDER": f"http://127.0.0.1:{provider_port}/",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        self.log = (folder / "town.log").open("ab")
        self.kills: Counter[str] = Counter()
        self.cells_until = 0.0
        self.provider = self._start("-m", "examples.shop.provider", str(self.ledger), str(provider_port))
        self.web = self._start_web()
        self.workers = [self._start_worker(), self._start_worker()]

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, *command], cwd=self.folder, env=self.env, stdout=self.log, stderr=self.log
        )

    def _start_web(self) -> subprocess.Popen[bytes]:
        app, port = "examples.shop.web:web", str(self.web_port)
        return self._start("-m", "uvicorn", app, "--port", port, "--log-level", "warning")

    def _start_worker(self) -> subprocess.Popen[bytes]:
        queues = "payments,mail,pictures,imports,search,reports"
        options = ["-A", "examples.shop.checkout:app", "-Q", queues, "-c", "4"]
        return self._start("-m", "winch", "worker", *options)

    def strike(self, cut: Any) -> None:
        """Kill a process without a warning, and start a new one in its place."""
        what = self.dice.choice(["child", "child", "supervisor", "web", "cut" if cut else "child"])
        if what == "child" and time.monotonic() > self.cells_until:
            # Rarely: a job whose own process dies three times is dead, and rightly so.
            what, self.cells_until = "cell", time.monotonic() + 30
        if what == "cut":
            cut()
        elif what == "web":
            self.web.kill()
            self.web.wait()
            self.web = self._start_web()
        else:
            place = self.dice.randrange(len(self.workers))
            worker = self.workers[place]
            if what == "supervisor":
                worker.kill()
                worker.wait()
                self.workers[place] = self._start_worker()
            elif not self._kill_under(worker, what):
                return
        self.kills[what] += 1

    def _kill_under(self, worker: subprocess.Popen[bytes], what: str) -> bool:
        """A child of this worker, or one of its children's cells; False when there is none."""
        try:
            children = psutil.Process(worker.pid).children()
            if what == "cell":
                children = [cell for child in children for cell in child.children()]
            self.dice.choice(children).kill()
        except (psutil.NoSuchProcess, IndexError):
            return False
        return True

    def close(self) -> list[int | None]:
        """Stop everybody; returns how the workers ended."""
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        codes: list[int | None] = []
        for worker in self.workers:
            try:
                codes.append(worker.wait(30))
            except subprocess.TimeoutExpired:
                worker.kill()
                codes.append(None)
        for process in (self.web, self.provider):
            process.kill()
            process.wait()
        self.log.close()
        return codes


def order_goods(port: int, placed: list[dict[str, Any]], until: float, seed: int) -> None:
    """One customer: orders, and repeats the request with the same id until it succeeds."""
    from examples.shop.books import PRODUCTS

    dice = random.Random(seed)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=5) as http:
        while time.monotonic() < until:
            order = {
                "id": str(uuid.uuid4()),
                "product": dice.choice(PRODUCTS),
                "quantity": dice.randint(1, 5),
            }
            while not _asked(http, "/orders", order):
                time.sleep(0.2)
            placed.append(order)
            time.sleep(dice.uniform(0.02, 0.2))


def check_out(port: int, answers: dict[str, bool], until: float, seed: int) -> None:
    """A customer whose orders a person looks at: two of three are approved."""
    from examples.shop.books import PRODUCTS

    dice = random.Random(seed)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=5) as http:
        while time.monotonic() < until:
            order = {"id": str(uuid.uuid4()), "product": dice.choice(PRODUCTS), "quantity": 3}
            answer = {"id": order["id"], "ok": dice.random() < 2 / 3}
            asked = [("/checkouts", order), ("/approvals", answer)]
            dice.shuffle(asked)  # an answer may come before the question
            for path, body in asked:
                while not _asked(http, path, body):
                    time.sleep(0.2)
            answers[str(order["id"])] = bool(answer["ok"])
            time.sleep(dice.uniform(0.2, 0.6))


def _asked(http: httpx.Client, path: str, body: dict[str, Any]) -> bool:
    try:
        return http.post(path, json=body).status_code == 202
    except httpx.HTTPError:
        return False


def cutter(books: Any) -> Any:
    """On PostgreSQL: end a random connection of the shop or of Winch."""
    if not books.is_postgres:
        return None

    def cut() -> None:
        with books.transaction() as tx:
            tx.execute(
                sa.text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid() "
                    "ORDER BY random() LIMIT 2"
                )
            )

    return cut


def audit_checkouts(books: Any, answers: dict[str, bool], times: dict[str, int]) -> list[str]:
    """Every checkout that did not end as it was answered, and what it left behind."""
    from examples.shop.books import boxes, checkouts, holds
    from examples.shop.checkout import BOXES

    with books.transaction() as tx:
        states = {row[0]: row[3] for row in books.execute(tx, sa.select(checkouts))}
        packed = Counter(row[0] for row in books.execute(tx, sa.select(boxes)))
        held: dict[str, list[int]] = {}
        for order_id, quantity in books.execute(tx, sa.select(holds)):
            held.setdefault(order_id, []).append(quantity)
    wrong = []
    for order_id, is_ok in answers.items():
        expected = ("done", 1, BOXES, [3]) if is_ok else ("declined", 0, 0, [-3, 3])
        found = (
            states.get(order_id),
            times.get(order_id, 0),
            packed[order_id],
            sorted(held.get(order_id, [])),
        )
        if found != expected:
            wrong.append(f"checkout {order_id}: state, charges, boxes, holds {found} not {expected}")
    return wrong


def audit(
    books: Any,
    placed: list[dict[str, Any]],
    answers: dict[str, bool],
    ledger: Path,
    import_id: str,
) -> list[str]:
    """Everything that does not balance."""
    from examples.shop.books import (
        IN_STOCK,
        PRODUCTS,
        catalogue,
        imported,
        moves,
        orders,
        receipts,
        reports,
        stock,
        thumbnails,
    )
    from examples.shop.books import (
        ledger as entries,
    )

    def rows(statement: Any) -> list[tuple[Any, ...]]:
        with books.transaction() as tx:
            found: list[tuple[Any, ...]] = books.execute(tx, statement)
            return found

    wrong = []
    taken = {row[0]: row for row in rows(sa.select(orders))}
    wrong += [
        f"order {order['id']} was accepted and is gone" for order in placed if order["id"] not in taken
    ]
    wrong += [f"order {row[0]} is {row[4]}" for row in taken.values() if row[4] != "paid"]
    with sqlite3.connect(ledger) as book:
        charges = Counter(
            dict(book.execute("SELECT order_id, sum(amount) FROM charge GROUP BY order_id"))
        )
        times = dict(book.execute("SELECT order_id, count(*) FROM charge GROUP BY order_id"))
    for order_id, row in taken.items():
        if charges[order_id] != row[3] or times.get(order_id) != 1:
            wrong.append(
                f"order {order_id} was charged {times.get(order_id)} times, {charges[order_id]}"
            )
    wrong += [
        f"there is a charge without an order: {order_id}"
        for order_id in set(charges) - set(taken) - set(answers)
    ]
    wrong += audit_checkouts(books, answers, times)
    once = (
        (receipts, "receipts"),
        (moves, "stock moves"),
        (thumbnails, "thumbnails"),
        (entries, "entries"),
    )
    for table, what in once:
        counted = Counter(row[0] for row in rows(sa.select(table.c.order_id)))
        wrong += [f"order {i} has {counted[i]} {what}" for i in taken if counted[i] != 1]
        wrong += [f"{what} without an order: {i}" for i in set(counted) - set(taken)]
    for product in PRODUCTS:
        of_product = sa.select(entries.c.number).where(entries.c.product == product)
        numbers = sorted(row[0] for row in rows(of_product))
        if numbers != list(range(1, len(numbers) + 1)):
            wrong.append(f"the ledger of {product} was written out of turn: {numbers[:20]}")
    sold = Counter[str]()
    for row in taken.values():
        sold[row[1]] += row[2]
    on_hand = dict(rows(sa.select(stock)))
    wrong += [
        f"{product}: {on_hand[product]} on hand, {sold[product]} sold of {IN_STOCK}"
        for product in PRODUCTS
        if on_hand[product] != IN_STOCK - sold[product]
    ]
    found = dict(rows(sa.select(catalogue)))
    wrong += [
        f"the catalogue has {found.get(product)} of {product}, there are {on_hand[product]}"
        for product in PRODUCTS
        if sold[product] and found.get(product) != on_hand[product]
    ]
    windows = Counter(row[0] for row in rows(sa.select(reports.c.window_at)))
    wrong += [f"window {w} was reported {times} times" for w, times in windows.items() if times != 1]
    moments = sorted(datetime.fromisoformat(window) for window in windows)
    wrong += [
        f"no report between {sooner} and {later}"
        for sooner, later in pairwise(moments)
        if later - sooner != REPORT_EVERY
    ]
    wrong += ["there are no reports"] * (not windows)
    lines = len(rows(sa.select(imported.c.line).where(imported.c.import_id == import_id)))
    if lines != IMPORT_LINES:
        wrong.append(f"{lines} of {IMPORT_LINES} lines are imported")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--store", choices=("sqlite", "postgres", "redis", "redis+cluster"), default="sqlite"
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="winch-shop-") as name:
        folder = Path(name)
        if args.store == "sqlite":
            return run(folder, f"sqlite:///{folder}/shop.db", args.seconds, args.seed)
        sys.path.insert(0, str(ROOT))
        if args.store.startswith("redis"):
            return run_on_redis(folder, args.store, args.seconds, args.seed)
        from tests.servers import PostgresServer

        with PostgresServer() as server:
            return run(folder, server.new_database(), args.seconds, args.seed)


def run_on_redis(folder: Path, store: str, seconds: float, seed: int) -> int:
    """Jobs in Redis, the books in a SQLite file; connections to Redis are cut."""
    from tests.redis_servers import RedisCluster, RedisServer

    os.environ["SHOP_BOOKS"] = str(folder / "books.db")
    with RedisServer(fsync="always") if store == "redis" else RedisCluster() as servers:
        nodes = servers.nodes if isinstance(servers, RedisCluster) else [servers]

        def cut() -> None:
            for node in nodes:
                node.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

        return run(folder, servers.url, seconds, seed, cut)


def run(folder: Path, url: str, seconds: float, seed: int, cut: Any = None) -> int:
    print(f"shop on {url.split('://', maxsplit=1)[0]}, {seconds:g} s of kills, seed {seed}", flush=True)
    os.environ["WINCH_URL"] = url
    os.environ["SHOP_REPORT_EVERY"] = f"{REPORT_EVERY.total_seconds():g}s"
    from examples.shop.tasks import app, books

    app.migrate()
    books.create()
    prices = folder / "prices.csv"
    prices.write_text("".join(f"thing {n},{n}\n" for n in range(IMPORT_LINES)))
    town = Town(folder, url, seed)
    placed: list[dict[str, Any]] = []
    answers: dict[str, bool] = {}
    import_id = str(uuid.uuid4())
    until = time.monotonic() + seconds
    try:
        customers = [
            threading.Thread(target=order_goods, args=(town.web_port, placed, until, seed + n))
            for n in range(CUSTOMERS)
        ]
        buyer = (town.web_port, answers, until, seed - 1)
        customers.append(threading.Thread(target=check_out, args=buyer))
        for customer in customers:
            customer.start()
        with httpx.Client(base_url=f"http://127.0.0.1:{town.web_port}", timeout=5) as http:
            while not _asked(http, "/imports", {"id": import_id, "path": str(prices)}):
                time.sleep(0.2)
        while time.monotonic() < until:
            time.sleep(town.dice.uniform(1.0, 3.0))
            town.strike(cut or cutter(books))
        for customer in customers:
            customer.join()
        app.schedules.pause("nightly", reason="the shop closes")
        left = drain(app, patience=60)
    finally:
        codes = town.close()
    wrong = audit(books, placed, answers, town.ledger, import_id)
    states = app.driver.run(app.driver.counts(cap=1_000_000))
    bought = f"{len(placed)} orders, {len(answers)} checkouts"
    print(f"{bought}, {sum(town.kills.values())} kills: {dict(town.kills)}")
    print(f"jobs: {', '.join(f'{count} {state}' for state, count in states.items() if count)}")
    wrong += [f"{left} jobs did not end"] * bool(left)
    dead = states[JobState.DEAD]
    wrong += [f"{dead} jobs are dead"] * bool(dead)
    wrong += [f"{job.record.task} {job.id}: {job.record.reason}" for job in app.jobs.list(state="dead")]
    wrong += ["no customer checked out"] * (not answers)
    wrong += ["no process was killed"] * (not town.kills) + ["nothing was ordered"] * (not placed)
    wrong += [f"a worker ended with {code}" for code in codes if code != 0]
    for line in wrong[:20]:
        print(f"WRONG: {line}")
    if wrong:
        print((folder / "town.log").read_text(errors="replace")[-4000:])
        print(f"the books do not balance: {len(wrong)} faults, seed {seed}")
        return 1
    print("the books balance")
    return 0


def drain(app: Any, patience: float) -> int:
    """Wait until no job is left that could still run, for as long as some of them end; returns how many
    are left when none did for so many seconds."""
    known, since = -1, time.monotonic()
    while True:
        live = sum(sum(queue.counts.values()) for queue in app.queues.list())
        states = app.driver.run(app.driver.counts(cap=1_000_000))
        ended = sum(states[state] for state in FINAL)
        if ended != known:
            known, since = ended, time.monotonic()
        if not live or time.monotonic() - since > patience:
            return live
        time.sleep(1.0)


if __name__ == "__main__":
    sys.exit(main())

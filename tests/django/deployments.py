"""The shop under a real web server that is killed, in one way to deploy it; then the books are audited.

    python -m tests.django.deployments MODE POSTGRES_URL OTHER_POSTGRES_URL

`age`, `atomic`, `pool` and `router` run Django's own threaded server, `asgi` runs uvicorn. Several
clients post orders, every third of which is declined, while a worker writes receipts. The server is
killed with -9 in the middle and started again. At the end every order that was answered with 202 is
there, every order has its job and its receipt, and no declined order has left anything. The customers
have logged in, and the worker's log names the request and the user behind each receipt.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]
MODES: dict[str, dict[str, str]] = {
    "age": {"SHOP_CONN_MAX_AGE": "600"},
    "atomic": {"SHOP_ATOMIC_REQUESTS": "1"},
    "pool": {"SHOP_POOL": "1"},
    "router": {"SHOP_ATOMIC_REQUESTS": "1"},
    "asgi": {},
}
ORDERS = 60
CLIENTS = 4
PATIENCE = 60.0


def main(mode: str, url: str, other: str) -> dict[str, Any]:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("WINCH_", "SHOP_"))}
    env |= {"SHOP_DATABASE": url, **MODES[mode]}
    databases = ["default"]
    if mode == "router":
        env["SHOP_ORDERS_DATABASE"] = other
        databases.append("orders")
    for database in databases:
        manage(env, "migrate", "--database", database)
    session = manage(env, "shell", "-v", "0", "-c", LOGIN).rpartition("\n")[2]
    port = _free_port()
    with ExitStack() as stack:
        worker = stack.enter_context(_started(env, *WORKER))
        server = stack.enter_context(_started(env, *_server(mode, port)))
        first = _orders(mode, port, 0, session, server)
        server.wait(PATIENCE)
        again = stack.enter_context(_started(env, *_server(mode, port)))
        second = _orders(mode, port, ORDERS, session, None)
        worker.send_signal(signal.SIGTERM)
        lines = worker.communicate(timeout=PATIENCE)[1]
        again.kill()
    # Without a pool: that of the command itself opens several connections.
    manage({**env, "SHOP_POOL": ""}, "shell", "-v", "0", "-c", ALL_GONE)
    manage(env, "winch", "worker", "--queue-name", "*", "--batch")
    books = json.loads(manage(env, "shell", "-v", "0", "-c", AUDIT).rpartition("\n")[2])
    return {
        "taken": [*first["taken"], *second["taken"]],
        "declined": [*first["declined"], *second["declined"]],
        "unanswered": first["unanswered"] + second["unanswered"],
        "killed": first["killed"],
        "lines": [line for line in lines.splitlines() if "request=" in line],
        **books,
    }


WORKER = ("-m", "examples.django_shop.manage", "winch", "worker", "--queue-name", "*", "-c", "4")
USER = "grace"
LOGIN = f"""
from django.contrib.auth.models import User
from django.test import Client
client = Client()
client.force_login(User.objects.create_user("{USER}"))
print(client.cookies["sessionid"].value)
"""
# The server of a killed process may still be in its COMMIT: the books are looked at when it is over.
ALL_GONE = """
import time
from django.db import connection
for _ in range(600):
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        if cursor.fetchone() == (0,):
            break
    time.sleep(0.1)
else:
    raise SystemExit("a connection of a killed process is still there after a minute")
"""
AUDIT = """
import json
from examples.django_shop.shop.models import Order, Receipt
from winch.integrations.django import app_of
jobs, page = {}, app_of().jobs.list(limit=1000)
jobs |= {job.id: str(job.state) for job in page}
orders = {order.number: order.job for order in Order.objects.all()}
unlisted = {job: str(app_of().jobs.get(job).record) for job in set(orders.values()) - set(jobs)}
receipts = sorted(Receipt.objects.values_list("order__number", flat=True))
print(json.dumps({"orders": orders, "jobs": jobs, "receipts": receipts, "unlisted": unlisted}))
"""


def manage(env: dict[str, str], *words: str) -> str:
    """A command of the shop; returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "examples.django_shop.manage", *words],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode:
        raise SystemExit(f"{words}: {done.stdout}{done.stderr}")
    return done.stdout.strip()


def _started(env: dict[str, str], *words: str) -> Any:
    process = subprocess.Popen(
        [sys.executable, *words], cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True
    )
    stack = ExitStack()
    stack.callback(process.wait)
    stack.callback(process.kill)
    return _Held(process, stack)


class _Held:
    """A process that is killed at the end of the block."""

    def __init__(self, process: subprocess.Popen[str], stack: ExitStack) -> None:
        self._process = process
        self._stack = stack

    def __enter__(self) -> subprocess.Popen[str]:
        return self._process

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _server(mode: str, port: int) -> tuple[str, ...]:
    if mode == "asgi":
        application = "examples.django_shop.asgi:application"
        return ("-m", "uvicorn", application, "--port", str(port), "--log-level", "error")
    return ("-m", "examples.django_shop.manage", "runserver", "--noreload", str(port))


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _orders(
    mode: str, port: int, start: int, session: str, victim: subprocess.Popen[str] | None
) -> dict[str, Any]:
    """Post orders; with a victim, kill the server when half of them are answered."""
    base = f"http://127.0.0.1:{port}"
    _wait_for(base)
    path = "/async-orders" if mode == "asgi" else "/orders"
    taken: list[str] = []
    declined: list[str] = []
    unanswered = killed = 0

    def post(index: int) -> tuple[str, int | None]:
        number = f"o{start + index}"
        form = {"number": number} | ({"card": "declined"} if index % 3 == 2 else {})
        try:
            headers = {"X-Request-ID": f"r-{number}", "Cookie": f"sessionid={session}"}
            sent = httpx.post(base + path, data=form, headers=headers, timeout=30)
        except httpx.TransportError:
            return number, None
        if sent.status_code in (202, 402) and sent.headers["X-Request-ID"] != f"r-{number}":
            raise AssertionError(sent.headers)
        return number, sent.status_code

    with ThreadPoolExecutor(CLIENTS) as clients:
        for number, status in clients.map(post, range(ORDERS)):
            if status == 202:
                taken.append(number)
            elif status == 402:
                declined.append(number)
            elif status is None:
                unanswered += 1
            else:
                raise SystemExit(f"order {number} was answered with {status}")
            if victim is not None and not killed and len(taken) >= ORDERS // 3:
                victim.kill()
                killed = 1
    return {"taken": taken, "declined": declined, "unanswered": unanswered, "killed": killed}


def _wait_for(base: str) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            if httpx.get(f"{base}/orders/none", timeout=5).status_code == 404:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise SystemExit("the web server does not answer")


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(main(*sys.argv[1:])))

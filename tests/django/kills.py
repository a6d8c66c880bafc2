"""A preforked web process killed with -9 around COMMIT: no job is lost, and none is without its row.

    python -m tests.django.kills POSTGRES_URL ROUNDS

The parent is the web server's master: it has loaded Django and forks a process for each round. That one
takes orders through Django's own request handling until the parent kills it. The byte that they share
shows whether the process is before, in or after its COMMIT; each round waits for one of the three. Then
the books are audited: every order has its job, every job has its order. A worker runs all jobs, and each
order has its receipt.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import struct
import sys
import time
from collections import Counter
from typing import Any, NoReturn

BEFORE, DURING, AFTER = 1, 2, 3
NAMES = {BEFORE: "before", DURING: "during", AFTER: "after"}
ORDERS_A_ROUND = 200
PATIENCE = 30.0


def main(url: str, rounds: int) -> dict[str, Any]:
    os.environ["SHOP_DATABASE"] = url
    os.environ["SHOP_CONN_MAX_AGE"] = "60"
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.django_shop.settings")
    import django

    django.setup()
    from django.core.management import call_command
    from django.db import connections
    from django.urls import get_resolver

    from winch.integrations.django import app_of

    call_command("migrate", verbosity=0)
    connections.close_all()
    # What a master loads before it forks: the code, and nothing that is open.
    _ = get_resolver().url_patterns, app_of()
    shared = mmap.mmap(-1, 16)
    kills: Counter[str] = Counter()
    for number in range(rounds):
        kills[_round(shared, number)] += 1
    found = _audit(url)
    return {"rounds": rounds, "kills": dict(kills), **found}


def _round(shared: mmap.mmap, number: int) -> str:
    """Fork a web process, kill it in the phase of this round, and return the phase it died in."""
    wanted = (BEFORE, DURING, AFTER)[number % 3]
    skipped = random.randrange(1, 6)  # some orders are complete before the kill
    shared[:16] = bytes(16)
    pid = os.fork()
    if pid == 0:
        _serve(shared, number)
    began = time.monotonic()
    while shared[0] != wanted or struct.unpack_from("<I", shared, 4)[0] < skipped:
        if time.monotonic() - began > PATIENCE:
            os.kill(pid, signal.SIGKILL)
            raise SystemExit(f"round {number}: the web process never came to {NAMES[wanted]} COMMIT")
        time.sleep(0 if wanted == DURING else 0.0002)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status):
        raise SystemExit(f"round {number}: the web process ended by itself: {status}")
    return NAMES[shared[0]]


def _serve(shared: mmap.mmap, number: int) -> NoReturn:
    """A process of the web server: take orders until killed."""
    from django.db import connections
    from django.test import Client

    wrapper: Any = connections["default"]
    commit = wrapper._commit

    def marked() -> None:
        shared[0] = DURING
        commit()
        shared[0] = AFTER

    wrapper._commit = marked
    client = Client(raise_request_exception=True)
    for order in range(ORDERS_A_ROUND):
        struct.pack_into("<I", shared, 4, order)
        shared[0] = BEFORE
        answer = client.post("/orders", {"number": f"{number}-{order}"})
        if answer.status_code != 202:
            os._exit(3)
    os._exit(4)


def _audit(url: str) -> dict[str, Any]:
    import psycopg

    from examples.django_shop.shop.models import Order, Receipt
    from winch.integrations.django.worker import make_app

    with psycopg.connect(url, autocommit=True) as conn:
        # A killed process leaves its transaction to the server, which ends it when it sees the socket.
        began = time.monotonic()
        busy = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> %s"
        while conn.execute(busy, [conn.info.backend_pid]).fetchone() != (0,):
            if time.monotonic() - began > PATIENCE:
                raise SystemExit("connections of killed processes are still open")
            time.sleep(0.05)
    app = make_app()
    orders = dict(Order.objects.values_list("number", "job"))
    jobs: dict[str, str] = {}
    page = app.jobs.list(limit=1000)
    while page:
        jobs |= {job.id: json.loads(job.record.args)["args"][0] for job in page}
        page = app.jobs.list(limit=1000, after=page.next) if page.next else []  # type: ignore[assignment]
    lost = sorted(number for number, job in orders.items() if jobs.get(job) != number)
    orphans = sorted(number for number in jobs.values() if number not in orders)
    app.run_worker(queues=["mail"], burst=True)
    missing = Order.objects.filter(receipt=None).count()
    return {
        "orders": len(orders),
        "jobs": len(jobs),
        "lost": lost,
        "orphans": orphans,
        "receipts": Receipt.objects.count(),
        "without_receipt": missing,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], int(sys.argv[2]))))

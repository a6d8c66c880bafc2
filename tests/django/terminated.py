"""Django's connections are terminated while a worker runs jobs: no job is dead.

python -m tests.django.terminated POSTGRES_URL JOBS
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections import Counter
from typing import Any

# Django's connections: Winch's own have a name.
TERMINATE = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = '' AND pid <> pg_backend_pid()
"""
PAUSE = 0.5


def main(url: str, count: int) -> dict[str, Any]:
    os.environ["SHOP_DATABASE"] = url
    os.environ["SHOP_CONN_MAX_AGE"] = "600"  # connections outlive their jobs: the worst case
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.django_shop.settings")
    import django

    django.setup()
    import psycopg
    from django.core.management import call_command
    from django.db import connections, transaction

    from examples.django_shop.shop.models import Order, Receipt
    from examples.django_shop.shop.tasks import count_orders, write_receipt
    from winch.integrations.django.worker import make_app

    call_command("migrate", verbosity=0)
    with transaction.atomic():
        Order.objects.bulk_create(Order(number=str(number)) for number in range(count))
        for number in range(count):
            write_receipt.enqueue(str(number))
    connections.close_all()
    terminated, stopped = 0, threading.Event()

    def terminate() -> None:
        nonlocal terminated
        with psycopg.connect(url, autocommit=True, application_name="winch-test") as conn:
            while not stopped.wait(PAUSE):
                [row] = conn.execute(TERMINATE).fetchall()
                terminated += row[0]

    killer = threading.Thread(target=terminate)
    killer.start()
    app = make_app()
    try:
        asyncio.run(_work(app, count))
    finally:
        stopped.set()
        killer.join()
    jobs = _all(app)
    states = Counter(str(job.state) for job in jobs)
    failed = sum(entry.error is not None for job in jobs for entry in job.record.history)
    counted = count_orders.enqueue()
    app.run_worker(queues=["default"], burst=True)
    counted.refresh()
    return {
        "states": dict(states),
        "terminated": terminated,
        "failed": failed,
        "receipts": Receipt.objects.count(),
        "counted": counted.return_value,
    }


async def _work(app: Any, count: int) -> None:
    """One worker for all jobs: its threads live as long as it does."""
    async with asyncio.timeout(300), app.worker(queues=["mail"], concurrency=4):
        while len(await app.jobs.alist(state=["completed", "dead"], limit=1000)) < count:  # noqa: ASYNC110  # a store has no event
            await asyncio.sleep(0.2)


def _all(app: Any) -> list[Any]:
    found: list[Any] = []
    page = app.jobs.list(limit=1000)
    while page:
        found += page
        page = app.jobs.list(limit=1000, after=page.next) if page.next else []
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], int(sys.argv[2]))))

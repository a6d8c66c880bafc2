"""Jobs in Django's own SQLite file: an enqueue is part of the transaction.

    python -m tests.django.shared_file FILE

This SQLite may have the bug for which Winch refuses such a file; then the process acts as if it had not.
One process writes at a time here, so the bug cannot strike.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from typing import Any
from unittest import mock

from winch.drivers.sqlite import driver as sqlite_driver
from winch.drivers.sqlite.connections.opening import has_wal_reset_bug


class Undone(Exception):
    """Rolls a transaction back."""


def main(path: str) -> dict[str, Any]:
    from django.conf import settings

    settings.configure(
        SECRET_KEY="x" * 50,
        USE_TZ=True,
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        INSTALLED_APPS=["examples.django_shop.shop", "winch.integrations.django"],
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": path,
                "OPTIONS": {
                    "init_command": "PRAGMA journal_mode=WAL",
                    "transaction_mode": "IMMEDIATE",
                },
            }
        },
        TASKS={
            "default": {
                "BACKEND": "winch.integrations.django.WinchBackend",
                "QUEUES": [],
                "OPTIONS": {"url": f"sqlite:///{path}"},
            }
        },
    )
    import django

    django.setup()
    if has_wal_reset_bug(sqlite3.sqlite_version_info):
        mock.patch.object(sqlite_driver, "has_wal_reset_bug", return_value=False).start()
    from django.core.management import call_command
    from django.db import connection, transaction

    from examples.django_shop.shop.models import Order, Receipt
    from examples.django_shop.shop.tasks import write_receipt
    from winch.integrations.django import app_of
    from winch.integrations.django.worker import make_app

    call_command("migrate", verbosity=0)
    call_command("check", databases=["default"], fail_level="WARNING")
    seen: list[int] = []
    for number, is_kept in (("1", True), ("2", False)):
        try:
            with transaction.atomic():
                Order.objects.create(number=number)
                result = write_receipt.enqueue(number)
                write_receipt.get_result(result.id)
                with connection.cursor() as cursor:
                    cursor.execute("SELECT count(*) FROM winch_job")
                    seen += cursor.fetchone()
                if not is_kept:
                    raise Undone
        except Undone:
            pass
    connection.close()
    jobs = [json.loads(job.record.args)["args"] for job in app_of().jobs.list()]
    make_app().run_worker(queues=["mail"], burst=True)
    return {
        "sqlite": sqlite3.sqlite_version,
        "seen": seen,
        "jobs": jobs,
        "orders": list(Order.objects.values_list("number", flat=True)),
        "receipts": list(Receipt.objects.values_list("order__number", flat=True)),
    }


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(main(*sys.argv[1:])))

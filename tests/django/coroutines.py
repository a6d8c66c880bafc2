"""Coroutines of plain Winch tasks, which query through Django, while its connections are terminated.

python -m tests.django.coroutines POSTGRES_URL JOBS
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from tests.django.terminated import TERMINATE


def main(url: str, count: int) -> dict[str, Any]:
    os.environ["SHOP_DATABASE"] = url
    os.environ["SHOP_CONN_MAX_AGE"] = "600"  # connections outlive their jobs: the worst case
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.django_shop.settings")
    import django

    django.setup()
    import psycopg
    from django.core.management import call_command
    from django.db import connections

    from examples.django_shop.shop.models import Order
    from winch import App, Retry
    from winch.engine.worker.running.django_connections import of_coroutines

    call_command("migrate", verbosity=0)
    connections.close_all()
    app = App(url)

    @app.task(name="quiet")
    async def quiet() -> None: ...

    @app.task(name="counts", retry=Retry.fixed("1s", attempts=1))
    async def counts() -> int:
        return int(await Order.objects.acount())

    before: list[bool] = []
    terminated = 0

    async def work() -> list[str]:
        nonlocal terminated
        states = []
        with psycopg.connect(url, autocommit=True, application_name="winch-test") as conn:
            async with asyncio.timeout(120), app.worker(concurrency=4):
                await (await quiet.aenqueue()).aresult("30s")
                before.append(of_coroutines.are_used)
                for _ in range(count):
                    job = await counts.aenqueue()
                    while not (await job.arefresh()).state.is_final:  # noqa: ASYNC110  # a store has no event
                        await asyncio.sleep(0.01)
                    states.append(str(job.state))
                    terminated += conn.execute(TERMINATE).fetchall()[0][0]
        return states

    states = asyncio.run(work())
    app.close()
    return {"states": states, "terminated": terminated, "used_before": before}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], int(sys.argv[2]))))

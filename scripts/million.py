"""How long the dashboard takes with a million jobs in the store: overview, lists, one job, searches.

    python scripts/million.py sqlite:////tmp/million.db [1000000]
    python scripts/million.py postgresql://…

Fills the store where it has fewer, and leaves the jobs there for the next run: a fifth are of a task
that declares an argument for search, a few thousand have run, and some of those are dead; some wait at a
limit or belong to tenants. Every page is asked for seven times, in process, with pauses in which what
pages share grows old. Cold is the first look at a page by a server that has read nothing yet. A page is
over with a median of 200 ms or a cold look of a second.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

import httpx

from winch import App
from winch.core.lifecycle import JobState
from winch.storage.params import ClaimParams, Finish, NewSession
from winch.web.mount import build
from winch.web.site import SiteConfig

ROUNDS = 7
LIMIT, COLD = 200.0, 1000.0
BATCH = 10_000
RUN = 5000
SPECIAL = 1000
PAGES = {
    "overview": "/",
    "jobs": "/jobs",
    "jobs, ready": "/jobs?state=ready",
    "jobs, completed": "/jobs?state=completed",
    "jobs, dead": "/jobs?state=dead",
    "jobs of a queue": "/jobs?queue=q3",
    "jobs of a task": "/jobs?task=shop.add",
    "jobs, search box": "/jobs?q=state:ready%20queue:q3",
    "queues": "/queues",
    "one queue": "/queues/q3",
    "dead letters": "/dead",
    "one group": "/dead/{group}",
    "schedules": "/schedules",
    "flows": "/flows",
    "workers": "/workers",
    "limits": "/limits",
    "limits, a key": "/limits?key=key-9",
    "tenants": "/tenants",
    "audit": "/audit",
    "operations": "/operations",
    "settings": "/settings",
    "one job": "/jobs/{newest}",
    "api: jobs": "/api/v1/jobs?limit=200",
    "api: one job": "/api/v1/jobs/{newest}",
    "api: why": "/api/v1/jobs/{newest}/why",
    "api: stats": "/api/v1/stats",
    "api: autoscale": "/api/v1/autoscale?queue=q3",
    "search, declared, new": "/jobs?q=args.order_id:{charged}",
    "search, declared, old": "/jobs?q=args.order_id:0",
    "search, declared, none": "/jobs?q=args.order_id:none",
}
# Over the latest 100,000, and the answer says that it is partial: not in the limit.
PARTIAL = {
    "search, undeclared, new": "/api/v1/jobs?q=args.n:{late}",
    "search, undeclared, old": "/api/v1/jobs?q=args.n:7",
}


@dataclass
class Timing:
    cold: float
    slowest: float
    median: float

    @property
    def is_over(self) -> bool:
        return self.median >= LIMIT or self.cold >= COLD

    is_partial: bool = False


def declare(app: App) -> None:
    @app.task(name="shop.add", queue="q0")
    def add(n: int, who: str = "") -> int:
        return n

    @app.task(name="shop.charge", queue="q0", search=["order_id"])
    def charge(order_id: int, who: str = "") -> int:
        return order_id


def fill(app: App, wanted: int) -> None:
    """At least so many jobs."""
    add, charge = app.tasks.get("shop.add"), app.tasks.get("shop.charge")
    there = sum(sum(queue.counts.values()) for queue in app.queues.list())
    if there + 2 * RUN >= wanted:
        return
    began = time.monotonic()
    for start in range(0, wanted, BATCH):
        block = start // BATCH
        call = (charge if block % 5 == 0 else add).using(queue=f"q{block % 8}")
        app.enqueue_many(call.bind(n, f"user-{n % 1000}") for n in range(start, start + BATCH))
    keyed = [add.using(queue="q9", tenant=f"tenant-{n % 50}", unique=f"key-{n}") for n in range(SPECIAL)]
    for n, call in enumerate(keyed):
        call.enqueue(n)
    sys.stderr.write(f"stored {wanted:,} jobs in {time.monotonic() - began:.0f} s\n")
    run_some(app)


def run_some(app: App) -> None:
    driver, session = app.driver, str(uuid4())
    driver.run(
        driver.start_session(
            NewSession(
                id=session, worker="filler", host="here", pid=1, release="", queues=("q1",),
                tasks=("shop.add", "shop.charge"), slots=1, lease=timedelta(minutes=10),
            )
        )
    )  # fmt: skip
    for _ in range(RUN // 500):
        token = str(uuid4())
        claims = driver.run(
            driver.claim(ClaimParams(session=session, token=token, queues=("q1",), limit=500))
        )
        driver.run(
            driver.finish(
                [
                    Finish(id=claim.id, token=token, to=JobState.DEAD, what="discarded", reason="no use")
                    if place % 20 == 0
                    else Finish(
                        id=claim.id, token=token, to=JobState.COMPLETED, what="completed", result="1"
                    )
                    for place, claim in enumerate(claims)
                ]
            )
        )
    driver.run(driver.end_session(session))


async def measure(app: App, newest: str, group: str, count: int) -> dict[str, Timing]:
    found: dict[str, Timing] = {}
    for name, path in (PAGES | PARTIAL).items():
        # A site of its own for each page: what pages share is not read yet.
        site = build(app, SiteConfig(auth="open", hosts=frozenset({"localhost"})))
        transport = httpx.ASGITransport(site, raise_app_exceptions=True)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", timeout=60
        ) as client:
            spent, text = [], ""
            charged = (count // BATCH - 5) * BATCH + 1
            address = path.format(newest=newest, charged=charged, late=count - 1, group=group)
            for round_ in range(ROUNDS):
                if round_:
                    await asyncio.sleep(0.51)
                began = time.monotonic()
                answer = await client.get(address, headers={"accept": "text/html"})
                text = answer.raise_for_status().text
                spent.append((time.monotonic() - began) * 1000)
            cold, *others = spent
            is_partial = '"is_partial":true' in text
            found[name] = Timing(cold, max(others), statistics.median(others), is_partial)
    await app.aclose()
    return found


def main() -> int:
    url, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
    app = App(url)
    app.migrate()
    declare(app)
    fill(app, count)
    newest = app.jobs.list(limit=1)[0].id
    group = app.dead.groups()[0].fingerprint
    found = asyncio.run(measure(app, newest, group, count))
    app.close()
    print(f"{'':<26}{'median':>10}{'slowest':>10}{'cold':>10}")
    for name, timing in found.items():
        mark = "  over" if name in PAGES and timing.is_over else ""
        remark = "  partial" if name in PARTIAL and timing.is_partial else ""
        times = (timing.median, timing.slowest, timing.cold)
        print(f"{name:<26}" + "".join(f"{one:>7.0f} ms" for one in times) + mark + remark)
    return 1 if any(found[name].is_over for name in PAGES) else 0


if __name__ == "__main__":
    sys.exit(main())

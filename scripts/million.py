"""How long the dashboard takes with a million jobs in the store: overview, lists, one job, a search.

    python scripts/million.py sqlite:////tmp/million.db [1000000]
    python scripts/million.py postgresql://…

Fills the store with ready jobs where it has fewer, and leaves them there for the next run. Every page is
asked for five times, in process, and each look goes to the store: what pages share for half a second is
forgotten between two.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time

import httpx

from winch import App
from winch.web.mount import build
from winch.web.site import SiteConfig

ROUNDS = 5
PAGES = {
    "overview": "/",
    "jobs": "/jobs",
    "jobs, ready": "/jobs?state=ready",
    "jobs of a queue": "/jobs?queue=q3",
    "jobs, dead": "/jobs?state=dead",
    "queues": "/queues",
    "dead letters": "/dead",
    "api: jobs": "/api/v1/jobs?limit=200",
    "api: stats": "/api/v1/stats",
    "api: autoscale": "/api/v1/autoscale?queue=q3",
    "search in arguments": "/jobs?q=args.n:{newest}",
    "search in old arguments": "/jobs?q=args.n:7",
}


def filled(app: App, wanted: int) -> str:
    """At least so many jobs; returns the id of the newest."""

    @app.task(name="shop.add", queue="q0")
    def add(n: int, who: str = "") -> int:
        return n

    there = sum(sum(queue.counts.values()) for queue in app.queues.list())
    began = time.monotonic()
    for start in range(there, wanted, 10_000):
        calls = [
            add.using(queue=f"q{n % 8}").bind(n, f"user-{n % 1000}")
            for n in range(start, start + 10_000)
        ]
        app.enqueue_many(calls)
    if there < wanted:
        sys.stderr.write(f"stored {wanted - there:,} jobs in {time.monotonic() - began:.0f} s\n")
    return str(app.jobs.list(limit=1)[0].id)


async def measure(app: App, newest: str, count: int) -> dict[str, float]:
    site = build(app, SiteConfig(auth="open", hosts=frozenset({"localhost"})))
    transport = httpx.ASGITransport(site, raise_app_exceptions=True)
    found: dict[str, float] = {}
    pages = {**PAGES, "one job": f"/jobs/{newest}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
        for name, path in pages.items():
            spent = []
            for _ in range(ROUNDS):
                await asyncio.sleep(0.51)  # longer than what is shared between pages lives
                began = time.monotonic()
                headers = {"accept": "text/html"}
                answer = await client.get(path.format(newest=count - 1), headers=headers)
                answer.raise_for_status()
                spent.append(time.monotonic() - began)
            found[name] = statistics.median(spent) * 1000
    await app.aclose()
    return found


def main() -> int:
    url, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
    app = App(url)
    app.migrate()
    newest = filled(app, count)
    found = asyncio.run(measure(app, newest, count))
    app.close()
    for name, millis in found.items():
        mark = "" if millis < 500 or name == "search in old arguments" else "  over 500 ms"
        print(f"{name:<24} {millis:8.1f} ms{mark}")
    return 1 if any(ms >= 500 for name, ms in found.items() if name != "search in old arguments") else 0


if __name__ == "__main__":
    sys.exit(main())

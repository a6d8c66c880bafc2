"""How long every page of the dashboard takes with a million jobs in the store.

    python scripts/million.py sqlite:////tmp/million.db [1000000] [--only PATTERN] [--fill]
    python scripts/million.py postgresql://…
    python scripts/million.py redis://…

Fills the store where it is empty (`million_store.py`), and leaves the jobs there for the next run. With
--fill that is all. The pages are asked of a real `winch serve` in a process of its own, with its upkeep
running, over a socket.

Cold is the first answer of a new server process, from the moment when it prints its address: for each
page another process. Then one server answers each page seven times, in rounds over all pages, so that
what pages share is old when a page is asked again. A page is over with a median of 200 ms or a cold
look of a second; the exit code is 1 if one is. A page that no address here covers is an error.
"""

from __future__ import annotations

import argparse
import http.client
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HOME))

from scripts.million_store import CAUSES, declare, fill, stored  # noqa: E402
from winch import App  # noqa: E402
from winch.web.mount import ROUTES  # noqa: E402

ROUNDS = 7
LIMIT, COLD = 200.0, 1000.0
PATIENCE = 30.0  # seconds: an answer that takes longer counts as that
MIN_ROUND = 1.1  # seconds: by then what pages share is read again
PAGES = {
    "overview": "/",
    "overview, 15 minutes": "/?range=15m",
    "overview, 30 days": "/?range=30d",
    "overview by tenant": "/?range=24h&group=tenant",
    "jobs": "/jobs",
    "jobs, ready": "/jobs?state=ready",
    "jobs, completed": "/jobs?state=completed",
    "jobs, dead": "/jobs?state=dead",
    "jobs, retrying": "/jobs?state=retrying",
    "jobs, cancelled (none)": "/jobs?state=cancelled",
    "jobs of a queue": "/jobs?queue=q3",
    "jobs of a task": "/jobs?task=shop.add",
    "jobs of a rare task": "/jobs?task=shop.limited",
    "jobs, two words": "/jobs?q=state:ready%20queue:q3",
    "jobs of a tag (none)": "/jobs?tag=none",
    "search, declared, new": "/jobs?q=args.order_id:{charged}",
    "search, declared, old": "/jobs?q=args.order_id:0",
    "search, declared, none": "/jobs?q=args.order_id:none",
    "search, undeclared": "/jobs?q=args.n:7",
    "search, a text": "/jobs?q=nothing-like-this",
    "search box": "/jobs/suggest?q=que",
    "palette": "/goals?q=q3",
    "new job": "/jobs/new",
    "new job of a task": "/jobs/new?task=shop.charge",
    "one job, ready": "/jobs/{ready}",
    "one job, dead": "/jobs/{dead}",
    "one job, blocked": "/jobs/{limited}",
    "flows": "/flows",
    "one flow": "/flows/{flow}",
    "one batch": "/flows/{batch}",
    "queues": "/queues",
    "one queue": "/queues/q3",
    "dead letters": "/dead",
    "one group": "/dead/{group}",
    "schedules": "/schedules",
    "one schedule": "/schedules/report%201",
    "workers": "/workers",
    "one worker": "/workers/00000000-0000-4000-8000-000000000001",
    "limits": "/limits",
    "limits, a key": "/limits?key=key-9",
    "tenants": "/tenants",
    "operations": "/operations",
    "audit": "/audit",
    "audit, filtered": "/audit?action=pause%20queue",
    "settings": "/settings",
    "api page": "/api",
    "metrics": "/metrics",
    "api: jobs": "/api/v1/jobs?limit=200",
    "api: one job": "/api/v1/jobs/{ready}",
    "api: why": "/api/v1/jobs/{ready}/why",
    "api: queues": "/api/v1/queues",
    "api: stats": "/api/v1/stats",
    "api: dead": "/api/v1/dead/groups",
    "api: tenants": "/api/v1/tenants",
    "api: autoscale": "/api/v1/autoscale?queue=q3",
}
# Pages that send files, or that a server open to its machine does not have.
NOT_MEASURED = {
    "/jobs.csv": "an export: as long as the store",
    "/jobs.ndjson": "an export: as long as the store",
    "/audit.csv": "an export: as long as the audit",
    "/audit.ndjson": "an export: as long as the audit",
    "/login": "reads no job",
    "/preferences": "sets a cookie",
    "/operations/{id}": "one record by its key",
    "/static/{name}": "a file",
}


@dataclass
class Timing:
    cold: float = 0.0
    warm: tuple[float, ...] = ()
    is_partial: bool = False

    @property
    def median(self) -> float:
        return statistics.median(self.warm)

    @property
    def is_over(self) -> bool:
        return self.median >= LIMIT or self.cold >= COLD


class Server:
    """A `winch serve` in a process of its own."""

    def __init__(self, url: str) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed by close()
        command = [sys.executable, "-m", "winch", "serve", "--app", "scripts.million_app:app"]
        self._process = subprocess.Popen(
            [*command, "--port", "0"],
            stdout=subprocess.PIPE, stderr=self._log, text=True, cwd=HOME,
            env={**os.environ, "WINCH_URL": url},
        )  # fmt: skip
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line.startswith("http://"):
            raise SystemExit(f"the server did not start: {self._last_output()}")
        self._port = int(line.strip().rstrip("/").rpartition(":")[2])
        self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)

    def ask(self, path: str) -> tuple[float, str]:
        """Milliseconds until the whole answer is there, and the answer."""
        began = time.perf_counter()
        try:
            self._connection.request("GET", path, headers={"Host": "localhost", "Accept": "text/html"})
            answer = self._connection.getresponse()
            body = answer.read()
        except TimeoutError:
            self._connection.close()
            return PATIENCE * 1000, ""
        spent = (time.perf_counter() - began) * 1000
        if answer.status != 200:
            raise SystemExit(f"{path} answered {answer.status}: {self._last_output()}")
        return spent, body.decode()

    def _last_output(self) -> str:
        self._log.seek(0)
        return self._log.read()[-2000:]

    def close(self) -> None:
        self._connection.close()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


@contextmanager
def serving(url: str) -> Iterator[Server]:
    server = Server(url)
    try:
        yield server
    finally:
        server.close()


def check_coverage() -> None:
    """Every page of the dashboard has an address in PAGES, or a reason why not."""
    for route in ROUTES:
        if not route.is_page or route.changes or route.path in NOT_MEASURED:
            continue
        pattern = re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(route.path)))
        if not any(pattern.fullmatch(address.partition("?")[0]) for address in PAGES.values()):
            raise SystemExit(
                f"no address in PAGES is of {route.path}: add one, or give the reason in NOT_MEASURED"
            )


def addresses(app: App, count: int) -> dict[str, str]:
    """The pages with the ids of this store's own jobs."""
    [dead] = app.jobs.list(state="dead", limit=1)
    flows = app.flows.list(limit=50)
    ids = {
        "ready": app.jobs.list(queue="q3", state="ready", limit=1)[0].id,
        "dead": dead.id,
        "limited": app.jobs.list(task="shop.limited", limit=1)[0].id,
        "flow": next(one.id for one in flows if one.note.kind == "flow"),
        "batch": next(one.id for one in flows if one.note.kind == "batch"),
        "group": app.dead.groups()[0].fingerprint,
        # Blocks of ten thousand are in turn of the task that declares this argument.
        "charged": (int(count * 0.93) // 50_000 * 50_000) - 50_000 + 1,
    }
    return {name: path.format(**ids) for name, path in PAGES.items()}


def measure(url: str, paths: Mapping[str, str], rounds: int) -> dict[str, Timing]:
    found = {name: Timing() for name in paths}
    for name, path in paths.items():
        with serving(url) as server:
            found[name].cold, _ = server.ask(path)
    with serving(url) as server:
        for _ in range(rounds + 1):
            began = time.monotonic()
            for name, path in paths.items():
                spent, text = server.ask(path)
                found[name].warm += (spent,)
                found[name].is_partial |= '"is_partial":true' in text
            time.sleep(max(0.0, MIN_ROUND - (time.monotonic() - began)))
    for timing in found.values():
        timing.warm = timing.warm[1:]  # of a new server
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url")
    parser.add_argument("count", nargs="?", type=int, default=1_000_000)
    parser.add_argument("--only", default="", help="a pattern that the names of the pages match")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="warm looks at each page")
    parser.add_argument("--fill", action="store_true", help="fill the store, measure nothing")
    options = parser.parse_args()
    check_coverage()
    app = App(options.url)
    app.migrate()
    fill(app, declare(app), options.count)
    if options.fill:
        app.close()
        return 0
    count = stored(app)
    paths = {name: path for name, path in addresses(app, count).items() if re.search(options.only, name)}
    print(f"{app.driver.describe()}: {count:,} jobs, {CAUSES} causes of death")
    app.close()
    found = measure(options.url, paths, options.rounds)
    print(f"{'':<26}{'median':>10}{'slowest':>10}{'cold':>10}")
    for name, timing in found.items():
        mark = "  over" if timing.is_over else ""
        times = (timing.median, max(timing.warm), timing.cold)
        print(f"{name:<26}" + "".join(f"{one:>7.0f} ms" for one in times) + mark)
    worst = (
        max(found.values(), key=lambda one: one.median),
        max(found.values(), key=lambda one: one.cold),
    )
    print(f"slowest median {worst[0].median:.0f} ms, slowest cold {worst[1].cold:.0f} ms")
    return 1 if any(timing.is_over for timing in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

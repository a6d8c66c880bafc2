"""Counters and histograms in the text that Prometheus reads, from a server and from a worker."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from tests.servers import free_port
from tests.web.kit import Web
from winch import App
from winch.areas.scheduling.definition import define
from winch.core.job import Claim
from winch.engine.maintenance.ticker import Ticker
from winch.engine.observe.prometheus import MOST_PAIRS, Counters, Fleet, missed_windows
from winch.engine.observe.throughput import Tally, TaskRate
from winch.storage.decide.schedules import Put

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: str) -> Samples:
    """The samples of an exposition; fails on what a Prometheus would refuse."""
    found: Samples = {}
    kinds: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            assert name not in kinds, f"{name} is declared twice"
            kinds[name] = kind
            continue
        if line.startswith("#"):
            continue
        matched = re.fullmatch(r'(\w+)(?:\{((?:\w+="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)', line)
        assert matched, line
        name, inner, value = matched.groups()
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        assert kinds.get(name) in ("gauge", "counter") or kinds.get(base) == "histogram", line
        labels = frozenset(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', inner or ""))
        assert (name, labels) not in found, f"{line} is there twice"
        found[name, labels] = float(value)
    for (name, labels), value in found.items():
        if name.endswith("_bucket") and ("le", "+Inf") in labels:
            plain = labels - {("le", "+Inf")}
            assert found[name.removesuffix("_bucket") + "_count", plain] == value
    return found


def claim(task: str, queue: str = "default", waited: float = 0.02) -> Claim:
    now = datetime.now(UTC)
    due = now - timedelta(seconds=waited)
    return Claim("id", "token", task, 1, "[]", queue, 1, 1, due, due, now)


def test_a_server_counts_what_the_fleet_does(web: Web) -> None:
    driver = web.app.ready()
    first, second = Tally("one"), Tally("two")

    def flush(tally: Tally) -> None:
        driver.run(driver.kv_put(tally.lines()))
        tally.written()

    first.ended(claim("shop.add"), "completed", 0.2)
    flush(first)
    text = web.ask("GET", "/metrics").text
    assert "winch_jobs_finished_total{" not in text, "what was before the server is not counted"
    first.ended(claim("shop.add"), "completed", 0.2)
    first.ended(claim("shop.add"), "failed", 2.0, is_timeout=True)
    second.ended(claim("shop.add"), "dead", 0.0001)
    second.ended(claim("shop.mail", "mail"), "crashed", 0.1)
    for tally in (first, second):
        flush(tally)
    web.ask("GET", "/metrics")
    found = samples(web.ask("GET", "/metrics").text)  # looking again counts nothing again
    own = {("queue", "default"), ("task", "shop.add")}
    outcomes = {
        word: found["winch_jobs_finished_total", frozenset({*own, ("outcome", word)})]
        for word in ("success", "failure", "timeout", "cancelled", "lost")
    }
    assert outcomes == {"success": 1, "failure": 1, "timeout": 1, "cancelled": 0, "lost": 0}
    assert found["winch_job_retries_total", frozenset(own)] == 1
    assert found["winch_jobs_dead_total", frozenset(own)] == 1
    assert found["winch_job_duration_seconds_count", frozenset(own)] == 3
    assert found["winch_job_duration_seconds_bucket", frozenset({*own, ("le", "0.25")})] == 2
    assert found["winch_job_duration_seconds_sum", frozenset(own)] == pytest.approx(2.2001)
    assert found["winch_job_queue_latency_seconds_bucket", frozenset({*own, ("le", "0.01")})] == 0
    mail = frozenset({("queue", "mail"), ("task", "shop.mail"), ("outcome", "lost")})
    assert found["winch_jobs_finished_total", mail] == 1


def test_a_server_counts_what_is_enqueued_through_it_and_what_its_workers_enqueue(web: Web) -> None:
    driver = web.app.ready()
    web.ask("GET", "/metrics")
    for number in range(3):
        assert web.api("POST", "/jobs", {"task": "shop.add", "args": {"a": number}}).status_code == 202
    tally = Tally("one")
    tally.enqueued["default", "shop.add"] += 4
    tally.ended(claim("shop.add"), "completed", 0.2)
    tally.ended(claim("shop.add"), "snoozed", 0.2)
    driver.run(driver.kv_put(tally.lines()))
    found = samples(web.ask("GET", "/metrics").text)
    own = frozenset({("queue", "default"), ("task", "shop.add")})
    assert found["winch_jobs_enqueued_total", own] == 7
    assert found["winch_jobs_started_total", own] == 2
    again = samples(web.ask("GET", "/metrics").text)
    assert again["winch_jobs_enqueued_total", own] == 7
    op = frozenset({("op", "enqueue")})
    assert found["winch_backend_operation_duration_seconds_count", op] == 3
    assert found["winch_backend_operation_duration_seconds_sum", op] > 0


def test_missed_windows_are_counted_by_the_worker_that_finds_them() -> None:
    app = App("memory://")

    @app.task(name="report.make")
    def make() -> None: ...

    definition = define(make, None, {"every": "1h", "misfire": "skip"}, {})
    put = Put(definition=definition.text, timing=definition.timing.key, is_new=True)
    driver, before = app.ready(), datetime.now(UTC) - timedelta(hours=5)
    driver.run(driver.change_schedule("nightly", put, now=before))
    ticker = Ticker(driver, 1.0)
    asyncio.run(ticker.run_once())
    assert ticker.missed["nightly"] >= 1
    text = "\n".join(missed_windows(ticker.missed))
    assert f'winch_schedule_missed_total{{schedule="nightly"}} {ticker.missed["nightly"]}' in text


def test_the_look_is_from_the_last_minutes_on(make_web: Callable[..., Web]) -> None:
    driver = make_web("memory").app.ready()
    fleet, tally = Fleet(), Tally("one")
    now = int(time.time())
    client = make_web("memory").app.client

    def look() -> None:
        client.surroundings.run(driver, fleet.look(driver, now))

    look()
    total = 0
    for minute in range(8):
        late = datetime.now(UTC) + timedelta(minutes=minute)
        done = Claim("id", "token", "t", 1, "[]", "q", 1, 1, late, late, late)
        tally.ended(done, "completed", 0.1)
        driver.run(driver.kv_put(tally.lines()))
        tally.written()
        total += 1
        if minute % 3 == 0:
            look()
    look()
    counted = samples("\n".join(fleet.counters.render()))
    labels = frozenset({("queue", "q"), ("task", "t"), ("outcome", "success")})
    assert counted["winch_jobs_finished_total", labels] == total
    assert len(fleet._seen) <= 4


def test_names_are_bounded_and_escaped() -> None:
    counters = Counters()
    for number in range(10_000):
        counters.add({"q": {f'task "{number}"\n\\': TaskRate(completed=1)}})
    found = samples("\n".join(counters.render()))
    names = {labels for name, labels in found if name == "winch_jobs_dead_total"}
    assert len(names) == MOST_PAIRS + 1
    other = frozenset({("queue", "other"), ("task", "other"), ("outcome", "success")})
    assert found["winch_jobs_finished_total", other] == 10_000 - MOST_PAIRS


APP = """
import time
from winch import App
app = App("sqlite:///winch.db")

@app.task
def add(a: int) -> int:
    return a

@app.task
def fails() -> None:
    raise ValueError("no")

if __name__ == "__main__":
    for n in range(3):
        add.enqueue(n)
    fails.enqueue()
"""


@contextmanager
def worker(folder: Path, *flags: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "winch", "worker", "-A", "shop:app", *flags]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **env},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


def until(get: Callable[[], httpx.Response], is_it: Callable[[httpx.Response], bool]) -> httpx.Response:
    deadline = time.monotonic() + 60
    while True:
        try:
            answer = get()
            if is_it(answer):
                return answer
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_worker_answers_probes_and_counts_its_own(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, check=True)
    at = f"http://127.0.0.1:{(port := free_port())}"
    with worker(tmp_path, "--health-port", str(port)) as process:
        until(lambda: httpx.get(f"{at}/livez"), lambda answer: answer.status_code == 200)
        ready = until(
            lambda: httpx.get(f"{at}/readyz?verbose"), lambda answer: answer.status_code == 200
        )
        assert ready.json() == {
            "status": "pass",
            "checks": {"supervisor": "pass", "children": "pass", "store": "pass", "claims": "pass"},
        }
        text = until(
            lambda: httpx.get(f"{at}/metrics"), lambda answer: 'outcome="success"} 3' in answer.text
        ).text
        found = samples(text)
        labels = frozenset({("queue", "default"), ("task", "shop.fails")})
        assert found["winch_job_retries_total", labels] >= 1
        assert found["winch_worker_processes", frozenset()] == 1
        assert abs(found["winch_worker_heartbeat_timestamp_seconds", frozenset()] - time.time()) < 60
        assert httpx.get(f"{at}/nothing").status_code == 404
        assert httpx.post(f"{at}/livez").status_code == 405
        process.send_signal(signal.SIGUSR1)
        quiet = until(lambda: httpx.get(f"{at}/readyz"), lambda answer: answer.status_code == 503)
        assert quiet.json()["checks"]["claims"] == "quiet"
        assert httpx.get(f"{at}/livez").status_code == 200

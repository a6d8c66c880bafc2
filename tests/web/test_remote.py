"""`winch.remote`: a producer and a worker that know Winch only over HTTP."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.web.server import serving
from winch import App, Cancel, Discard, JobState, RetryAfter, Snooze
from winch.core.policy.retry import Retry as RetryPolicy
from winch.remote import RemoteClient, RemoteContext, RemoteError, RemoteWorker

STORES = ["sqlite", "postgres", "redis"]
HERE = Path(__file__).parent


def make_app(url: str) -> App:
    app = App(url)
    app.migrate()
    for name in ("remote.count", "remote.any"):
        schema = {"properties": {"n": {"type": "integer"}}}
        app.declare(name, schema, queue="work", retry=RetryPolicy.fixed("1s", attempts=5))
    return app


@contextmanager
def working(worker: RemoteWorker) -> Iterator[None]:
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(timeout=60)
        assert not thread.is_alive()


def until(fits: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not fits():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)


@pytest.mark.parametrize("store", STORES)
def test_a_producer_and_a_worker_over_http(url_of: Callable[[str], str], store: str) -> None:
    app = make_app(url_of(store))
    seen: list[Any] = []
    with serving(app) as address, sweeping(app), closing(RemoteClient(address)) as client:
        worker = RemoteWorker(client, queues=["work"], slots=4, lease="4s")

        @worker.task("remote.any")
        def run(ctx: RemoteContext, n: int) -> Any:
            if n == 1:
                ctx.progress({"percent": 50})
                ctx.log("half way")
                return {"sum": n}
            if n == 2 and ctx.attempt == 1:
                ctx.checkpoint([1, 2])
                raise RetryAfter("100ms", "again")
            if n == 2:
                return ctx.last_checkpoint
            if n == 3:
                raise Discard("nonsense")
            if n == 4:
                raise Cancel("not wanted")
            if n == 5:
                return Snooze("1h")
            if n == 6:
                return object()  # no JSON
            if n == 7:
                return ctx.enqueue([{"task": "remote.any", "args": {"n": 1}}])
            seen.append(ctx.wait(60))
            return None

        ids = {n: client.enqueue("remote.any", {"n": n}) for n in range(1, 9)}
        with working(worker):
            assert client.result(ids[1]) == {"sum": 1}
            assert client.result(ids[2]) == [1, 2]
            [child] = client.result(ids[7])
            assert client.result(child) == {"sum": 1}
            until(lambda: client.get(ids[8])["state"] == "running")
            client.cancel(ids[8])
            until(lambda: seen == [True])
            with pytest.raises(RemoteError, match="dead"):
                client.result(ids[3])
            until(lambda: client.get(ids[6])["state"] == "retrying")
        states = {n: app.jobs.get(one).state for n, one in ids.items()}
        assert (states[4], states[5]) == (JobState.CANCELLED, JobState.SCHEDULED)
        assert client.get(ids[1])["progress"] == {"percent": 50}
        assert "half way" in (client.get(ids[1])["log"] or "")
        assert [one for one in app.workers.list() if one.queues == ("work",)] == []  # it has ended


def test_wrong_arguments_are_refused_with_the_reason(url_of: Callable[[str], str]) -> None:
    with serving(make_app(url_of("sqlite"))) as address, closing(RemoteClient(address)) as client:
        with pytest.raises(RemoteError, match=r"args\.n must be integer, got string") as refused:
            client.enqueue("remote.any", {"n": "x"})
        assert refused.value.status == 422


def test_the_policies_of_a_declared_task_travel_with_its_jobs(url_of: Callable[[str], str]) -> None:
    """The server and the worker know nothing of the declaration."""
    url = url_of("sqlite")
    app = make_app(url)
    options: dict[str, Any] = {"timeout": "700ms", "retry": RetryPolicy.fixed("50ms", attempts=2)}
    slow = app.declare("remote.slow", {"properties": {}}, queue="work", **options)
    free = app.declare("remote.free", {"properties": {}}, queue="work", timeout=None)
    server = App(url)
    with serving(server) as address, sweeping(server), closing(RemoteClient(address)) as client:
        worker = RemoteWorker(client, queues=["work"], slots=2, lease="4s")
        limits: list[float | None] = []

        @worker.task("remote.slow")
        @worker.task("remote.free")
        @worker.task("remote.any")
        def run(ctx: RemoteContext, **_: Any) -> None:
            limits.append(ctx.timeout)
            if ctx.job["task"] == "remote.slow":
                assert ctx.wait(30)
                ctx.check()

        with working(worker):
            job = slow.enqueue()
            until(lambda: job.refresh().state == JobState.DEAD)
            free.enqueue().result("20s")
            client.result(client.enqueue("remote.any", queue="work"))
    assert limits == [0.7, 0.7, None, 900.0]
    assert job.record.attempt == 2
    assert job.record.error is not None
    assert job.record.error.type == "winch.JobTimeout"
    assert job.record.error.message == "took longer than its timeout of 0.7 s"
    app.close()


def test_a_worker_outlives_its_server_and_its_session(url_of: Callable[[str], str]) -> None:
    url = url_of("sqlite")
    app = make_app(url)
    with serving(app) as address, sweeping(app), closing(RemoteClient(address)) as client:
        worker = RemoteWorker(client, queues=["work"], slots=2, lease="2s")

        @worker.task("remote.any")
        def run(ctx: RemoteContext, n: int) -> int:
            return n

        with working(worker):
            assert client.result(client.enqueue("remote.any", {"n": 1})) == 1
            # Its session is taken away, as if its heartbeats had not come through.
            driver = app.ready()
            [session] = [one for one in app.workers.list() if one.queues == ("work",)]
            driver.run(driver.end_session(session.id))
            assert client.result(client.enqueue("remote.any", {"n": 2})) == 2


def test_operators_quiet_resume_and_stop_it(url_of: Callable[[str], str]) -> None:
    app = make_app(url_of("sqlite"))
    with serving(app) as address, sweeping(app), closing(RemoteClient(address)) as client:
        worker = RemoteWorker(client, queues=["work"], slots=2, lease="2s")

        @worker.task("remote.any")
        def run(ctx: RemoteContext, n: int) -> int:
            return n

        with working(worker):
            assert client.result(client.enqueue("remote.any", {"n": 1})) == 1
            [session] = [one for one in app.workers.list() if one.queues == ("work",)]
            [answer] = app.workers.quiet(session.id, wait="20s")
            assert answer.state == "done"
            time.sleep(6)  # its last claim waits for 5 s at most
            job = client.enqueue("remote.any", {"n": 2})
            time.sleep(0.5)
            assert client.get(job)["state"] == "ready"
            [answer] = app.workers.resume(session.id, wait="20s")
            assert client.result(job) == 2


def test_the_token_is_in_no_text(url_of: Callable[[str], str]) -> None:
    client = RemoteClient("http://127.0.0.1:1", token="winch_secret", timeout=1)
    with pytest.raises(RemoteError) as failed:
        client.ask("GET", "/jobs", patience=0)
    assert "winch_secret" not in f"{client!r} {failed.value} {failed.value.__cause__!r}"


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
def test_a_worker_killed_in_the_middle_of_a_thousand_jobs(
    url_of: Callable[[str], str], store: str, tmp_path: Path
) -> None:
    """All complete, and none runs twice without a trace: what ran again has another fence, and the job's
    history names the end of the session that held it."""
    app = make_app(url_of(store))
    log = tmp_path / "ran.log"
    with serving(app) as address, sweeping(app), closing(RemoteClient(address)) as client:
        ids = []
        for at in range(0, 1000, 250):
            ids += client.enqueue_many(
                [{"task": "remote.count", "args": {"n": n}} for n in range(at, at + 250)]
            )
        command = [sys.executable, str(HERE / "remote_worker.py"), address, str(log)]
        first = subprocess.Popen(command)
        until(lambda: log.exists() and len(log.read_text().splitlines()) > 300, 120)
        first.send_signal(signal.SIGKILL)
        first.wait()
        killed = time.monotonic()
        second = subprocess.Popen(command)
        try:
            until(lambda: _are_all_done(app, ids), 180)
        finally:
            second.terminate()
            second.wait()
        took = time.monotonic() - killed
    ran: dict[int, list[tuple[int, int]]] = {}
    for line in log.read_text().splitlines():
        n, attempt, fence = map(int, line.split())
        ran.setdefault(n, []).append((attempt, fence))
    assert sorted(ran) == list(range(1000))
    again = {n: runs for n, runs in ran.items() if len(runs) > 1}
    for n, runs in again.items():
        assert len({fence for _, fence in runs}) == len(runs)
        assert any(entry.what == "rescued" for entry in app.jobs.get(ids[n]).record.history), n
    app.close()
    # One lease and two sweeps, and the time that the other jobs take.
    assert took < 120


def _are_all_done(app: App, ids: list[str]) -> bool:
    driver = app.ready()
    records = driver.run(driver.get(ids))
    return all(one is not None and one.state is JobState.COMPLETED for one in records)


@contextmanager
def sweeping(app: App) -> Iterator[None]:
    """Sweep as `winch serve` does beside its site."""
    stop = threading.Event()

    def sweep() -> None:
        driver = app.ready()
        while not stop.wait(0.5):
            driver.run(driver.rescue())
            driver.run(driver.promote())

    thread = threading.Thread(target=sweep)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()

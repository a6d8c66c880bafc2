"""Jobs enqueued while the store is out of reach: kept on disk, stored once, whichever process dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.engine.spool_child import lose_store, spool_app
from tests.engine.test_keyring import SECRET, both
from winch import App, ConfigError, EnqueueUncertain, JobNotFound, StorageUnavailable
from winch.engine.client import writer
from winch.engine.client.spool import Spool, SpooledJobs
from winch.storage.params import NewJob

CHILD = Path(__file__).with_name("spool_child.py")
ROOT = Path(__file__).parents[2]


_opened: list[App] = []


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(writer, "ENQUEUE_PAUSES", (0.001,))
    yield
    while _opened:
        _opened.pop().close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    an_app(tmp_path).ready()
    return tmp_path


def an_app(folder: Path) -> App:
    app = spool_app(str(folder / "w.db"), str(folder / "spool.jsonl"))
    _opened.append(app)
    return app


def child(folder: Path, what: str, step: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, CHILD, folder / "w.db", folder / "spool.jsonl", what, step],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def stored(app: App) -> list[str]:
    return [job.id for job in app.jobs.list(limit=1000)]


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("spool.jsonl*")} - {"spool.jsonl.lock"}


def test_a_job_is_kept_and_handed_over_when_the_store_is_back(folder: Path) -> None:
    app = an_app(folder)
    work = app.tasks.get("t")
    heard: list[str] = []
    app.on("enqueued", lambda event: heard.append(event.job_id))
    real = app.driver.run
    lose_store(app)
    jobs = [work.enqueue(1), *app.enqueue_many([work.bind(2), work.bind(3)])]
    assert [job.is_new for job in jobs] == [True, True, True]
    assert heard == [job.id for job in jobs]
    with pytest.raises(JobNotFound):
        _ = jobs[0].state
    path = folder / "spool.jsonl"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_bytes().splitlines()) == 2
    app.driver.run = real  # type: ignore[method-assign]
    assert app.forward_spool() == 3
    assert sorted(stored(app)) == sorted(job.id for job in jobs)
    assert jobs[0].state == "ready"
    assert left(folder) == set()
    assert app.forward_spool() == 0


def test_the_next_enqueue_that_works_takes_the_rest_along(folder: Path) -> None:
    app = an_app(folder)
    work = app.tasks.get("t")
    real = app.driver.run
    lose_store(app)
    for n in range(5):
        work.enqueue(n)
    app.driver.run = real  # type: ignore[method-assign]
    work.enqueue(5)
    assert len(stored(app)) == 6
    assert left(folder) == set()


def test_a_member_of_a_fifo_key_comes_after_those_in_the_spool(folder: Path) -> None:
    app = an_app(folder)
    work = app.tasks.get("t").using(fifo="orders")
    real = app.driver.run
    lose_store(app)
    jobs = [work.enqueue(n) for n in range(3)]
    app.driver.run = real  # type: ignore[method-assign]
    jobs.append(work.enqueue(3))
    numbers = [job.record.seq or 0 for job in jobs]
    assert numbers == sorted(set(numbers))
    assert min(numbers) > 0


def test_a_store_that_is_gone_before_the_first_enqueue_is_no_obstacle(folder: Path) -> None:
    app = an_app(folder)
    work = app.tasks.get("t")

    def gone() -> Any:
        raise StorageUnavailable("not there")

    check, app.driver.check_schema = app.driver.check_schema, gone  # type: ignore[method-assign]
    job = work.enqueue(1)
    many = asyncio.run(app.aenqueue_many([work.bind(2)]))
    assert (folder / "spool.jsonl").exists()
    app.driver.check_schema = check  # type: ignore[method-assign]
    assert app.forward_spool() == 2
    assert {job.id, many[0].id} == set(stored(app))


def test_without_a_spool_the_error_stays_what_it_was(folder: Path) -> None:
    app = App(f"sqlite:///{folder / 'w.db'}")

    @app.task(name="t")
    def work() -> None: ...

    real = app.driver.run
    lose_store(app)
    with pytest.raises(StorageUnavailable):
        work.enqueue()
    app.driver.run = real  # type: ignore[method-assign]
    lose_store(app, maybe_applied=True)
    with pytest.raises(EnqueueUncertain):
        work.enqueue()
    with pytest.raises(ConfigError, match="no spool to forward"):
        app.forward_spool()


def test_a_job_of_a_transaction_is_never_spooled(folder: Path) -> None:
    app = an_app(folder)
    work = app.tasks.get("t")
    app.ready()

    def gone(conn: object, verb: object) -> Any:
        raise StorageUnavailable("gone")

    app.driver.run_on = gone  # type: ignore[method-assign]
    with pytest.raises(StorageUnavailable):
        work.using(conn=object()).enqueue(1)
    assert left(folder) == set()


def test_a_spool_that_cannot_be_written_raises_with_the_ids(folder: Path) -> None:
    app = App(f"sqlite:///{folder / 'w.db'}", spool=str(folder / "missing" / "spool.jsonl"))

    @app.task(name="t")
    def work() -> None: ...

    lose_store(app)
    with pytest.raises(EnqueueUncertain, match="cannot be written") as error:
        work.enqueue()
    assert len(error.value.ids) == 1


def test_a_link_is_not_followed(folder: Path) -> None:
    (folder / "elsewhere").write_text("")
    (folder / "spool.jsonl").symlink_to(folder / "elsewhere")
    app = an_app(folder)
    lose_store(app)
    with pytest.raises(EnqueueUncertain, match="cannot be written"):
        app.tasks.get("t").enqueue(1)


def test_a_delay_counts_from_the_enqueue_and_so_does_the_expiry(folder: Path) -> None:
    app = an_app(folder)
    assert app.spool is not None
    now = app.clock.now()
    app.spool.append((NewJob(id=app.client.draw_id(), task="t", args='{"n":1}', delay=timedelta(hours=2),
                             expires=timedelta(hours=3)),))  # fmt: skip
    line = json.loads((folder / "spool.jsonl").read_text())
    line["at"] = (now - timedelta(hours=1)).isoformat()
    (folder / "spool.jsonl").write_text(json.dumps(line) + "\n")
    app.forward_spool()
    [job] = app.jobs.list()
    assert abs(job.record.run_at - now - timedelta(hours=2)) < timedelta(minutes=1)
    assert job.record.expires_at is not None
    assert abs(job.record.expires_at - now - timedelta(hours=2)) < timedelta(minutes=1)


def test_a_given_id_spooled_twice_is_one_job(folder: Path) -> None:
    app = an_app(folder)
    real = app.driver.run
    lose_store(app)
    one = app.client.draw_id()
    for n in (1, 2):
        app.tasks.get("t").using(id=one).enqueue(n)
    app.driver.run = real  # type: ignore[method-assign]
    app.forward_spool()
    assert stored(app) == [one]
    assert json.loads(app.jobs.get(one).record.args) == {"n": 1}


def test_half_a_line_and_a_refused_job_do_not_stop_the_rest(folder: Path) -> None:
    app = an_app(folder)
    assert app.spool is not None
    path = folder / "spool.jsonl"
    path.write_bytes(b'{"at":"2026-01-01T00:00:00Z","jobs":[{"id"')
    good = [NewJob(id=app.client.draw_id(), task="t", args='{"n":1}') for _ in range(2)]
    app.spool.append(tuple(good))
    bad = msgspec.structs.replace(good[0], id=app.client.draw_id(), task="bad")
    app.spool.append((bad,))
    app.ready()
    real = app.driver.run

    def picky(verb: Any) -> Any:
        if verb.name == "enqueue" and b"bad" in repr(app_jobs(verb)).encode():
            raise ConfigError("I do not like it")
        return real(verb)

    asked: list[Any] = []
    real_enqueue = app.driver.enqueue

    def enqueue(jobs: Any, **options: Any) -> Any:
        asked.append(jobs)
        return real_enqueue(jobs, **options)

    def app_jobs(_: Any) -> Any:
        return [job.task for job in asked[-1]]

    app.driver.run, app.driver.enqueue = picky, enqueue  # type: ignore[method-assign]
    app.forward_spool()
    assert sorted(stored(app)) == sorted(job.id for job in good)
    refused = (folder / "spool.jsonl.refused").read_bytes().splitlines()
    assert len(refused) == 2
    assert b'"bad"' in refused[1]
    assert left(folder) == {"spool.jsonl.refused"}


def test_with_keys_the_spool_holds_no_plain_text(folder: Path) -> None:
    app = App(f"sqlite:///{folder / 'w.db'}", spool=str(folder / "spool.jsonl"), keys=both())

    @app.task(name="t")
    def work(word: str) -> str:
        return word

    lose_store(app)
    work.enqueue(SECRET)
    assert SECRET not in (folder / "spool.jsonl").read_text()


# -- many at once ------------------------------------------------------------------------------------


def test_two_forwarders_and_many_producers_make_each_job_once(folder: Path) -> None:
    """Producers append while two forwarders, in apps of their own, take the file away under them."""
    app = an_app(folder)
    assert app.spool is not None
    spool = app.spool
    ids: list[str] = []
    is_over = threading.Event()

    def produce() -> None:
        for _ in range(40):
            job = NewJob(id=app.client.draw_id(), task="t", args='{"n":1}')
            spool.append((job,))
            ids.append(job.id)

    def forward() -> None:
        mine = an_app(folder)
        while not is_over.is_set():
            mine.forward_spool()

    producers = [threading.Thread(target=produce) for _ in range(4)]
    forwarders = [threading.Thread(target=forward) for _ in range(2)]
    for thread in (*producers, *forwarders):
        thread.start()
    for thread in producers:
        thread.join()
    is_over.set()
    for thread in forwarders:
        thread.join()
    app.forward_spool()
    assert sorted(stored(app)) == sorted(set(ids))
    assert left(folder) == set()


@pytest.mark.faults
@pytest.mark.parametrize("what", ["append", "lost answer"])
@pytest.mark.parametrize("step", ["opened", "written", "appended"])
def test_a_producer_killed_at_any_step_breaks_no_promise(folder: Path, what: str, step: str) -> None:
    done = child(folder, what, step)
    assert done.returncode == -signal.SIGKILL, done.stderr
    promised = set(done.stdout.split())
    app = an_app(folder)
    app.forward_spool()
    app.forward_spool()
    ids = stored(app)
    assert len(ids) == len(set(ids))
    assert promised <= set(ids)
    assert len(ids) <= len(promised) + 1  # the one it died of may be there or not
    assert left(folder) <= {"spool.jsonl.refused"}


@pytest.mark.faults
@pytest.mark.parametrize("step", ["renamed", "taken", "stored", "all stored", "removed"])
def test_a_forwarder_killed_at_any_step_loses_and_doubles_nothing(folder: Path, step: str) -> None:
    promised = set(child(folder, "append", "none").stdout.split())
    assert len(promised) == 3
    done = child(folder, "forward", step)
    assert done.returncode == -signal.SIGKILL, done.stderr
    more = set(child(folder, "append", "none").stdout.split())
    app = an_app(folder)
    # What a job did between the two forwards does not bring it back.
    for job_id in stored(app):
        app.jobs.cancel(job_id)
    app.forward_spool()
    ids = stored(app)
    assert sorted(ids) == sorted(promised | more)
    assert left(folder) == set()


def test_a_worker_forwards_when_it_starts(folder: Path) -> None:
    app = an_app(folder)
    assert app.spool is not None
    job_id = app.client.draw_id()
    app.spool.append((NewJob(id=job_id, task="t", args='{"n":7}'),))
    app.run_worker(burst=True)
    assert app.jobs.get(job_id).result() == 7


def test_a_line_can_be_read_by_people(folder: Path) -> None:
    spool = Spool(folder / "spool.jsonl", an_app(folder).clock)
    spool.append((NewJob(id="x", task="t", args="{}"),))
    [line] = (folder / "spool.jsonl").read_bytes().splitlines()
    assert msgspec.json.decode(line, type=SpooledJobs).jobs[0].task == "t"

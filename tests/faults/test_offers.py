"""Workers that are killed while jobs are handed over to them.

No events are kept here and no wrapper stands before the driver, as in a deployment: else nothing is
handed over.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.faults.apps import SETTINGS
from tests.faults.fleet import until
from tests.faults.stage import MEASURED
from tests.servers import Databases
from winch import App

pytestmark = [pytest.mark.servers, pytest.mark.faults, pytest.mark.slow]

# Closer together than a worker needs for its next offer, so that those of the dead are taken, too.
SECONDS, GAP, KILL_EVERY = 5.0, 0.0005, 0.7
APP = """
import os
import winch

app = winch.App()
seen = os.open({seen!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@app.task(name="note")
async def note(ctx: winch.Context) -> None:
    os.write(seen, f"{{ctx.job_id}}\\n".encode())
"""


def kill(worker: subprocess.Popen[bytes]) -> None:
    """As a machine dies: no process is left to report the end."""
    supervisor = psutil.Process(worker.pid)
    children = supervisor.children(recursive=True)
    for process in (supervisor, *children):
        process.send_signal(signal.SIGSTOP)
    for process in (supervisor, *children):
        process.kill()


def test_nothing_is_lost_and_nothing_silently_runs_twice(
    tmp_path: Path, postgres_server: Databases
) -> None:
    url, seen = postgres_server.new_store(), tmp_path / "seen"
    (tmp_path / "offered.py").write_text(textwrap.dedent(APP.format(seen=str(seen))))
    env = os.environ | {f"WINCH_{name.upper()}": f"{value:g}s" for name, value in SETTINGS.items()}
    env |= {"WINCH_URL": url, "PYTHONPATH": str(tmp_path)}
    workers: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        command = [sys.executable, "-m", "winch", "worker", "-A", "offered:app"]
        with (tmp_path / f"log-{len(workers)}").open("wb") as log:
            workers.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))

    app = App(url)
    note = app.task(name="note")(lambda: None)
    try:
        app.migrate()
        for _ in range(2):
            start()
        jobs = [note.enqueue().id]
        until(lambda: app.jobs.get(jobs[0]).state.is_final, 30, "a worker that is up")
        began = killed = time.monotonic()
        while time.monotonic() - began < SECONDS:
            jobs.append(note.enqueue().id)
            time.sleep(GAP)
            if time.monotonic() - killed > KILL_EVERY:
                killed = time.monotonic()
                kill(workers[-2])
                start()
        until(lambda: all(app.jobs.get(job).state.is_final for job in jobs[-50:]), 60, "the last jobs")
        until(lambda: not sum(sum(q.counts.values()) for q in app.queues.list()), 60, "all jobs")
        with psycopg.connect(url) as conn:
            found = conn.execute(
                "SELECT id::text, state, coalesce(jsonb_array_length(history), 0),"
                " claimed_at = created_at FROM winch.archive"
            ).fetchall()
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        app.close()
        postgres_server.drop_database(url)
    assert {state for _, state, _, _ in found} == {"completed"}
    assert sorted(job for job, _, _, _ in found) == sorted(jobs)
    runs = Counter(seen.read_text().split())
    assert set(runs) == set(jobs)
    # One more run for each rescue of the job.
    assert [job for job, _, taken, _ in found if runs[job] > 1 + taken] == []
    handed = sum(is_handed for _, _, _, is_handed in found)
    assert handed > 10
    taken = sum(taken for _, _, taken, _ in found)
    MEASURED.append(
        f"handed over: {handed} of {len(jobs)} jobs, {len(workers) - 2} workers killed,"
        f" {taken} jobs taken from them, {runs.total()} runs"
    )

"""Commands about workers that run: signals, reload, top."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.command import Command, start_session
from winch import App, JobState
from winch.engine.client.audit import Audit

TASKS = """
    import os, time
    from winch import App, Context

    app = App(lease="3s", heartbeat="500ms", poll="100ms")

    @app.task(name="shop.version")
    def version() -> str:
        return "one"

    @app.task(name="shop.sort", isolate="process")
    def sort(ctx: Context) -> int:
        ctx.checkpoint("half")
        version.enqueue()
        return os.getpid()

    @app.task(name="shop.nap")
    def nap(seconds: float) -> int:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.01)
        return os.getpid()
"""


def until(condition: Callable[[], bool], what: str, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds:g} s for {what}"
        time.sleep(0.02)


class Running:
    """A `winch worker` (or dev) beside the command."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def text(self) -> str:
        return self.log.read_text()


@contextmanager
def running(winch: Command, *argv: str) -> Iterator[Running]:
    (winch.folder / "shop.py").write_text(textwrap.dedent(TASKS))
    log = winch.folder / "worker.log"
    env = {k: v for k, v in os.environ.items() if not k.startswith("WINCH_")}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "winch", *argv, "-A", "shop:app"],
            cwd=winch.folder,
            env=env | {"WINCH_URL": winch.url, "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Running(process, log)
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def version(winch: Command) -> str:
    answer = winch("enqueue", "shop.version", "-A", "shop:app", "--wait", "--timeout", "20s")
    assert answer.code == 0, answer.err
    return answer.out.strip().strip('"')


def test_workers_are_quieted_woken_dumped_and_stopped_by_name(winch: Command, app: App) -> None:
    with running(winch, "worker", "-p", "2") as worker:
        until(lambda: len(app.workers.list()) == 2, "two sessions")
        first, second = (session.worker for session in app.workers.list())

        quiet = winch("workers", "quiet", first, second, "--json", "-A", "shop:app")
        assert quiet.code == 0, quiet.err
        [answer] = quiet.json["answers"]
        assert (answer["state"], sorted(answer["workers"])) == ("done", sorted([first, second]))
        job = app.tasks.get("shop.add").enqueue(1)
        assert winch("workers", "quiet", "--off", first, "-A", "shop:app").code == 0

        stacks = winch("workers", "stacks", first)
        assert stacks.code == 0, stacks.err
        assert stacks.out.startswith(f"{first}  ")
        assert "most recent call last" in stacks.out
        worker.process.send_signal(signal.SIGUSR2)
        until(lambda: "most recent call first" in worker.text, "the stacks")
        assert job.refresh().state is JobState.READY  # shop.add is not that app's

        assert winch("workers", "stop", "--all").code == 0
        assert worker.process.wait(20) == 0
        gone = winch("workers", "stop", first)
        assert gone.code == 69
        assert "no live worker named" in gone.err
    noted = [line.action for line in app.client.run(Audit(app.driver).read())]
    assert noted == ["stop worker", "worker stacks", "resume worker", "quiet worker"]


def test_a_quiet_worker_claims_nothing_even_in_a_new_child(winch: Command, app: App) -> None:
    with running(winch, "worker"):
        until(lambda: len(app.workers.list()) == 1, "a session")
        [session] = app.workers.list()
        assert winch("workers", "quiet", session.worker).code == 0
        time.sleep(0.5)
        os.kill(session.pid, 9)
        until(lambda: [s.pid for s in app.workers.list()] not in ([], [session.pid]), "a new child")
        answer = winch("enqueue", "shop.nap", "-A", "shop:app", "--args", '{"seconds": 0}', "--json")
        time.sleep(1.0)
        assert app.jobs.get(answer.json["id"]).state is JobState.READY
        [session] = app.workers.list()
        assert winch("workers", "quiet", "--off", session.worker).code == 0
        until(lambda: app.jobs.get(answer.json["id"]).state is JobState.COMPLETED, "its end")


def test_workers_over_http_and_workers_that_do_not_answer(winch: Command, app: App) -> None:
    start_session(app, tasks=())
    answer = winch("workers", "stop", "box-1")
    assert answer.code == 69
    assert "over HTTP and takes no commands" in answer.err
    assert winch("workers", "drain", "--all").code == 69
    start_session(app, tasks=(), worker="box-2", supervisor="s")
    silent = winch("workers", "quiet", "--all", "--wait", "100ms")
    assert silent.code == 1
    assert silent.out == "box-2  no answer yet; the command stays in force for 10 minutes\n"
    assert winch("workers", "drain", "--here").code == 69
    assert winch("workers", "drain", "--idlest", "2", "--all").code == 2
    assert winch("workers", "configure", "box-2", "-c", "0").code == 2
    assert winch("workers", "stop").code == 2
    assert winch("workers", "stop", "box-1", "--all").code == 2


def test_a_changed_file_is_in_force_at_once_and_running_jobs_end(winch: Command, app: App) -> None:
    with running(winch, "dev", "--label", "gpu=h100") as worker:
        until(lambda: len(app.workers.list()) == 1, "a session")
        assert version(winch) == "one"
        [session] = app.workers.list()
        assert session.labels == {"gpu": "h100"}
        nap = winch("enqueue", "shop.nap", "-A", "shop:app", "--args", '{"seconds": 4}', "--json")
        until(lambda: app.jobs.get(nap.json["id"]).state is JobState.RUNNING, "a running job")

        shop = winch.folder / "shop.py"
        broken = shop.read_text() + "\nsyntax error\n"
        fine = shop.read_text().replace('"one"', '"two"')
        shop.write_text(broken)
        until(lambda: "waiting for the next change" in worker.text, "a failed start")
        shop.write_text(fine)
        assert version(winch) == "two"
        until(lambda: app.jobs.get(nap.json["id"]).state is JobState.COMPLETED, "the old job's end")
        record = app.jobs.get(nap.json["id"]).record
        assert (record.result, record.attempt) == (str(session.pid), 1)
    assert "(shop.version) attempt 1: started" in worker.text
    assert "(shop.version) attempt 1: completed after" in worker.text


def test_top_without_a_terminal_shows_one_look(winch: Command, app: App) -> None:
    app.tasks.get("shop.add").enqueue(1)
    answer = winch("top")
    assert answer.code == 0
    assert "default" in answer.out
    assert "no job is running" in answer.out
    assert "\x1b" not in answer.out
    look = winch("top", "--json").json
    assert look["queues"][0]["counts"]["ready"] == 1
    assert look["running"] == []


def test_top_at_a_terminal_is_live_until_q(winch: Command, app: App) -> None:
    with running(winch, "worker"):
        until(lambda: len(app.workers.list()) == 1, "a session")
        winch("enqueue", "shop.nap", "-A", "shop:app", "--args", '{"seconds": 8}')
        until(lambda: bool(app.jobs.list(state="running")), "a running job")
        ours, theirs = pty.openpty()
        env = {k: v for k, v in os.environ.items() if not k.startswith("WINCH_")}
        top = subprocess.Popen(
            [sys.executable, "-m", "winch", "top"],
            cwd=winch.folder,
            env=env | {"WINCH_URL": winch.url, "TERM": "xterm", "COLUMNS": "120", "LINES": "30"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        shown = b""

        def has_shown(*words: bytes) -> bool:
            nonlocal shown
            if select.select([ours], [], [], 0.05)[0]:
                shown += os.read(ours, 65536)
            return all(word in shown for word in words)

        until(lambda: has_shown(b"shop.nap", b"q quits", b"/s)"), "two looks")
        os.write(ours, b"q")
        assert top.wait(10) == 0
        until(lambda: has_shown(b"\x1b[?1049l"), "the old screen")
        os.close(ours)


def test_an_isolated_handler_uses_the_store_of_its_worker(winch: Command) -> None:
    elsewhere = f"sqlite:///{winch.folder / 'elsewhere.db'}"
    (winch.folder / "shop.py").write_text(textwrap.dedent(TASKS))
    for argv in (["migrate"], ["enqueue", "shop.sort"], ["worker", "--burst"]):
        answer = winch(*argv, "--url", elsewhere, "-A", "shop:app", url=None)
        assert answer.code == 0, answer.out + answer.err
    jobs = winch("jobs", "list", "--url", elsewhere, "--json", url=None).json["jobs"]
    assert {(job["task"], job["state"]) for job in jobs} == {
        ("shop.sort", "completed"),
        ("shop.version", "completed"),
    }
    assert not (winch.folder / "winch.db").exists(), "nothing went to the default store"

"""A loop that ends by an unforeseen error ends its process, loudly, and a new process replaces it.

The table of loops is in `tests.faults.breaking`. A loop that is not in it fails the first test here.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib
import pkgutil
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import winch
from tests.faults import breaking
from tests.faults.fleet import ROOT, clean_environment, until
from tests.redis_servers import RedisServer
from tests.servers import Databases
from winch import App, JobState, WinchError
from winch.engine.base.loops import EX_BROKEN
from winch.engine.base.service import Service
from winch.engine.maintenance.promoter import Promoter
from winch.engine.maintenance.rescuer import Rescuer
from winch.engine.supervisor.embedded import EmbeddedWorker
from winch.engine.worker.fetcher import Fetcher
from winch.engine.worker.finisher import Finisher
from winch.engine.worker.running.threads import Threads

SOURCE = Path(winch.__file__).parent
TABLE = {
    *breaking.IN_CHILD,
    *breaking.IN_POSTGRES_CHILD,
    *breaking.IN_REDIS_SUPERVISOR,
    *breaking.IN_SUPERVISOR,
    *breaking.IN_EMBEDDED,
    *breaking.IN_ISOLATED,
}
# Loops of `winch serve`, which is no worker.
IN_SERVER = {"declaration", "proof", "reservations of Faktory workers", "sampler"}
# Tasks that end with the call that starts them: what they raise reaches the caller.
SHORT = {
    "engine/base/loops.py": {"start"},
    "drivers/_shared/background.py": {"start"},
    "drivers/redis/fast/claiming_bell.py": {"rouse"},
    "engine/supervisor/child.py": {"_start", "_live"},
    "engine/supervisor/embedded.py": {"__aenter__", "halt", "run_until_stopped"},
    "engine/base/shared_reads.py": {"get"},
    "engine/client/coalesce.py": {"_arrive"},
    "engine/durable/note_writer.py": {"_depart"},
    "engine/supervisor/supervisor.py": {"_announce", "_started", "_tend"},
    "engine/worker/worker.py": {"_until_due", "_flush"},
}

STARTERS = {"create_task", "ensure_future", "Thread", "start"}


def _calls() -> Iterator[tuple[str, str, str, str]]:
    """Each call that starts something in the background: file, function, what is called, its name."""
    for path in sorted([*(SOURCE / "engine").rglob("*.py"), *(SOURCE / "drivers").rglob("*.py")]):
        file = str(path.relative_to(SOURCE))
        tree = ast.parse(path.read_text())
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and _last_word(call.func) in STARTERS:
                    text = ast.unparse(call.func)
                    if _last_word(call.func) != "start" or _starts_loop(text):
                        yield file, function.name, text, _name(call)


def _last_word(called: ast.expr) -> str:
    match called:
        case ast.Attribute(attr=word) | ast.Name(id=word):
            return word
    return ""


def _starts_loop(what: str) -> bool:
    return what.endswith(("loops.start", "background.start"))


def _name(call: ast.Call) -> str:
    """The constant beginning of the name it gets."""
    values = [keyword.value for keyword in call.keywords if keyword.arg == "name"] + call.args
    for value in values:
        parts = value.values if isinstance(value, ast.JoinedStr) else [value]
        if isinstance(parts[0], ast.Constant) and isinstance(parts[0].value, str):
            return parts[0].value.removeprefix("winch-").removeprefix("winch ").strip()
    return ""


def test_every_loop_is_in_the_table() -> None:
    for module in pkgutil.walk_packages(winch.__path__, "winch."):
        if module.name.startswith(("winch.engine", "winch.web")):
            importlib.import_module(module.name)
    services = {
        service.name for service in Service.__subclasses__() if service.__module__.startswith("winch.")
    }
    found = services - IN_SERVER
    for file, function, what, name in _calls():
        if _starts_loop(what):
            found.add(name)
        elif what.endswith("Thread"):
            found.add(name or "job thread")
        else:
            assert function in SHORT.get(file, ()), f"{file}, {function}: start it with Loops.start"
    assert found == TABLE


@contextlib.contextmanager
def run_worker(
    folder: Path,
    url: str,
    *,
    supervisor: str = "none",
    child: list[str] | None = None,
    isolated: str = "",
) -> Iterator[subprocess.Popen[bytes]]:
    env = clean_environment()
    env |= {"BREAK_URL": url, "BREAK_SPOOL": str(folder / "spool"), "PYTHONUNBUFFERED": "1"}
    env |= {"WINCH_LEASE": "3s", "WINCH_HEARTBEAT": "500ms", "WINCH_SWEEP": "500ms"}
    env |= {"BREAK_ISOLATED": isolated} if isolated else {}
    if child is not None:
        env |= {"BREAK_LOOPS": ",".join(child), "BREAK_COUNT": str(folder / "count")}
    argv = ["-m", "tests.faults.breaking", supervisor, "worker", "-A", "tests.faults.breaking:app"]
    argv += ["--grace", "1s", "-Q", "*", *(["--reload"] if supervisor == "reload" else [])]
    argv += ["--report-busy", str(folder / "busy")] if supervisor == "busy-report" else []
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, *argv], cwd=ROOT, env=env, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in psutil.Process(process.pid).children(recursive=True):
                one.kill()
        process.kill()
        process.wait(10)


def ended_in(folder: Path) -> list[str]:
    """The loops whose end is in the log, in order."""
    return re.findall(r"CRITICAL .*the ([\w -]+) loop has ended", (folder / "log").read_text())


def break_children(folder: Path, url: str, names: list[str]) -> None:
    app = App(url)
    app.migrate()
    work = app.task(name="work")(lambda: None)
    jobs = [work.enqueue() for _ in range(5)]
    log = folder / "log"
    with run_worker(folder, url, child=names) as process:

        def are_all_broken() -> bool:
            jobs.append(work.enqueue())  # something to do for every part of every child
            time.sleep(0.2)
            return len(ended_in(folder)) >= len(names)

        until(are_all_broken, 30 + 15 * len(names), "all loops to break", log.read_text, step=0.2)
        until(lambda: all(job.refresh().state.is_final for job in jobs), 30, "jobs", log.read_text)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, log.read_text()
    text = log.read_text()
    for name, replied in zip(names, ended_in(folder), strict=True):
        assert re.fullmatch(r"\d+" if name == "job thread" else rf"{name}( \d+)?", replied)
    assert text.count("one of its loops ended") == len(names), "each child ends with its exit code"
    assert text.count("Unforeseen: ") >= len(names), "each with its traceback"
    assert {job.refresh().state for job in jobs} == {JobState.COMPLETED}, "and no job is blamed"
    app.close()


# One of each kind: a loop that fetches, one that stores, the link to the supervisor, two threads.
OFTEN_IN_CHILD = ("fetcher", "finisher", "link", "sqlite-writer", "job thread")


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(OFTEN_IN_CHILD, id="often"),
        pytest.param(tuple(breaking.IN_CHILD), id="all", marks=pytest.mark.slow),
    ],
)
def test_a_child_whose_loop_ends_is_replaced(tmp_path: Path, names: tuple[str, ...]) -> None:
    break_children(tmp_path, f"sqlite:///{tmp_path / 'winch.db'}", list(names))


@pytest.mark.servers
def test_a_child_whose_connections_lose_their_loops_is_replaced(
    tmp_path: Path, postgres_server: Databases
) -> None:
    url = postgres_server.new_store()
    try:
        break_children(tmp_path, url, list(breaking.IN_POSTGRES_CHILD))
    finally:
        postgres_server.drop_database(url)


@pytest.mark.parametrize("name", list(breaking.IN_ISOLATED))
def test_a_process_of_its_own_whose_loop_ends_is_not_waited_for(tmp_path: Path, name: str) -> None:
    url = f"sqlite:///{tmp_path / 'winch.db'}"
    app = App(url)
    app.migrate()
    job = app.task(name="alone")(lambda: None).enqueue()
    log = tmp_path / "log"
    with run_worker(tmp_path, url, isolated=name):
        until(lambda: "its process died" in log.read_text(), 60, "the end of the process", log.read_text)
    assert ended_in(tmp_path)[0] == name
    assert f"exit code {EX_BROKEN}" in log.read_text()
    assert job.refresh().state is not JobState.COMPLETED
    app.close()


def break_supervisor(folder: Path, url: str, name: str) -> None:
    app = App(url)
    app.migrate()
    names = ["fetcher"] if name == "child" else None  # a child that ends, for the part that replaces it
    with run_worker(folder, url, supervisor=name, child=names) as process:
        if name == "commands":
            until(lambda: bool(app.workers.list()), 30, "the worker", (folder / "log").read_text)
            app.workers.quiet(app.workers.list()[0].worker, wait="0s")
        code = process.wait(60)
    app.close()
    text = (folder / "log").read_text()
    assert code == EX_BROKEN, text
    assert re.fullmatch(rf"{name}( \d+)?", ended_in(folder)[-1]), text
    assert "Unforeseen: " in text


OFTEN = {"heartbeat", "watch", "child"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in OFTEN else pytest.mark.slow)
        for name in breaking.IN_SUPERVISOR
    ],
)
def test_a_supervisor_whose_loop_ends_stops_with_an_error(tmp_path: Path, name: str) -> None:
    break_supervisor(tmp_path, f"sqlite:///{tmp_path / 'winch.db'}", name)


@pytest.mark.servers
@pytest.mark.slow
def test_a_supervisor_whose_listener_ends_stops_with_an_error(tmp_path: Path) -> None:
    server = RedisServer()
    server.start()
    try:
        break_supervisor(tmp_path, server.url, "listen")
    finally:
        server.remove()


@pytest.mark.parametrize("name", ["heart", "fetcher", "finisher", "promoter", "rescuer", "job thread"])
def test_an_embedded_worker_whose_loop_ends_stops_and_raises(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    everywhere = breaking.IN_CHILD | breaking.IN_SUPERVISOR | breaking.IN_EMBEDDED
    _restore_after(monkeypatch)
    everywhere[name]()
    app = App("memory://", heartbeat="100ms", grace="1s")
    work = app.task(name="work")(lambda: None)

    async def embed() -> None:
        async with app.worker() as worker:
            work.enqueue()
            async with asyncio.timeout(20):
                await worker.drained.wait()
            assert worker.broken is not None

    with pytest.raises(WinchError, match="loop has ended"):
        asyncio.run(embed())


def _restore_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have everything that can be broken here put back as it was."""
    for owner, method in (
        (EmbeddedWorker, "_beat"),
        (Finisher, "run"),
        (Threads, "_work"),
    ):
        monkeypatch.setattr(owner, method, getattr(owner, method))
    for service in (Fetcher, Promoter, Rescuer):
        monkeypatch.setattr(service, "run", service.run)

"""Clients of Faktory as their makers publish them, on real servers: `make faktory`. Slow.

npm's faktory-worker, and pyfaktory and faktory of the Python index, each unmodified.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from winch import App

pytestmark = pytest.mark.slow
CLIENTS = Path(__file__).parent / "faktory_clients"
NODE_PACKAGE = "faktory-worker@4.7.1"
PYTHON_PACKAGES = ("pyfaktory==0.2.13", "faktory==1.0.0")
PASSWORD = "s3cret"
JOBS = 60


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the clients installed."""
    folder = tmp_path_factory.mktemp("faktory")
    npm = shutil.which("npm")
    assert npm is not None, "no npm here: `make faktory` installs it"
    (folder / "package.json").write_text('{"private": true}')
    install(folder, npm, "install", "--no-audit", "--no-fund", NODE_PACKAGE)
    venv.create(folder / "venv", with_pip=True)
    install(folder, str(folder / "venv/bin/pip"), "install", "--quiet", *PYTHON_PACKAGES)
    for client in CLIENTS.iterdir():
        shutil.copy(client, folder)
    return folder


def install(folder: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/winch.db"
    elif request.param == "redis":
        url = f"{request.getfixturevalue('web_redis')}?schema=faktory{secrets.token_hex(6)}"
    else:
        url = request.getfixturevalue("postgres_url")
    app = App(url)
    app.migrate()
    yield app
    app.close()


@contextmanager
def gateway(
    app: App, port: int = 0, password: str = PASSWORD
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """`winch serve --faktory` in a process of its own, and its port."""
    command = [sys.executable, "-m", "winch", "serve", "--port", "0", "--faktory", str(port)]
    env = os.environ | {"WINCH_URL": app.settings.url, "WINCH_FAKTORY_PASSWORD": password}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline(), process.stdout.readline()]
            yield process, int(lines[1].rpartition(":")[2])
        finally:
            process.terminate()
            process.wait(20)


class Programs:
    """Runs the clients; what they note is in `file`."""

    def __init__(self, built: Path, file: Path) -> None:
        self._built = built
        self.file = file
        self.file.touch()
        self._python = str(built / "venv/bin/python")

    def command(self, client: str, *words: str) -> list[str]:
        mode, *rest = words
        program = ["node"] if client.endswith(".js") else [self._python]
        return [*program, str(self._built / client), mode, str(self.file), *rest]

    def env(self, port: int, password: str = PASSWORD) -> dict[str, str]:
        return os.environ | {"FAKTORY_URL": f"tcp://:{password}@127.0.0.1:{port}"}

    def run(self, port: int, client: str, *words: str) -> None:
        done = subprocess.run(
            self.command(client, *words),
            env=self.env(port),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    @contextmanager
    def worker(self, port: int, client: str) -> Iterator[subprocess.Popen[bytes]]:
        with subprocess.Popen(self.command(client, "work"), env=self.env(port)) as process:
            try:
                yield process
            finally:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    process.kill()

    def notes(self) -> Counter[str]:
        return Counter(self.file.read_text().splitlines())


@pytest.fixture
def programs(built: Path, tmp_path: Path) -> Programs:
    return Programs(built, tmp_path / "notes")


def wait_for(app: App, states: dict[str, int], seconds: float = 60) -> None:
    """Until so many jobs are in these states."""
    deadline = time.monotonic() + seconds
    while True:
        found = {state: len(app.jobs.list(state=state, limit=1000)) for state in states}
        if found == states:
            return
        assert time.monotonic() < deadline, f"{found}, not {states}"
        time.sleep(0.2)


def expected(name: str, count: int) -> Counter[str]:
    return Counter(f"start {name} {n}" for n in range(count))


def test_node(app: App, programs: Programs) -> None:
    with gateway(app) as (_, port):
        with programs.worker(port, "worker.js"):
            programs.run(port, "worker.js", "push", str(JOBS))
            programs.run(port, "worker.js", "pushb", str(JOBS))
            programs.run(port, "worker.js", "info")
            wait_for(app, {"completed": 2 * JOBS})
            assert any(one.release == "faktory" for one in app.workers.list())
        notes = programs.notes()
        assert notes == expected("push", JOBS) + expected("bulk", JOBS) + Counter(
            ["refused 0", "info Winch"]
        )


def test_pyfaktory(app: App, programs: Programs) -> None:
    with gateway(app) as (_, port):
        programs.run(port, "with_pyfaktory.py", "push", str(JOBS))
        with programs.worker(port, "with_pyfaktory.py"):
            wait_for(app, {"completed": JOBS, "dead": 1})
        assert programs.notes() == expected("pyfaktory", JOBS) + Counter(["refused 0", "start fails 1"])
        [dead] = app.jobs.list(state="dead")
        assert dead.record.error is not None
        assert dead.record.error.message == "as it should"


def test_a_batch_of_pyfaktory(app: App, programs: Programs) -> None:
    with gateway(app) as (_, port):
        programs.run(port, "with_pyfaktory.py", "batch", str(JOBS))
        with programs.worker(port, "with_pyfaktory.py"):
            wait_for(app, {"completed": JOBS + 1})
        starts = programs.file.read_text().splitlines()
        assert Counter(starts) == expected("member", JOBS) + Counter([f"start after {JOBS}"])
        assert starts[-1] == f"start after {JOBS}", "the callback comes last"


def test_faktory_for_python(app: App, programs: Programs) -> None:
    with gateway(app) as (_, port):
        programs.run(port, "with_faktory.py", "push", str(JOBS))
        with programs.worker(port, "with_faktory.py"):
            wait_for(app, {"completed": JOBS, "dead": 1})
        assert programs.notes() == expected("faktory", JOBS) + Counter(["start fails 1"])


@pytest.mark.parametrize("client", ["worker.js", "with_pyfaktory.py", "with_faktory.py"])
def test_a_wrong_password_is_refused(tmp_path: Path, programs: Programs, client: str) -> None:
    app = App(f"sqlite:///{tmp_path}/winch.db")
    app.migrate()
    with gateway(app, password="another") as (_, port):
        done = subprocess.run(
            programs.command(client, "push", "1"),
            env=programs.env(port),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode != 0
    assert "password" in (programs.file.read_text() + done.stdout + done.stderr).lower()
    assert app.jobs.list() == []
    app.close()


def test_a_gateway_is_killed_while_jobs_run(app: App, programs: Programs) -> None:
    """Two gateways on one store, a worker at each. The first dies with jobs of its worker under way, and
    comes back at the same address: its worker continues, and no job is lost."""
    with gateway(app) as (_, second), gateway(app) as (first_process, first):
        with programs.worker(first, "worker.js"), programs.worker(second, "worker.js"):
            programs.run(second, "worker.js", "pushb", "400")
            deadline = time.monotonic() + 30
            while programs.notes().total() < 100:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            first_process.kill()
            first_process.wait()
            with gateway(app, first):
                # What the first worker could not end stays reserved for its half hour: also a job whose
                # FETCH the dead gateway could not answer.
                wait_for_idle(app)
                done = len(app.jobs.list(state="completed", limit=1000))
                held = len(app.jobs.list(state="running", limit=1000))
                assert done + held == 400
                assert held <= 5, "at most the slots of the worker whose gateway died"
        starts = {line for line in programs.notes() if line.startswith("start bulk")}
        assert len(starts) >= done, "every completed job was begun"
        assert all(programs.notes()[line] == 1 for line in starts), "none ran twice"


def wait_for_idle(app: App) -> None:
    deadline = time.monotonic() + 60
    while app.jobs.list(state="ready", limit=1):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    time.sleep(2)

"""The Go SDK: its own tests, the program of its README, and a task that Python declares without code.
Slow, but for what needs no compiler. `make clients` plays the scenarios."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.clients.languages import ROOT
from tests.engine.worker_kit import until
from tests.tools import program
from tests.web.server import serving
from winch import App, InvalidPayload
from winch.remote import RemoteClient, RemoteError
from winch.web.tokens import Tokens

SDK = ROOT / "clients" / "go"
MODULE = "github.com/winch-jobs/winch/clients/go"
SCHEMA = {"properties": {"order": {"type": "integer"}}, "required": ["order"]}


def go() -> str:
    return program("go", install="apt-get install golang-go")


def run(*words: str, folder: Path = SDK) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def readme() -> str:
    """The program of the README."""
    found = re.search(r"```go\n(package main.*?)```", (SDK / "README.md").read_text(), flags=re.DOTALL)
    assert found is not None
    return found[1]


def test_it_needs_the_standard_library_alone() -> None:
    assert "require" not in (SDK / "go.mod").read_text()
    assert not (SDK / "go.sum").exists()


def test_the_readme_starts_a_worker_in_ten_lines() -> None:
    lines = readme().partition("func main() {\n")[2].splitlines()[:-1]
    assert len(lines) <= 10, "the body of main"


def test_no_file_is_long() -> None:
    for path in SDK.rglob("*.go"):
        assert len(path.read_text().splitlines()) <= 500, path.name


@pytest.mark.slow
def test_its_own_tests() -> None:
    assert run(str(Path(go()).parent / "gofmt"), "-l", ".") == ""
    run(go(), "vet", "./...")
    run(go(), "test", "-count=1", "./...")


@contextmanager
def worker(app: App, address: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The program of the README, as a process."""
    token, _ = app.client.run(Tokens(app.driver).create("go", ("enqueue", "work", "read")))
    (folder / "main.go").write_text(readme())
    module = f"module shop\n\ngo 1.19\n\nrequire {MODULE} v0.1.0\n\nreplace {MODULE} => {SDK}\n"
    (folder / "go.mod").write_text(module)
    run(go(), "build", "-o", "shop", ".", folder=folder)
    process = subprocess.Popen(
        [folder / "shop"], env={**os.environ, "WINCH_SERVER": address, "WINCH_TOKEN": token}
    )
    try:
        yield process
    finally:
        process.terminate()
        assert process.wait(20) == 0


@pytest.mark.slow
def test_a_task_declared_without_code(tmp_path: Path) -> None:
    """Python enqueues, Go runs it. Wrong arguments are refused with the schema's reason: by the schema
    that this app declares, and over HTTP by the one that the worker publishes."""
    app = App(f"sqlite:///{tmp_path / 'winch.db'}")
    app.migrate()
    mail = app.declare("shop.mail", SCHEMA, queue="mail")
    with pytest.raises(InvalidPayload, match=r"args\.order must be integer, got string"):
        mail.enqueue(order="seven")
    with pytest.raises(InvalidPayload, match="order"):
        mail.enqueue()
    # The server does not know the app's declaration: only what the worker publishes.
    with serving(App(f"sqlite:///{tmp_path / 'winch.db'}"), grace=3) as address:
        with worker(app, address, tmp_path):
            jobs = [mail.enqueue(order=n) for n in range(20)]
            assert [job.result("30s") for job in jobs] == [f"order {n} confirmed" for n in range(20)]
            remote = RemoteClient(address)
            assert remote.result(remote.enqueue("shop.mail", {"order": 7})) == "order 7 confirmed"
            with pytest.raises(RemoteError, match=r"args\.order must be integer, got string") as refused:
                remote.enqueue("shop.mail", {"order": "seven"})
            assert refused.value.status == 422
            remote.close()
        until(lambda: app.workers.list() == [], "the end of the worker's session")
    app.close()

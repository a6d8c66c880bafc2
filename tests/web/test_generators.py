"""Clients that generators make of the description: they compile, enqueue, claim and complete. Slow.

`test_typescript.py` does the same with openapi-typescript. Go needs `go` and, for the generator, `java`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.tools import program
from tests.web.server import serving
from tests.web.test_typescript import run
from winch import App
from winch.web.tokens import Tokens

pytestmark = pytest.mark.slow
SMOKE = Path(__file__).parent / "generated"


class Served:
    """A server whose queue `gen` waits for a client, and its description in a file."""

    def __init__(self, app: App, address: str, folder: Path) -> None:
        self.app = app
        token, _ = app.client.run(Tokens(app.driver).create("generated", ("enqueue", "work", "read")))
        self.env = {"WINCH_SERVER": address, "WINCH_TOKEN": token}
        described = httpx.get(
            f"{address}/api/v1/openapi.json", headers={"authorization": f"Bearer {token}"}, timeout=10
        )
        self.described = folder / "openapi.json"
        self.described.write_bytes(described.content)

    def check(self, job_id: str) -> None:
        got = {"image": "a.png", "size": {"width": 100}}
        assert self.app.jobs.get(job_id.strip()).result("5s") == {"got": got}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    app = App(f"sqlite:///{tmp_path / 'winch.db'}")
    app.migrate()

    @app.task(name="gen.resize", queue="gen")
    def resize(image: str, size: dict[str, int]) -> dict[str, Any]:
        raise AssertionError("only the other worker runs it")

    with serving(app, auth="tokens") as address:
        yield Served(app, address, tmp_path)


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """The programs of the generators that PyPI has."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "tools"], check=True)
    made = tmp_path / "tools" / "bin"
    packages = ("openapi-python-client", "openapi-generator-cli", "ruff")
    run(tmp_path, str(made / "pip"), "install", "-q", *packages)
    return made


def test_openapi_python_client(served: Served, tools: Path, tmp_path: Path) -> None:
    run(
        tmp_path,
        *(str(tools / "openapi-python-client"), "generate", "--path", str(served.described)),
        *("--output-path", str(tmp_path / "made"), "--fail-on-warning"),
        PATH=f"{tools}{os.pathsep}{os.environ['PATH']}",
    )
    shutil.copy(SMOKE / "smoke.py.txt", tmp_path / "made" / "smoke.py")
    served.check(run(tmp_path / "made", str(tools / "python"), "smoke.py", **served.env))


def test_openapi_generator_for_go(served: Served, tools: Path, tmp_path: Path) -> None:
    go = program("go", install="apt-get install golang-go")
    program("java", install="apt-get install default-jre-headless")
    made = tmp_path / "made"
    run(
        tmp_path,
        *(str(tools / "openapi-generator-cli"), "generate", "-g", "go", "-o", str(made)),
        *("-i", str(served.described), "--additional-properties=packageName=winchapi,withGoMod=false"),
    )
    shutil.rmtree(made / "test", ignore_errors=True)
    (made / "go.mod").write_text("module example.com/winchapi\n\ngo 1.19\n")
    (made / "smoke").mkdir()
    shutil.copy(SMOKE / "main.go.txt", made / "smoke" / "main.go")
    run(made, go, "vet", "./...", GOFLAGS="-mod=mod")
    served.check(run(made, go, "run", "./smoke", **served.env))

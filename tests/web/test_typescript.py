"""A client in strict TypeScript: generated, compiled and run. Slow; `make test-all` installs npm."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.web.server import serving
from winch import App

pytestmark = pytest.mark.slow
CLIENT = Path(__file__).parent / "typescript" / "client.ts"
PACKAGES = ("openapi-typescript@7", "typescript@5", "@types/node@20")
STRICT = ("--strict", "--noUncheckedIndexedAccess", "--exactOptionalPropertyTypes")


def run(folder: Path, *command: str, **env: str) -> str:
    """Run one command of the build; its output is in the failure."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout


def test_a_strict_client_enqueues_with_arguments_claims_and_completes(tmp_path: Path) -> None:
    npm, node = shutil.which("npm"), shutil.which("node")
    assert npm is not None and node is not None, "no npm here: `make test-all` installs it"  # noqa: PT018
    app = App(f"sqlite:///{tmp_path / 'winch.db'}")
    app.migrate()

    @app.task(name="ts.resize", queue="ts")
    def resize(image: str, size: dict[str, int], tags: list[str]) -> dict[str, Any]:
        raise AssertionError("only the other worker runs it")

    build = tmp_path / "build"
    build.mkdir()
    (build / "package.json").write_text('{"private": true, "type": "module"}')
    shutil.copy(CLIENT, build)
    run(build, npm, "install", "--no-audit", "--no-fund", *PACKAGES)
    with serving(app) as address:
        described = httpx.get(f"{address}/api/v1/openapi.json", timeout=10)
        (build / "openapi.json").write_bytes(described.content)
        run(build, npm, "exec", "--", "openapi-typescript", "openapi.json", "-o", "schema.ts")
        run(build, npm, "exec", "--", "tsc", *STRICT, "--target", "es2022", "--module", "nodenext",
            "--moduleResolution", "nodenext", "--skipLibCheck", "client.ts")  # fmt: skip
        job_id = run(build, node, "client.js", WINCH_SERVER=address).strip()
        job = app.jobs.get(job_id)
        args = {"image": "a.png", "size": {"width": 100, "height": 50}, "tags": ["small"]}
        assert job.result("5s") == {"got": args}

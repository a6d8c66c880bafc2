"""The TypeScript SDK as it is published, and together with Python: `make clients`. Slow."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.clients.languages import Language, languages
from tests.clients.runner import Runner
from tests.clients.stage import ROLES, Serving, Stage
from winch import App, Context, InvalidPayload
from winch.integrations.otel import OpenTelemetry

pytestmark = pytest.mark.slow
STRICT = ["--strict", "--noEmit", "--target", "es2022", "--module", "nodenext"]
STRICT += ["--moduleResolution", "nodenext", "--lib", "es2022,dom"]
# What a user gets, and nothing else: no test, no tool, no setting of ours.
MODULES = ["client", "context", "duration", "errors", "finisher", "index", "node", "outcomes"]
MODULES += ["process", "random", "session", "task", "transport", "worker"]


@pytest.fixture(scope="module")
def sdk() -> Language:
    """Built, as `make clients` builds it."""
    found = languages()["typescript"]
    found.make()
    return found


@pytest.fixture(scope="module")
def folder() -> Path:
    return Path(__file__).parents[2] / "clients" / "typescript"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("typescript"))
    yield made
    made.close()


def run(command: list[str], folder: Path, **env: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(sdk: Language, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the packed SDK installed, as a user has it."""
    project = tmp_path_factory.mktemp("user")
    [packed] = json.loads(
        run(["npm", "pack", "--json", "--ignore-scripts", "--pack-destination", str(project)], folder)
    )
    names = sorted(one["path"] for one in packed["files"])
    kinds = (".d.ts", ".d.ts.map", ".js", ".js.map")
    expected = [f"dist/{name}{kind}" for name in MODULES for kind in kinds]
    expected += [f"src/{name}.ts" for name in MODULES] + ["LICENSE", "README.md", "package.json"]
    assert names == sorted(expected)
    (project / "package.json").write_text('{"private": true, "type": "module"}')
    archive = project / packed["filename"]
    run(["npm", "install", "--no-audit", "--no-fund", "--offline", str(archive)], project)
    assert sorted(one.name for one in (project / "node_modules").iterdir() if one.is_dir()) == [
        "winch-jobs"
    ], "no dependencies"
    return project


def test_its_own_tests_pass(sdk: Language, folder: Path) -> None:
    run(["npm", "test"], folder, SDK_PYTHON=sys.executable)


def test_the_ten_lines_of_the_readme_are_a_worker(installed: Path, folder: Path, stage: Stage) -> None:
    readme = (folder / "README.md").read_text()
    [program] = re.findall(r"```js\n// worker.mjs\n(.*?)```", readme, re.DOTALL)
    assert len([line for line in program.splitlines() if line.strip()]) <= 10
    (installed / "worker.mjs").write_text(program)
    [producer] = re.findall(r"```js\n// producer.mjs\n(.*?)```", readme, re.DOTALL)
    (installed / "producer.mjs").write_text(producer)
    serving = stage.shared("sqlite")
    token, _ = serving.new_token("readme", ROLES)
    env = {"WINCH_SERVER": f"http://127.0.0.1:{serving.port}", "WINCH_TOKEN": token}
    with subprocess.Popen(["node", "worker.mjs"], cwd=installed, env=os.environ | env) as worker:
        try:
            while not serving.request("GET", "/workers").json()["workers"]:
                assert worker.poll() is None
            printed = run(["node", "producer.mjs"], installed, **env).split(maxsplit=1)
        finally:
            worker.terminate()
        assert worker.wait(20) == 0
    assert printed[1] == "sent 7\n"
    assert serving.request("GET", f"/jobs/{printed[0]}").json()["progress"] == {"percent": 50}


def test_the_types_help_a_user(installed: Path, folder: Path) -> None:
    [program] = re.findall(r"```ts\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    (installed / "typed.ts").write_text(program)
    tsc = [shutil.which("node") or "node", str(folder / "node_modules/typescript/bin/tsc"), *STRICT]
    run([*tsc, "typed.ts"], installed)
    wrong = {
        "{ image: 1, width: 100 }": "Type 'number' is not assignable to type 'string'",
        '{ image: "cat.png" }': "'width' is missing",
        '{ image: "a", width: 1, hight: 2 }': "'hight' does not exist",
    }
    for args, reason in wrong.items():
        (installed / "wrong.ts").write_text(program.replace('{ image: "cat.png", width: 100 }', args))
        with pytest.raises(AssertionError, match=re.escape(reason)):
            run([*tsc, "wrong.ts"], installed)


@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis"])
def test_python_enqueues_what_node_runs_and_wrong_arguments_are_refused(
    sdk: Language, stage: Stage, store: str
) -> None:
    serving = stage.shared(store)
    app = App(serving.url)
    schema = {
        "properties": {"image": {"type": "string"}, "width": {"type": "integer", "minimum": 1}},
        "required": ["image"],
    }
    resize = app.declare("node.resize", schema, queue="images")
    with pytest.raises(InvalidPayload, match=r"node\.resize: args\.width must be integer, got string"):
        resize.enqueue("cat.png", width="wide")
    job = resize.enqueue("cat.png", width=100)
    runner = node(sdk, stage, serving, "images", {"node.resize": {"run": [{"return": {"$": "args"}}]}})
    try:
        assert job.result("20s") == {"image": "cat.png", "width": 100}
    finally:
        runner.end()
        app.close()


@pytest.mark.parametrize("store", ["sqlite", "postgres", "redis"])
def test_one_trace_from_python_to_node_and_back(sdk: Language, stage: Stage, store: str) -> None:
    serving = stage.shared(store)
    exported = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    app = App(serving.url)
    app.use(OpenTelemetry(tracer_provider=provider, trace_mode="child"))
    there = app.declare("node.there", {"properties": {"n": {"type": "integer"}}}, queue="there")
    seen: list[Any] = []

    @app.task(name="python.back", queue="back")
    def back(n: int, *, ctx: Context) -> int:
        seen.append(trace.get_current_span().get_span_context().trace_id)
        return n + 1

    actions = [
        {"children": {"jobs": [{"task": "python.back", "args": {"n": 1}, "queue": "back"}]}},
        {"return": {"trace": {"$": "headers.traceparent"}, "child": {"$": "children"}}},
    ]

    async def story() -> tuple[int, Any, Any]:
        try:
            return await call_there_and_back()
        finally:
            await app.aclose()

    async def call_there_and_back() -> tuple[int, Any, Any]:
        async with app.worker(queues=["back"], concurrency=1):
            runner = await asyncio.to_thread(
                node, sdk, stage, serving, "there", {"node.there": {"run": actions}}
            )
            try:
                with provider.get_tracer("test").start_as_current_span("request") as span:
                    job = await there.aenqueue(n=1)
                    root = span.get_span_context().trace_id
                done = await job.aresult("20s")
                [child] = done["child"]
                back_job = await app.jobs.aget(child)
                return root, done, await back_job.aresult("20s")
            finally:
                await asyncio.to_thread(runner.end)

    root, done, result = asyncio.run(story())
    assert result == 2
    assert done["trace"].split("-")[1] == f"{root:032x}", "Node got the trace of Python"
    assert seen == [root], "and Python got it back"
    spans = {span.name: span for span in exported.get_finished_spans()}
    assert {span.context.trace_id for span in spans.values() if span.context} == {root}
    assert {"request", "send there", "process back"} <= set(spans)


def node(
    sdk: Language, stage: Stage, serving: Serving, queue: str, tasks: dict[str, dict[str, Any]]
) -> Runner:
    """A Node worker for these tasks."""
    token, _ = serving.new_token("node", ROLES)
    runner = Runner(sdk.argv(), stage.folder, {})
    url = f"http://127.0.0.1:{serving.port}"
    runner.ask({"do": "connect", "client": "main", "url": url, "token": token})
    given = {"queues": [queue], "slots": 2, "lease": "4s", "tasks": tasks}
    runner.ask({"do": "worker.start", "client": "main", "worker": "w", "name": "node", **given})
    return runner

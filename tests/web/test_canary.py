"""A secret goes in by every way that Winch has, and comes out by none."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import winch
from tests.web.kit import LoopThread, Web
from tests.web.test_access_table import call_asgi
from winch import Context, Retry
from winch.cli import run_command
from winch.integrations.otel import OpenTelemetry
from winch.web.mount import ROUTES

CANARY = "h8Gq-CANARY-w3Zt"
# The shapes that a secret has in a text, a URL and in data.
TEXT = f"login failed: password={CANARY} token: '{CANARY}' Authorization: Bearer {CANARY}"
DSN = f"postgresql://shop:{CANARY}@db.example.org/shop"
DATA = {"password": CANARY, "deep": [{"api_key": CANARY, "url": DSN}]}


def is_leaked(text: str) -> bool:
    """Whether the secret, or a part of it long enough to guess the rest, is in the text."""
    return CANARY in text or "CANARY" in text


def leak(text: str) -> str:
    at = text.index("CANARY")
    return f"…{text[max(at - 200, 0) : at + 40]}…"


class Filled:
    """A store that the secret has gone into, by each way."""

    def __init__(self, web: Web, log: io.StringIO, spans: InMemorySpanExporter) -> None:
        self.web, self.log, self.spans = web, log, spans
        self.app = app = web.app
        self.jobs: list[str] = []
        self._tasks()
        tasks = self.tasks

        def put(name: str, **more: Any) -> Any:
            job = tasks[name].using(headers={"authorization": CANARY, "cookie": CANARY},
                                    tags=[f"token={CANARY}"], **more).enqueue(**DATA)  # fmt: skip
            self.jobs.append(job.id)
            return job

        for name in tasks:
            put(name)
        put("leak.dies", unique=f"token={CANARY}")
        self._outbox()
        self._webhooks()
        app.run_worker(burst=True)
        app.webhooks.disable(self.endpoint, reason=TEXT)
        put("leak.returns", delay="1h").cancel(TEXT)
        self.running = put("leak.returns", queue="http")
        app.queues.pause("default", reason=TEXT)
        self.schedule = "leak"
        app.schedules.add("leak", task="leak.returns", every="1h", args=DATA)
        app.schedules.pause("leak", reason=TEXT)
        app.schedules.trigger("leak")
        flow = winch.flow("leak")
        flow.add(tasks["leak.returns"].bind(**DATA))
        self.flow = flow.enqueue().id
        app.signal("leak", DATA)
        self._over_http()

    def _tasks(self) -> None:
        app, once = self.app, Retry.fixed("1h", attempts=1)
        self.tasks: dict[str, Any] = {}

        def task(name: str, **options: Any) -> Callable[[Any], Any]:
            def register(fn: Any) -> Any:
                self.tasks[name] = app.task(name=name, **options)(fn)
                return fn

            return register

        def work(ctx: Context) -> None:
            ctx.log.warning(TEXT)
            ctx.progress(50, TEXT)
            ctx.checkpoint(DATA)

        @task("leak.dies", retry=once)
        def dies(ctx: Context, password: str, deep: Any) -> None:
            work(ctx)
            try:
                raise KeyError(f"secret={CANARY}")
            except KeyError as cause:
                raise ValueError(f"{TEXT} {DSN}") from cause

        @task("leak.retries", retry=Retry.fixed("1h", attempts=5))
        def retries(ctx: Context, password: str, deep: Any) -> None:
            work(ctx)
            raise ValueError(f"{TEXT} {DSN}")

        @task("leak.returns")
        def returns(ctx: Context, password: str, deep: Any) -> Any:
            work(ctx)
            return {"token": CANARY, "text": TEXT, "url": DSN}

        @task("leak.discards")
        def discards(ctx: Context, password: str, deep: Any) -> None:
            raise winch.Discard(TEXT)

        @task("leak.cancels")
        def cancels(ctx: Context, password: str, deep: Any) -> None:
            raise winch.Cancel(TEXT)

        @task("leak.snoozes")
        def snoozes(ctx: Context, password: str, deep: Any) -> None:
            raise winch.Snooze("1h", TEXT)

        @task("leak.later")
        def later(ctx: Context, password: str, deep: Any) -> None:
            raise winch.RetryAfter("1h", TEXT)

        @task("leak.steps")
        def steps(ctx: Context, password: str, deep: Any) -> None:
            ctx.step(lambda: {"token": CANARY}, name="one")
            raise ValueError(TEXT)

        @task("leak.waits")
        def waits(ctx: Context, password: str, deep: Any) -> None:
            ctx.wait_for("never", timeout="1h")

    def _outbox(self) -> None:
        @self.app.outbox.sink("leaks")
        def deliver(message: Any) -> None:
            raise ValueError(TEXT)

        self.jobs.append(self.app.outbox.add("leaks", payload=DATA).id)

    def _webhooks(self) -> None:
        self.app.webhooks.setup(retry=Retry.fixed("1h", attempts=2))
        secret = "whsec_" + "CANARY00" * 4
        made = self.app.webhooks.subscribe(
            f"https://localhost/hook?token={CANARY}", ["*"], secret=secret
        )
        self.endpoint = made.endpoint.id
        self.app.webhooks.rotate(self.endpoint, secret="whsec_" + "00CANARY" * 4)
        self.jobs.append(self.app.webhooks.publish("leak", DATA, key="k").id)

    def _over_http(self) -> None:
        web = self.web
        [claim] = web.claim("http", worker="w")
        beat = {"token": claim["token"], "progress": {"message": TEXT}, "log": TEXT, "checkpoint": DATA}
        assert web.api("POST", f"/jobs/{claim['id']}/heartbeat", beat).status_code == 200
        error = {"type": "E", "message": TEXT, "traceback": f"{TEXT}\n{DSN}"}
        failed = {"token": claim["token"], "is_final": True, "error": error}
        assert web.api("POST", f"/jobs/{claim['id']}/fail", failed).status_code == 200
        body = {"task": "leak.returns", "args": DATA, "headers": {"cookie": CANARY}, "delay": "1h"}
        self.jobs.append(web.api("POST", "/jobs", body).json()["id"])
        web.api("POST", f"/jobs/{self.jobs[-1]}/cancel", {"reason": TEXT})
        web.api("POST", "/queues/other/pause", {"reason": TEXT})
        replayed = web.api("POST", "/dead:replay", {"task": "leak.dies", "dry_run": True, "args": DATA})
        self.operation = replayed.json()["id"]


@pytest.fixture
def filled(make_web: Callable[..., Web], runner: LoopThread) -> Iterator[Filled]:
    web = make_web("sqlite")
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    web.app.use(OpenTelemetry(tracer_provider=provider, settle_spans=True, receive_spans=True))
    # A handler of the application, with the formatter that Python gives it.
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    loggers = [logging.getLogger(name) for name in ("winch", "winch.job")]
    before = [logger.level for logger in loggers]
    loggers[0].addHandler(handler)
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
    yield Filled(web, stream, exporter)
    loggers[0].removeHandler(handler)
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


def _paths(filled: Filled) -> Iterator[str]:
    groups = [one["group"] for one in filled.web.api("GET", "/dead/groups").json()["groups"]]
    workers = [one["id"] for one in filled.web.api("GET", "/workers?all=true").json()["workers"]]
    values = {"queue": ["default", "other"], "name": ["leak"], "group": groups}
    for route in ROUTES:
        if route.changes or route.path.startswith("/static"):
            continue
        ids = filled.jobs
        if "/flows/" in route.path:
            ids = [filled.flow]
        elif "/webhooks/" in route.path:
            ids = [filled.endpoint]
        elif "/operations/" in route.path:
            ids = [filled.operation]
        elif "/workers/" in route.path:
            ids = workers[:3]
        found = [route.path]
        for name, those in {**values, "id": ids}.items():
            if f"{{{name}}}" in route.path:
                found = [path.replace(f"{{{name}}}", value) for path in found for value in those]
        yield from found
    yield from ("/jobs/new?task=leak.dies", "/jobs?state=dead", "/api/v1/workers?all=true")


def test_no_answer_and_no_page_shows_a_secret(filled: Filled, runner: LoopThread) -> None:
    leaks, count = [], 0
    for path in _paths(filled):
        headers = {"host": "localhost", "accept": "text/html"}
        answer = runner.run(call_asgi(filled.web.asgi, "GET", path, headers, b""))
        count += 1
        # A producer and a worker get what they stored: the result as it is, under a right of its own.
        if path.endswith("/result"):
            continue
        wanted = 303 if path == "/preferences" else 200  # it leads back
        assert answer.status == wanted, (path, answer.text[:500])
        if is_leaked(answer.text):
            leaks.append(f"{path}: {leak(answer.text)}")
    assert leaks == [], "\n".join(leaks)
    assert count > 100


def test_the_log_of_a_webhook_has_its_failure(filled: Filled) -> None:
    [line] = filled.app.webhooks.deliveries(filled.endpoint)
    assert line.status is None
    assert "localhost" in (line.error or "")


def test_no_search_spells_out_a_secret(filled: Filled) -> None:
    """A search must not confirm a guess made letter by letter."""
    for part in (
        CANARY,
        CANARY[:3],
        CANARY.lower(),
        "CANARY",
        CANARY[-4:],
        f"={CANARY[:2]}",
    ):
        for query in (part, f'"{part}"', f"error:{part}", f"args.password:{part}", f"args.deep:{part}"):
            for where in ("/api/v1/jobs", "/jobs.csv", "/jobs.ndjson", "/jobs"):
                answer = filled.web.ask("GET", where, params={"q": query})
                assert answer.status_code == 200, answer.text
                if where.startswith("/api"):
                    assert answer.json()["jobs"] == [], query
                elif where == "/jobs.ndjson":
                    assert answer.text == "", query
                elif where == "/jobs":
                    assert "No job matches" in answer.text, query
        term = filled.web.api("GET", "/jobs", params={"tag": f"token={part}"})
        assert part == CANARY or term.json()["jobs"] == []
    shown = filled.web.api("GET", "/jobs", params={"q": "error:login"}).json()["jobs"]
    assert shown, "what is shown is found"


COMMANDS = (["jobs", "list"], ["dead", "list"], ["queues", "list"], ["schedules", "list"],
            ["schedules", "show", "leak"], ["flows", "list"], ["outbox", "list"],
            ["outbox", "list", "--state", "dead"], ["workers", "list", "--all"], ["limits", "list"],
            ["stats"], ["top"], ["health"], ["doctor"], ["config"], ["token", "list"],
            ["audit"], ["webhooks", "list"])  # fmt: skip


def test_no_command_prints_a_secret(filled: Filled, capfd: pytest.CaptureFixture[str]) -> None:
    url = filled.app.settings.url
    commands = [*COMMANDS, ["flows", "show", filled.flow], ["webhooks", "show", filled.endpoint]]
    for job in filled.jobs:
        commands += [["jobs", "show", job], ["why", job]]
    capfd.readouterr()
    for command in commands:
        for more in ([], ["--json"]):
            run_command([*command, *more, "--url", str(url)])
            out, err = capfd.readouterr()
            assert "Traceback" not in err, (command, err)
            assert "No such" not in err, (command, err)
            assert not is_leaked(out + err), f"winch {' '.join([*command, *more])}: {leak(out + err)}"
    for command in (["jobs", "list"], ["health"], ["doctor"], ["config"], ["-vv", "jobs", "list"]):
        unreachable = f"postgresql://shop:{CANARY}@127.0.0.1:1/shop"
        run_command([*command, "--url", unreachable])
        out, err = capfd.readouterr()
        assert out + err
        assert not is_leaked(out + err), command


def test_no_log_line_and_no_trace_holds_a_secret(filled: Filled) -> None:
    text = filled.log.getvalue()
    assert "login failed: password=***" in text
    assert not is_leaked(text)
    spans = filled.spans.get_finished_spans()
    assert any(span.events for span in spans)
    for span in spans:
        assert not is_leaked(span.to_json()), span.to_json()


def test_no_setting_is_shown_with_its_secret(
    make_web: Callable[..., Web], monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = f"https://u:{CANARY}@hooks.example.org/{CANARY}"
    monkeypatch.setenv("WINCH_ALERT_WEBHOOK", hook)
    monkeypatch.setenv("WINCH_ALERT_SECRET", CANARY)
    web = make_web("memory")
    assert web.app.settings.alert_webhook == hook
    page = web.ask("GET", "/settings", headers={"accept": "text/html"})
    assert "alert_webhook" in page.text
    assert not is_leaked(page.text)


def test_errors_are_masked_before_they_are_stored(filled: Filled) -> None:
    """A reader of the store finds no secret in an error, nor do programs that read jobs."""
    for job_id in filled.jobs:
        record = filled.app.jobs.get(job_id).record
        failures = [record.error, *(entry.error for entry in record.history)]
        for failure in failures:
            if failure is not None:
                assert not is_leaked(json.dumps([failure.message, failure.traceback])), failure

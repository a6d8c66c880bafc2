"""OpenTelemetry: spans and metrics by their names, linked from the producer to the worker."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from winch import App, ConfigError, Retry, RetryAfter, Snooze, StorageUnavailable, chain
from winch.cli.run.worker import formatter
from winch.integrations.otel import OpenTelemetry
from winch.testing import virtual

DURATION = "messaging.client.operation.duration"


class Seen:
    """The spans and metrics of an app."""

    def __init__(self, **options: Any) -> None:
        self._spans = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._spans))
        self._reader = InMemoryMetricReader()
        self.tracer = provider.get_tracer("test")
        self.hook = OpenTelemetry(
            tracer_provider=provider, meter_provider=MeterProvider([self._reader]), **options
        )
        self.app = App("memory://")
        self.app.use(self.hook)

    def spans(self, word: str) -> list[ReadableSpan]:
        return [span for span in self._spans.get_finished_spans() if span.name.split()[0] == word]

    def metrics(self) -> dict[str, list[tuple[dict[str, Any], Any]]]:
        data = self._reader.get_metrics_data()
        assert data is not None
        return {
            metric.name: [
                (dict(point.attributes or {}), getattr(point, "value", getattr(point, "count", None)))
                for point in metric.data.data_points
            ]
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def seen() -> Seen:
    return Seen()


def test_an_enqueue_and_its_attempt_are_two_linked_spans(seen: Seen) -> None:
    captured: list[Any] = []

    @seen.app.task(name="shop.mail", queue="mail")
    def mail(to: str) -> None:
        captured.append(trace.get_current_span().get_span_context())
        captured.append(baggage.get_baggage("shop"))

    with virtual(seen.app) as world:
        token = context.attach(baggage.set_baggage("shop", "7"))
        with seen.tracer.start_as_current_span("request"):
            job = mail.using(priority=10).enqueue("CANARY")
        context.detach(token)
        world.run_all()
    [request] = seen.spans("request")
    [send] = seen.spans("send")
    [process] = seen.spans("process")
    assert (send.name, send.kind) == ("send mail", SpanKind.PRODUCER)
    assert send.parent is not None
    assert request.context is not None
    assert send.parent.span_id == request.context.span_id
    facts = dict(send.attributes or {})
    assert facts == {
        "messaging.system": "winch",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "mail",
        "messaging.message.id": job.id,
        "messaging.winch.task.name": "shop.mail",
        "messaging.winch.job.priority": 10,
        "messaging.winch.job.max_attempts": 12,
    }
    assert (process.name, process.kind) == ("process mail", SpanKind.CONSUMER)
    assert process.parent is None
    assert send.context is not None
    assert process.context is not None
    assert [link.context.span_id for link in process.links] == [send.context.span_id]
    assert process.context.trace_id != send.context.trace_id
    facts = dict(process.attributes or {})
    assert facts["messaging.winch.job.attempt"] == 1
    assert facts["messaging.operation.type"] == "process"
    assert facts["messaging.winch.job.queue_latency"] == 0.0
    # The handler ran in a thread: its current span is the attempt's, and the baggage came along.
    assert [captured[0].span_id, captured[1]] == [process.context.span_id, "7"]
    assert "CANARY" not in process.to_json() + send.to_json()


@pytest.mark.parametrize("mode, links, is_child", [("child", 0, True), ("both", 1, True)])
def test_an_attempt_may_be_the_enqueues_child(mode: Any, links: int, is_child: bool) -> None:
    seen = Seen(trace_mode=mode)

    @seen.app.task
    async def add(a: int) -> int:
        return a

    with virtual(seen.app) as world:
        add.enqueue(1)
        world.run_all()
    [send], [process] = seen.spans("send"), seen.spans("process")
    assert len(process.links) == links
    assert (process.parent is not None and process.parent.span_id == send.context.span_id) is is_child
    assert process.context.trace_id == send.context.trace_id
    with pytest.raises(ConfigError, match="trace_mode must be one of link, child, both"):
        OpenTelemetry(trace_mode="parent")  # type: ignore[arg-type]


def test_many_jobs_are_a_send_that_links_to_their_creation(seen: Seen) -> None:
    @seen.app.task
    def add(a: int) -> int:
        return a

    with virtual(seen.app) as world:
        seen.app.enqueue_many(add.bind(n) for n in range(3))
        world.run_all()
    created, [send] = seen.spans("create"), seen.spans("send")
    assert [span.kind for span in (*created, send)] == [SpanKind.PRODUCER] * 3 + [SpanKind.CLIENT]
    assert (send.attributes or {})["messaging.batch.message_count"] == 3
    ids = [span.context.span_id for span in created]
    assert [link.context.span_id for link in send.links] == ids
    assert sorted(span.links[0].context.span_id for span in seen.spans("process")) == sorted(ids)
    few = Seen(create_spans=False)
    again = few.app.task(add.fn)
    with virtual(few.app):
        few.app.enqueue_many(again.bind(n) for n in range(3))
    assert [len(few.spans(word)) for word in ("create", "send")] == [0, 1]


def task_of(span: ReadableSpan) -> str:
    return str((span.attributes or {})["messaging.winch.task.name"]).rpartition(".")[2]


def test_failures_record_their_type_and_a_chosen_outcome_is_no_failure(seen: Seen) -> None:
    @seen.app.task(retry=Retry.fixed("1s", attempts=2))
    def fails() -> None:
        raise ValueError("no")

    @seen.app.task(retry=Retry.fixed("1s", attempts=1))
    def later() -> None:
        raise RetryAfter("1s")

    slept: list[int] = []

    @seen.app.task
    def snoozes() -> None:
        if not slept:
            slept.append(1)
            raise Snooze("1s")

    with virtual(seen.app) as world:
        for task in (fails, later, snoozes):
            task.enqueue()
        world.advance("1m")
    spans = {
        (task_of(span), span.status.status_code): dict(span.attributes or {})
        for span in seen.spans("process")
    }
    assert spans["fails", StatusCode.ERROR]["error.type"] == "ValueError"
    assert spans["later", StatusCode.ERROR]["error.type"] == "winch.RetryAfter"
    assert ("snoozes", StatusCode.ERROR) not in spans
    assert ("snoozes", StatusCode.UNSET) in spans
    assert len(seen.spans("process")) == 2 + 1 + 2


def test_a_flow_is_a_conversation(seen: Seen) -> None:
    @seen.app.task
    def add(a: int, b: int) -> int:
        return a + b

    with virtual(seen.app) as world:
        made = chain(add.bind(1, 2), add.partial(b=3)).enqueue()
        world.run_all()
    about = {
        (span.attributes or {})["messaging.message.conversation_id"]
        for span in (*seen.spans("create"), *seen.spans("process"))
    }
    assert about == {made.id}
    assert len(seen.spans("process")) == 2


def test_an_enqueue_that_fails_ends_its_span(seen: Seen) -> None:
    @seen.app.task
    def add(a: int) -> int:
        return a

    with virtual(seen.app) as world:
        add.enqueue(1)
        world.refuse("enqueue", times=100)
        with pytest.raises(StorageUnavailable):
            add.enqueue(2)
    good, bad = seen.spans("send")
    assert (good.status.status_code, bad.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)


def test_metrics_have_the_names_of_the_conventions(seen: Seen) -> None:
    @seen.app.task(name="add", retry=Retry.fixed("1s", attempts=1))
    def add(a: int) -> int:
        return 1 // a

    seen.hook.observe(seen.app)
    with virtual(seen.app) as world:
        seen.app.enqueue_many(add.using(queue="low").bind(n) for n in (1, 2))
        add.enqueue(0)
        depth = seen.metrics()
        world.run_all()
        found = seen.metrics()
    sends = {p["messaging.destination.name"]: n for p, n in found["messaging.client.sent.messages"]}
    assert sends == {"low": 2, "default": 1}
    assert sum(n for _, n in found["messaging.client.consumed.messages"]) == 3
    sent = [n for p, n in found[DURATION] if p["messaging.operation.type"] == "send"]
    assert sum(sent) == 2
    ran = found["messaging.process.duration"]
    assert sum(n for _, n in ran) == 3
    assert [p.get("error.type") for p, _ in ran if p["messaging.destination.name"] == "default"] == [
        "ZeroDivisionError"
    ]
    waits = {
        p["messaging.destination.name"]: n
        for p, n in depth["winch.queue.depth"]
        if p["winch.job.state"] == "ready"
    }
    assert waits == {"low": 2, "default": 1}
    assert {"winch.queue.oldest_age", "winch.worker.slots"} <= set(found)


def test_claims_and_settlements_are_spans_if_enabled(seen: Seen) -> None:
    traced = Seen(receive_spans=True, settle_spans=True)
    for one in (seen, traced):

        @one.app.task(name="shop.add", retry=Retry.fixed("1s", attempts=2))
        def add(a: int) -> None:
            if a < 0:
                raise ValueError(a)

        with virtual(one.app) as world:
            add.enqueue(1)
            world.run_all()
            add.enqueue(-1)
            world.run_all()
    assert not seen.spans("receive") + seen.spans("ack") + seen.spans("nack")
    kinds = {point["messaging.operation.type"] for point, _ in seen.metrics()[DURATION]}
    assert kinds == {"send", "receive", "settle"}
    good, bad = traced.spans("send")
    [ack] = traced.spans("ack")
    assert (ack.name, ack.kind) == ("ack default", SpanKind.CLIENT)
    assert dict(ack.attributes or {})["messaging.operation.type"] == "settle"
    assert good.context is not None
    assert [link.context.span_id for link in ack.links] == [good.context.span_id]
    assert bad.context is not None
    for span in traced.spans("nack"):
        assert [link.context.span_id for link in span.links] == [bad.context.span_id]
    assert (len(traced.spans("nack")), len(traced.spans("receive"))) == (2, 3)
    assert traced.spans("receive")[0].attributes == {
        "messaging.system": "winch",
        "messaging.operation.name": "receive",
        "messaging.operation.type": "receive",
        "messaging.destination.name": "default",
        "messaging.batch.message_count": 1,
    }


APP = """
import json, os
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from winch import App
from winch.cli.run.worker import formatter
from winch.integrations.otel import OpenTelemetry

class ToFile(SpanExporter):
    def export(self, spans):
        with open("spans.jsonl", "a") as file:
            for span in spans:
                links = [format(link.context.span_id, "x") for link in span.links]
                parent = None if span.parent is None else format(span.parent.span_id, "x")
                record = {"name": span.name, "pid": os.getpid(), "links": links, "parent": parent,
                        "id": format(span.context.span_id, "x")}
                file.write(json.dumps(record) + chr(10))
        return SpanExportResult.SUCCESS

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ToFile()))
trace.set_tracer_provider(provider)
app = App("sqlite:///winch.db")
app.use(OpenTelemetry(receive_spans=True, settle_spans=True))

@app.task(queue="cell", isolate="process")
def alone() -> int:
    with trace.get_tracer("app").start_as_current_span("inner"):
        return os.getpid()

@app.task(queue="thread")
def threaded() -> int:
    alone.enqueue()
    return os.getpid()

if __name__ == "__main__":
    threaded.enqueue()
"""


def test_spans_are_linked_across_three_processes(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, check=True)
    command = [sys.executable, "-m", "winch", "worker", "-A", "shop:app", "-Q", "thread,cell", "--burst"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    spans = [json.loads(line) for line in (tmp_path / "spans.jsonl").read_text().splitlines()]
    by_name = {span["name"]: span for span in spans}
    run = {f"{word} {queue}" for word in ("receive", "process", "ack") for queue in ("thread", "cell")}
    assert set(by_name) == {"send thread", "send cell", "inner", *run}
    for queue in ("thread", "cell"):
        for word in ("receive", "ack"):
            assert by_name[f"{word} {queue}"]["links"] == [by_name[f"send {queue}"]["id"]]
        assert by_name[f"receive {queue}"]["pid"] == by_name[f"ack {queue}"]["pid"]
    assert by_name["process thread"]["links"] == [by_name["send thread"]["id"]]
    assert by_name["send cell"]["parent"] == by_name["process thread"]["id"]
    assert by_name["process cell"]["links"] == [by_name["send cell"]["id"]]
    assert by_name["inner"]["parent"] == by_name["process cell"]["id"]
    pids = {by_name[name]["pid"] for name in ("send thread", "process thread", "process cell")}
    assert len(pids) == 3


def test_a_log_line_in_json_names_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINCH_LOG_STYLE", "json")
    record = logging.LogRecord("winch", logging.WARNING, "", 0, "password=%s\nnext", ("CANARY",), None)
    line = json.loads(formatter().format(record))
    assert (line["level"], line["logger"]) == ("warning", "winch")
    assert "CANARY" not in line["message"]
    assert "trace_id" not in line
    with Seen().tracer.start_as_current_span("here") as span:
        line = formatter().format(record)
    assert "\n" not in line
    assert json.loads(line)["span_id"] == format(span.get_span_context().span_id, "016x")

"""structlog and OpenTelemetry's logs: each line of a handler has its job."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
import structlog
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.trace import TracerProvider

from winch import App, ConfigError, Retry
from winch.integrations.otel import OpenTelemetry
from winch.integrations.otel_logs import OpenTelemetryLogs
from winch.integrations.structlog import Structlog
from winch.testing import virtual


@pytest.fixture
def lines() -> Iterator[list[MutableMapping[str, Any]]]:
    kept: list[MutableMapping[str, Any]] = []

    def keep(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        kept.append(event)
        raise structlog.DropEvent

    structlog.configure(processors=[structlog.contextvars.merge_contextvars, keep])
    yield kept
    structlog.contextvars.clear_contextvars()
    structlog.reset_defaults()


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_lines_of_a_handler_have_its_job_and_what_the_producer_carries(
    kind: str, lines: list[MutableMapping[str, Any]]
) -> None:
    app = App("memory://")
    app.use(Structlog(carry=("request_id", "user_id")))
    log = structlog.get_logger()
    tries: list[int] = []

    def work(number: int) -> None:
        log.info("charged", number=number)
        tries.append(number)
        if len(tries) == 1:
            raise ValueError

    if kind == "plain":

        @app.task(name="pay", queue="money", retry=Retry.exponential("1s", attempts=2))
        def pay(number: int) -> None:
            work(number)

    else:

        @app.task(name="pay", queue="money", retry=Retry.exponential("1s", attempts=2))
        async def apay(number: int) -> None:
            work(number)

    with virtual(app) as world:
        with structlog.contextvars.bound_contextvars(request_id="r-7", user_id=8, secret="CANARY"):
            job = app.tasks.get("pay").enqueue(1)
        assert job.refresh().record.headers == {"log.request_id": "r-7", "log.user_id": "8"}
        world.run_all()
    log.info("outside")
    own = {"job_id": job.id, "queue": "money", "task": "pay", "request_id": "r-7", "user_id": "8"}
    assert lines[0] == {"event": "charged", "number": 1, "attempt": 1, **own}
    assert lines[1] == {"event": "charged", "number": 1, "attempt": 2, **own}
    assert lines[2] == {"event": "outside"}


def test_headers_that_are_not_carried_bind_nothing(lines: list[MutableMapping[str, Any]]) -> None:
    app = App("memory://")
    app.use(Structlog())

    @app.task(name="pay")
    def pay() -> None:
        structlog.get_logger().info("here")

    with virtual(app) as world:
        job = pay.using(headers={"log.job_id": "forged", "log.user": "x"}).enqueue()
        world.run_all()
    assert lines == [
        {"event": "here", "job_id": job.id, "attempt": 1, "queue": "default", "task": "pay"}
    ]
    for wrong in ("request_id", ["job_id"]):
        with pytest.raises(ConfigError):
            Structlog(carry=wrong)


def test_log_records_reach_opentelemetry_with_their_job_and_span() -> None:
    from opentelemetry.sdk._logs import LoggingHandler

    exporter = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]  # the SDK's own
    provider = LoggerProvider()
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer ones have it in a package of their own
        handler = LoggingHandler(logger_provider=provider)
    log = logging.getLogger("shop.pay")
    log.addHandler(handler)
    app = App("memory://")
    app.use(OpenTelemetry(tracer_provider=TracerProvider()))
    app.use(OpenTelemetryLogs())
    before = logging.getLogRecordFactory()
    app.use(OpenTelemetryLogs())  # a second one adds nothing
    assert logging.getLogRecordFactory() is before

    @app.task(name="pay", queue="money")
    def pay(card: str) -> None:
        log.warning("charged %d", 3)

    try:
        with virtual(app) as world:
            job = pay.enqueue("CANARY")
            world.run_all()
        log.warning("outside")
    finally:
        log.removeHandler(handler)
    inside, outside = (one.log_record for one in exporter.get_finished_logs())
    facts = dict(inside.attributes or {})
    assert inside.body == "charged 3"
    assert {key: value for key, value in facts.items() if key.startswith("messaging.")} == {
        "messaging.system": "winch",
        "messaging.destination.name": "money",
        "messaging.message.id": job.id,
        "messaging.winch.task.name": "pay",
        "messaging.winch.job.attempt": 1,
    }
    assert inside.trace_id
    assert "CANARY" not in str(facts)
    assert not any(key.startswith("messaging.") for key in (outside.attributes or {}))

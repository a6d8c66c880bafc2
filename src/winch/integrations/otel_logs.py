"""The job in every log record of a handler, under the names of OpenTelemetry.

    logging.getLogger().addHandler(LoggingHandler(logger_provider=provider))
    app.use(winch.integrations.otel_logs.OpenTelemetryLogs())

OpenTelemetry's logging handler exports the attributes of a record. Inside an attempt each record of the
standard library's logging gets `messaging.message.id`, `messaging.destination.name` and the task and the
attempt under `messaging.winch.…`, as the spans of `winch.integrations.otel` have them. With both in use
a record also has the ids of the attempt's span. This module needs no package: other handlers see the
attributes too.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any

from winch import Context, Middleware

_facts: ContextVar[Mapping[str, str | int] | None] = ContextVar("winch log facts", default=None)
_installing = threading.Lock()


class OpenTelemetryLogs(Middleware):
    """Adds the job to the log records of its handler: `app.use(OpenTelemetryLogs())`."""

    def __init__(self) -> None:
        _install()

    async def run(self, ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Run the attempt; records that it logs have the attributes of the job."""
        token = _facts.set(
            {
                "messaging.system": "winch",
                "messaging.destination.name": ctx.queue,
                "messaging.message.id": ctx.job_id,
                "messaging.winch.task.name": ctx.task,
                "messaging.winch.job.attempt": ctx.attempt,
            }
        )
        try:
            return await call_next()
        finally:
            _facts.reset(token)


def _install() -> None:
    """Have the factory of records add the attributes, once in a process."""
    with _installing:
        inner = logging.getLogRecordFactory()
        if getattr(inner, "winch_facts", False):
            return

        def factory(*args: Any, **kwargs: Any) -> logging.LogRecord:
            record = inner(*args, **kwargs)
            if (facts := _facts.get()) is not None:
                record.__dict__.update(facts)
            return record

        factory.winch_facts = True  # type: ignore[attr-defined]  # how it is recognised
        logging.setLogRecordFactory(factory)


__all__ = ["OpenTelemetryLogs"]

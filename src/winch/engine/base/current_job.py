"""The job whose handler runs here; set for handlers that take their Context."""

from __future__ import annotations

from contextvars import ContextVar

current_job: ContextVar[str | None] = ContextVar("winch_job", default=None)

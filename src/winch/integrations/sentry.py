"""Failures of jobs in Sentry, with the job as context.

    sentry_sdk.init(dsn)
    app.use(winch.integrations.sentry.Sentry())

Each attempt runs in an isolation scope of its own. A failed attempt makes one event, with the tags
`winch.task`, `winch.queue` and `winch.job_id`, and the context `winch` with the attempt. Arguments are
never sent: frames go without their local variables, and messages without recognisable secrets.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import sentry_sdk
from sentry_sdk.integrations.logging import ignore_logger
from sentry_sdk.utils import event_from_exception

from winch import Cancel, ConfigError, Context, Middleware, RetryAfter, Snooze
from winch.errors import JobCancelled
from winch.types import Directive, mask_text

WHEN = ("failed", "dead")
log: logging.Logger = logging.getLogger("winch")


class Sentry(Middleware):
    """Sends the failures of jobs to Sentry: `app.use(Sentry())`.

    - `when`: `"failed"` for an event of each failed attempt, `"dead"` only for the attempt after which
      the job has none left.
    - `with_locals`: send the local variables of frames too. They hold the arguments of the handler.
    - `ignore`: types of exceptions that make no event.

    `Snooze`, `Cancel` and a cancelled job are no failures. `RetryAfter` counts when it was the last
    attempt.
    """

    def __init__(
        self,
        *,
        when: Literal["failed", "dead"] = "failed",
        with_locals: bool = False,
        ignore: tuple[type[BaseException], ...] = (),
    ) -> None:
        if when not in WHEN:
            raise ConfigError(f"when must be one of {', '.join(WHEN)}, got {when!r}")
        self._when = when
        self._with_locals = with_locals
        self._ignore = (Snooze, Cancel, JobCancelled, asyncio.CancelledError, *ignore)
        # The worker logs what it does about a failure; the failure itself is sent here, once.
        ignore_logger("winch")

    async def run(self, ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Run the attempt in a scope with the job as context, and send its failure."""
        with sentry_sdk.isolation_scope() as scope:
            scope.set_transaction_name(ctx.task, source="task")
            scope.set_tag("winch.task", ctx.task)
            scope.set_tag("winch.queue", ctx.queue)
            scope.set_tag("winch.job_id", ctx.job_id)
            scope.set_context(
                "winch",
                {
                    "job_id": ctx.job_id,
                    "task": ctx.task,
                    "queue": ctx.queue,
                    "attempt": ctx.attempt,
                    "worker": ctx.worker,
                },
            )
            try:
                value = await call_next()
            except BaseException as error:
                self._failed(ctx, error)
                raise
            if isinstance(value, Directive):
                self._failed(ctx, value)
            return value

    def _failed(self, ctx: Context, error: BaseException) -> None:
        try:
            if self._is_sent(ctx, error):
                self._send(ctx, error)
        except Exception:  # what goes wrong here must not replace the failure of the job
            log.exception("job %s: its failure was not sent to Sentry", ctx.job_id)

    def _send(self, ctx: Context, error: BaseException) -> None:
        client = sentry_sdk.get_client()
        if not client.is_active():
            return
        event, hint = event_from_exception(
            error,
            client_options={**client.options, "include_local_variables": self._with_locals},
            mechanism={"type": "winch", "handled": False},
        )
        found: Any = event
        for one in found["exception"]["values"]:
            if one.get("value"):
                one["value"] = mask_text(str(one["value"]))
            for frame in (one.get("stacktrace") or {}).get("frames", ()):
                if not self._with_locals:
                    frame.pop("vars", None)
        found["extra"] = {**found.get("extra", {}), "winch.gives_up": ctx.gives_up(error)}
        sentry_sdk.capture_event(event, hint=hint)

    def _is_sent(self, ctx: Context, error: BaseException) -> bool:
        if isinstance(error, self._ignore):
            return False
        if not isinstance(error, Exception | Directive):
            return False  # a workflow that sleeps, or a worker that stops
        if self._when == "dead" or isinstance(error, RetryAfter):
            return ctx.gives_up(error)
        return True


__all__ = ["Sentry"]

"""The job in every line that structlog writes inside a handler.

    structlog.configure(processors=[structlog.contextvars.merge_contextvars, …])
    app.use(winch.integrations.structlog.Structlog(carry=("request_id", "user_id")))

Lines inside an attempt have `job_id`, `attempt`, `queue` and `task`. With `carry`, values that the
producer has bound travel with the job in its headers, and the handler's lines have them too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from structlog import contextvars

from winch import ConfigError, Context, Middleware
from winch.types import NewJob

HEADER = "log."
"""What the names of the headers begin with that carry the producer's values."""
_OWN = ("job_id", "attempt", "queue", "task")


class Structlog(Middleware):
    """Binds the job to structlog's context: `app.use(Structlog())`.

    `carry` names values of the producer's context that go along with the job, such as the id of the
    request. They are stored as text in the headers of the job, so name no secrets.
    """

    def __init__(self, *, carry: Sequence[str] = ()) -> None:
        if isinstance(carry, str):
            raise ConfigError(f"carry takes a list of names, got the text {carry!r}")
        for name in carry:
            if name in _OWN:
                raise ConfigError(f"carry cannot name {name!r}: each job has its own")
        self._carry = tuple(carry)

    def enqueue(self, job: NewJob) -> NewJob:
        """Put the carried values into the headers of the job."""
        bound = contextvars.get_contextvars() if self._carry else {}
        values = {f"{HEADER}{name}": str(bound[name]) for name in self._carry if name in bound}
        if not values:
            return job
        return msgspec.structs.replace(job, headers={**values, **job.headers})

    async def run(self, ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Run the attempt with the job in structlog's context."""
        values: dict[str, Any] = {
            name.removeprefix(HEADER): value
            for name, value in ctx.headers.items()
            if name.startswith(HEADER) and name.removeprefix(HEADER) in self._carry
        }
        values |= {
            "job_id": ctx.job_id,
            "attempt": ctx.attempt,
            "queue": ctx.queue,
            "task": ctx.task,
        }
        with contextvars.bound_contextvars(**values):
            return await call_next()


__all__ = ["HEADER", "Structlog"]

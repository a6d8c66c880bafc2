"""Hooks around enqueue and around each run, all of them no-ops: override what you need."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from winch.core.job import Claim
    from winch.engine.tasks.context import Context
    from winch.storage.params import Finish, NewJob


class Middleware:
    """Hooks around every enqueue and every attempt; pass an instance to `app.use`.

        class Timing(winch.Middleware):
            async def run(self, ctx, call_next):
                started = time.monotonic()
                try:
                    return await call_next()
                finally:
                    metrics.observe(ctx.task, time.monotonic() - started)

    The first instance that you pass is the outermost.
    """

    def enqueue(self, job: NewJob) -> NewJob:
        """Called with the job before it is stored. Return it, or a copy with other headers, tags,
        queue and so on.
        """
        return job

    def enqueue_all(self, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
        """Called with all jobs of one call before they are stored. By default it calls `enqueue` for
        each.
        """
        return [self.enqueue(job) for job in jobs]

    def stored(self, jobs: Sequence[NewJob], error: BaseException | None) -> None:
        """Called after the store has accepted these jobs, or has failed with `error`.

        With `conn=` the jobs exist only after the caller's transaction commits. What this hook,
        `claimed` or `settled` raises is logged, once a minute, and changes nothing.
        """

    def claimed(self, claims: Sequence[Claim], seconds: float) -> None:
        """Called after a worker has claimed these jobs, with the time that the store took."""

    def settled(self, outcomes: Sequence[Finish], seconds: float) -> None:
        """Called after the store has recorded how these attempts ended, with the time that it took."""

    async def run(self, ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Called around each attempt: `return await call_next()`. An exception of its own fails the
        attempt.
        """
        return await call_next()

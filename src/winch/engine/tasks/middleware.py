"""Hooks around enqueue and around each run, all of them no-ops: override what you need."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from winch.core.job import Claim
    from winch.engine.tasks.context import Context
    from winch.storage.params import Finish, NewJob


class Middleware:
    """Give an instance to `app.use(…)`. The first one used is the outermost."""

    def enqueue(self, job: NewJob) -> NewJob:
        """The job about to be stored; return it, or a changed copy (headers, tags, queue, …)."""
        return job

    def enqueue_all(self, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
        """The jobs of one call, which are stored together; unless overridden, `enqueue` for each."""
        return [self.enqueue(job) for job in jobs]

    def stored(self, jobs: Sequence[NewJob], error: BaseException | None) -> None:
        """After `enqueue_all`: the store has taken these jobs, or `error` kept it from that. With
        `conn=` they are there only once the caller's transaction commits."""

    def claimed(self, claims: Sequence[Claim], seconds: float) -> None:
        """A worker has taken these jobs to run; the store took so long."""

    def settled(self, outcomes: Sequence[Finish], seconds: float) -> None:
        """The store has answered what became of these attempts, and took so long."""

    async def run(self, ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Around one attempt of any kind of task: `return await call_next()`. What it raises instead of
        the handler counts as the handler's."""
        return await call_next()

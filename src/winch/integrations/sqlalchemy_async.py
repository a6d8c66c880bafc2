"""Jobs that belong to an async SQLAlchemy session: they commit with it, and no call can leave it out.

    from winch.integrations.sqlalchemy_async import AsyncJobSession

    async with AsyncJobSession(engine) as session, session.begin():
        session.add(Order(id=7))
        await session.jobs.aenqueue(send_receipt, 7)

It needs SQLAlchemy's extra `asyncio` (`pip install 'sqlalchemy[asyncio]'`), and is a module of its own
for that reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ParamSpec, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session

from winch import Job, Task
from winch.integrations.sqlalchemy import JobSession, through_session, with_session
from winch.types import Bound, Using

P = ParamSpec("P")
R = TypeVar("R")


class AsyncSessionJobs:
    """`SessionJobs` for an async session.

    jobs = AsyncSessionJobs(session)
    await jobs.aenqueue(send_receipt, 7)
    """

    def __init__(self, session: AsyncSession | async_scoped_session[Any] | AsyncConnection) -> None:
        self._session = session

    async def aenqueue(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Store a job of this task in the transaction of the session."""
        return await self._one(task.bind(*args, **kwargs))

    async def aenqueue_using(self, using: Using[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """`aenqueue` for a task with options: `jobs.aenqueue_using(send.using(delay="5m"), 7)`."""
        return await self._one(using.bind(*args, **kwargs))

    async def aenqueue_many(self, calls: Iterable[Bound[Any]]) -> list[Job[Any]]:
        """Store many jobs in the transaction of the session."""
        found = list(calls)
        if not found:
            return []
        with through_session():
            return await found[0].task.client.aenqueue_many(found, self._session)

    async def _one(self, call: Bound[R]) -> Job[R]:
        with through_session():
            return await call.task.client.aenqueue(with_session(call, self._session))


class AsyncJobSession(AsyncSession):
    """An async session that can enqueue: `async_sessionmaker(engine, class_=AsyncJobSession)`.

    async with AsyncJobSession(engine) as session, session.begin():
        await session.jobs.aenqueue(send_receipt, 7)
    """

    sync_session_class: type[Session] = JobSession

    @property
    def jobs(self) -> AsyncSessionJobs:
        """Enqueues in the transaction of this session."""
        return AsyncSessionJobs(self)


__all__ = ["AsyncJobSession", "AsyncSessionJobs"]

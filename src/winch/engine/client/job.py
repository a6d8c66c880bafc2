"""`Job`: a handle on one stored job."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

if TYPE_CHECKING:
    from winch.core.job import JobRecord
    from winch.core.lifecycle import JobState
    from winch.core.values.duration import Duration
    from winch.engine.client.client import Client

R = TypeVar("R")


class Job(msgspec.Struct, Generic[R], eq=False, gc=False):
    """One stored job. `state` is as last read; `refresh()` reads it again.

    `is_new` is False when the enqueue that gave this handle met a job of the same given id, or one that
    holds its unique key. `is_shed` is True when its queue was full and the job was dropped.
    """

    _client: Client
    id: str
    _record: JobRecord | None = None
    is_new: bool = True
    is_shed: bool = False

    @property
    def record(self) -> JobRecord:
        """All that the store knows about the job, as last read."""
        if self._record is None:
            self.refresh()
        return self._record  # type: ignore[return-value]  # refresh has set it or raised

    @property
    def state(self) -> JobState:
        return self.record.state

    def refresh(self) -> Job[R]:
        """Read the job again; raises JobNotFound when it is gone."""
        self._record = self._client.get(self.id)
        return self

    async def arefresh(self) -> Job[R]:
        self._record = await self._client.aget(self.id)
        return self

    def result(self, timeout: Duration | None = None) -> R:
        """Wait until the job is final and return what its handler returned, as the type that the task's
        return annotation names.

        Raises JobFailed when it is dead or cancelled, TimeoutError when it takes longer, ResultMismatch
        when the stored result does not fit the annotation.
        """
        self._record, value = self._client.result(self.id, timeout)
        result: R = self._client.typed(self._record, value)
        return result

    async def aresult(self, timeout: Duration | None = None) -> R:
        """`result` without blocking the event loop."""
        self._record, value = await self._client.aresult(self.id, timeout)
        result: R = self._client.typed(self._record, value)
        return result

    def __await__(self) -> Generator[Any, Any, R]:
        return self.aresult().__await__()

    def cancel(self, reason: str | None = None) -> Job[R]:
        """Cancel a waiting job; ask a running one to stop. Raises InvalidTransition when final."""
        self._client.cancel(self.id, reason=reason)
        return self.refresh()

    async def acancel(self, reason: str | None = None) -> Job[R]:
        await self._client.acancel(self.id, reason=reason)
        return await self.arefresh()

    def retry(self) -> Job[R]:
        """Make the job ready now: a waiting one early, a final one anew."""
        self._client.retry(self.id)
        return self.refresh()

    async def aretry(self) -> Job[R]:
        await self._client.aretry(self.id)
        return await self.arefresh()

    def delete(self) -> None:
        """Remove the job for good; it must not be running."""
        self._client.delete(self.id)

    async def adelete(self) -> None:
        """`delete` without blocking the event loop."""
        await self._client.adelete(self.id)

    def why(self) -> str:
        """Why the job is where it is, in words."""
        return self._client.why(self.id)

    async def awhy(self) -> str:
        return await self._client.awhy(self.id)

    def __repr__(self) -> str:
        state = self._record.state if self._record else "not read yet"
        return f"<Job {self.id} {state}>"

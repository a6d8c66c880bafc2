"""`Job`: a handle on one stored job."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

if TYPE_CHECKING:
    from datetime import datetime

    from winch.core.job import JobRecord
    from winch.core.lifecycle import JobState
    from winch.core.values.duration import Duration
    from winch.engine.client.client import Client
    from winch.storage.params import Enqueued

R = TypeVar("R")


class Job(msgspec.Struct, Generic[R], eq=False, gc=False):
    """A handle of one stored job: `job = add.enqueue(1, b=2)`.

    `state` is the state at the last read; `refresh()` reads it again. `is_new` is False when the
    enqueue found an existing job with this id or unique key. `is_shed` is True when the queue was full
    and the job was dropped.
    """

    _client: Client
    id: str
    _record: JobRecord | None = None
    is_new: bool = True
    is_shed: bool = False
    _stored: Enqueued | None = None

    @property
    def record(self) -> JobRecord:
        """Everything that the store keeps about the job, at the last read."""
        if self._record is None:
            self.refresh()
        return self._record  # type: ignore[return-value]  # refresh has set it or raised

    @property
    def state(self) -> JobState:
        """The state at the last read: "ready", "running", "completed" and so on."""
        return self.record.state

    @property
    def first_state(self) -> JobState | None:
        """The state in which the enqueue stored a new job, "ready" or "scheduled", without a read. None
        for a job that was found, and for a handle that no enqueue returned.
        """
        return None if self._stored is None else self._stored.state

    @property
    def created_at(self) -> datetime:
        """When the job was stored, by the store's clock. A handle of a new job needs no read for it."""
        stored = self._stored
        if self._record is None and stored is not None and stored.created_at is not None:
            return stored.created_at
        return self.record.created_at

    def refresh(self) -> Job[R]:
        """Read the job again. Raises JobNotFound when it is gone."""
        self._record = self._client.get(self.id)
        return self

    async def arefresh(self) -> Job[R]:
        """`refresh` without blocking the event loop."""
        self._record = await self._client.aget(self.id)
        return self

    def result(self, timeout: Duration | None = None) -> R:
        """Wait until the job is final and return the result of its handler.

        The result has the type of the task's return annotation. Raises JobFailed when the job is dead
        or cancelled, TimeoutError after `timeout`, and ResultMismatch when the stored result does not
        fit the annotation.
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
        """Cancel a waiting job, or ask a running one to stop. Raises InvalidTransition when it is
        final.
        """
        self._client.cancel(self.id, reason=reason)
        return self.refresh()

    async def acancel(self, reason: str | None = None) -> Job[R]:
        """`cancel` without blocking the event loop."""
        await self._client.acancel(self.id, reason=reason)
        return await self.arefresh()

    def retry(self, *, from_step: str | None = None) -> Job[R]:
        """Make the job ready now: a waiting job early, a final job once more.

        With `from_step` it makes that step and all later ones again.
        """
        self._client.retry(self.id, from_step=from_step)
        return self.refresh()

    async def aretry(self, *, from_step: str | None = None) -> Job[R]:
        """`retry` without blocking the event loop."""
        await self._client.aretry(self.id, from_step=from_step)
        return await self.arefresh()

    def delete(self) -> None:
        """Delete the job for good. It must not be running."""
        self._client.delete(self.id)

    async def adelete(self) -> None:
        """`delete` without blocking the event loop."""
        await self._client.adelete(self.id)

    def why(self) -> str:
        """Explain in words why the job is in its state."""
        return self._client.why(self.id)

    async def awhy(self) -> str:
        """`why` without blocking the event loop."""
        return await self._client.awhy(self.id)

    def __repr__(self) -> str:
        state = self._record.state if self._record else "not read yet"
        return f"<Job {self.id} {state}>"

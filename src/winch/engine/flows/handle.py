"""`FlowHandle`: a flow that was enqueued."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from winch.core.flow import members_prefix, numbered
from winch.engine.base.operation import Operation
from winch.engine.client.job import Job

if TYPE_CHECKING:
    from winch.core.values.duration import Duration
    from winch.engine.client.client import Client


class FlowHandle:
    """An enqueued flow. `last` has the jobs that no other member waits for."""

    def __init__(
        self,
        client: Client | None,
        flow: str,
        name: str,
        kind: str,
        last: tuple[tuple[str, int], ...],
        *,
        is_list: bool,
    ) -> None:
        """`last`: the names of the nodes that nothing comes after, and how many members each has. No
        `client`: nothing was stored."""
        self._client = client
        self._is_list = is_list
        self.id = flow
        self.name = name
        self.kind = kind
        self._last = last

    @cached_property
    def last(self) -> tuple[Job[Any], ...]:
        """The handles of the last jobs."""
        if self._client is None:
            return ()
        return tuple(self._client.handle(job_id) for job_id in self._last_ids())

    def _last_ids(self) -> Iterator[str]:
        for name, count in self._last:
            prefix = members_prefix(self.id, name)
            yield from (prefix + numbered(number) for number in range(count))

    def result(self, timeout: Duration | None = None) -> Any:
        """Wait for the result of the last job; for several last jobs, the list of their results.

        Raises JobFailed when one of them is dead or cancelled, and TimeoutError when they take longer
        than `timeout`.
        """
        return [] if self._client is None else self._client.run(self._result(self._client, timeout))

    async def aresult(self, timeout: Duration | None = None) -> Any:
        """`result` without blocking the event loop."""
        if self._client is None:
            return []
        return await self._client.arun(self._result(self._client, timeout))

    def _result(self, client: Client, timeout: Duration | None) -> Operation[Any]:
        found = yield from client.results(self._last_ids(), timeout)
        return found if self._is_list else found[0]

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name!r} {self.id}>"

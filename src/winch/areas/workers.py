"""`app.workers`: the workers that the store knows."""

from __future__ import annotations

import builtins

from winch.engine.base.operation import Operation
from winch.engine.client.client import Client
from winch.engine.client.twins import blocking, twin
from winch.storage.params import SessionInfo


class Workers:
    """`app.workers`: the sessions of workers that the store knows."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @blocking
    def list(self, *, is_ended_too: bool = False) -> Operation[builtins.list[SessionInfo]]:
        """The sessions of workers, latest start first. Ended ones are included on request."""
        driver = self._client.driver()
        found: builtins.list[SessionInfo] = yield driver.sessions(is_ended_too=is_ended_too)
        return [session for session in found if session.is_worker]

    @twin(list)
    def alist(self) -> None:
        """`list` without blocking the event loop."""

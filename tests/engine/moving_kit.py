"""Two stores, an app of the source that knows the target, and its mover, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from winch import App, Limit
from winch.core.lifecycle import JobState
from winch.engine.moving import mover as mover_module
from winch.engine.moving import routing
from winch.engine.moving.carrying import HOLDER, LIVE, jobs_of
from winch.engine.moving.mover import Mover
from winch.engine.moving.route import ALL, Route, Scope
from winch.storage.params import ClaimParams, Finish, NewSession
from winch.storage.protocol import Driver


class Pair:
    """An app of the source that knows the target, and its mover."""

    def __init__(self, folder: Path) -> None:
        self.app = App(f"sqlite:///{folder / 'source.db'}")
        self.app.configure({"move_to": f"sqlite:///{folder / 'target.db'}"})
        self.source: Driver = self.app.driver.source  # type: ignore[attr-defined]  # of the routed driver
        self.target: Driver = self.app.driver.target  # type: ignore[attr-defined]  # the same
        self.source.migrate()
        self.target.migrate()
        self.mover = Mover(self.source, self.target)
        self.plain = self.app.task(name="plain")(plain)
        self.limited = self.app.task(name="limited", limit=Limit(1))(plain)

    def opened(self, scope: Scope = ALL) -> Route:
        return self.mover.advance(self.mover.begin(scope))

    def ids(self, driver: Driver, states: tuple[JobState, ...] = LIVE) -> set[str]:
        return {job.id for job in jobs_of(driver, ALL, states) if job.task != HOLDER}

    def claim(self, driver: Driver, limit: int = 1) -> list[str]:
        return [claim.id for claim in self.claims(driver, limit)]

    @contextmanager
    def app_of(self, driver: Driver) -> Iterator[App]:
        """An app that knows this store alone."""
        app = App(driver.describe())
        yield app
        app.close()

    def claims(
        self,
        driver: Driver,
        limit: int = 1,
        *,
        queue: str = "default",
        session: str = "01a1f06a-0023-4750-94b3-39f6a64c8e3b",
    ) -> list:  # type: ignore[type-arg]  # of Claim
        new = NewSession(
            id=session,
            worker="w",
            host="h",
            pid=1,
            release="9.0.0",
            queues=(queue,),
            tasks=("plain", "limited"),
            slots=9,
            lease=mover_module.LEASE * 100,
        )
        driver.run(driver.start_session(new))
        token = self.app.client.ids.draw()
        params = ClaimParams(session=session, token=token, queues=(queue,), limit=limit)
        return driver.run(driver.claim(params))

    def complete(self, driver: Driver, claims: list) -> None:  # type: ignore[type-arg]  # of Claim
        ends = [Finish(id=c.id, token=c.token, to=JobState.COMPLETED, what="completed") for c in claims]
        driver.run(driver.finish(ends))


def plain(n: int) -> int:
    return n


@contextmanager
def made_pair(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """A pair whose producers learn of a move at once."""
    for module in (mover_module, routing):
        monkeypatch.setattr(module, "IDLE_LAG", 0.02)
    pair = Pair(folder)
    yield pair
    pair.app.close()

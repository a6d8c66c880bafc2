"""Heartbeats: one statement extends the leases of all sessions this process answers for.

A session that is no longer live (ended by a rescue, or unknown to a store restored from before it
began), or whose beats count fewer than were acknowledged (a store restored to a moment within it),
is lost: its child drops what it runs and starts a new session.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from winch.engine.base.operation import Operation
from winch.engine.base.service import Service
from winch.engine.supervisor.commands import Brought
from winch.storage.protocol import Driver


class Heart:
    """Keeps sessions alive and remembers since when the store has answered without a gap."""

    def __init__(self, driver: Driver, lease: float, monotonic: Callable[[], float]) -> None:
        self._driver = driver
        self._lease = lease
        self._monotonic = monotonic
        self._acknowledged: dict[str, int] = {}
        self._answered_since: float | None = None
        self._last_answer = 0.0
        self._store_time: datetime | None = None
        self._sure_until = float("inf")
        self._commands: list[Brought] = []

    def add(self, session: str) -> None:
        self._acknowledged[session] = 0
        self._sure_until = self._monotonic() + self._lease  # it was answered a moment ago

    @property
    def is_sure(self) -> bool:
        """Whether the leases are certainly still good: counted from the *sending* of the last beat that
        was answered. Later another worker may have the jobs."""
        return self._monotonic() < self._sure_until

    def drop(self, session: str) -> None:
        self._acknowledged.pop(session, None)

    def beat(self) -> Operation[list[str]]:
        """Beat once; returns the sessions that are lost."""
        sent = self._monotonic()
        sessions = list(self._acknowledged)
        if not sessions:
            return []
        try:
            pulses = yield self._driver.beat(sessions)
        except BaseException:
            self._answered_since = None
            raise
        answered = self._monotonic()
        # A driver may wait for a store that is gone or is loading, and answer once it is there: that was
        # an outage all the same. Those whose leases ran out in it are only about to beat.
        is_slow = answered - sent > self._lease / 2
        has_gap = is_slow or sent - self._last_answer > self._lease
        if self._answered_since is None or has_gap or self._has_jumped(pulses[-1].now, answered):
            self._answered_since = answered
        self._last_answer, self._store_time = answered, pulses[-1].now
        self._sure_until = sent + self._lease
        lost = []
        self._commands = []
        for pulse in pulses:
            if pulse.session not in self._acknowledged:
                continue  # dropped while the beat was under way
            if not pulse.is_live or pulse.beats <= self._acknowledged[pulse.session]:
                lost.append(pulse.session)
                self.drop(pulse.session)
            else:
                self._acknowledged[pulse.session] = pulse.beats
                self._commands += [Brought(pulse.session, key, body) for key, body in pulse.commands]
        return lost

    @property
    def commands(self) -> list[Brought]:
        """What the last beat brought for sessions that are not lost."""
        return self._commands

    def _has_jumped(self, store_time: datetime, answered: float) -> bool:
        """Whether the store's clock was set: then leases are over, or far away, through no fault of a
        worker."""
        if self._store_time is None:
            return False
        passed = (store_time - self._store_time).total_seconds()
        return abs(passed - (answered - self._last_answer)) > self._lease / 3

    def proven_at(self) -> datetime | None:
        """The store's time of the last answered beat, if beats have been answered for a whole lease.

        Whose lease was over by then had a lease's time to say so while the store could be reached, as
        this process's own beats prove; nothing is known about any later moment. After an outage no
        worker has beaten and none is at fault: None.
        """
        now = self._monotonic()
        if self._answered_since is None or now - self._last_answer > self._lease:
            return None
        return self._store_time if now - self._answered_since >= self._lease else None


class Leases(Service):
    """Reports, once for each outage of the store, that the leases may have run out."""

    name = "leases"

    def __init__(self, heart: Heart, every: float, report: Callable[[], None]) -> None:
        super().__init__()
        self._heart = heart
        self._every = every
        self._report = report
        self._is_reported = False

    async def run_once(self) -> float:
        is_over = not self._heart.is_sure
        if is_over and not self._is_reported:
            self._report()
        self._is_reported = is_over
        return self._every

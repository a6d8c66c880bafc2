"""A recorded history, sorted into what the rules read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from lab.history.lines import Answered, Ended, Exited, Line, Nemesis, Replied, Sent, Started
from lab.history.records import History, by_job
from winch.core.job import JobRecord
from winch.storage.params import Event, SessionInfo

ENDS = frozenset({"finished", "released", "rescued"})
VIOLENCE = frozenset({"kill", "stop"})
HARM = VIOLENCE | {"term"}
# Two statements of the store may read its clock in another order than they take effect.
BACKWARDS = timedelta(seconds=1)


@dataclass(frozen=True)
class ClaimLife:
    """One claim's life: the event that began it, and the one that ended it if any did."""

    began: Event
    ended: Event | None


@dataclass(frozen=True)
class HandlerRun:
    """One handler's run: when it started, and how it ended if it did."""

    start: Started
    end: Ended | None


class Facts:
    """The history, sorted into what the rules ask for."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.events: dict[str, list[Event]] = by_job(history.events)
        self.jobs: dict[str, list[JobRecord]] = {}
        for job in history.jobs:
            self.jobs.setdefault(job.id, []).append(job)
        self.sessions: dict[str, SessionInfo] = {session.id: session for session in history.sessions}
        lines = sorted(history.lines, key=lambda line: line.mono)
        self.sent: list[Sent] = [line for line in lines if isinstance(line, Sent)]
        self.replied: list[Replied] = [line for line in lines if isinstance(line, Replied)]
        self.answers: list[Answered] = [line for line in lines if isinstance(line, Answered)]
        self.nemesis: list[Nemesis] = [line for line in lines if isinstance(line, Nemesis)]
        self.exits: list[Exited] = [line for line in lines if isinstance(line, Exited)]
        ends = {line.run: line for line in lines if isinstance(line, Ended)}
        # Of one whose transaction was then refused or cut, this is not the last line.
        self.returned: dict[str, Ended] = {
            line.run: line for line in lines if isinstance(line, Ended) and line.is_ok
        }
        self.runs: dict[str, list[HandlerRun]] = {}
        for line in lines:
            if isinstance(line, Started):
                self.runs.setdefault(line.job, []).append(HandlerRun(line, ends.get(line.run)))
        self.claims: dict[str, list[ClaimLife]] = {
            job: list(claim_lives(events)) for job, events in self.events.items()
        }

    def when(self, line: Line) -> datetime:
        """When the line was written, on a clock that was never set."""
        return datetime.fromtimestamp(line.mono + self.history.offset, UTC)

    def pid(self, session: str | None) -> int | None:
        found = self.sessions.get(session or "")
        return None if found is None else found.pid

    def acked(self) -> Iterator[tuple[str, Replied]]:
        for replied in self.replied:
            if replied.outcome == "acked":
                for job in replied.ids:
                    yield job, replied

    def is_harmed(self, pid: int, before: float, *, by: Collection[str] = HARM) -> bool:
        """Whether something was done to this process before that moment, or it left claims behind."""
        harmed = any(act.action in by and pid in act.pids and act.mono <= before for act in self.nemesis)
        left = any(
            pid in (end.worker, *end.children) and end.mono <= before and end.code != 0
            for end in self.exits
        )
        return harmed or left


def claim_lives(events: Sequence[Event]) -> Iterator[ClaimLife]:
    began: Event | None = None
    for event in events:
        if event.kind == "claimed":
            if began is not None:
                yield ClaimLife(began, None)
            began = event
        elif event.kind in ENDS and began is not None:
            yield ClaimLife(began, event)
            began = None
    if began is not None:
        yield ClaimLife(began, None)


def life_of(claim: ClaimLife) -> tuple[Event, ...]:
    return (claim.began,) if claim.ended is None else (claim.began, claim.ended)


def claim_of(facts: Facts, job: str, token: str) -> ClaimLife | None:
    for claim in facts.claims.get(job, []):
        if claim.began.token == token:
            return claim
    return None

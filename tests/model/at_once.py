"""A limit and sessions that claim more jobs than they run at once.

A worker with few slots claims jobs ahead. The limit is about jobs that run, so the store counts no more
of a session than the session runs at once. Locks and fences are tests/model/gates.py: here a claim, an
end and a rescue are one step each, under the gate's lock. Jobs are alike: only their numbers are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.model.explore import Rule, Step


@dataclass(frozen=True)
class AtOnceDesign:
    """The defaults are the protocol."""

    # What the store counts of a session: its jobs up to what it runs at once; nothing more as soon as it
    # has one; or permits that the first of its jobs have and that end with those jobs.
    counts: Literal["what runs at once", "one", "permits of its first jobs"] = "what runs at once"
    # How many jobs a worker runs at once beyond what it named: a handler that collects takes several.
    runs_more: int = 0


@dataclass(frozen=True)
class AtOnceScope:
    name: str
    limit: int = 3
    slots: int = 2
    jobs: int = 6
    rescues: int = 1


class Session(NamedTuple):
    waiting: int = 0  # claimed and not started
    running: int = 0
    permits: int = 0  # of the third way to count

    @property
    def claimed(self) -> int:
        return self.waiting + self.running


class AtOnceState(NamedTuple):
    ready: int
    sessions: tuple[Session, ...] = (Session(), Session())
    blocked: int = 0
    rescues: int = 0


Steps = Iterator[Step[AtOnceState]]


class AtOnceModel:
    def __init__(self, design: AtOnceDesign, scope: AtOnceScope) -> None:
        self.design = design
        self.scope = scope

    def initial(self) -> AtOnceState:
        return AtOnceState(self.scope.jobs)

    def is_settled(self, state: AtOnceState) -> bool:
        return not state.ready and not state.blocked and not any(s.claimed for s in state.sessions)

    def breaches(self, state: AtOnceState) -> tuple[Rule, ...]:
        return (Rule.LIMIT,) if sum(s.running for s in state.sessions) > self.scope.limit else ()

    def describe(self, state: AtOnceState) -> str:
        sessions = "; ".join(f"{s.waiting} wait and {s.running} run" for s in state.sessions)
        return f"{state.ready} ready, {state.blocked} blocked; {sessions}"

    def steps(self, state: AtOnceState) -> Steps:
        for number, session in enumerate(state.sessions):
            name = f"session {number + 1}"
            if state.ready:
                yield self._claim(state._replace(ready=state.ready - 1), number, name)
            if session.waiting and session.running < self.scope.slots + self.design.runs_more:
                started = session._replace(waiting=session.waiting - 1, running=session.running + 1)
                yield Step(f"{name} starts a job", _with(state, number, started))
            if session.running:
                for label, permits in self._ends(session):
                    ended = session._replace(running=session.running - 1, permits=permits)
                    yield Step(f"{name} ends a job{label}", _opened(_with(state, number, ended), 1))
            if session.waiting:
                for label, permits in self._ends(session):
                    back = session._replace(waiting=session.waiting - 1, permits=permits)
                    after = _opened(_with(state, number, back), 1)
                    step = f"{name} gives back a job that has not started{label}"
                    yield Step(step, after._replace(ready=after.ready + 1), is_help=True)
            if session.claimed and state.rescues < self.scope.rescues:
                after = _opened(_with(state, number, Session()), session.claimed)
                after = after._replace(ready=after.ready + session.claimed, rescues=state.rescues + 1)
                yield Step(f"{name} is rescued", after, is_help=True)

    def _claim(self, state: AtOnceState, number: int, name: str) -> Step[AtOnceState]:
        session = state.sessions[number]
        has_permits = self.design.counts == "permits of its first jobs"
        permits = min(session.permits + 1, self.scope.slots) if has_permits else 0
        taken = session._replace(waiting=session.waiting + 1, permits=permits)
        after = _with(state, number, taken)
        if sum(self._used(s) for s in after.sessions) > self.scope.limit:
            return Step(f"{name} holds a job", state._replace(blocked=state.blocked + 1))
        return Step(f"{name} claims a job", after)

    def _ends(self, session: Session) -> list[tuple[str, int]]:
        """What becomes of the permits when a job ends that has one, or has none."""
        if self.design.counts != "permits of its first jobs":
            return [("", 0)]
        found = [(" with a permit", session.permits - 1)] if session.permits else []
        return found + ([(" without one", session.permits)] if session.claimed > session.permits else [])

    def _used(self, session: Session) -> int:
        match self.design.counts:
            case "one":
                return min(session.claimed, 1)
            case "permits of its first jobs":
                return session.permits
            case _:
                return min(session.claimed, self.scope.slots)


def _with(state: AtOnceState, number: int, session: Session) -> AtOnceState:
    sessions = (*state.sessions[:number], session, *state.sessions[number + 1 :])
    return state._replace(sessions=sessions)


def _opened(state: AtOnceState, number: int) -> AtOnceState:
    """So many that wait are ready again."""
    opened = min(number, state.blocked)
    return state._replace(ready=state.ready + opened, blocked=state.blocked - opened)

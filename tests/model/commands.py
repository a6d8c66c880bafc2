"""Commands to a worker: stored by an operator, brought by a beat, carried out once and in order.

An operator sends one command after another, each when the one before is stored. A beat reads the
commands of the session; its answer may be read late. The supervisor carries commands out one by one,
stores the answer and deletes the command; either write may fail or lose its reply, and is tried again
when a beat brings the command again. The process may die: then the session ends, which answers all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.model.explore import Rule, Step


@dataclass(frozen=True)
class CommandDesign:
    """The defaults are the protocol."""

    # How long the supervisor knows a command that it has met.
    remembers: Literal["for its life", "until the delete"] = "for its life"
    # Which of the two writes comes first.
    first: Literal["answer", "delete"] = "answer"
    # What a command's number comes from. The clock of the second operator is behind.
    numbers: Literal["the store", "clocks"] = "the store"


@dataclass(frozen=True)
class CommandScope:
    name: str
    commands: int = 2
    faults: int = 2
    stale: int = 2  # answers of beats that are read late


class CommandState(NamedTuple):
    sent: int = 0
    pending: frozenset[int] = frozenset()  # the commands in the store, by when they were sent
    answers: frozenset[int] = frozenset()
    seen: tuple[int, ...] | None = None  # the answer of a beat that is on its way
    known: frozenset[int] = frozenset()  # what the supervisor remembers
    queue: tuple[int, ...] = ()  # to be carried out
    writes: tuple[tuple[int, str], ...] = ()  # what is being written
    ran: tuple[int, ...] = ()
    faults: int = 0
    late: int = 0
    is_alive: bool = True


Steps = Iterator[Step[CommandState]]


class CommandModel:
    def __init__(self, design: CommandDesign, scope: CommandScope) -> None:
        self.design = design
        self.scope = scope

    def initial(self) -> CommandState:
        return CommandState()

    def is_settled(self, state: CommandState) -> bool:
        """Every command was sent and has an answer, or the operator sees the end of the session."""
        everything = frozenset(range(self.scope.commands))
        return not state.is_alive or state.answers == everything

    def breaches(self, state: CommandState) -> tuple[Rule, ...]:
        return ()

    def describe(self, state: CommandState) -> str:
        return (
            f"commands {sorted(state.pending)}, answers {sorted(state.answers)}; ran {state.ran}; "
            f"beat {state.seen}"
        )

    def steps(self, state: CommandState) -> Steps:
        if state.sent < self.scope.commands:
            stored = state._replace(sent=state.sent + 1, pending=state.pending | {state.sent})
            yield Step(f"command {state.sent} is stored", stored)
        if not state.is_alive:
            return
        if state.faults < self.scope.faults:
            yield Step("the process dies", state._replace(is_alive=False), is_help=True)
        yield from self._beats(state)
        yield from self._writes(state)
        if state.queue and not state.writes:
            yield self._carries_out(state)

    # -- beats -------------------------------------------------------------------------------------

    def _beats(self, state: CommandState) -> Steps:
        if state.seen is None:
            # The number, not the time of sending, is what the answer is sorted by.
            is_backwards = self.design.numbers == "clocks"
            found = tuple(sorted(state.pending, reverse=is_backwards))
            yield Step("a beat reads commands", state._replace(seen=found))
            return
        is_late = any(number not in state.pending for number in state.seen)
        if is_late and state.late >= self.scope.stale:
            yield Step("a beat is forgotten", state._replace(seen=None))
            return
        new = tuple(number for number in state.seen if number not in state.known)
        again = tuple(
            (number, what)
            for number in state.seen
            if number in state.ran and not state.writes and number not in state.queue
            for what in self._order()
        )
        after = state._replace(
            seen=None,
            known=state.known | set(new),
            queue=(*state.queue, *new),
            writes=state.writes or again[:2],
            late=state.late + is_late,
        )
        label = (
            "the answer of a beat is read after a delete" if is_late else "the answer of a beat is read"
        )
        yield Step(label, after)

    # -- the supervisor ----------------------------------------------------------------------------

    def _order(self) -> tuple[str, str]:
        return ("answer", "delete") if self.design.first == "answer" else ("delete", "answer")

    def _carries_out(self, state: CommandState) -> Step[CommandState]:
        number, *rest = state.queue
        breaches: tuple[Rule, ...] = ()
        if number in state.ran:
            breaches = (Rule.COMMAND_TWICE,)
        elif any(later > number for later in state.ran):
            breaches = (Rule.COMMAND_ORDER,)
        writes = tuple((number, what) for what in self._order())
        after = state._replace(queue=tuple(rest), ran=(*state.ran, number), writes=writes)
        return Step(f"command {number} is carried out", after, breaches=breaches)

    def _writes(self, state: CommandState) -> Steps:
        if not state.writes:
            return
        (number, what), *rest = state.writes
        done = self._written(state, number, what)
        yield Step(f"{what} of command {number} takes", done._replace(writes=tuple(rest)))
        if state.faults < self.scope.faults:
            worse = state.faults + 1
            yield Step(f"{what} fails", state._replace(writes=(), faults=worse))
            yield Step(f"{what} takes, its reply is lost", done._replace(writes=(), faults=worse))

    def _written(self, state: CommandState, number: int, what: str) -> CommandState:
        if what == "answer":
            return state._replace(answers=state.answers | {number})
        known = state.known
        if self.design.remembers == "until the delete":
            known -= {number}
        return state._replace(pending=state.pending - {number}, known=known)

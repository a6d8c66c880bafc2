"""Walk every state a small model can reach, breadth first, and show the shortest way to a mistake.

A model is a first state and a function from a state to the steps that may come next. All that can go
wrong between processes (a delay, a lost reply, a stopped process) is a choice between steps, so the
walk meets every order of events in the scope, not a random sample of them.

Two kinds of promises are checked:

- A *breach* is something that must never happen, seen in one step or one state. Breadth first means
  that the first one found has a shortest trace.
- A *stuck* state is one from which the model can never settle any more without outside help. Steps
  marked as help (a lease that happens to run out under a healthy worker, an operator) are walked but
  do not count as a way out: a job that only moves on when a process dies is stuck.
"""

from __future__ import annotations

import enum
import gc
import time
from array import array
from collections.abc import Collection, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, NamedTuple, Protocol, TypeVar

State = TypeVar("State", bound=Hashable)


class Rule(enum.Enum):
    """The promises, by the numbers they have in the list of invariants."""

    SETTLES = "I1, I2: a job (or callback) can no longer reach its end without outside help"
    ONE_CLAIM = "I3: a second claim of a job that already has a live one"
    DEAD_SESSION = "I3: a claim landed in a session whose jobs had been swept already"
    FOREIGN_WRITE = "I4: a write took effect although its claim was not the live one"
    REFUSED = "I4: a write under the live claim was refused"
    REPEATED = "I4: a token was used for a second claim"
    FENCE = "I4: a fence number did not grow"
    REVIVED = "I4: a beat was acknowledged for a session whose jobs had been given away"
    UNNOTICED = "I4: a worker went on with a store that had lost a beat acknowledged to it"
    TAKEN = "I4: a claim was taken from a healthy holder that had not asked for it"
    FINAL = "I5: a final job was changed by something other than an operator's retry"
    FOREIGN_RUN = "I6: completed on the word of a run whose claim was not the live one"
    FALSE_LOST = "I6: a finish that had taken was answered lost"
    FALSE_TOOK = "I6: a finish that never took was answered took or already"
    WINDOW_TWICE = "I8: a window of a schedule got a second job"
    WINDOW_EARLY = "I8: a window got a job before it had come"
    FIFO = "I9: a member of a FIFO key runs while one before it is not final"
    LIMIT = "I10: more permits out, or more jobs running, than the limit allows"
    LEAK = "I10: the permits are not those of the live claims"
    EARLY = "I12: the callback fired before all members were final"
    TWICE = "I12: the callback fired twice"
    BLAME = "I13: more crashes counted than processes died"
    STEP_AGAIN = "13: a step ran again although the handler had its result"
    PAGE = "13: the head of a history names a page that is not there"
    LIFE = "13: a life that had ended by a restart began again"
    COMMAND_TWICE = "22: a command to a worker was carried out twice"
    COMMAND_ORDER = "22: a command was carried out after one that was sent later"
    MOVE_LOST = "22: a job that moves is in neither store and in no parcel"
    MOVE_TWICE = "22: a job that moved ran in both stores, or again after its end"
    MOVE_GONE = "22: a member of a flow that moves finds a member before it gone"
    MOVE_KEY = "22: two live jobs in two stores have one unique key"
    STALE_CANCEL = "I18: a job waits to run with a request to cancel on it"

    @property
    def number(self) -> str:
        return self.value.partition(":")[0]


class Step(NamedTuple, Generic[State]):
    """One thing that may happen next, in words, and the state it leads to."""

    label: str
    state: State
    is_help: bool = False
    breaches: tuple[Rule, ...] = ()


class Model(Protocol[State]):
    def initial(self) -> State: ...

    def steps(self, state: State) -> Iterator[Step[State]]: ...

    def breaches(self, state: State) -> tuple[Rule, ...]:
        """Name the promises that this state breaks by itself."""
        ...

    def is_settled(self, state: State) -> bool:
        """Return whether everything has come to its end."""
        ...

    def describe(self, state: State) -> str:
        """Describe the store's content in a few words."""
        ...


class Line(NamedTuple):
    """One step of a trace and what the store held after it."""

    label: str
    after: str


class Report(NamedTuple):
    """What a walk found: the whole scope without a breach, or the shortest trace to the first one."""

    states: int
    steps: int
    seconds: float
    breach: Rule | None
    trace: tuple[Line, ...]
    labels: frozenset[str]  # every kind of step that was met

    @property
    def holds(self) -> bool:
        return self.breach is None


class _Walk(Generic[State]):
    """The states found so far, each with the step that reached it first."""

    def __init__(self, first: State) -> None:
        self.numbers: dict[State, int] = {first: 0}
        self.states: list[State] = [first]
        self.origins: list[tuple[int, str]] = [(-1, "the start")]
        # Unhelped steps, as pairs (from, to): numbers in arrays, because there are a few per state.
        self.sources = array("l")
        self.targets = array("l")

    def add(self, origin: int, step: Step[State]) -> bool:
        """Note a step; returns whether it led to a new state."""
        number = self.numbers.setdefault(step.state, len(self.states))
        if not step.is_help:
            self.sources.append(origin)
            self.targets.append(number)
        if number < len(self.states):
            return False
        self.states.append(step.state)
        self.origins.append((origin, step.label))
        return True

    def trace(self, model: Model[State], number: int) -> list[Line]:
        lines = []
        while number >= 0:
            after = model.describe(self.states[number])
            number, label = self.origins[number]
            lines.append(Line(label, after))
        return lines[::-1]

    def first_stuck(self, model: Model[State]) -> int | None:
        """Find the state nearest to the start from which no settled state can be reached."""
        leads_to: list[list[int]] = [[] for _ in self.states]
        for source, target in zip(self.sources, self.targets, strict=True):
            leads_to[target].append(source)
        can_settle = bytearray(len(self.states))
        pending = [number for number, state in enumerate(self.states) if model.is_settled(state)]
        for number in pending:
            can_settle[number] = 1
        while pending:
            for source in leads_to[pending.pop()]:
                if not can_settle[source]:
                    can_settle[source] = 1
                    pending.append(source)
        stuck = can_settle.find(0)
        return None if stuck < 0 else stuck


def explore(model: Model[State], watch: Collection[Rule] = frozenset(Rule)) -> Report:
    """Walk the model until a watched rule is broken or no new state is left.

    With fewer rules watched, other breaches are walked past: a design often breaks a dull rule first
    (a token repeats) and the rule that users care about a few steps later.
    """
    started = time.perf_counter()
    walk = _Walk(model.initial())
    labels: set[str] = set()
    count = 0

    def report(breach: Rule | None, trace: list[Line]) -> Report:
        seconds = time.perf_counter() - started
        return Report(len(walk.states), count, seconds, breach, tuple(trace), frozenset(labels))

    with _no_garbage_collection():
        # The list grows while it is walked, which makes it the queue of a breadth-first search.
        for here, state in enumerate(walk.states):
            for step in model.steps(state):
                count += 1
                labels.add(step.label)
                is_new = walk.add(here, step)
                breaches = (*step.breaches, *model.breaches(step.state)) if is_new else step.breaches
                for breach in breaches:
                    if breach in watch:
                        last = Line(step.label, model.describe(step.state))
                        return report(breach, [*walk.trace(model, here), last])
        if Rule.SETTLES in watch:
            stuck = walk.first_stuck(model)
            if stuck is not None:
                end = _how_it_ends(model, walk.states[stuck])
                return report(Rule.SETTLES, [*walk.trace(model, stuck), *end])
    return report(None, [])


def _how_it_ends(model: Model[State], stuck: State) -> list[Line]:
    """Go on from a stuck state to where nothing happens any more, if there is such a place.

    A state is stuck as soon as the mistake is made, often some steps before it shows.
    """
    walk = _Walk(stuck)
    for here, state in enumerate(walk.states):
        steps = [step for step in model.steps(state) if not step.is_help and step.state != state]
        if not steps:
            return walk.trace(model, here)[1:]
        for step in steps:
            walk.add(here, step)
    return []


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Spare the collector from looking for cycles in a million tuples that have none."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def render(report: Report) -> str:
    """Write a trace as numbered lines; what the store holds is repeated only where it changed."""
    if report.breach is None:
        return "holds"
    lines = []
    before = ""
    for number, line in enumerate(report.trace):
        after = "" if line.after == before else f"  [{line.after}]"
        lines.append(f"{number:>4}. {line.label}{after}")
        before = line.after
    return "\n".join([*lines, f"      => {report.breach.value}"])

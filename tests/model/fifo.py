"""A FIFO key: one member at a time, in order, while members fail, are retried, rescued and cancelled.

Each verb is walked as the statements of one transaction, as in `gates`: it locks the key's gate, looks
at the members in a later statement, and commits. A claim that finds it is not its member's turn leaves
it blocked; the end of a member makes the next one ready. A finish may claim the next member itself;
when its reply is lost, no handler runs that member until the worker gives the claim up, and the worker
repeats the finish without a claim.

Members have numbers, which the store draws in the order of the call. The ids of the members descend, as
those of a flow may, so that an order by id is the wrong one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.model.explore import Rule, Step
from tests.model.store import FINAL

NONE = -1
UNREAD = -2
CALLBACK = 1


@dataclass(frozen=True)
class FifoDesign:
    """The defaults are the protocol."""

    # Which verbs lock the gate's row: all, or claims but not the ends of members.
    locks: Literal["all", "claims"] = "all"
    reads: Literal["after the lock", "with the lock"] = "after the lock"
    # How long a member that has started keeps the turn.
    turn_ends: Literal["when it is final", "with its claim"] = "when it is final"
    # What the order of a key is: numbers that only grow, or the moment of the enqueue and then the id.
    order: Literal["by number", "by moment and id"] = "by number"
    # Which first member is made ready: one that waits at the gate, or any that is blocked.
    admits: Literal["a waiter at the gate", "the first member"] = "a waiter at the gate"
    # Which ends claim the next member.
    goes_on: Literal["after a final member", "after any end"] = "after a final member"
    # What a repeated finish does, which the store has answered before.
    repeats: Literal["claim nothing", "claim again"] = "claim nothing"
    # What becomes of a claim whose reply was lost.
    lost_claims: Literal["are given up", "are forgotten"] = "are given up"


@dataclass(frozen=True)
class FifoScope:
    name: str
    members: int = 2
    failures: int = 1
    rescues: int = 1
    cancels: int = 1
    # All in one call; one after another, by a clock that may go back; each after the one before it; or
    # the second as the callback of something else.
    stored: Literal["at once", "one by one", "as a chain", "with a callback"] = "at once"
    # Whether finishes claim the next member, and how many of their replies are lost.
    hands_on: bool = False
    lost_replies: int = 0


class Verb(NamedTuple):
    """A transaction under way. `first` is whose turn it read."""

    name: str
    member: int
    has_gate: bool = False
    first: int = UNREAD

    def __str__(self) -> str:
        return f"{self.name} of job {self.member + 1}"


class FifoState(NamedTuple):
    states: tuple[str, ...]
    numbers: tuple[int, ...]
    turn: int = NONE
    under_way: tuple[Verb, ...] = ()
    failures: int = 0
    rescues: int = 0
    cancels: int = 0
    clock: int = 1
    has_come: bool = False
    repeated: tuple[int, ...] = ()  # finishes whose reply was lost: they are sent again
    lost_replies: int = 0


FifoSteps = Iterator[Step[FifoState]]
# In which states a verb takes effect.
BEGINS: dict[str, tuple[str, ...]] = {
    "claim": ("ready",),
    "finish": ("running",),
    "finish and claim": ("running",),
    "fail": ("running",),
    "rescue": ("running",),
    "cancel": ("ready", "blocked", "retrying", "waiting"),
    "give_up": ("lost",),
    "repeated finish": tuple(FINAL),
}


class FifoModel:
    """Members 1, 2, … of one key, stored in that order, claimed and ended by any worker at any time."""

    def __init__(self, design: FifoDesign, scope: FifoScope) -> None:
        self.design = design
        self.scope = scope

    def initial(self) -> FifoState:
        members = range(self.scope.members)
        words = {
            "at once": ["ready" for _ in members],
            "one by one": ["unstored" for _ in members],
            "as a chain": ["waiting" if n else "ready" for n in members],
            "with a callback": ["waiting" if n == CALLBACK else "ready" for n in members],
        }[self.scope.stored]
        is_numbered = self.design.order == "by number"
        return FifoState(tuple(words), tuple(n if is_numbered else 0 for n in members))

    def is_settled(self, state: FifoState) -> bool:
        return all(word in FINAL for word in state.states)

    def breaches(self, state: FifoState) -> tuple[Rule, ...]:
        running = [n for n, word in enumerate(state.states) if word == "running"]
        is_early = any(state.states[k] not in FINAL for n in running for k in range(n))
        if self.scope.stored == "with a callback" and CALLBACK in running and not state.has_come:
            return (Rule.EARLY,)
        return (Rule.FIFO,) if len(running) > 1 or is_early else ()

    def describe(self, state: FifoState) -> str:
        words = ", ".join(f"job {n + 1} {word}" for n, word in enumerate(state.states))
        turn = "no job" if state.turn == NONE else f"job {state.turn + 1}"
        return f"{words}; the turn belongs to {turn}"

    def steps(self, state: FifoState) -> FifoSteps:
        busy = {verb.member for verb in state.under_way}
        for number, word in enumerate(state.states):
            if number in busy:
                continue
            for name in self._verbs(state, word):
                counted = state
                if name in ("fail", "rescue", "cancel"):
                    field = {"fail": "failures", "rescue": "rescues", "cancel": "cancels"}[name]
                    counted = state._replace(**{field: getattr(state, field) + 1})
                for step in self._proceed(counted, Verb(name, number)):
                    yield step._replace(is_help=name == "cancel")
            if number in state.repeated:
                left = tuple(other for other in state.repeated if other != number)
                yield from self._proceed(state._replace(repeated=left), Verb("repeated finish", number))
            yield from self._arrivals(state, number, word)
            if word == "retrying":
                states = _changed(state.states, number, "ready")
                yield Step(f"job {number + 1} is due again", state._replace(states=states))
        for verb in state.under_way:
            others = tuple(other for other in state.under_way if other != verb)
            yield from self._proceed(state._replace(under_way=others), verb)

    def _arrivals(self, state: FifoState, number: int, word: str) -> FifoSteps:
        """A member is stored, or what it waits for has come."""
        name = f"job {number + 1}"
        if word == "unstored" and "unstored" not in state.states[:number]:
            drawn = state.clock
            if self.design.order == "by number" and number > 0:
                drawn = max(state.numbers[number - 1] + 1, state.clock)
            numbers = (*state.numbers[:number], drawn, *state.numbers[number + 1 :])
            states = _changed(state.states, number, "ready")
            yield Step(f"{name} is stored", state._replace(states=states, numbers=numbers))
            if state.clock > 0:
                yield Step("the clock goes back", state._replace(clock=state.clock - 1))
        if word == "waiting":
            is_chain = self.scope.stored == "as a chain"
            if not is_chain or state.states[number - 1] in FINAL:
                states = _changed(state.states, number, "ready")
                after = state._replace(states=states, has_come=not is_chain)
                yield Step(f"what {name} waits for has come", after)

    def _verbs(self, state: FifoState, word: str) -> Iterator[str]:
        if word == "ready":
            yield "claim"
        if word == "lost" and self.design.lost_claims == "are given up":
            yield "give_up"
        if word == "running":
            yield "finish"
            if self.scope.hands_on:
                yield "finish and claim"
            if state.failures < self.scope.failures:
                yield "fail"
            if state.rescues < self.scope.rescues:
                yield "rescue"
        if word in ("ready", "blocked", "retrying", "waiting") and state.cancels < self.scope.cancels:
            yield "cancel"

    def _proceed(self, state: FifoState, verb: Verb) -> FifoSteps:
        """The next statement of a transaction; the state is without it."""

        def then(label: str, after: Verb) -> Step[FifoState]:
            under_way = tuple(sorted((*state.under_way, after)))
            return Step(f"{verb} {label}", state._replace(under_way=under_way))

        if self.design.reads == "with the lock" and verb.first == UNREAD:
            yield then("begins, its snapshot taken", verb._replace(first=self._read(state, verb)))
            return
        locks = self.design.locks == "all" or verb.name == "claim"
        if locks and not verb.has_gate:
            if not any(other.has_gate for other in state.under_way):
                yield then("locks the gate", verb._replace(has_gate=True))
            return
        if verb.first == UNREAD:
            yield then("looks at the members", verb._replace(first=self._read(state, verb)))
            return
        if state.states[verb.member] not in BEGINS[verb.name]:
            yield Step(f"{verb} is refused", state)
            return
        after = self._commit(state, verb)
        yield after
        if verb.name == "finish and claim" and state.lost_replies < self.scope.lost_replies:
            # The worker knows nothing of what was claimed, and sends the finish again.
            states = tuple(
                "lost" if word == "running" and state.states[n] != "running" else word
                for n, word in enumerate(after.state.states)
            )
            unanswered = after.state._replace(
                states=states,
                repeated=(*state.repeated, verb.member),
                lost_replies=state.lost_replies + 1,
            )
            yield Step(f"{after.label}; the reply is lost", unanswered)

    def _read(self, state: FifoState, verb: Verb) -> int:
        """For a claim, the member whose turn it is; else the next one that waits, this one aside."""
        if verb.name == "claim" and state.turn != NONE:
            return state.turn
        live = [n for n, word in enumerate(state.states) if word not in (*FINAL, "unstored")]
        if verb.name != "claim":
            live = [n for n in live if n != verb.member]
        return min(live, key=lambda n: (state.numbers[n], -n), default=NONE)  # ids descend

    def _commit(self, state: FifoState, verb: Verb) -> Step[FifoState]:
        number = verb.member
        if verb.name == "claim":
            if verb.first != number:
                states = _changed(state.states, number, "blocked")
                return Step(f"{verb} leaves it blocked", state._replace(states=states))
            states = _changed(state.states, number, "running")
            return Step(f"{verb} takes it", state._replace(states=states, turn=number))
        if verb.name == "repeated finish":
            return self._repeat(state, verb)
        word = {
            "finish": "completed",
            "finish and claim": "completed",
            "fail": "retrying",
            "rescue": "ready",
            "give_up": "ready",
            "cancel": "cancelled",
        }
        states = _changed(state.states, number, word[verb.name])
        is_over = word[verb.name] in FINAL
        turn = state.turn
        if turn == number and (is_over or self.design.turn_ends == "with its claim"):
            turn = NONE
        label = f"{verb} commits"
        is_free = turn == NONE and (is_over or self.design.turn_ends == "with its claim")
        held = ("blocked",) if self.design.admits == "a waiter at the gate" else ("blocked", "waiting")
        if is_free and verb.first != NONE and states[verb.first] in held:
            states = _changed(states, verb.first, "ready")
            label += f" and makes job {verb.first + 1} ready"
        claims = verb.name == "finish and claim"
        if self.scope.hands_on and self.design.goes_on == "after any end" and verb.name == "fail":
            claims = is_free = True
        if claims and is_free and verb.first != NONE and states[verb.first] == "ready":
            states = _changed(states, verb.first, "running")
            label += f" and claims job {verb.first + 1}"
            turn = verb.first
        if self.design.turn_ends == "with its claim" and turn == NONE and not is_over:
            # The next member may start: no row records that this one has begun.
            return Step(label, state._replace(states=states, turn=verb.first))
        return Step(label, state._replace(states=states, turn=turn))

    def _repeat(self, state: FifoState, verb: Verb) -> Step[FifoState]:
        """The finish took before; the members have moved on since."""
        live = [n for n, word in enumerate(state.states) if word in ("ready", "blocked")]
        if self.design.repeats == "claim nothing" or not live:
            return Step(f"{verb} is answered", state)
        states = _changed(state.states, live[0], "running")
        return Step(f"{verb} claims job {live[0] + 1}", state._replace(states=states, turn=live[0]))


def _changed(states: tuple[str, ...], number: int, word: str) -> tuple[str, ...]:
    return (*states[:number], word, *states[number + 1 :])

"""The history of a workflow: steps noted under a claim, pages beside the job, a restart with a new life.

A handler runs its steps one after another. It gets a step's result when the store has the note. The head
of the history is in the job and keeps the newest step; older ones move to pages. A page is stored first,
and the head that names it makes it count. A restart is a head without steps, of the next life; the pages
of the life before are deleted after it. An attempt reads the head with its claim, and the pages then.

A step's value is the attempt that ran it, so a step that ran twice shows. A worker may die at any moment
and may lose its claim while it goes on. What a worker that lost its claim does outside of the store is
its own; what it writes must have no effect.

A note whose reply is lost is repeated. Its first sending may have taken, may never come, or may arrive
after later notes of the same claim. Every sending has the next number of its claim. A note takes only
when its number is higher than the stored one, where that is of the same claim.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.model.explore import Rule, Step

READY, ENDED = 0, -1


@dataclass(frozen=True)
class NoteDesign:
    """The defaults are the protocol."""

    # Whether a note takes only under the live claim.
    is_fenced: bool = True
    # When the handler gets the result of a step.
    result: Literal["after the note", "before the note"] = "after the note"
    # What is stored first when a page is full.
    first: Literal["page", "head"] = "page"
    # When, and what, a restart deletes: the pages of the life before.
    forgets: Literal["after the head", "before the head"] = "after the head"
    # What a note's number is compared with: the stored one of the same claim, or of any claim.
    number: Literal["of the claim", "of the job", "none"] = "of the claim"


@dataclass(frozen=True)
class NoteScope:
    name: str
    steps: int = 3
    lives: int = 2
    faults: int = 2  # deaths, lost claims and late notes


class NoteWorker(NamedTuple):
    attempt: int
    phase: str  # claimed, runs, ran, paged, restarted
    life: int
    pages: tuple[str, ...]  # their keys
    old: tuple[int, ...]  # the values in pages
    new: tuple[int, ...]  # the values in the head
    left: tuple[str, ...] = ()  # the pages of the life that a restart has ended
    sent: int = 0  # the number of its last sending


class NoteState(NamedTuple):
    owner: int = READY  # the attempt with the live claim
    life: int = 1
    named: tuple[str, ...] = ()  # the pages that the head names
    head: tuple[int, ...] = ()
    pages: frozenset[tuple[str, tuple[int, ...]]] = frozenset()
    workers: tuple[NoteWorker, ...] = ()
    claims: int = 0
    faults: int = 0
    got: frozenset[tuple[int, int, int]] = frozenset()  # life, step, value
    begun: int = 1
    last: tuple[int, int] = (0, 0)  # attempt and number of the last note that took
    late: tuple[NoteWorker, ...] = ()  # notes on their way whose senders gave them up


Steps = Iterator[Step[NoteState]]


class NoteModel:
    def __init__(self, design: NoteDesign, scope: NoteScope) -> None:
        self.design = design
        self.scope = scope

    def initial(self) -> NoteState:
        return NoteState()

    def is_settled(self, state: NoteState) -> bool:
        return state.owner == ENDED

    def breaches(self, state: NoteState) -> tuple[Rule, ...]:
        return ()

    def describe(self, state: NoteState) -> str:
        pages = sorted(key for key, _ in state.pages)
        return (
            f"owner {state.owner}, life {state.life}, head {state.head} naming {state.named}; "
            f"pages {pages}; {len(state.workers)} at work"
        )

    def steps(self, state: NoteState) -> Steps:
        may_fail = state.faults < self.scope.faults
        worse = state._replace(faults=state.faults + 1)
        if state.owner == READY and len(state.workers) < 2:
            yield self._claims(state)
        for worker in state.workers:
            yield from self._works(state, worker)
            if may_fail:
                yield Step(f"attempt {worker.attempt} dies", self._without(worse, worker))
        alive = {worker.attempt for worker in state.workers}
        if state.owner > 0 and state.owner not in alive:
            yield Step("the job is rescued", state._replace(owner=READY))
        elif state.owner > 0 and may_fail:
            label = "the job is rescued from a worker that goes on"
            yield Step(label, worse._replace(owner=READY), is_help=True)
        for note in state.late:
            yield self._arrives(state, note)

    # -- one attempt -------------------------------------------------------------------------------

    def _claims(self, state: NoteState) -> Step[NoteState]:
        number = state.claims + 1
        worker = NoteWorker(number, "claimed", state.life, state.named, (), state.head)
        after = state._replace(owner=number, claims=number, workers=(*state.workers, worker))
        return Step(f"attempt {number} claims", after)

    def _works(self, state: NoteState, worker: NoteWorker) -> Steps:
        match worker.phase:
            case "claimed":
                yield self._loads(state, worker)
            case "runs" if len(worker.old) + len(worker.new) < self.scope.steps:
                yield self._runs(state, worker)
            case "runs" if worker.life < self.scope.lives:
                yield from self._restarts(state, worker)
            case "runs":
                yield self._ends(state, worker, ENDED, "finishes")
            case "ran" if len(worker.new) > 1:
                yield from self._spills(state, worker)
            case "ran" | "paged":
                yield from self._notes(state, worker)
            case "restarted":
                left = self._forgotten(state, worker)
                if self.design.forgets != "before the head" and left != state:
                    yield Step("pages of the life before are deleted", left)
                yield self._ends(state, worker, READY, "ends to begin again")

    def _loads(self, state: NoteState, worker: NoteWorker) -> Step[NoteState]:
        known = dict(state.pages)
        is_live = state.owner == worker.attempt
        label = f"attempt {worker.attempt} reads its pages and begins life {worker.life}"
        if any(key not in known for key in worker.pages):
            breaches = (Rule.PAGE,) if is_live else ()
            return Step(label, self._without(state, worker), breaches=breaches)
        old = tuple(value for key in worker.pages for value in known[key])
        after = self._with(state, worker, worker._replace(phase="runs", old=old))
        has_ended = is_live and worker.life < state.begun
        begun = max(state.begun, worker.life)
        breaches = (Rule.LIFE,) if has_ended else ()
        return Step(label, after._replace(begun=begun), breaches=breaches)

    def _runs(self, state: NoteState, worker: NoteWorker) -> Step[NoteState]:
        n = len(worker.old) + len(worker.new)
        after = worker._replace(phase="ran", new=(*worker.new, worker.attempt))
        had = any((life, step) == (worker.life, n) for life, step, _ in state.got)
        is_again = had and state.owner == worker.attempt
        moved = self._with(state, worker, after)
        if self.design.result == "before the note":
            moved = self._gets(moved, after)
        label = f"attempt {worker.attempt} runs step {n} of life {worker.life}"
        return Step(label, moved, breaches=(Rule.STEP_AGAIN,) if is_again else ())

    def _spills(self, state: NoteState, worker: NoteWorker) -> Steps:
        key = f"page {len(worker.pages)} of life {worker.life} of attempt {worker.attempt}"
        page = (key, worker.new[:-1])
        lean = worker._replace(
            phase="paged",
            pages=(*worker.pages, key),
            old=(*worker.old, *worker.new[:-1]),
            new=worker.new[-1:],
        )
        put = self._put(state, page)
        label = f"attempt {worker.attempt} stores {key}"
        if self.design.first == "page":
            yield Step(label, self._with(put, worker, lean))
            return
        sent = lean._replace(sent=lean.sent + 1)
        noted = self._noted(self._with(state, worker, sent), sent)
        yield Step("the head is stored before its page", noted)
        yield Step(label, self._with(put, worker, lean))

    def _notes(self, state: NoteState, worker: NoteWorker) -> Steps:
        """The note of a step. Where its reply is lost, the worker sends the history again."""
        sent = worker._replace(sent=worker.sent + 1)
        state = self._with(state, worker, sent)
        if not self._takes(state, sent):
            yield Step(f"a note of attempt {worker.attempt} is refused", self._without(state, sent))
            return
        if state.faults < self.scope.faults:
            on_its_way = state._replace(faults=state.faults + 1, late=(*state.late, sent))
            yield Step(f"a note of attempt {worker.attempt} is on its way, and given up", on_its_way)
        noted = self._noted(state, sent)
        if (noted.life, noted.named, noted.head) != (state.life, state.named, state.head):
            yield Step(f"a note of attempt {worker.attempt} takes, its reply is lost", noted)
        done = self._with(noted, sent, sent._replace(phase="runs"))
        label = f"a note of attempt {worker.attempt} takes"
        if self.design.result == "before the note":
            yield Step(label, done)
            return
        value = worker.new[-1]
        n = len(worker.old) + len(worker.new) - 1
        others = {one for life, step, one in state.got if (life, step) == (worker.life, n)}
        is_other = bool(others - {value})
        yield Step(label, self._gets(done, sent), breaches=(Rule.STEP_AGAIN,) if is_other else ())

    def _arrives(self, state: NoteState, note: NoteWorker) -> Step[NoteState]:
        """A note that its sender gave up reaches the store after all; no reply is waited for."""
        at = state.late.index(note)
        rest = state._replace(late=(*state.late[:at], *state.late[at + 1 :]))
        label = f"note {note.sent} of attempt {note.attempt} arrives late"
        return Step(label, self._noted(rest, note) if self._takes(state, note) else rest)

    def _restarts(self, state: NoteState, worker: NoteWorker) -> Steps:
        label = f"attempt {worker.attempt} notes life {worker.life + 1}"
        if self.design.forgets == "before the head":
            yield Step("pages are deleted before the head", state._replace(pages=frozenset()))
        if not self._takes(state, worker):
            yield Step(f"a note of attempt {worker.attempt} is refused", self._without(state, worker))
            return
        sent = worker.sent + 1
        anew = NoteWorker(worker.attempt, "restarted", worker.life + 1, (), (), (), worker.pages, sent)
        yield Step(label, self._with(self._noted(state, anew), worker, anew))

    # -- small steps -------------------------------------------------------------------------------

    def _takes(self, state: NoteState, worker: NoteWorker) -> bool:
        return state.owner == worker.attempt or (not self.design.is_fenced and state.owner != ENDED)

    def _noted(self, state: NoteState, worker: NoteWorker) -> NoteState:
        """After a note under the live claim. One that is not the newest changes nothing."""
        attempt, number = state.last
        is_compared = self.design.number == "of the job" or attempt == worker.attempt
        if self.design.number != "none" and is_compared and worker.sent <= number:
            return state
        return state._replace(
            life=worker.life,
            named=worker.pages,
            head=worker.new,
            last=(worker.attempt, worker.sent),
        )

    @staticmethod
    def _gets(state: NoteState, worker: NoteWorker) -> NoteState:
        n = len(worker.old) + len(worker.new) - 1
        return state._replace(got=state.got | {(worker.life, n, worker.new[-1])})

    def _ends(self, state: NoteState, worker: NoteWorker, owner: int, what: str) -> Step[NoteState]:
        after = self._without(state, worker)
        if state.owner == worker.attempt:
            after = after._replace(owner=owner)
        return Step(f"attempt {worker.attempt} {what}", after)

    @staticmethod
    def _put(state: NoteState, page: tuple[str, tuple[int, ...]]) -> NoteState:
        others = {one for one in state.pages if one[0] != page[0]}
        return state._replace(pages=frozenset({*others, page}))

    @staticmethod
    def _forgotten(state: NoteState, worker: NoteWorker) -> NoteState:
        kept = frozenset(page for page in state.pages if page[0] not in worker.left)
        return state._replace(pages=kept)

    @staticmethod
    def _with(state: NoteState, before: NoteWorker, after: NoteWorker) -> NoteState:
        workers = tuple(after if one == before else one for one in state.workers)
        return state._replace(workers=workers)

    @staticmethod
    def _without(state: NoteState, worker: NoteWorker) -> NoteState:
        return state._replace(workers=tuple(one for one in state.workers if one != worker))

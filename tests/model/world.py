"""The state of the protocol model: the store, the workers around it, and what is on its way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.explore import Step
from tests.model.store import NONE, Design, Job, Outcome, Store, Write

OUTSIDE = 99  # the token and claim of a fresh worker from outside of the scope
NO_WRITE = Write(job=NONE, token=0, attempt=0, claim=0)


@dataclass(frozen=True)
class Scope:
    """How far the walk goes and which events it meets."""

    name: str
    jobs: int = 1
    workers: int = 2  # alive at the same time
    sessions: int = 2  # ever started
    draws: int = 2  # of tokens
    outcomes: tuple[Outcome, ...] = ("ok",)
    resends: int = 1  # of one finish
    releases: bool = False
    beats: bool = False
    # What a session may send and have delayed: its beat, or its request to release what is unnamed.
    late: frozenset[str] = frozenset()
    deaths: int = 0
    cancels: int = 0
    retries: int = 0
    restores: int = 0
    restarts: int = 0
    # Verbs that are walked statement by statement: claim, finish, rescue (and end_session), sweep.
    statements: frozenset[str] = frozenset()
    # A rescue may pass over a job whose row is locked at that moment.
    skips: bool = False
    rescue_limit: int = 0


class Worker(NamedTuple):
    """One child process. Its number is that of its session: a new start is a new session."""

    phase: str = "idle"  # idle, claiming, held, running, finishing; gone (stopped by itself), dead
    write: Write = NO_WRITE  # the claim it holds
    token: int = 0  # of the claim call under way
    draw: int = 0  # ghost: which draw that token is
    sends: int = 0  # of the claim or finish under way
    acked: int = 0  # the highest count of beats acknowledged to it
    acked_at: int = 0  # the store's time of that beat
    given_up: tuple[int, ...] = ()
    is_deceived: bool = False  # ghost: a restored backup lacks a beat acknowledged to it

    @property
    def is_alive(self) -> bool:
        return self.phase not in {"gone", "dead"}

    @property
    def in_use(self) -> tuple[int, ...]:
        """The tokens it would name: noted before the claim is sent, until the claim is over."""
        if self.phase == "claiming":
            return (self.token,)
        return (self.write.token,) if self.write.token else ()

    def idle(self) -> Worker:
        return self._replace(phase="idle", write=NO_WRITE, token=0, draw=0, sends=0)


GONE = Worker(phase="gone")


class Message(NamedTuple):
    """A request on its way (stage 0), or a transaction under way (above 0)."""

    kind: str  # claim, finish, release, beat, unnamed, tokens; rescue, end, sweep
    session: int
    stage: int = 0
    is_awaited: bool = False
    write: Write = NO_WRITE
    token: int = 0
    draw: int = 0
    known: int = 0  # a count of beats, or a time, as the sender knew it
    seen: tuple[int, ...] = ()  # tokens, sessions, yes or no, as an earlier statement read them
    jobs: tuple[int, ...] = ()  # jobs, as an earlier statement read them


class World(NamedTuple):
    store: Store
    workers: tuple[Worker, ...]
    net: tuple[Message, ...] = ()
    times: tuple[int, ...] = ()  # the store's clock as each session's beats saw it; never rewound
    backup: Store | None = None
    draws: int = 0
    deaths: int = 0
    cancels: int = 0
    retries: int = 0
    restores: int = 0
    restarts: int = 0
    landed: tuple[tuple[int, int], ...] = ()  # ghost: (token, draw) of claims that landed
    fences: tuple[int, ...] = ()  # ghost: the highest fence number given out, by job

    def with_worker(self, number: int, worker: Worker) -> World:
        return self._replace(workers=(*self.workers[:number], worker, *self.workers[number + 1 :]))

    def with_job(self, number: int, job: Job) -> World:
        return self._replace(store=self.store.with_job(number, job))

    def sending(self, *messages: Message) -> World:
        # Sorted: the order in which messages were sent is not the order in which they arrive.
        return self._replace(net=tuple(sorted((*self.net, *messages))))

    def without(self, message: Message) -> World:
        at = self.net.index(message)
        return self._replace(net=(*self.net[:at], *self.net[at + 1 :]))

    def swap(self, old: Message, new: Message) -> World:
        return self.without(old).sending(new)

    def unheard(self, session: int) -> World:
        """Let the session stop waiting: what it sent stays on its way, its answer goes nowhere."""
        net = (m._replace(is_awaited=False) if m.session == session else m for m in self.net)
        return self._replace(net=tuple(sorted(net)))

    def rolled_back(self) -> World:
        """Undo the transactions under way."""
        return self._replace(net=tuple(message for message in self.net if not message.stage))

    def is_ending(self, session: int) -> bool:
        """Return whether a rescue or an end_session has the session's row locked."""
        return any(m.stage and m.session == session and m.kind in {"rescue", "end"} for m in self.net)

    def is_claiming(self, session: int) -> bool:
        """Return whether a claim has the session's row locked in share mode."""
        return any(m.stage and m.session == session and m.kind == "claim" for m in self.net)

    def is_sent(self, session: int, kind: str) -> bool:
        return any(m.session == session and m.kind == kind for m in self.net)

    def has_holder(self, job: Job) -> bool:
        """Return whether a worker is alive that believes in the job's live claim."""
        worker = self.workers[job.session]
        return job.claim != 0 and worker.is_alive and worker.write.claim == job.claim


Steps = Iterator[Step[World]]


class Part:
    """One party of the protocol: what it may do next in a given world."""

    def __init__(self, design: Design, scope: Scope) -> None:
        self.design = design
        self.scope = scope

    def steps(self, world: World) -> Steps:
        raise NotImplementedError


def letter(token: int) -> str:
    return "?" if token == OUTSIDE else chr(ord("a") + token - 1)


def name(session: int) -> str:
    return f"session {session + 1}"


def ranked(world: World) -> World:
    """Replace counts of beats and times by their ranks.

    Only their order is ever looked at, so beats need no budget: a worker may beat for ever and the
    number of states stays finite.
    """
    for number, worker in enumerate(world.workers):
        stores = [world.store] if world.backup is None else [world.store, world.backup]
        sessions = [store.sessions[number] for store in stores if number < len(store.sessions)]
        counts = {worker.acked, *(session.beats for session in sessions if session is not None)}
        times = {world.times[number], worker.acked_at}
        if max(counts) == max(times) == 0:
            continue
        for store in stores:
            times.update(store.jobs[n].claimed_at for n in store.running(number))
        for message in world.net:
            if message.session == number and message.kind in {"beat", "unnamed"}:
                (counts if message.kind == "beat" else times).add(message.known)
        if max(counts) >= len(counts) or max(times) >= len(times):
            world = _renumbered(world, number, sorted(counts), sorted(times))
    return world


def _renumbered(world: World, number: int, counts: list[int], times: list[int]) -> World:
    def renumber_store(store: Store) -> Store:
        session = store.sessions[number] if number < len(store.sessions) else None
        if session is not None:
            store = store.with_session(number, session._replace(beats=counts.index(session.beats)))
        for at in store.running(number):
            job = store.jobs[at]
            store = store.with_job(at, job._replace(claimed_at=times.index(job.claimed_at)))
        return store

    def renumber_message(message: Message) -> Message:
        if message.session != number or message.kind not in {"beat", "unnamed"}:
            return message
        ranks = counts if message.kind == "beat" else times
        return message._replace(known=ranks.index(message.known))

    worker = world.workers[number]
    now = times.index(world.times[number])
    return world._replace(
        store=renumber_store(world.store),
        backup=None if world.backup is None else renumber_store(world.backup),
        net=tuple(sorted(renumber_message(message) for message in world.net)),
        times=(*world.times[:number], now, *world.times[number + 1 :]),
    ).with_worker(
        number,
        worker._replace(acked=counts.index(worker.acked), acked_at=times.index(worker.acked_at)),
    )

"""A worker over HTTP: claims and ends in batches, heartbeats that name what runs, and lost replies.

The worker has three senders: one claims, one sends ends, one sends heartbeats. Each waits for its answer
or gives up, and then its request may still be on its way. A server keeps nothing that counts. So a
server that is killed is a request that does half of its work or none, or an answer that is lost; two
servers of one store are requests that the store sees in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.model.explore import Rule, Step


@dataclass(frozen=True)
class HttpDesign:
    """The defaults are the protocol."""

    # Whether the answer to a heartbeat has the claims that it did not name.
    lists: bool = True
    # Which claims are on their way, for a worker that reads such an answer.
    on_the_way: Literal["sent or read", "sent", "read", "none"] = "sent or read"
    # Until when a heartbeat names a job, and the worker knows it.
    knows: Literal["until the answer", "until its end is sent"] = "until the answer"
    # What is sent again after a lost reply.
    repeats: Literal["ends", "ends and claims"] = "ends"


@dataclass(frozen=True)
class HttpScope:
    name: str
    jobs: int = 2
    slots: int = 2
    faults: int = 2
    ends: int = 1  # how often the lease ends, because the worker stood still


# A job that runs: its number and the token of its claim.
Run = tuple[int, int]


class Request(NamedTuple):
    kind: Literal["claim", "finish", "claim after finish", "release", "beat"]
    session: int
    token: int = 0
    runs: frozenset[Run] = frozenset()  # finish, release: of these claims; beat: those that it names
    minded: frozenset[int] = frozenset()  # beat: the claims on their way when it was sent


class Answer(NamedTuple):
    to: Request
    runs: frozenset[Run] = frozenset()  # the jobs of a claim; the unlisted claims of a beat
    is_ended: bool = False  # the session has


class HttpState(NamedTuple):
    # The token that each job runs under; 0: ready, -1: done.
    jobs: tuple[int, ...]
    live: int = 1  # the session that the store knows as live; 0: none
    session: int = 1  # the worker's
    claiming: Request | None = None
    sending: Request | None = None
    beating: Request | None = None
    running: frozenset[Run] = frozenset()  # what the worker knows
    over: frozenset[Run] = frozenset()  # their handlers have ended
    requests: frozenset[Request] = frozenset()
    answers: frozenset[Answer] = frozenset()
    faults: int = 0
    ends: int = 0


Steps = Iterator[Step[HttpState]]
Slot = Literal["claiming", "sending", "beating"]


class HttpModel:
    def __init__(self, design: HttpDesign, scope: HttpScope) -> None:
        self.design = design
        self.scope = scope

    def initial(self) -> HttpState:
        return HttpState((0,) * self.scope.jobs)

    def is_settled(self, state: HttpState) -> bool:
        return all(token < 0 for token in state.jobs)

    def breaches(self, state: HttpState) -> tuple[Rule, ...]:
        return ()

    def describe(self, state: HttpState) -> str:
        words = {0: "ready", -1: "done"}
        jobs = ", ".join(words.get(token, f"claimed with {token}") for token in state.jobs)
        return f"jobs {jobs}; the worker runs {sorted(state.running - state.over)}"

    def steps(self, state: HttpState) -> Steps:
        yield from self._claims(state)
        yield from self._ends(state)
        yield from self._beats(state)
        for request in state.requests:
            yield from self._served(state, request)
        for answer in state.answers:
            yield from self._answered(state, answer)
        if state.live and state.ends < self.scope.ends:
            free = tuple(min(token, 0) for token in state.jobs)
            worse = state.ends + 1
            yield Step("the lease ends", state._replace(jobs=free, live=0, ends=worse), is_help=True)

    # -- the worker --------------------------------------------------------------------------------

    def _claims(self, state: HttpState) -> Steps:
        free = self.scope.slots - len(state.running)
        if state.claiming is None and free > 0:
            request = Request("claim", state.session, _fresh(state))
            yield Step("a claim is sent", _sent(state, "claiming", request))

    def _ends(self, state: HttpState) -> Steps:
        for run in sorted(state.running - state.over):
            yield Step(f"the handler of job {run[0]} ends", state._replace(over=state.over | {run}))
        batch = state.over
        if state.sending is not None or not batch:
            return
        knows = state.running - (batch if self.design.knows != "until the answer" else frozenset())
        ended = state._replace(running=knows)
        yield Step("ends are sent", _sent(ended, "sending", Request("finish", state.session, 0, batch)))
        if state.claiming is None:
            request = Request("finish", state.session, _fresh(state), batch)
            after = _sent(ended, "sending", request)._replace(claiming=request)
            yield Step("ends are sent with a claim", after)

    def _beats(self, state: HttpState) -> Steps:
        if state.beating is None:
            minded = frozenset({state.claiming.token} if state.claiming else ())
            request = Request("beat", state.session, 0, state.running, minded)
            yield Step("a heartbeat is sent", _sent(state, "beating", request))

    def _answered(self, state: HttpState, answer: Answer) -> Steps:
        request = answer.to
        after = state._replace(answers=state.answers - {answer})
        if state.faults < self.scope.faults:
            lost = self._given_up(after, request)._replace(faults=state.faults + 1)
            yield Step(f"the answer to a {request.kind} is lost", lost)
        after = after._replace(
            claiming=None if state.claiming == request else state.claiming,
            sending=None if state.sending == request else state.sending,
            beating=None if state.beating == request else state.beating,
        )
        if answer.is_ended:
            if request.session == state.session:
                after = self._registered(after)
            yield Step(f"the answer to a {request.kind} has the end of the session", after)
            return
        if request.kind == "beat":
            yield self._beaten(after, answer)
            return
        known = (after.running - request.runs) | answer.runs
        if request.kind == "release":
            known = after.running
        after = after._replace(running=known, over=after.over - request.runs)
        yield Step(f"the answer to a {request.kind} comes", after)

    def _registered(self, state: HttpState) -> HttpState:
        """What runs is another worker's; a claim that waits is cut off, and so is the rest."""
        none: frozenset[Run] = frozenset()
        new = state.session + 1
        return state._replace(
            session=new,
            live=new,
            running=none,
            over=none,
            claiming=None,
            sending=None,
            beating=None,
            answers=frozenset(),
        )

    def _beaten(self, state: HttpState, answer: Answer) -> Step[HttpState]:
        now = frozenset({state.claiming.token} if state.claiming else ())
        minded = {
            "sent or read": answer.to.minded | now,
            "sent": answer.to.minded,
            "read": now,
            "none": frozenset(),
        }[self.design.on_the_way]
        strays = frozenset(
            run for run in answer.runs if run[1] not in minded and run not in state.running
        )
        if strays:
            release = Request("release", answer.to.session, 0, strays)
            return Step("a heartbeat lists lost claims", _sent(state, "beating", release))
        return Step("the answer to a heartbeat comes", state)

    def _given_up(self, state: HttpState, request: Request) -> HttpState:
        """The worker waits no longer for this answer. Ends are sent again, a claim is not."""
        request = _whole(request)
        if state.claiming == request:
            state = state._replace(claiming=None)
            if self.design.repeats == "ends and claims" and request.kind == "claim":
                return _sent(state, "claiming", request)
        if state.beating == request:
            state = state._replace(beating=None)
        if state.sending == request:
            state = _sent(state, "sending", request._replace(token=0))
        return state

    # -- servers and the store ---------------------------------------------------------------------

    def _served(self, state: HttpState, request: Request) -> Steps:
        after = state._replace(requests=state.requests - {request})
        if state.faults < self.scope.faults:
            worse = state.faults + 1
            lost = self._given_up(after, request)._replace(faults=worse)
            yield Step(f"a {request.kind} is lost, or its server killed", lost)
            if _waits(state, request):
                late = self._given_up(state, request)._replace(faults=worse)
                yield Step(f"the worker gives up a {request.kind} that is on its way", late)
        if request.kind in ("finish", "release"):
            yield self._finished(state, after, request)
            return
        if request.session != state.live:
            yield Step(
                f"a {request.kind} finds its session ended", self._reply(after, request, is_ended=True)
            )
        elif request.kind == "beat":
            claimed = {(job, token) for job, token in enumerate(state.jobs) if token > 0}
            unlisted = frozenset(claimed - request.runs) if self.design.lists else frozenset()
            yield Step("a heartbeat is answered", self._reply(after, request, unlisted))
        else:
            # The others may become ready a moment later.
            ready = [job for job, token in enumerate(state.jobs) if token == 0][: self.scope.slots]
            for count in {min(1, len(ready)), len(ready)}:
                yield self._claimed(after, request, ready[:count])

    def _claimed(self, state: HttpState, request: Request, ready: list[int]) -> Step[HttpState]:
        breaches = (Rule.REPEATED,) if request.token in state.jobs and ready else ()
        jobs = tuple(request.token if job in ready else token for job, token in enumerate(state.jobs))
        runs = frozenset((job, request.token) for job in ready)
        words = f"a claim takes {len(ready)} jobs"
        return Step(words, self._reply(state._replace(jobs=jobs), request, runs), breaches=breaches)

    def _finished(self, state: HttpState, after: HttpState, request: Request) -> Step[HttpState]:
        to = -1 if request.kind == "finish" else 0
        jobs = tuple(
            to if (job, token) in request.runs else token for job, token in enumerate(state.jobs)
        )
        after = after._replace(jobs=jobs)
        breaches: tuple[Rule, ...] = ()
        if request.kind == "release" and _has(state, request.runs, jobs):
            breaches = (Rule.TAKEN,)
        if request.token:
            rest = request._replace(kind="claim after finish")
            after = after._replace(requests=after.requests | {rest})
        else:
            after = self._reply(after, request)
        return Step(f"a {request.kind} takes", after, breaches=breaches)

    def _reply(
        self,
        state: HttpState,
        request: Request,
        runs: frozenset[Run] = frozenset(),
        *,
        is_ended: bool = False,
    ) -> HttpState:
        if request.kind == "claim after finish":
            request, is_ended = _whole(request), False  # its ends have taken
        if not _waits(state, request):
            return state  # the connection is gone
        return state._replace(answers=state.answers | {Answer(request, runs, is_ended)})


def _whole(request: Request) -> Request:
    """The request as it was sent, of which this may be the second half."""
    return request._replace(kind="finish") if request.kind == "claim after finish" else request


def _waits(state: HttpState, request: Request) -> bool:
    return _whole(request) in (state.claiming, state.sending, state.beating)


def _sent(state: HttpState, slot: Slot, request: Request) -> HttpState:
    requests = state.requests | {request}
    if slot == "claiming":
        return state._replace(claiming=request, requests=requests)
    if slot == "sending":
        return state._replace(sending=request, requests=requests)
    return state._replace(beating=request, requests=requests)


def _fresh(state: HttpState) -> int:
    """The least token that nothing has any more."""
    used = {*state.jobs, *(token for _, token in state.running)}
    for request in (*state.requests, *(answer.to for answer in state.answers)):
        used |= {request.token, *request.minded, *(token for _, token in request.runs)}
    used |= {token for answer in state.answers for _, token in answer.runs}
    return next(token for token in range(1, len(used) + 2) if token not in used)


def _has(state: HttpState, given: frozenset[Run], jobs: tuple[int, ...]) -> bool:
    """Whether one of the claims that this release takes back is the worker's: it knows the job, or the
    answer to its claim is still to come."""
    taken = {(job, token) for job, token in given if state.jobs[job] == token and jobs[job] != token}
    return any(
        run in state.running or run in state.over or (state.claiming and state.claiming.token == run[1])
        for run in taken
    )

"""The claim, finish, beat and rescue protocol as a model, put together from its parties.

**Messages.** A worker sends a request and waits. The request is applied to the store at some later
step. If the worker is still waiting, it gets the answer in that same step; if it has stopped waiting
(a timeout), the answer is lost. This covers every loss: a reply that is lost is a request applied after
the timeout, a request that is lost is one never applied, a slow one is applied much later. A stopped
process (SIGSTOP, a long pause) is one whose steps do not come for a while.

**Statements.** A verb of several statements in one transaction is walked statement by statement where
the scope asks for it: the message stays in the net with a stage above 0 and holds its locks until
its last step, which is also its commit. Under READ COMMITTED a statement sees what is committed when
it starts. So what is read by a statement that then waits for a lock is read in one step (the
snapshot) and acted on in a later one.

**Time** has no numbers. A lease may pass at any moment, which is more than any clock can do. The one
comparison of two times (which claims are older than a beat) is kept as ranks.

**Scopes** bound the walk: a few draws of tokens, a few sessions, one or two faults of a kind. A job
that is ready when the draws are used up is taken by a fresh worker from outside of the scope, so
"can still reach a final state" means just that.

The parties: `workers` (claim, run, finish, give up), `beats` (the heartbeat of a session),
`requests` (how the store applies claim, finish and release), `rescuers` (rescue, end_session, the sweep
of orphans), `outside` (new workers, operators, faults).
"""

from __future__ import annotations

from tests.model.beats import Beats
from tests.model.explore import Rule, Step
from tests.model.outside import Faults, Newcomers, Operators
from tests.model.requests import Requests
from tests.model.rescuers import Rescuers
from tests.model.store import Design, Job, Session, Store
from tests.model.workers import Workers
from tests.model.world import Scope, Steps, Worker, World, letter, name, ranked

PARTS = (Workers, Beats, Requests, Rescuers, Newcomers, Operators, Faults)


class ProtocolModel:
    """One design in one scope."""

    def __init__(self, design: Design, scope: Scope) -> None:
        self.scope = scope
        self.parts = [part(design, scope) for part in PARTS]

    def initial(self) -> World:
        started = self.scope.workers
        return World(
            store=Store(jobs=(Job(),) * self.scope.jobs, sessions=(Session(),) * started),
            workers=(Worker(),) * started,
            times=(0,) * started,
            fences=(0,) * self.scope.jobs,
        )

    def steps(self, world: World) -> Steps:
        is_any_final = any(job.is_final for job in world.store.jobs)
        for part in self.parts:
            for step in part.steps(world):
                breaches = step.breaches
                if is_any_final and changes_final(world, step):
                    breaches += (Rule.FINAL,)
                after = ranked(step.state) if self.scope.beats else step.state
                yield Step(step.label, after, step.is_help, breaches)

    def breaches(self, world: World) -> tuple[Rule, ...]:
        found = []
        if any(job.cancel_requested and job.state == "ready" for job in world.store.jobs):
            found.append(Rule.STALE_CANCEL)
        if sum(job.crashes for job in world.store.jobs) > world.deaths:
            found.append(Rule.BLAME)
        return tuple(found)

    def is_settled(self, world: World) -> bool:
        return all(job.is_final for job in world.store.jobs)

    def describe(self, world: World) -> str:
        words = []
        for number, job in enumerate(world.store.jobs):
            text = f"job {number + 1} {job.state}" if self.scope.jobs > 1 else job.state
            if job.state == "running":
                text += f" under {letter(job.token)} of {name(job.session)}"
            if job.cancel_requested and not job.is_final:
                text += ", to be cancelled"
            words.append(text)
        for number, session in enumerate(world.store.sessions):
            if session is None:
                words.append(f"{name(number)} unknown")
            elif session.is_ended:
                words.append(f"{name(number)} ended")
            elif session.is_lapsed:
                words.append(f"{name(number)} past its lease")
        return "; ".join(words)


def changes_final(world: World, step: Step[World]) -> bool:
    """Return whether a step other than an operator's, or a restored backup, changes a final job."""
    return not step.is_help and any(
        before.is_final and before != after
        for before, after in zip(world.store.jobs, step.state.store.jobs, strict=True)
    )

"""Everybody else: new workers, operators, and what goes wrong."""

from __future__ import annotations

from tests.model import store as rows
from tests.model.explore import Step
from tests.model.store import NONE, Session, Store, Write
from tests.model.world import NO_WRITE, OUTSIDE, Part, Steps, Worker, World, name


class Newcomers(Part):
    def steps(self, world: World) -> Steps:
        alive = sum(worker.is_alive for worker in world.workers)
        can_start = alive < self.scope.workers and len(world.workers) < self.scope.sessions
        if can_start:
            yield Step(
                f"a new worker starts {name(len(world.workers))}",
                world._replace(
                    store=world.store._replace(sessions=(*world.store.sessions, Session())),
                    workers=(*world.workers, Worker()),
                    times=(*world.times, 0),
                ),
            )
        if world.draws == self.scope.draws or not (alive or can_start):
            for number, job in enumerate(world.store.jobs):
                if job.state == "ready":
                    claimed = rows.claimed(job, OUTSIDE, NONE, 0, OUTSIDE, job.fence)
                    write = Write(number, OUTSIDE, claimed.attempt, OUTSIDE)
                    yield Step(
                        f"a fresh worker claims job {number + 1} and completes it",
                        world.with_job(number, rows.finished(self.design, claimed, write)),
                    )


class Operators(Part):
    def steps(self, world: World) -> Steps:
        for number, job in enumerate(world.store.jobs):
            cancelled = rows.cancelled(job)
            if cancelled is not None and world.cancels < self.scope.cancels:
                after = world.with_job(number, cancelled)._replace(cancels=world.cancels + 1)
                yield Step("an operator cancels the job", after, is_help=True)
            if job.is_final and world.retries < self.scope.retries:
                again = rows.retried(self.design, job)
                after = world.with_job(number, again)._replace(retries=world.retries + 1)
                yield Step("an operator retries the job", after, is_help=True)


class Faults(Part):
    def steps(self, world: World) -> Steps:
        yield from self._lapses(world)
        if world.deaths < self.scope.deaths:
            for number, worker in enumerate(world.workers):
                if worker.phase in {"claiming", "held", "running", "finishing"}:
                    yield self._kill(world, number, worker)
        if world.restarts < self.scope.restarts and any(message.stage for message in world.net):
            yield Step(
                "the store restarts; transactions under way roll back",
                world.rolled_back()._replace(restarts=world.restarts + 1),
                is_help=True,
            )
        if world.restores < self.scope.restores:
            if world.backup is None:
                yield Step("a backup is taken", world._replace(backup=world.store), is_help=True)
            else:
                yield self._restore(world, world.backup)

    def _lapses(self, world: World) -> Steps:
        for number, session in enumerate(world.store.sessions):
            if session is None or session.is_ended or session.is_lapsed:
                continue
            # The lease of an idle session with nothing on its way has no effect.
            if world.store.running(number) or any(m.session == number for m in world.net):
                lapsed = world.store.with_session(number, session._replace(is_lapsed=True))
                yield Step(
                    f"the lease of {name(number)} passes",
                    world._replace(store=lapsed),
                    is_help=world.workers[number].is_alive,
                )

    def _kill(self, world: World, number: int, worker: Worker) -> Step[World]:
        # The supervisor knows from shared memory whether the handler had started.
        started = worker.write if worker.phase in {"running", "finishing"} else NO_WRITE
        dead = Worker(phase="dead", write=started)
        return Step(
            f"the process of {name(number)} is killed",
            world.unheard(number).with_worker(number, dead)._replace(deaths=world.deaths + 1),
            is_help=True,
        )

    def _restore(self, world: World, backup: Store) -> Step[World]:
        unknown = (None,) * (len(world.workers) - len(backup.sessions))
        sessions = (*backup.sessions, *unknown)
        workers = tuple(
            worker._replace(is_deceived=session is not None and session.beats < worker.acked)
            for worker, session in zip(world.workers, sessions, strict=True)
        )
        return Step(
            "the backup is restored, the workers keep running",
            world.rolled_back()._replace(
                store=backup._replace(sessions=sessions),
                workers=workers,
                backup=None,
                restores=world.restores + 1,
            ),
            is_help=True,
        )

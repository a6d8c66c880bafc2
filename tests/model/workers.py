"""What a worker does with its claims: claim, run, finish, and give up what it may have lost."""

from __future__ import annotations

from tests.model import store as rows
from tests.model.explore import Rule, Step
from tests.model.world import Message, Part, Steps, Worker, World, letter, name


class Workers(Part):
    def steps(self, world: World) -> Steps:
        for number, worker in enumerate(world.workers):
            match worker.phase:
                case "idle":
                    # A claim sent while nothing is ready is the same as one sent earlier and delayed.
                    is_ready = any(job.state == "ready" for job in world.store.jobs)
                    if is_ready and world.draws < self.scope.draws:
                        yield self._claim(world, number, worker)
                case "claiming":
                    yield self._miss_claim(world, number, worker)
                case "held":
                    if self.scope.deaths:
                        # Whether the handler had started matters only to a supervisor.
                        started = world.with_worker(number, worker._replace(phase="running"))
                        yield Step(f"{name(number)} starts the handler", started)
                    else:
                        yield from self._finish(world, number, worker)
                    if self.scope.releases:
                        yield self._release(world, number, worker)
                case "running":
                    yield from self._finish(world, number, worker)
                case "finishing":
                    if worker.sends <= self.scope.resends:
                        yield self._miss_finish(world, number, worker)
            if worker.is_alive:
                yield from self._give_up(world, number, worker)

    def _claim(self, world: World, number: int, worker: Worker) -> Step[World]:
        draw = token = world.draws + 1
        drawn = world._replace(draws=draw)
        if self.design.tokens == "counter":
            token = world.store.counter + 1
            drawn = drawn._replace(store=world.store._replace(counter=token))
        claiming = worker._replace(phase="claiming", token=token, draw=draw, sends=1)
        claim = Message("claim", number, is_awaited=True, token=token, draw=draw)
        return Step(
            f"{name(number)} draws token {letter(token)} and sends a claim",
            drawn.with_worker(number, claiming).sending(claim),
        )

    def _miss_claim(self, world: World, number: int, worker: Worker) -> Step[World]:
        token = letter(worker.token)
        late = world.unheard(number)
        if self.design.lost_claim == "repeat" and worker.sends <= self.scope.resends:
            again = Message("claim", number, is_awaited=True, token=worker.token, draw=worker.draw)
            return Step(
                f"{name(number)} gets no answer and sends the claim with {token} again",
                late.with_worker(number, worker._replace(sends=worker.sends + 1)).sending(again),
            )
        given_up = tuple(sorted((*worker.given_up, worker.token)))
        return Step(
            f"{name(number)} gets no answer and gives token {token} up",
            late.with_worker(number, worker.idle()._replace(given_up=given_up)),
        )

    def _finish(self, world: World, number: int, worker: Worker) -> Steps:
        for outcome in self.scope.outcomes:
            write = worker.write._replace(outcome=outcome)
            finishing = worker._replace(phase="finishing", write=write, sends=1)
            finish = Message("finish", number, is_awaited=True, write=write)
            yield Step(
                f"{name(number)}'s handler returns {outcome}; "
                f"it sends a finish under {letter(write.token)}",
                world.with_worker(number, finishing).sending(finish),
            )

    def _miss_finish(self, world: World, number: int, worker: Worker) -> Step[World]:
        again = Message("finish", number, is_awaited=True, write=worker.write)
        sent = worker._replace(sends=worker.sends + 1)
        return Step(
            f"{name(number)} gets no answer and sends the finish again",
            world.unheard(number).with_worker(number, sent).sending(again),
        )

    def _release(self, world: World, number: int, worker: Worker) -> Step[World]:
        release = Message("release", number, write=worker.write)
        return Step(
            f"{name(number)} sends a release under {letter(worker.write.token)}",
            world.with_worker(number, worker.idle()).sending(release),
        )

    def _give_up(self, world: World, number: int, worker: Worker) -> Steps:
        """Have released what lost claims took. A call that arrives late does the same as one sent
        late, because no request uses these tokens any more; so it takes one step."""
        for token in dict.fromkeys(worker.given_up):
            jobs = [n for n in world.store.running(number) if world.store.jobs[n].token == token]
            after = world
            if self.design.give_up == "once":
                left = list(worker.given_up)
                left.remove(token)
                after = after.with_worker(number, worker._replace(given_up=tuple(left)))
            if after is not world or jobs:
                label = f"{name(number)} has the jobs of {letter(token)} released"
                yield hand_back(after, jobs, label)


def hand_back(world: World, jobs: list[int], label: str) -> Step[World]:
    """Release claims on the word of their session."""
    breaches = tuple(Rule.TAKEN for n in jobs if world.has_holder(world.store.jobs[n]))
    for number in jobs:
        world = world.with_job(number, rows.handed_back(world.store.jobs[number]))
    return Step(label, world, breaches=breaches)

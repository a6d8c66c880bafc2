"""How the store applies what workers send about claims: claim, finish, release."""

from __future__ import annotations

from tests.model import store as rows
from tests.model.explore import Rule, Step
from tests.model.store import Answer, Job, Write
from tests.model.world import GONE, Message, Part, Steps, World, letter


class Requests(Part):
    def steps(self, world: World) -> Steps:
        for message in dict.fromkeys(world.net):
            match message.kind:
                case "claim":
                    yield from self._claim(world, message)
                case "finish" if message.stage == 0:
                    yield self._finish(world, message)
                case "finish":
                    yield self._finish_later(world, message)
                case "release":
                    yield self._release(world, message)

    # -- claim -----------------------------------------------------------------------------------

    def _claim(self, world: World, claim: Message) -> Steps:
        """Lock the session in share mode, then take a ready job."""
        number = claim.session
        label = f"the claim with {letter(claim.token)}"
        if claim.stage == 0:
            if self.design.claim_locks_session and world.is_ending(number):
                return  # it waits for the lock, and then finds the session ended
            if not world.store.is_live(number):
                after = world.without(claim)
                if claim.is_awaited:
                    after = after.with_worker(number, GONE)
                yield Step(f"{label} finds its session not live and takes nothing", after)
                return
            if "claim" in self.scope.statements:
                locks = " and locks it" if self.design.claim_locks_session else ""
                locked = world.swap(claim, claim._replace(stage=1))
                yield Step(f"{label} finds its session live{locks}", locked)
                return
        if self.design.lost_claim == "repeat":
            # At its best: what an earlier send of this call took is given again, nothing is added.
            for job in world.store.running(number):
                if world.store.jobs[job].token == claim.token:
                    yield self._hand_over(world.without(claim), claim, job)
                    return
        ready = [n for n, job in enumerate(world.store.jobs) if job.state == "ready"]
        for job in ready:
            yield self._land(world, claim, job)
        if not ready:
            after = world.without(claim)
            if claim.is_awaited:
                after = after.with_worker(number, after.workers[number].idle())
            yield Step(f"{label} finds nothing ready", after)

    def _land(self, world: World, claim: Message, number: int) -> Step[World]:
        job = world.store.jobs[number]
        session = world.store.sessions[claim.session]
        breaches: list[Rule] = []
        if job.claim:
            breaches.append(Rule.ONE_CLAIM)
        if session is None or session.is_ended or session.is_swept:
            breaches.append(Rule.DEAD_SESSION)
        if any(token == claim.token for token, _ in world.landed):
            breaches.append(Rule.REPEATED)
        # A draw that lands a second time is a claim of its own, whatever its token.
        is_first = all(draw != claim.draw for _, draw in world.landed)
        ghost = claim.draw if is_first else claim.draw + 10
        fence = 0
        if self.scope.restores:
            # Each landing is later than the one before: no backup sets the clock back.
            now = len(world.landed) + 1 if self.design.fence_number == "store time" else 0
            fence = max(job.fence + 1, now)
            if fence <= world.fences[number]:
                breaches.append(Rule.FENCE)
        at = world.times[claim.session]
        row = rows.claimed(job, claim.token, claim.session, at, ghost, fence)
        after = world.without(claim)._replace(
            landed=tuple(sorted((*world.landed, (claim.token, ghost)))),
            fences=(*world.fences[:number], fence, *world.fences[number + 1 :]),
        )
        step = self._hand_over(after.with_job(number, row), claim, number)
        return step._replace(breaches=tuple(breaches))

    def _hand_over(self, world: World, claim: Message, number: int) -> Step[World]:
        """Answer a claim with a job that runs under its token."""
        label = f"the claim with {letter(claim.token)} takes job {number + 1}"
        if not claim.is_awaited:
            return Step(f"{label}; the reply is lost", world)
        job = world.store.jobs[number]
        write = Write(number, claim.token, job.attempt, job.claim)
        held = world.workers[claim.session].idle()._replace(phase="held", write=write)
        return Step(label, world.with_worker(claim.session, held))

    # -- finish ----------------------------------------------------------------------------------

    def _finish(self, world: World, finish: Message) -> Step[World]:
        """The first statement: in one design a snapshot for later, in the others the fenced update."""
        job = world.store.jobs[finish.write.job]
        by_statement = "finish" in self.scope.statements
        if self.design.lookup == "same statement" and by_statement:
            seen = (int(rows.carries(job, finish.write.token)),)
            waiting = world.swap(finish, finish._replace(stage=1, seen=seen))
            return Step(f"{_of(finish)} begins and waits for the row, its snapshot taken", waiting)
        step = self._update(world, finish)
        if step is not None:
            return step
        if by_statement and self.design.lookup != "none":
            later = world.swap(finish, finish._replace(stage=1))
            return Step(f"{_of(finish)} matches no row", later)
        return self._answer(world, finish, self._look_up(job, finish))

    def _finish_later(self, world: World, finish: Message) -> Step[World]:
        """The later statements: the look-up for a finish that did not take."""
        job = world.store.jobs[finish.write.job]
        if self.design.lookup == "same statement":
            step = self._update(world, finish)
            if step is not None:
                return step
        if self.design.lookup == "live, then archive":
            # A final job is in the archive, any other among the live ones.
            if finish.stage == 1 and job.is_final:
                later = world.swap(finish, finish._replace(stage=2))
                return Step(f"{_of(finish)} looks among the live jobs and finds none", later)
            if finish.stage == 2 and not job.is_final:
                return self._answer(world, finish, "lost")
        return self._answer(world, finish, self._look_up(job, finish))

    def _update(self, world: World, finish: Message) -> Step[World] | None:
        """The fenced update; None where it matches no row."""
        write = finish.write
        job = world.store.jobs[write.job]
        took = rows.finish_matches(self.design, job, write)
        breach = rows.finish_breach(job, write, took=took)
        if not took:
            if breach is None:
                return None
            return Step(f"{_of(finish)} is refused", world.without(finish), breaches=(breach,))
        after = world.with_job(write.job, rows.finished(self.design, job, write))
        step = self._answer(after, finish, "took")
        return step if breach is None else step._replace(breaches=(*step.breaches, breach))

    def _look_up(self, job: Job, finish: Message) -> Answer:
        found = bool(finish.seen[0]) if finish.seen else rows.carries(job, finish.write.token)
        return "already" if found and self.design.lookup != "none" else "lost"

    def _answer(self, world: World, finish: Message, answer: Answer) -> Step[World]:
        after = world.without(finish)
        if not finish.is_awaited:
            return Step(f"{_of(finish)} is answered {answer}, and the reply is lost", after)
        breach = rows.answer_breach(world.store.jobs[finish.write.job], finish.write, answer)
        idle = after.workers[finish.session].idle()
        return Step(
            f"{_of(finish)} is answered {answer}",
            after.with_worker(finish.session, idle),
            breaches=() if breach is None else (breach,),
        )

    # -- release ---------------------------------------------------------------------------------

    def _release(self, world: World, release: Message) -> Step[World]:
        write = release.write
        job = world.store.jobs[write.job]
        after = world.without(release)
        if not rows.release_matches(self.design, job, write):
            refused = (Rule.REFUSED,) if job.claim == write.claim else ()
            return Step(f"{_of(release)} is refused", after, breaches=refused)
        foreign = (Rule.FOREIGN_WRITE,) if job.claim != write.claim else ()
        after = after.with_job(write.job, rows.handed_back(job))
        return Step(f"{_of(release)} takes effect", after, breaches=foreign)


def _of(message: Message) -> str:
    return f"the {message.kind} under {letter(message.write.token)}"

"""Ending sessions: the rescue of one past its lease, the supervisor's end_session, the sweep of orphans.

A session is locked and ended first; its running jobs are read and taken by a later statement of the
same transaction. A claim under way holds the session's row in share mode, so it has either
committed and is seen by that statement, or it waits, and finds the session ended.
"""

from __future__ import annotations

from tests.model import store as rows
from tests.model.explore import Rule, Step
from tests.model.store import NONE
from tests.model.world import Message, Part, Steps, World, name

OVERLAPPING_SWEEPS = 2


class Rescuers(Part):
    def steps(self, world: World) -> Steps:
        yield from self._beginnings(world)
        for message in dict.fromkeys(world.net):
            if message.kind in {"rescue", "end"}:
                yield from self._proceed(world, message)
            elif message.kind == "sweep":
                yield self._finish_sweep(world, message)

    def _beginnings(self, world: World) -> Steps:
        for number, session in enumerate(world.store.sessions):
            if session is None or session.is_ended:
                continue
            if session.is_lapsed and not world.is_sent(number, "rescue"):
                yield from self._begin(world, Message("rescue", number))
            # The supervisor ends the session of a child that it has reaped.
            if world.workers[number].phase == "dead" and not world.is_sent(number, "end"):
                yield from self._begin(world, Message("end", number))
        if self.design.sweep != "none" and world.store.orphans():
            yield from self._sweep(world)

    # -- ending a session ------------------------------------------------------------------------

    def _begin(self, world: World, message: Message) -> Steps:
        """What is read before the session is locked, where the design reads anything there."""
        number = message.session
        by_statement = "rescue" in self.scope.statements
        if by_statement and self.design.rescue_reads_jobs == "before the lock":
            jobs = tuple(world.store.running(number))
            seen = f"its snapshot holds {len(jobs)} job(s) of it"
            begun = world.sending(message._replace(jobs=jobs))
            yield Step(f"{_sender(message)} begins to end {name(number)}; {seen}", begun)
        elif by_statement and self._trusts_old_lease(message):
            yield Step(
                f"{_sender(message)} reads that the lease of {name(number)} has passed",
                world.sending(message),
            )
        else:
            yield from self._proceed(world.sending(message), message)

    def _trusts_old_lease(self, message: Message) -> bool:
        return message.kind == "rescue" and self.design.rescue_reads_lease == "before the lock"

    def _proceed(self, world: World, message: Message) -> Steps:
        if message.stage:
            yield from self._take(world, message, ())
            return
        number = message.session
        session = world.store.sessions[number]
        if world.is_ending(number):
            return
        if self.design.claim_locks_session and world.is_claiming(number):
            return
        is_extended = message.kind == "rescue" and session is not None and not session.is_lapsed
        is_over = session is None or session.is_ended
        if is_over or (is_extended and not self._trusts_old_lease(message)):
            done = world.without(message)
            yield Step(f"{_sender(message)} finds nothing to end in {name(number)}", done)
            return
        holders = [world.has_holder(world.store.jobs[n]) for n in world.store.running(number)]
        breaches = (Rule.TAKEN,) if is_extended and any(holders) else ()
        reads_later = self.design.rescue_reads_jobs == "after the lock"
        if "rescue" in self.scope.statements and reads_later:
            ends = " and ends it (not committed yet)" if self.design.rescue_ends_session else ""
            yield Step(
                f"{_sender(message)} locks {name(number)}{ends}",
                world.swap(message, message._replace(stage=1)),
                breaches=breaches,
            )
        else:
            yield from self._take(world, message, breaches)

    def _take(self, world: World, message: Message, breaches: tuple[Rule, ...]) -> Steps:
        """Take the session's running jobs and commit."""
        number = message.session
        session = world.store.sessions[number]
        assert session is not None  # only a restored backup makes it unknown
        jobs = world.store.running(number)
        if self.design.rescue_reads_jobs == "before the lock" and "rescue" in self.scope.statements:
            jobs = [n for n in jobs if n in message.jobs]
        ends = "ends" if self.design.rescue_ends_session else "goes through"
        for taken in [jobs, []] if jobs and self.scope.skips else [jobs]:
            after = world.without(message)
            for job in taken:
                after = self._take_job(after, message, job)
            swept = session._replace(
                is_ended=self.design.rescue_ends_session,
                is_swept=True,
                is_robbed=session.is_robbed or bool(taken),
            )
            what = "takes its running jobs" if taken else "takes no job of it"
            if taken != jobs:
                what = "passes over its job, whose row is locked"
            yield Step(
                f"{_sender(message)} {ends} {name(number)} and {what}",
                after._replace(store=after.store.with_session(number, swept)),
                breaches=breaches,
            )

    def _take_job(self, world: World, message: Message, number: int) -> World:
        job = world.store.jobs[number]
        if message.kind == "rescue":
            return world.with_job(number, rows.rescued(job, self.scope.rescue_limit))
        # The supervisor names the claims that had started; the others are not to blame.
        had_started = job.claim == world.workers[message.session].write.claim
        return world.with_job(number, rows.crashed(job) if had_started else rows.handed_back(job))

    # -- orphans ---------------------------------------------------------------------------------

    def _sweep(self, world: World) -> Steps:
        """Read which running jobs have no live session, then take them."""
        orphans = world.store.orphans()
        if self.design.sweep == "by token":
            seen = tuple(world.store.jobs[n].token for n in orphans)
        else:
            seen = tuple(n for n in range(len(world.workers)) if world.store.is_live(n))
        sweep = Message("sweep", NONE, stage=1, seen=seen, jobs=tuple(orphans))
        yield self._finish_sweep(world.sending(sweep), sweep)
        under_way = sum(message.kind == "sweep" for message in world.net)
        if "sweep" in self.scope.statements and under_way < OVERLAPPING_SWEEPS:
            label = "a sweeper reads which running jobs have no live session"
            yield Step(label, world.sending(sweep))

    def _finish_sweep(self, world: World, sweep: Message) -> Step[World]:
        after = world.without(sweep)
        breaches: list[Rule] = []
        for number in sweep.jobs:
            job = world.store.jobs[number]
            if self.design.sweep == "by token":
                is_meant = job.token in sweep.seen
            else:
                # The row is read again when it is locked, the sessions are those of the snapshot.
                is_meant = job.session not in sweep.seen
            if job.state != "running" or not is_meant:
                continue
            if world.store.is_live(job.session) and world.has_holder(job):
                breaches.append(Rule.TAKEN)
            after = after.with_job(number, rows.rescued(job, self.scope.rescue_limit))
        return Step(
            "a sweeper takes the running jobs without a live session",
            after,
            breaches=tuple(breaches),
        )


def _sender(message: Message) -> str:
    return "a sweeper" if message.kind == "rescue" else "the supervisor"

"""The heartbeat of a session: that it lives, and which of its claims it knows.

A claim whose reply was lost is given up by its token, but a worker cannot know all that the store has
in its name: after a restored backup a job may run again under a token whose finish was answered
long ago. So a session also names the tokens it uses. Everything else that the store has for the
session and that is old enough is released. Old enough: claimed before the last beat that was
acknowledged when the names were read. A token drawn later than that can only land later.
"""

from __future__ import annotations

from tests.model.explore import Rule, Step
from tests.model.workers import hand_back
from tests.model.world import GONE, Message, Part, Steps, Worker, World, letter, name


class Beats(Part):
    def steps(self, world: World) -> Steps:
        if not self.scope.beats:
            return
        for number, worker in enumerate(world.workers):
            if worker.is_alive:
                yield from self._beats(world, number, worker)
                if self.design.unnamed == "asked":
                    yield from self._ask(world, number)
                elif self.design.unnamed != "none":
                    yield from self._name(world, number, worker)
        for message in world.net:
            match message.kind:
                case "beat":
                    yield from self._beat(world.without(message), message, "has a delayed beat land")
                case "unnamed":
                    yield self._release_unnamed(world.without(message), message)
                case "tokens":
                    yield self._compare(world.without(message), message)

    def _beats(self, world: World, number: int, worker: Worker) -> Steps:
        beat = Message("beat", number, is_awaited=True, known=worker.acked)
        unread = beat._replace(is_awaited=False)
        yield from self._beat(world, beat, "beats")
        yield from self._beat(world, unread, "beats and the reply is lost")
        if "beat" in self.scope.late and not world.is_sent(number, "beat"):
            yield Step(f"{name(number)} sends a beat that is delayed", world.sending(unread))

    def _beat(self, world: World, beat: Message, verb: str) -> Steps:
        """Apply a beat. It waits for a rescue of its session, not for a claim in it."""
        number = beat.session
        if world.is_ending(number):
            return
        session = world.store.sessions[number]
        is_rewound = session is not None and session.beats < beat.known
        if session is None or session.is_ended or (is_rewound and self.design.rewind_check == "carried"):
            why = "was rewound" if is_rewound else "no longer knows it as live"
            if beat.is_awaited:
                label = f"{name(number)} learns from a beat that the store {why}; it stops"
                yield Step(label, world.with_worker(number, GONE))
            else:
                yield Step(f"{name(number)}'s beat finds that the store {why}", world)
            return
        # The count is there to notice a rewound store, and for nothing else.
        counted = session.beats + 1 if self.scope.restores else 0
        now = world.times[number] + 1
        after = world._replace(
            store=world.store.with_session(number, session._replace(is_lapsed=False, beats=counted)),
            times=(*world.times[:number], now, *world.times[number + 1 :]),
        )
        breaches = [Rule.REVIVED] if session.is_robbed else []
        if beat.is_awaited:
            worker = world.workers[number]
            if self._looks_rewound(counted, worker.acked):
                label = f"{name(number)} learns from a beat that the store was rewound; it stops"
                yield Step(label, after.with_worker(number, GONE))
                return
            if worker.is_deceived:
                breaches.append(Rule.UNNOTICED)
            acked = worker._replace(acked=counted, acked_at=now)
            after = after.with_worker(number, acked)
        yield Step(f"{name(number)} {verb}", after, breaches=tuple(breaches))

    def _looks_rewound(self, answered: int, acked: int) -> bool:
        match self.design.rewind_check:
            case "carried":
                return False  # the store has looked
            case "answer lower":
                return answered < acked
            case "answer not higher":
                return answered <= acked

    def _name(self, world: World, number: int, worker: Worker) -> Steps:
        """Name the tokens in use and have older claims under other tokens released."""
        unnamed = Message("unnamed", number, known=worker.acked_at, seen=worker.in_use)
        if self._unnamed(world, unnamed):
            yield self._release_unnamed(world, unnamed)
        if "unnamed" in self.scope.late and not world.is_sent(number, "unnamed"):
            names = ", ".join(letter(token) for token in worker.in_use) or "none"
            yield Step(
                f"{name(number)} asks to release what it does not name (it names {names})",
                world.sending(unnamed),
            )

    def _unnamed(self, world: World, message: Message) -> list[int]:
        now = world.times[message.session]
        floors = {"older than sent": message.known, "older than last beat": now, "any age": now + 1}
        return [
            number
            for number in world.store.running(message.session)
            if world.store.jobs[number].token not in message.seen
            and world.store.jobs[number].claimed_at < floors[self.design.unnamed]
        ]

    def _release_unnamed(self, world: World, message: Message) -> Step[World]:
        label = f"the old claims that {name(message.session)} did not name are released"
        return hand_back(world, self._unnamed(world, message), label)

    def _ask(self, world: World, number: int) -> Steps:
        """Ask for the tokens that the store has for the session, to give up the unknown ones."""
        tokens = {world.store.jobs[n].token for n in world.store.running(number)}
        if tokens:
            answer = Message("tokens", number, seen=tuple(sorted(tokens)))
            yield self._compare(world, answer)
            if "unnamed" in self.scope.late and not world.is_sent(number, "tokens"):
                label = f"{name(number)} asks which tokens the store has; the answer is slow"
                yield Step(label, world.sending(answer))

    def _compare(self, world: World, answer: Message) -> Step[World]:
        """Give up what is unknown now, when the answer is read: a token in it was drawn before."""
        worker = world.workers[answer.session]
        if worker.is_alive:
            unknown = set(answer.seen) - set(worker.in_use)
            given_up = tuple(sorted({*worker.given_up, *unknown}))
            world = world.with_worker(answer.session, worker._replace(given_up=given_up))
        return Step(f"{name(answer.session)} learns which of its tokens the store has", world)

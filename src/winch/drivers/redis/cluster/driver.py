"""The driver for a cluster: the verbs of one server, each carried out in the parts of the store that it
concerns.

A job that stands alone lives in one of 64 shards, found by its id. One that has to do with others (a
unique key, a gate, a FIFO key, a tenant, something that waits for it) lives at home, where one script
sees all of them; so does everything that is no job. `docs/protocol.md` says what holds across parts;
how they are reached is in fan_out.py, the way home in handover.py, reads over all of them in reads.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from winch.core.errors import EnqueueUncertain, StorageFull
from winch.core.gates import is_gated
from winch.core.job import CRASH_RULE, NO_CHANGES, Note, RetryChanges, SuspectRule
from winch.core.policy.unique import Duplicate
from winch.drivers.redis.cluster.claims import WideClaims
from winch.drivers.redis.cluster.reads import lives_at_home
from winch.drivers.redis.cluster.shards import EVERYWHERE, HOME, shard_of
from winch.drivers.redis.records import micros
from winch.drivers.redis.verbs.base import Body
from winch.drivers.redis.verbs.claim import DrawnTwice, read_cancels
from winch.storage.decide.waits import Taken
from winch.storage.params import (
    Acted,
    Answer,
    ClaimRef,
    Enqueued,
    Finish,
    NewJob,
    NewSession,
    Promoted,
    Pulse,
    Rebinding,
    Rescued,
    Standing,
    Wait,
)
from winch.storage.verbs import Verb


class RedisClusterDriver(WideClaims):
    """`redis+cluster://host1,host2,host3?schema=winch`: one store over many machines."""

    @property
    def name(self) -> str:
        return "redis+cluster"

    # -- producing ---------------------------------------------------------------------------------

    def enqueue(
        self, jobs: Sequence[NewJob], *, is_repeat: bool = False, now: datetime | None = None
    ) -> Verb[list[Enqueued]]:
        def at(chosen: Sequence[NewJob], *, again: bool = is_repeat) -> Body[list[Enqueued]]:
            return super(RedisClusterDriver, self).enqueue(chosen, is_repeat=again, now=now).steps()

        def body() -> Body[list[Enqueued]]:
            groups: dict[int, list[int]] = {}
            answers: list[Any] = [None] * len(jobs)
            known = yield from self._known_at_home(jobs)
            for place, job in enumerate(jobs):
                where = HOME if lives_at_home(job) else shard_of(job.id)
                if where != HOME and job.id in known:
                    answers[place] = Enqueued(job.id, False)
                else:
                    groups.setdefault(where, []).append(place)
            if HOME in groups:
                places = groups.pop(HOME)
                found = yield from self._enqueue_at_home([jobs[place] for place in places], at)
                for place, answer in zip(places, found, strict=True):
                    answers[place] = answer
                if _is_refused([jobs[place] for place in places], found):
                    return [
                        answer or Enqueued(job.id, False)
                        for answer, job in zip(answers, jobs, strict=True)
                    ]
            chosen = {where: [jobs[place] for place in group] for where, group in groups.items()}
            results = yield from self._scatter([(where, at(some)) for where, some in chosen.items()])
            again = [
                (where, at(some, again=True))
                for (where, some), result in zip(chosen.items(), results, strict=True)
                if isinstance(result, DrawnTwice)
            ]
            if again:  # what is there stays as it is; nobody else's jobs are kept out by it
                repeats = iter((yield from self._scatter(again)))
                results = [next(repeats) if isinstance(r, DrawnTwice) else r for r in results]
            if any(isinstance(result, EnqueueUncertain) for result in results):
                raise EnqueueUncertain(
                    "not all nodes have confirmed the jobs; they are stored, but a failover may lose "
                    "them. Enqueue again with the same ids",
                    [job.id for job in jobs],
                )
            full = next((result for result in results if isinstance(result, StorageFull)), None)
            if full is not None and not all(isinstance(result, StorageFull) for result in results):
                raise EnqueueUncertain(
                    f"some of the jobs are stored, others are not: {full}. Enqueue again with the same "
                    "ids when there is room",
                    [job.id for job in jobs],
                ) from full
            for group, found in zip(groups.values(), self._whole(results), strict=True):
                for place, answer in zip(group, found, strict=True):
                    answers[place] = answer
            return answers

        return self._write("enqueue", body)

    def _known_at_home(self, jobs: Sequence[NewJob]) -> Body[set[str]]:
        """Jobs that stand alone, under ids of the caller's that are at home: they were stored there with
        more to say, or have moved."""
        given = [job.id for job in jobs if job.is_given_id and not lives_at_home(job)]
        if not given:
            return set()
        (found,) = self._whole((yield from self._scatter([(HOME, self._find(given))])))
        return {job.id for job in found if job is not None}

    def _enqueue_at_home(
        self, jobs: Sequence[NewJob], at: Callable[..., Body[list[Enqueued]]]
    ) -> Body[list[Enqueued]]:
        """Those with an id of the caller's may be in a shard already, as jobs that stand alone."""
        given = [job.id for job in jobs if job.is_given_id]
        known: set[str] = set()
        if given:
            found = yield from self._look_up(given)
            known = {job.id for job in found if job is not None}
        new = [job for job in jobs if job.id not in known]
        stored = iter((yield from at(new)) if new else ())
        return [Enqueued(job.id, False) if job.id in known else next(stored) for job in jobs]

    def enqueue_after(
        self,
        jobs: Sequence[NewJob],
        waits: Sequence[tuple[str, Sequence[Wait]]],
        *,
        claim: ClaimRef | None = None,
        is_repeat: bool = False,
        now: datetime | None = None,
    ) -> Verb[list[Enqueued] | None]:
        """At home, where those who wait and those who are waited for find each other."""

        def body() -> Body[list[Enqueued] | None]:
            if claim is not None:
                yield from self._bring_home([claim])
            after = super(RedisClusterDriver, self).enqueue_after(
                jobs, waits, claim=claim, is_repeat=is_repeat, now=now
            )
            return (yield from after.steps())

        return self._write("enqueue_after", body)

    def take_signal(
        self, claim: ClaimRef, name: str, *, wanted_by: str, now: datetime | None = None
    ) -> Verb[Taken]:
        def body() -> Body[Taken]:
            yield from self._bring_home([claim])
            taking = super(RedisClusterDriver, self).take_signal(
                claim, name, wanted_by=wanted_by, now=now
            )
            return (yield from taking.steps())

        return self._write("take_signal", body)

    # -- working -----------------------------------------------------------------------------------

    def finish(self, outcomes: Sequence[Finish], *, now: datetime | None = None) -> Verb[list[Answer]]:
        def body() -> Body[list[Answer]]:
            yield from self._bring_home(
                ClaimRef(outcome.id, outcome.token) for outcome in outcomes if _needs_others(outcome)
            )
            answers = yield from self._by_id(
                outcomes,
                lambda outcome: outcome.id,
                lambda some: super(RedisClusterDriver, self).finish(some, now=now).steps(),
                lambda answer: answer is Answer.LOST,
            )
            self._claimed_at_home.difference_update([outcome.id for outcome in outcomes])
            return answers

        return self._write("finish", body)

    def release(
        self, claims: Sequence[ClaimRef], *, has_started: bool = False, now: datetime | None = None
    ) -> Verb[list[Answer]]:
        return self._write(
            "release",
            lambda: self._by_id(
                claims,
                lambda ref: ref.id,
                lambda some: (
                    super(RedisClusterDriver, self)
                    .release(some, has_started=has_started, now=now)
                    .steps()
                ),
                lambda answer: answer is Answer.LOST,
            ),
        )

    def crash(
        self,
        claims: Sequence[ClaimRef],
        *,
        cause: str,
        rule: SuspectRule = CRASH_RULE,
        now: datetime | None = None,
    ) -> Verb[list[Answer]]:
        return self._write(
            "crash",
            lambda: self._by_id(
                claims,
                lambda ref: ref.id,
                lambda some: (
                    super(RedisClusterDriver, self).crash(some, cause=cause, rule=rule, now=now).steps()
                ),
                lambda answer: answer is Answer.LOST,
            ),
        )

    def note(self, claim: ClaimRef, note: Note) -> Verb[Answer]:
        def at(some: Sequence[ClaimRef]) -> Body[list[Answer]]:
            answer = yield from super(RedisClusterDriver, self).note(some[0], note).steps()
            return [answer]

        def body() -> Body[Answer]:
            (answer,) = yield from self._by_id(
                [claim], lambda ref: ref.id, at, lambda answer: answer is Answer.LOST
            )
            return answer

        return self._write("note", body)

    def standing(self, claims: Sequence[ClaimRef]) -> Verb[list[Standing]]:
        return self._write(
            "standing",
            lambda: self._by_id(
                claims,
                lambda ref: ref.id,
                lambda some: super(RedisClusterDriver, self).standing(some).steps(),
                lambda answer: answer is Standing.LOST,
            ),
        )

    def give_up(self, session: str, tokens: Sequence[str], *, now: datetime | None = None) -> Verb[int]:
        def body() -> Body[int]:
            given = yield from self._everywhere(
                lambda: super(RedisClusterDriver, self).give_up(session, tokens, now=now).steps()
            )
            return sum(given)

        return self._write("give_up", body)

    def held(self, session: str) -> Verb[list[ClaimRef]]:
        def body() -> Body[list[ClaimRef]]:
            found = yield from self._everywhere(
                lambda: super(RedisClusterDriver, self).held(session).steps()
            )
            return sorted((ref for some in found for ref in some), key=lambda ref: ref.id)

        return self._read("held", body)

    def cancels(self, sessions: Sequence[str]) -> Verb[list[ClaimRef]]:
        def body() -> Body[list[ClaimRef]]:
            what = self._call("cancels", sessions=sessions)
            replies = self._whole((yield from self._ask([(number, what) for number in EVERYWHERE])))
            return read_cancels([word for reply in replies for word in reply], sessions)

        return self._read("cancels", body)

    # -- sessions ----------------------------------------------------------------------------------

    def start_session(self, session: NewSession, *, now: datetime | None = None) -> Verb[datetime]:
        """In every part, because a claim asks the part it takes from whether the session is live."""

        def body() -> Body[datetime]:
            results = yield from self._scatter(
                [
                    (number, super(RedisClusterDriver, self).start_session(known, now=now).steps())
                    for number in EVERYWHERE
                    for known in [
                        session if number == HOME else msgspec.structs.replace(session, schedules=())
                    ]
                ]
            )
            return self._whole(results)[HOME]

        return self._write("start_session", body)

    def beat(self, sessions: Sequence[str], *, now: datetime | None = None) -> Verb[list[Pulse]]:
        """Acknowledged when every part has it: live is who is live everywhere, and the lowest count
        tells of a part that was set back."""

        def body() -> Body[list[Pulse]]:
            found = yield from self._everywhere(
                lambda: super(RedisClusterDriver, self).beat(sessions, now=now).steps()
            )
            return [
                Pulse(
                    session,
                    is_live=all(pulse.is_live for pulse in pulses),
                    beats=min(pulse.beats for pulse in pulses),
                    now=min(pulse.now for pulse in pulses),
                )
                for session, *pulses in zip(sessions, *found, strict=True)
            ]

        return self._write("beat", body)

    def end_session(
        self,
        session: str,
        *,
        started: Sequence[ClaimRef] = (),
        cause: str | None = None,
        rule: SuspectRule = CRASH_RULE,
        now: datetime | None = None,
    ) -> Verb[list[Rescued]]:
        def body() -> Body[list[Rescued]]:
            found = yield from self._everywhere(
                lambda: (
                    super(RedisClusterDriver, self)
                    .end_session(session, started=started, cause=cause, rule=rule, now=now)
                    .steps()
                )
            )
            return sorted((one for some in found for one in some), key=lambda one: one.id)

        return self._write("end_session", body)

    def rescue(
        self, *, limit: int = 1000, as_of: datetime | None = None, now: datetime | None = None
    ) -> Verb[list[Rescued]]:
        def body() -> Body[list[Rescued]]:
            results = yield from self._scatter(
                [
                    (
                        number,
                        super(RedisClusterDriver, self)
                        .rescue(limit=limit, as_of=as_of, now=now)
                        .steps(),
                    )
                    for number in EVERYWHERE
                ],
                budget=limit,
            )
            found = self._whole(results)
            yield from self._settle()
            return sorted((one for some in found for one in some), key=lambda one: one.id)

        return self._write("rescue", body)

    # -- time --------------------------------------------------------------------------------------

    def promote(self, *, limit: int = 1000, now: datetime | None = None) -> Verb[Promoted]:
        """Earliest first over all parts: how many of each is found out before."""

        def body() -> Body[Promoted]:
            asked = [(number, self._call("due", now=micros(now), limit=limit)) for number in EVERYWHERE]
            replies = self._whole((yield from self._ask(asked)))
            moments = sorted(
                (at, number) for number, due in zip(EVERYWHERE, replies, strict=True) for at in due
            )
            shares = dict.fromkeys(EVERYWHERE, 0)
            for _, number in moments[:limit]:
                shares[number] += 1
            results = yield from self._scatter(
                [
                    (number, super(RedisClusterDriver, self).promote(limit=share, now=now).steps())
                    for number, share in shares.items()
                ]
            )
            found = self._whole(results)
            following = [one.next_at for one in found if one.next_at is not None]
            return Promoted(
                sum(one.count for one in found),
                min(following) if following else None,
                max(one.now for one in found),
            )

        return self._write("promote", body)

    def prune(self, *, limit: int = 1000, now: datetime | None = None) -> Verb[int]:
        def body() -> Body[int]:
            results = yield from self._scatter(
                [
                    (number, super(RedisClusterDriver, self).prune(limit=limit, now=now).steps())
                    for number in EVERYWHERE
                ],
                budget=limit,
            )
            return sum(self._whole(results))

        return self._write("prune", body)

    # -- operators ---------------------------------------------------------------------------------

    def cancel(
        self, ids: Sequence[str], *, by: str, reason: str | None = None, now: datetime | None = None
    ) -> Verb[list[Acted]]:
        return self._acting(
            "cancel",
            ids,
            lambda some: super(RedisClusterDriver, self).cancel(some, by=by, reason=reason, now=now),
        )

    def retry(
        self,
        ids: Sequence[str],
        *,
        by: str,
        changes: RetryChanges = NO_CHANGES,
        now: datetime | None = None,
    ) -> Verb[list[Acted]]:
        def body() -> Body[list[Acted]]:
            if changes.options is not None and is_gated(changes.options):
                yield from self._let_rest_at_home(ids)  # where the gates are
            acting = self._acting(
                "retry",
                ids,
                lambda some: super(RedisClusterDriver, self).retry(
                    some, by=by, changes=changes, now=now
                ),
            )
            return (yield from acting.steps())

        return self._write("retry", body)

    def rebind(self, changes: Sequence[Rebinding], *, now: datetime | None = None) -> Verb[list[bool]]:
        def body() -> Body[list[bool]]:
            begun = [one for one in changes if is_gated(one.to_options) and not is_gated(one.options)]
            yield from self._let_wait_at_home(begun)  # where the gates are
            took = yield from self._by_id(
                changes,
                lambda one: one.id,
                lambda some: super(RedisClusterDriver, self).rebind(some, now=now).steps(),
                lambda took: not took,
            )
            self._claimed_at_home.difference_update([one.id for one in begun])
            return took

        return self._write("rebind", body)

    def delete(self, ids: Sequence[str], *, by: str, now: datetime | None = None) -> Verb[list[Acted]]:
        return self._acting(
            "delete", ids, lambda some: super(RedisClusterDriver, self).delete(some, by=by, now=now)
        )

    def _acting(
        self, name: str, ids: Sequence[str], verb: Callable[[Sequence[str]], Verb[list[Acted]]]
    ) -> Verb[list[Acted]]:
        return self._write(
            name,
            lambda: self._by_id(
                ids, str, lambda some: verb(some).steps(), lambda acted: acted.state is None
            ),
        )

    def pause(
        self, queue: str, *, by: str, reason: str | None = None, now: datetime | None = None
    ) -> Verb[None]:
        def body() -> Body[None]:
            yield from self._everywhere(
                lambda: (
                    super(RedisClusterDriver, self).pause(queue, by=by, reason=reason, now=now).steps()
                )
            )

        return self._write("pause", body)

    def resume(self, queue: str, *, by: str, now: datetime | None = None) -> Verb[None]:
        def body() -> Body[None]:
            yield from self._everywhere(
                lambda: super(RedisClusterDriver, self).resume(queue, by=by, now=now).steps()
            )

        return self._write("resume", body)


def _needs_others(outcome: Finish) -> bool:
    """Whether the end of a claim concerns what is at home: what the job waits for, or a brake."""
    return bool(outcome.waits) or outcome.timeout is not None or outcome.brake is not None


def _is_refused(jobs: Sequence[NewJob], answers: Sequence[Enqueued]) -> bool:
    """Whether a key that is held has kept the whole call from being stored."""
    return any(
        answer.holder is not None and not answer.is_replaced and job.on_duplicate is not Duplicate.RETURN
        for job, answer in zip(jobs, answers, strict=True)
    )

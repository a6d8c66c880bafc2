"""Hand-over: a producer that stores one job assigns it to a worker that waits.

The worker leaves an offer in the store: a claim, under a token of its own, that finds nothing yet. The
producer stores one job and requests an offer (`HandoverEnqueue`). The store takes the offer,
stores the job as claimed under its token, and notifies the channel of the worker's listener
(`hand_over`, a trigger of the schema). The worker hears the notification and starts the job
(`ClaimingPostgresBell`).

This saves the worker's claim: one round trip and one commit between enqueue and start. With an idle
worker on a busy machine, p99 from enqueue to start is 1.4 times as long without it (17 and 24 ms, 63 and
86 ms); the median is the same. The statement for one job also stores 1.2 times as many jobs a second
as the one for many, whether a worker waits or not (docs/performance.md). Equals
`EnqueueVerbs.enqueue`, and `PostgresBell.wait` followed by the claim: that is what happens on a
connection of the caller, and for a job with more than arguments.

A job with one gate, a limit or a FIFO key, is handed over where the gate has room and nothing waits at
it (`room_at_gate`). Another job with gates is claimed by its worker when the bell rings. After a job
with gates the next claim begins with the gates: one statement in place of three. What a claim finds
starts before the offer is withdrawn.

A notification that is lost, or has no room for the job, makes the start slower, never wrong: when the
wait ends, the offer is withdrawn, and jobs assigned without a notification are looked up by the token. A
worker that dies leaves an offer that is valid for a second or two, or until its session ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import replace

from winch.core.errors import StorageError, StorageUnavailable
from winch.core.gates.uses import is_gated
from winch.core.job import Claim, from_micros
from winch.drivers.postgres.connections.libpq import Lone
from winch.drivers.postgres.records import read_claims
from winch.drivers.postgres.statements import Body, Rows, Sql, Statement
from winch.drivers.postgres.verbs.base import Base
from winch.drivers.postgres.verbs.enqueue import EnqueueVerbs
from winch.drivers.postgres.wakeups.listen import Listener, PostgresBell
from winch.storage.decide.enqueued import stored_at
from winch.storage.params import Enqueued, NewJob
from winch.storage.verbs import Now, Verb

log: logging.Logger = logging.getLogger("winch.postgres")

# An offer stands for this many seconds longer than its worker means to wait.
LONGER = 1.0

_word = msgspec.json.Decoder(list[Any])

# -- the producer ------------------------------------------------------------------------------------

# What such a job may have, and what it must not have: all other fields, also those of a later release.
_OWN = ("id", "args", "terms", "task", "version", "queue", "priority", "max_attempts", "fifo", "options")
_rest = attrgetter(*(field for field in NewJob.__struct_fields__ if field not in _OWN))
_nothing = _rest(NewJob(id="", task="", args=""))


class HandoverEnqueue:
    """`EnqueueVerbs` for one job, plain or with gates, which a worker may get at once."""

    def __init__(self, base: Base, plain: EnqueueVerbs) -> None:
        self._base = base
        self._plain = plain
        self._sql = base.sql["enqueue.one"]

    def enqueue(
        self, jobs: Sequence[NewJob], *, is_repeat: bool = False, now: Now = None
    ) -> Verb[list[Enqueued]]:
        if is_repeat or now is not None or len(jobs) != 1:
            return self._plain.enqueue(jobs, is_repeat=is_repeat, now=now)
        [job] = jobs
        if _rest(job) != _nothing or not (job.options is None or is_gated(job.options)):
            return self._plain.enqueue(jobs, is_repeat=is_repeat, now=now)
        values = {
            "id": job.id,
            "args": job.args,
            "task": job.task,
            "version": job.version,
            "queue": job.queue,
            "priority": job.priority,
            "max_attempts": job.max_attempts,
            "fifo": job.fifo,
            "options": job.options,
            "is_noted": self._base.keeps_events,
        }
        statement = Statement(self._sql, values, is_alone=True)
        return Verb(
            "enqueue",
            lambda: self._plain.enqueue(jobs).steps(),
            lone=Lone(statement, lambda rows: stored_at(rows[0][0], jobs)),
        )


# -- the worker --------------------------------------------------------------------------------------


def values_of(verb: Verb[list[Claim]]) -> Mapping[str, Any] | None:
    """The values of the claim's first statement, after the hint for the triggers of events; None for a
    claim that looks at gates: a producer cannot make it."""
    steps = verb.steps()
    try:
        statement: Statement = next(steps)
        if statement.sql.name == "events.hint":
            statement = steps.send([])
        return statement.values if statement.is_fixed else None
    finally:
        steps.close()


def straight_to_gates(verb: Verb[list[Claim]]) -> Verb[list[Claim]]:
    """The claim of a worker that expects a job with gates: without the look for plain jobs before, and
    the question whether there are gates. The statement that claims from gates takes plain jobs too."""

    def body() -> Body[list[Claim]]:
        steps = verb.steps()
        statement: Statement = next(steps)
        try:
            while True:
                if statement.is_fixed:
                    rows: Rows = []
                elif statement.sql.name == "has_gated":
                    rows = [(True,)]
                else:
                    rows = yield statement
                statement = steps.send(rows)
        except StopIteration as stop:
            claims: list[Claim] = stop.value
            return claims
        finally:
            steps.close()

    return msgspec.structs.replace(verb, steps=body)


class Offer:
    """One offer of this process, as long as its worker waits."""

    def __init__(self, values: Mapping[str, Any], channel: str) -> None:
        """`values` are those of the claim that would be sent."""
        self.token: str = values["token"]
        self.session: str = values["session"]
        self.queues: list[str] = [values["queue"]] if "queue" in values else values["queues"]
        self.tasks: list[str] | None = values["tasks"]
        self.channel = channel
        self.is_taken: bool = False
        # By the job's id. A word may be late, and its job have been looked for meanwhile.
        self._claims: dict[str, Claim] = {}

    def hear(self, word: bytes) -> list[Claim] | None:
        """Take a notification for this offer: the job in it, if it has room for one and is the first for
        that job. None for the notification of an earlier offer."""
        token, *rest = _word.decode(word)
        if token != self.token:
            return None
        self.is_taken = True
        if not rest:
            return []
        id_, queue, task, args, version, fence, *options = rest
        at = from_micros(fence)
        claim = Claim(id_, token, task, version, args, queue, 1, fence, at, at, at)
        return self.add([replace(claim, options=options[0]) if options else claim])

    def add(self, claims: Iterable[Claim]) -> list[Claim]:
        """Keep these; those of them that are new."""
        new = {claim.id: claim for claim in claims if claim.id not in self._claims}
        self._claims |= new
        return list(new.values())

    @property
    def claims(self) -> list[Claim]:
        return list(self._claims.values())


class Offers:
    """Makes offers and ends them."""

    def __init__(self, run: Callable[[Verb[Any]], Awaitable[Any]], sql: Mapping[str, Sql]) -> None:
        self._run = run
        self._sql = sql
        # Not where the role may not: with the grants of an earlier release it works all the same.
        self.may_be_made: bool = True

    async def make(self, offer: Offer, seconds: float) -> None:
        """Leave the offer in the store, if that may be."""

        def body() -> Body[None]:
            values = {
                "token": offer.token,
                "session": offer.session,
                "queues": offer.queues,
                "tasks": offer.tasks,
                "channel": offer.channel,
                "for_seconds": seconds + LONGER,
            }
            yield Statement(self._sql["wait.offer"], values, is_alone=True)

        try:
            await self._run(Verb("offer", body))
        except StorageUnavailable:
            raise
        except StorageError as error:
            self.may_be_made = False
            log.warning("no jobs are handed over to this worker; it claims them: %s", error)

    async def ended(self, offer: Offer) -> None:
        """Withdraw what still stands of it, and look for what was handed over without a word."""
        if self.may_be_made and len(offer.claims) < len(offer.queues):
            stood = await self._run(Verb("offer", lambda: self._withdrawn(offer)))
            if stood + len(offer.claims) < len(offer.queues):
                offer.add(await self._run(Verb("taken", lambda: self._taken(offer), is_read=True)))

    def _withdrawn(self, offer: Offer) -> Body[int]:
        ((stood,),) = yield Statement(self._sql["wait.withdrawn"], {"token": offer.token}, is_alone=True)
        return int(stood)

    def _taken(self, offer: Offer) -> Body[list[Claim]]:
        values = {"token": offer.token, "session": offer.session}
        rows = yield Statement(self._sql["wait.taken"], values, is_alone=True)
        return read_claims(rows, offer.token, offer.queues)


class ClaimingPostgresBell(PostgresBell):
    """A bell whose claim waits in the store, as an offer, while its worker waits."""

    stays_armed = True

    def __init__(
        self,
        listeners: Sequence[Listener],
        queues: Sequence[str],
        run: Callable[[Verb[Any]], Awaitable[Any]],
        base: Base,
    ) -> None:
        super().__init__(listeners, queues, due=False)
        self._run = run
        self._offers = Offers(run, base.sql)
        self.on_claims: Callable[[list[Claim]], None] | None = None
        self._offer: Offer | None = None
        self._expects_gates = False  # the last job that rang had some

    def hand(self, word: bytes) -> None:
        claims = None if self._offer is None else self._offer.hear(word)
        if claims is not None:
            if claims:
                self._expects_gates = is_gated(claims[0].options)
                if self.on_claims is not None:
                    self.on_claims(claims)
            self._wake(False)

    async def claim_when_rung(
        self, verb: Verb[list[Claim]], timeout: float, *, is_idle: bool = False
    ) -> list[Claim]:
        is_wanted = is_idle and self._listener.is_up and self._offers.may_be_made
        values = values_of(verb) if is_wanted else None
        if values is None:
            return await self._claim(verb, timeout)
        offer = self._offer = Offer(values, self._listener.own_channel)
        claims: list[Claim] = []
        try:
            await self._offers.make(offer, timeout)
            if not offer.is_taken:  # else it was before the wait began
                claims = await self._claim(verb, timeout)
                if claims and self.on_claims is not None:
                    self.on_claims(claims)
                    await asyncio.sleep(0)  # they start before the offer is withdrawn
            await self._offers.ended(offer)
        except StorageUnavailable as error:
            # Jobs that are known may run already, so their token must not be given up: what else is
            # under it is released when they are done with. Without any, the claim's answer was lost.
            if not claims and not offer.claims:
                raise StorageUnavailable(str(error), maybe_applied=True) from error
            log.warning("an offer could not be withdrawn and expires by itself: %s", error)
        finally:
            self._offer = None
        # One token for both, so that a look for the jobs of a token finds all of them.
        known = {claim.id for claim in claims}
        return claims + [claim for claim in offer.claims if claim.id not in known]

    async def _claim(self, verb: Verb[list[Claim]], timeout: float) -> list[Claim]:
        has_rung = await self._wait(timeout)
        if has_rung is False:
            return []
        claims: list[Claim] = await self._run(straight_to_gates(verb) if self._expects_gates else verb)
        self._expects_gates = any(is_gated(claim.options) for claim in claims)
        return claims

    def rouse(self) -> None:
        self._wake(False)

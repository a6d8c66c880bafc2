"""Offers: claims that wait in the store, so that a producer can assign a job to a worker.

An offer is a claim, under a token of its own, that finds nothing yet. A producer that stores a plain job
while an offer stands stores the job as claimed under that token, and notifies the channel of the
worker's listener (`take_offer`, a function of the schema). This saves the worker's claim: one round trip
and one commit on the way from enqueue to start. Equals a ring followed by the claim.

A notification that is lost, or has no room for the job, makes the start slower, never wrong: when the
wait ends, the offer is withdrawn, and jobs assigned without a notification are looked up by the token. A
worker that dies leaves an offer that is valid for a second or two, or until its session ends.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec

from winch.core.errors import StorageError, StorageUnavailable
from winch.core.job import Claim, from_micros
from winch.drivers.postgres.records import read_claims
from winch.drivers.postgres.statements import Body, Statement
from winch.storage.verbs import Verb

log: logging.Logger = logging.getLogger("winch.postgres")

# An offer stands for this many seconds longer than its worker means to wait.
LONGER = 1.0

_word = msgspec.json.Decoder(list[Any])


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
        id_, queue, task, args, version, fence = rest
        at = from_micros(fence)
        return self.add([Claim(id_, token, task, version, args, queue, 1, fence, at, at, at)])

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

    def __init__(
        self, run: Callable[[Verb[Any]], Awaitable[Any]], statement: Callable[..., Statement]
    ) -> None:
        self._run = run
        self._statement = statement
        # Not where the role may not: with the grants of an earlier release it works all the same.
        self.may_be_made: bool = True

    async def make(self, offer: Offer, seconds: float) -> None:
        """Leave the offer in the store, if that may be."""

        def body() -> Body[None]:
            yield self._statement(
                "wait.offer",
                is_alone=True,
                token=offer.token,
                session=offer.session,
                queues=offer.queues,
                tasks=offer.tasks,
                channel=offer.channel,
                for_seconds=seconds + LONGER,
            )

        try:
            await self._run(Verb("offer", body))
        except StorageUnavailable:
            raise
        except StorageError as error:
            self.may_be_made = False
            log.warning("no jobs are handed over to this worker, it claims them: %s", error)

    async def ended(self, offer: Offer) -> None:
        """Withdraw what still stands of it, and look for what was handed over without a word."""
        if self.may_be_made and len(offer.claims) < len(offer.queues):
            stood = await self._run(Verb("offer", lambda: self._withdrawn(offer)))
            if stood + len(offer.claims) < len(offer.queues):
                offer.add(await self._run(Verb("taken", lambda: self._taken(offer), is_read=True)))

    def _withdrawn(self, offer: Offer) -> Body[int]:
        ((stood,),) = yield self._statement("wait.withdrawn", is_alone=True, token=offer.token)
        return int(stood)

    def _taken(self, offer: Offer) -> Body[list[Claim]]:
        rows = yield self._statement(
            "wait.taken", is_alone=True, token=offer.token, session=offer.session
        )
        return read_claims(rows, offer.token, offer.queues)

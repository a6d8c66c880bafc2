"""Offers: claims that wait in the store, so that a job can be handed over by who stores it.

An offer is a claim, under a token of its own, that finds nothing yet. Who stores a plain job while one
stands stores it as claimed under that token, and says so on the channel of the worker's listener
(`hand_over`, a function of the schema). The worker need not ask, and waits for the disk once, not twice.

A word that is lost, or has no room for the job, makes it slower, never wrong: when the wait ends,
whatever ended it, the offer is withdrawn, and what was handed over without a word is looked for by its
token. A worker that dies leaves an offer that is good for a second or two, or until its session ends.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec

from winch.core.errors import StorageError, StorageUnavailable
from winch.core.job import Claim, from_micros
from winch.drivers.postgres.records import read_claims
from winch.drivers.postgres.statements import Body, Step
from winch.storage.verbs import Verb

log = logging.getLogger("winch.postgres")

# An offer stands for this many seconds longer than its worker means to wait.
LONGER = 1.0

_word = msgspec.json.Decoder(list[Any])


def values_of(verb: Verb[list[Claim]]) -> Mapping[str, Any] | None:
    """Those of the claim's first statement, behind what the triggers for events are told; None for a
    claim that looks at gates, too, and cannot be left to somebody else."""
    steps = verb.steps()
    try:
        step: Step = next(steps)
        if step.statement.name == "events.hint":
            step = steps.send([])
        return step.values if step.is_fixed else None
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
        """Take a word for this offer: the job it tells of, if it has room for it and is the first to do
        so. None for the word of an earlier offer."""
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

    def __init__(self, run: Callable[[Verb[Any]], Awaitable[Any]], step: Callable[..., Step]) -> None:
        self._run = run
        self._step = step
        # Not where the role may not: with the grants of an earlier release it works all the same.
        self.may_be_made: bool = True

    async def make(self, offer: Offer, seconds: float) -> None:
        """Leave the offer in the store, if that may be."""

        def body() -> Body[None]:
            yield self._step(
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
        ((stood,),) = yield self._step("wait.withdrawn", is_alone=True, token=offer.token)
        return int(stood)

    def _taken(self, offer: Offer) -> Body[list[Claim]]:
        rows = yield self._step("wait.taken", is_alone=True, token=offer.token, session=offer.session)
        return read_claims(rows, offer.token, offer.queues)

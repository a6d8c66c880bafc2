"""A claim that is sent in the moment the bell rings.

The claim is encoded ahead and sent by the event loop's reader callback, which saves a turn of the loop.
Meanwhile the claim stands in the store as an offer (handover.py), which saves the claim itself.
Equals `PostgresBell.wait` followed by the claim.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from winch.core.errors import StorageUnavailable
from winch.core.job import Claim
from winch.drivers.postgres.connections.apool import AsyncPool, PreparedVerb
from winch.drivers.postgres.fast.handover import Offer, Offers, values_of
from winch.drivers.postgres.wakeups.listen import Listener, PostgresBell
from winch.storage.verbs import Verb

log: logging.Logger = logging.getLogger("winch.postgres")


class ClaimingPostgresBell(PostgresBell):
    """A bell that sends the claim in the moment it rings, and leaves it in the store meanwhile, as an
    offer."""

    stays_armed = True

    def __init__(
        self,
        listeners: Sequence[Listener],
        queues: Sequence[str],
        pool: AsyncPool,
        offers: Offers,
    ) -> None:
        super().__init__(listeners, queues, due=False)
        self._pool = pool
        self._offers = offers
        self.on_claims: Callable[[list[Claim]], None] | None = None
        self._loaded: PreparedVerb[list[Claim]] | None = None
        self._offer: Offer | None = None

    def ring(self) -> None:
        if self._loaded is not None and self._waiter is not None and not self._waiter.done():
            self._loaded.send()
        super().ring()

    def hand(self, word: bytes) -> None:
        claims = None if self._offer is None else self._offer.hear(word)
        if claims is not None:
            if claims and self.on_claims is not None:
                self.on_claims(claims)
            self._wake(False)

    async def claim_when_rung(
        self, verb: Verb[list[Claim]], timeout: float, *, is_idle: bool = False
    ) -> list[Claim]:
        loaded = self._loaded = self._pool.load(verb, self.on_claims)
        is_wanted = is_idle and self._listener.is_up and self._offers.may_be_made
        values = values_of(verb) if is_wanted else None
        if values is None:
            return await self._claim(verb, loaded, timeout)
        offer = self._offer = Offer(values, self._listener.own_channel)
        claims: list[Claim] = []
        try:
            await self._offers.make(offer, timeout)
            if not offer.is_taken:  # else it was before the wait began
                claims = await self._claim(verb, loaded, timeout)
            await self._offers.ended(offer)
        except StorageUnavailable as error:
            # Jobs that are known may run already, so their token must not be given up: what else is
            # under it is released when they are done with. Without any, the claim's answer was lost.
            if not claims and not offer.claims:
                raise StorageUnavailable(str(error), maybe_applied=True) from error
            log.warning("an offer could not be withdrawn, its time ends it: %s", error)
        finally:
            self._loaded = self._offer = None
        # One token for both, so that a look for the jobs of a token finds all of them.
        known = {claim.id for claim in claims}
        return claims + [claim for claim in offer.claims if claim.id not in known]

    async def _claim(
        self, verb: Verb[list[Claim]], loaded: PreparedVerb[list[Claim]] | None, timeout: float
    ) -> list[Claim]:
        try:
            has_rung = await self._wait(timeout)
        except BaseException:
            if loaded is not None:
                loaded.drop()
            raise
        finally:
            self._loaded = None
        return [] if has_rung is False else await self._pool.run(verb, loaded)

    def rouse(self) -> None:
        self._wake(False)

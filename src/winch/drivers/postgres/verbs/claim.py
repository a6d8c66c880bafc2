"""Take ready jobs to run."""

from __future__ import annotations

from time import monotonic

from winch.core.job import Claim
from winch.drivers.postgres.records import read_claims
from winch.drivers.postgres.statements import Body, Statement
from winch.drivers.postgres.verbs.base import BEGINNING, MANY, Base, Place
from winch.drivers.postgres.verbs.gated_claims import GatedClaims
from winch.storage.params import ClaimParams
from winch.storage.verbs import Now, Verb


class ClaimVerbs:
    """See storage/families.py for the contract."""

    def __init__(self, base: Base, gated: GatedClaims) -> None:
        self._base = base
        self._gated = gated
        self._claim, self._claim_few = base.sql["claim"], base.sql["claim.few"]
        self._has_gated = base.sql["has_gated"]

    def claim(self, params: ClaimParams, *, now: Now = None) -> Verb[list[Claim]]:
        # The first place of a queue counts: a second one would find what the first has locked.
        queues = list(dict.fromkeys(params.queues))

        tasks = None if params.tasks is None else list(params.tasks)
        is_batch = params.limit >= self._base.batch_from

        def statement(starts: list[Place], *, is_wary: bool = False) -> Statement:
            values = {
                "session": params.session,
                "token": params.token,
                "queues": queues,
                "starts": [key for key, _ in starts],
                "start_ids": [id_ for _, id_ in starts],
                "tasks": tasks,
                "limit": params.limit,
                "is_batch": is_batch,
                "is_wary": is_wary,
                "now": now,
            }
            # A wary one begins at the beginning, however far other claims have come.
            return Statement(self._claim, values, is_alone=True, is_fixed=is_wary)

        def wary_statement() -> Statement:
            if len(queues) != 1 or is_batch:
                return statement([BEGINNING] * len(queues), is_wary=True)
            values = {
                "session": params.session,
                "token": params.token,
                "queue": queues[0],
                "tasks": tasks,
                "limit": params.limit,
                "now": now,
            }
            return Statement(self._claim_few, values, is_alone=True, is_fixed=True)

        def wary() -> Body[list[Claim]]:
            # Jobs with gates are rare: one statement where there are none, else a transaction.
            if tuple(queues) not in self._gated.with_gates:
                if rows := (yield wary_statement()):
                    return read_claims(rows, params.token, queues)
                ((has_gated,),) = yield Statement(self._has_gated, {"queues": queues}, is_alone=True)
                if not has_gated:
                    return []
            return (yield from self._gated.claim(params, now))

        def body() -> Body[list[Claim]]:
            if params.gated != 0:
                return (yield from wary())
            starts_at = self._base.claim_starts
            claimant = params.session, params.tasks
            starts = starts_at.starts(queues, claimant)
            sent = monotonic()
            rows = yield statement(starts)
            if not rows and any(start > BEGINNING for start in starts):
                starts = [BEGINNING] * len(queues)
                sent = monotonic()
                rows = yield statement(starts)
            seconds = monotonic() - sent
            claims = read_claims(rows, params.token, queues)
            if len(claims) < params.limit:
                starts_at.emptied(queues, claimant)
            elif params.limit >= MANY:
                place = queues.index(claims[-1].queue)
                starts_at.emptied(queues[:place], claimant)
                last = rows[-1][0], claims[-1].id
                starts_at.reached(queues[place], claimant, starts[place], last, seconds)
            return claims

        return Verb("claim", body)

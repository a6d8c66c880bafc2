"""Take ready jobs to run."""

from __future__ import annotations

from datetime import datetime
from time import monotonic

from winch.core.job import Claim
from winch.drivers.postgres.records import read_claims
from winch.drivers.postgres.statements import Body, Statement
from winch.drivers.postgres.verbs.base import BEGINNING, MANY, Base
from winch.drivers.postgres.verbs.gated_claims import GatedClaims
from winch.storage.params import ClaimParams
from winch.storage.verbs import Verb


class ClaimVerbs:
    """See storage/families.py for the contract."""

    def __init__(self, base: Base, gated: GatedClaims) -> None:
        self._base = base
        self._gated = gated

    def claim(self, params: ClaimParams, *, now: datetime | None = None) -> Verb[list[Claim]]:
        # The first place of a queue counts: a second one would find what the first has locked.
        queues = list(dict.fromkeys(params.queues))

        def statement(starts: list[int], *, is_wary: bool = False) -> Statement:
            return self._base.statement(
                "claim",
                is_alone=True,
                is_fixed=is_wary,  # it begins at the beginning, wherever others have come
                session=params.session,
                token=params.token,
                queues=queues,
                starts=starts,
                tasks=None if params.tasks is None else list(params.tasks),
                limit=params.limit,
                is_batch=params.limit >= self._base.batch_from,
                is_wary=is_wary,
                now=now,
            )

        def wary_statement() -> Statement:
            if len(queues) != 1 or params.limit >= self._base.batch_from:
                return statement([BEGINNING] * len(queues), is_wary=True)
            return self._base.statement(
                "claim.few",
                is_alone=True,
                is_fixed=True,
                session=params.session,
                token=params.token,
                queue=queues[0],
                tasks=None if params.tasks is None else list(params.tasks),
                limit=params.limit,
                now=now,
            )

        def wary() -> Body[list[Claim]]:
            # Jobs with gates are rare: one statement where there are none, else a transaction.
            if not self._gated.may_be_needed(queues):
                rows = yield wary_statement()
                if rows:
                    self._base.row_hints.learn(rows)
                    return read_claims(rows, params.token, queues)
                ((has_gated,),) = yield self._base.statement("has_gated", is_alone=True, queues=queues)
                if not has_gated:
                    return []
            return (yield from self._gated.claim(params, now))

        def body() -> Body[list[Claim]]:
            if params.gated != 0:
                return (yield from wary())
            starts_at, tasks = self._base.claim_starts, params.tasks
            starts = starts_at.starts(queues, tasks)
            sent = monotonic()
            rows = yield statement(starts)
            if not rows and any(start > BEGINNING for start in starts):
                starts = [BEGINNING] * len(queues)
                sent = monotonic()
                rows = yield statement(starts)
            seconds = monotonic() - sent
            claims = read_claims(rows, params.token, queues)
            self._base.row_hints.learn(rows)
            if len(claims) < params.limit:
                starts_at.emptied(queues, tasks)
            elif params.limit >= MANY:
                place = queues.index(claims[-1].queue)
                starts_at.emptied(queues[:place], tasks)
                starts_at.reached(queues[place], tasks, starts[place], rows[-1][0], seconds)
            return claims

        return self._base.write("claim", body, now)

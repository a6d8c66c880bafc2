"""Claim: take jobs to run."""

from __future__ import annotations

from winch.core.job import Claim
from winch.drivers.redis.records import micros, read_claims
from winch.drivers.redis.verbs.base import Base, Body
from winch.storage.decide.gates import ROUNDS
from winch.storage.params import ClaimParams
from winch.storage.verbs import Now, Verb


class ClaimVerbs:
    """Take ready jobs. `sort_keys` receives the sort key and the priority of each job that a claim took:
    a cluster merges the claims of several nodes by them."""

    def __init__(self, base: Base, sort_keys: dict[str, tuple[int, int]] | None = None) -> None:
        self._call = base.call
        self._sort_keys = sort_keys

    def claim(self, params: ClaimParams, *, now: Now = None) -> Verb[list[Claim]]:
        def body() -> Body[list[Claim]]:
            asked = self._call(
                "claim",
                now=micros(now),
                session=params.session,
                token=params.token,
                queues=params.queues,
                limit=params.limit,
                tasks=None if params.tasks is None else dict.fromkeys(params.tasks, True),
                gated=params.limit if params.gated is None else params.gated or None,
                slots=params.limit if params.free is None else params.free,
                at_once=params.at_once,
            )
            reply = yield asked
            for _ in range(ROUNDS):
                if len(reply) != 2:
                    break
                reply = yield asked  # it blocked as many jobs as one call may, and took none yet
            return [] if len(reply) == 2 else read_claims(reply, params.token, self._sort_keys)

        return Verb("claim", body)

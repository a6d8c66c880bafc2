"""What one server remembers of sessions and claims, so that it need not ask the store again: a shortcut,
never the truth. A claim that another server made is read from the store."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from winch.core.gates.uses import holds_something
from winch.core.job import Claim, JobRecord
from winch.storage.decide.waits import AWAITED_HEADER
from winch.storage.params import ClaimRef

# More than one server has at a time; the oldest are forgotten.
MOST_HELD = 100_000
MOST_SESSIONS = 10_000


class HeldClaim(msgspec.Struct, frozen=True, gc=False):
    """What the end of a claim depends on. Nothing of it changes while the claim stands."""

    id: str
    token: str
    task: str
    queue: str
    attempt: int
    created_at: datetime
    options: str | None
    is_gated: bool
    is_awaited: bool


def held_claim(claim: Claim) -> HeldClaim:
    return HeldClaim(
        claim.id,
        claim.token,
        claim.task,
        claim.queue,
        claim.attempt,
        claim.created_at,
        claim.options,
        claim.has_permit or holds_something(claim.options),
        AWAITED_HEADER in claim.headers,
    )


def held_record(record: JobRecord, token: str) -> HeldClaim:
    """The same as the store knows the job."""
    return HeldClaim(
        record.id,
        token,
        record.task,
        record.queue,
        record.attempt,
        record.created_at,
        record.options,
        record.gate is not None or holds_something(record.options),
        AWAITED_HEADER in record.headers,
    )


class Serving(msgspec.Struct, frozen=True):
    """What a session takes: its queues, and its tasks (none named: any)."""

    queues: tuple[str, ...]
    tasks: tuple[str, ...]


class WorkMemory:
    """What this server remembers so that it need not ask the store: a shortcut, never the truth."""

    def __init__(self) -> None:
        self._serving: dict[str, Serving] = {}
        self._held: dict[tuple[str, str, str], HeldClaim] = {}

    def serves(self, session: str, serving: Serving) -> None:
        _keep(self._serving, session, serving, MOST_SESSIONS)

    def serving(self, session: str) -> Serving | None:
        return self._serving.get(session)

    def ended(self, session: str) -> None:
        self._serving.pop(session, None)

    def took(self, session: str, claim: Claim) -> None:
        _keep(self._held, (session, claim.id, claim.token), held_claim(claim), MOST_HELD)

    def held(self, session: str, claim: ClaimRef) -> HeldClaim | None:
        return self._held.get((session, claim.id, claim.token))

    def finished(self, session: str, claim: ClaimRef) -> None:
        self._held.pop((session, claim.id, claim.token), None)


def _keep(where: dict[Any, Any], key: Any, value: Any, most: int) -> None:
    while len(where) >= most:
        where.pop(next(iter(where)))
    where[key] = value

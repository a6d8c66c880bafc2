"""What a crash does to claims, for `crash` and for `end_session`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from winch.core.job import UNDO_LIVES, Failure, SuspectRule
from winch.core.values.fingerprint import trace
from winch.drivers.postgres.records import write_claims
from winch.drivers.postgres.statements import Statement
from winch.drivers.postgres.verbs.base import Base
from winch.storage.params import ClaimRef


def crash_statement(
    base: Base,
    session: str | None,
    started: Sequence[ClaimRef],
    cause: str | None,
    rule: SuspectRule,
    now: datetime | None,
) -> Statement:
    """Take back the claims that `started`, or, with a session, all claims of the session."""
    return base.statement(
        "crash",
        session=session,
        started=write_claims(started),
        is_own=session is None,
        cause=cause,
        trace=trace(Failure("crashed", cause or "")),
        most=rule.most,
        undo_lives=UNDO_LIVES,
        window_seconds=rule.within.total_seconds(),
        now=now,
    )

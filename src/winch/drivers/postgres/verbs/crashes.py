"""What a crash does to claims, for `crash` and for `end_session`."""

from __future__ import annotations

from datetime import datetime

from winch.core.job import CRASH_RULE, UNDO_LIVES, Failure
from winch.core.values.fingerprint import trace
from winch.drivers.postgres.records import write_claims
from winch.drivers.postgres.statements import Statement
from winch.drivers.postgres.verbs.base import Base
from winch.storage.crash_report import CrashReport


def crash_statement(
    base: Base, session: str | None, crash: CrashReport | None, now: datetime | None
) -> Statement:
    """Take back the claims of the crash, or, with a session, all claims of the session."""
    rule = crash.rule if crash else CRASH_RULE
    return base.statement(
        "crash",
        session=session,
        started=write_claims(crash.claims if crash else ()),
        is_own=session is None,
        cause=crash and crash.cause,
        trace=trace(Failure("crashed", crash.cause if crash else "")),
        most=rule.most,
        undo_lives=UNDO_LIVES,
        window_seconds=rule.within.total_seconds(),
        now=now,
    )

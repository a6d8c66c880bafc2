"""The claim of an idle worker that was rung, by one statement.

It finds the job and takes it, and SQLite begins and commits by itself: one statement instead of four. A
worker that has slept runs with cold caches, where each of them costs several times what it costs under
load. Equals `ClaimVerbs.claim`, which follows where this finds no job.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import datetime

from winch.core.job import Claim, from_micros
from winch.drivers.sqlite.records import read_claims, to_json
from winch.drivers.sqlite.statements import SQL, Ring, carry
from winch.drivers.sqlite.verbs.base import Body, micros
from winch.drivers.sqlite.verbs.claim import ClaimVerbs
from winch.storage.params import ClaimParams
from winch.storage.verbs import Verb

# More jobs than this come quicker as one row of JSON than as rows.
AT_ONCE = 32
_TEXT = SQL["claim.at_once"].text


class LoneClaim:
    """`ClaimVerbs` with a fast path for a few jobs of one queue."""

    def __init__(self, plain: ClaimVerbs) -> None:
        self._plain = plain

    def claim(self, params: ClaimParams, *, now: datetime | None = None) -> Verb[list[Claim]]:
        verb = self._plain.claim(params, now=now)
        if now is None and len(params.queues) == 1 and 0 < params.limit <= AT_ONCE:
            return Verb("claim", verb.steps, lone=_ClaimAtOnce(params, verb.steps))
        return verb


class _ClaimAtOnce:
    """A claim of a few plain jobs of one queue. Where it finds none, the whole verb follows, for there
    may be jobs with gates."""

    def __init__(self, params: ClaimParams, body: Callable[[], Body[list[Claim]]]) -> None:
        self._params = params
        self._body = body

    def __call__(self, conn: sqlite3.Connection, ring: Ring) -> list[Claim]:
        at, params = micros(None), self._params
        values = {
            "now": at,
            "token": params.token,
            "session": params.session,
            "queue": params.queues[0],
            "tasks": None if params.tasks is None else to_json(params.tasks),
            "limit": params.limit,
        }
        rows = conn.execute(_TEXT, values).fetchall()
        if rows:
            return read_claims(rows, params.token, from_micros(at))
        conn.execute("BEGIN IMMEDIATE")
        try:
            claims = carry(conn, Verb("claim", self._body), ring)
            conn.execute("COMMIT")
        except BaseException:
            if conn.in_transaction:
                conn.rollback()
            raise
        return claims

"""The verbs of waiting: signals, and making ready who waits no more."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from winch.core.changes import BLOCKED_REASON
from winch.drivers.postgres.records import read_moment, write_span
from winch.drivers.postgres.statements import Body
from winch.drivers.postgres.verbs.base import Verbs
from winch.storage.decide.waits import DEAD, JOB, Sent, Taken
from winch.storage.params import Answer, ClaimRef, Enqueued, Finish, NewJob, Promoted, Wait
from winch.storage.verbs import Verb


class WaitingVerbs(Verbs):
    """The waiting part of Storage; see storage/families.py for the contracts."""

    def signal(self, name: str, payload: str, *, id: str, now: datetime | None = None) -> Verb[Sent]:
        def body() -> Body[Sent]:
            rows = yield self._step("signal", is_alone=True, name=name, id=id, payload=payload, now=now)
            return Sent(id, is_new=bool(rows))

        return self._write("signal", body, now)

    def take_signal(
        self, claim: ClaimRef, name: str, *, wanted_by: str, now: datetime | None = None
    ) -> Verb[Taken]:
        def body() -> Body[Taken]:
            if not (yield self._step("take_signal", id=claim.id, token=claim.token)):
                return Taken(Answer.LOST)
            values: dict[str, Any] = {"id": claim.id, "wanted_by": wanted_by, "name": name}
            rows = yield self._step("take_signal.again", **values)
            if not rows:
                rows = yield self._step("take_signal.first", **values)
            return Taken(Answer.TOOK, rows[0][0] if rows else None)

        return self._write("take_signal", body, now)

    if TYPE_CHECKING:

        def enqueue(
            self, jobs: Sequence[NewJob], *, is_repeat: bool = False, now: datetime | None = None
        ) -> Verb[list[Enqueued]]: ...

    def enqueue_after(
        self,
        jobs: Sequence[NewJob],
        waits: Sequence[tuple[str, Sequence[Wait]]],
        *,
        claim: ClaimRef | None = None,
        is_repeat: bool = False,
        now: datetime | None = None,
    ) -> Verb[list[Enqueued] | None]:
        def body() -> Body[list[Enqueued] | None]:
            # Also the first statement of a transaction: what follows would be one of its own without it.
            rows = yield self._step(
                "take_signal.live",
                id=None if claim is None else claim.id,
                token=None if claim is None else claim.token,
            )
            if claim is not None and not rows:
                return None
            answers: list[Enqueued] = yield from self.enqueue(jobs, is_repeat=is_repeat, now=now).steps()
            new = {answer.id for answer in answers if answer.is_new}
            known = {job.id for job in jobs} - new
            held = sorted(new & {job_id for job_id, _ in waits})
            if held:
                yield self._step("enqueue.after", ids=held, reason=BLOCKED_REASON)
            begun = [(job_id, wait) for job_id, some in waits if job_id not in known for wait in some]
            if begun:
                yield self._step(
                    "enqueue.waits",
                    jobs=[job_id for job_id, _ in begun],
                    keys=[wait.key for _, wait in begun],
                    enough=[wait.is_enough for _, wait in begun],
                )
            return answers

        return self._write("enqueue_after", body, now)

    def unblock(self, *, limit: int = 1000, now: datetime | None = None) -> Verb[Promoted]:
        def body() -> Body[Promoted]:
            ((at, is_any, next_at),) = yield self._step("unblock", is_alone=True, now=now)
            later = None if next_at is None else read_moment(next_at)
            if not is_any:
                return Promoted(0, later, read_moment(at))
            keys = [row[0] for row in (yield self._step("unblock.keys", limit=limit))]
            looked = dict.fromkeys(keys)
            looked |= {DEAD + key.removeprefix(JOB): None for key in keys if key.startswith(JOB)}
            rows = yield self._step("unblock.waiters", keys=list(looked), limit=limit, now=now)
            if asked := [key.removeprefix(DEAD) for _, key in rows if (key or "").startswith(DEAD)]:
                dead = {DEAD + row[0] for row in (yield self._step("unblock.dead", ids=asked))}
                rows = [row for row in rows if row[1] in dead or not (row[1] or "").startswith(DEAD)]
            ids = list(dict.fromkeys(row[0] for row in rows))
            count = 0
            if ids:
                locked = [row[0] for row in (yield self._step("unblock.lock", ids=ids))]
                if len(locked) < len(ids):
                    yield self._step("unblock.stale", ids=ids)
                came = [row for row in rows if row[1] is not None]
                ((count, _),) = yield self._step(
                    "unblock.ready",
                    jobs=[row[0] for row in came],
                    keys=[row[1] for row in came],
                    due=[row[0] for row in rows if row[1] is None],
                    locked=locked,
                    now=now,
                )
            # Keys that another has in hand were passed over.
            return Promoted(limit if len(keys) == limit else count, later, read_moment(at), is_more=True)

        return self._write("unblock", body, now)

    def _begin_waits(
        self, outcomes: Sequence[Finish], took: set[str], now: datetime | None
    ) -> Body[None]:
        """What jobs wait for that a finish has blocked."""
        waits = []
        for outcome in outcomes:
            if outcome.id in took and (outcome.waits or outcome.timeout is not None):
                # A wait for nothing but the time has a key that never comes.
                keys = [(wait.key, wait.is_enough) for wait in outcome.waits] or [("", False)]
                seconds = write_span(outcome.timeout)
                waits += [_WaitRow(outcome.id, key, enough, seconds) for key, enough in keys]
        if waits:
            yield self._step("finish.waits", ids=list({wait.job for wait in waits}))
            text = msgspec.json.encode(waits).decode()
            yield self._step("finish.wait", waits=text, now=now)


class _WaitRow(msgspec.Struct, frozen=True):
    job: str
    key: str
    is_enough: bool
    timeout_seconds: float | None

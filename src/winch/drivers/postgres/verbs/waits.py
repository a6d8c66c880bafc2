"""Signals, and jobs that wait for them or for other jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from winch.core.changes import BLOCKED_REASON
from winch.drivers.postgres.records import read_moment
from winch.drivers.postgres.statements import Body
from winch.drivers.postgres.verbs.base import Base
from winch.drivers.postgres.verbs.enqueue import EnqueueVerbs
from winch.storage.decide.waits import DEAD, JOB, Dependencies, KeptSignal, Sent, Taken
from winch.storage.params import Answer, ClaimRef, Enqueued, NewJob, Promoted
from winch.storage.verbs import Now, Verb


class WaitVerbs:
    """See storage/families.py for the contracts."""

    def __init__(self, base: Base, enqueue: EnqueueVerbs) -> None:
        self._base = base
        self._enqueue = enqueue

    def signal(self, name: str, payload: str, *, id: str, now: Now = None) -> Verb[Sent]:
        def body() -> Body[Sent]:
            rows = yield self._base.statement(
                "signal", is_alone=True, name=name, id=id, payload=payload, now=now
            )
            return Sent(id, is_new=bool(rows))

        return Verb("signal", body)

    def take_signal(self, claim: ClaimRef, name: str, *, wanted_by: str, now: Now = None) -> Verb[Taken]:
        def body() -> Body[Taken]:
            if not (yield self._base.statement("take_signal", id=claim.id, token=claim.token)):
                return Taken(Answer.LOST)
            values: dict[str, Any] = {"id": claim.id, "wanted_by": wanted_by, "name": name}
            rows = yield self._base.statement("take_signal.again", **values)
            if not rows:
                rows = yield self._base.statement("take_signal.first", **values)
            return Taken(Answer.TOOK, rows[0][0] if rows else None)

        return Verb("take_signal", body)

    def untaken_signals(self, *, limit: int = 1000) -> Verb[list[KeptSignal]]:
        def body() -> Body[list[KeptSignal]]:
            rows = yield self._base.statement("untaken_signals", is_alone=True, limit=limit)
            return [KeptSignal(*row) for row in rows]

        return self._base.read("untaken_signals", body)

    def forget_signals(self, which: Sequence[KeptSignal]) -> Verb[int]:
        def body() -> Body[int]:
            rows = yield self._base.statement(
                "forget_signals",
                is_alone=True,
                names=[one.name for one in which],
                ids=[one.id for one in which],
            )
            return len(rows)

        return Verb("forget_signals", body)

    def enqueue_after(
        self, jobs: Sequence[NewJob], after: Dependencies, *, is_repeat: bool = False, now: Now = None
    ) -> Verb[list[Enqueued] | None]:
        def body() -> Body[list[Enqueued] | None]:
            claim = after.claim
            # Also the first statement of a transaction: what follows would be one of its own without it.
            rows = yield self._base.statement(
                "take_signal.live",
                id=None if claim is None else claim.id,
                token=None if claim is None else claim.token,
            )
            if claim is not None and not rows:
                return None
            answers: list[Enqueued] = yield from self._enqueue.enqueue(
                jobs, is_repeat=is_repeat, now=now
            ).steps()
            new = {answer.id for answer in answers if answer.is_new}
            known = {job.id for job in jobs} - new
            held = sorted(new & {job_id for job_id, _ in after.waits})
            if held:
                yield self._base.statement("enqueue.after", ids=held, reason=BLOCKED_REASON)
            begun = [
                (job_id, wait) for job_id, some in after.waits if job_id not in known for wait in some
            ]
            if begun:
                yield self._base.statement(
                    "enqueue.waits",
                    jobs=[job_id for job_id, _ in begun],
                    keys=[wait.key for _, wait in begun],
                    enough=[wait.is_enough for _, wait in begun],
                )
            return answers

        return Verb("enqueue_after", body)

    def unblock(self, *, limit: int = 1000, now: Now = None) -> Verb[Promoted]:
        def body() -> Body[Promoted]:
            ((at, is_any, next_at),) = yield self._base.statement("unblock", is_alone=True, now=now)
            later = None if next_at is None else read_moment(next_at)
            if not is_any:
                return Promoted(0, later, read_moment(at))
            keys = [row[0] for row in (yield self._base.statement("unblock.keys", limit=limit))]
            looked = dict.fromkeys(keys)
            looked |= {DEAD + key.removeprefix(JOB): None for key in keys if key.startswith(JOB)}
            rows = yield self._base.statement("unblock.waiters", keys=list(looked), limit=limit, now=now)
            if asked := [key.removeprefix(DEAD) for _, key in rows if (key or "").startswith(DEAD)]:
                dead = {DEAD + row[0] for row in (yield self._base.statement("unblock.dead", ids=asked))}
                rows = [row for row in rows if row[1] in dead or not (row[1] or "").startswith(DEAD)]
            ids = list(dict.fromkeys(row[0] for row in rows))
            count = 0
            if ids:
                locked = [row[0] for row in (yield self._base.statement("unblock.lock", ids=ids))]
                if len(locked) < len(ids):
                    yield self._base.statement("unblock.stale", ids=ids)
                came = [row for row in rows if row[1] is not None]
                ((count, _),) = yield self._base.statement(
                    "unblock.ready",
                    jobs=[row[0] for row in came],
                    keys=[row[1] for row in came],
                    due=[row[0] for row in rows if row[1] is None],
                    locked=locked,
                    now=now,
                )
            # Keys that another has in hand were passed over.
            return Promoted(limit if len(keys) == limit else count, later, read_moment(at), is_more=True)

        return Verb("unblock", body)

"""Signals, what each blocked job waits for, and the keys to look at again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from winch.core.changes import blocked, woken
from winch.core.flow import INPUTS_HEADER
from winch.core.job import JobRecord
from winch.core.lifecycle import JobState
from winch.drivers.memory.records import Signal, Waiting
from winch.drivers.memory.verbs.base import Base, verb
from winch.drivers.memory.verbs.enqueue import EnqueueVerbs
from winch.storage.decide.waits import (
    ALL,
    DEAD,
    JOB,
    KEEP_TAKEN,
    KEEP_UNTAKEN,
    SIGNAL,
    Dependencies,
    KeptSignal,
    Sent,
    Taken,
    awaited_by,
    signal_key,
)
from winch.storage.params import Answer, ClaimRef, Enqueued, Finish, NewJob, Promoted
from winch.storage.verbs import Now, Verb


class WaitVerbs:
    """Signals, and jobs that wait for them or for other jobs."""

    def __init__(self, base: Base, enqueue: EnqueueVerbs) -> None:
        self._base = base
        self._state = base.state
        self._enqueue = enqueue

    def signal(self, name: str, payload: str, *, id: str, now: Now = None) -> Verb[Sent]:
        def body() -> Sent:
            if (name, id) in self._state.waits.signals:
                return Sent(id, is_new=False)
            self._state.waits.signals[name, id] = Signal(payload, self._base.now(now))
            self._base.look_again(signal_key(name))
            return Sent(id, is_new=True)

        return verb("signal", body)

    def take_signal(self, claim: ClaimRef, name: str, *, wanted_by: str, now: Now = None) -> Verb[Taken]:
        def body() -> Taken:
            job = self._state.live.get(claim.id)
            if job is None or job.state is not JobState.RUNNING or job.token != claim.token:
                return Taken(Answer.LOST)
            mine = (claim.id, wanted_by)
            sent = [
                (signal.taken_by != mine, signal.sent_at, id_, signal)
                for (of, id_), signal in self._state.waits.signals.items()
                if of == name and signal.taken_by in (None, mine)
            ]
            if not sent:
                return Taken(Answer.TOOK)
            *_, signal = min(sent, key=lambda one: one[:3])
            signal.taken_by = mine
            return Taken(Answer.TOOK, signal.payload)

        return verb("take_signal", body)

    def untaken_signals(self, *, limit: int = 1000) -> Verb[list[KeptSignal]]:
        def body() -> list[KeptSignal]:
            sent = [
                (signal.sent_at, name, id_, signal.payload)
                for (name, id_), signal in self._state.waits.signals.items()
                if signal.taken_by is None
            ]
            return [KeptSignal(name, id_, payload) for _, name, id_, payload in sorted(sent)[:limit]]

        return verb("untaken_signals", body, is_read=True)

    def forget_signals(self, which: Sequence[KeptSignal]) -> Verb[int]:
        def body() -> int:
            signals = self._state.waits.signals
            keys = [(one.name, one.id) for one in which]
            gone = [key for key in keys if key in signals and signals[key].taken_by is None]
            for key in gone:
                del signals[key]
            return len(gone)

        return verb("forget_signals", body)

    def enqueue_after(
        self, jobs: Sequence[NewJob], after: Dependencies, *, is_repeat: bool = False, now: Now = None
    ) -> Verb[list[Enqueued] | None]:
        def body() -> list[Enqueued] | None:
            at = self._base.now(now)
            claim = after.claim
            if claim is not None:
                mine = self._state.live.get(claim.id)
                if mine is None or mine.state is not JobState.RUNNING or mine.token != claim.token:
                    return None
            answers = self._enqueue.store(jobs, at, is_repeat=is_repeat)
            new = {answer.id for answer in answers if answer.is_new}
            known = {job.id for job in jobs} - new
            for job_id, added in after.waits:
                job = self._state.live.get(job_id)
                if job is None or job_id in known:
                    continue
                if job_id in new:
                    self._base.put(blocked(job), "held", at)
                elif job.state is not JobState.BLOCKED:
                    continue
                waiting = self._state.waits.waiting.setdefault(job_id, Waiting({}, None))
                for wait in added:
                    waiting.keys[wait.key] = wait.is_enough
                    self._base.look_again(wait.key)
            return answers

        return verb("enqueue_after", body)

    def unblock(self, *, limit: int = 1000, now: Now = None) -> Verb[Promoted]:
        def body() -> Promoted:
            at = self._base.now(now)
            waits = self._state.waits
            looked, waits.rechecks = waits.rechecks[:limit], waits.rechecks[limit:]
            looked += [DEAD + key.removeprefix(JOB) for key in looked if key.startswith(JOB)]
            opened = {key for key in set(looked) if self._has_come(key)}
            ready = []
            for job_id, waiting in list(waits.waiting.items()):
                job = self._state.live.get(job_id)
                if job is None or job.state is not JobState.BLOCKED:
                    del waits.waiting[job_id]
                    continue
                came = opened & waiting.keys.keys()
                is_enough = any(waiting.keys[key] for key in came)
                for key in came:
                    del waiting.keys[key]
                is_all = bool(came) and not any(not enough for enough in waiting.keys.values())
                if is_enough or is_all or (waiting.until is not None and waiting.until <= at):
                    ready.append(job)
                    del waits.waiting[job_id]
            for job in ready:
                self._base.put(woken(job, at), "admitted", at)
            untils = [w.until for w in waits.waiting.values() if w.until is not None]
            count = limit if waits.rechecks else len(ready)
            return Promoted(count, min(untils, default=None), at)

        return verb("unblock", body)

    def _has_come(self, key: str) -> bool:
        if key.startswith(JOB):
            return key.removeprefix(JOB) not in self._state.live
        if key.startswith(ALL):
            prefix = key.removeprefix(ALL)
            return not any(job_id.startswith(prefix) for job_id in self._state.live)
        if key.startswith(DEAD):
            kept = self._state.archive.get(key.removeprefix(DEAD))
            return kept is not None and kept.state is JobState.DEAD
        name = key.removeprefix(SIGNAL)
        return any(
            of == name and signal.taken_by is None
            for (of, _), signal in self._state.waits.signals.items()
        )

    def begin(self, outcome: Finish, at: datetime) -> None:
        """Write down what a job waits for that has just been blocked."""
        until = None if outcome.timeout is None else at + outcome.timeout
        keys = {wait.key: wait.is_enough for wait in outcome.waits}
        self._state.waits.waiting[outcome.id] = Waiting(keys, until)
        for key in keys:
            self._base.look_again(key)

    def is_still_awaited(self, job: JobRecord) -> bool:
        """Whether a live job still needs the result of this final job."""
        if (asked := awaited_by(job.headers)) is None:
            return False
        live = self._state.live
        waits = self._state.waits.waiting
        return (
            asked.parent in live
            or any(asked.key in waiting.keys for job_id, waiting in waits.items() if job_id in live)
            or any(
                asked.flow is not None and asked.flow in other.headers.get(INPUTS_HEADER, "")
                for other in live.values()
            )
        )

    def prune(self, at: datetime) -> None:
        """Delete old signals."""
        for key, signal in list(self._state.waits.signals.items()):
            keep = KEEP_UNTAKEN if signal.taken_by is None else KEEP_TAKEN
            if signal.sent_at <= at - keep:
                del self._state.waits.signals[key]

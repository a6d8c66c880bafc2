"""Sends outcomes to the store: everything that ended since the last answer goes in one call.

A finish may be repeated as often as needed, so an outage only delays it. One outcome that the store
cannot hold must not keep its neighbours from being written: a batch that is refused is halved until
the culprit stands alone, and that one is put aside. A complaint may be about the store and not about
the outcome, and a job that was done must not die of it, so it is tried again a few times, alone and
with growing pauses; only what is refused each time is written as dead, with the store's complaint.

The end of a member of a FIFO key claims the next member in the same call. On a store with
`continues_limits` so does the end of a job under a limit, and with `continues_small_limits` where the
worker has slots for the whole limit. Such a call is sent once; a repeated one carries no claim.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from winch.core.errors import StorageError, StorageFull, StorageUnavailable, type_name
from winch.core.gates.uses import GateTraits, traits_of
from winch.core.job import Claim, Failure
from winch.core.lifecycle import JobState
from winch.engine.base.failure import describe
from winch.engine.base.log import log
from winch.engine.base.service import Backoff, Surprises
from winch.engine.observe.store_ends import count_store_ends
from winch.engine.observe.throughput import MOST_ENDS, AttemptEnd, Tally
from winch.engine.tasks.runtime import Runtime
from winch.engine.worker.started_jobs import StartedPlaces
from winch.storage.crash_report import CrashReport
from winch.storage.decide.waits import AWAITED_HEADER
from winch.storage.params import Answer, ClaimRef, Finish
from winch.storage.protocol import Driver
from winch.storage.verbs import Verb

BATCH = 1000
# How long an outcome that was refused waits before it is tried again. Then it is given up: after 3 s.
AGAIN = (0.2, 0.4, 0.8, 1.6)
_COMPLETED = JobState.COMPLETED
# Ends claims and claims the next members of their FIFO keys; None, and nothing was sent, where this
# worker claims nothing now.
FinishAndClaim = Callable[[Sequence[Finish]], Awaitable[list[Answer] | None]]


@dataclass
class _Refused:
    """An outcome that the store refused when it stood alone."""

    outcome: Finish
    error: Exception
    tries: int
    due: float


class Finisher:
    """The one writer of outcomes in a worker."""

    def __init__(
        self,
        driver: Driver,
        runtime: Runtime,
        places: StartedPlaces | None,
        tally: Tally,
        *,
        slots: int = 0,
    ) -> None:
        self._driver = driver
        self._runtime = runtime
        self._places = places
        self._tally = tally
        self._finishes: list[Finish] = []
        self._members: list[Finish] = []  # ends that may claim the next job of their gate
        self._finish_and_claim: FinishAndClaim | None = None
        # Class attributes of drivers that can; see `finish_and_claim` in storage/families.py.
        is_any = getattr(driver, "continues_limits", False)
        is_small = getattr(driver, "continues_small_limits", False)
        # Limits up to this number continue.
        self._continued_limit: float = float("inf") if is_any else slots if is_small else -1
        self._releases: list[ClaimRef] = []
        self._interrupted: list[ClaimRef] = []
        self._crashes: list[tuple[ClaimRef, str]] = []
        self._refused: list[_Refused] = []
        self._is_awake = False  # has been woken, and has not begun
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._backoff = Backoff("finisher")
        self._surprises = Surprises("finisher")
        self.lost: int = 0

    def finish(self, outcome: Finish) -> None:
        self._finishes.append(outcome)
        if not self._is_awake:
            self._awake()

    def claim_with(self, finish_and_claim: FinishAndClaim) -> None:
        """How ends of members claim the next ones."""
        self._finish_and_claim = finish_and_claim

    def continues(self, options: str | None) -> bool:
        """Whether the end of a job with these options may claim the next one of its gate. Jobs under
        keyed limits take turns by the hundred already: their ends only make others ready."""
        return options is not None and self._continued(traits_of(options))

    def _continued(self, traits: GateTraits) -> bool:
        limit = traits.shared_limit
        return traits.is_member or (limit is not None and limit <= self._continued_limit)

    def finish_member(self, outcome: Finish) -> None:
        """The final end of a job that `continues`: the next one may be claimed with it."""
        self._members.append(outcome)
        if not self._is_awake:
            self._awake()

    def completed(self, claim: Claim, seconds: float) -> None:
        """The end of a job that ran for so long and returned nothing: counted, and sent."""
        options = claim.options
        self._tally.ends.append(
            AttemptEnd(
                claim.queue, claim.task, claim.run_at, claim.claimed_at, options, "completed", seconds
            )
        )
        traits = None if options is None else traits_of(options)
        ends = self._members if traits is not None and self._continued(traits) else self._finishes
        ends.append(
            Finish(
                id=claim.id,
                token=claim.token,
                to=_COMPLETED,
                what="completed",
                is_awaited=AWAITED_HEADER in claim.headers,
                is_gated=claim.has_permit or (traits is not None and traits.holds),
            )
        )
        if not self._is_awake:
            self._awake()

    def _awake(self) -> None:
        self._is_awake = True
        self._idle.clear()
        self._wake.set()

    def release(self, claims: Sequence[ClaimRef]) -> None:
        if claims:
            self._releases.extend(claims)
            self._awake()

    def interrupted(self, claim: ClaimRef) -> None:
        """The handler had begun and was stopped: given back, with a line in the job's history."""
        self._interrupted.append(claim)
        self._awake()

    def crash(self, claim: ClaimRef, cause: str) -> None:
        """The job's own process died: counted apart from failures."""
        self._crashes.append((claim, cause))
        self._awake()

    @property
    def continuing(self) -> int:
        """How many ends that may claim the next job of their gate are not answered yet."""
        return len(self._members)

    @property
    def pending(self) -> int:
        given_back = len(self._releases) + len(self._interrupted)
        ends = len(self._finishes) + len(self._members)
        return ends + given_back + len(self._crashes) + len(self._refused)

    @property
    def tokens(self) -> set[str]:
        """The claims whose end is not answered yet."""
        tokens = {outcome.token for outcome in (*self._finishes, *self._members)}
        tokens |= {ref.token for ref in (*self._releases, *self._interrupted)}
        tokens |= {one.outcome.token for one in self._refused}
        return tokens | {ref.token for ref, _ in self._crashes}

    async def flushed(self) -> None:
        """Wait until everything handed over has been answered."""
        await self._idle.wait()

    async def run(self) -> None:
        """Send and send again; cancelled by the worker when all is flushed or time is up."""
        while True:
            await self._until_wanted()
            self._wake.clear()
            self._is_awake = False
            try:
                await self._send()
            except Exception as error:  # what was not answered is still here, to be sent again
                await asyncio.sleep(self._surprises.met(error))
                self._awake()
            else:
                if self._surprises.count:
                    self._surprises.over()
            if not self.pending:
                self._idle.set()

    async def _send(self) -> None:
        """Send all there is, until it is answered or put aside."""
        while self._finishes or self._members:
            for ends in (self._finishes, self._members):
                if ends:
                    batch = ends[:BATCH]
                    refused = len(self._refused)
                    await self._finish(batch, ends is self._members)
                    del ends[: len(batch)]
                    if len(self._refused) == refused:
                        self._written(batch)
                    else:
                        aside = {one.outcome.token for one in self._refused[refused:]}
                        self._written([outcome for outcome in batch if outcome.token not in aside])
        for given_back, has_started in ((self._releases, False), (self._interrupted, True)):
            while given_back:
                refs = given_back[:BATCH]
                release = functools.partial(self._driver.release, refs, has_started=has_started)
                await self._repeat(release, refs)
                del given_back[: len(refs)]
                self._written(refs)
        while self._crashes:
            claim, cause = self._crashes[0]
            crash = CrashReport([claim], cause, self._runtime.crash_rule())
            await self._repeat(functools.partial(self._driver.crash, crash), [claim])
            del self._crashes[0]
            self._written([claim])
            await self._count_store_end(claim.id)
        await self._try_refused()

    def _written(self, claims: Sequence[Finish | ClaimRef]) -> None:
        if self._places is not None:
            self._places.written(claims)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    async def _until_wanted(self) -> None:
        """Wait for something to send, or for the time to try again what was refused."""
        if not self._refused:
            await self._wake.wait()
            return
        left = min(one.due for one in self._refused) - self._now()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(left, 0.0)):
                await self._wake.wait()

    async def _try_refused(self) -> None:
        now = self._now()
        for one in [one for one in self._refused if one.due <= now]:
            # It stays in the list, and so in `tokens`, until it is answered.
            outcome = one.outcome if one.tries < len(AGAIN) else _unstorable(one)
            try:
                answers = await self._driver.arun(self._driver.finish([outcome]))
            except (StorageUnavailable, StorageFull) as error:
                one.due = self._now() + self._backoff.failed(error)
            except Exception as error:
                log.error("job %s: its outcome was refused again: %r", outcome.id, error)
                one.error = error
                one.tries += 1
                one.due = self._now() + AGAIN[min(one.tries, len(AGAIN)) - 1]
            else:
                if self._backoff.failures:
                    self._backoff.worked()
                if answers[0] is Answer.LOST:
                    self._note_lost(outcome.id, f"its outcome ({outcome.to}) was refused")
                self._refused.remove(one)
                self._written([one.outcome])
                if outcome is not one.outcome:
                    await self._count_store_end(outcome.id)

    async def _finish(self, batch: Sequence[Finish], is_claiming: bool = False) -> None:
        while True:
            try:
                sent = time.monotonic()
                answers = None
                if is_claiming and self._finish_and_claim is not None:
                    is_claiming = False  # if it is sent again, it claims nothing
                    answers = await self._finish_and_claim(batch)
                if answers is None:
                    answers = await self._driver.arun(self._driver.finish(batch))
            except (StorageUnavailable, StorageFull) as error:
                await asyncio.sleep(self._backoff.failed(error))
                continue
            except Exception as error:  # a driver may fail on a value in ways that no store would
                await self._finish_apart(batch, error)
                return
            if self._backoff.failures:
                self._backoff.worked()
            if len(self._tally.ends) >= MOST_ENDS:
                self._tally.add_up()
            took = time.monotonic() - sent
            if self._runtime.middleware:
                self._runtime.run_hooks("settled", batch, took)
            if Answer.LOST in answers:
                for outcome, answer in zip(batch, answers, strict=True):
                    if answer is Answer.LOST:
                        self._note_lost(outcome.id, f"its outcome ({outcome.to}) was refused")
            return

    async def _finish_apart(self, batch: Sequence[Finish], error: Exception) -> None:
        if len(batch) > 1:
            log.warning(
                "the store refused %d outcomes in one call; sending them one by one: %r",
                len(batch),
                error,
            )
            middle = len(batch) // 2
            await self._finish(batch[:middle])
            await self._finish(batch[middle:])
            return
        [outcome] = batch
        log.error(
            "job %s: the store refuses its outcome: %r. It will be retried %d times",
            outcome.id,
            error,
            len(AGAIN),
        )
        self._refused.append(_Refused(outcome, error, 0, self._now() + AGAIN[0]))

    async def _repeat(self, verb: Callable[[], Verb[list[Answer]]], refs: Sequence[ClaimRef]) -> None:
        while True:
            try:
                answers = await self._driver.arun(verb())
            except StorageError as error:
                await asyncio.sleep(self._backoff.failed(error))
                continue
            if self._backoff.failures:
                self._backoff.worked()
            for ref, answer in zip(refs, answers, strict=True):
                if answer is Answer.LOST:
                    self._note_lost(ref.id, "there was nothing left to give back")
            return

    async def _count_store_end(self, job_id: str) -> None:
        """Count a job whose end the store decided, and no attempt."""
        await count_store_ends(self._driver, self._tally, self._runtime.events, dead=[job_id])

    def _note_lost(self, job_id: str, what: str) -> None:
        self.lost += 1
        log.warning(
            "job %s: the claim was lost; %s. Another worker has the job, or had it", job_id, what
        )


def _unstorable(refused: _Refused) -> Finish:
    outcome, complaint = refused.outcome, describe(refused.error)
    return Finish(
        id=outcome.id,
        token=outcome.token,
        to=JobState.DEAD,
        what="unstorable",
        error=Failure(
            type_name(StorageError),
            f"its outcome ({outcome.what}) could not be stored: {complaint.name}: {complaint.message}",
        ),
        reason="its outcome could not be stored",
    )

"""Jobs that workers of Faktory hold: taken with FETCH, ended with ACK or FAIL.

Faktory's protocol names a job by its id alone, through any connection and any gateway. So nothing about
a reservation is in a gateway's memory: the session of a claim is made of its token and the worker's id,
and a record in the store says until when the worker keeps the job. Every gateway extends the leases of
all reservations until then; the first to see one that is over ends it as a failed attempt. Where no
gateway is left, the leases end by themselves.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

from winch.core.errors import InvalidPayload, JobNotFound, StorageError, WinchError
from winch.core.job import Failure, JobRecord
from winch.core.lifecycle import JobState
from winch.core.outcome import Failed
from winch.core.values.ids import random_id
from winch.engine.base.service import Service
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.params import Answer, ClaimParams, Finish, NewSession
from winch.web.api.claims import completed, expired, finish_of, policy_of, unreadable
from winch.web.api.held import held_claim, held_record
from winch.web.faktory.payload import faktory_job, reserve_for
from winch.web.faktory.wire import FaktoryError

if TYPE_CHECKING:
    from winch.app import App

BOOK = "faktory"
# Extended by every gateway, so it is short: where the last one ends, the jobs are free soon.
LEASE = timedelta(seconds=60)
EXTEND_EVERY = 10.0
PAGE = 500
RELEASE = "faktory"


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """What the store keeps of a reservation, under the id of its session."""

    job: str
    worker: str
    until: datetime


@dataclass(frozen=True, slots=True)
class Opened:
    """A session for one claim, and the token of that claim."""

    session: str
    token: str
    at: datetime


class Took(Enum):
    """What a claim has brought when it brought no job to run."""

    NOTHING = "nothing"
    NOT_NOW = "not now"
    """A job that has expired, or a member of a flow that does not run now. The session is closed; the
    next claim may find more."""


def session_of(token: str, worker: str) -> str:
    """The session of a reservation: another worker's id makes another session."""
    return random_id(hashlib.sha256(f"faktory\n{token}\n{worker}".encode()).digest()[:16])


class Reservations:
    """Takes jobs for workers and ends their claims."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def open(self, worker: str, host: str, pid: int, queues: tuple[str, ...]) -> Opened:
        """A session for the next claim of this worker."""
        driver = self._app.driver
        token = random_id(os.urandom(16))
        session = session_of(token, worker)
        now = await driver.arun(
            driver.start_session(
                NewSession(
                    id=session,
                    worker=worker,
                    host=host,
                    pid=pid,
                    release=RELEASE,
                    queues=queues,
                    tasks=(),
                    slots=1,
                    lease=LEASE,
                )
            )
        )
        return Opened(session, token, now)

    async def close(self, opened: Opened) -> None:
        """End a session; a job that it has goes back at once."""
        driver = self._app.driver
        try:
            await driver.arun(driver.end_session(opened.session))
            await driver.arun(driver.kv_delete(BOOK, [opened.session]))
        except StorageError:  # its lease ends it
            return

    async def take(self, opened: Opened, worker: str, queues: tuple[str, ...]) -> dict[str, Any] | Took:
        """The next job, as its worker gets it. One that no worker can read is dead."""
        driver = self._app.driver
        asked = ClaimParams(session=opened.session, token=opened.token, queues=queues, limit=1)
        claims = await driver.arun(driver.claim(asked))
        if not claims:
            return Took.NOTHING
        [claim] = claims
        now = claim.claimed_at
        until = Reservation(job=claim.id, worker=worker, until=now + reserve_for(claim))
        body = msgspec.json.encode(until).decode()
        record = KvRecord(
            book=BOOK, key=opened.session, body=body, keep=reserve_for(claim) + timedelta(days=1)
        )
        await driver.arun(driver.kv_put([record]))
        try:
            found = expired(claim) or await faktory_job(self._app, claim)
        except InvalidPayload as error:
            await driver.arun(driver.finish([unreadable(claim, error)]))
            raise FaktoryError(f"job {claim.id} is dead: {error}") from None
        if isinstance(found, dict):
            return found
        await driver.arun(driver.finish([finish_of(self._app, held_claim(claim), found)]))
        await self.close(opened)
        return Took.NOT_NOW

    # -- the end of a claim ----------------------------------------------------------------------------

    async def held(self, job_id: str, worker: str) -> JobRecord:
        """The job, if this worker holds it. Raises FaktoryError."""
        try:
            record = await self._app.client.aget(job_id)
        except JobNotFound:
            raise FaktoryError(f"no job {job_id}") from None
        token = record.token
        if record.state is not JobState.RUNNING or token is None:
            raise FaktoryError(f"job {job_id} is {record.state.value}: its reservation has ended")
        if record.session != session_of(token, worker):
            raise FaktoryError(f"job {job_id} is reserved by another worker")
        return record

    async def complete(self, job_id: str, worker: str) -> None:
        """ACK. A repeated one is accepted as long as the job is completed."""
        try:
            record = await self.held(job_id, worker)
        except FaktoryError:
            if await self._is_completed(job_id):
                return
            raise
        await self._end(record, completed(self._app, held_record(record, record.token or ""), None))

    async def _is_completed(self, job_id: str) -> bool:
        try:
            record = await self._app.client.aget(job_id)
        except WinchError:
            return False
        return record.state is JobState.COMPLETED

    async def fail(self, record: JobRecord, error: Failure) -> None:
        """FAIL, or a reservation that is over: retried by the job's policy, or dead."""
        held = held_record(record, record.token or "")
        policy = policy_of(self._app, held)
        await self._end(record, finish_of(self._app, held, Failed(error, policy)))

    async def _end(self, record: JobRecord, finish: Finish) -> None:
        driver = self._app.driver
        [answer] = await driver.arun(driver.finish([finish]))
        if answer is Answer.LOST:
            raise FaktoryError(f"the reservation of job {record.id} has ended")
        if record.session is not None and record.token is not None:
            await self.close(Opened(record.session, record.token, record.created_at))


class Keeper(Service):
    """Extends the leases of all reservations, and ends those that are over."""

    name = "reservations of Faktory workers"

    def __init__(self, app: App, reservations: Reservations) -> None:
        super().__init__()
        self._app = app
        self._reservations = reservations

    async def run_once(self) -> float:
        driver = self._app.driver
        after: str | None = None
        while True:
            which = KvFilter(book=BOOK, after=after, limit=PAGE)
            lines = await driver.arun(driver.kv_list(which))
            if lines:
                await self._keep({line.key: _read(line.body) for line in lines})
            if len(lines) < PAGE:
                return EXTEND_EVERY
            after = lines[-1].key

    async def _keep(self, kept: dict[str, Reservation]) -> None:
        driver = self._app.driver
        pulses = await driver.arun(driver.beat(list(kept)))
        gone = [pulse.session for pulse in pulses if not pulse.is_live]
        if gone:
            await driver.arun(driver.kv_delete(BOOK, gone))
        for pulse in pulses:
            reservation = kept[pulse.session]
            if pulse.is_live and reservation.until <= pulse.now:
                await self._expire(pulse.session, reservation)

    async def _expire(self, session: str, reservation: Reservation) -> None:
        """End a reservation whose worker has not ended it in time: the attempt failed."""
        driver = self._app.driver
        [record] = await driver.arun(driver.get([reservation.job]))
        if record is not None and record.session == session and record.state is JobState.RUNNING:
            message = f"worker {reservation.worker} neither completed nor failed the job in time"
            try:
                await self._reservations.fail(record, Failure("ReservationExpired", message, None))
            except FaktoryError:  # the worker was first
                return
        else:
            await driver.arun(driver.end_session(session))
            await driver.arun(driver.kv_delete(BOOK, [session]))


def _read(body: str) -> Reservation:
    return msgspec.json.decode(body, type=Reservation)

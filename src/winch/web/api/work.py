"""Working over HTTP, from any language: claim, heartbeat, complete, fail, release.

Each claimed job has a session of its own, so that a worker that vanishes loses that job's lease and
nothing else. The session's id is made of the claim's token and the caller's credential: a caller that
presents a token with another credential names another session and is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from datetime import datetime, timedelta

from winch.core.errors import ConfigError, StorageError
from winch.core.job import Claim, JobRecord, Note
from winch.core.values import codec
from winch.core.values.duration import parse_duration
from winch.core.values.ids import parse_id, random_id
from winch.engine.tasks.options import check_queue
from winch.storage.params import Answer, ClaimParams, ClaimRef, Finish, NewSession, Standing
from winch.web.access import EVERY_NARROWING
from winch.web.api.claims import (
    LOST,
    checkpoint_of,
    completed,
    failed,
    jobs_to_run,
    lease_of,
    long_poll,
    tasks_of,
)
from winch.web.api.held import held_record
from winch.web.problems import Problem
from winch.web.routes import PREFIX, WebCall, WebReply, WebRoute
from winch.web.schemas.work import (
    BeatBody,
    BeatOut,
    ClaimBody,
    ClaimedJob,
    ClaimedOut,
    CompleteBody,
    FailBody,
    FinishedOut,
    JobToRun,
    TokenBody,
)


def session_of(token: str, credential: str) -> str:
    """The session of an HTTP claim."""
    return random_id(hashlib.sha256(f"{token}\n{credential}".encode()).digest()[:16])


async def claim(call: WebCall) -> WebReply:
    body: ClaimBody = call.body
    queue = check_queue(call.queue())
    lease = lease_of(body.lease)
    tasks = tasks_of(call, body.tasks)

    async def look() -> list[ClaimedJob]:
        found: list[ClaimedJob] = []
        try:
            while len(found) < body.max:
                job = await _claim_one(call, queue, lease, body.worker, tasks)
                if job is None:
                    break
                found.append(job)
        except BaseException:
            # The client never hears of these: they go back now, not with the end of their leases.
            for job in found:
                await asyncio.shield(_end(call, session_of(job.token, call.access.credential)))
            raise
        return found

    wait = parse_duration(body.wait, "wait")
    return WebReply(ClaimedOut(jobs=await long_poll(call, [queue], wait, look)))


async def _claim_one(
    call: WebCall, queue: str, lease: timedelta, worker: str, tasks: tuple[str, ...] | None
) -> ClaimedJob | None:
    """The next job that can be sent. One whose data is unreadable is dead: no worker could run it."""
    while True:
        taken = await _take(call, queue, lease, worker, tasks)
        if taken is None:
            return None
        claim, session, lease_until = taken
        try:
            found, ends = await jobs_to_run(call, [claim])
            if ends:
                await call.site.driver.arun(call.site.driver.finish(ends))
        except BaseException:
            await asyncio.shield(_end(call, session))  # the job goes back at once
            raise
        for _, job in found:
            fields = {name: getattr(job, name) for name in JobToRun.__struct_fields__}
            return ClaimedJob(**fields, lease_until=lease_until)
        await _end(call, session)


async def _take(
    call: WebCall, queue: str, lease: timedelta, worker: str, tasks: tuple[str, ...] | None
) -> tuple[Claim, str, datetime] | None:
    """A claim, its session and the end of its lease; None where no job is ready."""
    driver = call.site.driver
    token = random_id(os.urandom(16))
    session = session_of(token, call.access.credential)
    client = call.request.client
    now = await driver.arun(
        driver.start_session(
            NewSession(
                id=session,
                worker=worker,
                host=client.host if client else "http",
                pid=0,
                release=f"http:{call.access.name}",
                queues=(queue,),
                tasks=tasks or (),
                slots=1,
                lease=lease,
            )
        )
    )
    try:
        claims = await driver.arun(
            driver.claim(
                ClaimParams(session=session, token=token, queues=(queue,), limit=1, tasks=tasks)
            )
        )
    except BaseException:
        # The job may be taken and the answer lost: end the session, and it goes back at once.
        await asyncio.shield(_end(call, session))
        raise
    if not claims:
        await _end(call, session)
        return None
    return claims[0], session, now + lease


async def _end(call: WebCall, session: str) -> None:
    driver = call.site.driver
    try:
        await driver.arun(driver.end_session(session))
    except StorageError:  # its lease ends it
        return


# -- writes about a claim ----------------------------------------------------------------------------


async def _held(call: WebCall, token: str) -> tuple[JobRecord, ClaimRef, str]:
    """The job, the claim and its session; refuses a claim of another credential."""
    record = await call.job()
    try:
        token = parse_id(token, "token")
    except ConfigError:
        raise Problem("lost-claim", LOST) from None
    session = session_of(token, call.access.credential)
    if record.token == token and record.session != session:
        raise Problem("forbidden", "this claim was made with another credential")
    return record, ClaimRef(record.id, token), session


async def _finish(call: WebCall, finish: Finish, session: str) -> WebReply:
    driver = call.site.driver
    [answer] = await driver.arun(driver.finish([finish]))
    return await _ended(call, finish.id, answer, session)


async def _ended(call: WebCall, job_id: str, answer: Answer, session: str) -> WebReply:
    """End the session of a claim that has ended, and show the job as it is now."""
    if answer is Answer.LOST:
        raise Problem("lost-claim", LOST)
    await _end(call, session)
    [now] = await call.site.driver.arun(call.site.driver.get([job_id]))
    return WebReply(FinishedOut(id=job_id, state=None if now is None else now.state))


async def complete(call: WebCall) -> WebReply:
    body: CompleteBody = call.body
    record, ref, session = await _held(call, body.token)
    done = completed(call.site.app, held_record(record, ref.token), body.result)
    return await _finish(call, done, session)


async def fail(call: WebCall) -> WebReply:
    body: FailBody = call.body
    record, ref, session = await _held(call, body.token)
    done = failed(
        call.site.app,
        held_record(record, ref.token),
        body.error,
        is_final=body.is_final,
        retry_in=body.retry_in,
    )
    return await _finish(call, done, session)


async def heartbeat(call: WebCall) -> WebReply:
    body: BeatBody = call.body
    record, ref, session = await _held(call, body.token)
    driver = call.site.driver
    note = Note(
        progress=None if body.progress is None else codec.dumps(body.progress, what="progress"),
        checkpoint=checkpoint_of(call.site.app, record.id, record.task, body.checkpoint),
        log=None if body.log is None else codec.clean_text(body.log, 8192),
    )
    [pulse] = await driver.arun(driver.beat([session]))
    if note != Note():
        is_mine = await driver.arun(driver.note(ref, note)) is not Answer.LOST
    else:
        is_mine = await driver.arun(driver.standing([ref])) == [Standing.LIVE]
    facts = await driver.arun(driver.explain(record.id)) if is_mine and pulse.is_live else None
    if facts is None or facts.session is None:
        raise Problem("lost-claim", LOST)
    lease_until = facts.session.lease_until
    if body.lease is not None:
        wanted = parse_duration(body.lease, "lease")
        if facts.now + wanted > lease_until + timedelta(seconds=1):
            raise Problem(
                "invalid", "a heartbeat extends by the claim's own lease; claim with a longer one"
            )
    asked = facts.job.cancel_requested_at is not None
    return WebReply(BeatOut(lease_until=lease_until, is_cancel_requested=asked))


async def release(call: WebCall) -> WebReply:
    record, ref, session = await _held(call, call.body.token)
    driver = call.site.driver
    [answer] = await driver.arun(driver.release([ref]))
    return await _ended(call, record.id, answer, session)


J = f"{PREFIX}/jobs/{{id}}"
ROUTES: tuple[WebRoute, ...] = (
    WebRoute("POST", f"{PREFIX}/queues/{{queue}}/claim", "work", claim, "Take jobs to run",
             body=ClaimBody, answer=ClaimedOut, is_work=True, applies=("queue", "task")),
    WebRoute("POST", f"{J}/heartbeat", "work", heartbeat, "Keep a claim, report progress", body=BeatBody,
             answer=BeatOut, is_work=True, applies=EVERY_NARROWING),
    WebRoute("POST", f"{J}/complete", "work", complete, "The job is done", body=CompleteBody,
             answer=FinishedOut, is_work=True, applies=EVERY_NARROWING),
    WebRoute("POST", f"{J}/fail", "work", fail, "The attempt failed", body=FailBody, answer=FinishedOut,
             is_work=True, applies=EVERY_NARROWING),
    WebRoute("POST", f"{J}/release", "work", release, "Give the job back unrun", body=TokenBody,
             answer=FinishedOut, is_work=True, applies=EVERY_NARROWING),
)  # fmt: skip

"""Working over HTTP, from any language: claim, heartbeat, complete, fail, release.

Each claimed job has a session of its own, so that a worker that vanishes loses that job's lease and
nothing else. The session's id is made of the claim's token and the caller's credential: a caller that
presents a token with another credential names another session and is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from winch.core.errors import ConfigError, InvalidPayload, StorageError, WinchError
from winch.core.gates.uses import holds_something
from winch.core.job import Claim, Failure, JobRecord, Note
from winch.core.lifecycle import JobState
from winch.core.outcome import Failed, settle
from winch.core.policy.retry import DEFAULT_RETRY, Retry, from_stored
from winch.core.values import codec
from winch.core.values.duration import parse_duration
from winch.core.values.ids import parse_id, random_id
from winch.core.values.redact import read, stored_text
from winch.engine.base.encryption import seal, unseal
from winch.engine.base.failure import describe
from winch.engine.tasks.options import StoredOptions, check_queue
from winch.storage.params import Answer, ClaimParams, ClaimRef, Finish, NewSession, Standing
from winch.storage.protocol import Bell
from winch.web.access import EVERY_NARROWING
from winch.web.problems import Problem
from winch.web.routes import PREFIX, WebCall, WebReply, WebRoute
from winch.web.schemas import (
    BeatBody,
    BeatOut,
    ClaimBody,
    ClaimedJob,
    ClaimedOut,
    CompleteBody,
    ErrorOut,
    FailBody,
    FinishedOut,
    TokenBody,
)

LEASES = (timedelta(seconds=1), timedelta(hours=12))
LONGEST_WAIT = timedelta(seconds=60)
# A bell is a hint; no request waits longer than this between two looks.
LOOK_EVERY = 2.0
LOST = "the claim has ended: the job was finished, rescued or released; drop what you have"


def session_of(token: str, credential: str) -> str:
    """The session of an HTTP claim."""
    return random_id(hashlib.sha256(f"{token}\n{credential}".encode()).digest()[:16])


async def claim(call: WebCall) -> WebReply:
    body: ClaimBody = call.body
    queue = check_queue(call.queue())
    lease = parse_duration(body.lease, "lease")
    if not LEASES[0] <= lease <= LEASES[1]:
        raise Problem("invalid", f"lease must be from 1s to 12h, got {body.lease!r}")
    wait = min(parse_duration(body.wait, "wait"), LONGEST_WAIT).total_seconds()
    tasks = _tasks(call, body)
    deadline = time.monotonic() + wait
    found: list[ClaimedJob] = []
    bell: Bell | None = None
    try:
        while True:
            if bell is not None:
                await call.check_current()
            while len(found) < body.max:
                job = await _claim_one(call, queue, lease, body.worker, tasks)
                if job is None:
                    break
                found.append(job)
            left = deadline - time.monotonic()
            if found or left <= 0 or await call.request.is_disconnected():
                return WebReply(ClaimedOut(jobs=found))
            if bell is None:
                bell = call.site.driver.bell([queue])
                await bell.arm()
                continue  # look once more: a job stored before the bell was armed does not ring
            await bell.wait(min(left, LOOK_EVERY))
            await bell.arm()
    finally:
        if bell is not None:
            await bell.aclose()


def _tasks(call: WebCall, body: ClaimBody) -> tuple[str, ...] | None:
    mine = call.access.tasks
    if body.tasks is None:
        return mine
    return tuple(task for task in body.tasks if mine is None or task in mine)


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
            return _claimed(call, claim, lease_until)
        except InvalidPayload as error:
            await _bury(call, claim, error)
            await _end(call, session)
        except WinchError:
            await _end(call, session)  # the job goes back at once
            raise


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


async def _bury(call: WebCall, claim: Claim, error: InvalidPayload) -> None:
    driver = call.site.driver
    dead = Finish(
        id=claim.id,
        token=claim.token,
        to=JobState.DEAD,
        what="failed",
        error=describe(error),
        reason="its data is unreadable",
        is_gated=claim.has_permit or holds_something(claim.options),
    )
    await driver.arun(driver.finish([dead]))


async def _end(call: WebCall, session: str) -> None:
    driver = call.site.driver
    try:
        await driver.arun(driver.end_session(session))
    except StorageError:  # its lease ends it
        return


def _claimed(call: WebCall, claim: Claim, lease_until: datetime) -> ClaimedJob:
    keys = call.site.app.runtime.keys()
    about: dict[str, Any] = {"job": claim.id, "task": claim.task}
    args = unseal(keys, claim.args, **about, field="args")
    saved = claim.checkpoint
    if saved is not None:
        saved = unseal(keys, saved, **about, field="checkpoint")
    return ClaimedJob(
        id=claim.id,
        task=claim.task,
        version=claim.version,
        args=_readable(args, "args"),
        queue=claim.queue,
        attempt=claim.attempt,
        token=claim.token,
        fence=claim.fence,
        lease_until=lease_until,
        created_at=claim.created_at,
        expires_at=claim.expires_at,
        headers=dict(claim.headers),
        checkpoint=None if saved is None else _readable(saved, "checkpoint"),
    )


def _readable(text: str, what: str) -> Any:
    found, reason = read(text)
    if reason is not None:
        raise InvalidPayload(f"{what} is unreadable: {reason}")
    return found


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
    if answer is Answer.LOST:
        raise Problem("lost-claim", LOST)
    await _end(call, session)
    [record] = await driver.arun(driver.get([finish.id]))
    return WebReply(FinishedOut(id=finish.id, state=None if record is None else record.state))


async def complete(call: WebCall) -> WebReply:
    body: CompleteBody = call.body
    record, ref, session = await _held(call, body.token)
    result = None
    if body.result is not None:
        text = codec.dumps_result(body.result)
        result = seal(
            call.site.app.runtime.keys(), text, job=record.id, task=record.task, field="result"
        )
    done = Finish(
        id=ref.id,
        token=ref.token,
        to=JobState.COMPLETED,
        what="completed",
        result=result,
        is_gated=record.gate is not None or holds_something(record.options),
    )
    return await _finish(call, done, session)


async def fail(call: WebCall) -> WebReply:
    body: FailBody = call.body
    record, ref, session = await _held(call, body.token)
    error = _failure(body.error)
    policy = _policy(call, record)
    settled = settle(
        Failed(error, None if body.is_final else policy),
        attempt=record.attempt,
        age=datetime.now(UTC) - record.created_at,
        policy=policy,
        rng=random.Random(),  # noqa: S311  # jitter, not a secret
    )
    delay = settled.delay
    if body.retry_in is not None and settled.to is JobState.RETRYING:
        delay = parse_duration(body.retry_in, "retry_in")
    done = Finish(
        id=ref.id,
        token=ref.token,
        to=settled.to,
        what=settled.what,
        delay=delay,
        counts=settled.counts,
        error=settled.error,
        reason=settled.reason,
        is_gated=record.gate is not None or holds_something(record.options),
    )
    return await _finish(call, done, session)


def _failure(error: str | ErrorOut) -> Failure:
    if isinstance(error, str):
        error = ErrorOut(type="Error", message=error)
    half = codec.MAX_ERROR_BYTES // 2
    return Failure(
        codec.clean_text(error.type, 256),
        stored_text(error.message, half),
        None if error.traceback is None else stored_text(error.traceback, half),
    )


def _policy(call: WebCall, record: JobRecord) -> Retry:
    """The job's own policy, else the task's where this server knows it, else the default."""
    tasks = call.site.app.tasks
    policy = tasks.get(record.task).options.retry if record.task in tasks.names else DEFAULT_RETRY
    if record.options is None:
        return policy
    try:
        options = msgspec.json.decode(record.options, type=StoredOptions)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return policy
    if options.retry is not None:
        policy = from_stored(options.retry)
    if options.attempts is not None:
        policy = msgspec.structs.replace(policy, attempts=options.attempts)
    return policy


async def heartbeat(call: WebCall) -> WebReply:
    body: BeatBody = call.body
    record, ref, session = await _held(call, body.token)
    driver = call.site.driver
    note = Note(
        progress=None if body.progress is None else codec.dumps(body.progress, what="progress"),
        checkpoint=_checkpoint(call, record, body.checkpoint),
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


def _checkpoint(call: WebCall, record: JobRecord, value: Any) -> str | None:
    if value is None:
        return None
    text = codec.dumps(value, what="checkpoint")
    return seal(call.site.app.runtime.keys(), text, job=record.id, task=record.task, field="checkpoint")


async def release(call: WebCall) -> WebReply:
    record, ref, session = await _held(call, call.body.token)
    driver = call.site.driver
    [answer] = await driver.arun(driver.release([ref]))
    if answer is Answer.LOST:
        raise Problem("lost-claim", LOST)
    await _end(call, session)
    [now] = await driver.arun(driver.get([record.id]))
    return WebReply(FinishedOut(id=record.id, state=None if now is None else now.state))


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

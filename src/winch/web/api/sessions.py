"""Workers over HTTP that hold one session for their life and work in batches.

docs/protocol/wire.md says which side holds a claim, and what a lost reply of each call means.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from winch.core.errors import StorageError, WinchError
from winch.core.job import JobRecord, Note
from winch.core.policy.labels import check_labels
from winch.core.values import codec
from winch.core.values.duration import parse_duration
from winch.core.values.ids import parse_id, random_id
from winch.core.values.redact import mask_text
from winch.engine.base.operation import Operation
from winch.engine.client import worker_commands
from winch.engine.client.contracts import Contract, publish_contracts, stored_contract
from winch.engine.client.worker_commands import CommandAnswer, WorkerCommand
from winch.engine.flows.store import send
from winch.engine.tasks.declared import check_contract
from winch.engine.tasks.options import check_queue
from winch.storage.params import Answer, ClaimParams, ClaimRef, Finish, NewSession, Pulse
from winch.storage.verbs import Verb
from winch.web.api import claims
from winch.web.api.claims import jobs_to_run, lease_of, long_poll
from winch.web.api.held import HeldClaim, Serving, held_record
from winch.web.api.jobs import check_others, new_job
from winch.web.api.work import session_of
from winch.web.problems import Problem
from winch.web.routes import PREFIX, WebCall, WebReply, WebRoute
from winch.web.schemas.jobs import Enqueued
from winch.web.schemas.sessions import (
    CancelEnd,
    ChildrenBody,
    ChildrenOut,
    CompleteEnd,
    ContractBody,
    DiscardEnd,
    FailEnd,
    FinishAnswer,
    FinishBody,
    FinishOut,
    JobsOut,
    NewSessionBody,
    NoteAnswer,
    NoteBody,
    NotesBody,
    NotesOut,
    OrderAnswer,
    OrderOut,
    RefOut,
    ReleaseEnd,
    RetryEnd,
    RunningJob,
    SessionBeatBody,
    SessionBeatOut,
    SessionEndOut,
    SessionOut,
    SnoozeEnd,
    WorkBody,
)
from winch.web.schemas.work import JobToRun

ENDED = "no such session: it has ended, or it is another caller's; drop its jobs and register anew"
# A lease has this many heartbeats.
BEATS = 4
_CHILDREN = uuid.UUID("6f1d3a52-0f0e-5b7c-9a43-77696e636822")


# -- the session -------------------------------------------------------------------------------------


async def register(call: WebCall) -> WebReply:
    body: NewSessionBody = call.body
    queues = tuple(_queue(call, name) for name in dict.fromkeys(body.queues))
    tasks = claims.tasks_of(call, body.tasks)
    if tasks is not None and not tasks:
        raise Problem("forbidden", "this token may run none of these tasks")
    lease = lease_of(body.lease)
    contracts = {one.task: _contract(call, one) for one in body.contracts}
    await _check_contracts(call, contracts)
    key = random_id(os.urandom(16)) if body.key is None else parse_id(body.key, "key")
    session = session_of(key, call.access.credential)
    client = call.request.client
    new = NewSession(
        id=session,
        worker=body.worker,
        host=client.host if client else "http",
        pid=0,
        release=body.release or f"http:{call.access.name}",
        queues=queues,
        tasks=tasks or (),
        slots=body.slots,
        lease=lease,
        supervisor=session,
        labels=check_labels(body.labels, "labels"),
    )
    driver = call.site.driver
    # First: a producer that finds the session must find the queue of its tasks too.
    await call.site.client.arun(publish_contracts(driver, contracts))
    now = await driver.arun(driver.start_session(new))
    if body.key is not None:
        await _beat(call, session)  # one that has ended stays so
    call.site.work.serves(session, Serving(queues, tasks or ()))
    out = SessionOut(
        key=key,
        id=session,
        now=now,
        lease_seconds=lease.total_seconds(),
        beat_seconds=lease.total_seconds() / BEATS,
    )
    root = call.request.scope.get("root_path", "")
    return WebReply(out, 201, {"location": f"{root}{PREFIX}/sessions/{key}"})


def _contract(call: WebCall, body: ContractBody) -> Contract:
    if not call.access.runs(body.task):
        raise Problem("forbidden", f"this token may not run task {body.task!r}")
    if body.timeout is not None:
        parse_duration(body.timeout, "timeout")
    return Contract(
        schema=check_contract(body.task, body.schema),
        queue=None if body.queue is None else _queue(call, body.queue),
        timeout=body.timeout,
        attempts=body.attempts,
    )


async def _check_contracts(call: WebCall, contracts: Iterable[str]) -> None:
    """A contract says to which queue producers send a task. A caller of some queues does not change that
    for a task of another queue: it would get the jobs."""
    if call.access.queues is None:
        return
    client, driver = call.site.client, call.site.driver
    for task in contracts:
        known = await client.arun(stored_contract(driver, task))
        if known is not None and not call.access.serves(known.queue or "default"):
            raise Problem("forbidden", f"this token may not change the contract of task {task!r}")


def _queue(call: WebCall, name: str) -> str:
    if not call.access.serves(check_queue(name)):
        raise Problem("not-found", f"no queue {name!r}")
    return name


def _session(call: WebCall) -> str:
    """The id of the session whose key is in the path. With another credential it is another session."""
    try:
        key = parse_id(call.path("session"), "session")
    except WinchError:
        raise Problem("session-ended", ENDED) from None
    return session_of(key, call.access.credential)


async def heartbeat(call: WebCall) -> WebReply:
    body: SessionBeatBody = call.body
    session, driver = _session(call), call.site.driver
    pulse = await _beat(call, session)
    for answer in body.answers:
        await call.site.client.arun(_answered(call, session, answer))
    held = {(ref.id, ref.token) for ref in await driver.arun(driver.held(session))}
    named = {_pair(ref) for ref in body.running}
    asked = await driver.arun(driver.cancels([session])) if held else []
    answered = {answer.id for answer in body.answers}
    return WebReply(
        SessionBeatOut(
            now=pulse.now,
            cancelled=[RefOut(id=ref.id, token=ref.token) for ref in asked],
            lost=_refs(named - held),
            unlisted=_refs(held - named),
            orders=[
                order
                for key, text in pulse.commands
                if (order := _order(session, key, text)) is not None and order.id not in answered
            ],
        )
    )


async def _beat(call: WebCall, session: str) -> Pulse:
    """Extend the lease; refuses a session that has ended."""
    driver = call.site.driver
    [pulse] = await driver.arun(driver.beat([session]))
    if not pulse.is_live:
        call.site.work.ended(session)
        raise Problem("session-ended", ENDED)
    return pulse


def _pair(ref: RunningJob) -> tuple[str, str]:
    return parse_id(ref.id, "id"), parse_id(ref.token, "token")


def _refs(pairs: set[tuple[str, str]]) -> list[RefOut]:
    return [RefOut(id=job, token=token) for job, token in sorted(pairs)]


def _order(session: str, key: str, text: str) -> OrderOut | None:
    try:
        order = msgspec.json.decode(text, type=WorkerCommand)
    except msgspec.DecodeError:
        return None  # of another release: it ends with its time
    return OrderOut(
        id=key.removeprefix(f"{session}/"),
        do=order.do,
        by=order.by,
        grace=order.grace,
        concurrency=order.concurrency,
        queues=order.queues,
    )


def _answered(call: WebCall, session: str, answer: OrderAnswer) -> Operation[None]:
    key = worker_commands.key_of(session, answer.id)
    stored = CommandAnswer(state=answer.state, text=mask_text(answer.text))
    yield from worker_commands.store_answer(call.site.driver, key, stored)


async def end(call: WebCall) -> WebReply:
    session, driver = _session(call), call.site.driver
    if await _serving(call, session) is None:
        raise Problem("session-ended", ENDED)
    returned = await driver.arun(driver.end_session(session))
    call.site.work.ended(session)
    return WebReply(SessionEndOut(returned=len(returned)))


async def _serving(call: WebCall, session: str) -> Serving | None:
    """What this session takes; None where the store does not know it, or it has ended."""
    known = call.site.work.serving(session)
    if known is None:
        driver = call.site.driver
        for one in await driver.arun(driver.sessions()):
            if one.id == session:
                known = Serving(one.queues, one.tasks)
                call.site.work.serves(session, known)
    return known


# -- claim -------------------------------------------------------------------------------------------


async def claim(call: WebCall) -> WebReply:
    body: WorkBody = call.body
    session = _session(call)
    params = await _claim_params(call, session, body.max, body.queues, body.claim)
    wait = parse_duration(body.wait, "wait")

    is_silent = False

    async def look() -> list[JobToRun]:
        nonlocal is_silent
        found = await _claimed(call, params)
        if not found and not is_silent:
            await _beat(call, session)  # nothing to run, or the session is no more
            # A client that draws its tokens sends heartbeats meanwhile. Without them it is frozen behind
            # a connection that stays open, and its lease must end.
            is_silent = body.claim is not None
        return found

    return WebReply(JobsOut(jobs=await long_poll(call, params.queues, wait, look)))


async def _claim_params(
    call: WebCall, session: str, most: int, queues: Sequence[str] | None, token: str | None
) -> ClaimParams:
    serving = await _serving(call, session)
    if serving is None:
        raise Problem("session-ended", ENDED)
    wanted = serving.queues if queues is None else tuple(dict.fromkeys(queues))
    if foreign := [name for name in wanted if name not in serving.queues]:
        raise Problem("invalid", f"the session does not serve queue {foreign[0]!r}")
    # A token may have been narrowed since.
    mine = tuple(name for name in wanted if call.access.serves(name))
    tasks = claims.tasks_of(call, serving.tasks or None)
    if not mine or (tasks is not None and not tasks):
        raise Problem("forbidden", "this token may use none of the session's queues and tasks any more")
    drawn = random_id(os.urandom(16)) if token is None else parse_id(token, "claim")
    return ClaimParams(session=session, token=drawn, queues=mine, limit=most, tasks=tasks)


async def _claimed(call: WebCall, params: ClaimParams) -> list[JobToRun]:
    """Claimed jobs as they are sent. A job that cannot be sent is ended, and another one is taken."""
    driver, work = call.site.driver, call.site.work
    while True:
        try:
            taken = await driver.arun(driver.claim(params))
            found, ends = await jobs_to_run(call, taken)
            if ends:
                await driver.arun(driver.finish(ends))
        except BaseException:
            # What was taken is lost to the client, whose session goes on: it goes back now.
            await asyncio.shield(_give_up(call, params))
            raise
        for one, _ in found:
            work.took(params.session, one)
        if found or not ends:
            return [job for _, job in found]


async def _give_up(call: WebCall, params: ClaimParams) -> None:
    driver = call.site.driver
    try:
        await driver.arun(driver.give_up(params.session, [params.token]))
    except StorageError:  # the next heartbeat lists it
        return


# -- finish ------------------------------------------------------------------------------------------


async def finish(call: WebCall) -> WebReply:
    body: FinishBody = call.body
    session = _session(call)
    params = None
    if (more := body.claim) is not None:  # before anything is written
        params = await _claim_params(call, session, more.max, more.queues, more.claim)
    answers = await _finished(call, session, body)
    jobs = [] if params is None else await _claimed(call, params)
    if params is not None and not jobs and not body.outcomes:
        await _beat(call, session)
    return WebReply(FinishOut(answers=answers, jobs=jobs))


async def _finished(call: WebCall, session: str, body: FinishBody) -> list[FinishAnswer]:
    refs = [ClaimRef(parse_id(one.id, "id"), parse_id(one.token, "token")) for one in body.outcomes]
    if len({ref.id for ref in refs}) < len(refs):
        raise Problem("invalid", "a job has two outcomes in one request")
    held = await _held(call, session, refs)
    ends: list[Finish] = []
    back: dict[bool, list[ClaimRef]] = {False: [], True: []}
    for ref, outcome in zip(refs, body.outcomes, strict=True):
        known = held.get(ref)
        if known is None:
            continue
        if isinstance(outcome, ReleaseEnd):
            back[outcome.has_started].append(ref)
        else:
            ends.append(_end_of(call, known, outcome))
    found: dict[str, Answer] = {}
    driver = call.site.driver
    if ends:
        found |= await _answers([one.id for one in ends], call, driver.finish(ends))
    for has_started, some in back.items():
        if some:
            verb = driver.release(some, has_started=has_started)
            found |= await _answers([one.id for one in some], call, verb)
    for ref in refs:
        call.site.work.finished(session, ref)
    return [FinishAnswer(id=ref.id, answer=found.get(ref.id, Answer.LOST).value) for ref in refs]


async def _answers(ids: Sequence[str], call: WebCall, verb: Verb[list[Answer]]) -> dict[str, Answer]:
    answers = await call.site.driver.arun(verb)
    return dict(zip(ids, answers, strict=True))


async def _held(call: WebCall, session: str, refs: Sequence[ClaimRef]) -> dict[ClaimRef, HeldClaim]:
    """The claims of this session that the caller may end. Those of another server are read once more."""
    found = {ref: one for ref in refs if (one := call.site.work.held(session, ref)) is not None}
    absent = [ref for ref in refs if ref not in found]
    if absent:
        driver = call.site.driver
        records = await driver.arun(driver.get([ref.id for ref in absent]))
        for ref, record in zip(absent, records, strict=True):
            if record is not None and call.access.sees(record) and _is_ours(record, ref, session):
                found[ref] = held_record(record, ref.token)
    access = call.access
    if access.is_narrow:
        found = {
            ref: one for ref, one in found.items() if access.serves(one.queue) and access.runs(one.task)
        }
    return found


def _is_ours(record: JobRecord, ref: ClaimRef, session: str) -> bool:
    """False for a claim of another session. One that has ended names no session: the verb knows its
    token."""
    return record.token != ref.token or record.session == session


def _end_of(call: WebCall, held: HeldClaim, outcome: Any) -> Finish:
    app = call.site.app
    match outcome:
        case CompleteEnd():
            return claims.completed(app, held, outcome.result)
        case FailEnd():
            return claims.failed(app, held, outcome.error, is_final=outcome.is_final)
        case RetryEnd():
            return claims.retried(app, held, outcome.delay, outcome.error, outcome.reason)
        case SnoozeEnd():
            return claims.snoozed(app, held, outcome.delay, outcome.reason)
        case CancelEnd():
            return claims.cancelled(app, held, outcome.reason)
        case DiscardEnd():
            return claims.discarded(app, held, outcome.reason)
    raise AssertionError(outcome)  # pragma: no cover  # the schema has no other


# -- notes and children ------------------------------------------------------------------------------


async def notes(call: WebCall) -> WebReply:
    body: NotesBody = call.body
    session, driver = _session(call), call.site.driver
    refs = [ClaimRef(parse_id(one.id, "id"), parse_id(one.token, "token")) for one in body.notes]
    if len({ref.id for ref in refs}) < len(refs):
        raise Problem("invalid", "a job has two notes in one request")
    held = await _held(call, session, refs)
    written = [
        (ref, _note(call, held[ref], one))
        for ref, one in zip(refs, body.notes, strict=True)
        if ref in held
    ]
    found = await driver.arun(driver.notes(written)) if written else []
    answers = dict(zip((ref for ref, _ in written), found, strict=True))
    return WebReply(
        NotesOut(
            answers=[
                NoteAnswer(
                    id=ref.id,
                    answer="lost" if answers.get(ref, Answer.LOST) is Answer.LOST else "took",
                )
                for ref in refs
            ]
        )
    )


def _note(call: WebCall, held: HeldClaim, body: NoteBody) -> Note:
    return Note(
        progress=None if body.progress is None else codec.dumps(body.progress, what="progress"),
        checkpoint=claims.checkpoint_of(call.site.app, held.id, held.task, body.checkpoint),
        log=None if body.log is None else codec.clean_text(body.log, 8192),
    )


async def children(call: WebCall) -> WebReply:
    body: ChildrenBody = call.body
    session = _session(call)
    parent = ClaimRef(*_pair(body.parent))
    if parent not in await _held(call, session, [parent]):
        raise Problem("lost-claim", claims.LOST)
    new = []
    for place, one in enumerate(body.jobs):
        drawn = str(uuid.uuid5(_CHILDREN, f"{parent.id}\n{body.name}\n{place}"))
        new.append(await new_job(call, one, None if one.id is not None else drawn, None))
    client = call.site.client
    stored = await client.arun(send(client, new, [], None, parent))
    await check_others(call, stored)
    return WebReply(
        ChildrenOut(jobs=[Enqueued(id=one.holder or one.id, is_new=one.is_new) for one in stored]), 202
    )


S = f"{PREFIX}/sessions"
ONE = f"{S}/{{session}}"
ROUTES: tuple[WebRoute, ...] = (
    WebRoute("POST", S, "work", register, "Register a worker", body=NewSessionBody, answer=SessionOut,
             status=201, is_work=True, applies=("queue", "task")),
    WebRoute("POST", f"{ONE}/heartbeat", "work", heartbeat, "Keep a session and its jobs",
             body=SessionBeatBody, answer=SessionBeatOut, is_work=True, applies=("queue", "task")),
    WebRoute("POST", f"{ONE}/claim", "work", claim, "Take jobs for a session", body=WorkBody,
             answer=JobsOut, is_work=True, applies=("queue", "task")),
    WebRoute("POST", f"{ONE}/finish", "work", finish, "End claims, and take the next jobs",
             body=FinishBody, answer=FinishOut, is_work=True, applies=("queue", "task")),
    WebRoute("POST", f"{ONE}/notes", "work", notes, "Report progress, checkpoints and log lines",
             body=NotesBody, answer=NotesOut, is_work=True, applies=("queue", "task")),
    WebRoute("POST", f"{ONE}/children", "enqueue", children, "Enqueue children of a running job",
             body=ChildrenBody, answer=ChildrenOut, status=202, is_work=True,
             applies=("queue", "task")),
    WebRoute("DELETE", ONE, "work", end, "End a session; its jobs go back at once",
             answer=SessionEndOut, is_work=True, applies=("queue", "task")),
)  # fmt: skip

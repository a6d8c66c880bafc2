"""Stored jobs and events, to records and back.

An envelope is a msgpack array behind the moment of creation; a state is a map with short names. Both are
written down in lua/parts/record.lua. Damaged bytes read as empty: one bad job
must not keep the jobs that were claimed with it from running.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from winch.core.errors import InvalidPayload
from winch.core.gates.uses import QUEUE
from winch.core.job import HEAD_START, Claim, Entry, Failure, JobRecord, from_micros, to_micros
from winch.core.lifecycle import JobState
from winch.drivers.redis.keys import EXACT, PAST_EXACT
from winch.storage.params import Ending, Event, NewJob

MICROSECOND = timedelta(microseconds=1)
_HEAD_START = HEAD_START // MICROSECOND
CREATED = 9  # bytes of the moment of creation, in front of the envelope

_encode = msgspec.msgpack.Encoder().encode
_json = msgspec.json.Encoder().encode
_headers = msgspec.json.Decoder(dict[str, str])


class _Error(msgspec.Struct):
    type: str = ""
    message: str = ""
    traceback: str | None = None


class _HistoryLine(msgspec.Struct):
    what: str = ""
    at: int = 0
    attempt: int = 0
    token: str | None = None
    session: str | None = None
    claimed_at: int | None = None
    error: _Error | None = None
    by: str | None = None
    note: str | None = None
    log: str | None = None


class StoredState(msgspec.Struct):
    """What verbs have changed of a job; the names are those of lua/parts/record.lua."""

    s: str = "ready"
    t: int | None = None
    a: int = 0
    c: int = 0
    r: int = 0
    u: bool = False
    n: int = 0
    x: str | None = None
    k: int | None = None
    e: str | None = None
    q: int | None = None
    p: str | None = None
    h: str | None = None
    l: str | None = None  # noqa: E741  # log; the names are as short as can be
    H: list[_HistoryLine] = []
    f: int | None = None
    R: str | None = None
    w: str | None = None
    g: str | None = None
    G: str | None = None
    U: bool = False
    N: int | None = None


class _Claim(msgspec.Struct, array_like=True):
    token: str
    session: str
    at: int
    queue: str
    holds: bool = False
    """Permits, or a turn."""


class _Paused(msgspec.Struct):
    at: int
    reason: str | None = None


class _Event(msgspec.Struct):
    job: str
    v: int
    kind: str
    state: str | None = None
    token: str | None = None
    by_token: str | None = None
    session: str | None = None
    attempt: int = 0
    at: int = 0


_envelope = msgspec.msgpack.Decoder(list[Any])
_state = msgspec.msgpack.Decoder(StoredState)
_claim = msgspec.msgpack.Decoder(_Claim)
_paused = msgspec.msgpack.Decoder(_Paused)
_event = msgspec.msgpack.Decoder(_Event)
_FRESH = StoredState()
_STATES = {state.value.encode(): state for state in JobState}
_NO_ENVELOPE: list[Any] = ["", False, "{}", "", 0, *[False] * 5, 1, *[False] * 3]
FIELDS = len(_NO_ENVELOPE)


def envelope(job: NewJob) -> bytes:
    """What never changes of a job, but by an operator's hand."""
    try:
        return _encode(
            (
                job.task,
                False if job.options is None else job.options,
                job.args,
                job.queue,
                job.priority,
                job.tenant or False,
                job.fifo or False,
                job.unique_key or False,
                job.tags,
                _json(job.headers).decode() if job.headers else False,
                job.version,
                False if job.expires is None else job.expires // MICROSECOND,
                False if job.max_attempts is None else job.max_attempts,
                False if job.keep is None else job.keep // MICROSECOND,
            )
        )
    except UnicodeEncodeError as error:
        raise InvalidPayload(f"a text of job {job.id} cannot be stored as UTF-8: {error}") from error


def moved(job: JobRecord) -> tuple[bytes, bytes]:
    """The envelope and the state of a job of another store, as this one keeps them."""
    created = to_micros(job.created_at)
    new = NewJob(
        id=job.id,
        task=job.task,
        version=job.version,
        args=job.args,
        queue=job.queue,
        priority=job.priority,
        tenant=job.tenant,
        fifo=job.fifo,
        unique_key=job.unique_key,
        tags=job.tags,
        headers=job.headers,
        options=job.options,
        expires=None if job.expires_at is None else job.expires_at - job.created_at,
        max_attempts=job.max_attempts,
        keep=job.keep,
    )
    state: dict[str, Any] = {
        "s": job.state.value,
        "t": to_micros(job.run_at),
        "a": job.attempt,
        "c": job.crashes or None,
        "r": job.rescues or None,
        "u": job.is_suspect or None,
        "n": job.fence or None,
        "x": job.session,
        "k": micros(job.claimed_at),
        "e": job.ended_token,
        "q": micros(job.cancel_requested_at),
        "p": job.progress,
        "h": job.checkpoint,
        "l": job.log,
        "H": [_moved_entry(entry) for entry in job.history] or None,
        "f": micros(job.finished_at),
        "R": job.result,
        "w": job.reason,
        "g": job.fingerprint,
        "U": job.has_undo or None,
        "N": job.seq,
    }
    kept = {name: value for name, value in state.items() if value is not None}
    return b"\xcf" + created.to_bytes(CREATED - 1) + envelope(new), _encode(kept)


def _moved_entry(entry: Entry) -> dict[str, Any]:
    line = {
        "what": entry.what,
        "at": to_micros(entry.at),
        "attempt": entry.attempt,
        "token": entry.token,
        "session": entry.session,
        "claimed_at": micros(entry.claimed_at),
        "error": None if entry.error is None else msgspec.to_builtins(entry.error),
        "by": entry.by,
        "note": entry.note,
        "log": entry.log,
    }
    return {name: value for name, value in line.items() if value is not None}


def _read_envelope(data: bytes) -> tuple[int, list[Any]]:
    try:
        found = _envelope.decode(memoryview(data)[CREATED:])
    except msgspec.DecodeError:
        return 0, _NO_ENVELOPE
    if len(found) != FIELDS:
        return 0, _NO_ENVELOPE
    return int.from_bytes(data[1:CREATED]), found


def _read_state(data: bytes | None) -> StoredState:
    if data is None:
        return _FRESH
    try:
        return _state.decode(data)
    except msgspec.DecodeError:
        return _FRESH


def _read_headers(text: Any) -> dict[str, str]:
    if not text:
        return {}
    try:
        return _headers.decode(text)
    except msgspec.DecodeError:
        return {}


def moment(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


def micros(at: datetime | None) -> int | None:
    return None if at is None else to_micros(at)


def _entry(line: _HistoryLine) -> Entry:
    error = line.error
    return Entry(
        what=line.what,
        at=from_micros(line.at),
        attempt=line.attempt,
        token=line.token,
        session=line.session,
        claimed_at=moment(line.claimed_at),
        error=None if error is None else Failure(error.type, error.message, error.traceback),
        by=line.by,
        note=line.note,
        log=line.log,
    )


def _next_fence(last: int, claimed_at: int) -> int:
    """As `next_number` in lua/parts/record.lua counts, which writes it down when the claim ends."""
    return max(last + (1 if last < EXACT else PAST_EXACT), claimed_at)


def read_job(job_id: str, stored: bytes, state: bytes | None, claim: bytes | None) -> JobRecord:
    """A job from its envelope, its state and, while it runs, its claim."""
    created, env = _read_envelope(stored)
    s = _read_state(state)
    name, attempt, fence, session, claimed_at, token = s.s, s.a, s.n, s.x, s.k, None
    if claim is not None:
        c = _claim.decode(claim)
        token, session, claimed_at = c.token, c.session, c.at
        name, attempt, fence = "running", s.a + 1, _next_fence(s.n, claimed_at)
    return JobRecord(
        id=job_id,
        task=env[0],
        version=env[10],
        args=env[2],
        queue=env[3],
        priority=env[4],
        created_at=from_micros(created),
        run_at=from_micros(created if s.t is None else s.t),
        state=JobState(name),
        tenant=env[5] or None,
        fifo=env[6] or None,
        unique_key=env[7] or None,
        tags=tuple(env[8] or ()),
        headers=_read_headers(env[9]),
        options=_text(env[1]),
        expires_at=None if env[11] is False else from_micros(created + env[11]),
        max_attempts=None if env[12] is False else env[12],
        keep=None if env[13] is False else env[13] * MICROSECOND,
        attempt=attempt,
        crashes=s.c,
        rescues=s.r,
        is_suspect=s.u,
        fence=fence,
        token=token,
        session=session,
        claimed_at=moment(claimed_at),
        ended_token=s.e,
        cancel_requested_at=moment(s.q),
        progress=s.p,
        checkpoint=s.h,
        log=s.l,
        history=tuple(map(_entry, s.H)),
        finished_at=moment(s.f),
        result=s.R,
        reason=s.w,
        fingerprint=s.g,
        gate=s.G,
        has_undo=s.U,
        seq=s.N,
    )


def _text(value: Any) -> str | None:
    return None if value is False else value


def read_jobs(reply: Sequence[Any], ids: Sequence[str]) -> list[JobRecord | None]:
    """Jobs from the reply of `get`."""
    return [
        None if stored is None else read_job(job_id, stored, state, claim)
        for job_id, stored, state, claim in zip(ids, *reply, strict=True)
    ]


def read_endings(reply: Sequence[Any], count: int) -> list[Ending | None]:
    """How jobs stand, from the reply of `results`."""
    return [
        None
        if task is None
        else Ending(_STATES[state], task.decode(), None if result is None else result.decode())
        for task, state, result in zip(*(reply[part : 3 * count : 3] for part in range(3)), strict=True)
    ]


def read_claims(
    reply: Sequence[Any], token: str, sort_keys: dict[str, tuple[int, int]] | None = None
) -> list[Claim]:
    """Claims from the reply of `claim`, in the order of the queues; where wanted, by id the sort key of
    each in aged order and its priority."""
    at: int = reply[0]
    claimed_at = from_micros(at)
    moments, states, read = _Moments(), _StatesRead(), _HeadersRead()
    claims = []
    for index in range(1, len(reply), 4):
        named = reply[index].decode()
        queue = named.removeprefix(QUEUE)
        has_permit = queue != named
        for job_id, stored, state in zip(*reply[index + 1 : index + 4], strict=True):
            created, env = _read_envelope(stored)
            if state is None and env[1] is False and env[11] is False:
                # Never run before, and nothing but its arguments and headers: what most of them are.
                created_at = moments[created]
                if sort_keys is not None:
                    sort_keys[job_id.decode()] = (created - env[4] * _HEAD_START, env[4])
                claims.append(
                    Claim(
                        job_id.decode(),
                        token,
                        env[0],
                        env[10],
                        env[2],
                        queue,
                        1,
                        at,
                        created_at,
                        created_at,
                        claimed_at,
                        False,
                        None,
                        {} if env[9] is False else read[env[9]],
                        has_permit=has_permit,
                    )
                )
                continue
            s = _FRESH if state is None else states[state]
            created_at = moments[created]
            if sort_keys is not None:
                run_at = created if s.t is None else s.t
                sort_keys[job_id.decode()] = (run_at - env[4] * _HEAD_START, env[4])
            claims.append(
                Claim(
                    job_id.decode(),
                    token,
                    env[0],
                    env[10],
                    env[2],
                    queue,
                    s.a + 1,
                    _next_fence(s.n, at),
                    created_at,
                    created_at if s.t is None else moments[s.t],
                    claimed_at,
                    s.u,
                    None if env[11] is False else from_micros(created + env[11]),
                    {} if env[9] is False else read[env[9]],
                    _text(env[1]),
                    s.h,
                    has_permit,
                )
            )
    return claims


class _HeadersRead(dict[str, dict[str, str]]):
    """Headers that are read once: members of a flow share theirs. Those of a claim never change."""

    def __missing__(self, text: str) -> dict[str, str]:
        found = self[text] = _read_headers(text)
        return found


class _StatesRead(dict[bytes, StoredState]):
    """States that are read once: jobs given back together share theirs. They never change."""

    def __missing__(self, data: bytes) -> StoredState:
        found = self[data] = _read_state(data)
        return found


class _Moments(dict[int, datetime]):
    """Moments that are made once: jobs enqueued together share theirs."""

    def __missing__(self, micros: int) -> datetime:
        found = self[micros] = from_micros(micros)
        return found


def read_pause(data: bytes | None) -> tuple[datetime | None, str | None]:
    if data is None:
        return None, None
    found = _paused.decode(data)
    return from_micros(found.at), found.reason


def read_queue_of(claim: bytes) -> str:
    return _claim.decode(claim).queue


def read_events(reply: Sequence[Any]) -> list[Event]:
    found = []
    for index in range(0, len(reply), 2):
        e = _event.decode(reply[index + 1])
        found.append(
            Event(
                seq=int(reply[index].partition(b"-")[0]),
                job=e.job,
                v=e.v,
                kind=e.kind,
                state=None if e.state is None else JobState(e.state),
                token=e.token,
                by_token=e.by_token,
                session=e.session,
                attempt=e.attempt,
                at=from_micros(e.at),
            )
        )
    return found

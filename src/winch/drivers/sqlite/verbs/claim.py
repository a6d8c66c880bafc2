"""Claiming jobs: plain ones, and queues in which some jobs have gates or a tenant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import takewhile
from operator import attrgetter, itemgetter

import msgspec

from winch.core.gates.draw import Draw, Fair, draw, tenant_key
from winch.core.gates.passes import Admission, Candidate, Granted
from winch.core.gates.uses import Look, gates_of, queue_key
from winch.core.job import Claim, from_micros, strict_place
from winch.core.policy.queue_settings import QueueRule
from winch.core.values.codec import to_json
from winch.drivers._shared.rows import Row, read_headers
from winch.drivers.sqlite.statements import Step, StoreTime
from winch.drivers.sqlite.verbs import permits
from winch.drivers.sqlite.verbs.base import Body, query
from winch.storage.decide.gates import AHEAD, ROUNDS
from winch.storage.params import ClaimParams
from winch.storage.verbs import Verb


class ClaimVerbs:
    """See ClaimVerbs in storage/families.py for the contracts."""

    def claim(self, params: ClaimParams, *, now: datetime | None = None) -> Verb[list[Claim]]:
        def body() -> Body[list[Claim]]:
            at: int = yield StoreTime(now)
            claims: list[Claim] = []
            gated = params.limit if params.gated is None else params.gated
            for queue in dict.fromkeys(params.queues):
                if len(claims) >= params.limit:
                    break
                left = params.limit - len(claims)
                if params.gated != 0:
                    found, scoped = yield from _claim_queue(params, queue, left, gated, at)
                    claims += found
                    gated = max(gated - scoped, 0)
                else:
                    claims += yield from _claim_plain(params, queue, left, at)
            return claims

        return Verb("claim", body)


def _claim_plain(params: ClaimParams, queue: str, limit: int, at: int) -> Body[list[Claim]]:
    """Take up to `limit` plain jobs of one queue, in its order."""
    return (yield from _find_and_take(params, queue, limit, at, unless_gated=False)) or []


def _claim_unless_gated(
    params: ClaimParams, queue: str, limit: int, at: int
) -> Body[list[Claim] | None]:
    """The same; None, and nothing is taken, where a ready job of the queue has gates."""
    return (yield from _find_and_take(params, queue, limit, at, unless_gated=True))


def _find_and_take(
    params: ClaimParams, queue: str, limit: int, at: int, *, unless_gated: bool
) -> Body[list[Claim] | None]:
    found = {
        "session": params.session,
        "queue": queue,
        "tasks": None if params.tasks is None else to_json(params.tasks),
        "limit": limit,
        "unless_gated": unless_gated,
    }
    [(text,)] = yield Step("claim", found)
    if text is None:
        return None
    if text == "[]":
        return []
    claims = _read_found(text, params.token, queue, at)
    taken = {
        "now": at,
        "token": params.token,
        "session": params.session,
        "ids": to_json([claim.id for claim in claims]),
    }
    yield Step("claim.take", taken)
    return claims


class _Ready(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One job that `claim` has found, as it was before."""

    sort_key: int
    id: str
    task: str
    version: int
    args: str
    attempt: int
    fence: int
    created_at: int
    run_at: int
    is_suspect: int
    expires_at: int | None
    headers: str
    options: str | None
    checkpoint: str | None


_ready = msgspec.json.Decoder(list[_Ready])
_order = attrgetter("sort_key", "id")


def _read_found(text: str, token: str, queue: str, claimed_at: int) -> list[Claim]:
    """The claims of what `claim` has found, in the order of the queue."""
    found = _ready.decode(text)
    found.sort(key=_order)  # as they come already, but no aggregate promises an order
    moments = _Datetimes()
    now = from_micros(claimed_at)
    return [
        Claim(
            job.id,
            token,
            job.task,
            job.version,
            job.args,
            queue,
            job.attempt + 1,
            max(job.fence + 1, claimed_at),
            moments[job.created_at],
            moments[job.run_at],
            now,
            job.is_suspect != 0,
            None if job.expires_at is None else moments[job.expires_at],
            {} if job.headers == "{}" else read_headers(job.headers),
            job.options,
            job.checkpoint,
        )
        for job in found
    ]


class _Datetimes(dict[int, datetime]):
    """Moments that are made once: jobs enqueued together share theirs."""

    def __missing__(self, micros: int) -> datetime:
        moment = self[micros] = from_micros(micros)
        return moment


# -- queues with gates -------------------------------------------------------------------------------


def _claim_queue(
    params: ClaimParams, queue: str, limit: int, gated: int, at: int
) -> Body[tuple[list[Claim], int]]:
    """Claims from one queue that may have jobs with gates; and how many of them are under a scope."""
    tasks = None if params.tasks is None else to_json(params.tasks)
    plain_only = yield from _claim_unless_gated(params, queue, limit, at)
    if plain_only is not None:  # as mostly
        return plain_only, 0
    if rules := (yield from query("claim.rule", queue=queue)):
        concurrency, is_strict, used = rules[0]
        rule = QueueRule(concurrency=concurrency, is_strict=bool(is_strict))
        limit = limit if concurrency is None else min(limit, concurrency - used)
        return (yield from _claim_ruled(params, queue, limit, gated, at, rule))
    found: list[Claim] = []
    scoped = 0
    for _ in range(ROUNDS):
        left = limit - len(found)
        asked = {"queue": queue, "tasks": tasks, "session": params.session, "limit": left + AHEAD}
        rows = yield from query("admit.candidates", **asked, is_strict=0)
        is_all = len(rows) < left + AHEAD
        rows += yield from query("admit.tenants", **asked)
        if not rows:  # no job with gates is ready: nothing to draw between
            found += yield from _claim_plain(params, queue, left, at)
            break
        candidates = [Candidate(row[0], queue, row[1], row[2], gates_of(row[3]), row[4]) for row in rows]
        standing = yield from query("admit.plain", queue=queue, tasks=tasks, limit=left)
        admission, drawn = yield from _drawn(candidates, standing, queue, left, gated - scoped, at)
        claims = yield from _taken(admission, params, at)
        plain: list[Claim] = []
        if drawn.plain:
            plain = yield from _claim_plain(params, queue, drawn.plain, at)
        found += drawn.arranged({claim.id: claim for claim in claims}, plain)
        scoped += drawn.scoped
        if len(found) >= limit or is_all or not admission.held:
            break
    return found, scoped


def _claim_ruled(
    params: ClaimParams, queue: str, limit: int, gated: int, at: int, rule: QueueRule
) -> Body[tuple[list[Claim], int]]:
    """Claims from a queue with a rule: every ready job is a candidate, plain ones too. `limit` is no
    more than the queue's concurrency leaves."""
    found: list[Claim] = []
    scoped = 0
    for _ in range(ROUNDS):
        left = limit - len(found)
        if left <= 0:
            break
        candidates, is_all = yield from _ruled_candidates(params, queue, left, rule)
        admission, drawn = yield from _drawn(candidates, (), queue, left, gated - scoped, at)
        if rule.concurrency is not None and admission.taken:
            admission.permits += [Granted(queue_key(queue), i, 1) for i in admission.taken]
            yield from query("claim.mark", ids=to_json(admission.taken))
        claims = yield from _taken(admission, params, at, has_permit=rule.concurrency is not None)
        found += drawn.arranged({claim.id: claim for claim in claims}, ())
        scoped += drawn.scoped
        if is_all or not admission.held:
            break
    return found, scoped


def _ruled_candidates(
    params: ClaimParams, queue: str, left: int, rule: QueueRule
) -> Body[tuple[list[Candidate], bool]]:
    """The first ready jobs of a queue with a rule; and whether they are all there are."""
    most = left + AHEAD
    asked = {
        "queue": queue,
        "tasks": None if params.tasks is None else to_json(params.tasks),
        "session": params.session,
        "limit": most,
    }
    if not rule.is_strict:
        rows = yield from query("admit.candidates", **asked, is_strict=0)
        is_all = len(rows) < most
        rows += yield from query("admit.ruled", **{**asked, "limit": left}, is_strict=0)
        rows += yield from query("admit.tenants", **asked)
    else:
        rows = []
        levels = {0, *(row[0] for row in (yield from query("admit.levels", queue=queue)))}
        for level in sorted(levels, reverse=True):
            if len(rows) >= most:
                break
            if level:
                rows += yield from query("admit.level", **asked, priority=level)
            else:
                rows += yield from query("admit.ruled", **asked, is_strict=1)
                rows += yield from query("admit.candidates", **asked, is_strict=1)
        is_all = len(rows) < most
        rows += yield from query("admit.strict_tenants", **asked)
    return [
        Candidate(
            i, queue, strict_place(key, n) if rule.is_strict else key, attempt, gates_of(text), tenant
        )
        for i, key, attempt, text, tenant, n in rows
    ], is_all


def _drawn(
    candidates: Sequence[Candidate],
    plain: Sequence[Row],
    queue: str,
    limit: int,
    gated: int,
    at: int,
) -> Body[tuple[Admission, Draw]]:
    if not candidates:
        return Admission({}, at), Draw([None] * len(plain))
    uses = {use.key: use for job in candidates for use in job.gates}
    looks = yield from permits.look(uses.values())
    admission = Admission(looks, at)
    key = tenant_key(queue)
    fair = None
    tenants = sorted({job.tenant for job in candidates if job.tenant is not None})
    if tenants:
        specs = yield from permits.specs_of(f"tenant:{tenant}" for tenant in tenants)
        weights = {name.removeprefix("tenant:"): spec.n for name, spec in specs.items()}
        found = yield from query("admit.look", keys=to_json([key]))
        fair = Fair.of(found[0][1], weights)
    drawn = draw(admission, candidates, plain, fair, limit=limit, scoped=gated)
    if fair is not None:
        admission.changed[key] = Look(key, state=fair.dump())
    return admission, drawn


def _taken(
    admission: Admission, params: ClaimParams, at: int, *, has_permit: bool = False
) -> Body[list[Claim]]:
    """Write what was decided."""
    if admission.changed:
        yield from permits.keep(admission.changed.values())
    if admission.held:
        held = [{"id": i, "gate": key, "now": at} for i, key in admission.held.items()]
        yield Step.each("admit.hold", held)
    if admission.permits:
        rows = [
            {
                "gate": one.gate,
                "job": one.job,
                "token": None if one.is_turn else params.token,
                "weight": one.weight,
            }
            for one in admission.permits
        ]
        yield Step.each("admit.permit", rows)
    return (yield from _take(admission.taken, params, at, has_permit=has_permit))


def next_members(ended: Sequence[str], params: ClaimParams, at: int) -> Body[list[Claim]]:
    """Take the next members of the FIFO keys of these jobs, which are final now: those that a claim
    would take first."""
    rows = yield from query("finish_and_claim", ids=to_json(ended), session=params.session)
    uses = {job_id: gates_of(options) for job_id, options in rows}
    heads = {job_id: found[0].key for job_id, found in uses.items() if len(found) == 1}
    if not heads:
        return []
    tasks = None if params.tasks is None else to_json(params.tasks)
    most = min(params.limit, len(heads))
    taken: list[str] = []
    for queue in dict.fromkeys(params.queues):
        rows = yield from query("finish_and_claim.first", queue=queue, tasks=tasks, limit=most)
        first = list(takewhile(heads.__contains__, (row[0] for row in rows)))
        taken += first
        if len(taken) >= most or len(first) < len(rows):
            break
    del taken[most:]
    turns = [{"gate": heads[job_id], "job": job_id, "token": None, "weight": 0} for job_id in taken]
    if turns:
        yield Step.each("admit.permit", turns)
    return (yield from _take(taken, params, at))


def _take(
    ids: Sequence[str], params: ClaimParams, at: int, *, has_permit: bool = False
) -> Body[list[Claim]]:
    """Claim jobs that have their permits."""
    if not ids:
        return []
    taken = yield from query(
        "admit.take", ids=to_json(ids), now=at, token=params.token, session=params.session
    )
    return _read_claims(taken, params.token, from_micros(at), has_permit)


def _read_claims(rows: Iterable[Row], token: str, claimed_at: datetime, has_permit: bool) -> list[Claim]:
    """Claims from the columns of `admit.take`, in the order of the queue."""
    moments = _Datetimes()
    return [
        Claim(
            id=row[1],
            token=token,
            task=row[2],
            version=row[3],
            args=row[4],
            queue=row[5],
            attempt=row[6],
            fence=row[7],
            created_at=moments[row[8]],
            run_at=moments[row[9]],
            claimed_at=claimed_at,
            is_suspect=bool(row[10]),
            expires_at=None if row[11] is None else moments[row[11]],
            headers={} if row[12] == "{}" else read_headers(row[12]),
            options=row[13],
            checkpoint=row[14],
            has_permit=has_permit,
        )
        for row in sorted(rows, key=itemgetter(0, 1))
    ]

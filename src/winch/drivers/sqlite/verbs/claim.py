"""Claiming jobs: plain ones, and queues in which some jobs have gates or a tenant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter, itemgetter
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from winch.core.gates.draw import Draw, Fair, draw, tenant_key
from winch.core.gates.passes import Admission, Candidate, Granted
from winch.core.gates.uses import LIMIT, GateUse, Look, gates_of, queue_key
from winch.core.job import Claim, from_micros, strict_place
from winch.core.policy.queue_settings import QueueRule
from winch.core.values.codec import to_json
from winch.drivers._shared.rows import Row, read_headers
from winch.drivers.sqlite.connections.writer import store_time
from winch.drivers.sqlite.statements import Step
from winch.drivers.sqlite.verbs import permits
from winch.drivers.sqlite.verbs.base import Body, query
from winch.storage.decide.gates import AHEAD, ROUNDS
from winch.storage.params import ClaimParams
from winch.storage.verbs import Now, Verb


class ClaimVerbs:
    """See ClaimVerbs in storage/families.py for the contracts."""

    def claim(self, params: ClaimParams, *, now: Now = None) -> Verb[list[Claim]]:
        def body() -> Body[list[Claim]]:
            at = store_time(now)
            claims: list[Claim] = []
            gated = params.limit if params.gated is None else params.gated
            for queue in dict.fromkeys(params.queues):
                if len(claims) >= params.limit:
                    break
                left = params.limit - len(claims)
                if params.gated != 0:
                    free = _slots(params, claims)
                    found, scoped = yield from _claim_queue(
                        replace(params, free=free), queue, left, gated, at
                    )
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
    claims = _read_found(text, params.token, at)
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
    queue: str
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


def _read_found(text: str, token: str, claimed_at: int, *, has_permit: bool = False) -> list[Claim]:
    """The claims of what `claim` or `admit.take` has found, in the order of the queue."""
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
            job.queue,
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
            has_permit,
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
    for number in range(ROUNDS):
        tenants = yield from _tenants_of(queue, params.session)
        # Without a free slot a few are tried first: this worker's own jobs mostly hold their gates.
        is_trial = number == 0 and params.free == 0 and not tenants
        left = min(limit, TRIED) if is_trial else limit - len(found)
        most = left if is_trial else left + AHEAD
        asked = {"queue": queue, "tasks": tasks, "session": params.session, "limit": most}
        rows = yield from _candidates("admit.candidates", **asked, is_strict=0)
        is_all = len(rows) < most
        more, cut = yield from _of_tenants(tenants, params, queue, left, is_first=number == 0)
        rows += more
        if not rows:  # no job with gates is ready: nothing to draw between
            found += yield from _claim_plain(params, queue, left, at)
            break
        candidates = [
            Candidate(row.id, queue, row.sort_key, row.attempt, gates_of(row.options), row.tenant)
            for row in rows
        ]
        standing = yield from query("admit.plain", queue=queue, tasks=tasks, limit=left)
        asks = _Asks(params, queue, left, gated - scoped, at, len(found))
        admission, drawn = yield from _drawn(candidates, standing, asks, tenants, cut)
        claims = yield from _taken(admission, params, at)
        plain: list[Claim] = []
        if drawn.plain:
            plain = yield from _claim_plain(params, queue, drawn.plain, at)
        found += drawn.arranged({claim.id: claim for claim in claims}, plain)
        scoped += drawn.scoped
        is_more = drawn.is_cut or (bool(admission.held) and not is_all and not _fills(params, found))
        is_more = bool(found) if is_trial else is_more
        if len(found) >= limit or not is_more:
            break
    return found, scoped


class _ReadyRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One candidate, as admit.candidates and admit.of_tenants have it."""

    id: str
    sort_key: int
    attempt: int
    options: str | None
    tenant: str | None
    priority: int


_rows = msgspec.json.Decoder(list[_ReadyRow])
_lists = msgspec.json.Decoder(list[list[_ReadyRow]])
_next = msgspec.json.Decoder(tuple[list[tuple[str, str | None, str | None]], list[str]])
_first = msgspec.json.Decoder(list[tuple[int, str, str | None]])
_place = attrgetter("sort_key", "id")
# Of each tenant a few more jobs are read than its share of the claim: some may be held at their gates.
SPARE = 2
# How many candidates a claim without a free slot tries before it reads as many as it wants.
TRIED = 32


def _candidates(name: str, **values: object) -> Body[list[_ReadyRow]]:
    """What a statement finds that returns candidates in one row, sorted."""
    [(text,)] = yield from query(name, **values)
    rows = _rows.decode(text)
    rows.sort(key=_place)  # as they come already, but no aggregate promises an order
    return rows


def _tenants_of(queue: str, session: str) -> Body[dict[str, int]]:
    """The tenants of the ready jobs of a queue, with their weights."""
    [(text,)] = yield from query("admit.tenants", queue=queue, session=session)
    if text == "[]":
        return {}
    tenants = msgspec.json.decode(text, type=list[str])
    specs = yield from permits.specs_of(f"tenant:{tenant}" for tenant in tenants)
    return {
        tenant: max(1, specs[name].n) if (name := f"tenant:{tenant}") in specs else 1
        for tenant in tenants
    }


def _of_tenants(
    tenants: dict[str, int], params: ClaimParams, queue: str, left: int, *, is_first: bool
) -> Body[tuple[list[_ReadyRow], list[str]]]:
    """The first ready jobs of each tenant; and the tenants that have more.

    The first time a fifth more of each than its weight gives it of the claim, because others may have
    fewer; then as many as there is room for, and no tenant counts as having more."""
    if not tenants:
        return [], []
    total = sum(tenants.values())
    found: list[_ReadyRow] = []
    cut: list[str] = []
    for weight in sorted(set(tenants.values())):
        alike = [tenant for tenant, own in tenants.items() if own == weight]
        most = min(left, math.ceil(1.2 * left * weight / total)) + SPARE if is_first else left + AHEAD
        tasks = None if params.tasks is None else to_json(params.tasks)
        [(text,)] = yield from query(
            "admit.of_tenants", tenants=to_json(alike), queue=queue, tasks=tasks, limit=most
        )
        for tenant, rows in zip(alike, _lists.decode(text), strict=True):
            found += sorted(rows, key=_place)
            if is_first and len(rows) == most:
                cut.append(tenant)
    return found, cut


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
        tenants = yield from _tenants_of(queue, params.session)
        asks = _Asks(params, queue, left, gated - scoped, at, len(found))
        admission, drawn = yield from _drawn(candidates, (), asks, tenants)
        if rule.concurrency is not None and admission.taken:
            admission.permits += [Granted(queue_key(queue), i, 1) for i in admission.taken]
            yield from query("claim.mark", ids=to_json(admission.taken))
        claims = yield from _taken(admission, params, at, has_permit=rule.concurrency is not None)
        found += drawn.arranged({claim.id: claim for claim in claims}, ())
        scoped += drawn.scoped
        if is_all or not admission.held or _fills(params, found):
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
        rows = yield from _candidates("admit.candidates", **asked, is_strict=0)
        is_all = len(rows) < most
        rows += yield from _candidates("admit.ruled", **{**asked, "limit": left}, is_strict=0)
        tenants = yield from _tenants_of(queue, params.session)
        rows += (yield from _of_tenants(tenants, params, queue, left, is_first=False))[0]
    else:
        rows = []
        levels = {0, *(row[0] for row in (yield from query("admit.levels", queue=queue)))}
        for level in sorted(levels, reverse=True):
            if len(rows) >= most:
                break
            if level:
                rows += yield from _candidates("admit.level", **asked, priority=level)
            else:
                rows += yield from _candidates("admit.ruled", **asked, is_strict=1)
                rows += yield from _candidates("admit.candidates", **asked, is_strict=1)
        is_all = len(rows) < most
        of_tenants = yield from _candidates("admit.strict_tenants", **asked)
        rows += sorted(of_tenants, key=lambda row: (-row.priority, row.sort_key, row.id))
    return [
        Candidate(
            row.id,
            queue,
            strict_place(row.sort_key, row.priority) if rule.is_strict else row.sort_key,
            row.attempt,
            gates_of(row.options),
            row.tenant,
        )
        for row in rows
    ], is_all


def _slots(params: ClaimParams, found: Sequence[Claim]) -> int | None:
    """How many slots these jobs leave free."""
    return None if params.free is None else max(params.free - len(found), 0)


def _fills(params: ClaimParams, found: Sequence[Claim]) -> bool:
    """Whether these jobs are enough for the free slots, so that none is blocked to find another."""
    return params.free is not None and len(found) >= params.free


class _Asks(NamedTuple):
    """What a claim wants of one queue: so many jobs, and so many under a scope or a slow rate. It has
    found so many already."""

    params: ClaimParams
    queue: str
    limit: int
    gated: int
    at: int
    found: int


def _drawn(
    candidates: Sequence[Candidate],
    plain: Sequence[Row],
    asks: _Asks,
    weights: dict[str, int],
    cut: Sequence[str] = (),
) -> Body[tuple[Admission, Draw]]:
    if not candidates:
        return Admission({}, asks.at), Draw([None] * len(plain))
    uses = {use.key: use for job in candidates for use in job.gates}
    looks = yield from permits.look(uses.values(), asks.params)
    admission = Admission(looks, asks.at, asks.params.at_once)
    key = tenant_key(asks.queue)
    fair = None
    if any(job.tenant is not None for job in candidates):
        turns = yield from permits.look([GateUse(key, "")])
        fair = Fair.of(turns[key].state, weights)
    drawn = draw(
        admission,
        candidates,
        plain,
        fair,
        limit=asks.limit,
        scoped=asks.gated,
        cut=cut,
        slots=asks.params.free,
        before=asks.found,
    )
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
        yield from query("admit.hold", held=to_json(admission.held), now=at)
    yield from _permit(admission.permits, params)
    return (yield from _take(admission.taken, params, at, has_permit=has_permit))


def _permit(granted: Sequence[Granted], params: ClaimParams) -> Body[None]:
    """Write these permits."""
    alike: dict[tuple[bool, int, bool], list[dict[str, str]]] = {}
    for one in granted:
        kind = (one.is_turn, one.weight, one.is_limit)
        parts = alike.get(kind)
        if parts is None:
            parts = alike[kind] = [{}]
        if one.job in parts[-1]:  # its second gate of this kind
            parts.append({})
        parts[-1][one.job] = one.gate
    for (is_turn, weight, is_limit), parts in alike.items():
        for gates in parts:
            yield from query(
                "admit.permit",
                gates=to_json(gates),
                token=None if is_turn else params.token,
                weight=weight,
                session=params.session,
                at_once=params.at_once if is_limit else None,
            )


def next_members(ended: Sequence[str], params: ClaimParams, at: int) -> Body[list[Claim]]:
    """Take the next members of the FIFO keys of these jobs, which are final now, and the next jobs of
    their limits: those that a claim would take first."""
    [(text,)] = yield from query("finish_and_claim", ids=to_json(ended), session=params.session)
    members, options = _next.decode(text)
    yield from permits.admit({job_id: key for job_id, key, _ in members if key is not None}, at)
    uses = {job_id: gates_of(found) for job_id, _, found in members if found is not None}
    heads = {job_id: found[0].key for job_id, found in uses.items() if len(found) == 1}
    limits = {use.key: use for one in options for use in gates_of(one) if use.kind == LIMIT}
    most = params.limit if limits else min(params.limit, len(heads))
    if not most:
        return []
    admission = Admission((yield from permits.look(limits.values(), params)), at, params.at_once)
    tasks = None if params.tasks is None else to_json(params.tasks)
    for queue in dict.fromkeys(params.queues):
        [(text,)] = yield from query(
            "finish_and_claim.first", queue=queue, tasks=tasks, limit=most, session=params.session
        )
        rows = _first.decode(text)
        rows.sort(key=itemgetter(0, 1))
        for key, job_id, found in rows:
            if len(admission.taken) == most:
                break
            if job_id in heads:
                admission.taken.append(job_id)
                admission.permits.append(Granted(heads[job_id], job_id, 0, is_turn=True))
                continue
            gates = gates_of(found)
            is_next = len(gates) == 1 and gates[0].key in limits
            if not is_next or not admission.admit(Candidate(job_id, queue, key, 0, gates)):
                break
        else:
            continue
        break
    yield from _permit(admission.permits, params)
    return (yield from _take(admission.taken, params, at))


def _take(
    ids: Sequence[str], params: ClaimParams, at: int, *, has_permit: bool = False
) -> Body[list[Claim]]:
    """Claim jobs that have their permits."""
    if not ids:
        return []
    as_json = to_json(ids)
    [(text,)] = yield from query("admit.take", ids=as_json)
    claims = _read_found(text, params.token, at, has_permit=has_permit)
    yield Step(
        "claim.take", {"now": at, "token": params.token, "session": params.session, "ids": as_json}
    )
    return claims

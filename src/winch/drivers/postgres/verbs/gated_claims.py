"""Claims from queues that have jobs with gates or tenants."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from winch.core.gates.draw import Draw, Fair, draw, tenant_key
from winch.core.gates.passes import Admission, Candidate
from winch.core.gates.uses import LIMIT, GateUse, Look, gates_of, queue_key
from winch.core.job import Claim, strict_place
from winch.core.policy.queue_settings import NO_RULE, QueueRule
from winch.drivers.postgres.records import read_claims
from winch.drivers.postgres.statements import Body, Statement
from winch.drivers.postgres.verbs.base import BEGINNING, Base
from winch.drivers.postgres.verbs.permits import look_at, to_json, write_looks
from winch.storage.decide.gates import AHEAD, ROUNDS
from winch.storage.params import ClaimParams

# Of each tenant a few more are looked at than are wanted: some may be held at their gates.
SPARE = 10
# The statement that decides in the store looks at fewer first, and at all where those were too few.
FEW_SPARE, FEW_AHEAD = 1, 50
# A claim without a free slot tries so many candidates, where the last one found most gates closed: the
# jobs of its own worker hold them.
TRIED = 32
# How many orders of queues are remembered to have jobs with gates: a worker with weights has several.
KNOWN_ORDERS = 1000


class GatedClaims:
    """Claims that look at gates; jobs without gates take the plain statement."""

    def __init__(self, base: Base) -> None:
        self._base = base
        # Queues, as claims name them, that had ready jobs with gates at the last look: a hint.
        self.with_gates: set[tuple[str, ...]] = set()
        # Those where the last claim without a free slot got less than half of what it wanted.
        self._mostly_closed: set[tuple[str, ...]] = set()

    def claim(self, params: ClaimParams, now: datetime | None) -> Body[list[Claim]]:
        """Claims from queues that may have jobs with gates, by a statement that decides in the store.
        It claims from one queue with gates; where there is room for more, another one follows. What only
        `core.gates` decides goes the long way."""
        every = queues = list(dict.fromkeys(params.queues))
        found: list[Claim] = []
        gated = params.limit if params.gated is None else params.gated
        is_ahead = params.free == 0
        is_trial = is_ahead and tuple(every) in self._mostly_closed
        for call in range(ROUNDS * len(every)):
            left = params.limit - len(found)
            rows = yield self._base.statement(
                "claim.gated",
                is_alone=True,
                queues=queues,
                session=params.session,
                token=params.token,
                tasks=None if params.tasks is None else list(params.tasks),
                limit=min(left, TRIED) if is_trial else left,
                gated=gated,
                at_once=params.at_once,
                ahead=0 if is_ahead else AHEAD if call else FEW_AHEAD,
                spare=SPARE if call else FEW_SPARE,
                batch_from=self._base.batch_from,
                now=now,
            )
            if not rows:  # transactions of this database have one snapshot for all statements
                return found + (yield from self.claim_in_python(params, queues, found, gated, now))
            scoped, has_gates, rest, is_rare = (rows[-1][0], *rows[-1][-3:])
            if queues is every:
                self._met_gates(every, is_any=has_gates)
            with_permit = {row[1] for row in rows[:-1] if row[-3]}
            claims = read_claims([row[:-3] for row in rows[:-1]], params.token, every)
            found += [
                replace(claim, has_permit=True) if claim.id in with_permit else claim for claim in claims
            ]
            if is_trial and found:
                is_trial, rest = False, 1
            if rest is None:
                break
            gated = max(gated - scoped, 0)
            queues = queues[rest - 1 :]
            if is_rare:
                return found + (yield from self.claim_in_python(params, queues, found, gated, now))
        if is_ahead and len(found) >= params.limit // 2:
            self._mostly_closed.discard(tuple(every))
        elif is_ahead and len(self._mostly_closed) < KNOWN_ORDERS:
            self._mostly_closed.add(tuple(every))
        return found

    def claim_in_python(
        self,
        params: ClaimParams,
        queues: list[str],
        before: Sequence[Claim],
        gated: int,
        now: datetime | None,
    ) -> Body[list[Claim]]:
        """The long way, in a transaction: `core.gates` decides here what the gates let through."""
        params = replace(params, limit=params.limit - len(before))
        rows = yield self._base.statement("admit.begin", session=params.session, queues=queues)
        with_gates = {
            row[0]: (QueueRule(concurrency=row[1], is_strict=row[2]), row[3] or 0) for row in rows
        }
        found: list[Claim] = []
        plain: list[str] = []
        for queue in [*queues, None]:
            if queue is not None and queue not in with_gates:
                plain.append(queue)
                continue
            if plain and len(found) < params.limit:
                rows = yield self._claim_plain(params, plain, params.limit - len(found), now)
                found += read_claims(rows, params.token, plain)
            plain = []
            if queue is not None and len(found) < params.limit:
                rule, used = with_gates[queue]
                if rule.concurrency is not None and used >= rule.concurrency:
                    continue  # full: the end of one of its jobs wakes the workers of the queue
                claims, scoped = yield from self._claim_queue(
                    params, queue, params.limit - len(found), gated, rule, now
                )
                found += claims
                gated = max(gated - scoped, 0)
        return found

    def _met_gates(self, queues: Sequence[str], *, is_any: bool) -> None:
        """Remember whether the next claim of these queues may count on there being no gates."""
        if not is_any:
            self.with_gates.discard(tuple(queues))
        elif len(self.with_gates) < KNOWN_ORDERS:
            self.with_gates.add(tuple(queues))

    def _claim_queue(
        self,
        params: ClaimParams,
        queue: str,
        limit: int,
        gated: int,
        rule: QueueRule,
        now: datetime | None,
    ) -> Body[tuple[list[Claim], int]]:
        """Claims from one queue; and how many of them are under a scope. With a rule every ready job is
        a candidate, plain ones too."""
        found: list[Claim] = []
        scoped = 0
        for _ in range(ROUNDS):
            left = limit - len(found)
            rows = yield self._base.statement(
                "admit.strict" if rule.is_strict else "admit.candidates",
                queue=queue,
                tasks=None if params.tasks is None else list(params.tasks),
                limit=left,
                ahead=AHEAD,
                spare=SPARE,
            )
            is_ruled = rule != NO_RULE
            candidates = [
                Candidate(
                    row[0],
                    queue,
                    strict_place(row[1], row[6]) if rule.is_strict else row[1],
                    row[2],
                    gates_of(row[3]),
                    row[4],
                )
                for row in rows
                if is_ruled or not row[5]
            ]
            standing = [] if is_ruled else [(row[1], row[0]) for row in rows if row[5]]
            admission, drawn = yield from self._drawn(
                candidates, standing, queue, left, gated - scoped, rule, now
            )
            claims: list[Claim] = []
            if candidates:
                claims = yield from self._take(admission, params, queue, rule)
            plain: list[Claim] = []
            if drawn.plain:
                plain_rows = yield self._claim_plain(params, [queue], drawn.plain, now)
                plain = read_claims(plain_rows, params.token, [queue])
            found += drawn.arranged({claim.id: claim for claim in claims}, plain)
            scoped += drawn.scoped
            if len(found) >= limit or not admission.held or len(candidates) < left + AHEAD:
                break
        return found, scoped

    def _claim_plain(
        self, params: ClaimParams, queues: Sequence[str], limit: int, now: datetime | None
    ) -> Statement:
        return self._base.statement(
            "claim",
            session=params.session,
            token=params.token,
            queues=list(queues),
            starts=[BEGINNING[0]] * len(queues),
            start_ids=[BEGINNING[1]] * len(queues),
            tasks=None if params.tasks is None else list(params.tasks),
            limit=limit,
            is_batch=limit >= self._base.batch_from,
            is_wary=False,
            now=now,
        )

    def _drawn(
        self,
        candidates: Sequence[Candidate],
        standing: Sequence[tuple[int, str]],
        queue: str,
        limit: int,
        gated: int,
        rule: QueueRule,
        now: datetime | None,
    ) -> Body[tuple[Admission, Draw]]:
        if not candidates:
            return Admission({}, 0), Draw([None] * len(standing[:limit]))
        uses = {use.key: use for job in candidates for use in job.gates}
        tenants = sorted({job.tenant for job in candidates if job.tenant is not None})
        turn, whole = tenant_key(queue), queue_key(queue)
        if rule.concurrency is not None:
            uses[whole] = GateUse(whole, LIMIT)
        keys = [*uses, *([turn] if tenants else [])]
        yield self._base.statement("admit.lock_keys", keys=keys)
        weighed = [GateUse(f"tenant:{tenant}", "", f"tenant:{tenant}") for tenant in tenants]
        extra = [GateUse(turn, ""), *weighed] if tenants else []
        looks, at = yield from look_at(self._base, [*uses.values(), *extra], now)
        admission = Admission(looks, at)
        if rule.concurrency is not None:
            limit = max(0, min(limit, rule.concurrency - looks[whole].used))
        fair = None
        if tenants:
            weights = {
                tenant: look.spec.n
                for tenant in tenants
                if (look := looks[f"tenant:{tenant}"]).spec is not None
            }
            fair = Fair.of(looks[turn].state, weights)
        drawn = draw(admission, candidates, standing, fair, limit=limit, scoped=gated)
        if fair is not None:
            admission.changed[turn] = Look(turn, state=fair.dump())
        return admission, drawn

    def _take(
        self, admission: Admission, params: ClaimParams, queue: str, rule: QueueRule
    ) -> Body[list[Claim]]:
        is_limited = rule.concurrency is not None
        at = admission.now
        rows = yield self._base.statement(
            "admit.take",
            gates=write_looks(admission.changed.values()),
            held=to_json([{"id": i, "gate": key} for i, key in admission.held.items()]),
            held_ids=list(admission.held),
            ids=admission.taken,
            permits=to_json(
                [
                    {"gate": one.gate, "job": one.job, "weight": one.weight, "is_turn": one.is_turn}
                    for one in admission.permits
                ]
            ),
            token=params.token,
            session=params.session,
            at=at,
            is_ruled=rule != NO_RULE,
            queue_gate=queue_key(queue) if is_limited else None,
        )
        if any(look.open_at is not None for look in admission.changed.values()):
            yield self._base.statement("admit.ring")
        claims = read_claims(rows, params.token, [queue])
        return [replace(claim, has_permit=True) for claim in claims] if is_limited else claims

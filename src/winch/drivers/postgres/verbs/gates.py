"""Gates here: their rows are locked first, sorted, and looked at in a later statement, because one that
waits for a lock sees the world from before the wait. What is decided is decided by `core.gates`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from winch.core import gates
from winch.core.gates import Admission, Candidate, Draw, Fair, GateSpec, GateUse, Look, name_of_key
from winch.core.job import Claim, JobRecord
from winch.core.lifecycle import JobState
from winch.drivers.postgres.records import read_claims, read_moment
from winch.drivers.postgres.statements import Body, Row, Step
from winch.drivers.postgres.verbs.base import BEGINNING, Verbs
from winch.storage.decide.gates import (
    AHEAD,
    OPENED_AT_ONCE,
    ROUNDS,
    Setting,
    gate_info,
    named_limits,
    why_ended,
)
from winch.storage.params import (
    Answer,
    ClaimParams,
    Finish,
    GateInfo,
    LimitInfo,
    Promoted,
    Rebinding,
)
from winch.storage.verbs import Verb

# Of each tenant a few more are looked at than are wanted: some may be held at their gates.
SPARE = 10
# How many gates one transaction opens.
GATES_AT_ONCE = 100
# How many orders of queues are remembered to have jobs with gates: a worker with weights has several.
KNOWN_ORDERS = 1000
_spec = msgspec.json.Decoder(GateSpec)


class GateVerbs(Verbs):
    """Claims of jobs with gates, and what opens gates."""

    def _claim_plain(
        self, params: ClaimParams, queues: Sequence[str], limit: int, now: datetime | None
    ) -> Step:
        return self._step(
            "claim",
            session=params.session,
            token=params.token,
            queues=list(queues),
            starts=[BEGINNING] * len(queues),
            tasks=None if params.tasks is None else list(params.tasks),
            limit=limit,
            is_batch=limit >= self._batch_from,
            is_wary=False,
            now=now,
        )

    def _claim_gated(self, params: ClaimParams, now: datetime | None) -> Body[list[Claim]]:
        """Claims from queues that may have jobs with gates; those without go the plain way."""
        queues = list(dict.fromkeys(params.queues))
        rows = yield self._step("admit.begin", session=params.session, queues=queues)
        with_gates = {row[0] for row in rows}
        self._met_gates(queues, is_any=bool(with_gates))
        found: list[Claim] = []
        gated = params.limit if params.gated is None else params.gated
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
                claims, holding = yield from self._claim_queue(
                    params, queue, params.limit - len(found), gated, now
                )
                found += claims
                gated = max(gated - holding, 0)
        return found

    def _met_gates(self, queues: Sequence[str], *, is_any: bool) -> None:
        """Remember whether the next claim of these queues may count on there being no gates."""
        if not is_any:
            self._with_gates.discard(tuple(queues))
        elif len(self._with_gates) < KNOWN_ORDERS:
            self._with_gates.add(tuple(queues))

    def _claim_queue(
        self, params: ClaimParams, queue: str, limit: int, gated: int, now: datetime | None
    ) -> Body[tuple[list[Claim], int]]:
        found: list[Claim] = []
        holding = 0
        for _ in range(ROUNDS):
            left = limit - len(found)
            rows = yield self._step(
                "admit.candidates",
                queue=queue,
                tasks=None if params.tasks is None else list(params.tasks),
                limit=left,
                ahead=AHEAD,
                spare=SPARE,
            )
            candidates = [
                Candidate(row[0], queue, row[1], row[2], gates.gates_of(row[3]), row[4])
                for row in rows
                if not row[5]
            ]
            standing = [(row[1], row[0]) for row in rows if row[5]]
            admission, drawn = yield from self._drawn(
                candidates, standing, queue, left, gated - holding, now
            )
            claims: list[Claim] = []
            if candidates:
                claims = yield from self._take(admission, params, now)
            plain: list[Claim] = []
            if drawn.plain:
                plain_rows = yield self._claim_plain(params, [queue], drawn.plain, now)
                plain = read_claims(plain_rows, params.token, [queue])
            found += drawn.arranged({claim.id: claim for claim in claims}, plain)
            holding += sum(1 for claim in claims if gates.gates_of(claim.options))
            if len(found) >= limit or not admission.held or len(candidates) < left + AHEAD:
                break
        return found, holding

    def _drawn(
        self,
        candidates: Sequence[Candidate],
        standing: Sequence[tuple[int, str]],
        queue: str,
        limit: int,
        gated: int,
        now: datetime | None,
    ) -> Body[tuple[Admission, Draw]]:
        if not candidates:
            return Admission({}, 0), Draw([None] * len(standing[:limit]))
        uses = {use.key: use for job in candidates for use in job.gates}
        tenants = sorted({job.tenant for job in candidates if job.tenant is not None})
        turn = gates.tenant_key(queue)
        keys = [*uses, *([turn] if tenants else [])]
        yield self._step("admit.lock_keys", keys=keys)
        weighed = [GateUse(f"tenant:{tenant}", "", f"tenant:{tenant}") for tenant in tenants]
        extra = [GateUse(turn, ""), *weighed] if tenants else []
        looks, at = yield from self._look([*uses.values(), *extra], now)
        admission = Admission(looks, at)
        fair = None
        if tenants:
            weights = {
                tenant: look.spec.n
                for tenant in tenants
                if (look := looks[f"tenant:{tenant}"]).spec is not None
            }
            fair = Fair.of(looks[turn].state, weights)
        drawn = gates.draw(admission, candidates, standing, fair, limit=limit, gated=gated)
        if fair is not None:
            admission.changed[turn] = Look(turn, state=fair.dump())
        return admission, drawn

    def _look(self, uses: Iterable[GateUse], now: datetime | None) -> Body[tuple[dict[str, Look], int]]:
        """The gates, whose rows are locked, as they are; and the store's time."""
        # A job may stand among those with gates and have none: then only the time is wanted.
        wanted = list({use.key: use for use in uses}.values()) or [GateUse("", "")]
        rows = yield self._step(
            "admit.look",
            keys=[use.key for use in wanted],
            names=[use.name for use in wanted],
            fifos=[use.key.removeprefix("fifo:") if use.kind == gates.FIFO else None for use in wanted],
            now=now,
        )
        looks = {row[0]: _read_look(row) for row in rows}
        return looks, rows[0][7]

    def _take(
        self, admission: Admission, params: ClaimParams, now: datetime | None
    ) -> Body[list[Claim]]:
        at = admission.now
        rows = yield self._step(
            "admit.take",
            gates=_write_looks(admission.changed.values()),
            held=_json([{"id": i, "gate": key} for i, key in admission.held.items()]),
            held_ids=list(admission.held),
            ids=admission.taken,
            permits=_json(
                [
                    {"gate": one.gate, "job": one.job, "weight": one.weight, "is_turn": one.is_turn}
                    for one in admission.permits
                ]
            ),
            token=params.token,
            session=params.session,
            at=at,
        )
        if any(look.open_at is not None for look in admission.changed.values()):
            yield self._step("admit.ring")
        return read_claims(rows, params.token, [row[2] for row in rows])

    # -- giving back -------------------------------------------------------------------------------

    def _finish_gated(
        self,
        outcomes: Sequence[Finish],
        end: Callable[[Sequence[Finish]], Body[list[Answer]]],
        now: datetime | None,
    ) -> Body[list[Answer]]:
        """End claims of jobs with gates: the gates are locked before the rows, and scopes are told."""
        brakes = sorted({f"scope:{o.brake}" for o in outcomes if o.brake is not None})
        rows = yield self._step("admit.lock", ids=[o.id for o in outcomes], keys=brakes)
        uses = {row[0]: gates.gates_of(row[1]) for row in rows}
        claimed = {row[0]: row[2] for row in rows}
        answers = yield from end(outcomes)
        took = [o for o, answer in zip(outcomes, answers, strict=True) if answer is Answer.TOOK]
        if leaving := [outcome.id for outcome in took if outcome.leaves_turn]:
            left = yield self._step("admit.leave_turn", ids=leaving)
            if left:
                yield from self._open([row[0] for row in left], now)
        counted = {
            use.key
            for outcome in took
            if outcome.what in ("completed", "failed")
            for use in uses.get(outcome.id, ())
            if use.breaker is not None
        }
        keys = sorted(counted | {f"scope:{o.brake}" for o in took if o.brake is not None})
        if not keys:
            return answers
        yield self._step("admit.lock_keys", keys=keys)
        looks, at = yield from self._look([GateUse(key, gates.SCOPE) for key in keys], now)
        before = {key: look.state for key, look in looks.items()}
        for outcome in took:
            why = why_ended(outcome)
            if outcome.brake is not None:
                gate = looks[f"scope:{outcome.brake}"]
                until = at + round(outcome.delay.total_seconds() * 1e6)
                gate.state = gates.braked(gate.state, until, why)
            if outcome.what in ("completed", "failed"):
                for use in uses.get(outcome.id, ()):
                    if use.breaker is not None:
                        gate = looks[use.key]
                        is_ok = outcome.to is JobState.COMPLETED
                        gate.state = gates.counted(
                            gate.state, use.breaker, is_ok, claimed[outcome.id], at, why
                        )
        yield self._step("admit.keep", gates=_write_looks(looks.values()))
        # What only counted opens nothing.
        is_open = [k for k in keys if gates.scope_state(before[k]) or gates.scope_state(looks[k].state)]
        if is_open:
            yield from self._open(is_open, now)
        return answers

    def _open(self, keys: Sequence[str], now: datetime | None) -> Body[int]:
        """Make ready whom these gates let through; their rows are locked."""
        waiting: dict[str, list[Row]] = {key: [] for key in keys}
        for row in (yield self._step("admit.waiting", keys=list(keys), limit=OPENED_AT_ONCE)):
            waiting[row[0]].append(row)
        uses = {key: _use_of(key, rows[0][2] if rows else None) for key, rows in waiting.items()}
        looks, at = yield from self._look(uses.values(), now)
        chosen: dict[str, str] = {}  # by the gate that opens
        changed = []
        for key, rows in waiting.items():
            use, look = uses[key], looks[key]
            if use.kind == gates.FIFO:
                first = look.turn or look.head
                chosen |= {} if first is None else {first: key}
                continue
            room, next_at = gates.room(look, use, at, len(rows)) if rows else (0, None)
            chosen |= {row[1]: key for row in rows[:room]}
            is_more = room < len(rows) or len(rows) == OPENED_AT_ONCE
            open_at = next_at if is_more else None
            if open_at != look.open_at:
                look.open_at = open_at
                changed.append(look)
        if changed:
            yield self._step("admit.keep", gates=_write_looks(changed))
        if not chosen:
            return 0
        ((count, _),) = yield self._step("admit", ids=list(chosen), gates=list(chosen.values()))
        return int(count)

    def admit(
        self, *, limit: int = 1000, is_sweep: bool = False, now: datetime | None = None
    ) -> Verb[Promoted]:
        def body() -> Body[Promoted]:
            count = 0
            # Looked for outside of a transaction: mostly there is nothing, and nothing is locked.
            if is_sweep:
                yield self._step("admit.forget", is_alone=True)
                yield self._step("admit.tidy", is_alone=True, limit=limit)
                rows = yield self._step("admit.all", is_alone=True, limit=limit)
            else:
                most = min(limit, GATES_AT_ONCE)
                rows = yield self._step("admit.due", is_alone=True, limit=most, now=now)
            if keys := [row[0] for row in rows]:
                yield self._step("admit.lock_keys", keys=keys)
                count = yield from self._open(keys, now)
            ((next_at, at),) = yield self._step("admit.next", is_alone=True, now=now)
            return Promoted(count, None if next_at is None else read_moment(next_at), read_moment(at))

        return self._write("admit", body, now)

    # -- settings ----------------------------------------------------------------------------------

    def set_limits(
        self,
        specs: Mapping[str, GateSpec | None],
        *,
        by: str,
        is_live: bool = True,
        now: datetime | None = None,
    ) -> Verb[None]:
        def body() -> Body[None]:
            removed = sorted(name for name, spec in specs.items() if spec is None)
            kept = {name: spec for name, spec in sorted(specs.items()) if spec is not None}
            if removed:
                yield self._step("set_limits.remove", names=removed, is_live=is_live)
            if kept:
                yield self._step(
                    "set_limits",
                    names=list(kept),
                    specs=[_json(spec) for spec in kept.values()],
                    is_live=is_live,
                    by=by,
                    now=now,
                )
            rows = yield self._step("admit.all", limit=10_000)
            keys = [row[0] for row in rows if name_of_key(row[0]) in specs]
            if keys:
                yield self._step("admit.lock_keys", keys=keys)
                yield from self._open(keys, now)

        return self._write("set_limits", body, now)

    def rebind(self, changes: Sequence[Rebinding], *, now: datetime | None = None) -> Verb[list[bool]]:
        def body() -> Body[list[bool]]:
            text = _json(sorted(changes, key=lambda change: change.id))
            took = {row[0] for row in (yield self._step("rebind", is_alone=True, changes=text))}
            return [change.id in took for change in changes]

        return self._write("rebind", body, now)

    # -- telling -----------------------------------------------------------------------------------

    def limits(self) -> Verb[list[LimitInfo]]:
        def body() -> Body[list[LimitInfo]]:
            settings = {
                row[0]: Setting(_spec.decode(row[1]), row[2], row[3], read_moment(row[4]))
                for row in (yield self._step("limits", is_alone=True))
            }
            used = yield self._step("limits.used", is_alone=True)
            waiting = yield self._step("limits.waiting", is_alone=True)
            return named_limits(settings, used, waiting)

        return self._read("limits", body)

    def has_gated(self, queues: Sequence[str]) -> Verb[bool]:
        def body() -> Body[bool]:
            ((found,),) = yield self._step("has_gated", is_alone=True, queues=list(queues))
            return bool(found)

        return self._read("has_gated", body)

    def _gate_info(self, job: JobRecord, now: datetime | None) -> Body[GateInfo | None]:
        use = next((use for use in gates.gates_of(job.options) if use.key == job.gate), None)
        if use is None or job.state is not JobState.BLOCKED:
            return None
        looks, _ = yield from self._look([use], now)
        ((holders, ahead),) = yield self._step(
            "admit.holders", is_alone=True, key=use.key, id=job.id, limit=AHEAD
        )
        return gate_info(looks[use.key], use, holders, ahead)


def _use_of(key: str, options: str | None) -> GateUse:
    return next((use for use in gates.gates_of(options) if use.key == key), GateUse(key, gates.RATE))


def _read_look(row: Row) -> Look:
    key, state, open_at, used, turn, head, spec, _ = row
    return Look(key, used, state, None if spec is None else _spec.decode(spec), turn, head, open_at)


def _write_looks(looks: Iterable[Look]) -> str:
    return _json([{"key": one.key, "state": one.state, "open_at": one.open_at} for one in looks])


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()

"""Gates: what a job must pass before it may run, decided in one place for every driver.

A job carries its gates in its options; the store keeps for each gate who holds a permit and how much of
its rate is used. A driver locks the gates, looks at them, and asks `Admission` about the jobs in their
order; it then writes what was granted and what was held, in the same transaction. Moments are µs since
the epoch, by the store's clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from winch.core.job import EPOCH, to_micros

T = TypeVar("T")

LIMIT, RATE, FIFO, SCOPE = "limit", "rate", "fifo", "scope"
FIXED, SLIDING, BUCKET = "fixed", "sliding", "bucket"
# Options of a job with gates begin so: the stores tell it from a plain one by these characters.
MARK = '{"gates":'
_NO_GATES = '{"gates":[]'
# A scope that opens again lets 1 job through, then 2, 4, 8 … more in each step, until nobody counts.
RAMP_STEP = 1_000_000
RAMP_STEPS = 8
SECOND = 1_000_000
# When to look again at a gate that opens later than any store can say: a hundred years.
LONGEST = 100 * 365 * 86_400 * SECOND


class BreakerSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """When a scope's breaker opens: a share of `failures` among at least `of` ends in `window` µs."""

    failures: float
    of: int
    window: int
    hold: int
    probes: int = 1


class GateUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """One gate that a job must pass, as its options carry it. `name` is what a person may set it by."""

    key: str
    kind: str
    name: str = ""
    n: int = 0
    per: int = 0
    how: str = SLIDING
    burst: int = 0
    weight: int = 1
    is_for_retries: bool = False
    """A rate that counts attempts after the first only."""
    blocks_on_death: bool = False
    breaker: BreakerSpec | None = None


class GateSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """The numbers of a limit or rate as they are set in the store, for all gates of one name."""

    n: int
    per: int = 0
    how: str = SLIDING
    burst: int = 0


class _Gated(msgspec.Struct):
    gates: tuple[GateUse, ...] = ()


class _OfTenant(msgspec.Struct):
    tenant: str | None = None


_gated = msgspec.json.Decoder(_Gated)
_of_tenant = msgspec.json.Decoder(_OfTenant)


def is_gated(options: str | None) -> bool:
    return options is not None and options.startswith(MARK)


def holds_something(options: str | None) -> bool:
    """Whether a job with these options has something to give back when its claim ends. A tenant alone is
    a turn to wait for: who has had it holds nothing."""
    return options is not None and options.startswith(MARK) and not options.startswith(_NO_GATES)


def gates_of(options: str | None) -> tuple[GateUse, ...]:
    """The gates of a job with these options. Text that somebody damaged by hand has none: the job runs
    rather than waits for ever."""
    if options is None or not options.startswith(MARK):
        return ()
    try:
        return _gated.decode(options).gates
    except msgspec.DecodeError:
        return ()


def tenant_of(options: str | None) -> str | None:
    """The tenant of a job with these options: claims carry no other sign of it."""
    if options is None or not options.startswith(MARK):
        return None
    try:
        return _of_tenant.decode(options).tenant
    except msgspec.DecodeError:
        return None


def with_gates(options: str | None, gates: Sequence[GateUse], tenant: str | None = None) -> str:
    """Options that carry these gates; what else is in them stays."""
    said: dict[str, Any] = msgspec.json.decode(options or "{}")
    if tenant is not None:
        said["tenant"] = tenant
    return msgspec.json.encode({"gates": tuple(gates), **said}).decode()


def with_one_more(options: str | None, gate: GateUse) -> str:
    """Options that carry this gate besides those they have."""
    said: dict[str, Any] = msgspec.json.decode(options or "{}")
    said.pop("gates", None)
    return msgspec.json.encode({"gates": (*gates_of(options), gate), **said}).decode()


def name_of_key(key: str) -> str:
    """The name a gate of this key is set by; empty for those that have no numbers."""
    kind, _, _ = key.partition(":")
    return key.partition("=")[0] if kind in ("limit", "rate", "budget", "queue") else ""


@dataclass(slots=True)
class Look:
    """A gate as it was found under its lock. `turn`: the job whose turn it is, until it is final;
    `head`: the first live member of a FIFO key."""

    key: str
    used: int = 0
    state: str | None = None
    spec: GateSpec | None = None
    turn: str | None = None
    head: str | None = None
    open_at: int | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A ready job with gates or a tenant."""

    id: str
    queue: str
    sort_key: int
    attempt: int
    gates: tuple[GateUse, ...]
    tenant: str | None = None


@dataclass(slots=True)
class Granted:
    """A permit: `is_turn` ones last until the job is final, others until the claim ends."""

    gate: str
    job: str
    weight: int
    is_turn: bool = False


@dataclass(slots=True)
class Admission:
    """What one claim decides. `changed` gates have a new state or moment to be written."""

    looks: Mapping[str, Look]
    now: int
    permits: list[Granted] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    held: dict[str, str] = field(default_factory=dict)
    """Jobs that wait, by the key of the gate they wait at."""
    changed: dict[str, Look] = field(default_factory=dict)

    def admit(self, job: Candidate) -> bool:
        """Grant all that the job needs, or hold it at the first gate that is closed."""
        for use in job.gates:
            look = self.looks[use.key]
            is_open, next_at = passes(look, use, job.id, job.attempt, self.now)
            if not is_open:
                self.held[job.id] = use.key
                if next_at is not None and (look.open_at is None or look.open_at > next_at):
                    look.open_at = next_at
                    self.changed[use.key] = look
                return False
        for use in job.gates:
            self._grant(self.looks[use.key], use, job)
        self.taken.append(job.id)
        return True

    def _grant(self, look: Look, use: GateUse, job: Candidate) -> None:
        match use.kind:
            case "limit":
                look.used += use.weight
                self.permits.append(Granted(use.key, job.id, use.weight))
            case "rate" if job.attempt > 0 or not use.is_for_retries:
                look.state = rate_taken(look, use, use.weight, self.now)
                self.changed[use.key] = look
            case "fifo" if look.turn is None:
                look.turn = job.id
                self.permits.append(Granted(use.key, job.id, 0, is_turn=True))
            case "scope":
                state = scope_state(look.state)
                if state is not None:
                    look.used += 1
                    self.permits.append(Granted(use.key, job.id, 1))
                    look.state = scope_taken(state, self.now)
                    self.changed[use.key] = look
            case _:
                pass


def passes(look: Look, use: GateUse, job_id: str, attempt: int, now: int) -> tuple[bool, int | None]:
    """Whether the gate is open for this job; if not, the moment it may be, where one is known."""
    match use.kind:
        case "limit":
            n = use.n if look.spec is None else look.spec.n
            return look.used + use.weight <= n, None
        case "rate":
            if use.is_for_retries and attempt == 0:
                return True, None
            wait_until = rate_next(look, use, use.weight, now)
            return wait_until is None, wait_until
        case "fifo":
            first = look.turn or look.head
            return first is None or first == job_id, None
        case "scope":
            state = scope_state(look.state)
            return (True, None) if state is None else scope_passes(state, look.used, now)
    return True, None


def room(look: Look, use: GateUse, now: int, most: int) -> tuple[int, int | None]:
    """How many of up to `most` waiting jobs like this the gate would let through now, and the moment at
    which to look again for the others."""
    if use.kind == LIMIT:
        n = use.n if look.spec is None else look.spec.n
        return max(0, min(most, (n - look.used) // use.weight)), None
    if use.kind == FIFO:
        return (1 if look.turn is None else 0), None
    tried = Look(look.key, look.used, look.state, look.spec)
    for count in range(most):
        is_open, next_at = passes(tried, use, "", 1, now)
        if not is_open:
            return count, next_at
        if use.kind == RATE:
            tried.state = rate_taken(tried, use, use.weight, now)
        elif (state := scope_state(tried.state)) is not None:
            tried.used += 1
            tried.state = scope_taken(state, now)
    return most, now


# -- rates -------------------------------------------------------------------------------------------


def _numbers(look: Look, use: GateUse) -> GateSpec:
    return look.spec or GateSpec(use.n, use.per, use.how, use.burst)


def _decoded(state: str | None) -> dict[str, Any]:
    try:
        said = msgspec.json.decode(state or "{}")
    except msgspec.DecodeError:
        return {}
    return said if isinstance(said, dict) else {}


def rate_next(look: Look, use: GateUse, weight: int, now: int) -> int | None:
    """None: there is room now. Else the moment at which there will be, if nobody else takes it."""
    spec = _numbers(look, use)
    state = _decoded(look.state)
    if spec.how == FIXED:
        window = now // spec.per * spec.per
        used = state.get("used", 0) if state.get("from") == window else 0
        return None if used + weight <= spec.n else window + spec.per
    if spec.how == BUCKET:
        level = _level(spec, state, now)
        if level >= weight - 1e-6:
            return None
        return now + min(max(1, math.ceil((weight - level) * spec.per / spec.n)), LONGEST)
    takes = [take for take in state.get("takes", ()) if take[0] + spec.per > now]
    over = sum(take[1] for take in takes) + weight - spec.n
    if over <= 0:
        return None
    for moment, taken in takes:
        over -= taken
        if over <= 0:
            return int(moment + spec.per)
    return now + spec.per  # heavier than the whole rate: nothing but a change of it helps


def rate_taken(look: Look, use: GateUse, weight: int, now: int) -> str:
    """The state after this weight was taken."""
    spec = _numbers(look, use)
    state = _decoded(look.state)
    after: dict[str, Any]
    if spec.how == FIXED:
        window = now // spec.per * spec.per
        used = state.get("used", 0) if state.get("from") == window else 0
        after = {"from": window, "used": used + weight}
    elif spec.how == BUCKET:
        after = {"level": round(_level(spec, state, now) - weight, 6), "at": now}
    else:
        takes = [take for take in state.get("takes", ()) if take[0] + spec.per > now]
        after = {"takes": [*takes, [now, weight]]}
    return msgspec.json.encode(after).decode()


def _level(spec: GateSpec, state: Mapping[str, Any], now: int) -> float:
    most = spec.burst or spec.n
    if "level" not in state:
        return most
    return float(min(most, state["level"] + max(0, now - state["at"]) * spec.n / spec.per))


# -- scopes: the brake and the breaker ---------------------------------------------------------------


class ScopeState(msgspec.Struct, omit_defaults=True):
    """`until`: closed till then. `is_tripped`: by the breaker, so that probes come first. `let`: how
    many were let through since it opened. `trips`: how often the breaker tripped in a row; `tripped_at`:
    the moment it last did. `ends`: [second, ok, failed] for the breaker's window."""

    until: int = 0
    is_tripped: bool = False
    let: int = 0
    trips: int = 0
    tripped_at: int = 0
    why: str = ""
    probes: int = 1
    ends: list[tuple[int, int, int]] = []


def scope_state(text: str | None) -> ScopeState | None:
    """None: nobody has braked or tripped this scope, and nothing is counted while it is so."""
    if text is None:
        return None
    try:
        state = msgspec.json.decode(text, type=ScopeState)
    except msgspec.DecodeError:
        return None
    return state if state.until else None


def scope_passes(state: ScopeState, used: int, now: int) -> tuple[bool, int | None]:
    if now < state.until:
        return False, state.until
    if state.is_tripped:
        # Half open: probes, and nobody else until one of them has said how it went.
        return used < state.probes, None
    step = (now - state.until) // RAMP_STEP
    if step >= RAMP_STEPS or state.let < 2 ** (step + 1) - 1:
        return True, None
    return False, state.until + (step + 1) * RAMP_STEP


def scope_taken(state: ScopeState, now: int) -> str | None:
    if not state.is_tripped and now - state.until >= RAMP_STEPS * RAMP_STEP:
        after = ScopeState(ends=state.ends, tripped_at=state.tripped_at)  # the ramp is over
    else:
        after = msgspec.structs.replace(state, let=state.let + 1)
    return msgspec.json.encode(after).decode()


def braked(text: str | None, until: int, why: str) -> str:
    """The state of a scope that is held until a moment: never shorter than it is held already."""
    state = _any_scope(text)
    if until > state.until:
        state = msgspec.structs.replace(state, until=until, let=0, why=why)
    return msgspec.json.encode(state).decode()


def counted(
    text: str | None, spec: BreakerSpec, is_ok: bool, claimed_at: datetime | None, now: int, why: str
) -> str:
    """The state of a scope's breaker after one of its jobs, claimed at that moment, has ended."""
    state = _any_scope(text)
    if to_micros(claimed_at or EPOCH) <= state.tripped_at:
        # It began before the trip and knows only what the trip knew. As probes, many such failures would
        # double the hold each, and one success would open the scope to a system that is still down.
        return msgspec.json.encode(state).decode()
    if state.is_tripped:
        if is_ok:  # closed again, and ramped up
            after = ScopeState(until=now, why=state.why, tripped_at=state.tripped_at)
        else:
            after = msgspec.structs.replace(
                state,
                until=now + min(spec.hold * 2 ** min(state.trips, 10), 20 * spec.hold),
                trips=state.trips + 1,
                tripped_at=now,
                why=why,
            )
        return msgspec.json.encode(after).decode()
    second = now // SECOND
    oldest = (now - spec.window) // SECOND
    ends = [end for end in state.ends if end[0] > oldest]
    if ends and ends[-1][0] == second:
        ends[-1] = (second, ends[-1][1] + is_ok, ends[-1][2] + (not is_ok))
    else:
        ends.append((second, int(is_ok), int(not is_ok)))
    failed = sum(end[2] for end in ends)
    total = failed + sum(end[1] for end in ends)
    if total >= spec.of and failed / total >= spec.failures:
        after = ScopeState(
            until=now + spec.hold,
            is_tripped=True,
            trips=1,
            tripped_at=now,
            why=f"{failed} of {total} attempts failed; the last one: {why}",
            probes=spec.probes,
        )
    else:
        after = msgspec.structs.replace(state, ends=ends)
    return msgspec.json.encode(after).decode()


def _any_scope(text: str | None) -> ScopeState:
    try:
        return msgspec.json.decode(text or "{}", type=ScopeState)
    except msgspec.DecodeError:
        return ScopeState()


def is_at_rest(kind: str, state: str | None, open_at: int | None) -> bool:
    """Whether a gate that nobody waits at and nobody holds may be forgotten."""
    return open_at is None and (state is None or kind in (LIMIT, FIFO))


# -- which jobs to try, and in which order ------------------------------------------------------------


@dataclass(slots=True)
class Fair:
    """Start-time fair queueing between the tenants of a queue: who has had least for its weight is next.
    `at` is the virtual time, `ends` the tenants that are ahead of it. The store keeps how far they are
    ahead: a float that grew with every job would lose the small steps of tenants with great weights."""

    at: float = 0.0
    ends: dict[str, float] = field(default_factory=dict)
    weights: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, state: str | None, weights: Mapping[str, int]) -> Fair:
        said = _decoded(state)
        return cls(float(said.get("at", 0.0)), dict(said.get("ends", {})), weights)

    def next(self, tenants: Iterable[str]) -> str:
        return min(tenants, key=lambda tenant: (max(self.at, self.ends.get(tenant, 0.0)), tenant))

    def served(self, tenant: str) -> None:
        self.at = max(self.at, self.ends.get(tenant, 0.0))
        self.ends[tenant] = self.at + 1 / max(1, self.weights.get(tenant, 1))

    def dump(self) -> str:
        # A tenant that is not ahead starts at the virtual time, as one never heard of does.
        ends = {tenant: round(end - self.at, 12) for tenant, end in self.ends.items() if end > self.at}
        return msgspec.json.encode({"ends": ends}).decode()


def tenant_key(queue: str) -> str:
    """The gate whose state says whose turn it is in a queue."""
    return f"tenants:{queue}"


@dataclass(slots=True)
class Draw:
    """What a claim takes from one queue, in order: ids of gated jobs, None for the next plain one."""

    order: list[str | None] = field(default_factory=list)

    @property
    def plain(self) -> int:
        return self.order.count(None)

    def arranged(self, gated: Mapping[str, T], plain: Sequence[T]) -> list[T]:
        """The jobs that could be taken, in their order."""
        rest = iter(plain)
        found = (next(rest, None) if job_id is None else gated.get(job_id) for job_id in self.order)
        return [job for job in found if job is not None]


def draw(
    admission: Admission,
    candidates: Sequence[Candidate],
    plain: Sequence[tuple[int, str]],
    fair: Fair | None,
    *,
    limit: int,
    gated: int,
) -> Draw:
    """Go through one queue's jobs in order: by sort key, and between tenants by turn.

    `plain`: the sort keys and ids of the first plain jobs. At most `limit` jobs in all, at most `gated`
    of those that hold permits: they are never claimed ahead of a free slot.
    """
    lines: dict[str, list[Candidate | None]] = {}
    mixed: list[tuple[int, str, Candidate | None]] = [(key, job_id, None) for key, job_id in plain]
    for job in candidates:
        if job.tenant is None:
            mixed.append((job.sort_key, job.id, job))
        else:
            lines.setdefault(job.tenant, []).append(job)
    if mixed:
        lines[""] = [item for _, _, item in sorted(mixed, key=lambda one: one[:2])]
    for line in lines.values():
        line.reverse()
    result = Draw()
    holding = 0
    while lines and len(result.order) < limit:
        tenant = fair.next(lines) if fair is not None else next(iter(lines))
        line = lines[tenant]
        item = line.pop()
        if not line:
            del lines[tenant]
        if item is None:
            result.order.append(None)
        else:
            if item.gates and holding >= gated:
                continue
            if not admission.admit(item):
                continue
            holding += bool(item.gates)
            result.order.append(item.id)
        if fair is not None:
            fair.served(tenant)
    return result

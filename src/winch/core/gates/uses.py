"""Which gates a job must pass, as its options carry them, and a gate as the store holds it.

A gate is a limit, a rate, a FIFO key or a scope. Moments are µs since the epoch, by the store's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

LIMIT, RATE, FIFO, SCOPE = "limit", "rate", "fifo", "scope"
FIXED, SLIDING, BUCKET = "fixed", "sliding", "bucket"
# Options of a job with gates begin so: the stores recognise it by these characters.
MARK = '{"gates":'
_NO_GATES = '{"gates":[]'
SECOND = 1_000_000
# The keys of the gates of queues begin so.
QUEUE = "queue:"
# A rate of fewer a second is slow: what a worker takes of it and gives back unused would be missed.
FAST_RATE = 1000
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
    """The numbers of a limit or rate in the store, for all gates of one name."""

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


def is_for_free_slot(
    gates: Sequence[GateUse], attempt: int, looks: Mapping[str, Look] | None = None
) -> bool:
    """Whether a claim takes a job with these gates for a free slot only, never ahead of one.

    A brake or a breaker may hold it any moment. Or it takes from a slow rate: what is taken is never
    returned, so a job that goes back unstarted would keep others from running. `attempt` is how many
    the job has had; `looks` are the gates as the store has them.
    """
    for use in gates:  # noqa: SIM110  # for each candidate of a claim: a generator takes three times as long
        if use.kind == SCOPE or (use.kind == RATE and _is_slow(use, attempt, looks)):
            return True
    return False


def _is_slow(use: GateUse, attempt: int, looks: Mapping[str, Look] | None) -> bool:
    if use.is_for_retries and attempt == 0:
        return False
    spec = None if looks is None else looks[use.key].spec
    n, per = (use.n, use.per) if spec is None else (spec.n, spec.per)
    return n * SECOND < FAST_RATE * per


def has_fifo(gates: Sequence[GateUse]) -> bool:
    """Whether a job with these gates is a member of a FIFO key."""
    return any(use.kind == FIFO for use in gates)


def shared_limit(gates: Sequence[GateUse]) -> int | None:
    """The largest number of a limit without a key, which all its jobs share; None: there is none."""
    return max((use.n for use in gates if use.kind == LIMIT and use.key == use.name), default=None)


def is_gated(options: str | None) -> bool:
    return options is not None and options.startswith(MARK)


def holds_something(options: str | None) -> bool:
    """Whether a job with these options has something to give back when its claim ends. A tenant alone is
    a turn to wait for; a job that had its turn holds nothing."""
    return options is not None and options.startswith(MARK) and not options.startswith(_NO_GATES)


def gates_of(options: str | None) -> tuple[GateUse, ...]:
    """The gates of a job with these options. Text that was damaged by hand has none: the job runs
    rather than waits for ever."""
    if options is None or not options.startswith(MARK):
        return ()
    return _gates_in(options)


# Jobs of one key carry the same text, and a claim reads hundreds of them.
@lru_cache(maxsize=4096)
def _gates_in(options: str) -> tuple[GateUse, ...]:
    try:
        return _gated.decode(options).gates
    except msgspec.DecodeError:
        return ()


class GateTraits(NamedTuple):
    """What a worker has to know about the gates in the options of a job."""

    holds: bool
    is_member: bool
    shared_limit: int | None
    for_free_slot: bool
    retries_for_free_slot: bool


@lru_cache(maxsize=4096)
def traits_of(options: str) -> GateTraits:
    """The traits of jobs with these options, which many jobs share."""
    gates = gates_of(options)
    return GateTraits(
        holds=holds_something(options),
        is_member=has_fifo(gates),
        shared_limit=shared_limit(gates),
        for_free_slot=is_for_free_slot(gates, 0),
        retries_for_free_slot=is_for_free_slot(gates, 1),
    )


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
    parsed: dict[str, Any] = msgspec.json.decode(options or "{}")
    if tenant is not None:
        parsed["tenant"] = tenant
    return msgspec.json.encode({"gates": tuple(gates), **parsed}).decode()


def with_one_more(options: str | None, gate: GateUse) -> str:
    """Options that carry this gate besides those they have."""
    parsed: dict[str, Any] = msgspec.json.decode(options or "{}")
    parsed.pop("gates", None)
    return msgspec.json.encode({"gates": (*gates_of(options), gate), **parsed}).decode()


def queue_key(queue: str) -> str:
    """The gate of a queue's concurrency. Jobs do not carry it: a claim reads it."""
    return f"{QUEUE}{queue}"


def name_of_key(key: str) -> str:
    """The name a gate of this key is set by; empty for those that have no numbers."""
    kind, _, _ = key.partition(":")
    return key.partition("=")[0] if kind in ("limit", "rate", "budget", "queue") else ""


class Look(msgspec.Struct):
    """A gate as it was found under its lock. `turn`: the job whose turn it is, until it is final;
    `head`: the first live member of a FIFO key. `own`: how much the jobs of the session weigh that wants
    more of a limit, `heaviest`: the most that one of them does."""

    key: str
    used: int = 0
    state: str | None = None
    spec: GateSpec | None = None
    turn: str | None = None
    head: str | None = None
    open_at: int | None = None
    own: int = 0
    heaviest: int = 0


def decoded_state(state: str | None) -> dict[str, Any]:
    try:
        parsed = msgspec.json.decode(state or "{}")
    except msgspec.DecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def is_at_rest(kind: str, state: str | None, open_at: int | None) -> bool:
    """Whether a gate without holders and waiting jobs may be removed."""
    return open_at is None and (state is None or kind in (LIMIT, FIFO))

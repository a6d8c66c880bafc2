"""Whether the gates are open to a job, decided in one place for every driver.

The store keeps for each gate which jobs hold a permit and how much of its rate is used. A driver locks
the gates, reads them, and calls `Admission.admit` for the jobs in their order. It then writes what was
granted and what was held, in the same transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from winch.core.gates.rates import RateUse, rate_use, written
from winch.core.gates.scopes import scope_passes, scope_state, scope_taken
from winch.core.gates.uses import FIFO, LIMIT, RATE, GateUse, Look


class Candidate(msgspec.Struct, frozen=True):
    """A ready job with gates or a tenant."""

    id: str
    queue: str
    sort_key: int
    attempt: int
    gates: tuple[GateUse, ...]
    tenant: str | None = None


class Granted(msgspec.Struct):
    """A permit: `is_turn` ones last until the job is final, others until the claim ends. `is_limit`: of
    a limit, of which a session uses no more than it runs at once."""

    gate: str
    job: str
    weight: int
    is_turn: bool = False
    is_limit: bool = False


@dataclass(slots=True)
class Admission:
    """What one claim decides. `changed` gates have a new state or moment to be written. `at_once`: how
    many jobs the session runs at once, if the store counts no more of it."""

    looks: Mapping[str, Look]
    now: int
    at_once: int | None = None
    permits: list[Granted] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    held: dict[str, str] = field(default_factory=dict)
    """Jobs that wait, by the key of the gate they wait at."""
    changed: dict[str, Look] = field(default_factory=dict)
    _rates: dict[str, RateUse] = field(default_factory=dict)

    def admit(self, job: Candidate, *, is_ahead: bool = False) -> bool:
        """Grant all that the job needs, or hold it at the first gate that is closed. `is_ahead`: it is
        claimed ahead of free slots, and stays ready where a limit or a rate is closed."""
        for use in job.gates:
            look = self.looks[use.key]
            if use.kind == RATE:
                is_open, next_at = self._rate_passes(look, use, job)
            elif use.kind == LIMIT:
                is_open, next_at = look.used + self._more(look, use) <= _number(look, use), None
            else:
                is_open, next_at = passes(look, use, job.id, job.attempt, self.now)
            if not is_open and is_ahead and use.kind in (LIMIT, RATE):
                return False
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

    def written(self) -> None:
        """Write the rates that were taken from into the state of their gates, once for all jobs."""
        for key, rate in self._rates.items():
            if key in self.changed:
                self.changed[key].state = written(rate)

    def _rate(self, look: Look, use: GateUse) -> RateUse:
        rate = self._rates.get(use.key)
        if rate is None:
            rate = self._rates[use.key] = rate_use(look, use)
        return rate

    def _rate_passes(self, look: Look, use: GateUse, job: Candidate) -> tuple[bool, int | None]:
        if use.is_for_retries and job.attempt == 0:
            return True, None
        next_at = self._rate(look, use).next_at(use.weight, self.now)
        return next_at is None, next_at

    def _more(self, look: Look, use: GateUse) -> int:
        """How much more of a limit is out when the session has this job, too."""
        if self.at_once is None:
            return use.weight
        if use.weight == 1 and look.heaviest <= 1:  # as mostly
            return 1 if look.own < self.at_once else 0
        before = min(look.own, self.at_once * look.heaviest)
        return min(look.own + use.weight, self.at_once * max(look.heaviest, use.weight)) - before

    def _grant(self, look: Look, use: GateUse, job: Candidate) -> None:
        match use.kind:
            case "limit":
                look.used += self._more(look, use)
                look.own += use.weight
                look.heaviest = max(look.heaviest, use.weight)
                self.permits.append(Granted(use.key, job.id, use.weight, is_limit=True))
            case "rate" if job.attempt > 0 or not use.is_for_retries:
                self._rate(look, use).take(use.weight, self.now)
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


def _number(look: Look, use: GateUse) -> int:
    """A limit as it is set, or as the job carries it."""
    return use.n if look.spec is None else look.spec.n


def passes(look: Look, use: GateUse, job_id: str, attempt: int, now: int) -> tuple[bool, int | None]:
    """Whether a gate other than a rate is open for this job; if not, the moment it may be, if known."""
    match use.kind:
        case "limit":
            return look.used + use.weight <= _number(look, use), None
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
        return max(0, min(most, (_number(look, use) - look.used) // use.weight)), None
    if use.kind == FIFO:
        return (1 if look.turn is None else 0), None
    if use.kind == RATE:
        rate = rate_use(look, use)
        for count in range(most):
            if (next_at := rate.next_at(use.weight, now)) is not None:
                return count, next_at
            rate.take(use.weight, now)
        return most, now
    tried = Look(look.key, look.used, look.state, look.spec)
    for count in range(most):
        is_open, next_at = passes(tried, use, "", 1, now)
        if not is_open:
            return count, next_at
        if (state := scope_state(tried.state)) is not None:
            tried.used += 1
            tried.state = scope_taken(state, now)
    return most, now

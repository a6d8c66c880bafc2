"""Which jobs of one queue a claim tries, in order: by sort key, and between tenants by turn."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from operator import attrgetter, itemgetter
from typing import TypeVar

import msgspec

from winch.core.gates.passes import Admission, Candidate
from winch.core.gates.uses import decoded_state, is_for_free_slot

T = TypeVar("T")
_place = attrgetter("sort_key", "id")
# A claim ahead of free slots passes over so many jobs whose gates are closed.
PASSED = 10


@dataclass(slots=True)
class Fair:
    """Start-time fair queueing between the tenants of a queue: the tenant with the least for its
    weight is next.
    `at` is the virtual time, `ends` the tenants that are ahead of it. The store keeps how far they are
    ahead: a float that grew with every job would lose the small steps of tenants with great weights."""

    at: float = 0.0
    ends: dict[str, float] = field(default_factory=dict)
    weights: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, state: str | None, weights: Mapping[str, int]) -> Fair:
        parsed = decoded_state(state)
        return cls(float(parsed.get("at", 0.0)), dict(parsed.get("ends", {})), weights)

    def start(self, tenant: str) -> float:
        """The virtual time at which this tenant is served next."""
        return max(self.at, self.ends.get(tenant, 0.0))

    def served(self, tenant: str) -> float:
        """One job of this tenant is taken; when it is served again."""
        self.at = self.start(tenant)
        self.ends[tenant] = self.at + 1 / max(1, self.weights.get(tenant, 1))
        return self.ends[tenant]

    def dump(self) -> str:
        # A tenant that is not ahead starts at the virtual time, as one never heard of does.
        ends = {tenant: round(end - self.at, 12) for tenant, end in self.ends.items() if end > self.at}
        return msgspec.json.encode({"ends": ends}).decode()


def tenant_key(queue: str) -> str:
    """The gate whose state holds the turn of a queue."""
    return f"tenants:{queue}"


@dataclass(slots=True)
class Draw:
    """What a claim takes from one queue, in order: ids of gated jobs, None for the next plain one.
    `scoped`: how many of them are under a scope or a slow rate. `is_cut`: it ended where a tenant had
    more jobs than were read."""

    order: list[str | None] = field(default_factory=list)
    scoped: int = 0
    is_cut: bool = False

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
    scoped: int,
    cut: Collection[str] = (),
    slots: int | None = None,
    before: int = 0,
) -> Draw:
    """Go through one queue's jobs in order: by sort key, and between tenants by turn.

    `plain`: the sort keys and ids of the first plain jobs. At most `limit` jobs in all, at most `scoped`
    of those under a scope or a slow rate (`is_for_free_slot`). `cut`: tenants that have more jobs than
    these candidates; no other tenant is served before those.

    `slots`: how many jobs are for free slots; None: all. Beyond these no job is blocked at a limit or
    a rate to find another: it stays ready, and after a few only plain jobs are taken. If no slot is
    free and the claim finds nothing, one job is blocked: the end that lets it in wakes the worker.
    `before`: how many jobs the claim has taken already.
    """
    lines: dict[str, list[Candidate | None]] = {}
    shared = [job for job in candidates if job.tenant is None]
    if len(shared) < len(candidates):
        for job in candidates:
            if job.tenant is not None:
                lines.setdefault(job.tenant, []).append(job)
    if plain:
        mixed: list[tuple[int, str, Candidate | None]] = [(key, job_id, None) for key, job_id in plain]
        mixed += [(job.sort_key, job.id, job) for job in shared]
        lines[""] = [item for _, _, item in sorted(mixed, key=itemgetter(0, 1))]
    elif shared:
        lines[""] = [*sorted(shared, key=_place)]
    for line in lines.values():
        line.reverse()
    result = Draw()
    passed = 0
    # The virtual time never passes a line that waits, so each turn is known before others are served.
    turns = [(0.0 if fair is None else fair.start(tenant), tenant) for tenant in lines]
    heapify(turns)
    while turns and len(result.order) < limit:
        tenant = turns[0][1]
        line = lines[tenant]
        if not line:
            heappop(turns)
            result.is_cut = tenant in cut
            if result.is_cut:
                break
            continue
        item = line.pop()
        if item is None:
            result.order.append(None)
        else:
            is_scoped = is_for_free_slot(item.gates, item.attempt, admission.looks)
            if passed >= PASSED or (is_scoped and result.scoped >= scoped):
                continue
            taken = before + len(result.order)
            is_ahead = slots is not None and (
                taken >= slots > 0 or (slots == 0 and bool(taken or admission.held))
            )
            if not admission.admit(item, is_ahead=is_ahead):
                passed += item.id not in admission.held
                continue
            result.scoped += is_scoped
            result.order.append(item.id)
        if fair is not None:
            heapreplace(turns, (fair.served(tenant), tenant))
    admission.written()
    return result

"""Which jobs of a queue a claim takes: turns between tenants, beside the plain rule."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from winch.core.gates.draw import Draw, Fair, draw
from winch.core.gates.passes import Admission, Candidate
from winch.core.gates.uses import LIMIT, GateUse, Look

FULL = GateUse("limit:full", LIMIT, n=0)
TENANTS = ("a", "b", "c", "d")


def candidates(rng: random.Random) -> list[Candidate]:
    return [
        Candidate(f"{number:03}", "q", number, 0, (FULL,) if rng.random() < 0.2 else (), tenant)
        for number in range(40)
        if (tenant := rng.choice((None, *TENANTS))) is not None or rng.random() < 0.5
    ]


def by_rule(jobs: Sequence[Candidate], fair: Fair, limit: int) -> list[str]:
    """The rule in its plainest form: the tenant that had least for its weight is next, by name where two
    had the same; a job that a gate holds costs its tenant nothing."""
    lines: dict[str, list[Candidate]] = {}
    for job in jobs:
        lines.setdefault(job.tenant or "", []).append(job)
    taken: list[str] = []
    while any(lines.values()) and len(taken) < limit:
        tenant = min((name for name in lines if lines[name]), key=lambda one: (fair.start(one), one))
        job = lines[tenant].pop(0)
        if not job.gates:
            taken.append(job.id)
            fair.served(tenant)
    return taken


def drawn(jobs: Sequence[Candidate], fair: Fair, limit: int, cut: Sequence[str] = ()) -> Draw:
    looks = {FULL.key: Look(FULL.key)}
    return draw(Admission(looks, 0), jobs, (), fair, limit=limit, scoped=9, cut=cut)


def turns(rng: random.Random) -> tuple[Fair, Fair]:
    weights = {name: rng.randrange(1, 5) for name in TENANTS}
    ends = {name: rng.random() * 3 for name in TENANTS[1:]}
    return Fair(ends=dict(ends), weights=weights), Fair(ends=dict(ends), weights=weights)


@pytest.mark.parametrize("seed", range(30))
def test_the_tenant_that_had_least_for_its_weight_is_next(seed: int) -> None:
    rng = random.Random(seed)
    jobs, (fair, other) = candidates(rng), turns(rng)
    limit = rng.randrange(1, 45)
    assert drawn(jobs, fair, limit).order == by_rule(jobs, other, limit)
    assert fair.dump() == other.dump()


@pytest.mark.parametrize("seed", range(30))
def test_no_tenant_is_served_before_jobs_of_another_that_were_not_read(seed: int) -> None:
    """The first jobs of some tenants are read: what is drawn is what all jobs would begin with."""
    rng = random.Random(seed)
    jobs, (fair, other) = candidates(rng), turns(rng)
    most = {name: rng.randrange(1, 6) for name in TENANTS}
    read, count = [], dict.fromkeys(TENANTS, 0)
    for job in jobs:
        if job.tenant is not None:
            count[job.tenant] += 1
        if job.tenant is None or count[job.tenant] <= most[job.tenant]:
            read.append(job)
    cut = [name for name in TENANTS if count[name] > most[name]]
    found = drawn(read, fair, 45, cut)
    expected = by_rule(jobs, other, 45)
    assert found.order == expected[: len(found.order)]
    assert found.is_cut == (len(found.order) < len(expected))


@pytest.mark.parametrize("at_once", [1, 2, 3, None])
def test_a_session_uses_no_more_of_a_limit_than_it_runs_at_once(at_once: int | None) -> None:
    uses = [GateUse("limit:x", LIMIT, n=4, weight=weight) for weight in (1, 2, 1, 1, 2, 1)]
    look = Look("limit:x", used=1)
    admission = Admission({"limit:x": look}, 0, at_once)
    taken: list[int] = []
    for number, use in enumerate(uses):
        if admission.admit(Candidate(str(number), "q", number, 0, (use,))):
            taken.append(use.weight)
        could_run = sum(sorted(taken, reverse=True)[:at_once])
        counted = sum(taken) if at_once is None else min(sum(taken), at_once * max(taken))
        assert look.used == 1 + counted
        assert 1 + could_run <= look.used <= 4
    assert len(taken) == {1: 6, 2: 2, 3: 2, None: 2}[at_once]

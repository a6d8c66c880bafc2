"""Redis: what counts of a limit when a session claims more jobs than it runs at once.

Every way in which a claim ends must leave the two numbers right: what is in use of the gate, and how
many jobs of each session have passed it. A model in Python computes them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from tests.redis_servers import RedisServer
from tests.storage.postgres_kit import completed, new_job, new_session, new_token
from winch.core.gates.uses import LIMIT, RATE, GateSpec, GateUse, with_gates
from winch.core.job import Claim
from winch.core.lifecycle import JobState
from winch.drivers.redis.driver import RedisDriver
from winch.drivers.redis.scripts import command
from winch.storage.crash_report import CrashReport
from winch.storage.params import Answer, ClaimParams, ClaimRef, Finish
from winch.storage.verbs import Verb

pytestmark = pytest.mark.servers

N = 7
MAIL = GateUse("limit:mail", LIMIT, "limit:mail", n=N)
HEAVY = GateUse("limit:mail", LIMIT, "limit:mail", n=N, weight=3)
FLOW = GateUse("rate:flow", RATE, "rate:flow", n=1_000_000, per=1_000_000)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def driver(server: RedisServer) -> Iterator[RedisDriver]:
    driver = RedisDriver.from_url(server.url)
    driver.erase()
    yield driver
    driver.close()


@dataclass
class Model:
    """Live claims by session, and what each session runs at once."""

    driver: RedisDriver
    at_once: dict[str, int | None] = field(default_factory=dict)
    held: dict[str, list[Claim]] = field(default_factory=dict)
    heavy: set[str] = field(default_factory=set)

    def start(self, at_once: int | None) -> str:
        session = new_session()
        self.driver.run(self.driver.start_session(session))
        self.at_once[session.id], self.held[session.id] = at_once, []
        return session.id

    def add(self, count: int, *gates: GateUse) -> None:
        jobs = [
            new_job(options=with_gates(None, gates or (MAIL,)), max_attempts=9) for _ in range(count)
        ]
        self.driver.run(self.driver.enqueue(jobs))
        if HEAVY in gates:
            self.heavy |= {job.id for job in jobs}

    def claim(self, session: str, limit: int) -> list[Claim]:
        params = ClaimParams(
            session=session,
            token=new_token(),
            queues=("default",),
            limit=limit,
            at_once=self.at_once[session],
        )
        claims = self.driver.run(self.driver.claim(params))
        self.held[session] += claims
        return claims

    def took(self, verb: Verb[list[Answer]]) -> None:
        answers = self.driver.run(verb)
        assert set(answers) <= {Answer.TOOK}

    def taken(self, session: str, count: int) -> list[Claim]:
        """Claims of this session that are about to end."""
        held = self.held[session]
        random.Random(len(held)).shuffle(held)
        some, self.held[session] = held[:count], held[count:]
        return some

    def own(self) -> dict[str, int]:
        found = {}
        for session, claims in self.held.items():
            at_once = self.at_once[session]
            light = [one for one in claims if one.id not in self.heavy]
            if at_once is not None and at_once < N and light:
                found[f"limit:mail\n{session}\n{at_once}"] = len(light)
        return found

    @property
    def used(self) -> int:
        own = self.own()
        found = sum(min(count, int(name.rpartition("\n")[2])) for name, count in own.items())
        for session, claims in self.held.items():
            at_once = self.at_once[session]
            for one in claims:
                if one.id in self.heavy:
                    found += 3
                elif at_once is None or at_once >= N:
                    found += 1
        return found

    def stored(self) -> tuple[int, dict[str, int]]:
        run = self.driver._pool.run
        used = run(command("HGET", "{winch}:used", "limit:mail"))
        flat = run(command("HGETALL", "{winch}:own"))
        names = [name.decode() for name in flat[::2]]
        return int(used or 0), dict(zip(names, map(int, flat[1::2]), strict=True))

    def check(self) -> None:
        assert self.stored() == (self.used, self.own())
        assert self.used <= N


def test_a_session_with_few_slots_claims_more_than_a_limit_allows_to_run(driver: RedisDriver) -> None:
    model = Model(driver)
    first, second, third = model.start(2), model.start(4), model.start(None)
    model.add(60)
    assert len(model.claim(first, 20)) == 20
    assert len(model.claim(second, 30)) == 30
    model.check()
    # One is left: a session that may run all that it has gets one job.
    assert len(model.claim(third, 10)) == 1
    assert model.claim(third, 10) == []
    model.check()
    # Where others have all there is, a session goes on with what it runs at once.
    driver.run(driver.finish([completed(one) for one in model.taken(first, 19)]))
    model.check()
    assert model.used == N - 1
    driver.run(driver.admit(is_sweep=True))
    assert len(model.claim(first, 10)) == 9
    model.check()


def test_heavy_permits_count_in_full(driver: RedisDriver) -> None:
    model = Model(driver)
    session = model.start(2)
    model.add(4, HEAVY)
    assert len(model.claim(session, 4)) == 2
    assert model.stored() == (6, {})
    model.add(4)
    driver.run(driver.finish([completed(model.taken(session, 1)[0])]))
    assert len(model.claim(session, 8)) == 2  # one that was let in, and one light one fits beside it
    model.check()


def release(model: Model, session: str, some: list[Claim]) -> None:
    refs = [ClaimRef(one.id, one.token) for one in some]
    model.took(model.driver.release(refs))


def complete(model: Model, session: str, some: list[Claim]) -> None:
    ends = [completed(one) for one in some]
    model.took(model.driver.finish(ends))


def continue_with(model: Model, session: str, some: list[Claim]) -> None:
    """Each end may take a next job."""
    then = ClaimParams(
        session=session,
        token=new_token(),
        queues=("default",),
        limit=max(len(some), 1),
        at_once=model.at_once[session],
    )
    call = model.driver.finish_and_claim([completed(one) for one in some], then)
    answers, claims = model.driver.run(call)
    assert set(answers) <= {Answer.TOOK}
    model.held[session] += claims


def fail(model: Model, session: str, some: list[Claim]) -> None:
    ends = [
        Finish(id=one.id, token=one.token, to=JobState.RETRYING, what="failed", delay=timedelta(0))
        for one in some
    ]
    model.took(model.driver.finish(ends))
    model.driver.run(model.driver.promote(limit=100))


def cancel(model: Model, session: str, some: list[Claim]) -> None:
    """Requested while they run: the finish that sees it cancels them."""
    model.driver.run(model.driver.cancel([one.id for one in some], by="ada"))
    ends = [Finish(id=one.id, token=one.token, to=JobState.CANCELLED, what="cancelled") for one in some]
    model.took(model.driver.finish(ends))


def crash(model: Model, session: str, some: list[Claim]) -> None:
    report = CrashReport([ClaimRef(one.id, one.token) for one in some], "a crash")
    model.took(model.driver.crash(report))
    model.driver.run(model.driver.promote(limit=100))


def give_up(model: Model, session: str, some: list[Claim]) -> None:
    model.held[session] += some
    tokens = {one.token for one in some}
    model.driver.run(model.driver.give_up(session, list(tokens)))
    model.held[session] = [one for one in model.held[session] if one.token not in tokens]


def end(model: Model, session: str, some: list[Claim]) -> None:
    model.driver.run(model.driver.end_session(session))
    model.start(model.at_once.pop(session))
    del model.held[session]


WAYS: list[Callable[[Model, str, list[Claim]], None]] = [
    *(release, complete, continue_with, fail, cancel, crash, give_up, end)
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_each_way_to_end_a_claim_gives_back_what_it_used(
    driver: RedisDriver, way: Callable[[Model, str, list[Claim]], None]
) -> None:
    model = Model(driver)
    session, other = model.start(3), model.start(2)
    model.add(40)
    model.claim(session, 12)
    model.claim(other, 5)
    for count in (1, 6, 4):
        way(model, session, model.taken(session, count))
        model.check()
        if session not in model.held:
            break


@pytest.mark.parametrize("seed", range(6))
def test_the_numbers_are_right_whatever_happens(driver: RedisDriver, seed: int) -> None:
    rng = random.Random(seed)
    model = Model(driver)
    for at_once in (2, 3, 5, None):
        model.start(at_once)
    seen: Counter[str] = Counter()
    for _ in range(400):
        session = rng.choice(list(model.held))
        what = rng.choice(["add", "claim", "claim", "end", "end", "sweep"])
        if what == "add":
            model.add(rng.randrange(1, 12), *rng.choice([(MAIL,), (MAIL,), (MAIL, FLOW), (HEAVY,)]))
        elif what == "claim":
            seen["claimed"] += len(model.claim(session, rng.randrange(1, 30)))
        elif what == "sweep":
            driver.run(driver.admit(is_sweep=True))
        elif some := model.taken(session, rng.randrange(1, 9)):
            way = rng.choice(WAYS)
            way(model, session, some)
            seen[way.__name__] += 1
        model.check()
    assert seen["claimed"] > 50
    for session in list(model.held):
        end(model, session, [])
    assert model.stored() == (0, {})


def test_a_sweep_mends_both_numbers(driver: RedisDriver) -> None:
    model = Model(driver)
    session, other = model.start(3), model.start(None)
    model.add(30)
    model.claim(session, 20)
    model.claim(other, 20)
    assert driver.run(driver.counts())[JobState.BLOCKED] > 0  # the sweep looks where jobs wait
    field_name = f"limit:mail\n{session}\n3"
    for words in (
        ("HSET", "{winch}:used", "limit:mail", 99),
        ("HSET", "{winch}:own", field_name, 1),
        ("HSET", "{winch}:own", "limit:mail\ngone\n3", 2),
        ("HSET", "{winch}:own", "limit:sms\nelsewhere\n3", 2),
    ):
        driver._pool.run(command(*words))
    driver.run(driver.admit(is_sweep=True))
    used, own = model.stored()
    assert (used, own.pop("limit:sms\nelsewhere\n3")) == (model.used, 2)
    assert own == model.own()


def test_a_limit_that_changes_meanwhile_counts_each_claim_as_it_was_taken(driver: RedisDriver) -> None:
    model = Model(driver)
    session = model.start(3)
    model.add(60)

    def set_limit(n: int) -> None:
        driver.run(driver.set_limits({"limit:mail": GateSpec(n)}, by="ada"))

    model.claim(session, 10)
    set_limit(2)
    assert model.stored()[0] == 3
    assert model.claim(session, 5) == []
    driver.run(driver.finish([completed(one) for one in model.taken(session, 9)]))
    assert model.stored() == (1, {f"limit:mail\n{session}\n3": 1})
    # Within the session's slots each claim counts by itself.
    driver.run(driver.admit(is_sweep=True))
    assert len(model.claim(session, 5)) == 1
    assert model.stored() == (2, {f"limit:mail\n{session}\n3": 1})
    set_limit(9)
    driver.run(driver.admit(is_sweep=True))
    more = len(model.claim(session, 20))
    assert more > 9
    assert model.stored() == (4, {f"limit:mail\n{session}\n3": 1 + more})
    driver.run(driver.finish([completed(one) for one in model.taken(session, 99)]))
    assert model.stored() == (0, {})

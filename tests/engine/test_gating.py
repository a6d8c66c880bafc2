"""Limits, FIFO keys and scopes through the public face: what is stored, refused, set and explained."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from winch import App, Breaker, ConfigError, Fifo, Limit, Rate, RetryAfter, RetryBudget
from winch.core.gates.uses import GateSpec, gates_of
from winch.core.lifecycle import JobState
from winch.storage.params import ClaimParams, NewSession


def new_app() -> App:
    return App("memory://")


def print_it(words: str) -> None: ...


def test_a_job_carries_the_gates_of_its_task_and_of_its_arguments() -> None:
    app = new_app()

    @app.task(
        name="charge",
        limit=[Limit(50), Limit(2, key="merchant"), Rate(9, per="1m", scope="bank")],
        breaker=Breaker(scope="bank"),
        retry_budget=RetryBudget("200/m", scope="bank"),
    )
    def charge(order: int, merchant: str = "acme") -> None: ...

    job = charge.using(fifo="acct:7").enqueue(1)
    keys = [use.key for use in gates_of(job.record.options)]
    assert keys == [
        "scope:bank",
        "fifo:acct:7",
        "limit:charge",
        "limit:charge:merchant=acme",
        "rate:bank",
        "budget:bank",
    ]


def test_plain_jobs_carry_none() -> None:
    app = new_app()

    @app.task(name="t")
    def task() -> None: ...

    assert task.enqueue().record.options is None


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Limit(0), "at least 1"),
        (lambda: Limit(2, weight=3), "never let a job run"),
        (lambda: Rate(5, per="0s"), "at least 1ms"),
        (lambda: Rate(5, per="1s", kind="leaky"), "must be one of fixed, sliding, bucket"),
        (lambda: Rate(5, per="1s", burst=3), "goes with kind='bucket'"),
        (lambda: RetryBudget("often"), "such as '200/m'"),
        (lambda: Rate("often"), "such as '200/m'"),
        (lambda: Rate("5/s", per="1s"), "leave out per='1s'"),
        (lambda: Rate(5), "Rate\\('5/s'\\)"),
        (lambda: Breaker(failures=50), "a share such as 0.5"),
        (lambda: Fifo("k", on_death="stop"), "'skip' or 'block'"),
        (lambda: new_app().task(name="t", limit=Limit(1, key="nope"))(print_it), "no argument 'nope'"),
        (lambda: new_app().limits.set("charge", 5), "begins with limit:"),
        (lambda: new_app().limits.set("rate:charge", 5), "takes a rate such as 100/m"),
        (lambda: new_app().limits.set("limit:charge", "5/m"), "takes a number such as 5"),
    ],
)
def test_invalid_limits_and_rates_are_refused(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("text, n, per", [("5/s", 5, 1), ("200/m", 200, 60), ("7/10s", 7, 10)])
def test_a_rate_may_be_one_text(text: str, n: int, per: int) -> None:
    rate = Rate(text, key="merchant")
    assert (rate.n, rate.per, rate.key) == (n, timedelta(seconds=per), "merchant")


def test_limits_are_set_and_reset_by_name() -> None:
    app = new_app()
    app.limits.set("limit:charge", 5)
    app.limits.set("rate:charge", "100/10s")
    found = {info.name: info.spec for info in app.limits.list()}
    assert found == {"limit:charge": GateSpec(5), "rate:charge": GateSpec(100, 10_000_000)}
    app.limits.reset("limit:charge")
    app.limits.reset("rate:charge")
    assert app.limits.list() == []


def test_why_names_the_limit_and_its_holders() -> None:
    app = new_app()

    @app.task(name="t", limit=Limit(1))
    def task() -> None: ...

    first, second = task.enqueue(), task.enqueue()
    driver = app.driver
    session = NewSession(
        id="00000000-0000-4000-8000-000000000001", worker="w", host="h", pid=1, release="", slots=2,
        queues=("default",), tasks=("t",), lease=app.settings.lease,
    )  # fmt: skip
    driver.run(driver.start_session(session))
    token = "00000000-0000-4000-8000-000000000002"
    driver.run(driver.claim(ClaimParams(session=session.id, token=token, queues=("default",), limit=9)))
    assert second.refresh().state is JobState.BLOCKED
    assert second.why() == (
        f"It is blocked by the limit 'limit:t': 1 of 1 run, held by {first.id} on worker w."
    )


def test_a_scope_is_part_of_the_outcome() -> None:
    assert RetryAfter("5s", scope="bank").scope == "bank"
    assert RetryAfter("5s").scope is None


def test_a_burst_waits_for_a_rate_that_opens_within_a_second_and_for_no_slower_one() -> None:
    app = App("memory://", poll="5s")

    @app.task(limit=Rate(2, per="300ms"))
    async def soon() -> None: ...

    @app.task(limit=Rate(1, per="1h"))
    async def slow() -> None: ...

    jobs = app.enqueue_many([*(soon.bind() for _ in range(6)), slow.bind(), slow.bind()])
    began = time.monotonic()
    app.run_worker(burst=True)
    assert time.monotonic() - began < 4
    states = [job.refresh().state for job in jobs]
    assert states == [JobState.COMPLETED] * 7 + [JobState.BLOCKED]


def test_a_sliding_rate_counts_claims() -> None:
    """What the guarantees promise: in every stretch, by the store's clock, no claim too many."""
    app = App("memory://", events="full", concurrency=30)
    allowed, per = 5, timedelta(milliseconds=400)

    @app.task(name="t", limit=Rate(allowed, per=per))
    async def task() -> None: ...

    app.enqueue_many(task.bind() for _ in range(18))
    app.run_worker(burst=True)
    events = app.driver.run(app.driver.events(limit=1000))
    claims = sorted(event.at for event in events if event.kind == "claimed")
    assert len(claims) == 18
    for early, late in zip(claims, claims[allowed:], strict=False):
        assert late - early >= per

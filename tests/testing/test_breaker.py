"""A breaker in virtual time: how long a short failure of a downstream system holds the jobs back."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

from winch import App, Breaker, JobState, Retry
from winch.testing import virtual


def test_a_downstream_that_fails_for_a_second_holds_jobs_for_two_at_most(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'never.db'}")

    @app.task(
        breaker=Breaker(scope="bank", hold="1s"),
        retry=Retry.fixed("500ms", attempts=20, jitter="none"),
    )
    async def pay(number: int) -> None:
        """Thirty slots are full of attempts that end one after another, long after the trip."""
        await asyncio.sleep(0.02 * (number % 30 + 1))
        if world.now - began < timedelta(seconds=1):
            raise ConnectionError("the bank is down")
        paid.append(world.now - began)

    paid: list[timedelta] = []
    with virtual(app, concurrency=30) as world:
        began = world.now
        jobs = [pay.enqueue(number) for number in range(30)]
        world.advance("15s")
        assert {job.refresh().state for job in jobs} == {JobState.COMPLETED}
    assert min(paid) < timedelta(seconds=2)


def test_why_names_the_trips(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'never.db'}")

    @app.task(breaker=Breaker(scope="bank", of=2, hold="10s"), retry=Retry.fixed("1s", attempts=50))
    def pay() -> None:
        raise ConnectionError("the bank is down")

    with virtual(app) as world:
        jobs = [pay.enqueue() for _ in range(4)]
        world.advance("8s")
        words = [job.why() for job in jobs]
        assert any("The breaker has tripped once." in text for text in words), words
        world.advance("5s")
        words = [job.why() for job in jobs]
        assert any("The breaker has tripped 2 times in a row." in text for text in words), words
        assert any("ConnectionError" in text or "the bank is down" in text for text in words)

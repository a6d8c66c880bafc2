"""The idempotency store: an effect by its key, once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from winch import App, ConfigError, Context, InvalidPayload, LostClaim, Retry
from winch.testing import virtual


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(f"sqlite:///{tmp_path / 'once.db'}")


def test_the_first_is_new_and_later_ones_find_its_result(app: App) -> None:
    with app.idempotency.begin("charge:42") as once:
        assert (once.new, once.done, once.open) == (True, False, False)
        with app.idempotency.begin("charge:42") as other:
            assert (other.new, other.done, other.open) == (False, False, True)
            assert other.holder
        once.result = {"id": "ch-1"}
    with app.idempotency.begin("charge:42") as again:
        assert (again.new, again.done, again.open) == (False, True, False)
    assert again.result == {"id": "ch-1"}


def test_a_block_that_raises_leaves_the_key_open(app: App) -> None:
    with pytest.raises(ConnectionError), app.idempotency.begin("k"):
        raise ConnectionError
    with app.idempotency.begin("k") as once:
        assert once.open


def test_async_code_uses_it_too(app: App) -> None:
    async def twice() -> list[Any]:
        async with app.idempotency.begin("k") as first:
            first.result = 1
        async with app.idempotency.begin("k") as second:
            return [first.new, second.done, second.result]

    assert asyncio.run(twice()) == [True, True, 1]


@pytest.mark.parametrize("is_async", [True, False])
def test_a_later_attempt_of_the_job_takes_its_own_key_over(app: App, is_async: bool) -> None:
    did: list[str] = []

    def charge(ctx: Context) -> None:
        did.append(f"charge {ctx.attempt}")
        if ctx.attempt == 1:
            raise ConnectionError

    if is_async:

        @app.task(name="pay", retry=Retry.fixed("1s", attempts=3))
        async def pay(*, ctx: Context) -> str:
            async with app.idempotency.begin("charge:42") as once:
                if once.new:
                    charge(ctx)
                    once.result = "paid"
            return f"{once.result} {once.holder}"
    else:

        @app.task(name="pay", retry=Retry.fixed("1s", attempts=3))
        def pay(*, ctx: Context) -> str:
            with app.idempotency.begin("charge:42") as once:
                if once.new:
                    charge(ctx)
                    once.result = "paid"
            return f"{once.result} {once.holder}"

    with virtual(app) as world:
        first = pay.enqueue()  # type: ignore[call-arg]
        world.run_once()
        second = pay.enqueue()  # type: ignore[call-arg]
        world.run_once()
        assert second.result() == f"None job {first.id}"
        world.run_all()
        assert first.result() == "paid None"
        third = pay.enqueue()  # type: ignore[call-arg]
        world.run_all()
        assert third.result() == "paid None"
    assert did == ["charge 1", "charge 2"]


def test_a_key_is_free_when_its_time_is_over(app: App) -> None:
    with virtual(app) as world:
        with pytest.raises(ConnectionError), app.idempotency.begin("k", ttl="1h"):
            raise ConnectionError
        world.advance("59m")
        with app.idempotency.begin("k", ttl="1h") as once:
            assert once.open
        world.advance("1m")
        with app.idempotency.begin("k", ttl="1h") as once:
            assert once.new


def test_a_holder_that_lost_its_key_cannot_keep_a_result(app: App) -> None:
    with virtual(app) as world:
        late = app.idempotency.begin("k", ttl="1h")
        with app.idempotency.begin("other"), late:
            late.new = False  # its end is tried below
        world.advance("1h")
        with app.idempotency.begin("k", ttl="1h") as once:
            once.result = "the second's"
        late.new, late.result = True, "the first's"
        with pytest.raises(LostClaim, match="taken over"):
            late.__exit__(None)
        with app.idempotency.begin("k") as again:
            assert again.result == "the second's"


def test_lost_replies_change_nothing(app: App) -> None:
    with virtual(app) as world:
        world.lose_reply("kv_swap")
        with app.idempotency.begin("k") as once:
            assert once.new
            once.result = 7
            world.lose_reply("kv_swap")
        with app.idempotency.begin("k") as again:
            assert again.result == 7


@pytest.mark.parametrize(
    "key, error", [("", ConfigError), ("x" * 300, ConfigError), ("\0", InvalidPayload)]
)
def test_wrong_keys_are_refused(app: App, key: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        app.idempotency.begin(key)

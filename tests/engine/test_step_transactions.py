"""Steps in a transaction: what a step writes and that it was made are one commit, on real stores."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from winch import App, ConfigError, Context, Job, Retry, StorageUnavailable
from winch.testing import virtual

ONCE = Retry.fixed("10ms", attempts=3, jitter="none")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as conn:
        conn.execute("CREATE TABLE effect (step TEXT)")
    path.chmod(0o600)
    return path


@pytest.fixture
def app(file: Path) -> App:
    return App(f"sqlite:///{file}?shared=1")


def effects(file: Path) -> list[str]:
    with sqlite3.connect(file) as conn:
        return [row[0] for row in conn.execute("SELECT step FROM effect ORDER BY rowid")]


def run(app: App, job: Job[Any]) -> Job[Any]:
    async def work() -> None:
        async with app.worker(queues=["default"]):
            await asyncio.to_thread(_settled, job)

    asyncio.run(work())
    return job.refresh()


def _settled(job: Job[Any]) -> None:
    with contextlib.suppress(Exception):  # how it ended is looked at later
        job.result(timeout="20s")


def write(tx: Any, name: str) -> str:
    tx.execute("INSERT INTO effect VALUES (?)", (name,))
    return f"wrote {name}"


async def awrite(tx: Any, name: str) -> str:
    await tx.execute("INSERT INTO effect VALUES (?)", (name,))
    return f"wrote {name}"


def test_writes_of_a_plain_step_commit_with_it(app: App, file: Path) -> None:
    @app.task(retry=ONCE)
    def order(*, ctx: Context) -> list[str]:
        found = [ctx.step(write, name, name=name, transaction=True) for name in ("a", "b")]
        if ctx.attempt == 1:
            raise ConnectionError
        return found

    job = run(app, order.enqueue())  # type: ignore[call-arg]
    assert job.result() == ["wrote a", "wrote b"]
    assert effects(file) == ["a", "b"]


def test_a_step_that_raises_leaves_nothing(app: App, file: Path) -> None:
    def broken(tx: Any, attempt: int) -> str:
        write(tx, f"attempt {attempt}")
        if attempt == 1:
            raise ConnectionError
        return "done"

    @app.task(retry=ONCE)
    def order(*, ctx: Context) -> str:
        return str(ctx.step(broken, ctx.attempt, transaction=True))

    job = run(app, order.enqueue())  # type: ignore[call-arg]
    assert job.result() == "done"
    assert effects(file) == ["attempt 2"]


def test_a_lost_answer_to_the_commit_is_settled(
    app: App, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = app.client.driver()
    begin: Callable[..., Any] = driver.transaction  # type: ignore[attr-defined]
    lost: list[str] = []

    class Lossy:
        """Commits or rolls back, and raises as if the reply were lost."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._block = begin(*args, **kwargs)

        def __enter__(self) -> Any:
            return self._block.__enter__()

        def __exit__(self, *error: Any) -> Any:
            if error[0] is not None or len(lost) >= 2:
                return self._block.__exit__(*error)
            if not lost:  # the first took effect
                lost.append("after")
                self._block.__exit__(None, None, None)
            else:  # the second did not
                lost.append("before")
                with contextlib.suppress(ValueError):
                    self._block.__exit__(ValueError, ValueError(), None)
            raise StorageUnavailable("the answer was lost", maybe_applied=True)

    monkeypatch.setattr(driver, "transaction", Lossy)

    @app.task(retry=ONCE)
    def order(*, ctx: Context) -> list[str]:
        return [ctx.step(write, name, name=name, transaction=True) for name in ("a", "b", "c")]

    job = run(app, order.enqueue())  # type: ignore[call-arg]
    assert job.result() == ["wrote a", "wrote b", "wrote c"]
    assert effects(file) == ["a", "b", "c"]
    assert lost == ["after", "before"]
    assert job.record.attempt == 2  # what did not commit was an error of its attempt


def test_a_store_without_transactions_raises(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'never.db'}")

    @app.task(retry=Retry.fixed("1s", attempts=1))
    def order(*, ctx: Context) -> None:
        with pytest.raises(ConfigError, match="needs a store with transactions"):
            ctx.step(write, "a", transaction=True)

    with virtual(app) as world:
        job = order.enqueue()  # type: ignore[call-arg]
        world.run_all()
        assert job.refresh().state == "completed"

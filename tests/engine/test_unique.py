"""Unique jobs through the client: keys, modes, and the answers to callers."""

from __future__ import annotations

from typing import Any

import pytest

from winch import App, ConfigError, DuplicateJob, JobState, Unique
from winch.testing import virtual


def test_a_second_enqueue_gives_the_first_job() -> None:
    app = App("memory://")

    @app.task(name="t")
    def t(n: int) -> int:
        return n

    first = t.using(unique="k").enqueue(1)
    second = t.using(unique="k").enqueue(2)
    assert (second.id, first.is_new, second.is_new) == (first.id, True, False)
    app.run_worker(burst=True)
    assert second.result() == 1
    assert t.using(unique="k").enqueue(3).is_new


def test_a_key_of_arguments_knows_defaults_and_tasks() -> None:
    app = App("memory://")

    @app.task(name="t", unique=Unique("order", "kind"))
    def t(order: int, kind: str = "plain", note: str = "") -> None: ...

    @app.task(name="u", unique=Unique())
    def u(order: int, kind: str = "plain") -> None: ...

    first = t.enqueue(7)
    assert first.record.unique_key == 't:{"kind":"plain","order":7}'
    assert t.enqueue(7, "plain", note="other").id == first.id
    assert t.enqueue(7, "express").is_new
    assert t.enqueue(8).is_new
    assert u.enqueue(7).is_new
    assert not u.enqueue(order=7, kind="plain").is_new


def test_reject_raises_and_stores_nothing_of_the_call() -> None:
    app = App("memory://")
    enqueued: list[str] = []
    app.on("enqueued", lambda event: enqueued.append(event.job_id))

    @app.task(name="t", unique=Unique("n", mode="reject"))
    def t(n: int) -> None: ...

    holder = t.enqueue(1)
    with pytest.raises(DuplicateJob, match="nothing was enqueued") as refused:
        app.enqueue_many([t.bind(2), t.bind(1)])
    assert refused.value.existing == holder.id
    assert [job.id for job in app.jobs.list()] == [holder.id] == enqueued


def test_replace_puts_the_newest_in_place_of_one_that_waits() -> None:
    app = App("memory://")

    @app.task(name="t")
    def t(n: int) -> int:
        return n

    later = t.using(unique=Unique(key="k", mode="replace"), delay="1h")
    first = later.enqueue(1)
    again = later.enqueue(2)
    assert (again.id, again.is_new) == (first.id, False)
    now = t.using(unique=Unique(key="k", mode="replace")).enqueue(3)
    assert now.state is JobState.READY
    app.run_worker(burst=True)
    assert first.result() == 3


@pytest.mark.parametrize(
    "unique, message",
    [
        (7, "unique must be a key or Unique"),
        ("", "non-empty printable text"),
        (Unique("ordre"), r"no argument 'ordre' \(did you mean 'order'\?\)"),
    ],
)
def test_a_wrong_key_is_refused(unique: Any, message: str) -> None:
    app = App("memory://")

    @app.task(name="t")
    def t(order: int) -> None: ...

    with pytest.raises(ConfigError, match=message):
        t.using(unique=unique).enqueue(1)
    with pytest.raises(ConfigError, match=message):

        @app.task(name="u", unique=unique)
        def u(order: int) -> None: ...

    assert app.jobs.list() == []


def test_windows_debounce_and_started() -> None:
    app = App("memory://")
    ran: list[object] = []

    @app.task(name="charge", unique=Unique("order", within="1h"))
    def charge(order: int) -> None:
        ran.append(order)

    @app.task(name="index", unique=Unique("doc", mode="debounce", wait="5s", max_wait="12s"))
    def index(doc: int, text: str) -> None:
        ran.append(text)

    @app.task(name="sync", unique=Unique(until="started"))
    async def sync() -> None:
        if not again:
            again.append(await sync.aenqueue())

    again: list[Any] = []
    with virtual(app) as world:
        first = charge.enqueue(7)
        world.run_all()
        assert charge.enqueue(7).id == first.id
        world.advance("1h")
        assert charge.enqueue(7).is_new
        world.run_all()
        assert ran == [7, 7]
        for text in "abcd":
            index.enqueue(1, text)
            world.advance("4s")
        world.run_all()
        assert ran[2:] == ["c", "d"], "at the latest after 12 s, and once more for what came then"
        sync.enqueue()
        assert not sync.enqueue().is_new
        world.advance("1ms")
        assert again[0].is_new


def test_keep_last_runs_the_last_one_after_the_one_that_runs() -> None:
    app = App("memory://")
    ran: list[int] = []

    @app.task(name="build", unique=Unique("branch", mode="keep_last"))
    async def build(branch: str, commit: int) -> None:
        ran.append(commit)
        if commit == 1:
            for later in (2, 3, 4):
                await build.aenqueue("main", later)
            await build.aenqueue("other", 9)
        ran.append(-commit)

    build.enqueue("main", 0)
    build.enqueue("main", 1)  # takes the place of 0, which waits
    app.run_worker(burst=True)
    assert [commit for commit in ran if abs(commit) != 9] == [1, -1, 4, -4]
    assert 9 in ran
    with pytest.raises(ConfigError, match="leave fifo= out"):
        build.using(fifo="x").enqueue("main", 1)
    assert repr(Unique("branch", mode="keep_last")) == "Unique('branch', mode='keep_last')"

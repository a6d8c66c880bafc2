"""Task names that are not registered: a resolver may know them, and only the ones that it allows."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from winch import App, JobNotFound, UnknownTask
from winch.engine.tasks.task import Task


def test_a_resolver_is_called_for_names_that_are_not_registered() -> None:
    app = App("memory://")
    asked: list[str] = []

    def resolve(name: str) -> Task[Any, Any] | None:
        asked.append(name)
        if name != "shop.later":
            return None

        @app.task(name="shop.later")
        def later(a: int) -> int:
            return a + 1

        return later

    app.tasks.resolve_with(resolve)
    found = app.tasks.get("shop.later")
    assert app.tasks.get("shop.later") is found
    assert asked == ["shop.later"]  # it is registered now
    with pytest.raises(UnknownTask, match=r"os\.system"):
        app.tasks.get("os.system")
    assert app.tasks.names == ("shop.later",)


def test_a_job_is_read_inside_the_transaction_that_enqueues_it(tmp_path: Any) -> None:
    app = App(f"sqlite:///{tmp_path / 'w.db'}")
    app.migrate()

    @app.task(name="t")
    def task() -> None: ...

    with contextlib.suppress(ZeroDivisionError), app.transaction() as conn:
        job = task.using(conn=conn).enqueue()
        assert app.jobs.get(job.id, conn=conn).state == "ready"
        raise ZeroDivisionError
    with pytest.raises(JobNotFound):
        app.jobs.get(job.id)
    app.close()

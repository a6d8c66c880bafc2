"""Options: what is accepted, what is refused, and in which words."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from winch import App, ConfigError, Retry
from winch.core.lifecycle import JobState


def new_app() -> App:
    return App("memory://")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"quue": "x"}, r"no option 'quue' \(did you mean 'queue'\?\)"),
        ({"delay": 5}, "delay must be a timedelta or text with a unit"),
        ({"delay": "5 parsecs"}, "delay must look like"),
        ({"delay": "1s", "run_at": datetime(2030, 1, 1, tzinfo=UTC)}, "delay or run_at, not both"),
        ({"run_at": datetime(2030, 1, 1)}, "a datetime with a time zone"),  # noqa: DTZ001  # the point
        ({"priority": "hgih"}, r"did you mean 'high'\?"),
        ({"priority": 5000}, "from -1000 to 1000"),
        ({"queue": "a,b"}, "queue must not contain ','"),
        ({"queue": "x" * 300}, "at most 256 characters"),
        ({"id": "018f5b3a-7c1d-7000-8000-0000000"}, "id must be a UUID"),
        ({"tags": "x"}, "tags must be a list"),
        ({"retry": 3}, "must be a Retry policy"),
        ({"timeout": "0s"}, "longer than zero"),
        ({"fifo": ""}, "fifo must be a non-empty text"),
        ({"tenant": "a=b"}, "tenant must not contain '='"),
        ({"retry": Retry.fixed("1s", on={ValueError: None})}, "declare them on the task"),
    ],
)
def test_a_wrong_option_is_refused_and_nothing_is_stored(options: dict[str, Any], message: str) -> None:
    app = new_app()

    @app.task(name="t")
    def task() -> None: ...

    with pytest.raises(ConfigError, match=message):
        task.using(**options).enqueue()
    assert app.jobs.list() == []


def test_options_reach_the_store() -> None:
    app = new_app()

    @app.task(name="t", queue="mail", priority="high", tags=["a"])
    def task() -> None: ...

    job = task.using(
        delay="5m", tags=["b"], headers={"x": "1"}, timeout=None, retry=Retry.never()
    ).enqueue()
    record = job.record
    assert (record.queue, record.priority, record.tags) == ("mail", 10, ("a", "b"))
    assert record.headers == {"x": "1"}
    assert record.max_attempts == 1
    assert record.state is JobState.SCHEDULED


def test_two_tasks_of_one_name_are_refused() -> None:
    app = new_app()

    @app.task(name="t")
    def one() -> None: ...

    with pytest.raises(ConfigError, match="two tasks are named 't'"):

        @app.task(name="t")
        def two() -> None: ...


def test_a_given_id_gives_one_job() -> None:
    app = new_app()

    @app.task(name="t")
    def task(n: int) -> None: ...

    given = "0192c8f0-0000-7000-8000-000000000001"
    first = task.using(id=given).enqueue(1)
    second = task.using(id=given).enqueue(2)
    assert (first.is_new, second.is_new) == (True, False)
    assert [job.record.args for job in app.jobs.list()] == ['{"n":1}']


def test_unknown_app_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'lease'\?"):
        App("memory://", leese="3s")  # type: ignore[arg-type]

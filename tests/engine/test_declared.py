"""Tasks without code: enqueued here by their schema, run elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

import winch
from winch import App, ConfigError, InvalidPayload, JobState

SCHEMA = {
    "properties": {"image": {"type": "string"}, "width": {"type": "integer", "minimum": 1}},
    "required": ["image"],
}


@pytest.fixture
def app() -> App:
    app = App("memory://")
    app.migrate()
    return app


def test_a_call_that_fits_is_stored_and_one_that_does_not_is_refused_with_the_reason(app: App) -> None:
    resize = app.declare(
        "node.resize", SCHEMA, queue="images", retry=winch.Retry.fixed("1s", attempts=2)
    )
    job = resize.using(priority=5).enqueue("a.png", width=100)
    record = job.refresh().record
    assert (record.task, record.queue, record.max_attempts) == ("node.resize", "images", 2)
    assert record.args == '{"image":"a.png","width":100}'
    assert resize.enqueue(image="b.png").refresh().record.args == '{"image":"b.png"}'
    for call, why in (
        ({}, "needs the argument 'image'"),
        ({"image": 7}, "args.image must be string, got integer"),
        ({"image": "a", "width": 0}, "args.width: must be at least 1"),
        ({"image": "a", "height": 1}, "has no argument 'height'"),
    ):
        with pytest.raises(InvalidPayload, match=why):
            resize.enqueue(**call)
        with pytest.raises(InvalidPayload, match=why):
            resize.bind(**call)
    with pytest.raises(ConfigError, match="declared without code"):
        resize("a.png")


def test_no_worker_of_this_app_claims_its_jobs(app: App) -> None:
    @app.task
    def add(a: int) -> int:
        return a

    resize = app.declare("node.resize", SCHEMA)
    theirs, mine = resize.enqueue("a.png"), add.enqueue(1)
    app.run_worker(burst=True)
    assert (mine.refresh().state, theirs.refresh().state) == (JobState.COMPLETED, JobState.READY)


def test_it_takes_part_in_flows_and_many(app: App) -> None:
    resize = app.declare("node.resize", SCHEMA)
    assert len(app.enqueue_many([resize.bind(image=str(n)) for n in range(3)])) == 3
    winch.chain(resize.bind("a"), resize.partial(width=3)).enqueue()
    assert len(app.jobs.list(task="node.resize")) == 5


@pytest.mark.parametrize(
    "schema, why",
    [
        ({"type": "array"}, "its type must be object"),
        ({"properties": {"class": {}}}, "cannot be the name of an argument"),
        ({"properties": {"a b": {}}}, "cannot be the name of an argument"),
        ({"required": ["a"]}, "is required and is no property"),
        ({"properties": {"a": {"pattern": "x"}}}, "'pattern' of JSON Schema is not supported"),
    ],
)
def test_invalid_contracts_are_refused(app: App, schema: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        app.declare("t", schema)


def test_options_that_are_for_code_are_refused(app: App) -> None:
    with pytest.raises(ConfigError, match="takes no collect="):
        app.declare("t", SCHEMA, collect=5)
    app.declare("t", SCHEMA)
    with pytest.raises(ConfigError, match="two tasks are named 't'"):
        app.declare("t", SCHEMA)

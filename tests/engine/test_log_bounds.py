"""What goes into the log is bounded: a long exception, a subscriber that fails for every event."""

from __future__ import annotations

import logging

import pytest

from winch.core.values.codec import MAX_ERROR_BYTES
from winch.engine.base.log import log
from winch.engine.tasks import events as module
from winch.engine.tasks.events import Events, JobEvent


def test_the_text_of_an_exception_is_cut_as_in_the_store(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("x" * 5_000_000)
    except ValueError:
        log.exception("it failed")
    [record] = caplog.records
    assert record.exc_text is not None
    assert len(record.exc_text) <= MAX_ERROR_BYTES
    assert record.exc_text.startswith("Traceback")
    assert len(caplog.text) < 2 * MAX_ERROR_BYTES, "a formatter prints what was cut, not the exception"


def test_a_failing_subscriber_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(module, "monotonic", lambda: now)
    events = Events()

    def broken(event: JobEvent) -> None:
        raise ValueError(event.job_id)

    def also_broken(event: JobEvent) -> None:
        raise KeyError(event.job_id)

    events.on("started", broken)
    events.on("started", also_broken)
    with caplog.at_level(logging.WARNING):
        for number in range(100):
            events.publish(JobEvent(kind="started", job_id=f"j{number}", task="t", queue="q"))
        assert len(caplog.records) == 2, "one line for each subscriber"
        assert "for job j0" in caplog.text
        now += 61.0
        events.publish(JobEvent(kind="started", job_id="later", task="t", queue="q"))
        assert len(caplog.records) == 4
        assert "for job later" in caplog.records[-1].getMessage()
        assert "99 more failures since the last line" in caplog.records[-1].getMessage()

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winch.core.job import (
    PRIORITIES,
    PRIORITY_RANGE,
    Failure,
    attempt_words,
    from_micros,
    sort_key,
    to_micros,
)
from winch.core.values.clock import FixedClock

MOMENTS = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


@settings(max_examples=30)
@given(MOMENTS)
def test_microseconds_are_exact(moment: datetime) -> None:
    assert from_micros(to_micros(moment)) == moment


@settings(max_examples=30)
@given(MOMENTS, st.integers(-1000, 999))
def test_a_level_of_priority_is_worth_sixty_seconds(moment: datetime, priority: int) -> None:
    later = moment + timedelta(seconds=60)
    assert sort_key(later, priority + 1) == sort_key(moment, priority)
    assert sort_key(later - timedelta(microseconds=1), priority + 1) < sort_key(moment, priority)


def test_the_earlier_of_two_equals_goes_first() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    assert sort_key(moment, 0) < sort_key(moment + timedelta(microseconds=1), 0)


def test_named_priorities_are_in_range() -> None:
    assert all(level in PRIORITY_RANGE for level in PRIORITIES.values())


def test_a_fixed_clock_moves_only_when_advanced() -> None:
    clock = FixedClock(datetime(2026, 1, 1, tzinfo=UTC))
    clock.advance(timedelta(seconds=1.5))
    assert clock.now() == datetime(2026, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
    assert clock.monotonic() == 1.5


@pytest.mark.parametrize(
    "attempt, most, crashes, rescues, words",
    [
        (2, 5, 0, 0, "2 of 5"),
        (3, 2, 0, 0, "3"),  # the policy of the error or of the queue allows more
        (0, 12, 1, 0, "0 of 12, 1 crash"),
        (1, None, 2, 1, "1, 2 crashes, 1 rescue"),
    ],
)
def test_attempts_in_words(
    attempt: int, most: int | None, crashes: int, rescues: int, words: str
) -> None:
    assert attempt_words(attempt, most, crashes=crashes, rescues=rescues) == words


@pytest.mark.parametrize(
    "kind, name",
    [
        ("winch.engine.worker.attempt.JobTimeout", "JobTimeout"),
        ("winch.JobTimeout", "JobTimeout"),
        ("ValueError", "ValueError"),
        ("shop.errors.Refused", "shop.errors.Refused"),
    ],
)
def test_people_read_the_name_of_an_error_of_winch_without_its_modules(kind: str, name: str) -> None:
    assert Failure(kind, "").name == name

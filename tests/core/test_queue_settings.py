"""The backoff of a queue: one delay, or the delays of a policy."""

from __future__ import annotations

import random
from datetime import timedelta

import msgspec
import pytest

from winch import ConfigError, Retry
from winch.core.policy.queue_settings import NO_SETTINGS, QueueSettings, changed
from winch.core.policy.retry import StoredRetry, backoff_text


def delays(settings: QueueSettings, task: Retry = Retry.fixed("9s", attempts=7)) -> list[float]:  # noqa: B008
    policy = settings.policy(task)
    rng = random.Random(1)
    return [policy.delay(attempt, rng).total_seconds() for attempt in (1, 2, 3, 10)]


@pytest.mark.parametrize(
    "backoff",
    [
        Retry.exponential("2s", max="5m", jitter="none", attempts=99),
        "exponential 2s max=5m jitter=none",
        " exponential  2s factor=2 max=5m jitter=none ",
    ],
)
def test_a_policy_gives_the_delays_and_the_task_the_attempts(backoff: Retry | str) -> None:
    settings = changed(NO_SETTINGS, {"backoff": backoff})
    assert delays(settings) == [2, 4, 8, 300]
    assert settings.policy(Retry.fixed("9s", attempts=7)).attempts == 7
    fewer = changed(settings, {"retries": 2})
    assert fewer.policy(Retry.fixed("9s", attempts=7)).attempts == 3


def test_one_delay_is_still_one_delay() -> None:
    settings = changed(NO_SETTINGS, {"backoff": "30s"})
    assert settings.backoff == timedelta(seconds=30)
    assert delays(settings) == [30] * 4


@pytest.mark.parametrize(
    "words", ["linear 2s max=1m jitter=none", "polynomial 2s power=3 max=1h jitter=full", "sidekiq",
              "fixed 3s jitter=15%", "exponential 2s factor=3 max=5m jitter=decorrelated"],
)  # fmt: skip
def test_settings_come_back_from_the_store_and_in_words(words: str) -> None:
    settings = changed(NO_SETTINGS, {"backoff": words})
    text = msgspec.json.encode(settings)
    assert msgspec.json.decode(text, type=QueueSettings) == settings
    assert isinstance(settings.backoff, StoredRetry)
    again = changed(NO_SETTINGS, {"backoff": backoff_text(settings.backoff)})
    assert again == settings


@pytest.mark.parametrize(
    "backoff, message",
    [
        ("expo 2s", "exponential 2s max=5m"),
        ("exponential", "must be a time such as '30s', a Retry"),
        ("exponential 2s mex=5m", r"did you mean 'max'\?"),
        ("exponential 2s factor=many", "factor must be a number"),
        ("exponential soon", "must look like"),
        ("exponential " + "2" * 500, "200"),
        (Retry.custom(lambda _: timedelta(1)), "without a custom function"),
        (Retry.fixed("1s", on={KeyError: None}), "without `on`"),
        (30, "backoff"),
    ],
)
def test_invalid_backoffs_are_refused(backoff: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        changed(NO_SETTINGS, {"backoff": backoff})

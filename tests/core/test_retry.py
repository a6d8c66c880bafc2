from __future__ import annotations

import random
import sys
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winch.core.errors import ConfigError
from winch.core.policy.retry import DEFAULT_RETRY, JITTERS, Retry, from_stored, to_stored

POLICIES = {
    "fixed": lambda jitter: Retry.fixed("10s", jitter=jitter),
    "linear": lambda jitter: Retry.linear("10s", max="1m", jitter=jitter),
    "exponential": lambda jitter: Retry.exponential("2s", max="1m", jitter=jitter),
    "polynomial": lambda jitter: Retry.polynomial("1s", max="1m", jitter=jitter),
}


def rng() -> random.Random:
    return random.Random(7)


def delays(policy: Retry, count: int) -> list[float]:
    return [policy.delay(attempt, rng()).total_seconds() for attempt in range(1, count + 1)]


def test_fixed_waits_the_same_every_time() -> None:
    assert delays(Retry.fixed("10s"), 3) == [10, 10, 10]


def test_linear_grows_by_its_base_up_to_the_cap() -> None:
    assert delays(Retry.linear("10s", max="25s", jitter="none"), 4) == [10, 20, 25, 25]


def test_exponential_doubles_up_to_the_cap() -> None:
    assert delays(Retry.exponential("2s", max="10s", jitter="none"), 4) == [2, 4, 8, 10]


def test_polynomial_grows_by_its_power() -> None:
    assert delays(Retry.polynomial("1s", power=3, jitter="none"), 4) == [1, 8, 27, 64]


def test_sidekiq_waits_some_three_weeks_in_all() -> None:
    total = sum(delays(Retry.sidekiq(), 25))
    assert timedelta(days=18) < timedelta(seconds=total) < timedelta(days=23)


def test_a_custom_function_gives_the_delay() -> None:
    policy = Retry.custom(lambda attempt: timedelta(seconds=attempt * 3))
    assert delays(policy, 3) == [3, 6, 9]


@pytest.mark.parametrize("attempt", [2**10, 2**12, 2**31 - 1])
@pytest.mark.parametrize("jitter", [*JITTERS, "15%"])
@pytest.mark.parametrize("longest", ["1h", "999999999d"])
def test_a_job_may_have_failed_any_number_of_times(attempt: int, jitter: str, longest: str) -> None:
    for policy in (
        Retry.linear("10s", max=longest, jitter=jitter),
        Retry.exponential("2s", max=longest, jitter=jitter),
        Retry.polynomial("1s", max=longest, jitter=jitter),
        Retry.sidekiq(attempts=2**31 - 1),
    ):
        assert timedelta(0) <= policy.delay(attempt, rng()) <= policy.max


def test_never_gives_up_after_the_first_attempt() -> None:
    assert Retry.never().gives_up(1, timedelta(0))


def test_the_default_is_about_seventy_minutes_long() -> None:
    policy = Retry.exponential(jitter="none")
    assert policy.attempts == DEFAULT_RETRY.attempts == 12
    total = timedelta(seconds=sum(delays(policy, policy.attempts - 1)))
    assert timedelta(minutes=60) < total < timedelta(minutes=80)


@settings(max_examples=40)
@given(
    name=st.sampled_from(sorted(POLICIES)),
    jitter=st.sampled_from([*JITTERS, "0%", "15%", "100%"]),
    attempt=st.integers(1, 10_000),
    seed=st.integers(0, 1000),
)
def test_a_delay_is_never_negative_nor_above_the_cap(
    name: str, jitter: str, attempt: int, seed: int
) -> None:
    policy = POLICIES[name](jitter)
    assert timedelta(0) <= policy.delay(attempt, random.Random(seed)) <= policy.max


@settings(max_examples=20)
@given(attempt=st.integers(1, 12), seed=st.integers(0, 1000))
def test_a_percentage_spreads_that_much_to_both_sides(attempt: int, seed: int) -> None:
    plain = Retry.exponential("2s", max="10h", jitter="none").delay(attempt, rng())
    spread = Retry.exponential("2s", max="10h", jitter="15%").delay(attempt, random.Random(seed))
    assert plain * 0.849 <= spread <= plain * 1.151


def test_full_jitter_uses_the_whole_range() -> None:
    policy = Retry.fixed("100s", jitter="full")
    drawn = [policy.delay(1, random.Random(seed)).total_seconds() for seed in range(100)]
    assert min(drawn) < 10
    assert max(drawn) > 90


def test_decorrelated_jitter_starts_at_the_base() -> None:
    policy = Retry.exponential("2s", max="1m", jitter="decorrelated")
    drawn = [policy.delay(n, random.Random(n)).total_seconds() for n in range(1, 50)]
    assert min(drawn) >= 2
    assert max(drawn) <= 60
    assert len(set(drawn)) > 20


def test_the_same_dice_give_the_same_delay() -> None:
    for jitter in (*JITTERS, "15%"):
        policy = Retry.exponential(jitter=jitter)
        assert policy.delay(5, rng()) == policy.delay(5, rng())


def test_attempts_count_the_first_try() -> None:
    policy = Retry.fixed("1s", attempts=3)
    assert [policy.gives_up(n, timedelta(0)) for n in (1, 2, 3)] == [False, False, True]


def test_total_time_ends_retrying_whatever_the_attempts() -> None:
    policy = Retry.fixed("1s", attempts=100, total="1h")
    assert not policy.gives_up(5, timedelta(minutes=59))
    assert policy.gives_up(5, timedelta(hours=1))


def test_the_most_specific_exception_decides() -> None:
    patient = Retry.fixed("1h")
    policy = Retry.exponential(on={OSError: patient, FileNotFoundError: None})
    assert policy.for_error(FileNotFoundError()) is None
    assert policy.for_error(PermissionError()) is patient
    assert policy.for_error(ValueError()) is policy


@pytest.mark.parametrize("jitter", ["15", "-1%", "101%", "abc", "%", ""])
def test_an_unknown_jitter_is_refused(jitter: str) -> None:
    with pytest.raises(ConfigError, match="retry jitter must be"):
        Retry.exponential(jitter=jitter)


@pytest.mark.parametrize("attempts", [0, -1, 1.5, 2**31, sys.maxsize, 10**30])
def test_attempts_that_no_store_can_count_are_refused(attempts: int) -> None:
    with pytest.raises(ConfigError, match=f"attempts must be a whole number from 1 to {2**31 - 1}, got"):
        Retry.exponential(attempts=attempts)


def test_a_shrinking_factor_is_refused() -> None:
    with pytest.raises(ConfigError, match="factor must be at least 1"):
        Retry.exponential(factor=0.5)


def test_a_stored_policy_waits_as_the_original() -> None:
    for policy in (
        Retry.exponential("3s", total="1d"),
        Retry.sidekiq(),
        Retry.linear("1s", jitter="full"),
    ):
        again = from_stored(to_stored(policy))
        assert again == policy
        assert again.delay(4, rng()) == policy.delay(4, rng())


@pytest.mark.parametrize(
    "policy",
    [Retry.custom(lambda attempt: timedelta(seconds=attempt)), Retry.fixed("1s", on={OSError: None})],
)
def test_a_policy_that_holds_code_is_not_stored(policy: Retry) -> None:
    with pytest.raises(ConfigError, match="declare them on the task"):
        to_stored(policy)

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from winch.core.errors import ConfigError
from winch.core.job import Failure
from winch.core.lifecycle import TRANSITIONS, JobState
from winch.core.outcome import (
    Cancel,
    Discard,
    Done,
    Failed,
    Outcome,
    RetryAfter,
    Settled,
    Snooze,
    settle,
)
from winch.core.policy.retry import Retry, from_stored, to_stored

ERROR = Failure("ValueError", "no such user")
POLICY = Retry.fixed("10s", attempts=3, total="1h")


def settled(outcome: Outcome, attempt: int = 1, age: timedelta = timedelta(0)) -> Settled:
    return settle(outcome, attempt=attempt, age=age, policy=POLICY, rng=random.Random(7))


def test_done_completes_with_its_result() -> None:
    assert settled(Done('{"a":1}')) == Settled(JobState.COMPLETED, "completed", result='{"a":1}')


def test_snooze_hands_the_attempt_back() -> None:
    found = settled(Snooze("5m", "too early"), attempt=99)
    assert found == Settled(
        JobState.SCHEDULED, "snoozed", timedelta(minutes=5), counts=False, reason="too early"
    )


def test_cancel_cancels_with_its_reason() -> None:
    assert settled(Cancel("not wanted")) == Settled(JobState.CANCELLED, "cancelled", reason="not wanted")
    assert settled(Cancel()).reason == "cancelled by the task"


def test_discard_goes_to_the_dead_at_once() -> None:
    found = settled(Discard("bad address"))
    assert (found.to, found.what, found.reason) == (JobState.DEAD, "discarded", "bad address")
    assert found.error == Failure("winch.Discard", "bad address")


def test_a_failure_is_tried_again_after_the_policys_delay() -> None:
    assert settled(Failed(ERROR, POLICY)) == Settled(
        JobState.RETRYING, "failed", timedelta(seconds=10), error=ERROR
    )


def test_the_last_attempt_kills_the_job_and_records_why() -> None:
    found = settled(Failed(ERROR, POLICY), attempt=3)
    assert (found.to, found.what, found.error) == (JobState.DEAD, "failed", ERROR)
    assert found.reason == "failed 3 times"


def test_the_end_of_the_total_time_kills_the_job_and_records_why() -> None:
    found = settled(Failed(ERROR, POLICY), age=timedelta(hours=1))
    assert (found.to, found.reason) == (JobState.DEAD, "retry time is over")


def test_an_error_that_is_never_retried_kills_the_job() -> None:
    found = settled(Failed(ERROR, None))
    assert (found.to, found.reason) == (JobState.DEAD, "never retried, by policy")


def test_the_fitting_policy_decides_not_the_tasks() -> None:
    patient = Retry.fixed("1h", attempts=10)
    found = settled(Failed(ERROR, patient), attempt=3)
    assert (found.to, found.delay) == (JobState.RETRYING, timedelta(hours=1))


def test_retry_after_counts_as_a_failure_with_its_own_delay() -> None:
    found = settled(RetryAfter("7m", "busy"))
    assert (found.to, found.delay, found.counts) == (JobState.RETRYING, timedelta(minutes=7), True)
    assert found.error == Failure("winch.RetryAfter", "busy")
    assert settled(RetryAfter("7m"), attempt=3).to is JobState.DEAD


@pytest.mark.parametrize(
    "outcome",
    [Done(), Snooze("1s"), Cancel(), Discard(), Failed(ERROR, POLICY), RetryAfter("1s")],
    ids=lambda outcome: type(outcome).__name__,
)
@pytest.mark.parametrize("attempt", [1, 3])
def test_every_outcome_is_one_that_the_table_allows(outcome: Outcome, attempt: int) -> None:
    found = settled(outcome, attempt)
    assert found.to in TRANSITIONS["finish"][JobState.RUNNING]
    assert found.delay >= timedelta(0)
    assert found.counts or not found.to.is_final


@pytest.mark.parametrize("directive", [RetryAfter, Snooze])
def test_a_directive_refuses_a_bare_number(directive: type[RetryAfter | Snooze]) -> None:
    with pytest.raises(ConfigError, match=f"{directive.__name__} delay"):
        directive(5)  # type: ignore[arg-type]  # what a caller without types may pass


def test_a_policy_on_request_retries_only_what_the_handler_asks_for() -> None:
    policy = Retry.on_request(attempts=2)
    error = ValueError("no")

    def ended(outcome: Outcome, attempt: int) -> Settled:
        return settle(outcome, attempt=attempt, age=timedelta(0), policy=policy, rng=random.Random(1))

    assert ended(Failed(ERROR, policy.for_error(error)), 1).to is JobState.DEAD
    asked = ended(RetryAfter("5s"), 1)
    assert (asked.to, asked.delay) == (JobState.RETRYING, timedelta(seconds=5))
    assert ended(RetryAfter("5s"), 2).to is JobState.DEAD
    assert from_stored(to_stored(policy)).for_error(error) is None

"""The type of a stored failure is a name that can be imported, and the error behind it is kept."""

from __future__ import annotations

from importlib import import_module

import pytest

import winch.errors
from winch import App, Discard, Job, JobState, Retry, RetryAfter
from winch.core.errors import SUSPECT_TYPES
from winch.core.job import Failure
from winch.core.values.fingerprint import fingerprint, trace
from winch.engine.base.failure import describe

TWICE = Retry.fixed("1ms", attempts=2)


def dead(app: App, job: Job[None]) -> Failure:
    while not job.refresh().state.is_final:
        app.run_worker(burst=True)
    assert job.state is JobState.DEAD
    error = job.record.error
    assert error is not None
    return error


def imported(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module or "builtins"), attribute)


@pytest.mark.parametrize("name", winch.errors.__all__)
def test_every_error_is_stored_under_its_public_name(name: str) -> None:
    kind = getattr(winch, name)
    error = kind.__new__(kind)
    assert imported(describe(error).type) is kind
    assert describe(error).type == f"winch.{name}"
    assert describe(error).name == name


def test_deaths_without_an_exception_have_failure_types_too() -> None:
    for name in SUSPECT_TYPES.values():
        assert issubclass(imported(name), winch.WinchError)  # type: ignore[arg-type]


def test_a_public_name_does_not_split_the_groups_of_the_dead() -> None:
    for now, before in {
        "winch.JobCrashed": "crashed",
        "winch.JobRescued": "rescued",
        "winch.JobTimeout": "winch.engine.worker.attempt.JobTimeout",
        "winch.RetryAfter": "RetryAfter",
        "winch.Discard": "Discard",
        "winch.StorageUnavailable": "winch.core.errors.StorageUnavailable",
    }.items():
        assert trace(Failure(now, "m")) == trace(Failure(before, "m"))
    assert fingerprint("t", Failure("shop.X", "m")) != fingerprint("t", Failure("winch.X", "m"))


@pytest.mark.parametrize("way", ["cause", "context"])
@pytest.mark.parametrize("reason", [None, "slow down"])
@pytest.mark.parametrize("kind", [RetryAfter, Discard])
def test_the_error_behind_an_outcome_is_kept(
    way: str, reason: str | None, kind: type[RetryAfter] | type[Discard]
) -> None:
    app = App("memory://")

    def outcome() -> RetryAfter | Discard:
        return RetryAfter("1ms", reason) if kind is RetryAfter else Discard(reason)

    @app.task(retry=TWICE)
    def pay() -> None:
        try:
            raise ConnectionError("the bank is away")
        except ConnectionError as error:
            if way == "cause":
                raise outcome() from error
            raise outcome()  # noqa: B904  # its context is what is looked at

    error = dead(app, pay.enqueue())
    assert error.type == "ConnectionError"
    assert error.message.startswith("the bank is away")
    assert reason is None or reason in error.message
    assert "pay" in (error.traceback or "")


def test_from_none_hides_the_error() -> None:
    app = App("memory://")

    @app.task(retry=TWICE)
    def pay() -> None:
        try:
            raise ConnectionError("the bank is away")
        except ConnectionError:
            raise RetryAfter("1ms", "slow down") from None

    assert dead(app, pay.enqueue()) == Failure("winch.RetryAfter", "slow down")


def test_an_exit_of_the_handler_is_kept_as_it_is() -> None:
    app = App("memory://")

    @app.task(retry=Retry.never())
    def leave() -> None:
        raise SystemExit("enough")

    error = dead(app, leave.enqueue())
    assert (error.type, error.message) == ("SystemExit", "enough")

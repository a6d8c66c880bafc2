"""Sentry: one event for a failed attempt, with the job as context and without its arguments."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Literal

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from winch import App, Cancel, ConfigError, Context, Discard, Retry, RetryAfter, Snooze
from winch.integrations.sentry import Sentry
from winch.testing import virtual

# Not as it stands in this file, whose lines are in the frames.
SECRET = f"{4111}-{1111}"


class Kept(Transport):
    """What would go to Sentry."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        event = envelope.get_event()
        if event is not None:
            self.events.append(dict(event))


@pytest.fixture
def kept() -> Iterator[Kept]:
    kept = Kept()
    sentry_sdk.init("https://key@sentry.invalid/1", transport=kept, default_integrations=False,
                    integrations=[sentry_sdk.integrations.logging.LoggingIntegration()])  # fmt: skip
    yield kept
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(None)


def app_with(**options: Any) -> App:
    app = App("memory://")
    app.use(Sentry(**options))
    return app


def ran(app: App, name: str, *args: Any) -> str:
    with virtual(app) as world:
        job = app.tasks.get(name).enqueue(*args)
        world.run_all()
        return job.id


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_each_failed_attempt_is_one_event_without_arguments(kind: str, kept: Kept) -> None:
    app = app_with()
    retry = Retry.exponential("1s", attempts=3)

    if kind == "plain":

        @app.task(name="pay", queue="money", retry=retry)
        def pay(card: str) -> None:
            held = f"held {card}"
            raise ValueError(f"refused for password={held.split()[1]}")

    else:

        @app.task(name="pay", queue="money", retry=retry)
        async def apay(card: str) -> None:
            held = f"held {card}"
            raise ValueError(f"refused for password={held.split()[1]}")

    job = ran(app, "pay", SECRET)
    assert len(kept.events) == 3
    for number, event in enumerate(kept.events, 1):
        [error] = event["exception"]["values"]
        assert (error["type"], error["value"]) == ("ValueError", "refused for password=***")
        assert error["mechanism"] == {"type": "winch", "handled": False}
        assert event["tags"] == {"winch.task": "pay", "winch.queue": "money", "winch.job_id": job}
        facts = event["contexts"]["winch"]
        assert (facts["job_id"], facts["attempt"]) == (job, number)
        assert (facts["queue"], facts["task"]) == ("money", "pay")
        assert event["extra"]["winch.gives_up"] is (number == 3)
        assert event["transaction"] == "pay"
        assert all("vars" not in frame for frame in error["stacktrace"]["frames"])
    assert SECRET not in str(kept.events)


def test_causes_hold_no_arguments_either(kept: Kept) -> None:
    app = app_with()

    @app.task(name="pay", retry=Retry.never())
    def pay(card: str) -> None:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise RuntimeError("outer") from error

    ran(app, "pay", SECRET)
    [event] = kept.events
    assert [one["type"] for one in event["exception"]["values"]] == ["KeyError", "RuntimeError"]
    assert SECRET not in str(event)


def test_locals_are_sent_only_if_enabled(kept: Kept) -> None:
    app = app_with(with_locals=True)

    @app.task(name="pay", retry=Retry.never())
    def pay(card: str) -> None:
        raise ValueError

    ran(app, "pay", SECRET)
    assert SECRET in str(kept.events)


def test_with_dead_only_the_last_attempt_is_sent(kept: Kept) -> None:
    app = app_with(when="dead")

    @app.task(name="pay", retry=Retry.exponential("1s", attempts=3))
    def pay() -> None:
        raise ValueError

    ran(app, "pay")
    [event] = kept.events
    assert event["contexts"]["winch"]["attempt"] == 3


@pytest.mark.parametrize(
    "raised, when, count",
    [
        (Snooze("1s"), "failed", 0),
        (Cancel("no"), "failed", 0),
        (RetryAfter("1s"), "failed", 1),  # its second and last attempt
        (RetryAfter("1s"), "dead", 1),
        (Discard("no"), "failed", 1),
        (LookupError(), "failed", 0),  # ignored
    ],
    ids=repr,
)
@pytest.mark.parametrize("is_returned", [False, True], ids=["raised", "returned"])
def test_outcomes_that_a_handler_chooses(
    raised: Exception, when: Literal["failed", "dead"], count: int, is_returned: bool, kept: Kept
) -> None:
    app = app_with(when=when, ignore=(LookupError,))
    seen: list[int] = []

    @app.task(name="pay", retry=Retry.exponential("1s", attempts=2))
    def pay(ctx: Context) -> Any:
        seen.append(1)
        if isinstance(raised, Snooze) and len(seen) > 1:
            return None
        if is_returned and not isinstance(raised, LookupError):
            return raised
        raise raised

    ran(app, "pay")
    assert len(kept.events) == count


def test_scopes_of_jobs_do_not_mix_and_their_own_messages_have_the_job(kept: Kept) -> None:
    app = app_with()

    @app.task(name="pay")
    def pay(number: int) -> None:
        sentry_sdk.set_tag("number", str(number))
        logging.getLogger("shop").error("about %d", number)

    with virtual(app) as world:
        jobs = [pay.enqueue(number) for number in range(3)]
        world.run_all()
    found = {event["tags"]["number"]: event["tags"]["winch.job_id"] for event in kept.events}
    assert found == {str(number): job.id for number, job in enumerate(jobs)}


def test_without_a_client_nothing_happens() -> None:
    app = app_with()

    @app.task(name="pay", retry=Retry.never())
    def pay() -> None:
        raise ValueError

    ran(app, "pay")
    with pytest.raises(ConfigError, match="failed, dead"):
        Sentry(when="never")  # type: ignore[arg-type]

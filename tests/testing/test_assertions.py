"""assert_enqueued: what it finds, and its message when it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from winch import App, ConfigError, Context, InvalidPayload
from winch.testing import assert_enqueued, assert_not_enqueued, virtual


class Tasks:
    def __init__(self, app: App) -> None:
        self.app = app

        @app.task(name="send")
        def send(user_id: int, subject: str = "hello", *, ctx: Context | None = None) -> None: ...

        @app.task(name="tally")
        def tally(*numbers: int, queue: str = "x") -> None: ...

        self.send, self.tally = send, tally


@pytest.fixture(params=["virtual", "sqlite"])
def tasks(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    app = App(f"sqlite:///{tmp_path / 'own.db'}")
    if request.param == "virtual":
        with virtual(app):
            yield Tasks(app)
    else:
        yield Tasks(app)
        app.close()


def test_it_finds_what_was_enqueued(tasks: Tasks) -> None:
    send = tasks.send
    job = send.using(queue="mail", delay="1h").enqueue(7)
    [found] = assert_enqueued(send, 7)
    assert found.id == job.id
    assert_enqueued(send)
    assert_enqueued(send, user_id=7, subject="hello")  # the default counts
    assert_enqueued(send, 7, queue="mail", delay="1h")
    assert_enqueued("send", 7, app=tasks.app)
    assert_enqueued(send.using(queue="mail", delay="1h").bind(7))
    assert_not_enqueued(send, 8)
    assert_not_enqueued(send, queue="default")
    assert_not_enqueued(send, delay="2h")
    assert_not_enqueued(send.bind(7, "hello"))  # a bound call is exact
    assert_not_enqueued(tasks.tally)


def test_it_counts(tasks: Tasks) -> None:
    for _ in range(3):
        tasks.send.enqueue(1)
    assert len(assert_enqueued(tasks.send, 1, times=3)) == 3
    assert_enqueued(tasks.send, times=None)
    assert_enqueued(tasks.send, 2, times=0)
    with pytest.raises(
        AssertionError, match=r"send\(user_id=1\) to be enqueued once, but it was 3 times"
    ):
        assert_enqueued(tasks.send, 1)
    with pytest.raises(AssertionError, match="to be enqueued at least once, but it was not"):
        assert_enqueued(tasks.send, 2, times=None)


def test_arguments_named_like_options_go_into_bind(tasks: Tasks) -> None:
    tasks.tally.enqueue(1, 2, queue="y")
    assert_enqueued(tasks.tally.bind(1, 2, queue="y"))
    assert_enqueued(tasks.tally, 1, 2)
    assert_not_enqueued(tasks.tally, 1)


def test_the_message_lists_what_was_enqueued_instead(tasks: Tasks) -> None:
    with pytest.raises(AssertionError) as nothing:
        assert_enqueued(tasks.send, 7, queue="mail", delay="90m")
    assert str(nothing.value) == (
        "expected send(user_id=7) on queue 'mail' with a delay of 1h 30m to be enqueued once, "
        "but it was not; nothing else was enqueued"
    )
    tasks.tally.enqueue(1)
    tasks.send.using(delay="5m").enqueue(8, subject="bye")
    with pytest.raises(AssertionError) as other:
        assert_enqueued(tasks.send, 7)
    assert str(other.value) == (
        "expected send(user_id=7) to be enqueued once, but it was not. What was enqueued besides:\n"
        "  send(user_id=8, subject='bye') on queue 'default', scheduled, delay 5m\n"
        "  tally(numbers=[1]) on queue 'default', ready"
    )
    with pytest.raises(AssertionError) as unwanted:
        assert_not_enqueued(tasks.send, subject="bye")
    assert str(unwanted.value) == (
        "expected send(subject='bye') not to be enqueued, but it was once:\n"
        "  send(user_id=8, subject='bye') on queue 'default', scheduled, delay 5m"
    )


def test_long_lists_are_cut(tasks: Tasks) -> None:
    tasks.app.enqueue_many(tasks.tally.bind(n) for n in range(25))
    with pytest.raises(AssertionError, match=r"ready\n  and 15 more$"):
        assert_enqueued(tasks.send)


def test_wrong_uses_raise_with_a_reason(tasks: Tasks) -> None:
    with pytest.raises(
        InvalidPayload, match=r"unexpected keyword argument 'usr'; options of the assert"
    ):
        assert_enqueued(tasks.send, usr=7)
    with pytest.raises(ConfigError, match=r"needs app=…"):
        assert_enqueued("send")
    with pytest.raises(ConfigError, match="not to both"):
        assert_enqueued(tasks.send.bind(1), 1)
    with pytest.raises(ConfigError, match="expected a task, a bound call"):
        assert_enqueued(print)  # type: ignore[arg-type]

"""enqueue_many writes the next thousand while the store works on one; what goes wrong stays there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.servers import Databases
from winch import App, ConfigError, InvalidPayload
from winch.core.lifecycle import JobState
from winch.engine.client import writer
from winch.engine.client.client import CHUNK
from winch.engine.client.fast_enqueue import FIRST_CHUNK
from winch.engine.tasks.task import Bound, Task
from winch.storage.fast import is_fast
from winch.storage.verbs import Sending, Verb

MANY = 3 * CHUNK + 7


@pytest.fixture
def app() -> Iterator[App]:
    app = App("memory://")
    yield app
    app.close()


def a_task(app: App) -> Task[Any, None]:
    @app.task(name="t")
    def task(n: int) -> None: ...

    return task


def ready_jobs(app: App) -> int:
    [queue] = app.queues.list()
    return queue.counts[JobState.READY]


def test_all_are_stored_in_order_with_an_event_each(app: App) -> None:
    task = a_task(app)
    heard: list[str] = []
    app.on("enqueued", lambda event: heard.append(event.job_id))
    jobs = app.enqueue_many(task.bind(n) for n in range(MANY))
    assert [job.id for job in jobs] == heard == sorted(heard)
    assert len(heard) == MANY
    driver = app.ready()
    found = driver.run(driver.get([jobs[n].id for n in (0, CHUNK, MANY - 1)]))
    assert [job and job.args for job in found] == [f'{{"n":{n}}}' for n in (0, CHUNK, MANY - 1)]


@pytest.mark.skipif(not is_fast(), reason="it is about the fast path itself")
def test_a_call_that_is_wrong_leaves_the_chunks_before_it_stored(app: App) -> None:
    task = a_task(app)

    def calls() -> Iterator[Bound[None]]:
        yield from (task.bind(n) for n in range(2 * CHUNK + 10))
        yield task.bind("no number")

    with pytest.raises(InvalidPayload):
        app.enqueue_many(calls())
    assert ready_jobs(app) == FIRST_CHUNK + CHUNK


class Watched:
    """Notes when a verb is written, sent and answered."""

    def __init__(self, app: App) -> None:
        self.seen: list[str] = []
        self._begin = app.driver.sending
        vars(app.driver)["sending"] = self._sending

    def _sending(self, verb: Verb[Any]) -> Sending[Any]:
        self.seen.append("written")
        inner, seen = self._begin(verb), self.seen

        class Noted:
            def send(self) -> None:
                seen.append("sent")
                inner.send()

            def answer(self) -> Any:
                seen.append("answered")
                return inner.answer()

        return Noted()


@pytest.mark.skipif(not is_fast(), reason="it is about the fast path itself")
def test_a_thousand_is_written_while_the_one_before_it_is_under_way(app: App) -> None:
    task = a_task(app)
    app.enqueue_many([task.bind(0)])  # the store has been looked at
    watched = Watched(app)
    app.enqueue_many(task.bind(n) for n in range(3 * CHUNK))
    each = ["written", "answered", "sent"]
    assert watched.seen == ["written", "sent", *each, *each, *each, "answered"]  # the first one is short


@pytest.mark.servers
@pytest.mark.parametrize("when", ["between", "always"])
def test_a_connection_lost_under_way_is_made_good_with_the_same_ids(
    postgres_server: Databases, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setattr(writer, "ENQUEUE_PAUSES", (0.01, 0.01))
    url = postgres_server.new_store()
    app = App(url)
    task = a_task(app)
    app.enqueue_many([task.bind(-1)])
    outside = psycopg.connect(url.partition("?")[0], autocommit=True)

    def calls() -> Iterator[Bound[None]]:
        for n in range(2 * CHUNK + 1):
            if (n == CHUNK + 1 and when == "between") or (when == "always" and n % CHUNK == 1):
                outside.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname ="
                    " current_database() AND pid <> pg_backend_pid()"
                )
            yield task.bind(n)

    with outside:
        jobs = app.enqueue_many(calls())
        assert len({job.id for job in jobs}) == 2 * CHUNK + 1
        assert ready_jobs(app) == 2 * CHUNK + 2
        for _ in range(20):  # no connection is missing
            task.enqueue(1)
    app.close()


def test_a_transaction_is_that_of_all_calls(app: App) -> None:
    task = a_task(app)
    with pytest.raises(ConfigError, match="the call of t has a conn= of its own"):
        app.enqueue_many([task.bind(1), task.using(conn=object()).bind(2)])
    assert not app.queues.list()

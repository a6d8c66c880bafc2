"""Long queues: what a page shows of them, and where its numbers come from."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
import pytest

import winch.engine.observe.queue_counts as module
from winch import App, JobState
from winch.engine.observe.queue_counts import CAP, counted, read_queues, state_counts, with_sample
from winch.engine.observe.queue_samples import (
    HOURS,
    MINUTES,
    QueueSample,
    Sample,
    lines_of,
    sample_of,
)
from winch.storage.kv_records import KvFilter
from winch.storage.params import QueueInfo

READY = frozenset({JobState.READY})


@pytest.fixture
def app(tmp_path: object) -> Iterator[App]:
    made = App(f"sqlite:///{tmp_path}/winch.db")
    made.migrate()

    @made.task(name="add", queue="long")
    def add(n: int) -> int:
        return n

    yield made
    made.close()


def info(ready: int, *, inexact: frozenset[JobState] = frozenset()) -> QueueInfo:
    return QueueInfo(name="long", counts={JobState.READY: ready}, inexact=inexact)


def test_a_count_shows_whether_it_is_exact() -> None:
    assert counted(info(812), "ready") == "812"
    assert counted(info(CAP), "ready") == "10,000", "ten thousand, and no more"
    assert counted(info(CAP, inexact=READY), "ready") == "10,000+"
    sampled = msgspec.structs.replace(info(70_304, inexact=READY), is_sampled=True)
    assert counted(sampled, "ready") == "~70,304"
    assert counted(info(3), "running") == "0"


def test_a_sample_replaces_only_what_was_not_counted_to_its_end() -> None:
    sample = Sample(
        queues={"long": QueueSample(70_304, 9), "short": QueueSample(50, 1)}, slots=1, busy=1
    )
    short = QueueInfo(name="short", counts={JobState.READY: 2})
    found = {one.name: one for one in with_sample([info(CAP, inexact=READY), short], sample)}
    assert found["long"].counts == {JobState.READY: 70_304}
    assert found["long"].inexact == READY
    assert found["short"] == short
    lower = Sample(queues={"long": QueueSample(4, 0)}, slots=1, busy=1)
    [queue] = with_sample([info(CAP, inexact=READY)], lower)
    assert queue.counts == {JobState.READY: CAP}, "there are as many at least"


def test_a_queue_that_the_count_did_not_come_to_is_in_the_sample() -> None:
    cut = frozenset({JobState.SCHEDULED, JobState.RETRYING})
    sample = Sample(
        queues={"late": QueueSample(0, 0, {JobState.SCHEDULED: 400}), "gone": QueueSample(5, 0)},
        slots=1,
        busy=1,
    )
    found = with_sample([QueueInfo(name="long", counts={}, inexact=cut)], sample)
    assert [(one.name, dict(one.counts)) for one in found] == [
        ("late", {JobState.SCHEDULED: 400}),
        ("long", {}),
    ]


def test_a_page_reads_long_queues_from_the_last_sample(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CAP", 10)
    add, driver, now = app.tasks.get("add"), app.ready(), time.time()
    app.enqueue_many(add.bind(n) for n in range(25))
    [queue] = app.client.run(read_queues(driver, now))
    assert (queue.counts[JobState.READY], queue.inexact) == (10, READY)
    everything: list[QueueInfo] = driver.run(driver.queues())
    driver.run(driver.kv_put(lines_of(sample_of(everything, [], now), now)))
    app.enqueue_many(add.bind(n) for n in range(5))
    [queue] = app.client.run(read_queues(driver, now + 3))
    assert (queue.counts[JobState.READY], queue.inexact) == (25, READY), "as of the sample"
    [queue] = app.client.run(read_queues(driver, now + 3600))
    assert (queue.counts[JobState.READY], queue.inexact) == (10, READY), "too old to count"
    app.enqueue_many(add.using(queue="short").bind(n) for n in range(9))
    _, short = app.client.run(read_queues(driver, now + 3))
    assert (short.counts[JobState.READY], short.inexact) == (9, frozenset())


def test_samples_are_kept_by_minute_and_by_hour(app: App) -> None:
    driver, now = app.ready(), 1_700_000_000.0
    for seconds in (0, 20, 60, 3600):
        sample = Sample(queues={}, slots=seconds, busy=0, at=now + seconds)
        driver.run(driver.kv_put(lines_of(sample, now + seconds)))
    minutes = driver.run(driver.kv_list(KvFilter(book=MINUTES.name)))
    hours = driver.run(driver.kv_list(KvFilter(book=HOURS.name)))
    assert (len(minutes), len(hours)) == (3, 2)
    assert '"slots":60' in hours[0].body, "the last of the hour"


def test_a_count_beyond_the_cap_is_what_queues_and_dead_letters_have() -> None:
    capped = {JobState.READY: CAP, JobState.SCHEDULED: CAP, JobState.COMPLETED: CAP, JobState.DEAD: CAP,
              JobState.RUNNING: 7}  # fmt: skip
    sampled = QueueInfo(
        name="a", counts={JobState.READY: 70_304}, inexact=frozenset({JobState.READY}), is_sampled=True
    )
    exact = QueueInfo(name="b", counts={JobState.READY: 6, JobState.SCHEDULED: 12_000})
    found = state_counts(capped, [sampled, exact], 41_000)
    assert {str(state): count.words() for state, count in found.items() if count.number} == {
        "ready": "~70,310",
        "scheduled": "12,000",
        "running": "7",
        "completed": "10,000+",
        "dead": "41,000",
    }
    unknown = QueueInfo(name="a", counts={JobState.READY: CAP}, inexact=frozenset({JobState.READY}))
    assert state_counts(capped, [unknown], 0)[JobState.READY].words() == "10,000+"

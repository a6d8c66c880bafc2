"""A verb in two halves: sent, and answered later. See fast/sending.py."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from tests.storage.postgres_kit import TERMINATE, Store, new_job
from winch.core.errors import StorageUnavailable, WinchError
from winch.drivers.postgres.driver import PostgresDriver
from winch.drivers.postgres.fast.sending import SentInHalves
from winch.storage.params import Enqueued, NewJob
from winch.storage.verbs import Unhurried

pytestmark = pytest.mark.servers


@pytest.fixture
def store(postgres_url: str) -> Iterator[Store]:
    driver = PostgresDriver.from_url(postgres_url)
    driver.migrate()
    yield Store(driver, postgres_url)
    driver.close()


def halves(store: Store, jobs: list[NewJob]) -> SentInHalves[list[Enqueued]]:
    sending = store.driver.sending(store.driver.enqueue(jobs))
    assert isinstance(sending, SentInHalves)
    return sending


def batch(count: int = 200) -> list[NewJob]:
    return [new_job(args=f'"{"x" * 1000}"') for _ in range(count)]


def stored(store: Store, jobs: list[NewJob]) -> int:
    found = store.driver.run(store.driver.get([job.id for job in jobs]))
    return sum(record is not None for record in found)


def free_places(store: Store) -> int:
    return store.driver._pool._free.qsize()


def test_the_server_stores_a_batch_before_its_answer_is_wanted(store: Store) -> None:
    jobs = batch()
    sending = halves(store, jobs)
    assert stored(store, jobs) == 0
    sending.send()
    deadline = time.monotonic() + 10
    while stored(store, jobs) < len(jobs):
        assert time.monotonic() < deadline, "what was sent is stored without a wait for its answer"
    assert sending.answer() == [Enqueued(job.id, True) for job in jobs]
    assert free_places(store) == 8
    assert len(store.driver._pool._idle) == 2  # one for the batch, one for the looks


def test_without_fast_paths_a_batch_waits_for_its_answer(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINCH_FAST", "off")
    driver = PostgresDriver.from_url(postgres_url)
    driver.migrate()
    assert isinstance(driver.sending(driver.enqueue(batch(2))), Unhurried)
    driver.close()


def test_a_verb_of_several_statements_goes_on_after_the_first(store: Store) -> None:
    [first] = jobs = [new_job(unique_key="k")]
    sending = halves(store, jobs)
    sending.send()
    assert stored(store, jobs) == 0, "the rest of its transaction is sent by its answer"
    assert sending.answer() == [Enqueued(first.id, True)]
    assert stored(store, jobs) == 1


def test_a_verb_that_sends_nothing_has_an_answer(store: Store) -> None:
    sending = halves(store, [])
    sending.send()
    assert sending.answer() == []


def test_an_error_is_raised_by_the_answer_and_its_connection_is_used_again(store: Store) -> None:
    jobs = batch(3)
    store.driver.run(store.driver.enqueue(jobs[:2]))
    sending = halves(store, jobs)
    sending.send()
    with pytest.raises(Exception, match=jobs[0].id) as caught:
        sending.answer()
    assert type(caught.value) is type(refused(store, jobs)), "the same as from the plain path"
    assert stored(store, jobs[2:]) == 0
    assert free_places(store) == 8
    assert len(store.driver._pool._idle) == 1


def refused(store: Store, jobs: list[NewJob]) -> Exception:
    with pytest.raises(Exception, match=jobs[0].id) as caught:
        store.driver.run(store.driver.enqueue(jobs))
    return caught.value


def test_a_connection_that_is_lost_between_the_halves_leaves_the_outcome_open(store: Store) -> None:
    jobs = batch()
    with psycopg.connect(store.url) as other:
        other.execute("LOCK TABLE winch.job IN ACCESS EXCLUSIVE MODE")
        sending = halves(store, jobs)
        sending.send()
        other.execute(TERMINATE)
        with pytest.raises(StorageUnavailable) as caught:
            sending.answer()
    assert caught.value.maybe_applied
    assert free_places(store) == 8
    assert store.driver._pool._idle == []
    answers = store.driver.run(store.driver.enqueue(jobs, is_repeat=True))
    assert answers == [Enqueued(job.id, True) for job in jobs]


def test_a_server_that_cannot_be_reached_is_met_by_the_answer(store: Store) -> None:
    driver = PostgresDriver.from_url("postgresql://winch@127.0.0.1:9/none?timeout=1s")
    sending = driver.sending(driver.enqueue(batch(2)))
    sending.send()
    with pytest.raises(StorageUnavailable) as caught:
        sending.answer()
    assert not caught.value.maybe_applied
    driver.close()


def test_the_last_place_of_the_pool_is_left_to_others(postgres_url: str) -> None:
    """Between the halves runs the caller's own code, which may enqueue: two threads in it must not wait
    for each other."""
    driver = PostgresDriver.from_url(f"{postgres_url}?pool=2&timeout=5s")
    driver.migrate()
    store = Store(driver, postgres_url)
    batches = [batch(2) for _ in range(2)]
    written = [halves(store, jobs) for jobs in batches]
    for one in written:
        one.send()
    assert [one._link is not None for one in written] == [True, False]
    single = new_job()
    began = time.monotonic()
    assert driver.run(driver.enqueue([single])) == [Enqueued(single.id, True)]
    assert time.monotonic() - began < 4, "there was a place for it"
    for one, jobs in zip(written, batches, strict=True):
        assert one.answer() == [Enqueued(job.id, True) for job in jobs]
    assert free_places(store) == 2
    driver.close()


def test_the_time_limit_begins_when_the_answer_is_wanted(store: Store) -> None:
    hasty = Store(PostgresDriver.from_url(f"{store.url}?timeout=1s"))
    hasty.driver.run(hasty.driver.enqueue(batch(2)))  # prepares the statement before the table is locked
    jobs = batch(2)
    with psycopg.connect(store.url) as other:
        other.execute("LOCK TABLE winch.job IN ACCESS EXCLUSIVE MODE")
        sending = halves(hasty, jobs)
        sending.send()
        time.sleep(1.3)
        soon = threading.Timer(0.2, other.commit)
        soon.start()
        assert sending.answer() == [Enqueued(job.id, True) for job in jobs]
        soon.join()
    hasty.driver.close()


def test_a_server_that_does_not_answer_in_time_leaves_the_outcome_open(store: Store) -> None:
    hasty = Store(PostgresDriver.from_url(f"{store.url}?timeout=1s"))
    with psycopg.connect(store.url) as other:
        other.execute("LOCK TABLE winch.job IN ACCESS EXCLUSIVE MODE")
        sending = halves(hasty, batch(2))
        sending.send()
        with pytest.raises(StorageUnavailable) as caught:
            sending.answer()
    assert caught.value.maybe_applied
    assert free_places(hasty) == 8
    assert hasty.driver._pool._idle == []
    hasty.driver.close()


def test_an_interrupt_while_it_is_sent_gives_its_place_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    store.add()
    sending = halves(store, batch(2))
    monkeypatch.setattr("winch.drivers.postgres.connections.libpq.send", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sending.send()
    assert free_places(store) == 8
    assert store.driver._pool._idle == []


def test_a_forked_child_leaves_what_was_sent_to_its_parent(store: Store) -> None:
    jobs = batch(2)
    sending = halves(store, jobs)
    sending.send()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            sending.answer()  # on a connection of its own, where the ids are taken
        except WinchError:
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert sending.answer() == [Enqueued(job.id, True) for job in jobs]


def test_threads_send_and_answer_at_once(store: Store) -> None:
    """More threads than places: each of them gets its answers."""
    answers: dict[int, int] = {}

    def work(number: int) -> None:
        count = 0
        for _ in range(5):
            jobs = batch(20)
            sending = halves(store, jobs)
            sending.send()
            store.add()
            count += len(sending.answer())
        answers[number] = count

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == dict.fromkeys(range(12), 100)
    assert free_places(store) == 8

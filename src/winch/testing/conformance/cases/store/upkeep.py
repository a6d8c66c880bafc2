"""A driver as an object: its runners, its schema, its end."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from winch.core.lifecycle import JobState
from winch.storage.params import JobFilter
from winch.storage.verbs import Verb
from winch.testing.conformance.bench import Bench
from winch.testing.conformance.case import case


@case()
def a_verb_is_only_a_value_until_it_is_run(bench: Bench) -> None:
    new = bench.new_job()
    verb = bench.driver.enqueue([new], now=bench.now)
    assert verb.name == "enqueue"
    assert bench.find(new.id) == [None]
    bench.call(verb)
    assert bench.get(new.id).state is JobState.READY


@case()
def reading_verbs_say_that_they_read(bench: Bench) -> None:
    driver = bench.driver
    reads: list[Verb[Any]] = [
        driver.get([]),
        driver.list_jobs(JobFilter()),
        driver.counts(),
        driver.queues(),
        driver.sessions(),
        driver.explain(bench.new_id()),
        driver.events(),
        driver.cancels([]),
    ]
    assert all(verb.is_read for verb in reads)
    writes: list[Verb[Any]] = [
        driver.enqueue([]),
        driver.rescue(),
        driver.promote(),
        driver.prune(),
        driver.beat([]),
    ]
    assert not any(verb.is_read for verb in writes)


@case()
def many_callers_at_once_are_all_served(bench: Bench) -> None:
    jobs = bench.new_jobs(40)
    bench.together([bench.driver.enqueue([job], now=bench.now) for job in jobs])
    assert bench.counts()[JobState.READY] == 40


@case()
def the_sync_and_the_async_door_lead_to_the_same_store(bench: Bench) -> None:
    a, b = bench.new_jobs(2)
    bench.driver.run(bench.driver.enqueue([a], now=bench.now))
    bench.run(bench.driver.arun(bench.driver.enqueue([b], now=bench.now)))
    ids = [a.id, b.id]
    assert bench.driver.run(bench.driver.get(ids)) == bench.run(bench.driver.arun(bench.driver.get(ids)))
    bench.jobs(ids)


@case()
async def the_event_loop_goes_on_while_verbs_run(bench: Bench) -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    for _ in range(5):
        await bench.driver.arun(bench.driver.enqueue([bench.new_job()]))
        await asyncio.sleep(0)
    turning.cancel()
    assert turns >= 5


@case()
def a_closed_driver_opens_again_when_used(bench: Bench) -> None:
    first = bench.driver
    if not first.capabilities.is_durable:
        bench.add()
        first.close()
        bench.add()
        return
    job_id = bench.add()
    first.close()
    assert bench.get(job_id).state is JobState.READY
    bench.run(first.aclose())
    bench.add()
    assert bench.counts()[JobState.READY] == 2


@case()
def a_fresh_store_has_the_newest_schema(bench: Bench) -> None:
    status = bench.driver.check_schema()
    assert status.is_ready
    assert status.current == status.newest


@case()
def migrating_an_up_to_date_store_changes_nothing(bench: Bench) -> None:
    job_id = bench.add()
    assert bench.driver.migrate() == []
    assert bench.get(job_id).state is JobState.READY
    assert isinstance(bench.driver.migration_sql(), str)


@case()
def migrating_makes_a_store_ready_step_by_step(bench: Bench) -> None:
    with bench.target.blank() as driver:
        status = driver.check_schema()
        assert driver.check_schema().current == status.current  # looking changes nothing
        text = driver.migration_sql()
        if not status.is_ready:
            assert text
            assert driver.migrate()
        assert driver.check_schema().is_ready
        assert driver.migrate() == []
        driver.run(driver.enqueue([bench.new_job()]))


@case()
def two_may_migrate_at_once(bench: Bench) -> None:
    with bench.target.blank() as driver, ThreadPoolExecutor(2) as threads:
        one, other = threads.map(lambda migrate: migrate(), [driver.migrate] * 2)
        assert not set(one) & set(other), "each step is taken once"
        assert driver.check_schema().is_ready


@case(needs="migrates_itself")
def a_store_without_a_schema_gets_it_at_first_use(bench: Bench) -> None:
    with bench.target.blank() as driver:
        new = bench.new_job()
        if bench.mode == "sync":
            driver.run(driver.enqueue([new]))
        else:
            bench.run(driver.arun(driver.enqueue([new])))
        assert driver.run(driver.counts())[JobState.READY] == 1
        assert driver.check_schema().is_ready
        bench.run(driver.aclose())


@case()
def a_driver_names_itself_without_secrets(bench: Bench) -> None:
    assert bench.driver.name == bench.driver.name.lower()
    text = bench.driver.describe()
    assert text
    if bench.driver.capabilities.shares_processes:
        password = urlsplit(bench.target.address().url).password
        assert password is None or password not in text

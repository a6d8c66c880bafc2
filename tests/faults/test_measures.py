"""What the worker promises in numbers: one statement per heartbeat, and a start within 10 ms."""

from __future__ import annotations

import statistics
import time
from collections.abc import Generator
from typing import Any
from urllib.parse import urlsplit

import pytest

from lab.history import read
from lab.history.lines import Replied, Sent
from lab.proxy import Proxy
from tests.faults.stage import STORES, Stage
from tests.servers import Databases
from winch.core.values.ids import random_id
from winch.storage.params import ClaimParams, NewSession
from winch.storage.verbs import Verb

pytestmark = [pytest.mark.servers, pytest.mark.faults]

ROUNDS = 50


def count_steps(verb: Verb[Any]) -> tuple[Verb[Any], list[object]]:
    """The same verb, and the list of what it sends once it is run."""
    sent: list[object] = []

    def steps() -> Generator[Any, Any, Any]:
        running = verb.steps()
        answer: Any = None
        while True:
            try:
                step = running.send(answer)
            except StopIteration as stop:
                return stop.value
            sent.append(step)
            answer = yield step

    return Verb(verb.name, steps, verb.is_read), sent


@pytest.mark.parametrize("running", [1, 1000])
@pytest.mark.parametrize("store", STORES)
def test_a_beat_is_one_statement_whatever_runs(
    store: str, running: int, postgres_server: Databases
) -> None:
    with Stage("statements per beat", store, postgres_server, events="off") as stage:
        app, driver = stage.app, stage.app.driver
        sessions = [random_id(bytes([n] * 16)) for n in (1, 2)]
        for session in sessions:
            new = NewSession(
                id=session, worker="w", host="h", pid=1, release="", queues=("default",),
                tasks=("quick",), slots=running, lease=app.settings.lease,
            )  # fmt: skip
            driver.run(driver.start_session(new))
        app.enqueue_many([app.tasks.get("quick").bind(n) for n in range(running)])
        token = random_id(bytes(range(16)))
        params = ClaimParams(session=sessions[0], token=token, queues=("default",), limit=running)
        assert len(driver.run(driver.claim(params))) == running
        verb, sent = count_steps(driver.beat(sessions))
        began = time.monotonic()
        pulses = driver.run(verb)
        took = time.monotonic() - began
        assert [pulse.is_live for pulse in pulses] == [True, True]
        assert len(sent) == 1
        stage.measured(f"{len(sent)} with 2 sessions and {running} running jobs, {took * 1000:.1f} ms")


def test_a_supervisor_beats_in_one_statement_per_beat(postgres_server: Databases) -> None:
    """Counted on the wire, for a real worker with two children and with 1 and 1,000 running jobs."""
    with Stage("statements per beat, on the wire", "postgres", postgres_server, events="off") as stage:
        parts = urlsplit(stage.url)
        assert parts.hostname is not None
        with Proxy((parts.hostname, parts.port or 5432)) as proxy:
            worker = stage.fleet.worker(
                concurrency=600, processes=2, env={"WINCH_URL": proxy.url(stage.url)}
            )
            stage.ready(worker, 2)
            for jobs in (1, 999):
                calls = [stage.app.tasks.get("aslow").bind(8.0) for _ in range(jobs)]
                started = len(stage.runs())
                stage.app.enqueue_many(calls)
                stage.until(lambda: len(stage.runs()) == started + jobs, 20, "the jobs")  # noqa: B023
                before, seen = _beats(stage), len(proxy.seen(BEAT))
                stage.until(lambda: min(_beats(stage)) >= min(before) + 5, 10, "5 beats")  # noqa: B023
                after = _beats(stage)
                statements = len(proxy.seen(BEAT)) - seen
                beats = max(after) - max(before)
                # The last beat may be on its way.
                assert beats - 1 <= statements <= beats + 1
                stage.measured(
                    f"{statements} statements for {beats} beats of 2 sessions, {len(stage.runs())} jobs"
                )


# Not the sweep, which shortens leases that are too long.
BEAT = r"update \S+\.session\s+set lease_until.*beats = beats \+ 1"


def _beats(stage: Stage) -> list[int]:
    return [session.beats for session in stage.sessions() if session.ended_at is None]


@pytest.mark.parametrize("store", STORES)
def test_an_idle_worker_starts_a_job_within_ten_milliseconds(
    store: str, postgres_server: Databases
) -> None:
    with Stage("enqueue to start, idle worker", store, postgres_server, events="off") as stage:
        stage.worker(concurrency=4)
        # Whatever else the machine does only adds to it, so the best of a few rounds is the answer.
        median = 1.0
        for _ in range(3):
            waits, whole = _starts(stage)
            median = statistics.median(waits)
            stage.measured(
                f"median {median * 1000:.1f} ms after enqueue returned, "
                f"{statistics.median(whole) * 1000:.1f} ms after it was called; "
                f"worst {max(waits) * 1000:.1f} ms after it returned"
            )
            if median < 0.010:
                return
        raise AssertionError(f"the median of {ROUNDS} was {median * 1000:.1f} ms")


def _starts(stage: Stage) -> tuple[list[float], list[float]]:
    """How long after enqueue returned, and after it was called, each of some jobs started."""
    jobs = []
    for number in range(ROUNDS):
        [job] = stage.enqueue("quick", number)
        time.sleep(0.06)  # looking would take the processor away from the one that is measured
        stage.until(lambda: bool(stage.ends(job)), 10, "the job's end")  # noqa: B023
        jobs.append(job)
    lines = read(stage.recorder.folder)
    sent = {line.ids[0]: line.mono for line in lines if isinstance(line, Sent)}
    replied = {line.ids[0]: line.mono for line in lines if isinstance(line, Replied)}
    runs = [line for line in stage.runs() if line.job in jobs]
    assert len(runs) == ROUNDS
    waits = [max(line.mono - replied[line.job], 0.0) for line in runs]
    return waits, [line.mono - sent[line.job] for line in runs]

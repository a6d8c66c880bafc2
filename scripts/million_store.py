"""A store with very many jobs, as a shop has it after some weeks: for `million.py` and its pictures.

Of a million jobs 60 % are ready in eight queues, 30 % have completed, 5 % are scheduled, 2 % wait to be
retried, 2 % belong to 500 tenants, and 1 % have died of 200 causes. Some wait at a limit or hold a
unique key. Beside them are what pages read: the roll-ups of four workers for a day of minutes and a
month of hours, flows, batches, schedules, and an audit.

Jobs go through the store's own verbs. The roll-ups are written as workers would have written them.
"""

from __future__ import annotations

import random
import sys
import time
from datetime import timedelta
from typing import Any
from uuid import uuid4

import msgspec

import winch
from winch import App, Limit, Retry
from winch.core.job import Claim, Failure
from winch.core.lifecycle import JobState
from winch.engine.observe.queue_samples import QueueSample, Sample, lines_of
from winch.engine.observe.throughput import HOUR, MINUTE, Span, TaskRate
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.params import ClaimParams, Finish, NewSession

BATCH = 10_000
QUEUES = tuple(f"q{number}" for number in range(8))
TENANTS = 500
CAUSES = 200
KEYS = 1000
WORKERS = 4
FLOWS = 40
BATCHES = 10
SCHEDULES = 30
MARK = "million"
TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/shop/tasks.py", line {line}, in charge
    gateway.charge(order)
  File "/srv/shop/shop/gateway.py", line 118, in charge
    answer = self._client.post("/v1/charges", json=body)
shop.errors.Declined{cause}: the issuer declined
"""


def declare(app: App) -> dict[str, Any]:
    """The tasks of the shop."""

    @app.task(name="shop.add", queue="q0", retry=Retry.fixed("1m", attempts=3))
    def add(n: int, user: str = "") -> int:
        return n

    @app.task(name="shop.charge", queue="q0", search=["order_id"], retry=Retry.fixed("1m", attempts=3))
    def charge(order_id: int, user: str = "") -> int:
        return order_id

    @app.task(name="shop.limited", queue="q8", limit=Limit(5, key="user"))
    def limited(n: int, user: str = "") -> int:
        return n

    return {"add": add, "charge": charge, "limited": limited}


def stored(app: App) -> int:
    """How many jobs an earlier run has put into the store; 0 where it is not complete."""
    driver = app.ready()
    found = driver.run(driver.kv_list(KvFilter(book=MARK)))
    return int(found[0].body) if found else 0


def fill(app: App, tasks: dict[str, Any], wanted: int) -> None:
    """Fill an empty store; a store that this has filled before is kept as it is."""
    if stored(app):
        return
    began = time.monotonic()
    driver = app.ready()
    dead, completed, retrying = wanted // 100, wanted * 3 // 10, wanted // 50
    ends = dead + completed + retrying
    _enqueue(app, tasks, range(ends), "past")
    _log(f"{ends:,} jobs to be run", began)
    _run(app, dead, completed, retrying)
    _log(f"{ends:,} jobs run", began)
    _flows(app, tasks)
    _enqueue(app, tasks, range(ends, wanted - wanted // 20 - wanted // 50), None)
    _log("ready jobs stored", began)
    for start in range(0, wanted // 20, BATCH):
        call = tasks["add"].using(queue=QUEUES[start // BATCH % 8], delay="30d")
        app.enqueue_many(call.bind(n) for n in range(start, min(start + BATCH, wanted // 20)))
    calls = [tasks["add"].using(queue="q9", tenant=f"tenant-{n:03}") for n in range(TENANTS)]
    for start in range(0, wanted // 50, BATCH):
        app.enqueue_many(
            calls[(n * n) % TENANTS].bind(n) for n in range(start, min(start + BATCH, wanted // 50))
        )
    app.enqueue_many(tasks["add"].using(queue="q9", unique=f"key-{n}").bind(n) for n in range(KEYS))
    app.enqueue_many(tasks["limited"].bind(n, user=f"user-{n % 20}") for n in range(KEYS))
    _beside(app)
    books = _books(time.time())
    for start in range(0, len(books), 200):
        driver.run(driver.kv_put(books[start : start + 200]))
    driver.run(driver.kv_put([KvRecord(book=MARK, key="jobs", body=str(wanted))]))
    _log(f"stored {wanted:,} jobs", began)


def _log(text: str, began: float) -> None:
    sys.stderr.write(f"{text} after {time.monotonic() - began:.0f} s\n")


def _enqueue(app: App, tasks: dict[str, Any], numbers: range, queue: str | None) -> None:
    for start in range(numbers.start, numbers.stop, BATCH):
        block = start // BATCH
        task = tasks["charge"] if block % 5 == 0 else tasks["add"]
        call = task.using(queue=queue or QUEUES[block % 8])
        end = min(start + BATCH, numbers.stop)
        app.enqueue_many(call.bind(n, f"user-{n % 1000}") for n in range(start, end))


def _run(app: App, dead: int, completed: int, retrying: int) -> None:
    """Run jobs of the queue `past`: some die, each of one of the causes, some are to be retried."""
    driver = app.driver
    session = NewSession(
        id=str(uuid4()), worker="filler", host="here", pid=1, release="", queues=("past",),
        tasks=("shop.add", "shop.charge"), slots=1, lease=timedelta(hours=1),
    )  # fmt: skip
    driver.run(driver.start_session(session))
    number = 0
    while True:
        token = str(uuid4())
        claims: list[Claim] = driver.run(
            driver.claim(ClaimParams(session=session.id, token=token, queues=("past",), limit=500))
        )
        if not claims:
            break
        done = []
        for claim in claims:
            number += 1
            if number <= dead:
                end = _failed(claim, number, JobState.DEAD)
            elif number <= dead + retrying:
                end = _failed(claim, number, JobState.RETRYING)
            else:
                end = Finish(
                    id=claim.id, token=claim.token, to=JobState.COMPLETED, what="completed", result="1"
                )
            done.append(end)
        driver.run(driver.finish(done))
    driver.run(driver.end_session(session.id))


def _failed(claim: Claim, number: int, to: JobState) -> Finish:
    cause = (number * number) % CAUSES
    text = TRACEBACK.format(line=cause, cause=cause)
    error = Failure(f"shop.errors.Declined{cause}", "the issuer declined", text)
    is_dead = to is JobState.DEAD
    return Finish(
        id=claim.id, token=claim.token, to=to, what="failed", error=error, log="order loaded",
        delay=timedelta(0) if is_dead else timedelta(days=20),
        reason="out of attempts" if is_dead else None,
    )  # fmt: skip


def _flows(app: App, tasks: dict[str, Any]) -> None:
    """Flows and batches; most of the jobs are stored after them."""
    for number in range(FLOWS):
        made = winch.flow(f"import {number}")
        first = [made.add(tasks["add"].bind(n)) for n in range(8)]
        made.add(tasks["add"].bind(number), after=first)
        made.enqueue()
    for number in range(BATCHES):
        with winch.batch(f"mailing {number}", on_complete=tasks["add"].bind(number)) as mailing:
            mailing.enqueue(*[tasks["add"].bind(n) for n in range(20)])


def _beside(app: App) -> None:
    """Schedules, limits, sessions, and an audit of what was done."""
    for number in range(SCHEDULES):
        app.schedules.add(f"report {number}", task="shop.add", cron=f"{number} 2 * * *", args={"n": 1})
    for number in range(60):
        app.queues.pause(f"q{number % 4 + 20}", reason=f"deploy {number}")
        app.queues.resume(f"q{number % 4 + 20}")
    app.limits.set("limit:shop.limited", 5)
    driver = app.driver
    for number in range(WORKERS):
        session = NewSession(
            id=f"00000000-0000-4000-8000-{number:012}", worker=f"worker-{number}", host="10.0.0.1",
            pid=2000 + number, release="1.0.0", queues=(*QUEUES, "q8", "q9"),
            tasks=("shop.add", "shop.charge", "shop.limited"), slots=16, lease=timedelta(days=2),
        )  # fmt: skip
        driver.run(driver.start_session(session))
        params = ClaimParams(
            session=session.id, token=str(uuid4()), queues=QUEUES[number:], limit=16, tasks=session.tasks
        )
        driver.run(driver.claim(params))


def _books(now: float) -> list[KvRecord]:
    """The roll-ups of the workers, for as long as they are kept, and the samples of the queues."""
    dice = random.Random(7)  # noqa: S311  # for show
    lines = []
    for span, count in ((MINUTE, 26 * 60), (HOUR, 35 * 24)):
        last = int(now) // span.seconds
        for number in range(last - count + 1, last + 1):
            lines += [_rates(dice, span, number, worker) for worker in range(WORKERS)]
    for ago in range(35 * 24 * 60, 0, -1):
        if ago > 26 * 60 and ago % 60:
            continue  # minutes are kept for a day, hours for a month
        at = now - 60 * ago
        sample = Sample(
            queues={queue: QueueSample(70_000 + dice.randint(0, 9000), 8) for queue in QUEUES},
            slots=16 * WORKERS,
            busy=dice.randint(20, 60),
            at=at,
        )
        lines += lines_of(sample, at)
    return lines


def _rates(dice: random.Random, span: Span, number: int, worker: int) -> KvRecord:
    """What one worker did in one minute or hour."""
    rates: dict[str, dict[str, TaskRate]] = {}
    for queue in QUEUES:
        for task in ("shop.add", "shop.charge"):
            ended = dice.randint(20, 60) * span.seconds // 60
            bad = ended // 40
            rates.setdefault(queue, {})[task] = TaskRate(
                completed=ended - bad, failed=bad - bad // 5, dead=bad // 5, enqueued=ended,
                run={4: ended // 2, 6: ended - ended // 2}, wait={5: ended // 2, 8: ended - ended // 2},
                run_seconds=ended * 0.05, wait_seconds=ended * 0.3,
                tenants={f"tenant-{n:03}": (ended // 9, ended * 0.03) for n in range(6)},
            )  # fmt: skip
    body = msgspec.json.encode(rates).decode()
    key = f"{number:010}-worker-{worker}"
    return KvRecord(book=span.book, key=key, body=body, keep=span.keep)

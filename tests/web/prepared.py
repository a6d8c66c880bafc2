"""A store as an operator finds it on a bad day: a shop with an hour of work behind it.

Jobs are enqueued, claimed, failed and completed through the store, as workers do it; the roll-ups and
the samples of the hour before are written as workers and servers would have written them. Three things
are wrong: charges die of a declined card, one queue has no worker, and one waits for too long.
"""

from __future__ import annotations

import asyncio
import math
import random
import secrets
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from winch import App, Retry
from winch.core.job import Claim, Failure
from winch.core.lifecycle import JobState
from winch.engine.observe.queue_samples import HOURS, MINUTES, QueueSample, Sample
from winch.engine.observe.throughput import BOUNDS, HOUR, MINUTE, Span, TaskRate
from winch.storage.kv_records import KvRecord
from winch.storage.params import ClaimParams, Finish, NewSession

# queue: (task, jobs a minute, seconds of a run, ready now)
SHOP = {
    "payments": ("billing.charge", 1180, 0.4, 90),
    "mail": ("mail.send_receipt", 1402, 0.08, 30),
    "media": ("media.transcode", 96, 6.0, 12),
    "reports": ("reports.nightly", 12, 9.0, 4),
    "search": ("search.reindex", 640, 0.12, 3),
    "media-gpu": ("media.upscale", 0, 0.0, 14),
}
WORKERS = (
    ("pay-1", "10.2.0.11", ("payments",), 12),
    ("pay-2", "10.2.0.12", ("payments",), 12),
    ("mail-1", "10.2.0.21", ("mail", "search"), 16),
    ("media-1", "10.2.0.31", ("media",), 16),
    ("reports-1", "10.2.0.41", ("reports", "default"), 12),
)
DECLINED = "issuer did not answer within 10 s"
ERRORS = (
    ("payments", "billing.charge", "shop.billing.errors.CardDeclined", DECLINED, 24),
    ("mail", "mail.send_receipt", "smtplib.SMTPServerBusy", "421 too many connections", 6),
    ("reports", "reports.nightly", "KeyError", "'vat_id'", 3),
)  # fmt: skip
TRACEBACK = """Traceback (most recent call last):
  File "/srv/venv/lib/python3.12/site-packages/winch/engine/attempt/execution.py", line 96, in call
    return await self._fn(*args, **kwargs)
  File "/srv/shop/shop/billing/tasks.py", line 84, in charge
    receipt = gateway.charge(order.amount, token, idempotency_key=ctx.job.id)
  File "/srv/shop/shop/billing/gateway.py", line 118, in charge
    answer = self._client.post("/v1/charges", json=body)
  File "/srv/venv/lib/python3.12/site-packages/httpx/_client.py", line 1144, in post
    return self.request("POST", url, json=json)
  File "/srv/venv/lib/python3.12/site-packages/httpx/_client.py", line 825, in request
    return self.send(request)
  File "/srv/venv/lib/python3.12/site-packages/httpcore/_sync/http11.py", line 217, in read
    raise ReadTimeout(message)
httpx.ReadTimeout: timed out

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/srv/shop/shop/billing/tasks.py", line 84, in charge
    receipt = gateway.charge(order.amount, token, idempotency_key=ctx.job.id)
  File "/srv/shop/shop/billing/gateway.py", line 131, in charge
    raise CardDeclined("issuer did not answer within 10 s") from error
shop.billing.errors.CardDeclined: issuer did not answer within 10 s
"""


def _place(seconds: float) -> int:
    return next((n for n, bound in enumerate(BOUNDS) if seconds <= bound), len(BOUNDS))


def _rate(dice: random.Random, queue: str, minute: int, per_minute: float) -> TaskRate:
    """One minute of one task. From minute 40 on the provider of the charges answers late."""
    _, _, took, _ = SHOP[queue]
    number = int(per_minute * dice.uniform(0.9, 1.1) * (1 + 0.08 * math.sin(minute / 6)))
    is_bad = queue == "payments" and minute >= 40
    failed = int(number * (0.18 if is_bad and minute < 54 else 0.01))
    dead = dice.randint(0, 3) if is_bad else 0
    waits = 0.02 if not is_bad else 1.5 * (minute - 39)
    return TaskRate(
        completed=number - failed,
        failed=failed,
        dead=dead,
        enqueued=int(number * 1.08) if is_bad else number,
        run={_place(took): int(number * 0.8), _place(took * 4): number - int(number * 0.8)},
        wait={_place(waits): int(number * 0.9), _place(waits * 3): number - int(number * 0.9)},
        run_seconds=number * took,
        wait_seconds=number * waits,
        tenants={
            "acme": (number // 2, number // 2 * waits),
            "globex": (number // 3, number // 3 * waits),
        },
        spent={"acme": number // 2 * took, "globex": number // 3 * took},
    )


def books(now: float) -> list[KvRecord]:
    """The roll-ups and samples of the last hour, and the roll-ups of the day."""
    dice = random.Random(7)  # for show
    last = int(now) // 60
    lines = []
    for ago in range(60):
        minute, number = 59 - ago, last - ago
        samples = {}
        for queue, (_, per_minute, took, ready) in SHOP.items():
            waiting = int(per_minute * 0.05 * dice.uniform(0.7, 1.3)) or ready
            if queue == "payments":
                waiting = int(40 * dice.uniform(0.8, 1.2) + max(0, minute - 40) * 45)
            samples[queue] = QueueSample(waiting, min(int(per_minute / 60 * took) + 1, 20))
        slots = 84 if minute < 53 else 68
        sample = Sample(
            queues=samples,
            slots=slots,
            busy=min(slots, int(44 + 6 * math.sin(minute / 5) + max(0, minute - 40))),
        )
        body = msgspec.json.encode(sample).decode()
        lines += [
            KvRecord(book=MINUTES.name, key=f"{number:010}", body=body, keep=MINUTES.keep),
            KvRecord(book=HOURS.name, key=f"{number // 60:010}", body=body, keep=HOURS.keep),
        ]
        lines += _lines(dice, minute, MINUTE, number)
    hour = int(now) // 3600
    for ago in range(24):
        lines += _lines(dice, 45 if ago < 1 else 0, HOUR, hour - ago, deaths=ago % 7 == 3)
    return lines


def _lines(
    dice: random.Random, minute: int, span: Span, number: int, *, deaths: bool = False
) -> list[KvRecord]:
    """What each worker has done in one span of time, as it writes it."""
    lines = []
    for place, (worker, _, queues, _) in enumerate(WORKERS):
        rates = {}
        for queue, (task, per_minute, _, _) in SHOP.items():
            if per_minute and queue in queues:
                workers = sum(queue in served for _, _, served, _ in WORKERS)
                rates[queue] = {
                    task: _rate(dice, queue, minute, per_minute * span.seconds / 60 / workers)
                }
                if deaths and queue == "mail":
                    rates[queue][task].dead = 2
        lines.append(
            KvRecord(
                book=span.book,
                key=f"{number:010}-{place:016x}-{worker}",
                body=msgspec.json.encode(rates).decode(),
                keep=span.keep,
            )
        )
    return lines


def tasks_of(app: App) -> dict[str, Any]:
    """The tasks of the shop, known to this process so that arguments can be checked."""

    @app.task(name="billing.charge", queue="payments", retry=Retry.exponential("30s", attempts=8))
    def charge(order_id: int, amount: float, currency: str = "EUR", card_token: str = "") -> float:
        return amount

    @app.task(name="mail.send_receipt", queue="mail", retry=Retry.fixed("1m", attempts=3))
    def send_receipt(order_id: int, to: str = "") -> str:
        return to

    @app.task(name="media.transcode", queue="media")
    def transcode(video: str) -> str:
        return video

    @app.task(name="media.upscale", queue="media-gpu")
    def upscale(video: str) -> str:
        return video

    @app.task(name="reports.nightly", queue="reports")
    def nightly(day: str) -> str:
        return day

    @app.task(name="search.reindex", queue="search")
    def reindex(sku: int) -> int:
        return sku

    return {"payments": charge, "mail": send_receipt, "media": transcode, "media-gpu": upscale,
            "reports": nightly, "search": reindex}  # fmt: skip


ARGS: dict[str, Any] = {
    "payments": lambda n: {"order_id": 48000 + n, "amount": 9.5 + n % 90, "card_token": "tok"},
    "mail": lambda n: {"order_id": 48000 + n, "to": f"customer{n}@shop.example"},
    "media": lambda n: {"video": f"lookbook-{n}.mov"},
    "media-gpu": lambda n: {"video": f"unboxing-{n}-4k.mov"},
    "reports": lambda n: {"day": f"2026-11-{1 + n % 28:02}"},
    "search": lambda n: {"sku": 88000 + n},
}  # fmt: skip
TENANTS = ("acme", "globex", "initech", "umbrella", "hooli")


def prepare(app: App, *, late: timedelta = timedelta(minutes=4, seconds=12)) -> dict[str, str]:
    """Fill a store; returns the ids of some jobs by what became of them."""
    own = App(app.settings.url)

    async def run() -> dict[str, str]:
        try:
            return await _prepare(own, late)
        finally:
            await own.aclose()

    with ThreadPoolExecutor(1) as other:  # a browser's driver may have a loop in this thread
        return other.submit(asyncio.run, run()).result()


async def _prepare(app: App, late: timedelta) -> dict[str, str]:
    driver = await asyncio.to_thread(app.ready)
    tasks = tasks_of(app)
    ids: dict[str, str] = {}

    async def enqueue(queue: str, count: int, **more: Any) -> list[str]:
        found = []
        for n in range(count):
            given = {"tenant": TENANTS[n % 5], **more}
            job = await tasks[queue].using(**given).aenqueue(**ARGS[queue](n))
            found.append(job.id)
        return found

    sessions = {}
    for number, (worker, host, queues, slots) in enumerate(WORKERS):
        session = NewSession(
            id=f"00000000-0000-4000-8000-{number:012}", worker=worker, host=host, pid=2000 + number,
            release="1.0.4", queues=queues, tasks=tuple(task.name for task in tasks.values()),
            slots=slots, lease=timedelta(hours=8),
        )  # fmt: skip
        await driver.arun(driver.start_session(session))
        sessions[worker] = session
    by_queue: dict[str, list[NewSession]] = {}
    for worker, _, queues, _ in WORKERS:
        for queue in queues:
            by_queue.setdefault(queue, []).append(sessions[worker])

    async def claim(queue: str, count: int, place: int = 0) -> list[Claim]:
        one = by_queue[queue][place]
        params = ClaimParams(
            session=one.id, token=secrets.token_hex(16), queues=(queue,), limit=count, tasks=one.tasks
        )
        found: list[Claim] = await driver.arun(driver.claim(params))
        return found

    async def finish(claims: list[Claim], to: JobState, what: str, **more: Any) -> None:
        done = [Finish(id=one.id, token=one.token, to=to, what=what, **more) for one in claims]
        for answer in await driver.arun(driver.finish(done)):
            assert answer is not None

    for queue, name, kind, message, count in ERRORS:
        failure = Failure(kind, message, TRACEBACK if name == "billing.charge" else None)
        await enqueue(queue, count)
        claims = await claim(queue, count)
        log = "order loaded, 2 lines\nPOST https://api.gateway.example/v1\nWARNING no answer for 5 s"
        await finish(claims, JobState.DEAD, "failed", error=failure, log=log, reason="out of attempts")
        ids.setdefault("dead", claims[0].id)
        await enqueue(queue, 3)
        waiting = await claim(queue, 3)
        delay = timedelta(seconds=95)
        await finish(waiting, JobState.RETRYING, "failed", error=failure, log=log, delay=delay)
        ids.setdefault("retrying", waiting[0].id)
    for queue in ("search", "mail", "payments", "media"):
        found = await enqueue(queue, 12)
        await finish(await claim(queue, 12), JobState.COMPLETED, "completed", result='{"ok":true}')
        ids.setdefault("completed", found[0])
    for queue, count in (("payments", 24), ("mail", 9), ("media", 14), ("reports", 4)):
        found = await enqueue(queue, count)
        for place in range(len(by_queue[queue])):
            await claim(queue, count // len(by_queue[queue]), place)
        ids.setdefault("running", found[0])
    ids["scheduled"] = (await enqueue("reports", 2, delay="47m"))[0]
    cancelled = (await enqueue("mail", 1))[0]
    await app.jobs.acancel(cancelled, reason="a duplicate order")
    began = datetime.now(UTC) - late
    for queue, (_, _, _, count) in SHOP.items():
        more: dict[str, Any] = {}
        if queue == "payments":
            more["run_at"] = began
        elif queue == "media-gpu":
            more["run_at"] = began - timedelta(minutes=18)
        found = await enqueue(queue, count, **more)
        ids.setdefault("ready", found[-1])
    app.schedules.add("nightly report", task="reports.nightly", cron="0 2 * * *", args={"day": "today"})
    await driver.arun(driver.kv_put(books(time.time())))
    return ids


# -- the day before ----------------------------------------------------------------------------------


async def _die(app: App, count: int) -> None:
    """As many charges die as the gateway's errors made them die today."""
    driver = await asyncio.to_thread(app.ready)
    charge = tasks_of(app)["payments"]
    for n in range(count):
        given = ARGS["payments"](1000 + n)
        await charge.using(tenant=TENANTS[n % 5]).aenqueue(**given)
    session = NewSession(
        id="00000000-0000-4000-8000-000000000100", worker="pay-0", host="10.2.0.10", pid=1999,
        release="1.0.3", queues=("payments",), tasks=(charge.name,), slots=count,
        lease=timedelta(minutes=1),
    )  # fmt: skip
    await driver.arun(driver.start_session(session))
    params = ClaimParams(
        session=session.id, token="yesterday", queues=("payments",), limit=count, tasks=session.tasks
    )
    claims = await driver.arun(driver.claim(params))
    failure = Failure(ERRORS[0][2], ERRORS[0][3], TRACEBACK)
    done = [
        Finish(id=one.id, token=one.token, to=JobState.DEAD, what="failed", error=failure,
               reason="out of attempts")
        for one in claims
    ]  # fmt: skip
    for answer in await driver.arun(driver.finish(done)):
        assert answer is not None
    await driver.arun(driver.end_session(session.id))
    await app.aclose()


if __name__ == "__main__":  # under a clock that shows the day before
    asyncio.run(_die(App(sys.argv[1]), int(sys.argv[2])))

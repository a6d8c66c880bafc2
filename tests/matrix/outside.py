"""Runs the jobs of some queues outside of Winch's workers: posted to a URL that answers, or fetched by
clients of Faktory. Their handlers note what the others note."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any

from tests.engine.push_kit import SECRET, Answer, Delivery, Receiver, receiving
from tests.matrix.trial import WORK, Trial
from tests.web.faktory_kit import Client, gateway
from winch import App

# Jobs that such clients run at once.
FETCHING = 8


@contextmanager
def posted(trials: Mapping[str, Trial]) -> Iterator[Receiver]:
    """A receiver that runs the jobs of these trials, by the name of their task."""

    def answer(delivery: Delivery) -> Answer:
        job = delivery.body
        trial = trials[job["task"]]
        before = job["args"].get("before", job["input"])
        number = before if isinstance(before, int) else job["args"].get("n", 0)
        ctx = _context(job["id"], job["attempt"], job["token"])
        try:
            with trial.noted("call", number, ctx):
                time.sleep(WORK)
                trial.pair.feature.misbehave(number, ctx)
        except ConnectionError:
            return Answer(500)
        trial.outside.add(job["id"])
        return Answer()

    with receiving() as receiver:
        receiver.answer = answer
        yield receiver


def push(app: App, queues: tuple[str, ...], receiver: Receiver) -> None:
    for queue in queues:
        app.push(queue, url=receiver.url, secret=SECRET, allow_private=True)


@asynccontextmanager
async def fetched(app: App, queues: tuple[str, ...], trials: Mapping[str, Trial]) -> AsyncIterator[None]:
    """Clients of Faktory that fetch the jobs of these queues."""

    async def work(client: Client) -> None:
        while True:
            job = await client.fetch(*queues)
            if job is not None:
                await _fetched(app, client, trials[job["jobtype"]], job)

    async with gateway(app) as port:
        clients = [Client(port, wid="matrix") for _ in range(FETCHING)]
        for client in clients:
            await client.__aenter__()
        workers = [asyncio.create_task(work(client)) for client in clients]
        try:
            yield
        finally:
            for worker in workers:
                worker.cancel()
            ended = await asyncio.gather(*workers, return_exceptions=True)
            for client in clients:
                await client.__aexit__()
            for one in ended:
                if isinstance(one, Exception):
                    raise one


async def _fetched(app: App, client: Client, trial: Trial, job: dict[str, Any]) -> None:
    numbers = [one for one in job["args"] if isinstance(one, int)]
    number = numbers[0] if numbers else 0
    record = (await app.jobs.aget(job["jid"])).record
    ctx = _context(record.id, record.attempt, record.token)
    try:
        with trial.noted("call", number, ctx):
            await asyncio.sleep(WORK)
            trial.pair.feature.misbehave(number, ctx)
    except ConnectionError as error:
        await client.say("FAIL", {"jid": job["jid"], "errtype": "Away", "message": str(error)})
        return
    trial.outside.add(record.id)
    await client.say("ACK", {"jid": job["jid"]})


def _context(job_id: str, attempt: int, token: str | None) -> Any:
    """What the recorder and a feature read of a context."""
    return SimpleNamespace(job_id=job_id, attempt=attempt, _claim=SimpleNamespace(token=token))

"""Another process on the same store.

python -m winch.testing.conformance.peer URL SCHEMA enqueue COUNT    store jobs, print their ids
python -m winch.testing.conformance.peer URL SCHEMA drain LIMIT      claim until nothing is left
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from datetime import timedelta

import msgspec

from winch.core.values.ids import job_id, random_id
from winch.drivers.connect import connect
from winch.storage.params import ClaimParams, NewJob, NewSession
from winch.storage.protocol import Driver
from winch.testing.conformance.target import WallClock


def enqueue(driver: Driver, count: int) -> list[str]:
    jobs = [
        NewJob(
            id=job_id(time.time_ns() * 4096 // 1_000_000, secrets.token_bytes(8)),
            task="mail.send",
            args="{}",
        )
        for _ in range(count)
    ]
    return [stored.id for stored in driver.run(driver.enqueue(jobs))]


def drain(driver: Driver, limit: int) -> list[str]:
    session = NewSession(
        id=random_id(secrets.token_bytes(16)),
        worker="peer",
        host="host-2",
        pid=os.getpid(),
        release="1.2.3",
        queues=("default",),
        tasks=("mail.send",),
        slots=limit,
        lease=timedelta(minutes=5),
    )
    driver.run(driver.start_session(session))
    ids: list[str] = []
    while True:
        token = random_id(secrets.token_bytes(16))
        params = ClaimParams(session=session.id, token=token, queues=("default",), limit=limit)
        taken = driver.run(driver.claim(params))
        if not taken:
            return ids
        ids += [claim.id for claim in taken]


def main(url: str, schema: str, what: str, number: str) -> None:
    driver = connect(url, clock=WallClock(), schema=schema or None)
    ids = enqueue(driver, int(number)) if what == "enqueue" else drain(driver, int(number))
    driver.close()
    sys.stdout.write(msgspec.json.encode(ids).decode())


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Counts the attempts that ended with their process or worker, and the jobs that died of it.

The store decides what becomes of such a job, so the counts come from the job as the store has it
afterwards. They are numbers for people: where the store is out of reach just then, they are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from winch.core.errors import StorageError
from winch.core.lifecycle import JobState
from winch.engine.base.log import log
from winch.engine.observe.throughput import Tally
from winch.engine.tasks.events import Events
from winch.storage.protocol import Driver

# A record holds the job's arguments, which may be large.
BATCH = 50


async def count_store_ends(
    driver: Driver,
    tally: Tally,
    events: Events | None,
    *,
    lost: Sequence[str] = (),
    dead: Sequence[str] = (),
) -> None:
    """Count the attempts of the `lost` jobs, and every job of `dead` that the store has ended as dead.

    `lost`: nothing else has counted the end of the attempt. Subscribers hear of each of them and of
    each death.
    """
    ids, attempts = list(dict.fromkeys([*lost, *dead])), set(lost)
    for start in range(0, len(ids), BATCH):
        try:
            records = await driver.arun(driver.get(ids[start : start + BATCH]))
        except StorageError as error:
            log.warning("the ends of %d jobs are not in the metrics: %s", len(ids) - start, error)
            return
        for record in records:
            if record is None:
                continue
            if record.id in attempts:
                tally.lost(record)
                if events is not None:
                    events.send("rescued", record, error=record.error, reason=record.reason)
            if record.state is JobState.DEAD and record.id in dead:
                tally.died(record)
                if events is not None:
                    events.send("dead", record, error=record.error, reason=record.reason)

"""Taking unique keys, for `enqueue` and for `retry`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from winch.core.errors import StorageUnavailable
from winch.core.lifecycle import JobState
from winch.drivers.postgres.statements import Body
from winch.drivers.postgres.verbs.base import Base
from winch.storage.decide.unique import Holder

# How often a unique key is tried for whose holder ends whenever it is looked for.
KEY_LOOKS = 20


def take_keys(
    base: Base, wanted: Mapping[str, str], replacing: Collection[str] = ()
) -> Body[dict[str, Holder]]:
    """Take the unique keys for these jobs; returns the holders of the keys that are not free.

    All keys are taken before any job row is locked: a transaction that frees a key holds its job's row,
    and waits for no key. The holders of keys that are `replacing` are locked as they are.
    """
    held: dict[str, Holder] = {}
    left = dict(wanted)
    for _ in range(KEY_LOOKS):
        if not left:
            return held
        order = list(left)
        rows = yield base.statement("enqueue.keys", keys=order, jobs=[left[key] for key in order])
        for row in rows:
            del left[row[0]]
        if not left:
            return held
        stale = []
        for key, job_id, state in (yield base.statement("enqueue.holders", keys=list(left))):
            if state is None:
                stale.append(key)
            else:
                held[key] = Holder(job_id, JobState(state))
                del left[key]
        if stale:
            yield base.statement("enqueue.unkey", keys=stale)
        locking = {held[key].id: key for key in replacing if key in held and key not in left}
        if locking:
            rows = yield base.statement("enqueue.lock", ids=list(locking))
            states = {(row[0], row[2]): JobState(row[1]) for row in rows}
            for job_id, key in locking.items():
                if (job_id, key) in states:
                    held[key] = Holder(job_id, states[job_id, key])
                else:  # it ended while we waited for it, or lost its key to another
                    del held[key]
                    left[key] = wanted[key]
    raise StorageUnavailable(
        f"unique keys change hands faster than they can be read: {', '.join(sorted(left))}"
    )

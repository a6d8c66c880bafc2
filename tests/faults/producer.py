"""Enqueues as fast as it can until it is killed, and prints the id before each call.

python -m tests.faults.producer SEED
"""

from __future__ import annotations

import os
import random
import sys

from lab.history import Recorder
from tests.faults.apps import make
from winch.core.errors import EnqueueUncertain, StorageUnavailable
from winch.core.values.ids import random_id


def main(seed: str) -> None:
    recorder = Recorder.from_env()
    assert recorder is not None
    rng = random.Random(seed)
    app = make()
    quick, slow = app.tasks.get("quick"), app.tasks.get("slow")
    while True:
        # Several in one call: all of them are stored, or none.
        ids = [random_id(os.urandom(16)) for _ in range(rng.choice([1, 1, 1, 5]))]
        call = recorder.sent(ids)
        try:
            calls = [
                slow.using(id=drawn).bind(0.1) if rng.random() < 0.1 else quick.using(id=drawn).bind(1)
                for drawn in ids
            ]
            jobs = app.enqueue_many(calls)
        except EnqueueUncertain:
            recorder.replied(call, "unknown", ids)
        except StorageUnavailable as error:
            recorder.replied(call, "unknown" if error.maybe_applied else "failed", ids)
        else:
            recorder.replied(call, "acked", [job.id for job in jobs], [job.is_new for job in jobs])


if __name__ == "__main__":
    main(sys.argv[1])

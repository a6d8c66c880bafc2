"""Enqueues as fast as it can until it is killed, saying before each call which id it will use.

python -m tests.faults.producer SEED
"""

from __future__ import annotations

import os
import random
import sys

from tests.faults.apps import make
from winch.core.errors import EnqueueUncertain, StorageUnavailable
from winch.core.ids import random_id
from winch.testing.history import Recorder


def main(seed: str) -> None:
    recorder = Recorder.from_env()
    assert recorder is not None
    rng = random.Random(seed)
    app = make()
    quick = app.tasks.get("quick")
    while True:
        # Several in one call: all of them are stored, or none.
        ids = [random_id(os.urandom(16)) for _ in range(rng.choice([1, 1, 1, 5]))]
        call = recorder.sent(ids)
        try:
            jobs = app.enqueue_many([quick.using(id=drawn).bind(1) for drawn in ids])
        except EnqueueUncertain:
            recorder.told(call, "unknown", ids)
        except StorageUnavailable as error:
            recorder.told(call, "unknown" if error.maybe_applied else "failed", ids)
        else:
            recorder.told(call, "acked", [job.id for job in jobs], [job.is_new for job in jobs])


if __name__ == "__main__":
    main(sys.argv[1])

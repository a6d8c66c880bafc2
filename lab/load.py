"""The standard load: a producer that enqueues jobs of every kind, evenly over some seconds.

    python -m lab.load SEED COUNT SECONDS

With LAB_LOAD=gated it is the load of gates: three times as many jobs, most of them short and under
limits, rates, FIFO keys and tenants, so that workers claim them ahead.

It notes the ids before each call and the answer after it. A call without an answer is repeated
with the same ids. Load that the store cannot carry is left out.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from lab.app import PLAIN, LabApp, make
from lab.history import Recorder
from lab.http_worker import QUEUE as HTTP
from winch import batch
from winch.core.errors import EnqueueUncertain, StorageError
from winch.core.values.ids import random_id
from winch.storage.protocol import Driver

PRODUCERS = 2
JOBS = 250
SECONDS = 15.0
WORKERS, SLOTS = 3, 2
SHORTEST, LONGEST = 0.02, 0.2
TRIES = 5
KEYS = 4
# The load of gates.
IS_GATED = os.environ.get("LAB_LOAD") == "gated"
GATED_TIMES = 3
BRIEF = (0.0, 0.01)


class Producer:
    """Draws what to enqueue from its seed; ids come from the system, so that runs never share one."""

    def __init__(self, app: LabApp, recorder: Recorder, seed: str) -> None:
        self.app = app
        self.recorder = recorder
        self.rng = random.Random(seed)
        self.kinds: dict[Callable[[], int], int] = {self.plain: 20, self.later: 8, self.unique: 10}
        self.kinds |= {self.unnamed: 30}
        self.kinds |= {self.one("fail_then_ok"): 6, self.remote: 6}
        self.kinds |= {self.fifo: 12, self.limited: 10, self.batch: 3}
        if patiently(app).capabilities.joins_transactions:
            self.kinds |= {self.once: 10}
        if IS_GATED:
            self.kinds = {self.plain: 5, self.unnamed: 10, self.one("fail_then_ok"): 3}
            self.kinds |= {self.limited: 2, self.gated("wide"): 15, self.gated("rated"): 10}
            self.kinds |= {self.keyed: 20, self.short_fifo: 25, self.of_tenant: 15, self.both: 5}

    def run(self, count: int, seconds: float) -> None:
        if IS_GATED:
            count *= GATED_TIMES
        began, made = time.monotonic(), 0
        while made < count:
            [kind] = self.rng.choices(list(self.kinds), list(self.kinds.values()))
            made += kind()
            due = began + seconds * made / count
            time.sleep(max(due - time.monotonic(), 0))

    # -- kinds: each returns how many jobs it asked for ---------------------------------------------

    def plain(self) -> int:
        return self._call(self.rng.choice(PLAIN), self._length())

    def unnamed(self) -> int:
        """One whose id Winch draws, as for most callers: it may be handed over to a waiting worker."""
        notary = self.app.notary
        assert notary is not None
        notary.drawn.clear()
        call = os.urandom(8).hex()
        try:
            job = self.app.tasks.get(self.rng.choice(PLAIN)).enqueue(self._length())
        except (StorageError, EnqueueUncertain) as error:
            unknown = isinstance(error, EnqueueUncertain) or getattr(error, "maybe_applied", False)
            self.recorder.replied(call, "unknown" if unknown else "failed", notary.drawn)
            time.sleep(0.5)  # as callers do; a server that shuts down must not be stormed
        else:
            self.recorder.replied(call, "acked", [job.id], [job.is_new])
        return 1

    def one(self, task: str) -> Callable[[], int]:
        return lambda: self._call(task)

    def later(self) -> int:
        return self._call("slow", self._length(), delay=f"{self.rng.randrange(50, 2000)}ms")

    def unique(self) -> int:
        return self._call("slow", self._length(), unique=f"key:{self.rng.randrange(KEYS)}")

    def fifo(self) -> int:
        return self._call("slow", self._length() / 2, fifo=f"acct:{self.rng.randrange(KEYS)}")

    def limited(self) -> int:
        return self._call("limited", self._length())

    # -- the load of gates ---------------------------------------------------------------------------

    def gated(self, task: str) -> Callable[[], int]:
        return lambda: self._call(task, self.rng.uniform(*BRIEF))

    def keyed(self) -> int:
        return self._call("keyed", self.rng.uniform(*BRIEF), self.rng.randrange(KEYS))

    def short_fifo(self) -> int:
        key = f"short:{self.rng.randrange(3 * KEYS)}"
        return self._call("aslow", self.rng.uniform(*BRIEF), fifo=key)

    def both(self) -> int:
        """A turn and a permit."""
        return self._call("wide", self.rng.uniform(*BRIEF), fifo=f"both:{self.rng.randrange(KEYS)}")

    def of_tenant(self) -> int:
        tenant = f"tenant:{self.rng.randrange(3 * KEYS)}"
        return self._call("aslow", self.rng.uniform(*BRIEF), tenant=tenant)

    # ------------------------------------------------------------------------------------------------

    def remote(self) -> int:
        return self._call("remote", self._length(), queue=HTTP)

    def once(self) -> int:
        return self._call(self.rng.choice(["once", "aonce"]), self._length())

    def batch(self) -> int:
        """Members and a callback, in one block. An unknown outcome stays so: the next ids are new."""
        lengths = [self._length() for _ in range(self.rng.randrange(0, 4))]
        notary = self.app.notary
        assert notary is not None
        notary.drawn.clear()
        task, done = self.app.tasks.get("slow"), self.app.tasks.get("all_done")
        call = os.urandom(8).hex()
        try:
            with batch("lab", on_complete=done.bind()) as members:
                for length in lengths:
                    members.enqueue(task.bind(length))
        except (StorageError, EnqueueUncertain):
            self.recorder.replied(call, "unknown", notary.drawn)
        else:
            self.recorder.replied(call, "acked", notary.drawn)
        return 1 + len(lengths)

    def _length(self) -> float:
        return self.rng.uniform(SHORTEST, LONGEST)

    def _call(self, task: str, *args: object, **using: Any) -> int:
        drawn = random_id(os.urandom(16))
        for number in range(TRIES):
            if number:
                time.sleep(0.5)
            if self._try(drawn, task, args, using):
                break
        return 1

    def _try(self, drawn: str, task: str, args: tuple[object, ...], using: dict[str, Any]) -> bool:
        call = self.recorder.sent([drawn])
        try:
            job = self.app.tasks.get(task).using(id=drawn, **using).enqueue(*args)
        except (StorageError, EnqueueUncertain) as error:
            unknown = isinstance(error, EnqueueUncertain) or getattr(error, "maybe_applied", False)
            self.recorder.replied(call, "unknown" if unknown else "failed", [drawn])
            return False
        if job.id == drawn:
            self.recorder.replied(call, "acked", [job.id], [job.is_new])
        else:  # its unique key was taken: nothing was stored
            self.recorder.replied(call, "failed", [drawn])
        return True


def patiently(app: LabApp) -> Driver:
    """The driver, once the store can be reached: the faults may have begun."""
    while True:
        try:
            return app.ready()
        except StorageError:
            time.sleep(0.5)


def main(seed: str, count: str, seconds: str) -> None:
    recorder = Recorder.from_env()
    assert recorder is not None
    app = make(recorder=recorder)
    Producer(app, recorder, seed).run(int(count), float(seconds))
    app.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

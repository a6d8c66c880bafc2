"""What a worker process uses: CPU, memory, and how late its event loop is. A worker writes this into the
store every ten seconds, one small record for each process, and pages read it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from winch.engine.base.operation import Operation
from winch.engine.base.service import Service
from winch.engine.client.quiet import BOOK
from winch.storage.kv_records import KvFilter, KvRecord
from winch.storage.protocol import Driver

EVERY = 10.0
KEPT = timedelta(minutes=2)
# How long the loop is asked to sleep when its lag is measured.
NAP = 0.02
# So many readings are kept: the last ten minutes.
MOST_READINGS = 60
MIB = 1 << 20
# A leak is told from a start by so many readings, and from noise by so many MiB.
LEAST_READINGS, LEAST_GROWTH = 6, 48
_STATM = Path("/proc/self/statm")


def resident_memory() -> int:
    """The resident set in bytes; without /proc the peak, because the system reports nothing else."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


@dataclass(frozen=True)
class Growth:
    """The memory of a process at two times, in bytes, and the seconds between them."""

    start: int
    now: int
    seconds: float


class ProcessUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What one process uses. `cpu` is a share of one processor: 1.0 is all of it. `lag` is how late the
    event loop was, in seconds. `history` has the last shares of the processor and `memories` the last
    sizes in MiB, oldest first.
    """

    cpu: float
    memory: int
    max_memory: int | None = None
    lag: float = 0.0
    is_quiet: bool = False
    at: datetime
    history: tuple[float, ...] = ()
    memories: tuple[int, ...] = ()

    @property
    def growth(self) -> Growth | None:
        """How its memory grows, if it grows as that of a leak does: by much, and on and on."""
        for count in (MOST_READINGS, 2 * LEAST_READINGS, LEAST_READINGS):
            sizes = self.memories[-count:]
            if len(sizes) < LEAST_READINGS:
                return None
            rises = sum(after > before for before, after in itertools.pairwise(sizes))
            is_much = sizes[-1] - sizes[0] >= max(LEAST_GROWTH, sizes[0] // 2)
            if is_much and 3 * rises >= 2 * (len(sizes) - 1):
                return Growth(sizes[0] * MIB, sizes[-1] * MIB, EVERY * (len(sizes) - 1))
        return None


class UsageWriter(Service):
    """Writes what this process uses."""

    name = "usage"
    is_vital = False

    def __init__(
        self,
        driver: Driver,
        session: Callable[[], str],
        max_memory: int | None,
        is_quiet: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._driver = driver
        self._session = session
        self._max_memory = max_memory
        self._is_quiet = is_quiet
        self._used = time.process_time()
        self._looked = time.perf_counter()
        self._history: list[float] = []
        self._memories: list[int] = []

    async def run_once(self) -> float:
        began = time.perf_counter()
        await asyncio.sleep(NAP)
        lag = max(0.0, time.perf_counter() - began - NAP)
        used, now = time.process_time(), time.perf_counter()
        cpu = (used - self._used) / max(now - self._looked, 1e-3)
        self._used, self._looked = used, now
        self._history = [*self._history, round(cpu, 3)][-MOST_READINGS:]
        memory = resident_memory()
        self._memories = [*self._memories, memory // MIB][-MOST_READINGS:]
        usage = ProcessUsage(
            cpu=round(cpu, 3),
            memory=memory,
            max_memory=self._max_memory,
            lag=round(lag, 4),
            is_quiet=self._is_quiet(),
            at=datetime.now(UTC),
            history=tuple(self._history),
            memories=tuple(self._memories),
        )
        body = msgspec.json.encode(usage).decode()
        record = KvRecord(book=BOOK, key=self._session(), body=body, keep=KEPT)
        await self._driver.arun(self._driver.kv_put([record]))
        return EVERY


def read_usage(driver: Driver) -> Operation[dict[str, ProcessUsage]]:
    """What the processes use, by session."""
    found: dict[str, ProcessUsage] = {}
    after: str | None = None
    while True:
        lines: list[KvRecord] = yield driver.kv_list(KvFilter(book=BOOK, after=after))
        for line in lines:
            try:
                found[line.key] = msgspec.json.decode(line.body, type=ProcessUsage)
            except msgspec.DecodeError:
                continue  # of another release
        if len(lines) < 1000:
            return found
        after = lines[-1].key

"""A page of shared memory between a child and its supervisor: which jobs have started, and a pulse.

The child writes, the supervisor reads; neither waits for the other, and it can still be read after
the child was killed. That is what makes it possible to blame a crash on the jobs that were running
and on no others, and to end a child whose event loop is blocked past a job's deadline.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass

from winch.storage.params import ClaimRef

_HEADER = struct.Struct("=d")  # when the child's loop last turned (monotonic, shared by processes)
_SLOT = struct.Struct("=B7xd36s36s")  # mark, hard deadline (0: none), job id, token
_BODY = struct.Struct("=d36s36s")
_BODY_AT = _SLOT.size - _BODY.size
# What a slot's mark says. KEPT: nobody else may have the job, but it does not run in this process: it
# runs in one of its own, or it has ended and the store does not know yet.
_FREE, _RUNS, _KEPT = range(3)


@dataclass(frozen=True, slots=True)
class Started:
    """One job that was running when the board was read."""

    claim: ClaimRef
    deadline: float


class Board:
    """`slots` places for running jobs. Create it in the supervisor, open it by fd in the child."""

    def __init__(self, fd: int, slots: int) -> None:
        self.fd = fd
        self.slots = slots
        self._map = mmap.mmap(fd, _HEADER.size + slots * _SLOT.size)
        self._at = [_HEADER.size + slot * _SLOT.size for slot in range(slots)]

    @classmethod
    def create(cls, slots: int) -> Board:
        fd = _anonymous_file()
        os.ftruncate(fd, _HEADER.size + slots * _SLOT.size)
        return cls(fd, slots)

    def start(
        self, slot: int, claim_id: str, token: str, deadline: float | None, *, is_here: bool = True
    ) -> None:
        """Note that a job starts in this slot (`is_here`: in this process). The mark is written last."""
        at = self._at[slot]
        _BODY.pack_into(self._map, at + _BODY_AT, deadline or 0.0, claim_id.encode(), token.encode())
        self._map[at] = _RUNS if is_here else _KEPT

    def ended(self, slot: int) -> None:
        """The job has ended; the store is about to be told."""
        self._map[self._at[slot]] = _KEPT

    def free(self, slots: Iterable[int]) -> None:
        places, at = self._map, self._at
        for slot in slots:
            places[at[slot]] = _FREE

    def pulse(self) -> None:
        _HEADER.pack_into(self._map, 0, time.monotonic())

    @property
    def last_pulse(self) -> float:
        value: float = _HEADER.unpack_from(self._map, 0)[0]
        return value

    def started(self) -> list[Started]:
        """The jobs that run in the child's own process."""
        return [started for mark, started in self._taken() if mark == _RUNS]

    def kept(self) -> set[ClaimRef]:
        """All claims that the child has started, wherever, and that have not been written as ended."""
        return {started.claim for _, started in self._taken()}

    def _taken(self) -> list[tuple[int, Started]]:
        found = []
        for at in self._at:
            if mark := self._map[at]:
                _, deadline, job, token = _SLOT.unpack_from(self._map, at)
                claim = ClaimRef(job.decode(), token.decode())
                found.append((mark, Started(claim, deadline)))
        return found

    def close(self) -> None:
        self._map.close()
        os.close(self.fd)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("winch-board", os.MFD_CLOEXEC)
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())

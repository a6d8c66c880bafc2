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
import uuid
from dataclasses import dataclass

from winch.storage.params import ClaimRef

_HEADER = struct.Struct("=d")  # when the child's loop last turned (monotonic, shared by processes)
_SLOT = struct.Struct("=B7x16s16sd")  # taken?, job id, token, hard deadline (0: none)
_FREE = bytes(_SLOT.size)


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

    @classmethod
    def create(cls, slots: int) -> Board:
        fd = _anonymous_file()
        os.ftruncate(fd, _HEADER.size + slots * _SLOT.size)
        return cls(fd, slots)

    def start(self, slot: int, claim_id: str, token: str, deadline: float | None) -> None:
        """Note that a job starts in this slot. The taken mark is written last."""
        at = _HEADER.size + slot * _SLOT.size
        packed = _SLOT.pack(1, _bytes(claim_id), _bytes(token), deadline or 0.0)
        self._map[at + 1 : at + _SLOT.size] = packed[1:]
        self._map[at] = 1

    def end(self, slot: int) -> None:
        self._map[_HEADER.size + slot * _SLOT.size] = 0

    def pulse(self) -> None:
        _HEADER.pack_into(self._map, 0, time.monotonic())

    @property
    def last_pulse(self) -> float:
        value: float = _HEADER.unpack_from(self._map, 0)[0]
        return value

    def started(self) -> list[Started]:
        found = []
        for at in range(_HEADER.size, _HEADER.size + self.slots * _SLOT.size, _SLOT.size):
            if self._map[at]:
                _, job, token, deadline = _SLOT.unpack_from(self._map, at)
                claim = ClaimRef(str(uuid.UUID(bytes=job)), str(uuid.UUID(bytes=token)))
                found.append(Started(claim, deadline))
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


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("-", ""))

"""Which jobs a child has started, on a page of shared memory between it and its supervisor, and a pulse.

The child writes, the supervisor reads; neither waits for the other, and the page can still be read after
the child was killed. So a crash is blamed on the jobs that were running and on no others, and the
supervisor can end a child whose event loop is blocked past a job's deadline.

A job's place on the page stays taken until the store knows of the job's end. Should the child stand
still between a handler's end and the answer to its finish, the supervisor must not take the job for one
that has not started, and release it. A worker without a supervisor has no page."""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from winch.storage.params import ClaimRef, Finish

_HEADER = struct.Struct("=d")  # when the child's loop last turned (monotonic, shared by processes)
_SLOT = struct.Struct("=B7xd36s36s")  # mark, hard deadline (0: none), job id, token
_BODY = struct.Struct("=d36s36s")
_BODY_AT = _SLOT.size - _BODY.size
# A slot's mark. KEPT: no other worker may have the job, but it does not run in this process: it
# runs in one of its own, or it has ended and the store does not know yet.
_FREE, _RUNS, _KEPT = range(3)


@dataclass(frozen=True, slots=True)
class StartedJob:
    """One job that was running when the page was read."""

    claim: ClaimRef
    deadline: float


class StartedJobs:
    """`slots` places for running jobs. Create it in the supervisor, open it by fd in the child."""

    def __init__(self, fd: int, slots: int) -> None:
        self.fd = fd
        self.slots = slots
        self._map = mmap.mmap(fd, _HEADER.size + slots * _SLOT.size)
        self._at = [_HEADER.size + slot * _SLOT.size for slot in range(slots)]

    @classmethod
    def create(cls, slots: int) -> StartedJobs:
        fd = anonymous_file("winch-started")
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
        """The job has ended; the store does not know yet."""
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

    def started(self) -> list[StartedJob]:
        """The jobs that run in the child's own process."""
        return [started for mark, started in self._taken() if mark == _RUNS]

    def kept(self) -> set[ClaimRef]:
        """All claims that the child has started, wherever, and that have not been written as ended."""
        return {started.claim for _, started in self._taken()}

    def _taken(self) -> list[tuple[int, StartedJob]]:
        found = []
        for at in self._at:
            if mark := self._map[at]:
                _, deadline, job, token = _SLOT.unpack_from(self._map, at)
                claim = ClaimRef(job.decode(), token.decode())
                found.append((mark, StartedJob(claim, deadline)))
        return found

    def close(self) -> None:
        self._map.close()
        os.close(self.fd)


class StartedPlaces:
    """The places of one child's jobs on its page, by job and token. `kill_after`: the supervisor kills a
    child blocked for twice that past a job's last moment."""

    def __init__(self, page: StartedJobs, kill_after: float) -> None:
        self._page = page
        self._kill_after = kill_after
        self._free = list(range(page.slots))
        self._spare = len(self._free) // 2
        self._taken: dict[tuple[str, str], int] = {}

    @property
    def free(self) -> int:
        return len(self._free)

    def pulse(self) -> None:
        self._page.pulse()

    def begin(self, job: str, token: str, end: float | None, *, is_here: bool = True) -> None:
        """Show a job that starts and has to end by then (`is_here`: in this process). Again: show
        another end."""
        place = self._taken.get((job, token))
        if place is None:
            place = self._taken[job, token] = self._free.pop()
        last = None if end is None or not is_here else end + 2 * self._kill_after
        self._page.start(place, job, token, last, is_here=is_here)

    def over(self, job: str, token: str) -> None:
        """The handler has ended in its thread; `end` will follow."""
        self._page.ended(self._taken[job, token])

    def end(self, job: str, token: str) -> None:
        """The handler has ended; `written` will follow."""
        if len(self._free) > self._spare:
            self._page.ended(self._taken[job, token])
        else:  # too many wait for a store that does not answer
            self._give_back([self._taken.pop((job, token))])

    def written(self, claims: Sequence[Finish | ClaimRef]) -> None:
        """The store knows of the end of these claims."""
        pop = self._taken.pop
        found = [pop((claim.id, claim.token), None) for claim in claims]
        self._give_back([place for place in found if place is not None])

    def _give_back(self, places: Sequence[int]) -> None:
        self._page.free(places)
        self._free += places


def anonymous_file(name: str) -> int:
    """A file without a path, for processes that share its descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())

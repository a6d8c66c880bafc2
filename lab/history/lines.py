"""What happens outside the store, one JSON line each: calls, handler runs, answers, and the nemesis.

Every process appends to a file of its own in one folder, with O_APPEND and one write per line, so
that a process killed with SIGKILL leaves every line it wrote. Each line carries two times: the wall
clock, which a test may have moved, and the monotonic clock, which all processes of a host share and
which the checker uses.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

import msgspec

if TYPE_CHECKING:
    from winch.engine.tasks.context import Context

ENV = "WINCH_HISTORY"


class _Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pid: int
    mono: float
    wall: float


class Sent(_Line, frozen=True, kw_only=True, tag="sent"):
    """A producer is about to enqueue jobs of these ids. Without a `Replied` the outcome is unknown."""

    call: str
    ids: tuple[str, ...]


class Replied(_Line, frozen=True, kw_only=True, tag="replied"):
    """The reply that the producer got: `ids` are the ones returned, `new` which of them were new."""

    call: str
    outcome: Literal["acked", "unknown", "failed"]
    ids: tuple[str, ...]
    new: tuple[bool, ...] = ()


class Started(_Line, frozen=True, kw_only=True, tag="started"):
    """A handler begins, under this claim."""

    run: str
    job: str
    token: str
    attempt: int


class Ended(_Line, frozen=True, kw_only=True, tag="ended"):
    """The handler of `run` returned or raised."""

    run: str
    job: str
    token: str
    is_ok: bool
    error: str | None = None


class Answered(_Line, frozen=True, kw_only=True, tag="answered"):
    """The store's answer to a fenced write, as the worker received it."""

    verb: str
    job: str
    token: str
    answer: Literal["took", "already", "lost"]


class Nemesis(_Line, frozen=True, kw_only=True, tag="nemesis"):
    """Something done on purpose, and to which processes. `count` is how often it was seen to happen.

    `action` is one of kill, stop, continue, term, cut, outage, hold, skew, flake.
    """

    action: str
    pids: tuple[int, ...] = ()
    count: int = 1
    note: str = ""


class Exited(_Line, frozen=True, kw_only=True, tag="exited"):
    """A worker (with these children, if any) has ended with this exit code."""

    worker: int
    code: int
    children: tuple[int, ...] = ()


Line = Sent | Replied | Started | Ended | Answered | Nemesis | Exited
_decode = msgspec.json.Decoder(Line).decode
_encode = msgspec.json.Encoder().encode


class Recorder:
    """Appends lines to a file of this process in `folder`. Safe from any thread, and after a fork."""

    def __init__(self, folder: str | Path) -> None:
        self.folder: Path = Path(folder)
        self._fd = -1
        self._pid = 0
        self._lock = threading.Lock()

    @classmethod
    def from_env(cls) -> Recorder | None:
        """The recorder of $WINCH_HISTORY; None if the variable is not set."""
        folder = os.environ.get(ENV)
        return cls(folder) if folder else None

    def write(self, line: Line) -> None:
        with self._lock:
            pid = os.getpid()
            if pid != self._pid:
                name = self.folder / f"{pid}.jsonl"
                self._fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
                self._pid = pid
            os.write(self._fd, _encode(line) + b"\n")

    # -- producers ---------------------------------------------------------------------------------

    def sent(self, ids: Sequence[str]) -> str:
        """Note that these ids are about to be enqueued; returns the call to pass to `replied`."""
        call = os.urandom(8).hex()
        self.write(Sent(**_now(), call=call, ids=tuple(ids)))
        return call

    def replied(
        self,
        call: str,
        outcome: Literal["acked", "unknown", "failed"],
        ids: Sequence[str],
        new: Sequence[bool] = (),
    ) -> None:
        self.write(Replied(**_now(), call=call, outcome=outcome, ids=tuple(ids), new=tuple(new)))

    # -- workers -----------------------------------------------------------------------------------

    @contextmanager
    def run(self, ctx: Context) -> Iterator[str]:
        """Around a handler's body: when it started, and how it ended if it did. Gives the run's name."""
        run = os.urandom(8).hex()
        job, token = ctx.job_id, ctx._claim.token
        self.write(Started(**_now(), run=run, job=job, token=token, attempt=ctx.attempt))
        try:
            yield run
        except BaseException as error:
            self.failed(ctx, run, error)
            raise
        self.write(Ended(**_now(), run=run, job=job, token=token, is_ok=True))

    def failed(self, ctx: Context, run: str, error: BaseException) -> None:
        """The run did not end well after all: its transaction was not committed."""
        error_type = type(error).__name__
        job, token = ctx.job_id, ctx._claim.token
        self.write(Ended(**_now(), run=run, job=job, token=token, is_ok=False, error=error_type))

    def answered(
        self, verb: str, job: str, token: str, answer: Literal["took", "already", "lost"]
    ) -> None:
        self.write(Answered(**_now(), verb=verb, job=job, token=token, answer=answer))

    # -- the test ----------------------------------------------------------------------------------

    def nemesis(self, action: str, pids: Sequence[int] = (), *, count: int = 1, note: str = "") -> None:
        self.write(Nemesis(**_now(), action=action, pids=tuple(pids), count=count, note=note))

    def exited(self, worker: int, code: int, children: Sequence[int] = ()) -> None:
        self.write(Exited(**_now(), worker=worker, code=code, children=tuple(children)))


class Stamp(TypedDict):
    """The process that wrote a line, and the time."""

    pid: int
    mono: float
    wall: float


def _now() -> Stamp:
    return {"pid": os.getpid(), "mono": time.monotonic(), "wall": time.time()}


def read(folder: str | Path) -> list[Line]:
    """Everything recorded in `folder`, by the monotonic clock. A last line cut short is left out."""
    found: list[Line] = []
    for file in Path(folder).glob("*.jsonl"):
        *whole, _ = file.read_bytes().split(b"\n")
        found.extend(_decode(line) for line in whole)
    return sorted(found, key=lambda line: line.mono)

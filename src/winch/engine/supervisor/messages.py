"""The line between a supervisor and its child: JSON messages over a socket pair, one per line.

The end of the line is itself a message: a child that reads the end knows that its supervisor died.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import NamedTuple

import msgspec

from winch.core.job import SuspectRule
from winch.engine.observe.throughput import Rates
from winch.engine.worker.announce import WorkerStarted
from winch.engine.worker.started_jobs import StartedJobs

ENV = "WINCH_CHILD_LINK"
# The longest message, in bytes: stacks.
LONGEST = 2 * 1024 * 1024


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A child has imported its app; this is where its jobs live, how it beats, and when a job that kills
    its process is dead."""

    url: str
    schema: str | None
    events: bool
    lease: float
    heartbeat: float
    sweep: float
    poll: float
    grace: float
    crash_rule: SuspectRule
    misfire_deadline: timedelta | None = None


class SessionBegan(msgspec.Struct, frozen=True, tag="session"):
    """A child has begun a session: beat for it from now on (and for no earlier one of this child)."""

    session: str


class Drained(msgspec.Struct, frozen=True, tag="drained"):
    """A child ends by itself, its burst over or to be replaced. `left`: claims not released."""

    left: int


class Retiring(msgspec.Struct, frozen=True, tag="retiring"):
    """A child takes no more jobs, lets those it runs end, and wants to be replaced."""

    why: str


class Retire(msgspec.Struct, frozen=True, tag="retire"):
    """Take no more jobs, let those that run end, and be replaced."""

    why: str


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Stop claiming, end within this many seconds."""

    grace: float


class Quiet(msgspec.Struct, frozen=True, tag="quiet"):
    """Claim nothing (or claim again); running jobs go on."""

    is_quiet: bool


class SessionLost(msgspec.Struct, frozen=True, tag="lost"):
    """The store no longer honours this session."""

    session: str


class LeaseOver(msgspec.Struct, frozen=True, tag="lease over"):
    """The store has not been reached for a lease: others may have been given the jobs."""


class DumpStacks(msgspec.Struct, frozen=True, tag="stacks"):
    """Write all stacks and running jobs to the log; with a number, send them back instead."""

    number: int | None = None


class Stacks(msgspec.Struct, frozen=True, tag="stacks are"):
    """The stacks that the supervisor asked for under this number."""

    number: int
    text: str


class Counted(msgspec.Struct, frozen=True, tag="counted"):
    """What a child has done since its last such message, for the supervisor's metrics."""

    rates: Rates


Message = (
    Hello
    | SessionBegan
    | WorkerStarted
    | Drained
    | Retiring
    | Retire
    | Drain
    | Quiet
    | SessionLost
    | LeaseOver
    | DumpStacks
    | Stacks
    | Counted
)
_decoder = msgspec.json.Decoder(Message)
_encoder = msgspec.json.Encoder()


class Link:
    """One end of the line."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, sock: socket.socket) -> Link:
        sock.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=sock, limit=LONGEST)
        return cls(reader, writer)

    def send(self, message: Message) -> None:
        """Send without waiting; a closed line swallows it."""
        if not self._writer.is_closing():
            self._writer.write(_encoder.encode(message) + b"\n")

    async def messages(self) -> AsyncIterator[Message]:
        """The messages of the other end, until the connection ends."""
        while True:
            try:
                line = await self._reader.readline()
            except ConnectionError:
                return
            if not line.endswith(b"\n"):
                return
            yield _decoder.decode(line)

    def close(self) -> None:
        self._writer.close()


def child_env(
    sock: socket.socket, started: StartedJobs, announces: int, supervisor: str, dump: int
) -> dict[str, str]:
    """The environment entry by which a child finds its line, the page of its started jobs and the file
    for its stacks. One that `announces` logs what the whole worker serves, with so many processes.
    `supervisor` is an id."""
    return {ENV: f"{sock.fileno()},{started.fd},{started.slots},{announces},{dump},{supervisor}"}


class FromSupervisor(NamedTuple):
    """The child's ends of what its supervisor made, and the id of the supervisor."""

    line: socket.socket
    started: StartedJobs
    announces: int
    dump: int
    supervisor: str


def from_env() -> FromSupervisor:
    """What `child_env` has named."""
    # Taken out of the environment: a handler that starts programs must not hand it on.
    *numbers, supervisor = os.environ.pop(ENV).split(",")
    line, page, slots, announces, dump = map(int, numbers)
    for fd in (line, page, dump):
        os.set_inheritable(fd, False)
    return FromSupervisor(
        socket.socket(fileno=line), StartedJobs(page, slots), announces, dump, supervisor
    )

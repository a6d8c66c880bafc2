"""The processes of a supervisor's children: how one is started, and when to start another after its
end."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from winch.core.errors import ConfigError
from winch.engine.base.exit_reason import describe_death, oom_kills
from winch.engine.base.loops import EX_BROKEN
from winch.engine.base.service import doubled
from winch.engine.supervisor.messages import Link, child_env
from winch.engine.supervisor.stack_dumps import StackDump
from winch.engine.worker.stacks import MOST_CHARS
from winch.engine.worker.started_jobs import StartedJobs
from winch.storage.params import ClaimRef

EX_LEFT = 70
# Exit codes of a child that could not start: wrong usage, a store out of reach, an old schema.
EX_UNREACHABLE = 3
HOPELESS = (2, EX_UNREACHABLE, 4)
# A loop shows a pulse 20 times a second. One without a pulse for so many seconds is blocked.
STILL = 1.0
QUICK_DEATH = 5.0
MOST_FAILED_STARTS = 8  # about a minute with the growing pauses between them
LONGEST_RESTART = 30.0


@dataclass
class ChildProcess:
    """One child process and what is known about it."""

    number: int
    process: asyncio.subprocess.Process
    started: StartedJobs
    link: Link
    started_at: float
    dump: StackDump
    ooms: int = field(default_factory=oom_kills)
    sessions: list[str] = field(default_factory=list)
    left: int = 0
    culprits: list[ClaimRef] | None = None
    cause: str | None = None
    is_ending: bool = False
    is_retiring: bool = False
    is_replaced: bool = False
    still_since: float = 0.0  # the last pulse of a child whose un-started claims were released

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_turning(self) -> bool:
        """Whether its event loop has turned lately."""
        return time.monotonic() - self.started.last_pulse < STILL

    def death(self, code: int) -> str | None:
        """Why it died; None where it ended as it should."""
        if self.cause is not None:
            return self.cause
        if code in (0, EX_LEFT):
            return None
        if code == EX_BROKEN:
            return "one of its loops ended"
        return describe_death(code, is_oom=oom_kills() > self.ooms)

    async def stacks_without_loop(self) -> str:
        """Its stacks while its loop is blocked; raises ConfigError if it writes none."""
        running = "".join(f"running: job {job.claim.id}\n" for job in self.started.started())
        stacks = await self.dump.take(self.pid)
        if stacks is None:
            raise ConfigError(
                f"process {self.pid} does not respond: it is stopped, or starved of CPU time"
            )
        text = f"The event loop of process {self.pid} is blocked.\n{running}\n{stacks}"
        return text[:MOST_CHARS]

    def kill(self, cause: str, culprits: list[ClaimRef]) -> None:
        """End it now. Only the `culprits` jobs are to blame."""
        self.culprits, self.cause = culprits, cause
        self.process.kill()

    def close(self) -> None:
        self.started.close()
        self.dump.close()
        self.link.close()


async def start_child(
    command: Sequence[str], number: int, slots: int, *, announces: int, supervisor: str
) -> ChildProcess:
    """Start a child; raises OSError. One that `announces` logs what the whole worker serves."""
    ours, theirs = socket.socketpair()
    started, dump = StartedJobs.create(slots), StackDump()
    env = {**os.environ, **child_env(theirs, started, announces, supervisor, dump.fd)}
    process = await asyncio.create_subprocess_exec(
        *command, env=env, pass_fds=(theirs.fileno(), started.fd, dump.fd)
    )
    theirs.close()
    return ChildProcess(number, process, started, await Link.open(ours), time.monotonic(), dump)


class Restarts:
    """How long to wait before a child is started again, and when that would not help."""

    def __init__(self) -> None:
        self._quick_deaths = 0
        self._failed_starts = 0

    def forget(self) -> None:
        """The code has changed: the next child may do better."""
        self._quick_deaths = self._failed_starts = 0

    def is_hopeless(self, child: ChildProcess, code: int, *, has_been_up: bool) -> bool:
        """Whether starting another child would not help: none has ever come up, or a minute of tries has
        ended with such exit codes. Code that is being replaced on disk is whole again by then.

        A store that was there and is out of reach comes back, however long it takes: the other children
        wait for it too.
        """
        if code not in HOPELESS or time.monotonic() - child.started_at > LONGEST_RESTART:
            self._failed_starts = 0
        if code not in HOPELESS:
            return False
        self._failed_starts += 1
        if not has_been_up:
            return True
        return code != EX_UNREACHABLE and self._failed_starts >= MOST_FAILED_STARTS

    def delay(self, child: ChildProcess, code: int) -> float:
        """A child that dies as soon as it starts is started again ever more slowly."""
        if self._failed_starts:
            return doubled(0.5, self._failed_starts - 1, LONGEST_RESTART)
        if code == 0 or time.monotonic() - child.started_at > QUICK_DEATH:
            self._quick_deaths = 0
            return 0.0
        self._quick_deaths += 1
        return doubled(0.5, self._quick_deaths - 1, LONGEST_RESTART)

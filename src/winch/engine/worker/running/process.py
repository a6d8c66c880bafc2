"""Jobs in processes of their own, which can be killed without harm to any other job.

Such a process has imported the application and runs one job at a time. Processes are kept and reused;
one that crashes, is killed, or has run enough jobs is replaced. Two kinds of jobs run here: tasks
declared with isolate="process", and suspects, jobs that were running when some process died. A suspect
that kills its process is the culprit; one that does not is innocent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence

import msgspec

from winch.core.errors import ConfigError
from winch.core.job import Claim
from winch.core.outcome import Settled
from winch.engine.base.exit_reason import describe_death, oom_kills
from winch.engine.worker.attempt import Attempt, Interrupt

ENV = "WINCH_CELL_LINE"
MAX_MESSAGE = 64 * 1024 * 1024
OOMS_EVERY = 1.0
EX_IMPORT = 2  # the process could not import the app, or its settings are wrong


class Crash(msgspec.Struct, frozen=True):
    """The process that ran the job died of this."""

    cause: str


class Unstarted(msgspec.Struct, frozen=True):
    """The process ended before any job of it began: its import failed, mostly."""

    code: int
    cause: str


class IsolationFailed(ConfigError):
    """A process for isolated jobs cannot be started. That is the worker's failure and no job's, so no
    job counts a crash for it."""

    def __init__(self, failed: Unstarted) -> None:
        super().__init__(
            f"a process for isolated jobs ended before it could run one ({failed.cause}); it logs why. "
            "It imports the app anew, by the name that the worker has for it"
        )
        self.is_import_error: bool = failed.code == EX_IMPORT


class RunJob(msgspec.Struct, frozen=True, tag="run"):
    """Run this job; `timeout` seconds from now it should have ended. `is_first`: the process has run
    none before, and sends a sign when it is ready; `weighs`: it reports its memory afterwards."""

    claim: Claim
    timeout: float | None
    is_first: bool = True
    weighs: bool = False
    worker: str = ""


class StopJob(msgspec.Struct, frozen=True, tag="stop"):
    """Ask the running handler to end. `is_silent`: it gave no sign of life for too long."""

    why: Interrupt
    is_silent: bool = False


class JobEnded(msgspec.Struct, frozen=True, tag="ended"):
    """The job ended; `settled` is None where an interrupted handler has no outcome."""

    settled: Settled | None
    is_finished: bool = False
    memory: int = 0


class LifeSign(msgspec.Struct, frozen=True, tag="sign"):
    """The running handler has given a sign of life."""


class ProcessStore(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a process's handlers find the store: the same place as their worker. It goes
    through the environment because it may hold a password, which a command line would show."""

    url: str
    schema: str | None = None
    config: str | None = None


class ProcessStart(msgspec.Struct, frozen=True):
    """What a process is started with: its end of the line, and the store."""

    fd: int
    store: ProcessStore


Order = RunJob | StopJob
order_decoder: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)
_report_decoder = msgspec.json.Decoder(JobEnded | LifeSign)
_encode = msgspec.json.Encoder().encode


class IsolatedProcess:
    """One process and the line to it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.process = process
        self._reader = reader
        self._writer = writer
        self.jobs: int = 0
        self.memory: int = 0
        self.is_usable: bool = True
        self._ooms, self._ooms_at = 0, float("-inf")

    @classmethod
    async def start(cls, command: Sequence[str], store: ProcessStore) -> IsolatedProcess:
        ours, theirs = socket.socketpair()
        start = ProcessStart(theirs.fileno(), store)
        process = await asyncio.create_subprocess_exec(
            *command,
            env={**os.environ, ENV: msgspec.json.encode(start).decode()},
            pass_fds=(theirs.fileno(),),
            start_new_session=True,  # what the handler starts can be killed with it, as one group
        )
        theirs.close()
        ours.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=MAX_MESSAGE)
        return cls(process, reader, writer)

    async def run(
        self,
        claim: Claim,
        timeout: float | None,
        on_sign: Callable[[], None],
        *,
        weighs: bool,
        worker: str = "",
    ) -> JobEnded | Crash | Unstarted:
        """Run one job to its end, or to the process's."""
        self.jobs += 1
        has_begun = self.jobs > 1
        if has_begun:
            on_sign()  # it has imported everything and waits for this: its time begins now
        # Reading it costs more than many jobs do: what was killed within a second counts as this one.
        if time.monotonic() - self._ooms_at > OOMS_EVERY:
            self._ooms, self._ooms_at = oom_kills(), time.monotonic()
        order = RunJob(claim, timeout, is_first=self.jobs == 1, weighs=weighs, worker=worker)
        self._writer.write(_encode(order) + b"\n")
        while True:
            try:
                line = await self._reader.readline()
            except (ConnectionError, ValueError):
                line = b""
            if not line.endswith(b"\n"):
                break
            report = _report_decoder.decode(line)
            if isinstance(report, JobEnded):
                self.memory = report.memory
                return report
            has_begun = True
            on_sign()
        self.is_usable = False
        self._writer.close()
        code = await self.process.wait()
        cause = describe_death(code, is_oom=oom_kills() > self._ooms)
        return Crash(cause) if has_begun else Unstarted(code, cause)

    def interrupt(self, why: Interrupt, *, is_silent: bool = False) -> None:
        if not self._writer.is_closing():
            self._writer.write(msgspec.json.encode(StopJob(why, is_silent)) + b"\n")

    def kill(self) -> None:
        """End the process and everything its handler started."""
        self.is_usable = False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    async def close(self) -> None:
        self._writer.close()
        try:
            async with asyncio.timeout(2.0):
                await self.process.wait()
        except TimeoutError:
            self.kill()
            await self.process.wait()


class IsolatedProcesses:
    """The processes of one worker."""

    def __init__(
        self,
        command: Sequence[str],
        store: ProcessStore,
        max_jobs: int | None = None,
        max_memory: int | None = None,
    ) -> None:
        self._command = list(command)
        self._store = store
        self._max_jobs = max_jobs
        self._max_memory = max_memory
        self._idle: list[IsolatedProcess] = []
        self._busy: set[IsolatedProcess] = set()

    async def run(
        self, attempt: Attempt, timeout: float | None, worker: str = ""
    ) -> Settled | Crash | None:
        """Run the attempt's job in a process. A process that was killed because its job would not end
        is no crash: None, as for any interrupted handler without an outcome. Raises IsolationFailed
        where no process can be started."""
        process = await self._take()
        beat, attempt.heartbeat = attempt.heartbeat, None
        is_begun = False

        def give_time() -> None:
            if timeout is not None:
                attempt.deadline = time.monotonic() + timeout

        def on_sign() -> None:
            nonlocal is_begun
            if not is_begun:  # the first one comes when the handler is about to run
                is_begun = True
                attempt.heartbeat = beat
                give_time()
            attempt.reports.sign()

        give_time()  # starting a process is not the handler's time
        handler = _InProcess(process, attempt)
        attempt.handler = handler
        if attempt.interrupted is not None:  # it came while the process was being started
            process.interrupt(attempt.interrupted)
        try:
            weighs = self._max_memory is not None
            ended = await process.run(attempt.claim, timeout, on_sign, weighs=weighs, worker=worker)
        finally:
            self._busy.discard(process)
        if process.is_usable and not self._is_worn(process):
            self._idle.append(process)
        elif process.is_usable:
            await process.close()
        if isinstance(ended, JobEnded):
            attempt.is_finished = ended.is_finished
            return ended.settled
        if handler.is_killed:
            return None
        if isinstance(ended, Unstarted):
            raise IsolationFailed(ended)
        return ended

    def _is_worn(self, process: IsolatedProcess) -> bool:
        return (self._max_jobs is not None and process.jobs >= self._max_jobs) or (
            self._max_memory is not None and process.memory > self._max_memory
        )

    async def _take(self) -> IsolatedProcess:
        while self._idle:
            process = self._idle.pop()
            if process.process.returncode is None:
                self._busy.add(process)
                return process
        process = await IsolatedProcess.start(self._command, self._store)
        self._busy.add(process)
        return process

    async def close(self) -> None:
        for process in self._busy:
            process.kill()
        await asyncio.gather(*(process.close() for process in (*self._idle, *self._busy)))
        self._idle.clear()


class _InProcess:
    """A handler that runs in a process."""

    leaves_a_thread = False

    def __init__(self, process: IsolatedProcess, attempt: Attempt) -> None:
        self._process = process
        self._attempt = attempt
        self.is_killed = False

    def interrupt(self, why: Interrupt) -> None:
        self._process.interrupt(why, is_silent=self._attempt.is_silent)

    def give_up(self) -> bool:
        self.is_killed = True
        self._process.kill()
        return True

"""What each command of Faktory's protocol does.

A command is a word and the rest of its line. It returns the bytes of its reply, or raises an error that
the client gets.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from winch.core.errors import ConfigError, WinchError
from winch.core.job import Failure, Note
from winch.core.lifecycle import JobState
from winch.core.values import codec
from winch.core.values.redact import stored_text
from winch.core.version import __version__
from winch.engine.client.audit import acting
from winch.engine.tasks.options import check_queue
from winch.storage.params import Answer, ClaimRef
from winch.storage.protocol import Bell
from winch.web.faktory import mutations
from winch.web.faktory.batches import FaktoryBatches
from winch.web.faktory.payload import DEFAULT_QUEUE, FaktoryJob, new_job, parse
from winch.web.faktory.reservations import LEASE, Opened, Reservations, Took
from winch.web.faktory.wire import NOTHING, OK, FaktoryError, Lines, bulk
from winch.web.faktory.workers import FaktoryWorkers

if TYPE_CHECKING:
    from winch.app import App

# As long as Faktory itself waits.
FETCH_SECONDS = 2.0
# A session without a job is used for the next claim while its lease has this share left.
FRESH = 0.5
MOST_QUEUES = 100
MOST_PUSHED = 10_000


class Acked(msgspec.Struct, frozen=True):
    jid: str


class FailedBody(msgspec.Struct, frozen=True):
    """`message` and `backtrace` are what the worker's language has."""

    jid: str
    errtype: str = "Error"
    message: str = ""
    backtrace: list[str] | None = None


class Beat(msgspec.Struct, frozen=True):
    wid: str


class Tracked(msgspec.Struct, frozen=True):
    jid: str
    percent: float | None = None
    desc: str | None = None


@dataclass(slots=True)
class FaktoryCaller:
    """One connection that has said hello."""

    lines: Lines
    address: str
    worker: str = ""
    host: str = ""
    pid: int = 0
    opened: Opened | None = None  # a session that has no job yet
    queues: tuple[str, ...] = ()
    opened_at: float = field(default=0.0)

    @property
    def who(self) -> str:
        return f"faktory:{self.worker}" if self.worker else "faktory"


class FaktoryCommands:
    """The commands of one gateway."""

    def __init__(self, app: App, *, allows_flush: bool) -> None:
        self._app = app
        self._allows_flush = allows_flush
        self._began = time.monotonic()
        self._count = 0
        self.connections: int = 0
        self.reservations: Reservations = Reservations(app)
        self.workers: FaktoryWorkers = FaktoryWorkers(app)
        self.batches: FaktoryBatches = FaktoryBatches(app)
        self._known: dict[str, Callable[[FaktoryCaller, str], Awaitable[bytes]]] = {
            "PUSH": self._push,
            "PUSHB": self._push_bulk,
            "BATCH": self._batch,
            "FETCH": self._fetch,
            "ACK": self._ack,
            "FAIL": self._fail,
            "BEAT": self._beat,
            "INFO": self._info,
            "FLUSH": self._flush,
            "QUEUE": self._queue,
            "TRACK": self._track,
            "MUTATE": self._mutate,
        }

    async def run(self, caller: FaktoryCaller, line: str) -> bytes:
        """The reply to one line."""
        word, _, rest = line.strip().partition(" ")
        self._count += 1
        command = self._known.get(word.upper())
        if command is None:
            known = ", ".join([*self._known, "END"])
            raise FaktoryError(f"unknown command {word[:40]!r}; this gateway knows {known}")
        try:
            with acting(caller.who, via="faktory"):
                return await command(caller, rest.strip())
        except WinchError as error:
            raise FaktoryError(str(error)) from error

    # -- producers -------------------------------------------------------------------------------------

    async def _push(self, caller: FaktoryCaller, rest: str) -> bytes:
        given = parse(rest, FaktoryJob, "the job")
        await self.batches.store([(given, new_job(self._app, given))])
        return OK

    async def _push_bulk(self, caller: FaktoryCaller, rest: str) -> bytes:
        raw = parse(rest, list[dict[str, Any]], "the jobs")
        if len(raw) > MOST_PUSHED:
            raise FaktoryError(f"a PUSHB has at most {MOST_PUSHED:,} jobs, got {len(raw):,}")
        refused: dict[str, str] = {}
        jobs = []
        for one in raw:
            try:
                job = msgspec.convert(one, FaktoryJob)
                jobs.append((job, new_job(self._app, job)))
            except (msgspec.ValidationError, WinchError) as error:
                refused[str(one.get("jid", ""))] = str(error)
        await self.batches.store(jobs)
        return bulk(refused)

    async def _batch(self, caller: FaktoryCaller, rest: str) -> bytes:
        return await self.batches.run(rest)

    # -- workers ---------------------------------------------------------------------------------------

    def _worker(self, caller: FaktoryCaller) -> str:
        if not caller.worker:
            raise FaktoryError("this command is for workers: send a wid of 1 to 100 characters in HELLO")
        return caller.worker

    async def _fetch(self, caller: FaktoryCaller, rest: str) -> bytes:
        worker = self._worker(caller)
        queues = tuple(dict.fromkeys(check_queue(name) for name in rest.split())) or (DEFAULT_QUEUE,)
        if len(queues) > MOST_QUEUES:
            raise FaktoryError(f"a FETCH has at most {MOST_QUEUES} queues, got {len(queues)}")
        await self.workers.serves(worker, caller.host, caller.pid, queues)
        deadline = time.monotonic() + FETCH_SECONDS
        bell: Bell | None = None
        try:
            while True:
                job = await self._take(caller, worker, queues)
                if job is not None:
                    return bulk(job)
                left = deadline - time.monotonic()
                if left <= 0 or caller.lines.has_ended:
                    return NOTHING
                if bell is None:
                    bell = self._app.driver.bell(list(queues))
                    await bell.arm()
                    continue  # look once more: a job stored before the bell was armed does not ring
                await bell.wait(left)
                await bell.arm()
        finally:
            if bell is not None:
                await bell.aclose()

    async def _take(
        self, caller: FaktoryCaller, worker: str, queues: tuple[str, ...]
    ) -> dict[str, Any] | None:
        while True:
            opened = await self._fresh(caller, worker, queues)
            try:
                job = await self.reservations.take(opened, worker, queues)
            except BaseException:
                # The job may be taken and the answer lost: end the session, and it goes back at once.
                await asyncio.shield(self.reservations.close(opened))
                raise
            if job is not Took.NOT_NOW:
                break
        if not isinstance(job, dict):
            caller.opened = opened  # the store has answered: nothing was taken under this token
            return None
        if caller.lines.has_ended:
            await self.reservations.close(opened)
            return None
        return job

    async def _fresh(self, caller: FaktoryCaller, worker: str, queues: tuple[str, ...]) -> Opened:
        """A session whose lease is far from its end: the one of the last claim that took nothing, or a
        new one."""
        opened, caller.opened = caller.opened, None
        if opened is not None:
            age = time.monotonic() - caller.opened_at
            if age < LEASE.total_seconds() * FRESH and caller.queues == queues:
                return opened
            await self.reservations.close(opened)
        caller.opened_at, caller.queues = time.monotonic(), queues
        return await self.reservations.open(worker, caller.host, caller.pid, queues)

    async def left(self, caller: FaktoryCaller) -> None:
        """The connection has ended. Jobs of its worker stay reserved: they may end through another."""
        if caller.opened is not None:
            await self.reservations.close(caller.opened)

    async def _ack(self, caller: FaktoryCaller, rest: str) -> bytes:
        acked = parse(rest, Acked, "ACK")
        await self.reservations.complete(acked.jid, self._worker(caller))
        return OK

    async def _fail(self, caller: FaktoryCaller, rest: str) -> bytes:
        failed = parse(rest, FailedBody, "FAIL")
        half = codec.MAX_ERROR_BYTES // 2
        trace = None if not failed.backtrace else stored_text("\n".join(failed.backtrace), half)
        error = Failure(
            codec.clean_text(failed.errtype or "Error", 256), stored_text(failed.message, half), trace
        )
        record = await self.reservations.held(failed.jid, self._worker(caller))
        await self.reservations.fail(record, error)
        return OK

    async def _beat(self, caller: FaktoryCaller, rest: str) -> bytes:
        beat = parse(rest, Beat, "BEAT")
        if beat.wid != self._worker(caller):
            raise FaktoryError("the wid of BEAT is not that of HELLO")
        order = await self.workers.beat(beat.wid)
        return bulk({"state": order}) if order else OK

    async def _track(self, caller: FaktoryCaller, rest: str) -> bytes:
        word, _, rest = rest.partition(" ")
        if word.upper() == "GET":
            record = await self._app.client.aget(rest.strip())
            kept = {} if record.progress is None else codec.loads(record.progress, what="progress")
            return bulk(
                {
                    "jid": rest.strip(),
                    "percent": kept.get("percent"),
                    "desc": kept.get("message"),
                    "state": record.state.value,
                    "updated_at": datetime.now(UTC).isoformat(),
                }
            )
        if word.upper() != "SET":
            raise FaktoryError("TRACK is followed by GET or SET")
        tracked = parse(rest, Tracked, "TRACK SET")
        record = await self.reservations.held(tracked.jid, self._worker(caller))
        progress = {"percent": tracked.percent or 0.0}
        if not 0 <= progress["percent"] <= 100:
            raise ConfigError(f"percent must be from 0 to 100, got {tracked.percent}")
        sent = progress | ({} if tracked.desc is None else {"message": tracked.desc})
        note = Note(progress=codec.dumps(sent, what="progress", limit=8192))
        driver = self._app.driver
        if await driver.arun(driver.note(ClaimRef(record.id, record.token or ""), note)) is Answer.LOST:
            raise FaktoryError(f"the reservation of job {tracked.jid} has ended")
        return OK

    # -- operators -------------------------------------------------------------------------------------

    async def _info(self, caller: FaktoryCaller, rest: str) -> bytes:
        driver = self._app.driver
        queues = await driver.arun(driver.queues())
        counts = {state: sum(queue.counts.get(state, 0) for queue in queues) for state in JobState}
        ready = {queue.name: queue.counts.get(JobState.READY, 0) for queue in queues}
        now = datetime.now(UTC)
        return bulk(
            {
                "now": now.isoformat(),
                "server_utc_time": f"{now:%H:%M:%S} UTC",
                "faktory": {
                    "default_size": ready.get(DEFAULT_QUEUE, 0),
                    "queues": ready,
                    "total_enqueued": sum(ready.values()),
                    "total_queues": len(ready),
                    "tasks": {
                        "Scheduled": {"size": counts[JobState.SCHEDULED]},
                        "Retries": {"size": counts[JobState.RETRYING]},
                        "Dead": {"size": counts[JobState.DEAD]},
                        "Running": {"size": counts[JobState.RUNNING]},
                    },
                },
                "server": {
                    "description": "Winch",
                    "faktory_version": __version__,
                    "uptime": int(time.monotonic() - self._began),
                    "connections": self.connections,
                    "command_count": self._count,
                },
            }
        )

    async def _flush(self, caller: FaktoryCaller, rest: str) -> bytes:
        if not self._allows_flush:
            raise FaktoryError(
                "FLUSH deletes every job; start the server with --faktory-flush to allow it"
            )
        await mutations.flush(self._app)
        return OK

    async def _queue(self, caller: FaktoryCaller, rest: str) -> bytes:
        word, _, names = rest.partition(" ")
        queues = self._app.queues
        chosen = names.split()
        if "*" in chosen:
            chosen = [queue.name for queue in await queues.alist()]
        for name in chosen:
            if word.upper() == "PAUSE":
                await queues.apause(name, reason=f"paused by {caller.who}")
            elif word.upper() in ("RESUME", "UNPAUSE"):
                await queues.aresume(name)
            elif word.upper() == "REMOVE":
                await queues.apurge(name)
            else:
                raise FaktoryError("QUEUE is followed by PAUSE, RESUME or REMOVE, and names or *")
        return OK

    async def _mutate(self, caller: FaktoryCaller, rest: str) -> bytes:
        await mutations.mutate(self._app, parse(rest, mutations.Mutation, "MUTATE"))
        return OK

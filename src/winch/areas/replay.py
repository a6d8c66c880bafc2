"""Replay dead jobs, with changes and at a rate.

A replay walks the list page by page, newest id first. Its cursor is a job id, which a job keeps when it
is replayed and dies again. So a replay takes no job twice and holds one page at a time. It pauses
between small batches to keep its rate; when it is stopped half-way, the rest is still dead.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from winch.core.errors import (
    ConfigError,
    DuplicateJob,
    InvalidPayload,
    InvalidTransition,
    JobNotFound,
    WinchError,
)
from winch.core.job import JobRecord, RetryChanges
from winch.core.lifecycle import JobState
from winch.core.policy.retry import check_attempts
from winch.core.values import codec
from winch.core.values.duration import parse_rate
from winch.core.values.ids import known_as
from winch.core.values.search import terms_of
from winch.engine.base.encryption import Keyring, seal
from winch.engine.base.operation import Operation, Sleep
from winch.engine.base.search_index import lines_of, sealed
from winch.engine.client.audit import noted
from winch.engine.tasks.options import check_queue, with_attempts
from winch.engine.tasks.registry import Registry
from winch.engine.tasks.runtime import Runtime
from winch.storage.params import Acted, JobFilter, Page
from winch.storage.protocol import Driver

PAGE = 500
# At a rate, about ten batches a second: smooth enough for a downstream, few enough round trips.
BATCHES_PER_SECOND = 10
REFUSALS_KEPT = 100
IDS_NOTED = 5


class Refusal(msgspec.Struct, frozen=True):
    """A job that was not replayed, and why."""

    id: str
    error: WinchError


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a replay. `refusals` has the first hundred of the `refused` jobs."""

    matched: int
    replayed: int
    refused: int
    is_dry_run: bool
    refusals: tuple[Refusal, ...] = ()


def replay(
    driver: Driver,
    runtime: Runtime,
    which: JobFilter | Sequence[str],
    *,
    by: str,
    rate: str | None = None,
    args: Mapping[str, Any] | None = None,
    attempts: int | None = None,
    to_queue: str | None = None,
    force: bool = False,
    dry_run: bool = False,
) -> Operation[Replayed]:
    """Make dead jobs ready again. Checks everything that can be checked before it acts."""
    if args is not None and isinstance(which, JobFilter) and not (which.task or which.fingerprint):
        raise ConfigError("args= belong to one task: choose it with ids, task= or group=")
    per_second = None if rate is None else parse_rate(rate, "rate")
    if to_queue is not None:
        check_queue(to_queue)
    editor = _Editor(runtime.tasks, args, attempts, to_queue, runtime.keys(), force=force)
    size = PAGE
    if per_second is not None:
        size = max(1, min(PAGE, round(per_second / BATCHES_PER_SECOND)))
    tally = _Tally(is_dry_run=dry_run)
    began = time.monotonic()
    if not isinstance(which, JobFilter):
        which = [known_as(job_id, "job id") for job_id in dict.fromkeys(which)]
    after: str | None = None
    while True:
        jobs, after = yield from _page(driver, which, after, size, tally)
        tally.matched += len(jobs)
        batches = editor.batches(jobs)  # checks the new arguments, in a dry run too
        if not dry_run:
            yield from _index(driver, editor.terms, jobs)
            for changes, ids in batches:
                tally.add((yield driver.retry(ids, by=by, changes=changes)))
        if after is None:
            done = tally.result()
            if not dry_run and (done.replayed or isinstance(which, JobFilter)):
                yield from noted(
                    driver,
                    "replay dead",
                    _target(which),
                    **_filter(which),
                    rate=rate,
                    args=None if args is None else sorted(args),  # their names: values may be secret
                    attempts=attempts,
                    to_queue=to_queue,
                    replayed=done.replayed,
                )
            return done
        if per_second is not None and not dry_run:
            ahead = began + tally.matched / per_second - time.monotonic()
            yield Sleep(max(ahead, 0))


def _index(driver: Driver, terms: tuple[str, ...], jobs: Sequence[JobRecord]) -> Operation[None]:
    """Write down what the jobs will be found under with their new arguments."""
    now = datetime.now(UTC)
    lines = [line for job in jobs for line in lines_of(job.id, terms, now)]
    if lines:
        yield driver.kv_put(lines)


def _page(
    driver: Driver, which: JobFilter | Sequence[str], after: str | None, size: int, tally: _Tally
) -> Operation[tuple[list[JobRecord], str | None]]:
    """Some of the dead jobs that were asked for, and where to go on; None at the end."""
    if isinstance(which, JobFilter):
        wanted = msgspec.structs.replace(which, limit=size, after=after)
        page: Page = yield driver.list_jobs(wanted)
        return list(page.jobs), page.next
    start = int(after or 0)
    chunk = which[start : start + size]
    jobs = tally.found(chunk, (yield driver.get(chunk)))
    return jobs, str(start + size) if start + size < len(which) else None


def _target(which: JobFilter | Sequence[str]) -> str:
    """The jobs as the audit records them: their ids if there are few."""
    if isinstance(which, JobFilter):
        return "jobs"
    return ", ".join(which) if len(which) <= IDS_NOTED else f"{len(which):,} jobs"


def _filter(which: JobFilter | Sequence[str]) -> dict[str, str | None]:
    if not isinstance(which, JobFilter):
        return {}
    return {"task": which.task, "queue": which.queue, "group": which.fingerprint, "tag": which.tag}


class _Editor:
    """What is changed in the jobs of a replay: the same for all, but for what their options keep."""

    def __init__(
        self,
        tasks: Registry,
        args: Mapping[str, Any] | None,
        attempts: int | None,
        to_queue: str | None,
        keys: Keyring | None,
        *,
        force: bool,
    ) -> None:
        if attempts is not None:
            check_attempts(attempts, "attempts")
        if args is not None and not isinstance(args, Mapping):
            raise InvalidPayload(f"args must be a mapping of argument names to values, got {args!r}")
        self._tasks = tasks
        self._args = args
        self._attempts = attempts
        self._queue = to_queue
        self._keys = keys
        self._force = force
        self._task: str | None = None
        self._packed: str | None = None
        self._version: int | None = None
        self.terms: tuple[str, ...] = ()

    def batches(self, jobs: Iterable[JobRecord]) -> list[tuple[RetryChanges, list[str]]]:
        """The jobs by what is changed in them."""
        found: dict[RetryChanges, list[str]] = {}
        for job in jobs:
            if self._args is not None:
                self._pack(job.task, self._args)
            options = None
            if self._attempts is not None:
                options = with_attempts(job.options, self._attempts)
            packed = self._packed
            if packed is not None:
                packed = seal(self._keys, packed, job=job.id, task=job.task, field="args")
            changes = RetryChanges(
                args=packed,
                version=self._version,
                queue=self._queue,
                options=options,
                max_attempts=self._attempts,
            )
            found.setdefault(changes, []).append(job.id)
        return list(found.items())

    def _pack(self, task: str, args: Mapping[str, Any]) -> None:
        if self._task == task:
            return
        if self._task is not None:
            raise ConfigError(f"args= belong to one task; these jobs are of {self._task} and of {task}")
        if task in self._tasks.names:
            known = self._tasks.get(task)
            self._packed = known.arguments.pack((), args)
            self._version = known.options.version
            self.terms = sealed(self._keys, terms_of(self._packed, known.options.search))
        elif self._force:
            self._packed = codec.dumps(args, what=f"the arguments of {task}")
        else:
            raise ConfigError(
                f"task {task} is not registered here, so its new arguments cannot be checked; "
                "name the app that has it, or force it"
            )
        self._task = task


class _Tally:
    def __init__(self, *, is_dry_run: bool) -> None:
        self._is_dry_run = is_dry_run
        self.matched = 0
        self._replayed = 0
        self._refused = 0
        self._refusals: list[Refusal] = []

    def found(self, ids: Sequence[str], records: Sequence[JobRecord | None]) -> list[JobRecord]:
        """The dead ones among the named jobs; the others are refused."""
        dead = []
        for job_id, record in zip(ids, records, strict=True):
            if record is None:
                self._refuse(job_id, JobNotFound(job_id))
            elif record.state is not JobState.DEAD:
                self._refuse(job_id, _not_dead(job_id, record.state))
            else:
                dead.append(record)
        return dead

    def add(self, answers: Sequence[Acted]) -> None:
        for acted in answers:
            if acted.took:
                self._replayed += 1
            elif acted.holder is not None:
                words = f"job {acted.id} cannot be replayed now: job {acted.holder} has its unique key"
                self._refuse(acted.id, DuplicateJob(words, existing=acted.holder))
            elif acted.state is None:
                self._refuse(acted.id, JobNotFound(acted.id))
            else:
                self._refuse(acted.id, _not_dead(acted.id, acted.state))

    def _refuse(self, job_id: str, error: WinchError) -> None:
        self._refused += 1
        if len(self._refusals) < REFUSALS_KEPT:
            self._refusals.append(Refusal(job_id, error))

    def result(self) -> Replayed:
        return Replayed(
            matched=self.matched,
            replayed=self._replayed,
            refused=self._refused,
            is_dry_run=self._is_dry_run,
            refusals=tuple(self._refusals),
        )


def _not_dead(job_id: str, state: JobState) -> InvalidTransition:
    return InvalidTransition(job_id, state, "replay", [JobState.DEAD])

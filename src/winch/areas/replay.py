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
    MissingKey,
    WinchError,
)
from winch.core.job import JobRecord, RetryChanges
from winch.core.lifecycle import JobState
from winch.core.policy.retry import check_attempts
from winch.core.values import codec
from winch.core.values.duration import parse_rate
from winch.core.values.ids import known_as
from winch.core.values.search import terms_of
from winch.engine.base.encryption import Keyring, seal, unseal
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
# In a dry run: each is one more read.
MOST_KEYS_LOOKED_AT = 200
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
    since: datetime | None = None,
    until: datetime | None = None,
    rate: str | None = None,
    args: Mapping[str, Any] | None = None,
    patch: Mapping[str, Any] | None = None,
    attempts: int | None = None,
    to_queue: str | None = None,
    limit: int | None = None,
    force: bool = False,
    dry_run: bool = False,
) -> Operation[Replayed]:
    """Make dead jobs ready again. Checks everything that can be checked before it acts."""
    _check(which, args, patch, since, until, limit)
    per_second = None if rate is None else parse_rate(rate, "rate")
    if to_queue is not None:
        check_queue(to_queue)
    editor = _Editor(runtime.tasks, args, attempts, to_queue, runtime.keys(), force=force, patch=patch)
    size = PAGE
    if per_second is not None and not dry_run:
        size = max(1, min(PAGE, round(per_second / BATCHES_PER_SECOND)))
    tally = _Tally(is_dry_run=dry_run)
    began = time.monotonic()
    if not isinstance(which, JobFilter):
        which = [known_as(job_id, "job id") for job_id in dict.fromkeys(which)]
    after: str | None = None
    while True:
        left = None if limit is None else limit - tally.matched
        most = size if left is None else min(size, left)
        jobs, after = yield from _page(driver, which, after, most, tally)
        jobs = [job for job in jobs if _died_within(job, since, until)]
        tally.matched += len(jobs)
        batches = editor.batches(jobs, tally)  # checks the new arguments, in a dry run too
        if dry_run:
            ids = {job_id for _, chosen in batches for job_id in chosen}
            yield from _foresee(driver, [job for job in jobs if job.id in ids], tally)
        else:
            yield from _index(driver, editor.terms)
            for changes, ids_of_batch in batches:
                tally.add((yield driver.retry(ids_of_batch, by=by, changes=changes)))
        if limit is not None and tally.matched >= limit:
            after = None
        if after is None:
            done = tally.result()
            if not dry_run and (done.replayed or isinstance(which, JobFilter)):
                yield from noted(
                    driver,
                    "replay dead",
                    _target(which),
                    **_filter(which),
                    rate=rate,
                    since=None if since is None else since.isoformat(),
                    until=None if until is None else until.isoformat(),
                    args=None if args is None else sorted(args),  # their names: values may be secret
                    patch=None if patch is None else sorted(patch),
                    limit=limit,
                    attempts=attempts,
                    to_queue=to_queue,
                    replayed=done.replayed,
                )
            return done
        if per_second is not None and not dry_run:
            ahead = began + tally.matched / per_second - time.monotonic()
            yield Sleep(max(ahead, 0))


def _check(
    which: JobFilter | Sequence[str],
    args: Mapping[str, Any] | None,
    patch: Mapping[str, Any] | None,
    since: datetime | None,
    until: datetime | None,
    limit: int | None,
) -> None:
    if args is not None and patch is not None:
        raise ConfigError("give args=, which replaces all arguments, or patch=, which changes some")
    changes_args = args is not None or patch is not None
    if changes_args and isinstance(which, JobFilter) and not (which.task or which.fingerprint):
        name = "args" if args is not None else "patch"
        raise ConfigError(f"{name}= belong to one task: choose it with ids, task= or group=")
    for name, moment in (("since", since), ("until", until)):
        if moment is not None and moment.tzinfo is None:
            raise ConfigError(f"{name} must have a time zone, got {moment!r}")
    if limit is not None and limit < 1:
        raise ConfigError(f"limit must be 1 or more, got {limit}")


def _died_within(job: JobRecord, since: datetime | None, until: datetime | None) -> bool:
    died = job.finished_at
    if died is None:
        return since is None and until is None
    return (since is None or died >= since) and (until is None or died < until)


def _foresee(driver: Driver, jobs: Sequence[JobRecord], tally: _Tally) -> Operation[None]:
    """Count the jobs whose unique key another job holds now: a replay would leave them out."""
    keyed = {job.unique_key: job.id for job in jobs if job.unique_key is not None}
    for key in list(keyed)[: max(0, MOST_KEYS_LOOKED_AT - tally.keys)]:
        tally.keys += 1
        for held in (yield driver.unique_keys(prefix=key, limit=1)):
            if held.key == key:
                tally.add([Acted(keyed[key], JobState.DEAD, took=False, holder=held.job)])


def _index(driver: Driver, terms: Mapping[str, tuple[str, ...]]) -> Operation[None]:
    """Write down what the jobs will be found under with their new arguments."""
    now = datetime.now(UTC)
    lines = [line for job_id, words in terms.items() for line in lines_of(job_id, words, now)]
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


def merged(value: Any, patch: Any) -> Any:
    """The value changed by a JSON merge patch (RFC 7396): null removes a name."""
    if not isinstance(patch, Mapping):
        return patch
    found = dict(value) if isinstance(value, Mapping) else {}
    for name, change in patch.items():
        if change is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), change)
    return found


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
        patch: Mapping[str, Any] | None = None,
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
        self._words: tuple[str, ...] = ()
        if patch is not None and not isinstance(patch, Mapping):
            raise InvalidPayload(f"patch must be a mapping of argument names to values, got {patch!r}")
        self._patch = patch
        self.terms: dict[str, tuple[str, ...]] = {}
        """What the jobs of the last batches are found under with their new arguments."""

    def batches(self, jobs: Iterable[JobRecord], tally: _Tally) -> list[tuple[RetryChanges, list[str]]]:
        """The jobs by what is changed in them. One that a patch does not fit is refused."""
        found: dict[RetryChanges, list[str]] = {}
        self.terms = {}
        for job in jobs:
            if self._args is not None:
                self._pack(job.task, self._args)
            elif self._patch is not None:
                try:
                    self._pack(job.task, merged(self._args_of(job), self._patch), is_again=True)
                except (InvalidPayload, MissingKey) as error:
                    tally.refuse(job.id, error)
                    continue
            if self._words:
                self.terms[job.id] = self._words
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

    def _args_of(self, job: JobRecord) -> Mapping[str, Any]:
        text = unseal(self._keys, job.args, job=job.id, task=job.task, field="args")
        args = codec.loads_strict(text, what=f"the arguments of job {job.id}")
        if not isinstance(args, dict):
            raise InvalidPayload(f"the arguments of job {job.id} are no object")
        return args

    def _pack(self, task: str, args: Mapping[str, Any], *, is_again: bool = False) -> None:
        if self._task == task and not is_again:
            return
        if self._task not in (None, task):
            raise ConfigError(
                f"new arguments belong to one task; these jobs are of {self._task} and of {task}"
            )
        if task in self._tasks.names:
            known = self._tasks.get(task)
            self._packed = known.arguments.pack((), args)
            self._version = known.options.version
            self._words = sealed(self._keys, terms_of(self._packed, known.options.search))
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
        self.keys = 0
        """How many unique keys a dry run has looked at."""
        self._refusals: list[Refusal] = []

    def found(self, ids: Sequence[str], records: Sequence[JobRecord | None]) -> list[JobRecord]:
        """The dead ones among the named jobs; the others are refused."""
        dead = []
        for job_id, record in zip(ids, records, strict=True):
            if record is None:
                self.refuse(job_id, JobNotFound(job_id))
            elif record.state is not JobState.DEAD:
                self.refuse(job_id, _not_dead(job_id, record.state))
            else:
                dead.append(record)
        return dead

    def add(self, answers: Sequence[Acted]) -> None:
        for acted in answers:
            if acted.took:
                self._replayed += 1
            elif acted.holder is not None:
                words = f"job {acted.id} cannot be replayed now: job {acted.holder} has its unique key"
                self.refuse(acted.id, DuplicateJob(words, existing=acted.holder))
            elif acted.state is None:
                self.refuse(acted.id, JobNotFound(acted.id))
            else:
                self.refuse(acted.id, _not_dead(acted.id, acted.state))

    def refuse(self, job_id: str, error: WinchError) -> None:
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

"""`app.dead`: look at dead jobs, replay them, delete them."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from winch.areas.dead_groups import GroupMark, discard, mark, marks
from winch.areas.jobs import JobList, page_of
from winch.areas.replay import Replayed, replay
from winch.core.errors import ConfigError
from winch.core.lifecycle import JobState
from winch.core.values.duration import Duration, format_duration, parse_duration
from winch.engine.base.operation import Operation
from winch.engine.client.audit import actor, noted
from winch.engine.client.client import Client
from winch.engine.client.twins import blocking, twin
from winch.engine.tasks.runtime import Runtime
from winch.engine.tasks.task import Unset
from winch.storage.params import DeadGroup, GroupFilter, JobFilter, Trim
from winch.storage.protocol import Driver

PURGE_BATCH = 500
MOST_HOURS = 24 * 31
MOST_GROUPS = 1000


class Dead:
    """`app.dead`: list, replay and delete dead jobs."""

    def __init__(self, client: Client, runtime: Runtime) -> None:
        self._client = client
        self._runtime = runtime

    @blocking
    def list(
        self,
        *,
        task: str | None = None,
        queue: str | None = None,
        group: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> Operation[JobList]:
        """Dead jobs, newest first; `group` is a fingerprint."""
        which = JobFilter(
            states=(JobState.DEAD,),
            task=task,
            queue=queue,
            fingerprint=group,
            limit=limit,
            after=after,
        )
        return (yield from page_of(self._client, which))

    @twin(list)
    def alist(self) -> None:
        """`list` without blocking the event loop."""

    @blocking
    def groups(
        self, *, task: str | None = None, queue: str | None = None, limit: int = 50
    ) -> Operation[builtins.list[DeadGroup]]:
        """Dead jobs grouped by their error: the largest group first, then the latest."""
        if not 1 <= limit <= 1000:
            raise ConfigError(f"limit must be from 1 to 1000, got {limit}")
        which = GroupFilter(task=task, queue=queue, limit=limit)
        found: builtins.list[DeadGroup] = yield self._client.driver().groups(which)
        return found

    @twin(groups)
    def agroups(self) -> None:
        """`groups` without blocking the event loop."""

    @blocking
    def replay(
        self,
        ids: Sequence[str] | None = None,
        *,
        task: str | None = None,
        queue: str | None = None,
        group: str | None = None,
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
        """Make dead jobs ready again: those with these ids, or all that match. Returns the counts.

        `since` and `until` choose those that died from then on, and before then. `args` replaces their
        arguments, checked against the task; `patch` changes some of the arguments of each job, as a
        JSON merge patch. `force` skips the check for a task that is not registered here. `attempts` and
        `to_queue` replace their attempts and their queue. `limit` replays so many of them, the newest
        first. With `dry_run` nothing changes, and the counts are those of a replay.
        `rate` ("100/s") adds pauses between small batches. The call returns when all are done.
        """
        which: JobFilter | Sequence[str]
        if ids is not None:
            if task is not None or queue is not None or group is not None:
                raise ConfigError("replay takes ids, or a filter (task=, queue=, group=), not both")
            which = [ids] if isinstance(ids, str) else ids
        else:
            which = JobFilter(states=(JobState.DEAD,), task=task, queue=queue, fingerprint=group)
        return (
            yield from replay(
                self._client.driver(),
                self._runtime,
                which,
                by=actor(),
                since=since,
                until=until,
                rate=rate,
                args=args,
                patch=patch,
                attempts=attempts,
                to_queue=to_queue,
                limit=limit,
                force=force,
                dry_run=dry_run,
            )
        )

    @twin(replay)
    def areplay(self) -> None:
        """`replay` without blocking the event loop."""

    @blocking
    def marks(self) -> Operation[dict[str, GroupMark]]:
        """What people have noted about groups, by fingerprint."""
        return (yield from marks(self._client.driver()))

    @twin(marks)
    def amarks(self) -> None:
        """`marks` without blocking the event loop."""

    @blocking
    def mark(
        self,
        group: str,
        *,
        state: Literal["open", "ignored", "resolved"] | Unset = msgspec.UNSET,
        assignee: str | Unset | None = msgspec.UNSET,
        note: str | Unset | None = msgspec.UNSET,
    ) -> Operation[GroupMark]:
        """Note the assignee of a group of dead jobs, its state, or a text.

        A resolved group is back when another job dies of the same error.
        """
        given = {"state": state, "assignee": assignee, "note": note}
        chosen = {name: value for name, value in given.items() if value is not msgspec.UNSET}
        return (yield from mark(self._client.driver(), group, chosen))

    @twin(mark)
    def amark(self) -> None:
        """`mark` without blocking the event loop."""

    @blocking
    def trend(
        self, groups: Sequence[str], *, hours: int = 24
    ) -> Operation[dict[str, builtins.list[int]]]:
        """How many of the dead jobs of these groups died in each of the last hours, oldest first."""
        if not 1 <= hours <= MOST_HOURS or len(groups) > MOST_GROUPS:
            raise ConfigError(f"trend takes up to {MOST_HOURS} hours and {MOST_GROUPS} groups")
        now = self._client.surroundings.clock.now()
        since = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=hours - 1)
        found: dict[str, builtins.list[int]] = yield self._client.driver().death_counts(
            list(groups), since=since, step=timedelta(hours=1), count=hours
        )
        return found

    @twin(trend)
    def atrend(self) -> None:
        """`trend` without blocking the event loop."""

    @blocking
    def discard(
        self,
        ids: Sequence[str] | None = None,
        *,
        task: str | None = None,
        queue: str | None = None,
        group: str | None = None,
        dry_run: bool = False,
    ) -> Operation[int]:
        """Delete dead jobs for good: those with these ids, or all that match. Returns their number."""
        which: JobFilter | Sequence[str]
        if ids is not None:
            if task is not None or queue is not None or group is not None:
                raise ConfigError("discard takes ids, or a filter (task=, queue=, group=), not both")
            which = [ids] if isinstance(ids, str) else list(ids)
        elif task is None and queue is None and group is None:
            raise ConfigError("discard needs ids, task=, queue= or group=; purge deletes by age")
        else:
            which = JobFilter(states=(JobState.DEAD,), task=task, queue=queue, fingerprint=group)
        matched, gone = yield from discard(self._client.driver(), which, dry_run=dry_run)
        return matched if dry_run else gone

    @twin(discard)
    def adiscard(self) -> None:
        """`discard` without blocking the event loop."""

    @blocking
    def purge(
        self,
        *,
        older_than: Duration | None = None,
        keep: int | None = None,
        max_bytes: int | None = None,
        task: str | None = None,
        queue: str | None = None,
        dry_run: bool = False,
    ) -> Operation[int]:
        """Delete dead jobs for good and return their number.

        It deletes jobs that died `older_than` ago, all but the newest `keep` of each task, and those
        beyond `max_bytes` of each task.
        """
        return (
            yield from purge(
                self._client.driver(),
                older_than=older_than,
                keep=keep,
                max_bytes=max_bytes,
                task=task,
                queue=queue,
                dry_run=dry_run,
            )
        )

    @twin(purge)
    def apurge(self) -> None:
        """`purge` without blocking the event loop."""


def purge(
    driver: Driver,
    *,
    older_than: Duration | None,
    keep: int | None,
    max_bytes: int | None,
    task: str | None,
    queue: str | None,
    dry_run: bool,
) -> Operation[int]:
    """Delete dead jobs for good, in bounded batches; returns how many."""
    if older_than is None and keep is None and max_bytes is None:
        raise ConfigError(
            "purge needs a rule: older_than=, keep= or max_bytes=; older_than='0s' deletes all"
        )
    for name, number in (("keep", keep), ("max_bytes", max_bytes)):
        if number is not None and number < 0:
            raise ConfigError(f"{name} must not be negative, got {number}")
    age: timedelta | None = None
    if older_than is not None:
        age = parse_duration(older_than, "older_than")
    which = Trim(
        task=task,
        queue=queue,
        older_than=age,
        count=keep,
        bytes=max_bytes,
        is_forced=True,
        is_dry_run=dry_run,
        limit=PURGE_BATCH,
    )
    total = 0
    while True:
        gone: int = yield driver.trim(which)
        total += gone
        if dry_run or gone < PURGE_BATCH:
            break
    if not dry_run:
        rules = {"keep": keep, "max_bytes": max_bytes, "task": task, "queue": queue}
        older = None if age is None else format_duration(age)
        yield from noted(driver, "purge dead", "jobs", older_than=older, **rules, purged=total)
    return total

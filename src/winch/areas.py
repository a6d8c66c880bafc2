"""What an app says by area: `app.jobs`, `app.dead`, `app.queues`, `app.schedules`, `app.workers`."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from winch.core.errors import ConfigError, did_you_mean
from winch.core.lifecycle import JobState
from winch.engine.client import Client
from winch.engine.job_desk import actor
from winch.engine.options import check_queue
from winch.engine.task import Unset
from winch.storage.params import DeadGroup, JobFilter, QueueInfo, SessionInfo

if TYPE_CHECKING:
    from winch.core.clock import Clock
    from winch.core.duration import Duration
    from winch.core.queue_settings import QueueSettings
    from winch.engine.dead import DeadLetters, Replayed
    from winch.engine.handle import Job
    from winch.engine.registry import Registry
    from winch.engine.runtime import Runtime
    from winch.engine.schedules import Run, Schedule, ScheduleDesk
    from winch.engine.task import Task
    from winch.storage.protocol import Driver


class Host(Protocol):
    """What the areas need of the app."""

    client: Client
    clock: Clock
    runtime: Runtime

    @property
    def tasks(self) -> Registry: ...

    def ready(self) -> Driver:
        """The store, opened and checked."""
        ...


class Jobs:
    """`app.jobs`: find and act on jobs."""

    def __init__(self, host: Host) -> None:
        self._client = host.client

    def get(self, job_id: str) -> Job[Any]:
        """The job; raises JobNotFound."""
        from winch.engine.handle import Job

        return Job(self._client, job_id, self._client.get(job_id))

    def list(
        self,
        *,
        state: str | Sequence[str] | None = None,
        task: str | None = None,
        queue: str | None = None,
        tag: str | None = None,
        group: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> JobList:
        """Jobs that match, newest first; `.next` is the cursor of the following page. `group` is the
        fingerprint of dead jobs."""
        which = JobFilter(
            states=_states(state),
            task=task,
            queue=queue,
            tag=tag,
            fingerprint=group,
            limit=limit,
            after=after,
        )
        if not 1 <= limit <= 1000:
            raise ConfigError(f"limit must be from 1 to 1000, got {limit}")
        jobs, following = self._client.run(self._client.page(which))
        return JobList(jobs, following)

    def cancel(self, job_id: str, *, reason: str | None = None) -> JobState:
        """Cancel the job; returns the state it was in. Raises InvalidTransition when final."""
        return self._client.cancel(job_id, reason=reason)

    def retry(self, job_id: str) -> JobState:
        """Make the job ready now; returns the state it was in."""
        return self._client.retry(job_id)

    def delete(self, job_id: str) -> JobState:
        """Remove the job for good; returns the state it was in."""
        return self._client.delete(job_id)


class JobList(list["Job[Any]"]):
    """A page of jobs; `next` is the cursor to pass as `after`, None at the end."""

    def __init__(self, jobs: Iterable[Job[Any]], following: str | None) -> None:
        super().__init__(jobs)
        self.next = following


class Dead:
    """`app.dead`: the dead-letter state."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def list(
        self,
        *,
        task: str | None = None,
        queue: str | None = None,
        group: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> JobList:
        """Dead jobs, newest first; `group` is a fingerprint."""
        return Jobs(self._host).list(
            state="dead", task=task, queue=queue, group=group, limit=limit, after=after
        )

    def groups(
        self, *, task: str | None = None, queue: str | None = None, limit: int = 50
    ) -> builtins.list[DeadGroup]:
        """The dead jobs by what they died of: most jobs first, then the latest."""
        return self._host.client.run(self._letters.groups(task, queue, limit))

    def replay(
        self,
        ids: Sequence[str] | None = None,
        *,
        task: str | None = None,
        queue: str | None = None,
        group: str | None = None,
        rate: str | None = None,
        args: Mapping[str, Any] | None = None,
        attempts: int | None = None,
        to_queue: str | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> Replayed:
        """Make dead jobs ready again: those with these ids, or all that match; returns counts.

        `args` replaces their arguments, checked against the task (`force` for a task that is not
        registered here), `attempts` and `to_queue` what they say. `rate` ("100/s") paces it by pauses
        between small batches; the call returns when all are done.
        """
        which: JobFilter | Sequence[str]
        if ids is not None:
            if task is not None or queue is not None or group is not None:
                raise ConfigError("replay takes ids, or a filter (task=, queue=, group=), not both")
            which = [ids] if isinstance(ids, str) else ids
        else:
            which = JobFilter(states=(JobState.DEAD,), task=task, queue=queue, fingerprint=group)
        return self._host.client.run(
            self._letters.replay(
                which,
                by=actor(),
                rate=rate,
                args=args,
                attempts=attempts,
                to_queue=to_queue,
                force=force,
                dry_run=dry_run,
            )
        )

    def purge(
        self,
        *,
        older_than: Duration | None = None,
        keep: int | None = None,
        max_bytes: int | None = None,
        task: str | None = None,
        queue: str | None = None,
        dry_run: bool = False,
    ) -> int:
        """Delete dead jobs for good: those that died `older_than` ago, all but the newest `keep` of each
        task, what goes past `max_bytes` of each task; returns how many."""
        return self._host.client.run(
            self._letters.purge(
                older_than=older_than,
                keep=keep,
                max_bytes=max_bytes,
                task=task,
                queue=queue,
                dry_run=dry_run,
            )
        )

    @property
    def _letters(self) -> DeadLetters:
        from winch.engine.dead import DeadLetters

        return DeadLetters(self._host.ready, self._host.tasks, self._host.runtime.keys)


class Queues:
    """`app.queues`: look at, pause and resume queues."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def list(self) -> list[QueueInfo]:
        driver = self._host.ready()
        return driver.run(driver.queues())

    def pause(
        self, queue: str, *, reason: str | None = None, until: Duration | datetime | None = None
    ) -> None:
        """Claim nothing more from this queue; running jobs go on. With `until`, a time from now or a
        moment, a worker resumes it then."""
        from winch.engine.queue_desk import pause

        self._host.client.run(pause(self._host.ready(), check_queue(queue), reason, until, self._now()))

    def resume(self, queue: str) -> None:
        """Let workers claim from this queue again."""
        from winch.engine.queue_desk import resume

        self._host.client.run(resume(self._host.ready(), check_queue(queue)))

    def configure(
        self,
        queue: str,
        *,
        concurrency: int | Unset | None = msgspec.UNSET,
        retries: int | Unset | None = msgspec.UNSET,
        backoff: Duration | Unset | None = msgspec.UNSET,
        max_depth: int | Unset | None = msgspec.UNSET,
        max_age: Duration | Unset | None = msgspec.UNSET,
        on_full: Literal["reject", "block", "shed", "delay"] | Unset | None = msgspec.UNSET,
        block_for: Duration | Unset | None = msgspec.UNSET,
        drain: str | Unset | None = msgspec.UNSET,
        order: Literal["aged", "strict"] | Unset | None = msgspec.UNSET,
        **unknown: Any,
    ) -> QueueSettings:
        """Set what is said here, for all workers and producers, within a second or two; None takes a
        setting back. Returns all settings of the queue.

        `concurrency` is how many jobs run at once, of those enqueued since it was first set. `retries`
        and `backoff` (one delay for all) go before the policy of the task. A queue with
        `max_depth` ready jobs, or whose oldest waits longer than `max_age`, is full: then an enqueue
        raises QueueFull ("reject"), waits up to `block_for` first ("block"), drops jobs of a priority
        below 0 ("shed"), or puts jobs off so that `drain` ("100/s") of them come ("delay").
        `order` is "aged", where a level of priority is a minute's head start and nothing starves, or
        "strict": those enqueued from then on run by priority, and a lower one only when no higher waits.
        """
        from winch.engine.queue_desk import configure

        given = {
            "concurrency": concurrency,
            "retries": retries,
            "backoff": backoff,
            "max_depth": max_depth,
            "max_age": max_age,
            "on_full": on_full,
            "block_for": block_for,
            "drain": drain,
            "order": order,
            **unknown,
        }
        said = {name: value for name, value in given.items() if value is not msgspec.UNSET}
        return self._host.client.run(configure(self._host.ready(), check_queue(queue), said))

    def settings(self) -> dict[str, QueueSettings]:
        """What is set, by queue."""
        from winch.engine.queue_desk import settings

        return self._host.client.run(settings(self._host.ready()))

    def _now(self) -> datetime:
        return self._host.clock.now()


class Schedules:
    """`app.schedules`: entries that enqueue jobs by the clock."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def add(
        self,
        name: str,
        task: str | Task[Any, Any],
        *,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str | None = None,
        dst: Literal["once", "skip", "twice"] | None = None,
        misfire: Literal["skip", "latest", "all"] | None = None,
        catch_up: int | None = None,
        overlap: Literal["allow", "skip", "queue"] | None = None,
        jitter: Duration | None = None,
        args: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Schedule:
        """Add a schedule that stays until it is removed. Adding the same one again changes nothing; one
        of that name with another definition is refused."""
        said = schedule_options(cron, every, tz, dst, misfire, catch_up, overlap, jitter, options)
        return self._host.client.run(self._desk.add(name, task, args, said))

    def edit(
        self,
        name: str,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str | None = None,
        dst: Literal["once", "skip", "twice"] | None = None,
        misfire: Literal["skip", "latest", "all"] | None = None,
        catch_up: int | None = None,
        overlap: Literal["allow", "skip", "queue"] | None = None,
        jitter: Duration | None = None,
        args: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Schedule:
        """Change what is said here; other times count from now on. Not for one that code defines."""
        said = schedule_options(cron, every, tz, dst, misfire, catch_up, overlap, jitter, options)
        return self._host.client.run(self._desk.edit(name, args, said))

    def get(self, name: str) -> Schedule:
        """The schedule; raises ScheduleNotFound."""
        return self._host.client.run(self._desk.get(name))

    def list(self) -> builtins.list[Schedule]:
        """All schedules, by name."""
        return self._host.client.run(self._desk.list())

    def pause(self, name: str, *, reason: str | None = None) -> None:
        """No more windows until `resume`."""
        self._host.client.run(self._desk.pause(name, reason))

    def resume(self, name: str) -> None:
        """Windows count again from now on; those that passed meanwhile get no job."""
        self._host.client.run(self._desk.resume(name))

    def trigger(self, name: str) -> Job[Any]:
        """Enqueue its job now, whatever the time and the policies say."""
        from winch.engine.handle import Job

        run = self._host.client.run(self._desk.trigger(name))
        return Job(self._host.client, run.job or "")

    def skip(self, name: str) -> datetime:
        """No job for the next window; returns it."""
        return self._host.client.run(self._desk.skip(name))

    def remove(self, name: str) -> None:
        """Forget the schedule; its jobs stay. Not for one that the code of a live worker defines."""
        self._host.client.run(self._desk.remove(name))

    def next(self, name: str, count: int = 5) -> builtins.list[datetime]:
        """The next windows, in UTC."""
        return self.get(name).next(count)

    def history(self, name: str, *, limit: int = 30) -> builtins.list[Run]:
        """What became of the latest windows, newest first."""
        return self._host.client.run(self._desk.history(name, limit))

    @property
    def _desk(self) -> ScheduleDesk:
        from winch.engine.schedules import ScheduleDesk

        return ScheduleDesk(self._host.ready, self._host.tasks, self._host.client.draw_id)


def schedule_options(
    cron: str | None,
    every: Duration | None,
    tz: str | None,
    dst: str | None,
    misfire: str | None,
    catch_up: int | None,
    overlap: str | None,
    jitter: Duration | None,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    return {
        "cron": cron,
        "every": every,
        "tz": tz,
        "dst": dst,
        "misfire": misfire,
        "catch_up": catch_up,
        "overlap": overlap,
        "jitter": jitter,
        **options,
    }


class Workers:
    """`app.workers`: the sessions of workers that the store knows."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def list(self, *, is_ended_too: bool = False) -> list[SessionInfo]:
        driver = self._host.ready()
        found = driver.run(driver.sessions(is_ended_too=is_ended_too))
        return [session for session in found if session.is_worker]


def _states(given: str | Sequence[str] | None) -> tuple[JobState, ...]:
    if given is None:
        return ()
    names = [given] if isinstance(given, str) else list(given)
    known = [str(state) for state in JobState]
    for name in names:
        if name not in known:
            raise ConfigError(
                f"state must be one of {', '.join(known)}, got {name!r}{did_you_mean(name, known)}"
            )
    return tuple(JobState(name) for name in names)


__all__ = ["Dead", "Host", "JobList", "Jobs", "Queues", "Schedules", "Workers", "schedule_options"]

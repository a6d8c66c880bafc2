"""The operator API by area: `app.jobs`, `app.dead`, `app.queues`, `app.schedules`, `app.workers`,
`app.limits`.

Each method is written once, as an operation; see engine/client/twins.py for its two forms."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from winch.core.errors import ConfigError
from winch.core.gates import GateSpec
from winch.core.lifecycle import JobState
from winch.engine.base.operation import Operation
from winch.engine.client import operations
from winch.engine.client.audit import actor, noted
from winch.engine.client.client import Client
from winch.engine.client.job import Job
from winch.engine.client.twins import blocking, twin
from winch.engine.tasks.gates import parse_limit
from winch.engine.tasks.options import check_queue, check_states
from winch.engine.tasks.task import Unset
from winch.storage.params import DeadGroup, JobFilter, LimitInfo, QueueInfo, SessionInfo

if TYPE_CHECKING:
    from winch.areas.dead import DeadLetters, Replayed
    from winch.areas.queue_purge import Purged
    from winch.areas.schedules import ScheduleDesk
    from winch.core.policy.queue_settings import QueueSettings
    from winch.core.policy.retry import Retry
    from winch.core.values.clock import Clock
    from winch.core.values.duration import Duration
    from winch.engine.tasks.registry import Registry
    from winch.engine.tasks.runtime import Runtime
    from winch.engine.tasks.schedules import Run, Schedule
    from winch.engine.tasks.task import Task
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

    @blocking
    def get(self, job_id: str) -> Operation[Job[Any]]:
        """The job; raises JobNotFound."""
        record = yield from operations.get(self._client.driver(), job_id)
        return Job(self._client, job_id, record)

    @twin(get)
    def aget(self) -> None:
        """`get` without blocking the event loop."""

    @blocking
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
    ) -> Operation[JobList]:
        """Jobs that match, newest first; `.next` is the cursor of the following page. `group` is the
        fingerprint of dead jobs."""
        which = JobFilter(
            states=check_states(state),
            task=task,
            queue=queue,
            tag=tag,
            fingerprint=group,
            limit=limit,
            after=after,
        )
        return (yield from _page(self._client, which))

    @twin(list)
    def alist(self) -> None:
        """`list` without blocking the event loop."""

    @blocking
    def cancel(self, job_id: str, *, reason: str | None = None) -> Operation[JobState]:
        """Cancel the job; returns the state it was in. Raises InvalidTransition when final."""
        return (yield from self._client.cancelling(job_id, reason, None))

    @twin(cancel)
    def acancel(self) -> None:
        """`cancel` without blocking the event loop."""

    @blocking
    def retry(self, job_id: str) -> Operation[JobState]:
        """Make the job ready now; returns the state it was in."""
        return (yield from operations.retry(self._client.driver(), job_id, None))

    @twin(retry)
    def aretry(self) -> None:
        """`retry` without blocking the event loop."""

    @blocking
    def delete(self, job_id: str) -> Operation[JobState]:
        """Remove the job for good; returns the state it was in."""
        return (yield from operations.delete(self._client.driver(), job_id, None))

    @twin(delete)
    def adelete(self) -> None:
        """`delete` without blocking the event loop."""


def _page(client: Client, which: JobFilter) -> Operation[JobList]:
    if not 1 <= which.limit <= 1000:
        raise ConfigError(f"limit must be from 1 to 1000, got {which.limit}")
    jobs, following = yield from client.page(which)
    return JobList(jobs, following)


class JobList(list["Job[Any]"]):
    """A page of jobs; `next` is the cursor to pass as `after`, None at the end."""

    def __init__(self, jobs: Iterable[Job[Any]], following: str | None) -> None:
        super().__init__(jobs)
        self.next = following


class Dead:
    """`app.dead`: the dead-letter state."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._client = host.client

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
        return (yield from _page(self._client, which))

    @twin(list)
    def alist(self) -> None:
        """`list` without blocking the event loop."""

    @blocking
    def groups(
        self, *, task: str | None = None, queue: str | None = None, limit: int = 50
    ) -> Operation[builtins.list[DeadGroup]]:
        """The dead jobs by what they died of: most jobs first, then the latest."""
        return (yield from self._letters.groups(task, queue, limit))

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
        rate: str | None = None,
        args: Mapping[str, Any] | None = None,
        attempts: int | None = None,
        to_queue: str | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> Operation[Replayed]:
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
        return (
            yield from self._letters.replay(
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

    @twin(replay)
    def areplay(self) -> None:
        """`replay` without blocking the event loop."""

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
        """Delete dead jobs for good: those that died `older_than` ago, all but the newest `keep` of each
        task, what goes past `max_bytes` of each task; returns how many."""
        return (
            yield from self._letters.purge(
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

    @property
    def _letters(self) -> DeadLetters:
        from winch.areas.dead import DeadLetters

        return DeadLetters(self._host.ready, self._host.tasks, self._host.runtime.keys)


class Queues:
    """`app.queues`: look at, pause and resume queues."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._client = host.client

    @blocking
    def list(self) -> Operation[builtins.list[QueueInfo]]:
        """Every queue that has live jobs, settings or a worker, by name."""
        found: builtins.list[QueueInfo] = yield self._host.ready().queues()
        return found

    @twin(list)
    def alist(self) -> None:
        """`list` without blocking the event loop."""

    @blocking
    def pause(
        self, queue: str, *, reason: str | None = None, until: Duration | datetime | None = None
    ) -> Operation[None]:
        """Claim nothing more from this queue; running jobs go on. With `until`, a time from now or a
        moment, a worker resumes it then."""
        from winch.areas.queues import pause

        yield from pause(self._host.ready(), check_queue(queue), reason, until, self._now())

    @twin(pause)
    def apause(self) -> None:
        """`pause` without blocking the event loop."""

    @blocking
    def resume(self, queue: str) -> Operation[None]:
        """Let workers claim from this queue again."""
        from winch.areas.queues import resume

        yield from resume(self._host.ready(), check_queue(queue))

    @twin(resume)
    def aresume(self) -> None:
        """`resume` without blocking the event loop."""

    @blocking
    def configure(
        self,
        /,
        queue: str,
        *,
        concurrency: int | Unset | None = msgspec.UNSET,
        retries: int | Unset | None = msgspec.UNSET,
        backoff: Duration | Retry | Unset | None = msgspec.UNSET,
        max_depth: int | Unset | None = msgspec.UNSET,
        max_age: Duration | Unset | None = msgspec.UNSET,
        on_full: Literal["reject", "block", "shed", "delay"] | Unset | None = msgspec.UNSET,
        block_for: Duration | Unset | None = msgspec.UNSET,
        drain: str | Unset | None = msgspec.UNSET,
        order: Literal["aged", "strict"] | Unset | None = msgspec.UNSET,
        **unknown: Any,
    ) -> Operation[QueueSettings]:
        """Set what is said here, for all workers and producers, within a second or two; None takes a
        setting back. Returns all settings of the queue.

        `concurrency` is how many jobs run at once, of those enqueued since it was first set. `retries`
        and `backoff` (one delay for all, or the delays of a `Retry`, also in words:
        "exponential 2s max=5m") go before the policy of the task. A queue with
        `max_depth` ready jobs, or whose oldest waits longer than `max_age`, is full: then an enqueue
        raises QueueFull ("reject"), waits up to `block_for` first ("block"), drops jobs of a priority
        below 0 ("shed"), or puts jobs off so that `drain` ("100/s") of them come ("delay").
        `order` is "aged", where a level of priority is a minute's head start and nothing starves, or
        "strict": those enqueued from then on run by priority, and a lower one only when no higher waits.
        """
        from winch.areas.queues import configure

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
        return (yield from configure(self._host.ready(), check_queue(queue), said))

    @twin(configure)
    def aconfigure(self) -> None:
        """`configure` without blocking the event loop."""

    @blocking
    def purge(self, queue: str, *, dry_run: bool = False) -> Operation[Purged]:
        """Remove the jobs that wait in this queue: ready, scheduled, retrying and blocked ones. Running
        ones go on. Jobs that a flow, a batch or another job waits for are cancelled, all others deleted
        for good; returns how many of each. With `dry_run` it only counts."""
        from winch.areas.queue_purge import purge

        return (yield from purge(self._host.ready(), check_queue(queue), dry_run=dry_run))

    @twin(purge)
    def apurge(self) -> None:
        """`purge` without blocking the event loop."""

    @blocking
    def settings(self) -> Operation[dict[str, QueueSettings]]:
        """What is set, by queue."""
        from winch.areas.queues import settings

        return (yield from settings(self._host.ready()))

    @twin(settings)
    def asettings(self) -> None:
        """`settings` without blocking the event loop."""

    def _now(self) -> datetime:
        return self._host.clock.now()


class Schedules:
    """`app.schedules`: entries that enqueue jobs by the clock."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._client = host.client

    @blocking
    def add(
        self,
        /,
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
    ) -> Operation[Schedule]:
        """Add a schedule that stays until it is removed. Adding the same one again changes nothing; one
        of that name with another definition is refused."""
        said = schedule_options(cron, every, tz, dst, misfire, catch_up, overlap, jitter, options)
        return (yield from self._desk.add(name, task, args, said))

    @twin(add)
    def aadd(self) -> None:
        """`add` without blocking the event loop."""

    @blocking
    def edit(
        self,
        /,
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
    ) -> Operation[Schedule]:
        """Change what is said here; other times count from now on. Not for one that code defines."""
        said = schedule_options(cron, every, tz, dst, misfire, catch_up, overlap, jitter, options)
        return (yield from self._desk.edit(name, args, said))

    @twin(edit)
    def aedit(self) -> None:
        """`edit` without blocking the event loop."""

    @blocking
    def get(self, name: str) -> Operation[Schedule]:
        """The schedule; raises ScheduleNotFound."""
        return (yield from self._desk.get(name))

    @twin(get)
    def aget(self) -> None:
        """`get` without blocking the event loop."""

    @blocking
    def list(self) -> Operation[builtins.list[Schedule]]:
        """All schedules, by name."""
        return (yield from self._desk.list())

    @twin(list)
    def alist(self) -> None:
        """`list` without blocking the event loop."""

    @blocking
    def pause(self, name: str, *, reason: str | None = None) -> Operation[None]:
        """No more windows until `resume`."""
        yield from self._desk.pause(name, reason)

    @twin(pause)
    def apause(self) -> None:
        """`pause` without blocking the event loop."""

    @blocking
    def resume(self, name: str) -> Operation[None]:
        """Windows count again from now on; those that passed meanwhile get no job."""
        yield from self._desk.resume(name)

    @twin(resume)
    def aresume(self) -> None:
        """`resume` without blocking the event loop."""

    @blocking
    def trigger(self, name: str) -> Operation[Job[Any]]:
        """Enqueue its job now, whatever the time and the policies say."""
        run = yield from self._desk.trigger(name)
        return Job(self._client, run.job or "")

    @twin(trigger)
    def atrigger(self) -> None:
        """`trigger` without blocking the event loop."""

    @blocking
    def skip(self, name: str) -> Operation[datetime]:
        """No job for the next window; returns it."""
        return (yield from self._desk.skip(name))

    @twin(skip)
    def askip(self) -> None:
        """`skip` without blocking the event loop."""

    @blocking
    def remove(self, name: str) -> Operation[None]:
        """Forget the schedule; its jobs stay. Not for one that the code of a live worker defines."""
        yield from self._desk.remove(name)

    @twin(remove)
    def aremove(self) -> None:
        """`remove` without blocking the event loop."""

    @blocking
    def next(self, name: str, count: int = 5) -> Operation[builtins.list[datetime]]:
        """The next windows, in UTC."""
        return (yield from self._desk.get(name)).next(count)

    @twin(next)
    def anext(self) -> None:
        """`next` without blocking the event loop."""

    @blocking
    def history(self, name: str, *, limit: int = 30) -> Operation[builtins.list[Run]]:
        """What became of the latest windows, newest first."""
        return (yield from self._desk.history(name, limit))

    @twin(history)
    def ahistory(self) -> None:
        """`history` without blocking the event loop."""

    @property
    def _desk(self) -> ScheduleDesk:
        from winch.areas.schedules import ScheduleDesk

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
        self._client = host.client

    @blocking
    def list(self, *, is_ended_too: bool = False) -> Operation[builtins.list[SessionInfo]]:
        """The workers' sessions, latest start first; those that have ended only where asked for."""
        found: builtins.list[SessionInfo] = yield self._host.ready().sessions(is_ended_too=is_ended_too)
        return [session for session in found if session.is_worker]

    @twin(list)
    def alist(self) -> None:
        """`list` without blocking the event loop."""


class Limits:
    """`app.limits`: look at limits, rates and tenants' weights, and set them while workers run."""

    def __init__(self, host: Host) -> None:
        self._client = host.client

    @blocking
    def list(self) -> Operation[builtins.list[LimitInfo]]:
        """Every limit that is set, in use, or waited at; by name."""
        found: builtins.list[LimitInfo] = yield self._client.driver().limits()
        return found

    @twin(list)
    def alist(self) -> None:
        """`list` without blocking the event loop."""

    @blocking
    def set(self, name: str, value: int | str) -> Operation[None]:
        """Set a limit ("limit:shop.charge" to 5), a rate ("rate:shop.charge" to "100/m") or the weight
        of a tenant ("tenant:acme" to 3) for the whole fleet, from now on, whatever the code says."""
        spec = parse_limit(value)
        kind, _, rest = name.partition(":")
        if kind not in ("limit", "rate", "budget", "tenant", "queue") or not rest or "=" in name:
            raise ConfigError(
                "a limit's name begins with limit:, rate:, budget: or tenant: and says whose it is, "
                f"such as limit:shop.charge:merchant; got {name!r}. `winch limits list` shows them"
            )
        if (kind in ("rate", "budget")) != bool(spec.per):
            wanted = "a rate such as 100/m" if kind in ("rate", "budget") else "a number such as 5"
            raise ConfigError(f"{name} takes {wanted}, got {value!r}")
        driver = self._client.driver()
        known = {info.name: info.spec for info in (yield driver.limits())}
        if (before := known.get(name)) is not None and spec.per:
            spec = GateSpec(spec.n, spec.per, before.how)
        yield driver.set_limits({name: spec}, by=actor())
        yield from noted(driver, "set limit", name, value=value)

    @twin(set)
    def aset(self) -> None:
        """`set` without blocking the event loop."""

    @blocking
    def reset(self, name: str) -> Operation[None]:
        """Forget what a person has set; what the code says counts again."""
        driver = self._client.driver()
        yield driver.set_limits({name: None}, by=actor())
        yield from noted(driver, "reset limit", name)

    @twin(reset)
    def areset(self) -> None:
        """`reset` without blocking the event loop."""


__all__ = [
    "Dead",
    "Host",
    "JobList",
    "Jobs",
    "Limits",
    "Queues",
    "Schedules",
    "Workers",
    "schedule_options",
]

"""The composition root: a URL becomes a driver, functions become tasks, and both become an app."""

from __future__ import annotations

import builtins
import contextlib
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

import msgspec

from winch.core.clock import Clock
from winch.core.errors import ConfigError, SchemaMismatch, did_you_mean
from winch.core.lifecycle import JobState
from winch.drivers.connect import connect
from winch.engine.client import Client, Surroundings, actor
from winch.engine.collected import Collected
from winch.engine.events import JobEvent
from winch.engine.gating import LimitDesk
from winch.engine.middleware import Middleware
from winch.engine.options import TaskOptions, _name, check_queue, task_options
from winch.engine.registry import Registry, default_name
from winch.engine.runtime import Runtime
from winch.engine.settings import Loaded, Settings, load
from winch.engine.spool import Spool
from winch.engine.task import Bound, Task, Unset, task_class
from winch.storage.params import DeadGroup, JobFilter, QueueInfo, SessionInfo

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from typing import Never

    from winch.core.duration import Duration
    from winch.core.limits import Breaker, Limit, Rate, RetryBudget
    from winch.core.queue_settings import QueueSettings
    from winch.core.retention import Retention
    from winch.core.retry import Retry
    from winch.core.unique import Unique
    from winch.engine.context import Context
    from winch.engine.dead import DeadLetters, Replayed
    from winch.engine.flow_look import Flows
    from winch.engine.handle import Job
    from winch.engine.idempotency import Idempotency
    from winch.engine.keyring import Keyring
    from winch.engine.outbox import Outbox
    from winch.engine.preflight import Preflight
    from winch.engine.schedules import Run, Schedule, ScheduleDesk
    from winch.engine.task import AsyncContextTask, AsyncTask, CollectingTask, ContextTask
    from winch.storage.protocol import Driver

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
L = TypeVar("L", bound=Callable[..., Any])
K = TypeVar("K", bound="Task[..., Any]")


class SystemClock:
    """The machine's clocks: wall time for ids, monotonic time for local deadlines."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


class App:
    """Tasks and the store their jobs live in.

    The store is chosen by `url`, which $WINCH_URL and the configuration files override. Nothing is
    opened until it is needed.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        schema: str | None = None,
        events: Literal["off", "full"] | None = None,
        lease: Duration | None = None,
        heartbeat: Duration | None = None,
        sweep: Duration | None = None,
        poll: Duration | None = None,
        grace: Duration | None = None,
        concurrency: int | None = None,
        kill_after: Duration | None = None,
        max_jobs: int | None = None,
        max_memory: int | str | None = None,
        max_lifetime: Duration | None = None,
        keys: Keyring | None = None,
        spool: str | None = None,
        **unknown: Never,
    ) -> None:
        self._code: dict[str, Any] = {
            "url": url,
            "schema": schema,
            "events": events,
            "lease": lease,
            "heartbeat": heartbeat,
            "sweep": sweep,
            "poll": poll,
            "grace": grace,
            "concurrency": concurrency,
            "kill_after": kill_after,
            "max_jobs": max_jobs,
            "max_memory": max_memory,
            "max_lifetime": max_lifetime,
            "keys": keys,
            "spool": spool,
        }
        for name in unknown:
            raise ConfigError(f"App() has no setting {name!r}{did_you_mean(name, self._code)}")
        self._loaded: Loaded | None = None
        self._driver: Driver | None = None
        self._opening = threading.Lock()
        self.clock: Clock = SystemClock()
        self.runtime: Runtime = Runtime()
        self.runtime.keys = lambda: self.settings.keys
        self.runtime.lease = lambda: self.settings.lease
        self._spool: Spool | None = None
        self._outbox: Outbox | None = None
        self.client: Client = Client(
            self.ready,
            Surroundings(self.clock),
            self.runtime,
            unchecked=lambda: (self.driver, self._is_checked),
            spool=lambda: self.spool,
        )
        self.jobs: Jobs = Jobs(self)
        self.dead: Dead = Dead(self)
        self.queues: Queues = Queues(self)
        self.limits: LimitDesk = LimitDesk(self.ready, actor)
        self.schedules: Schedules = Schedules(self)
        self.workers: Workers = Workers(self)

    # -- settings and store ------------------------------------------------------------------------

    def configure(self, cli: Mapping[str, Any], *, config: str | None = None) -> Loaded:
        """Settle the settings with what the command line said; before the store is first used."""
        if self._driver is not None:
            raise ConfigError("the app's store is in use already; configure it before")
        self._loaded = load(code=self._code, cli=cli, config=config)
        return self._loaded

    @property
    def loaded(self) -> Loaded:
        if self._loaded is None:
            self._loaded = load(code=self._code)
        return self._loaded

    @property
    def settings(self) -> Settings:
        return self.loaded.settings

    @property
    def driver(self) -> Driver:
        """The store's driver, whether or not its schema is ready."""
        if self._driver is None:
            with self._opening:  # the first jobs of several threads ask at the same time
                if self._driver is None:
                    said = self.settings
                    self._driver = connect(
                        said.url, clock=self.clock, schema=said.schema, events=said.events == "full"
                    )
        return self._driver

    def ready(self) -> Driver:
        """The driver, once it is known that the store can be reached and its schema fits."""
        driver = self.driver
        if not self._is_checked:
            status = driver.check_schema()
            if not status.is_ready and driver.capabilities.migrates_itself:
                driver.migrate()
            elif not status.is_ready:
                raise SchemaMismatch(
                    f"{driver.describe()} has schema {status.current or 'none'}, this release needs "
                    f"{status.newest}: run `winch migrate`"
                )
            self._is_checked = True
        return driver

    _is_checked = False

    @property
    def spool(self) -> Spool | None:
        """Where jobs are kept while the store is out of reach, if anywhere."""
        if self._spool is None and self.settings.spool is not None:
            self._spool = Spool(Path(self.settings.spool).expanduser().absolute(), self.clock)
        return self._spool

    def forward_spool(self) -> int:
        """Hand the spooled jobs to the store; returns how many. Workers do this by themselves."""
        return self.client.run(self.client.forward_spool())

    async def aforward_spool(self) -> int:
        """`forward_spool` without blocking the event loop."""
        return await self.client.arun(self.client.forward_spool())

    def migrate(self) -> list[str]:
        """Bring the store's schema up to date; returns the steps taken."""
        return self.driver.migrate()

    def transaction(self) -> AbstractContextManager[Any]:
        """A connection of the store in a transaction of its own, to pass as `conn=`: commits at the end
        of the block, rolls back on an exception. With SQLite it is the way to enqueue with one's own
        writes; with PostgreSQL any connection of one's own does as well."""
        transaction = getattr(self.ready(), "transaction", None)
        if transaction is None:
            raise ConfigError(
                f"app.transaction() needs a store with transactions; {self.driver.describe()} has none"
            )
        opened: AbstractContextManager[Any] = transaction()
        return opened

    def close(self) -> None:
        """Give the store's connections back. The app may be used again."""
        if self._driver is not None:
            self._driver.close()

    async def aclose(self) -> None:
        if self._driver is not None:
            await self._driver.aclose()

    @contextlib.contextmanager
    def standing_in(self, driver: Driver, surroundings: Surroundings) -> Iterator[None]:
        """Use this store and these surroundings for the length of the block, then those from before.

        What `winch.testing` stands on; an application chooses its store by its URL.
        """
        client = self.client
        before = (self._driver, self._is_checked, self.clock, client.surroundings, client.last_tick)
        self._driver, self._is_checked, self.clock = driver, True, surroundings.clock
        client.surroundings, client.last_tick = surroundings, 0
        try:
            yield
        finally:
            self._driver, self._is_checked, self.clock = before[:3]
            client.surroundings, client.last_tick = before[3:]

    # -- hooks -------------------------------------------------------------------------------------

    @property
    def tasks(self) -> Registry:
        return self.runtime.tasks

    def lifespan(self, function: L) -> L:
        """Decorate a function that yields a dict of resources: made once per worker process, before it
        claims, and cleaned up after its last job. Handlers find them as `ctx.resources` or `Depends`."""
        self.runtime.add_lifespan(function)
        return function

    def use(self, middleware: Middleware) -> None:
        """Run these hooks around every enqueue and every attempt."""
        if not isinstance(middleware, Middleware):
            raise ConfigError(f"app.use takes an instance of winch.Middleware, got {middleware!r}")
        self.runtime.middleware.append(middleware)

    def on(self, kind: str, function: Callable[[JobEvent], Any]) -> None:
        """Call `function` for every event of this kind that happens in this process."""
        self.runtime.events.on(kind, function)

    # -- tasks -------------------------------------------------------------------------------------

    @overload
    def task(self, fn: Callable[Concatenate[Context, P], Awaitable[R]], /) -> AsyncContextTask[P, R]: ...
    @overload
    def task(self, fn: Callable[Concatenate[Context, P], R], /) -> ContextTask[P, R]: ...
    @overload
    def task(self, fn: Callable[P, Awaitable[R]], /) -> AsyncTask[P, R]: ...
    @overload
    def task(self, fn: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        queue: str = ...,
        priority: int | str = ...,
        retry: Retry = ...,
        timeout: Duration | None = ...,
        expires: Duration | None = ...,
        retention: Duration | Retention | None = ...,
        tags: Sequence[str] = ...,
        isolate: Literal["process"] | None = ...,
        heartbeat: Duration | None = ...,
        version: int = ...,
        unique: str | Unique = ...,
        limit: Limit | Rate | Sequence[Limit | Rate] = ...,
        breaker: Breaker = ...,
        retry_budget: RetryBudget = ...,
        scope: str | Sequence[str] = ...,
    ) -> _Decorator: ...
    @overload
    def task(
        self,
        *,
        collect: int,
        collect_wait: Duration = ...,
        name: str | None = None,
        queue: str = ...,
        priority: int | str = ...,
        retry: Retry = ...,
        timeout: Duration | None = ...,
        expires: Duration | None = ...,
        retention: Duration | None = ...,
        tags: Sequence[str] = ...,
        version: int = ...,
        limit: Limit | Rate | Sequence[Limit | Rate] = ...,
        breaker: Breaker = ...,
        retry_budget: RetryBudget = ...,
        scope: str | Sequence[str] = ...,
    ) -> _CollectingDecorator: ...

    def task(  # type: ignore[misc]  # the overloads name the options that are checked below
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        **options: Any,
    ) -> Any:
        """Register a function as a task; use it bare or with options."""
        checked = task_options(
            {key: value for key, value in options.items() if value is not None or key == "timeout"},
            ("name", *TaskOptions.__struct_fields__),
        )
        if name is not None:
            _name(name, "task name")

        def register(function: Callable[..., Any]) -> Task[Any, Any]:
            if isinstance(function, Task) or not callable(function):
                raise ConfigError(f"@app.task takes a function, got {function!r}")
            title = _name(name or default_name(function), "task name")
            task = task_class(function, is_collecting=checked.collect is not None)(
                self.client, title, function, checked
            )
            self.tasks.add(task)
            return task

        return register if fn is None else register(fn)

    def schedule(
        self,
        cron: str | None = None,
        *,
        every: Duration | None = None,
        tz: str | None = None,
        dst: Literal["once", "skip", "twice"] | None = None,
        misfire: Literal["skip", "latest", "all"] | None = None,
        catch_up: int | None = None,
        overlap: Literal["allow", "skip", "queue"] | None = None,
        jitter: Duration | None = None,
        name: str | None = None,
        args: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Callable[[K], K]:
        """Enqueue a task by the clock: `@app.schedule("0 2 * * *", tz="Asia/Tokyo")` over `@app.task`.

        The schedule is active while a worker with this code runs. `cron` has five fields, names and
        ranges, or is a name such as "@daily"; `every` counts from midnight UTC. `options` are those of
        the job: queue, priority, expires, timeout, retry, retention, tags, headers, unique.
        """
        from winch.engine.schedules import define

        said = _said(cron, every, tz, dst, misfire, catch_up, overlap, jitter, options)

        def register(task: K) -> K:
            if not isinstance(task, Task):
                raise ConfigError(
                    f"@app.schedule goes over @app.task and takes what that gives, got {task!r}"
                )
            title = _name(name or task.name, "schedule name")
            self.runtime.schedules.add(title, define(task, args, said))
            return task

        return register

    def enqueue_many(self, calls: Iterable[Bound[Any]], *, conn: object = None) -> list[Job[Any]]:
        """Store many jobs, one round trip per 1,000. Each thousand is stored whole or not at all;
        with `conn=` all of them belong to the caller's transaction."""
        return self.client.enqueue_many(calls, conn)

    async def aenqueue_many(self, calls: Iterable[Bound[Any]], *, conn: object = None) -> list[Job[Any]]:
        """`enqueue_many` without blocking the event loop."""
        return await self.client.aenqueue_many(calls, conn)

    @property
    def idempotency(self) -> Idempotency:
        """Outside effects that must not happen twice: `with app.idempotency.begin(key) as once`."""
        from winch.engine.idempotency import Idempotency

        return Idempotency(self.client)

    @property
    def outbox(self) -> Outbox:
        """Messages stored with the application's own writes, delivered by workers in order per key."""
        if self._outbox is None:
            from winch.engine.outbox import Outbox

            self._outbox = Outbox(self.client, self.runtime, lambda: self.dead._letters)
        return self._outbox

    @property
    def flows(self) -> Flows:
        """Compositions that were enqueued: look at them, cancel and retry them whole."""
        from winch.engine.flow_look import Flows

        return Flows(self.client)

    def signal(
        self, name: str, payload: object = None, *, id: str | None = None, conn: object = None
    ) -> bool:
        """Send a signal to the job that waits for this name (`ctx.wait_for`), or will. It is kept until
        one takes it. With `id` a repeat of the same signal changes nothing; returns whether it is
        new."""
        return self.client.run(self.client.signal(name, payload, id, conn))

    async def asignal(
        self, name: str, payload: object = None, *, id: str | None = None, conn: object = None
    ) -> bool:
        """`signal` without blocking the event loop."""
        return await self.client.arun(self.client.signal(name, payload, id, conn))

    def preflight(self, *, most: int = 100_000) -> Preflight:
        """Whether this code reads what is queued: run it with the new code before a deploy."""
        from winch.engine.preflight import preflight

        return self.client.run(preflight(self.ready(), self.tasks, self.settings.keys, most))

    # -- workers -----------------------------------------------------------------------------------

    def worker(
        self,
        *,
        queues: Sequence[str] | Mapping[str, int] = ("default",),
        concurrency: int | None = None,
        burst: bool = False,
    ) -> AbstractAsyncContextManager[Any]:
        """A worker inside this process and event loop: `async with app.worker(): …`."""
        from winch.engine.embedded import EmbeddedWorker, cell_command

        self.ready()
        return EmbeddedWorker(
            self,
            queues=queues,
            concurrency=concurrency,
            burst=burst,
            cell_command=cell_command(self._spec()),
        )

    def _spec(self) -> str | None:
        """module:attribute under which this app can be imported again, if there is one."""
        for name, module in list(sys.modules.items()):
            if name != "__main__" and getattr(module, "__file__", None):
                for attribute, value in list(vars(module).items()):
                    if value is self:
                        return f"{name}:{attribute}"
        return None

    def run_worker(
        self,
        *,
        queues: Sequence[str] | Mapping[str, int] = ("default",),
        concurrency: int | None = None,
        burst: bool = False,
    ) -> None:
        """Run a worker in this process until it is stopped, or until no job is left with `burst`."""
        import asyncio

        from winch.engine.embedded import EmbeddedWorker, cell_command

        self.ready()
        worker = EmbeddedWorker(
            self,
            queues=queues,
            concurrency=concurrency,
            burst=burst,
            cell_command=cell_command(self._spec()),
        )
        asyncio.run(worker.run_until_stopped())


class _Decorator:
    """What `@app.task(…)` with options gives; only its type matters."""

    @overload
    def __call__(
        self, fn: Callable[Concatenate[Context, P], Awaitable[R]], /
    ) -> AsyncContextTask[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Context, P], R], /) -> ContextTask[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, Awaitable[R]], /) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, fn: Callable[..., Any], /) -> Any:
        raise TypeError("app.task returns its own function")  # pragma: no cover


class _CollectingDecorator:
    """What `@app.task(collect=…)` gives; only its type matters."""

    def __call__(self, fn: Callable[[list[Collected[T]]], Any], /) -> CollectingTask[T]:
        raise TypeError("app.task returns its own function")  # pragma: no cover


class Jobs:
    """`app.jobs`: find and act on jobs."""

    def __init__(self, app: App) -> None:
        self._client = app.client

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

    def __init__(self, app: App) -> None:
        self._app = app

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
        return self._app.jobs.list(
            state="dead", task=task, queue=queue, group=group, limit=limit, after=after
        )

    def groups(
        self, *, task: str | None = None, queue: str | None = None, limit: int = 50
    ) -> builtins.list[DeadGroup]:
        """The dead jobs by what they died of: most jobs first, then the latest."""
        return self._app.client.run(self._letters.groups(task, queue, limit))

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
        return self._app.client.run(
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
        return self._app.client.run(
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

        return DeadLetters(self._app.ready, self._app.tasks, self._app.runtime.keys)


class Queues:
    """`app.queues`: look at, pause and resume queues."""

    def __init__(self, app: App) -> None:
        self._app = app

    def list(self) -> list[QueueInfo]:
        driver = self._app.ready()
        return driver.run(driver.queues())

    def pause(
        self, queue: str, *, reason: str | None = None, until: Duration | datetime | None = None
    ) -> None:
        """Claim nothing more from this queue; running jobs go on. With `until`, a time from now or a
        moment, a worker resumes it then."""
        from winch.engine.queue_desk import pause

        self._app.client.run(pause(self._app.ready(), check_queue(queue), reason, until, self._now()))

    def resume(self, queue: str) -> None:
        """Let workers claim from this queue again."""
        from winch.engine.queue_desk import resume

        self._app.client.run(resume(self._app.ready(), check_queue(queue)))

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
        **unknown: Any,
    ) -> QueueSettings:
        """Set what is said here, for all workers and producers, within a second or two; None takes a
        setting back. Returns all settings of the queue.

        `concurrency` is how many jobs run at once, of those enqueued since it was first set. `retries`
        and `backoff` (one delay for all) go before the policy of the task. A queue with
        `max_depth` ready jobs, or whose oldest waits longer than `max_age`, is full: then an enqueue
        raises QueueFull ("reject"), waits up to `block_for` first ("block"), drops jobs of a priority
        below 0 ("shed"), or puts jobs off so that `drain` ("100/s") of them come ("delay").
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
            **unknown,
        }
        said = {name: value for name, value in given.items() if value is not msgspec.UNSET}
        return self._app.client.run(configure(self._app.ready(), check_queue(queue), said))

    def settings(self) -> dict[str, QueueSettings]:
        """What is set, by queue."""
        from winch.engine.queue_desk import settings

        return self._app.client.run(settings(self._app.ready()))

    def _now(self) -> datetime:
        return self._app.clock.now()


class Schedules:
    """`app.schedules`: entries that enqueue jobs by the clock."""

    def __init__(self, app: App) -> None:
        self._app = app

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
        said = _said(cron, every, tz, dst, misfire, catch_up, overlap, jitter, options)
        return self._app.client.run(self._desk.add(name, task, args, said))

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
        said = _said(cron, every, tz, dst, misfire, catch_up, overlap, jitter, options)
        return self._app.client.run(self._desk.edit(name, args, said))

    def get(self, name: str) -> Schedule:
        """The schedule; raises ScheduleNotFound."""
        return self._app.client.run(self._desk.get(name))

    def list(self) -> builtins.list[Schedule]:
        """All schedules, by name."""
        return self._app.client.run(self._desk.list())

    def pause(self, name: str, *, reason: str | None = None) -> None:
        """No more windows until `resume`."""
        self._app.client.run(self._desk.pause(name, reason))

    def resume(self, name: str) -> None:
        """Windows count again from now on; those that passed meanwhile get no job."""
        self._app.client.run(self._desk.resume(name))

    def trigger(self, name: str) -> Job[Any]:
        """Enqueue its job now, whatever the time and the policies say."""
        from winch.engine.handle import Job

        run = self._app.client.run(self._desk.trigger(name))
        return Job(self._app.client, run.job or "")

    def skip(self, name: str) -> datetime:
        """No job for the next window; returns it."""
        return self._app.client.run(self._desk.skip(name))

    def remove(self, name: str) -> None:
        """Forget the schedule; its jobs stay. Not for one that the code of a live worker defines."""
        self._app.client.run(self._desk.remove(name))

    def next(self, name: str, count: int = 5) -> builtins.list[datetime]:
        """The next windows, in UTC."""
        return self.get(name).next(count)

    def history(self, name: str, *, limit: int = 30) -> builtins.list[Run]:
        """What became of the latest windows, newest first."""
        return self._app.client.run(self._desk.history(name, limit))

    @property
    def _desk(self) -> ScheduleDesk:
        from winch.engine.schedules import ScheduleDesk

        return ScheduleDesk(self._app.ready, self._app.tasks, self._app.client.draw_id)


def _said(
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
    """`app.workers`: the sessions the store knows."""

    def __init__(self, app: App) -> None:
        self._app = app

    def list(self, *, is_ended_too: bool = False) -> list[SessionInfo]:
        driver = self._app.ready()
        return driver.run(driver.sessions(is_ended_too=is_ended_too))


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


__all__ = ["App", "JobList", "SystemClock"]

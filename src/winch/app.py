"""The composition root: a URL becomes a driver, functions become tasks, and both become an app."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from winch.areas.attributes import Areas
from winch.areas.launch.import_name import name_of
from winch.core.errors import ConfigError, SchemaMismatch, did_you_mean
from winch.core.values.clock import Clock
from winch.core.values.ids import JobIds
from winch.drivers.connect import connect
from winch.engine.base.operation import Operation
from winch.engine.base.settings import Loaded, Settings, load
from winch.engine.base.system_clock import SystemClock
from winch.engine.client.audit import AuditLog, noted
from winch.engine.client.client import Client, Surroundings
from winch.engine.client.fast_enqueue import FastClient
from winch.engine.client.spool import Spool
from winch.engine.moving.routed_driver import routed
from winch.engine.tasks.events import JobEvent
from winch.engine.tasks.middleware import Middleware
from winch.engine.tasks.options import TaskOptions, _name, task_options
from winch.engine.tasks.registry import Registry, default_name, refuse_unfit
from winch.engine.tasks.runtime import Runtime
from winch.engine.tasks.task import Bound, Task, task_class
from winch.storage.fast import is_fast
from winch.storage.forks import ProcessLock
from winch.storage.protocol import advice

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from typing import Never, Unpack

    from winch.core.policy.limits import Breaker, Limit, Rate, RetryBudget
    from winch.core.policy.retention import Retention
    from winch.core.policy.retry import Retry
    from winch.core.policy.unique import Unique
    from winch.core.values.duration import Duration
    from winch.engine.base.encryption import Keyring
    from winch.engine.client.job import Job
    from winch.engine.client.preflight import Preflight
    from winch.engine.supervisor.worker_options import WorkerOptions
    from winch.engine.tasks.context import Context
    from winch.engine.tasks.decorators import CollectingDecorator, TaskDecorator
    from winch.engine.tasks.task import AsyncContextTask, AsyncTask, ContextTask
    from winch.storage.protocol import Driver

P = ParamSpec("P")
R = TypeVar("R")
L = TypeVar("L", bound=Callable[..., Any])
K = TypeVar("K", bound="Task[..., Any]")


class App(Areas):
    """Your tasks, and the store that keeps their jobs: `winch.App("postgresql://localhost/shop")`.

    `url` names the store; the default is `sqlite:///winch.db`. `$WINCH_URL` overrides it, and a
    configuration file applies where it is left out. The other arguments are settings;
    the page Configuration describes each. The app connects when it first needs the store."""

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
        queue_limits: Mapping[str, int] | None = None,
        queue_rates: Mapping[str, str] | None = None,
        kill_after: Duration | None = None,
        crash_limit: int | None = None,
        crash_window: Duration | None = None,
        misfire_deadline: Duration | None = None,
        max_jobs: int | None = None,
        max_memory: int | str | None = None,
        max_lifetime: Duration | None = None,
        keys: Keyring | None = None,
        spool: str | None = None,
        **unknown: Never,
    ) -> None:
        self._code: dict[str, Any] = {
            "url": url, "schema": schema, "events": events, "lease": lease, "heartbeat": heartbeat,
            "sweep": sweep, "poll": poll, "grace": grace, "concurrency": concurrency,
            "queue_limits": queue_limits, "queue_rates": queue_rates, "kill_after": kill_after,
            "crash_limit": crash_limit, "crash_window": crash_window,
            "misfire_deadline": misfire_deadline, "max_jobs": max_jobs, "max_memory": max_memory,
            "max_lifetime": max_lifetime, "keys": keys, "spool": spool,
        }  # fmt: skip
        for name in unknown:
            raise ConfigError(f"App() has no setting {name!r}{did_you_mean(name, self._code)}")
        self._loaded: Loaded | None = None
        self._driver: Driver | None = None
        self._opening = ProcessLock()
        self.clock: Clock = SystemClock()
        self.runtime: Runtime = Runtime()
        self.runtime.keys = lambda: self.settings.keys
        self.runtime.lease = lambda: self.settings.lease
        self.runtime.crash_rule = lambda: self.settings.crash_rule
        self.import_path: str | None = None
        """How a process imports this app where no module holds it: "shop.jobs:make_app()"."""
        self.command: str = "winch"
        """How users of this app call the command line; messages name it: "manage.py winch"."""
        self._spool: Spool | None = None
        make_client = FastClient if is_fast() else Client
        self.client: Client = make_client(
            self.ready,
            Surroundings(self.clock),
            self.runtime,
            unchecked=lambda: (self.driver, self._is_checked),
            spool=lambda: self.spool,
            start_worker=lambda: self.start_worker,
        )

    @property
    def start_worker(self) -> str:
        """How people start a worker of this app, for messages. A framework's command knows the app."""
        return f"{self.command} worker{' -A module:app' if self.command == 'winch' else ''}"

    # -- settings and store ------------------------------------------------------------------------

    def configure(self, cli: Mapping[str, Any], *, config: str | None = None) -> Loaded:
        """Load the settings with these values of the command line, before the first use of the store."""
        if self._driver is not None:
            raise ConfigError("the app already uses its store; configure it earlier")
        self._loaded = load(code=self._code, cli=cli, config=config)
        return self._loaded

    @property
    def loaded(self) -> Loaded:
        """The settings, and for each one where its value comes from."""
        if self._loaded is None:
            self._loaded = load(code=self._code)
        return self._loaded

    @property
    def settings(self) -> Settings:
        """The settings in force: `app.settings.lease`, `app.settings.url`, and so on."""
        return self.loaded.settings

    @property
    def driver(self) -> Driver:
        """The driver of the store. Its schema may be missing; `ready` checks that."""
        if self._driver is None:
            with self._opening:  # the first jobs of several threads ask at the same time
                if self._driver is None:
                    self._driver = routed(self.connected, self.settings.url, self.settings.move_to)
        return self._driver

    def connected(self, url: str) -> Driver:
        """The driver of a store, with this app's settings; it opens nothing yet."""
        schema, is_full = self.settings.schema, self.settings.events == "full"
        return connect(url, clock=self.clock, schema=schema, events=is_full)

    def ready(self) -> Driver:
        """The driver, after a check that the store answers (else StorageUnavailable) and has the right
        schema (else SchemaMismatch)."""
        driver = self.driver
        if not self._is_checked:
            status = driver.check_schema()
            if not status.is_ready and driver.capabilities.migrates_itself:
                driver.migrate()
            elif not status.is_ready:
                raise SchemaMismatch(
                    f"{driver.describe()} has schema {status.current or 'none'}, this release needs "
                    f"{status.newest}: {advice(status, self.command)}"
                )
            self._is_checked = True
        return driver

    _is_checked = False

    @property
    def spool(self) -> Spool | None:
        """The file that keeps jobs while the store is unreachable; None when no spool is set."""
        if self._spool is None and self.settings.spool is not None:
            self._spool = Spool(Path(self.settings.spool).expanduser().absolute(), self.clock)
        return self._spool

    def forward_spool(self) -> int:
        """Move the spooled jobs to the store and return their number. Workers do this on their own."""
        return self.client.run(self.client.forward_spool())

    async def aforward_spool(self) -> int:
        """`forward_spool` without blocking the event loop."""
        return await self.client.arun(self.client.forward_spool())

    def migrate(self) -> list[str]:
        """Create or update the schema of the store; returns the names of the migrations that ran."""
        return self.driver.migrate()

    def transaction(self) -> AbstractContextManager[Any]:
        """A connection in a transaction of the store: `with app.transaction() as conn: …`.

        The block commits at its end and rolls back on an exception. On SQLite this is how a job
        commits with your own writes. On PostgreSQL you can also pass a connection of your own."""
        transaction = getattr(self.ready(), "transaction", None)
        if transaction is None:
            raise ConfigError(
                f"app.transaction() needs a store with transactions; {self.driver.describe()} has none"
            )
        opened: AbstractContextManager[Any] = transaction()
        return opened

    def close(self) -> None:
        """Close the connections to the store. The app connects again when it is next used."""
        if self._driver is not None:
            self._driver.close()

    async def aclose(self) -> None:
        """`close` without blocking the event loop."""
        if self._driver is not None:
            await self._driver.aclose()

    @contextlib.contextmanager
    def standing_in(self, driver: Driver, surroundings: Surroundings) -> Iterator[None]:
        """Use another store and other surroundings inside the block. `winch.testing` is built on it."""
        client = self.client
        before = (self._driver, self._is_checked, self.clock)
        before_of_client = client.surroundings, client.ids
        self._driver, self._is_checked, self.clock = driver, True, surroundings.clock
        client.use(surroundings)
        client.ids = JobIds(surroundings.clock.time, surroundings.random_bytes)
        try:
            yield
        finally:
            self._driver, self._is_checked, self.clock = before
            client.use(before_of_client[0])
            client.ids = before_of_client[1]

    # -- hooks -------------------------------------------------------------------------------------

    @property
    def tasks(self) -> Registry:
        """The registered tasks, by name."""
        return self.runtime.tasks

    def lifespan(self, function: L) -> L:
        """Decorate a generator function that yields a dict of resources: `yield {"db": pool}`.

        Each worker process enters it once before its first claim, and leaves it after its last job.
        Handlers read the resources from `ctx.resources` or through `Depends`."""
        self.runtime.add_lifespan(function)
        return function

    def use(self, middleware: Middleware) -> None:
        """Run the hooks of this middleware around every enqueue and every attempt."""
        if not isinstance(middleware, Middleware):
            raise ConfigError(f"app.use takes an instance of winch.Middleware, got {middleware!r}")
        self.runtime.middleware.append(middleware)

    def on(self, kind: str, function: Callable[[JobEvent], Any]) -> None:
        """Call `function` with each JobEvent of this kind in this process: `app.on("dead", alert)`.

        The kinds are enqueued, started, progress, completed, retrying, snoozed, cancelled, dead,
        crashed, rescued and lost. The function is plain and quick. Winch logs its exceptions; they
        never reach a job."""
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
        enqueue_rate: Rate = ...,
        search: Sequence[str] = ...,
        needs: Mapping[str, str] = ...,
        slots: int = ...,
    ) -> TaskDecorator: ...
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
        enqueue_rate: Rate = ...,
        search: Sequence[str] = ...,
        needs: Mapping[str, str] = ...,
        slots: int = ...,
    ) -> CollectingDecorator: ...

    def task(  # type: ignore[misc]  # the overloads name the options that are checked below
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        plain: inspect.Signature | None = None,
        **options: Any,
    ) -> Any:
        """Register a function as a task: `@app.task`, or `@app.task(queue="mail", timeout="30s")`.

        - `name`: the stored name, by default `module.function`. `version`: of the arguments; see
          `Task.upgrade`.
        - `queue`, `priority`, `tags`, `search`: where the job waits, how soon it runs, how to find it.
        - `needs`: labels that the worker must have, like `{"gpu": "h100"}`. `slots`: how many it takes.
        - `timeout`: the longest attempt, by default 15 minutes; None for no limit. `heartbeat`: the
          longest silence.
        - `retry`, `retry_budget`, `breaker`: what follows a failure. `retention`: how long a final job
          is kept.
        - `expires`: cancel a job that has not started by then. `unique`: one live job for the same
          arguments.
        - `limit`, `scope`, `enqueue_rate`: how many jobs run at once or in a time, alone or with other
          tasks.
        - `isolate="process"`: a process for each job. `collect`, `collect_wait`: many jobs in one call.
        """
        checked = task_options(
            {key: value for key, value in options.items() if value is not None or key == "timeout"},
            ("name", *TaskOptions.__struct_fields__),
        )
        if name is not None:
            _name(name, "task name")

        def register(function: Callable[..., Any]) -> Task[Any, Any]:
            if isinstance(function, Task):
                raise ConfigError(f"@app.task takes a function, got the task {function.name!r}")
            refuse_unfit(function)
            title = _name(name or default_name(function), "task name")
            task = task_class(function, is_collecting=checked.collect is not None)(
                self.client, title, function, checked
            )
            if plain is not None:  # a framework's task: see Task.take_plain_arguments
                task.take_plain_arguments(plain)
            self.tasks.add(task)  # last: other threads find it from now on
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
        calendar: str | None = None,
        on_holiday: Literal["skip", "next"] | None = None,
        misfire_deadline: Duration | None = None,
        name: str | None = None,
        args: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Callable[[K], K]:
        """Enqueue a task by the clock: `@app.schedule("0 2 * * *", tz="Asia/Tokyo")` over `@app.task`.

        `cron` has five fields, or is a name such as "@daily". `every` is a spacing, counted from
        midnight UTC. The schedule is active while a worker with this code runs. `options` are those of
        the job: queue, priority, expires, timeout, retry, retention, tags, headers, unique."""
        from winch.areas.scheduling.definition import check_own, define, schedule_options

        given = schedule_options(cron, every, tz, dst, misfire, catch_up, overlap, jitter, calendar,
                                 on_holiday, misfire_deadline, options)  # fmt: skip

        def register(task: K) -> K:
            if not isinstance(task, Task):
                raise ConfigError(
                    f"@app.schedule goes above @app.task and decorates its result, got {task!r}"
                )
            check_own(task, self.tasks, "@app.schedule")
            title = _name(name or task.name, "schedule name")
            declared = self.runtime.schedules
            declared.add(title, define(task, args, given, declared.calendars))
            return task

        return register

    def enqueue_many(self, calls: Iterable[Bound[Any]], *, conn: object = None) -> list[Job[Any]]:
        """Store many jobs and return their handles: `app.enqueue_many([add.bind(1, 2), …])`.

        One round trip carries 1,000 jobs; each thousand is stored completely or not at all. With
        `conn=` all belong to the caller's transaction."""
        return self.client.enqueue_many(calls, conn)

    async def aenqueue_many(self, calls: Iterable[Bound[Any]], *, conn: object = None) -> list[Job[Any]]:
        """`enqueue_many` without blocking the event loop."""
        return await self.client.aenqueue_many(calls, conn)

    def signal(
        self, name: str, payload: object = None, *, id: str | None = None, conn: object = None
    ) -> bool:
        """Send a signal to the job that waits for this name with `ctx.wait_for`, now or later.

        The store keeps it until a job takes it. Returns whether it is new: with `id`, a repeat has no
        effect."""
        return self.client.run(self._signal(name, payload, id, conn))

    async def asignal(
        self, name: str, payload: object = None, *, id: str | None = None, conn: object = None
    ) -> bool:
        """`signal` without blocking the event loop."""
        return await self.client.arun(self._signal(name, payload, id, conn))

    def _signal(self, name: str, payload: object, id: str | None, conn: object) -> Operation[bool]:
        is_new = yield from self.client.signal(name, payload, id, conn)
        if conn is None:  # in the caller's transaction it is one of the application's own writes
            yield from noted(self.client.driver(), "signal", name, id=id, is_new=is_new)
        return is_new

    @property
    def audit(self) -> AuditLog:
        """The audit log: one line for each action of the library, the command line and the server."""
        return AuditLog(self.client)

    def preflight(self, *, most: int = 100_000) -> Preflight:
        """Report the queued jobs that this code cannot run. Use it with the new code before a deploy."""
        from winch.engine.client.preflight import preflight

        return self.client.run(preflight(self.ready(), self.tasks, self.settings.keys, most))

    # -- workers -----------------------------------------------------------------------------------

    def worker(
        self,
        *,
        queues: Sequence[str] | Mapping[str, int] = ("default",),
        concurrency: int | None = None,
        burst: bool = False,
        labels: Mapping[str, str] | None = None,
        queue_limits: Mapping[str, int] | None = None,
        queue_rates: Mapping[str, str] | None = None,
    ) -> AbstractAsyncContextManager[Any]:
        """A worker inside this process and event loop: `async with app.worker(queues=["mail"]): …`."""
        from winch.engine.supervisor.embedded import EmbeddedWorker, process_command

        self.ready()
        options: WorkerOptions = {
            "queues": queues, "concurrency": concurrency, "burst": burst, "labels": labels,
            "queue_limits": queue_limits, "queue_rates": queue_rates,
        }  # fmt: skip
        return EmbeddedWorker(self, options, process_command(self.import_path or name_of(self)))

    def run_worker(self, **options: Unpack[WorkerOptions]) -> int:
        """Run a worker until a signal stops it; with `burst`, until no job is ready. Returns its exit
        code.

        The options are those of `winch worker`; those without a default there may be left out here. With
        processes, max_jobs, max_memory, max_lifetime, no_replace, report_busy, reload or health_port, it
        starts processes, which import the app by its name. With the others, jobs run in this process."""
        from winch.areas.launch.run_worker import run_worker

        return run_worker(
            self, self.import_path or name_of(self), options, lambda cli: load(code=self._code, cli=cli)
        )


__all__ = ["App", "SystemClock"]

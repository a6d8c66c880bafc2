"""Winch in a Litestar application, as a plugin: a dependency, its life, job status and the dashboard.

    from winch.integrations.litestar import WinchPlugin, accepted

    @post("/reports", status_code=202)
    async def create(request: AnyRequest) -> Response[dict[str, Any]]:
        return accepted(request, await render.aenqueue())

    site = Litestar([create], plugins=[WinchPlugin(jobs, may_read=is_own)])

The dependency `jobs` and `jobs_of(request)` are the Winch app. `litestar winch worker -Q mail` runs a
worker.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import Any
from urllib.parse import unquote

import click
from litestar import Litestar, Request, Response, asgi, get
from litestar.config.app import AppConfig
from litestar.di import Provide
from litestar.exceptions import NoRouteMatchFoundException, NotFoundException
from litestar.plugins import CLIPlugin, InitPluginProtocol
from litestar.types import Receive, Scope, Send
from starlette.requests import Request as StarletteRequest

from winch import App, ConfigError, Job, JobNotFound
from winch.integrations._command import become_winch
from winch.integrations.status import RETRY_AFTER, JobStatus, accepted_body, astatus_of
from winch.types import JobRecord
from winch.web import Access
from winch.web import asgi as winch_site

AnyRequest = Request[Any, Any, Any]
MayRead = Callable[[AnyRequest, JobRecord], bool | Awaitable[bool]]
AnyGuard = Callable[[Any, Any], Any]
Authenticate = Callable[[StarletteRequest], Access | Awaitable[Access | None] | None]
JOB_ROUTE = "winch_job"
"""The name of the route that shows the status of a job."""
ENV = "LITESTAR_APP"
SPEC = "winch.integrations.litestar:make_app()"


class WinchPlugin(InitPluginProtocol, CLIPlugin):
    """Adds Winch to an application: `Litestar(routes, plugins=[WinchPlugin(jobs)])`.

    - `dependency`: the name of the parameter that receives the Winch app.
    - `queues`, `concurrency`: run a worker in the web process too, for development and small sites.
    - `may_read`: adds `GET /jobs/{job_id}`; it decides whether the caller may see a job. `job_path` and
      `with_result` are its address and whether it shows results.
    - `dashboard`, `authenticate`: the address of the dashboard, and a function that returns a
      `winch.web.Access` or None. It gets a request of Starlette over Litestar's scope, with `user`
      and `session`. `guards` apply before it.
    """

    def __init__(
        self,
        jobs: App,
        *,
        dependency: str = "jobs",
        queues: Sequence[str] | Mapping[str, int] | None = None,
        concurrency: int | None = None,
        may_read: MayRead | None = None,
        job_path: str = "/jobs",
        with_result: bool = False,
        dashboard: str | None = None,
        authenticate: Authenticate | None = None,
        guards: Sequence[AnyGuard] = (),
        read_only: bool = False,
    ) -> None:
        if dashboard is not None and authenticate is None:
            raise ConfigError("a dashboard needs authenticate=, which decides about access")
        self.jobs = jobs
        jobs.command = "litestar winch"
        self._dependency = dependency
        self._queues = queues
        self._concurrency = concurrency
        self._may_read = may_read
        self._job_path = job_path
        self._with_result = with_result
        self._dashboard = dashboard
        self._authenticate = authenticate
        self._guards = guards
        self._read_only = read_only

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        """Add the dependency, the lifespan and the routes. Litestar calls it."""
        app_config.dependencies[self._dependency] = Provide(self._provide, sync_to_thread=False)
        app_config.signature_namespace["App"] = App
        app_config.lifespan.append(self._lifespan)
        if self._may_read is not None:
            app_config.route_handlers.append(self._job_route(self._may_read))
        if self._dashboard is not None:
            app_config.route_handlers.append(self._site("/" + self._dashboard.strip("/")))
        return app_config

    def on_cli_init(self, cli: click.Group) -> None:
        """Add the command `litestar winch …`. Litestar calls it."""
        command = click.Command(
            "winch",
            callback=self._run,
            params=[click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)],
            context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
            help="Run `winch` for this application: `litestar winch worker -Q mail`.",
            add_help_option=False,
        )
        cli.add_command(command)

    def _run(self, words: Sequence[str], **_: object) -> None:
        env: Any = click.get_current_context().find_root().obj
        env = env() if callable(env) else env  # it may be a function that finds the application
        path = getattr(env, "app_path", None) or os.environ.get(ENV)
        if path is None:
            raise click.ClickException("name the application: litestar --app module:site winch …")
        become_winch(words or ["--help"], SPEC, {ENV: path})

    def _provide(self) -> App:
        return self.jobs

    @asynccontextmanager
    async def _lifespan(self, _: Litestar) -> AsyncIterator[None]:
        await asyncio.to_thread(self.jobs.ready)
        try:
            async with AsyncExitStack() as stack:
                if self._queues is not None:
                    worker = self.jobs.worker(queues=self._queues, concurrency=self._concurrency)
                    await stack.enter_async_context(worker)
                yield
        finally:
            await self.jobs.aclose()

    def _job_route(self, may_read: MayRead) -> Any:
        jobs, with_result = self.jobs, self._with_result

        async def show_job(request: AnyRequest) -> Response[JobStatus]:
            try:
                job = await jobs.jobs.aget(request.path_params["job_id"])
            except JobNotFound:
                raise NotFoundException("no such job") from None
            answer = may_read(request, job.record)
            if not (await answer if inspect.isawaitable(answer) else answer):
                raise NotFoundException("no such job")
            found = await astatus_of(job, with_result=with_result)
            headers = {"cache-control": "no-store"}
            if not found.is_final:
                headers["retry-after"] = RETRY_AFTER
            return Response(found, headers=headers)

        namespace = {"AnyRequest": AnyRequest, "JobStatus": JobStatus, "Response": Response}
        path = "/" + self._job_path.strip("/") + "/{job_id:str}"
        return get(path, name=JOB_ROUTE, signature_namespace=namespace)(show_job)

    def _site(self, prefix: str) -> Any:
        inner: Any = winch_site(self.jobs, authenticate=self._authenticate, read_only=self._read_only)

        async def winch_dashboard(scope: Scope, receive: Receive, send: Send) -> None:
            await inner(_below(dict(scope), prefix), receive, send)

        namespace = {"Scope": Scope, "Receive": Receive, "Send": Send}
        return asgi(
            prefix,
            is_mount=True,
            copy_scope=True,
            guards=list(self._guards),
            signature_namespace=namespace,
        )(winch_dashboard)


def _below(scope: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The scope as a mounted application expects it. Litestar cuts the path and adds a slash to it."""
    root = scope.get("root_path", "").rstrip("/")
    raw = scope.get("raw_path")
    whole = scope["path"] if raw is None else unquote(raw.decode("latin-1").partition("?")[0])
    rest = whole.rstrip("/") if raw is None else whole.removeprefix(root).removeprefix(prefix)
    scope["root_path"] = root + prefix
    scope["path"] = root + prefix + (rest or "/")
    scope["state"] = {}
    return scope


def make_app() -> App:
    """The Winch app of the application that `LITESTAR_APP` names.

    `litestar winch worker` is `winch worker -A "winch.integrations.litestar:make_app()"`.
    """
    module, _, name = os.environ.get(ENV, "").partition(":")
    if not module or not name:
        raise ConfigError(f"${ENV} names the application, like shop.web:site")
    found: Any = import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    site = found if isinstance(found, Litestar) else found()
    return _plugin_of(site).jobs


def _plugin_of(site: Litestar) -> WinchPlugin:
    try:
        return site.plugins.get(WinchPlugin)
    except KeyError:
        raise ConfigError("this application has no Winch app: add WinchPlugin(jobs)") from None


def jobs_of(request: AnyRequest) -> App:
    """The Winch app of the plugin of this application."""
    return _plugin_of(request.app).jobs


def accepted(
    request: AnyRequest, job: Job[Any], more: Mapping[str, object] | None = None
) -> Response[dict[str, Any]]:
    """The answer 202 for a stored job, with its status address as `Location`.

        return accepted(request, await render.aenqueue(7))

    The body has the job's id and location, and what `more` adds.
    """
    try:
        path = request.app.route_reverse(JOB_ROUTE, job_id=job.id)
    except NoRouteMatchFoundException as error:
        raise ConfigError("no route shows the status of a job: give may_read= to WinchPlugin") from error
    location = request.scope.get("root_path", "").rstrip("/") + path
    headers = {"location": location, "retry-after": RETRY_AFTER}
    return Response(accepted_body(job, location, more), status_code=202, headers=headers)


__all__ = [
    "JOB_ROUTE",
    "AnyRequest",
    "Authenticate",
    "MayRead",
    "WinchPlugin",
    "accepted",
    "jobs_of",
    "make_app",
]

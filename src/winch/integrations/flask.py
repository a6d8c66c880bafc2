"""Winch in a Flask application: handlers in the app context, `flask winch`, status and dashboard.

    from winch.integrations.flask import Winch, accepted, job_blueprint, mount_dashboard

    winch_ext = Winch(jobs)

    def create_app() -> Flask:
        site = Flask(__name__)
        winch_ext.init_app(site)
        site.register_blueprint(job_blueprint(jobs, may_read=is_own))
        mount_dashboard(site, "/ops", jobs, authenticate=access_of)
        return site

Each attempt of a job runs inside `site.app_context()`, in the thread of the handler: `current_app`, `g`,
configuration and extensions work there as in a request, and their teardown functions run at its end.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click
import msgspec
from flask import Blueprint, Flask, Response, abort, current_app, jsonify, request, url_for
from flask.cli import ScriptInfo
from werkzeug.routing import BuildError
from werkzeug.wrappers import Response as WerkzeugResponse

from winch import App, ConfigError, Job, JobNotFound, Task
from winch.integrations._command import become_winch
from winch.integrations.status import RETRY_AFTER, accepted_body, status_of
from winch.types import JobRecord
from winch.web import Access, wsgi

MayRead = Callable[[JobRecord], bool]
FlaskAuthenticate = Callable[[], Access | None]
KEY = "winch"
"""The name of the extension, of its command and of the blueprint."""
SPEC = "winch.integrations.flask:make_app()"
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


class Winch:
    """The extension: `Winch(jobs).init_app(site)`, or `Winch(jobs, site)`.

    It runs handlers inside the context of the application and adds the command `flask winch`.
    """

    def __init__(self, jobs: App, site: Flask | None = None) -> None:
        self.jobs = jobs
        self._site: Flask | None = None
        jobs.lifespan(self._lifespan)
        if site is not None:
            self.init_app(site)

    def init_app(self, site: Flask) -> None:
        """Connect the extension with an application. Jobs run in the context of the newest one."""
        self._site = site
        site.extensions[KEY] = self
        self.jobs.command = "flask winch"
        site.cli.add_command(_command)

    @property
    def site(self) -> Flask:
        """The application whose context handlers run in."""
        if self._site is None:
            raise ConfigError("the Flask extension has no application: call init_app(site) first")
        return self._site

    def _lifespan(self) -> Iterator[dict[str, Any]]:
        """All tasks are registered by the time a worker starts."""
        for task in self.jobs.tasks:
            self._put_inside_context(task)
        yield {}

    def _put_inside_context(self, task: Task[Any, Any]) -> None:
        inner = task.fn
        if getattr(inner, "winch_flask", None) is self:
            return

        @functools.wraps(inner)
        def plain(*args: Any, **kwargs: Any) -> Any:
            with self.site.app_context():
                return inner(*args, **kwargs)

        @functools.wraps(inner)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            with self.site.app_context():
                return await inner(*args, **kwargs)

        outer: Any = coroutine if inspect.iscoroutinefunction(inner) else plain
        outer.winch_flask = self
        task.fn = outer


def jobs_of(site: Flask | None = None) -> App:
    """The Winch app of an application; by default of `current_app`."""
    found = (site or current_app).extensions.get(KEY)
    if not isinstance(found, Winch):
        raise ConfigError("this application has no Winch app: call Winch(jobs).init_app(site)")
    return found.jobs


def accepted(job: Job[Any], more: Mapping[str, object] | None = None) -> Response:
    """The answer 202 for a stored job, with its status address as `Location`.

        return accepted(render.enqueue(7))

    The body has the job's id and location, and what `more` adds.
    """
    try:
        location = url_for(f"{KEY}.show_job", job_id=job.id)
    except BuildError as error:
        raise ConfigError(
            "no route shows the status of a job: register job_blueprint(jobs, may_read=…)"
        ) from error
    response = jsonify(accepted_body(job, location, more))
    response.status_code = 202
    response.headers["location"] = location
    response.headers["retry-after"] = RETRY_AFTER
    response.autocorrect_location_header = False
    return response


def job_blueprint(
    jobs: App, *, may_read: MayRead, url_prefix: str = "/jobs", with_result: bool = False
) -> Blueprint:
    """A blueprint that shows the status of jobs: `GET /jobs/<job_id>`.

        site.register_blueprint(job_blueprint(jobs, may_read=lambda job: job.tenant == g.user.name))

    `may_read(record)` decides whether the caller may see the job; if not, the answer is 404, as for a
    job that does not exist. `with_result` shows the result of a completed job.
    """
    blueprint = Blueprint(KEY, __name__, url_prefix=url_prefix)

    def show_job(job_id: str) -> Response:
        try:
            job = jobs.jobs.get(job_id)
        except JobNotFound:
            abort(404)
        if not may_read(job.record):
            abort(404)
        found = status_of(job, with_result=with_result)
        response = jsonify(msgspec.to_builtins(found))
        response.headers["cache-control"] = "no-store"
        if not found.is_final:
            response.headers["retry-after"] = RETRY_AFTER
        return response

    blueprint.add_url_rule("/<job_id>", "show_job", show_job)
    return blueprint


def mount_dashboard(
    site: Flask, path: str, jobs: App, *, authenticate: FlaskAuthenticate, read_only: bool = False
) -> None:
    """Mount the dashboard and the HTTP API below `path`, behind the login of the application.

        mount_dashboard(site, "/ops", jobs, authenticate=access_of)

    `authenticate()` returns a `winch.web.Access`, or None for no access. It runs in the context of the
    request, after `before_request` functions. The forms of the dashboard have tokens of their own:
    exempt the endpoint `winch_dashboard` from other CSRF protection. Pages poll; streams are refused.
    """
    prefix = "/" + path.strip("/")
    served = wsgi(jobs, authenticate=lambda _: authenticate(), read_only=read_only)
    stored = prefix.encode().decode("latin-1")

    def show(rest: str = "") -> WerkzeugResponse:
        environ = dict(request.environ)
        environ["SCRIPT_NAME"] = environ.get("SCRIPT_NAME", "") + stored
        environ["PATH_INFO"] = environ["PATH_INFO"].removeprefix(stored) or "/"
        response = WerkzeugResponse.from_app(served, environ, buffered=True)
        response.autocorrect_location_header = False
        return response

    for rule in (prefix, f"{prefix}/", f"{prefix}/<path:rest>"):
        site.add_url_rule(rule, "winch_dashboard", show, methods=_METHODS, strict_slashes=True)


# -- the command line ----------------------------------------------------------------------------------


@click.command(
    KEY,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    add_help_option=False,
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def _command(ctx: click.Context, words: Sequence[str]) -> None:
    """Run `winch` for this application: `flask winch worker -Q mail`, `flask winch jobs list`."""
    info = ctx.ensure_object(ScriptInfo)
    more = {} if info.app_import_path is None else {"FLASK_APP": info.app_import_path}
    become_winch(words or ["--help"], SPEC, more)


def make_app() -> App:
    """The Winch app of the application that `FLASK_APP` names.

    `flask winch worker` is `winch worker -A "winch.integrations.flask:make_app()"`.
    """

    return jobs_of(ScriptInfo(app_import_path=os.environ.get("FLASK_APP")).load_app())


__all__ = [
    "KEY",
    "FlaskAuthenticate",
    "MayRead",
    "Winch",
    "accepted",
    "job_blueprint",
    "jobs_of",
    "make_app",
    "mount_dashboard",
]

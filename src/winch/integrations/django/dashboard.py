"""The dashboard and the HTTP API inside a Django project, behind Django's own login.

    urlpatterns = [path("jobs/", include("winch.integrations.django.urls"))]

It shows the store of the project's TASKS, or the app that `WINCH_APP = "shop.jobs:app"` names. It works
under WSGI and ASGI alike, through `winch.web.wsgi`: streams (server-sent events) are refused, and the
pages poll instead.

Django decides about access: `WINCH_ACCESS = "shop.jobs.access"` names a function that takes the
request and returns a `winch.web.Access`, or None for no access. Without it superusers may do everything,
staff may look, and other users see nothing.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from winch import App, ConfigError
from winch.web import Access, wsgi

Who = Callable[[HttpRequest], Access | None]
# Where the site finds Django's request again.
REQUEST = "winch.django_request"


def default_access(request: HttpRequest) -> Access | None:
    """Superusers may do everything, staff may look."""
    user = getattr(request, "user", None)
    if user is None or not user.is_active or not user.is_staff:
        return None
    return Access(str(user), roles=("admin",) if user.is_superuser else ("read",))


def view(app: App, who: Who = default_access, *, read_only: bool = False) -> Callable[..., HttpResponse]:
    """A Django view that serves the site below the address it is mounted at; it takes `rest`."""

    def authenticate(environ: dict[str, Any]) -> Access | None:
        return who(environ[REQUEST])

    site = wsgi(app, authenticate=authenticate, read_only=read_only)

    def serve(request: HttpRequest, rest: str = "") -> HttpResponse:
        return _answer(site, request, rest)

    # The site has tokens of its own in every form, and asks browsers where a request comes from.
    exempt: Callable[..., HttpResponse] = csrf_exempt(serve)
    return exempt


def _answer(site: Callable[..., Iterable[bytes]], request: HttpRequest, rest: str) -> HttpResponse:
    answer = HttpResponse()
    del answer["content-type"]

    def start_response(status: str, headers: list[tuple[str, str]]) -> None:
        answer.status_code = int(status.partition(" ")[0])
        for name, value in headers:
            if name.lower() == "set-cookie":
                answer.cookies.load(value)
            elif name.lower() != "content-length":
                answer[name] = value

    answer.content = b"".join(site(_environ(request, rest), start_response))
    return answer


def _environ(request: HttpRequest, rest: str) -> dict[str, Any]:
    """The request as WSGI has it, below the address of the mount. `META` is the same under ASGI."""
    path = request.path
    root = path[: len(path) - len(rest)].rstrip("/")
    body = request.body
    return {
        **request.META,
        "SCRIPT_NAME": root.encode().decode("latin-1"),
        "PATH_INFO": f"/{rest}".encode().decode("latin-1"),
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
        "wsgi.url_scheme": request.scheme or "http",
        REQUEST: request,
    }


def from_settings() -> Callable[..., HttpResponse]:
    """The view that the settings ask for. Its app is settings.WINCH_APP, or the one behind the entry of
    TASKS that settings.DASHBOARD_TASKS_BACKEND names ("default" where there is none)."""
    who = getattr(settings, "WINCH_ACCESS", None)
    found: Who = default_access if who is None else who if callable(who) else _named(who)
    is_read_only = getattr(settings, "WINCH_READ_ONLY", False)
    views: WeakKeyDictionary[App, Callable[..., HttpResponse]] = WeakKeyDictionary()

    def serve(request: HttpRequest, rest: str = "") -> HttpResponse:
        app = _app()
        if app not in views:
            views[app] = view(app, found, read_only=is_read_only)
        return views[app](request, rest)

    exempt: Callable[..., HttpResponse] = csrf_exempt(serve)
    return exempt


def _app() -> App:
    from winch.integrations.django.stores import app_of, named_app

    given = getattr(settings, "WINCH_APP", None)
    return (
        app_of(getattr(settings, "DASHBOARD_TASKS_BACKEND", "default"))
        if given is None
        else named_app(given)
    )


def _named(spec: str) -> Any:
    module, found, name = spec.rpartition(".")
    if not found:
        raise ConfigError(
            f"settings.WINCH_ACCESS must name a function, such as shop.jobs.access; got {spec!r}"
        )
    return getattr(import_module(module), name)

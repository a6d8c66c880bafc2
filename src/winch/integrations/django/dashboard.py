"""The dashboard and the HTTP API inside a Django project, behind Django's own login.

    urlpatterns = [path("jobs/", include("winch.integrations.django.urls"))]

It shows the store of the project's TASKS, or the app that `WINCH_APP = "shop.jobs:app"` names. It works
under WSGI and ASGI alike, through `winch.web.wsgi`: streams (server-sent events) are refused, and the
pages poll instead.

Django decides about access: `WINCH_ACCESS = "shop.jobs.access"` names a function that takes the
request and returns a `winch.web.Access`, or None for no access. Without it superusers may do everything,
staff may do what their permissions for jobs allow, and other users see nothing. A page redirects a
visitor without a login to the project's login.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

from django.apps import apps
from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import NoReverseMatch, reverse
from django.views.decorators.csrf import csrf_exempt

from winch import App, ConfigError
from winch.web import Access, wsgi

AccessOf = Callable[[HttpRequest], Access | None]
APP = "winch.integrations.django"
# Where the site finds Django's request again.
REQUEST = "winch.django_request"


def default_access(request: HttpRequest) -> Access | None:
    """Superusers may do everything. Staff may look with the permission `winch.view_job` and act with
    `winch.operate_job`. A project without the app has no such permissions: there, all staff may look."""
    user = getattr(request, "user", None)
    if user is None or not user.is_active or not user.is_staff:
        return None
    role = _role(user)
    return None if role is None else Access(user.get_username(), roles=(role,))


def _role(user: Any) -> str | None:
    if user.is_superuser:
        return "admin"
    if not apps.is_installed(APP):
        return "read"
    if user.has_perm("winch.operate_job"):
        return "operate"
    return "read" if user.has_perm("winch.view_job") else None


def view(
    app: App, access_of: AccessOf = default_access, *, read_only: bool = False
) -> Callable[..., HttpResponse]:
    """A Django view that serves the site below the address it is mounted at; it takes `rest`."""

    def authenticate(environ: dict[str, Any]) -> Access | None:
        return access_of(environ[REQUEST])

    site = wsgi(app, authenticate=authenticate, read_only=read_only)

    def serve(request: HttpRequest, rest: str = "") -> HttpResponse:
        answer = _answer(site, request, rest)
        is_refused = answer.status_code == 401 and _is_page(request, rest)
        return _to_login(request) if is_refused else answer

    # The site has tokens of its own in every form, and checks the origin that a browser names.
    exempt: Callable[..., HttpResponse] = csrf_exempt(serve)
    return exempt


def _is_page(request: HttpRequest, rest: str) -> bool:
    """Whether a person with a browser opens a page of the site."""
    wants_page = "text/html" in request.headers.get("Accept", "")
    return request.method == "GET" and wants_page and not rest.startswith(("api/", "static/"))


def _to_login(request: HttpRequest) -> HttpResponse:
    """Send a visitor to the login; refuse a user without permission."""
    user = getattr(request, "user", None)
    if user is not None and user.is_authenticated:
        raise PermissionDenied
    login = settings.LOGIN_URL
    if not settings.is_overridden("LOGIN_URL"):
        with suppress(NoReverseMatch):
            login = reverse("admin:login")
    return redirect_to_login(request.get_full_path(), login)


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
    """The view of the settings. Its app is settings.WINCH_APP, or the one behind the entry of
    TASKS that settings.DASHBOARD_TASKS_BACKEND names ("default" where there is none)."""
    given = getattr(settings, "WINCH_ACCESS", None)
    found: AccessOf = default_access if given is None else given if callable(given) else _named(given)
    is_read_only = getattr(settings, "WINCH_READ_ONLY", False)
    views: WeakKeyDictionary[App, tuple[object, Callable[..., HttpResponse]]] = WeakKeyDictionary()

    def serve(request: HttpRequest, rest: str = "") -> HttpResponse:
        app = _app()
        if app not in views or views[app][0] is not app.driver:  # a test has put another store there
            views[app] = (app.driver, view(app, found, read_only=is_read_only))
        return views[app][1](request, rest)

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

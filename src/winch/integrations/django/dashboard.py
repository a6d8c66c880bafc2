"""The dashboard and the HTTP API inside a Django project, behind Django's own login.

    urlpatterns = [path("jobs/", include("winch.integrations.django.urls"))]

It shows the store of the project's TASKS, or the app that `WINCH_APP = "shop.jobs:app"` names. It works
under WSGI and ASGI alike: the site runs on an event loop in a thread of its own, and a view waits for
its answer. Streams (server-sent events) would hold a worker of the web server each and are refused; the
pages poll instead.

Django decides about access: `WINCH_ACCESS = "shop.jobs.access"` names a function that takes the
request and returns a `winch.web.Access`, or None for no access. Without it superusers may do everything,
staff may look, and other users see nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from importlib import import_module
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from winch import App, ConfigError
from winch.web import Access, asgi

T = TypeVar("T")
Who = Callable[[HttpRequest], Access | None]
# Where the site finds Django's request again.
REQUEST = "winch.django_request"
STREAMS = ("/events",)


def default_access(request: HttpRequest) -> Access | None:
    """Superusers may do everything, staff may look."""
    user = getattr(request, "user", None)
    if user is None or not user.is_active or not user.is_staff:
        return None
    return Access(str(user), roles=("admin",) if user.is_superuser else ("read",))


class _Loop:
    """One event loop in a thread, for all requests: what the store keeps open belongs to a loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        with self._lock:  # a web server may fork after import: made at the first request
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=self._loop.run_forever, name="winch dashboard", daemon=True
                ).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def view(app: App, who: Who = default_access, *, read_only: bool = False) -> Callable[..., HttpResponse]:
    """A Django view that serves the site below the address it is mounted at; it takes `rest`."""

    def authenticate(request: Any) -> Access | None:
        return who(request.scope[REQUEST])

    site, loop = asgi(app, authenticate=authenticate, read_only=read_only), _Loop()

    def serve(request: HttpRequest, rest: str = "") -> HttpResponse:
        if rest.startswith("api/") and rest.endswith(STREAMS):
            detail = "streams are not served here; ask again every second or two"
            return JsonResponse({"code": "not-available", "status": 501, "detail": detail}, status=501)
        return loop.run(_answer(site, request, rest))

    # The site has tokens of its own in every form, and asks browsers where a request comes from.
    exempt: Callable[..., HttpResponse] = csrf_exempt(serve)
    return exempt


async def _answer(site: Any, request: HttpRequest, rest: str) -> HttpResponse:
    started: dict[str, Any] = {}
    parts: list[bytes] = []
    sent = False

    async def receive() -> Mapping[str, Any]:
        nonlocal sent
        if sent:
            return {"type": "http.disconnect"}
        sent = True
        return {"type": "http.request", "body": request.body, "more_body": False}

    async def send(message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            started.update(message)
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    await site(_scope(request, rest), receive, send)
    answer = HttpResponse(b"".join(parts), status=started["status"])
    del answer["content-type"]
    for name, value in started["headers"]:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        if key.lower() == "set-cookie":
            answer.cookies.load(text)
        elif key.lower() != "content-length":
            answer[key] = text
    return answer


def _scope(request: HttpRequest, rest: str) -> dict[str, Any]:
    path = request.path
    root = path[: len(path) - len(rest)].rstrip("/")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method or "GET",
        "scheme": request.scheme or "http",
        "path": path if path != root else f"{root}/",
        "raw_path": path.encode(),
        "root_path": root,
        "query_string": request.META.get("QUERY_STRING", "").encode("latin-1"),
        "headers": [
            (key.lower().encode("latin-1"), str(value).encode("latin-1"))
            for key, value in request.headers.items()
            if value != ""
        ],
        "client": (request.META.get("REMOTE_ADDR") or "unknown", 0),
        "server": None,
        "state": {},
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
